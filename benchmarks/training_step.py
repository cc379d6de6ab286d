"""One training step (forward, loss, backward, AdamW) beside four peers, as ratios taken in one run.

``python benchmarks/training_step.py --hooked-python OTHER/bin/python``

Peers with the same position embedding, sizes, activation and optimiser: a plain PyTorch decoder on the fused kernel,
x-transformers (its flash attention on), TransformerLens 4's native bridge, and HookedTransformer of TransformerLens
3.9, which needs an interpreter of its own with that version installed. Rounds are interleaved; a ratio is that of a
peer's time to ours in the same round, and the median over rounds is shown: above 1 we are faster. Time is the CPU
time of the process, which a busy machine disturbs least. A round has `--steps` steps at the large size, twice as
many at the medium one and four times as many at the small one.
"""

import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from common import options, timed
from torch import Tensor, nn
from torch.nn import functional as F

Timer = Callable[[int], float]  # from a number of steps to the seconds of one


@dataclass(frozen=True)
class Size:
    n_layers: int
    d_model: int
    length: int
    batch: int
    n_heads: int = 4
    d_vocab: int = 14  # that of task copy

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


SIZES = {"small": Size(2, 64, 22, 128), "medium": Size(3, 128, 64, 32), "large": Size(4, 256, 128, 16)}
TIMES = {"small": 4, "medium": 2, "large": 1}  # `--steps` of them in a round


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
        angle = torch.arange(size.length)[:, None] * 10000.0 ** (-torch.arange(0, size.d_head, 2) / size.d_head)
        self.turn = None if pe == "learned" else (angle.cos().repeat(1, 2), angle.sin().repeat(1, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x if self.pos is None else x + self.pos
        for block in self.blocks:
            x = block(x, self.turn)
        return self.head(self.ln(x))


def ours(size: Size, pe: str) -> nn.Module:
    from lengthlens.models.config import ModelConfig
    from lengthlens.models.transformer import build

    sizes = {"n_layers": size.n_layers, "n_heads": size.n_heads, "d_model": size.d_model, "n_ctx": size.length}
    return build(ModelConfig(d_vocab=size.d_vocab, scheme=pe, **sizes))


def x_transformers(size: Size, pe: str) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    sizes = {"dim": size.d_model, "depth": size.n_layers, "heads": size.n_heads, "attn_dim_head": size.d_head}
    rotary = {"rotary_pos_emb": pe == "rope", "rotary_emb_dim": size.d_head}
    layers = Decoder(**sizes, **rotary, attn_flash=True)
    about = {"num_tokens": size.d_vocab, "max_seq_len": size.length, "use_abs_pos_emb": pe == "learned"}
    return TransformerWrapper(**about, attn_layers=layers)


def bridge(size: Size, pe: str) -> nn.Module:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import native  # noqa: F401  (adds boot_native)

    config = TransformerBridgeConfig(**hooked_sizes(size, pe), architecture="TransformerLensNative")
    return TransformerBridge.boot_native(config)


def hooked(size: Size, pe: str) -> nn.Module:
    """Runs in the interpreter that has TransformerLens 3.9."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    return HookedTransformer(HookedTransformerConfig(**hooked_sizes(size, pe), device="cpu"))


def hooked_sizes(size: Size, pe: str) -> dict[str, Any]:
    same = {name: getattr(size, name) for name in ("n_layers", "n_heads", "d_model", "d_head", "d_vocab")}
    kind = "standard" if pe == "learned" else "rotary"
    return {
        **same,
        "d_mlp": 4 * size.d_model,
        "n_ctx": size.length,
        "act_fn": "gelu",
        "positional_embedding_type": kind,
    }


PEERS = {"ours": ours, "plain": PlainDecoder, "x-transformers": x_transformers, "bridge": bridge}


def timer(make: Callable[[Size, str], nn.Module], size: Size, pe: str) -> Timer:
    """Times training steps of a peer. Ours and HookedTransformer compute the loss themselves."""
    model, own_loss = make(size, pe), make in (ours, hooked)
    tokens = torch.randint(size.d_vocab, (size.batch, size.length), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss() -> Tensor:
        if own_loss:
            return model(tokens, return_type="loss")
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    return lambda steps: timed(lambda: train(steps), time.process_time)[0] / steps


class Worker:
    """A peer in another interpreter: this file again, told how many steps to time."""

    def __init__(self, python: str, size: str, pe: str, threads: int) -> None:
        command = [python, "-W", "ignore", __file__, "--serve", "--sizes", size, "--pe", pe, "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def timed(self, steps: int) -> float:
        print(steps, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise SystemExit("the interpreter given with --hooked-python cannot run HookedTransformer")


def compare(name: str, given: Namespace) -> None:
    size, pe = SIZES[name], given.pe
    timers = {title: timer(make, size, pe) for title, make in PEERS.items()}
    worker = Worker(given.hooked_python, name, pe, given.threads) if given.hooked_python else None
    if worker:
        timers["hooked 3.9"] = worker.timed
    steps = given.steps * TIMES[name]
    for seconds_per_step in timers.values():
        seconds_per_step(3)  # warm up
    rounds = [{title: of(steps) for title, of in timers.items()} for _ in range(given.rounds)]
    if worker:
        worker.process.communicate()  # ends its input, and with it the process
    milliseconds = statistics.median(each["ours"] for each in rounds) * 1000
    print(f"{name} {pe}: {size} ours {milliseconds:.1f} ms per step, median of {len(rounds)} rounds")
    for title in list(timers)[1:]:
        ratios = sorted(each[title] / each["ours"] for each in rounds)
        print(f"  {title:<16}{statistics.median(ratios):6.2f} times ours   (from {ratios[0]:.2f} to {ratios[-1]:.2f})")
    if not worker:
        print("  hooked 3.9      skipped: give --hooked-python, an interpreter with transformer-lens==3.9.0")


def main() -> None:
    peers = {"hooked_python": "", "sizes": list(SIZES), "pe": ("learned", "rope"), "serve": False}
    given = options(__doc__, **peers, rounds=9, steps=3, threads=1)
    torch.set_num_threads(given.threads)
    if given.serve:
        seconds_per_step = timer(hooked, SIZES[given.sizes[0]], given.pe)
        for line in sys.stdin:
            print("seconds", seconds_per_step(int(line)), flush=True)
        return
    for name in given.sizes:
        compare(name, given)


if __name__ == "__main__":
    main()
