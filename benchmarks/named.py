"""Attention to few named keys beside scores in blocks: one pass of a network with scheme `lbpe`, on one core, by the
number of keys that a query names: `python benchmarks/named.py [--length 1000] [--names 1 4 16] [--rows 1 8]`.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from functools import partial

import torch
from common import options, show, timed

from lengthlens.models import attention
from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import HookedModel, build
from lengthlens.tasks import TASKS


def naming(number: int) -> HookedModel:
    """A network of which every head has as many (form, value) alive: training leaves one to a dozen."""
    torch.manual_seed(0)
    model = build(ModelConfig(task="copy", scheme="lbpe")).eval()
    alive = model.pos_embed.alive  # [layer, head, form, value]
    with torch.no_grad():
        model.pos_embed.bias.normal_()
        chosen = torch.randperm(alive[0, 0].numel())[:number]
        alive.copy_(torch.isin(torch.arange(alive[0, 0].numel()), chosen).view(alive[0, 0].shape).expand_as(alive))
    return model


@torch.no_grad()
def main() -> None:
    given = options(__doc__, length=1000, names=[1, 4, 16], rows=[1, 8])
    torch.set_num_threads(1)
    for number in given.names:
        model = naming(number)
        for rows in given.rows:
            tokens = TASKS["copy"].sample(given.length, rows, torch.Generator().manual_seed(0)).tokens
            seconds = []
            for least in (1, tokens.shape[1] + 1):
                attention.NAMED_LENGTH = least
                one_pass = partial(model, tokens, given.length)
                seconds.append(min(timed(one_pass, time.process_time)[0] for _ in range(4)))
            print(f"n = {given.length}, {rows} rows, {number} names")
            show("named keys and one mean", seconds[0], seconds[0])
            show("scores in blocks", seconds[1], seconds[0])


if __name__ == "__main__":
    main()
