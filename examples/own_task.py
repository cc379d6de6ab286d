"""A task of your own, from its definition to exact match beyond the training range.

As a program, `python own_task.py` trains on it in half a minute. As a plug-in, it is known to every command:

    lengthlens check own_task.py
    lengthlens train --plugin own_task.py --task pair-sums --scheme lbpe
"""

import numpy as np

import lengthlens as ll
from lengthlens.tasks import Circuit, Operator, Task


def next_digit(left: str, right: str) -> str:
    """What the operator computes. The names of its arguments are those of its slots, in verdicts and listings."""
    return "$" if left == "=" else str((int(left) + int(right)) % 5)


@ll.register
class PairSums(Task):
    """The sum modulo 5 of each of n pairs, written side by side: ``^ 1 3 4 4 = 4 3 $`` at n = 2."""

    name, family, summary = "pair-sums", "position-addressed", "the sum modulo 5 of each pair"
    symbols = tuple("01234")

    def input_length(self, scale):  # two symbols for each pair
        return 2 * scale

    def prompt(self, inputs, scale):  # what stands behind ^; how the scale is read off it follows by itself
        return [inputs, "="]

    def answer(self, inputs, scale):  # [row, 2n] symbol ids in, [row, n] out
        return (inputs[:, 0::2] + inputs[:, 1::2]) % 5

    def circuit(self, scale, tokens=None):  # step k reads x_2k+1 and x_2k+2; the last reads "=" twice, and stops
        k = np.arange(scale + 1)
        left, right = np.minimum(2 * k + 1, 2 * scale + 1), np.minimum(2 * k + 2, 2 * scale + 1)
        return Circuit.of(Operator("add mod 5", 2, next_digit), 2 * scale + 1 + k, left, right)


def main() -> None:
    print(*ll.check("pair-sums"), sep="\n")
    task = ll.TASKS["pair-sums"]
    print(task.render(task.parse("^ 1 3 4 4 =").tokens[0]))
    print(ll.verdict("pair-sums", "rope", train_max=4, test_max=20))

    config = ll.RunConfig(task="pair-sums", scheme="ideal", train_max=4, steps=400, n_heads=2, d_model=32)
    trained = ll.train(config, ll.RunStore("runs"))
    print(trained)
    if trained.model is not None:
        print(trained.model.predict("^ 1 3 4 4 ="), "should be", "4 3 $")
        for score in ll.exact_match(trained.model, task, [4, 8, 20], samples=200):
            print(score.length, score.exact_match)


if __name__ == "__main__":
    main()
