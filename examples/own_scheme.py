"""A position embedding of your own: its definition, its verdict, a trained run, and what a probe measures.

As a program, `python own_scheme.py` takes half a minute. As a plug-in, it is known to every command:

    lengthlens check own_scheme.py
    lengthlens verdict --plugin own_scheme.py --task copy --scheme half-distance
"""

from dataclasses import dataclass

import torch
from torch import nn

import lengthlens as ll
from lengthlens.models.schemes.scheme import PositionScheme, option


@ll.register
class HalfDistance(PositionScheme):
    """A learned bias for each half of the distance, rounded down, up to a largest one."""

    name, family = "half-distance", "relative"
    summary, relation_in_words = "a learned bias for each half distance", "min((i−j) div 2, most)"

    @dataclass(frozen=True)
    class Options:  # what a user may set: --scheme-option most=4, or half-distance/most=4 in a sweep
        most: int = option(16, at_least=1, at_most=10_000)

    def __init__(self, sizes, options, task):
        super().__init__(sizes, options, task)
        self.table = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, options.most + 1))

    def code(self, distance):
        return distance.div(2, rounding_mode="floor").clamp(0, self.options.most)

    def phi(self, query_pos, key_pos, scale):  # the code of each pair, [*broadcast, component]
        return self.code(query_pos - key_pos + 0 * scale)[..., None]

    def score(self, layer, positions, queries, q, k):  # added to the scores of a block of queries, [1, head, q, k]
        return self.table[layer][:, self.code(positions.distance(queries))].transpose(0, 1)

    def describe(self, code):  # for counterexamples in words
        return f"half distance {code[0]}"


def main() -> None:
    print(*ll.check("half-distance"), sep="\n")
    print(ll.verdict("copy", "half-distance", train_max=4, test_max=12))

    store = ll.RunStore("runs")
    config = ll.RunConfig(task="copy", scheme="half-distance", train_max=4, steps=300, n_heads=2, d_model=32)
    trained = ll.train(config, store)
    print(trained)
    if trained.model is not None:
        print(ll.measured_src(trained.model, ll.TASKS["copy"], train_max=4).curve)
    print(ll.load(config.id, store=store).config.scheme)


if __name__ == "__main__":
    main()
