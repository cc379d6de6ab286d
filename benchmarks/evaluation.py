"""Exact match from one pass beside generating the answers with a key-value cache, in one run:
`python benchmarks/evaluation.py [--task parity-cot] [--scheme ideal] [--length 100] [--samples 1000] [--rows 1]`.

The generator is as quick as this model allows: it reads the whole prompt in one pass, keeps keys and values in buffers
made once, computes one position a step, and stops early for nothing, since every answer here has the same length.
`--rows` is how many instances it generates at a time; 1 is what a decoder for one request does, and more is a batched
decoder. Both sides must come to the same verdict on every instance.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthlens.models.config import ModelConfig
from lengthlens.models.layers import affine
from lengthlens.models.schemes import Positions
from lengthlens.models.transformer import HookedModel, build
from lengthlens.runs.evaluation import instance_seed, right_answers
from lengthlens.tasks import TASKS, Batch, Task

CACHEABLE = ("none", "learned", "sinusoidal", "rope", "relative", "t5", "alibi", "ideal")  # past keys do not change


class Cached:
    """A model that reads new positions against the keys and values of old ones."""

    def __init__(self, model: HookedModel, rows: int, length: int) -> None:
        cfg = model.cfg
        shape = (cfg.n_layers, rows, cfg.n_heads, length, cfg.d_head)
        self.model, self.keys, self.values = model, torch.empty(shape), torch.empty(shape)

    def read(self, tokens: Tensor, scale: Tensor, start: int) -> Tensor:
        """Logits of the last token, [row, d_vocab]; `tokens` are all so far, those from `start` on are new."""
        model, stop = self.model, tokens.shape[1]
        positions = model.pos_embed.positions(tokens, scale)
        residual = model.embed(tokens[:, start:])
        position = model.pos_embed.embed(positions)
        if position is not None:
            residual = residual + position[:, start:]
        for layer, block in enumerate(model.blocks):
            attn = block.attn
            q, k, v = attn._joint(block.ln1(residual))
            if "rotate" in model.pos_embed.acts():
                new = Positions(tokens[:, start:], positions.position[:, start:], positions.scale, positions.limit)
                q, k = model.pos_embed.rotate(q, new), model.pos_embed.rotate(k, new)
            self.keys[layer, :, :, start:stop] = k.transpose(1, 2)
            self.values[layer, :, :, start:stop] = v.transpose(1, 2)
            residual = residual + self._attend(layer, attn, q, positions, slice(start, stop))
            residual = residual + block.mlp(block.ln2(residual))
        return model.unembed(model.ln_final(residual[:, -1:]))[:, 0]

    def _attend(self, layer: int, attn: torch.nn.Module, q: Tensor, positions: Positions, rows: slice) -> Tensor:
        keys, values = self.keys[layer, :, :, : rows.stop], self.values[layer, :, :, : rows.stop]
        bias = None
        if "score" in self.model.pos_embed.acts():
            bias = self.model.pos_embed.score(layer, positions, rows, q / attn.cfg.attn_scale, keys.transpose(1, 2))
        later = torch.arange(rows.stop) > torch.arange(rows.start, rows.stop)[:, None]
        mask = torch.zeros(later.shape).masked_fill(later, -torch.inf)
        if bias is not None:
            mask = mask + bias
        z = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, mask.expand(len(q), q.shape[2], -1, -1), scale=1 / attn.cfg.attn_scale
        )
        return affine(z.transpose(1, 2).flatten(2), attn.W_O.flatten(0, 1), attn.b_O)


@torch.inference_mode()
def generate(model: HookedModel, task: Task, batch: Batch, length: int) -> Tensor:
    """Whether each generated answer token is the true one, [row, answer]."""
    prompt, total = task.prompt_length(length), task.length(length)
    cached = Cached(model, len(batch), total)
    tokens = torch.empty_like(batch.tokens)
    tokens[:, :prompt] = batch.tokens[:, :prompt]
    start = 0
    for stop in range(prompt, total):
        tokens[:, stop] = cached.read(tokens[:, :stop], batch.scale, start).argmax(-1)
        start = stop
    return tokens[:, prompt:] == batch.tokens[:, prompt:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="parity-cot")
    parser.add_argument("--scheme", default="ideal", choices=CACHEABLE)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 1000])
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = TASKS[options.task]
    model = build(ModelConfig(task=options.task, scheme=options.scheme)).eval()

    def one_pass(samples: int) -> Tensor:
        return right_answers(model, task, options.length, samples, seed=0)

    one_pass(10)
    start = time.perf_counter()
    right = one_pass(options.samples)
    parallel = time.perf_counter() - start
    print(f"{options.task}, {options.scheme}, n = {options.length}, {options.samples} instances, one thread")
    print(f"{'one pass':<42}{parallel:>8.2f} s")
    batch = task.sample(
        options.length, options.samples, torch.Generator().manual_seed(instance_seed(0, options.length))
    )
    for rows in options.rows:
        # One at a time takes minutes: a tenth of the instances is timed and counted ten times.
        share = options.samples if rows > 1 else max(1, options.samples // 10)
        start = time.perf_counter()
        parts = [
            generate(
                model,
                task,
                Batch(batch.tokens[k : k + rows], batch.answer_mask[k : k + rows], batch.scale[k : k + rows]),
                options.length,
            )
            for k in range(0, share, rows)
        ]
        seconds = (time.perf_counter() - start) * options.samples / share
        same = torch.equal(torch.cat(parts).all(1), right[:share].all(1))
        assert same, "the two ways disagree"
        label = f"key-value cache, {rows} instance{'s' if rows > 1 else ''} at a time"
        print(f"{label:<42}{seconds:>8.2f} s{seconds / parallel:>8.1f} times as long")


if __name__ == "__main__":
    main()
