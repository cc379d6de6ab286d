"""Random tasks: whatever a task is, everything from its circuit to exact match of `ideal` at n = 100 holds for it."""

from itertools import product

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import HookedModel, build
from lengthlens.runs.evaluation import exact_match
from lengthlens.tasks import Circuit, Operator, Task
from lengthlens.tasks.contract import check_task
from lengthlens.theory.verdict import verdict

LAYOUTS = ("end", "front", "middle", "between")


class RandomTask(Task):
    """Answer token k is a random function of one to three symbols: at places p(k) + c, p a permutation for each n."""

    name, family, summary = "random", "position-addressed", "a random function of a few symbols"
    symbols = tuple("abc")

    def __init__(self, seed: int, operands: int, layout: str) -> None:
        self.seed, self.operands, self.layout_of = seed, operands, layout
        self.marks = ("=",) if layout == "end" else ("|", "=")
        drawn = np.random.default_rng(seed)
        self.table = torch.from_numpy(drawn.integers(0, 3, 3**operands))
        self.offsets = drawn.permutation(5)[:operands]

    def order(self, n: int) -> np.ndarray:
        """The symbol that each operand of each answer token reads. [answer, operand]"""
        return (np.random.default_rng([self.seed, n]).permutation(n)[:, None] + self.offsets) % n

    def prompt(self, inputs, scale):
        if self.layout_of == "end":
            return [inputs, "="]
        if self.layout_of == "front":
            return ["|", inputs, "="]
        if self.layout_of == "middle":
            return [inputs[:, : scale // 2], "|", inputs[:, scale // 2 :], "="]
        return [piece for k in range(scale) for piece in (inputs[:, k : k + 1], "|")] + ["="]

    def answer(self, inputs, scale):
        read = inputs[:, torch.from_numpy(self.order(scale))]  # [row, answer, operand]
        return self.table[(read * 3 ** torch.arange(self.operands)).sum(-1)]

    def circuit(self, scale, tokens=None):
        place = np.array([(self.prompt_form(scale) == -1 - k).nonzero().item() for k in range(scale)])
        equals = self.prompt_length(scale) - 1
        sources = np.concatenate([place[self.order(scale)], np.full((1, self.operands), equals)])

        def look_up(*tokens: str) -> str:
            if tokens[0] == "=":
                return "$"
            return "abc"[int(self.table[sum("abc".index(t) * 3**k for k, t in enumerate(tokens))])]

        return Circuit.of(Operator("look up", self.operands, look_up), equals + np.arange(scale + 1), *sources.T)


def by_hand(task: RandomTask) -> HookedModel:
    """A network under `ideal` whose heads fetch the operands, one each, and whose MLP has a unit for each row."""
    size, heads = len(task.vocab), task.operands
    rows = [*product("abc", repeat=heads), ("=",) * heads]
    sizes = {"n_layers": 1, "n_heads": heads, "d_head": size, "d_model": size * (heads + 2), "d_mlp": len(rows)}
    model = build(ModelConfig(scheme="ideal", act_fn="relu", normalization_type=None, **sizes), task).eval()
    block = model.layers[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, :size] = torch.eye(size)
        for head in range(heads):
            block.attn.W_V[head, :size] = torch.eye(size)
            block.attn.W_O[head, :, size * (1 + head) : size * (2 + head)] = torch.eye(size)
            for role, code in model.pos_embed.catalogue.items():
                model.pos_embed.table[0, head, code - 1] = 100.0 * (head in role.slots)
        for unit, row in enumerate(rows):
            for head, token in enumerate(row):
                block.mlp.W_in[size * (1 + head) + task.ids[token], unit] = 1.0
            block.mlp.b_in[unit] = 0.5 - heads
            written = task.circuit(1).functions["look up"].function(*row)
            block.mlp.W_out[unit, size * (1 + heads) + task.ids[written]] = 20.0
        model.unembed.W_U[size * (1 + heads) :] = torch.eye(size)
    return model


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**31), operands=st.integers(1, 3), layout=st.sampled_from(LAYOUTS))
def test_everything_holds_for_a_random_task(seed: int, operands: int, layout: str) -> None:
    task = RandomTask(seed, operands, layout)
    assert check_task(task) == []
    assert verdict(task, "ideal", train_max=6, test_max=12, helps=False).verdict == "possible"
    model = by_hand(task)
    assert [score.exact_match for score in exact_match(model, task, [1, 7, 100], samples=20)] == [1.0, 1.0, 1.0]
    line = task.render(task.sample(5, 1, torch.Generator().manual_seed(0)).tokens[0])
    prompt, answer = line.split()[: task.prompt_length(5)], line.split()[task.prompt_length(5) :]
    assert model.predict(" ".join(prompt)) == " ".join(answer)
    written = model.generate(" ".join(prompt), len(answer))  # the scale is read off the prompt
    assert task.render(written[0]) == line
