"""Exact match from one pass beside generating the answers with a key-value cache, in one run:
`python benchmarks/evaluation.py [--task parity-cot] [--scheme ideal] [--length 100] [--samples 1000] [--rows 1]`.

The generator is as quick as this model allows: it reads the whole prompt in one pass, keeps keys and values in buffers
made once, computes one position a step, and stops early for nothing, since every answer here has the same length.
`--rows` is how many instances it generates at a time; 1 is what a decoder for one request does, and more is a batched
decoder. Both sides must come to the same verdict on every instance.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import options, show, timed
from torch import Tensor
from torch.nn import functional as F

from lengthlens.models.attention import affine, per_head
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes import Positions
from lengthlens.models.transformer import HookedModel, build
from lengthlens.runs.evaluation import instance_seed, right_answers
from lengthlens.tasks import TASKS, Batch, Task

CACHEABLE = ("ideal", "none", "learned", "sinusoidal", "rope", "relative", "t5", "alibi")  # past keys do not change


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
            read = block.ln1(residual)
            q, k, v = (per_head(read, getattr(attn, f"W_{x}"), getattr(attn, f"b_{x}")) for x in "QKV")
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
        mask = mask.expand(len(q), q.shape[2], -1, -1)
        z = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, mask, scale=1 / attn.cfg.attn_scale)
        return affine(z.transpose(1, 2).flatten(2), attn.W_O.flatten(0, 1), attn.b_O)


@torch.inference_mode()
def generate(model: HookedModel, task: Task, batch: Batch, length: int) -> Tensor:
    """Whether each generated answer token is the true one, [row, answer]."""
    prompt, total = task.prompt_length(length), task.length(length)
    cached = Cached(model, len(batch), total)
    tokens = torch.empty_like(batch.tokens)
    tokens[:, :prompt] = batch.tokens[:, :prompt]
    for stop in range(prompt, total):
        start = 0 if stop == prompt else stop - 1
        tokens[:, stop] = cached.read(tokens[:, :stop], batch.scale, start).argmax(-1)
    return tokens[:, prompt:] == batch.tokens[:, prompt:]


def main() -> None:
    given = options(__doc__, task="parity-cot", scheme=CACHEABLE, length=100, samples=1000, rows=[1, 16, 1000])
    torch.set_num_threads(1)
    task, length, samples = TASKS[given.task], given.length, given.samples
    model = build(ModelConfig(task=given.task, scheme=given.scheme)).eval()
    right_answers(model, task, length, 10, seed=0)  # warm up
    parallel, right = timed(lambda: right_answers(model, task, length, samples, seed=0))
    print(f"{given.task}, {given.scheme}, n = {length}, {samples} instances, one thread")
    show("one pass", parallel, parallel)
    batch = task.sample(length, samples, torch.Generator().manual_seed(instance_seed(0, length)))
    for rows in given.rows:
        # One at a time takes minutes: a tenth of the instances is timed and counted ten times.
        share = samples if rows > 1 else max(1, samples // 10)
        parts = [
            Batch(*(x[k : k + rows] for x in (batch.tokens, batch.answer_mask, batch.scale)))
            for k in range(0, share, rows)
        ]
        seconds, found = timed(lambda parts=parts: torch.cat([generate(model, task, part, length) for part in parts]))
        assert torch.equal(found.all(1), right[:share].all(1)), "the two ways disagree"
        label = f"key-value cache, {rows} instance{'s' if rows > 1 else ''} at a time"
        show(label, seconds * samples / share, parallel)


if __name__ == "__main__":
    main()
