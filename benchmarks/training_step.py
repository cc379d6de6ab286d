"""One training step (forward, loss, backward, AdamW) beside four peers, as ratios taken in one run.

``python benchmarks/training_step.py --hooked-python OTHER/bin/python``

Peers with the same position embedding, sizes, activation and optimiser: a plain PyTorch decoder on the fused kernel,
x-transformers (its flash attention on), TransformerLens 4's native bridge, and HookedTransformer of TransformerLens
3.9, which needs an interpreter of its own with that version installed. Rounds are interleaved; a ratio is that of a
peer's time to ours in the same round, and the median over rounds is shown: above 1 we are faster. Time is the CPU
time of the process, which a busy machine disturbs least.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Step = Callable[[], None]


@dataclass(frozen=True)
class Size:
    n_layers: int
    d_model: int
    length: int
    batch: int
    n_heads: int = 4
    d_vocab: int = 14  # that of task copy


SIZES = {"small": Size(2, 64, 22, 128), "large": Size(4, 256, 128, 16)}


class PlainBlock(nn.Module):
    """A pre-norm block with nothing but what it needs."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        d = size.d_model
        self.n_heads = size.n_heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        rows, length, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(rows, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        if turn is not None:
            q, k = turned(q, *turn), turned(k, *turn)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(z.transpose(1, 2).reshape(rows, length, d))
        return x + self.mlp(self.ln2(x))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class PlainDecoder(nn.Module):
    def __init__(self, size: Size, pe: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.d_vocab, size.d_model)
        self.pos = nn.Parameter(0.02 * torch.randn(size.length, size.d_model)) if pe == "learned" else None
        self.blocks = nn.ModuleList(PlainBlock(size) for _ in range(size.n_layers))
        self.ln, self.head = nn.LayerNorm(size.d_model), nn.Linear(size.d_model, size.d_vocab)
        d_head = size.d_model // size.n_heads
        angle = torch.arange(size.length)[:, None] * 10000.0 ** (-torch.arange(0, d_head, 2) / d_head)
        self.turn = None if pe == "learned" else (angle.cos().repeat(1, 2), angle.sin().repeat(1, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x if self.pos is None else x + self.pos
        for block in self.blocks:
            x = block(x, self.turn)
        logits: Tensor = self.head(self.ln(x))
        return logits


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def stepper(model: Any, loss: Callable[[Tensor], Tensor], size: Size) -> Step:
    tokens = torch.randint(size.d_vocab, (size.batch, size.length), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss(tokens).backward()
        optimizer.step()

    return step


def ours(size: Size, pe: str) -> Step:
    from lengthlens.models.config import ModelConfig
    from lengthlens.models.transformer import build

    scheme = {"learned": "learned", "rope": "rope"}[pe]
    sizes = {"n_layers": size.n_layers, "n_heads": size.n_heads, "d_model": size.d_model, "n_ctx": size.length}
    model = build(ModelConfig(d_vocab=size.d_vocab, scheme=scheme, **sizes))
    return stepper(model, lambda tokens: model(tokens, return_type="loss"), size)


def plain(size: Size, pe: str) -> Step:
    model = PlainDecoder(size, pe)
    return stepper(model, lambda tokens: next_token_loss(model(tokens), tokens), size)


def x_transformers(size: Size, pe: str) -> Step:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=size.d_model,
        depth=size.n_layers,
        heads=size.n_heads,
        attn_dim_head=size.d_model // size.n_heads,
        attn_flash=True,
        rotary_pos_emb=pe == "rope",
        rotary_emb_dim=size.d_model // size.n_heads,
    )
    model = TransformerWrapper(
        num_tokens=size.d_vocab, max_seq_len=size.length, use_abs_pos_emb=pe == "learned", attn_layers=layers
    )
    return stepper(model, lambda tokens: next_token_loss(model(tokens), tokens), size)


def bridge(size: Size, pe: str) -> Step:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import native  # noqa: F401  (adds boot_native)

    config = TransformerBridgeConfig(**hooked_sizes(size, pe), architecture="TransformerLensNative")
    model = TransformerBridge.boot_native(config)
    return stepper(model, lambda tokens: next_token_loss(model(tokens), tokens), size)


def hooked(size: Size, pe: str) -> Step:
    """Runs in the interpreter that has TransformerLens 3.9."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    model = HookedTransformer(HookedTransformerConfig(**hooked_sizes(size, pe), device="cpu"))
    return stepper(model, lambda tokens: model(tokens, return_type="loss"), size)


def hooked_sizes(size: Size, pe: str) -> dict[str, Any]:
    return {
        "n_layers": size.n_layers,
        "n_heads": size.n_heads,
        "d_model": size.d_model,
        "d_head": size.d_model // size.n_heads,
        "d_mlp": 4 * size.d_model,
        "d_vocab": size.d_vocab,
        "n_ctx": size.length,
        "act_fn": "gelu",
        "positional_embedding_type": "standard" if pe == "learned" else "rotary",
    }


def timed(step: Step, steps: int) -> float:
    started = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - started) / steps


class Worker:
    """A peer in another interpreter: this file again, told how many steps to time."""

    def __init__(self, python: str, size: str, pe: str, threads: int) -> None:
        command = [python, "-W", "ignore", __file__, "--serve", "--sizes", size, "--pe", pe, "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def timed(self, steps: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(steps, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise SystemExit("the interpreter given with --hooked-python cannot run HookedTransformer")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(size: Size, pe: str) -> None:
    step = hooked(size, pe)
    for line in sys.stdin:
        print("seconds", timed(step, int(line)), flush=True)


def compare(name: str, arguments: argparse.Namespace) -> None:
    size, pe = SIZES[name], arguments.pe
    peers: dict[str, Callable[[int], float]] = {}
    for title, make in {"ours": ours, "plain": plain, "x-transformers": x_transformers, "bridge": bridge}.items():
        step = make(size, pe)
        peers[title] = lambda steps, step=step: timed(step, steps)
    worker = Worker(arguments.hooked_python, name, pe, arguments.threads) if arguments.hooked_python else None
    if worker:
        peers["hooked 3.9"] = worker.timed
    steps = max(1, math.ceil(arguments.steps * (1 if name == "large" else 4)))
    for run in peers.values():
        run(3)
    rounds = [{title: run(steps) for title, run in peers.items()} for _ in range(arguments.rounds)]
    if worker:
        worker.close()
    milliseconds = statistics.median(each["ours"] for each in rounds) * 1000
    print(f"{name} {pe}: {size} ours {milliseconds:.1f} ms per step, median of {len(rounds)} rounds")
    for title in list(peers)[1:]:
        ratios = sorted(each[title] / each["ours"] for each in rounds)
        print(f"  {title:<16}{statistics.median(ratios):6.2f} times ours   (from {ratios[0]:.2f} to {ratios[-1]:.2f})")
    if not worker:
        print("  hooked 3.9      skipped: give --hooked-python, an interpreter with transformer-lens==3.9.0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hooked-python", help="interpreter of an environment with transformer-lens 3.9")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--pe", choices=["learned", "rope"], default="learned")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--steps", type=int, default=3, help="steps per round at the large size; four times at the small"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.serve:
        serve(SIZES[arguments.sizes[0]], arguments.pe)
        return
    for name in arguments.sizes:
        compare(name, arguments)


if __name__ == "__main__":
    main()
