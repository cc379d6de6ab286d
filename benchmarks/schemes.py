"""What a training step costs under each scheme and normalisation, as a multiple of a step with rope, in one run.

``python benchmarks/schemes.py --rounds 7``

The network and batch of a default run (task copy, n = 10). Beside it the same embedding of x-transformers, as a
multiple of x-transformers' own rope, where it has one. Rounds are interleaved. Shown is the median over rounds of the
CPU time of a step over that of rope in the same round.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from x_transformers import Decoder, TransformerWrapper

import lengthlens as ll
from lengthlens.runs.trainer import answer_loss
from lengthlens.tasks import TASKS

OURS: dict[str, dict[str, Any]] = {
    name: {"scheme": name}
    for name in (
        *("rope", "alibi", "cope", "xpos", "pope", "grape-multiplicative", "fox", "wall", "selective-rope"),
        *("grape-additive", "dape", "path", "layers(rope,none)", "windowed:rope", "dropped:rope", "continuous:rope"),
    )
} | {
    f"rope, {kind}": {"scheme": "rope", "attn_normalization": kind}
    for kind in ("ssmax", "entmax", "asentmax", "stick-breaking")
}
OURS["rope, sink"] = {"scheme": "rope", "attn_sink": True}
THEIRS: dict[str, dict[str, Any]] = {
    "rope": {"rotary_pos_emb": True},
    "xpos": {"rotary_xpos": True},
    "pope": {"polar_pos_emb": True},
    "fox": {"attn_data_dependent_alibi": True},
    "alibi": {"alibi_pos_bias": True},
}


def ours(**config: Any) -> Callable[[], None]:
    model = ll.build(ll.ModelConfig(task="copy", **config))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = TASKS["copy"].sample(10, 32, torch.Generator().manual_seed(0))

    def step() -> None:
        answer_loss(model(batch.tokens, 10), batch, 0.1).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def theirs(**options: Any) -> Callable[[], None]:
    layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, **options)
    model = TransformerWrapper(num_tokens=14, max_seq_len=64, attn_layers=layers, use_abs_pos_emb=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = TASKS["copy"].sample(10, 32, torch.Generator().manual_seed(0)).tokens

    def step() -> None:
        torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Callable[[], None], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


def multiples(steps: dict[str, Callable[[], None]], rounds: int, times: int) -> dict[str, float]:
    for step in steps.values():
        seconds(step, 5)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            both = seconds(steps["rope"], times), seconds(step, times)
            found[name].append(both[1] / both[0])
    return {name: statistics.median(each) for name, each in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    own = multiples({name: ours(**config) for name, config in OURS.items()}, asked.rounds, asked.steps)
    other = multiples({name: theirs(**options) for name, options in THEIRS.items()}, asked.rounds, asked.steps)
    print("| scheme | lengthlens | x-transformers |\n|---|---|---|")
    for name, ratio in own.items():
        print(f"| {name} | {ratio:.2f} | {f'{other[name]:.2f}' if name in other else ''} |")
