"""Exact match at any length, from one teacher-forced pass.

A greedy decoder that has been right so far sees exactly the tokens that teacher forcing shows, so it writes the whole
answer exactly when the arg-max is right at every answer token of the true sequence. (This holds where the output at a
position does not depend on what follows it; ``randomized:`` schemes place a prefix otherwise than the whole, and for
them exact match is a statement about the whole sequence.)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor

from lengthlens.models.block import Block
from lengthlens.models.transformer import HookedModel
from lengthlens.errors import UserError
from lengthlens.tasks import Batch, Task

MEMORY = 1 << 30  # bytes that one block may take by default: safe beside whatever else a laptop runs
SAMPLES = 1000  # of each length; all right then says "above 0.996" with 95 % confidence
Z = 1.96  # of a 95 % interval
FLOAT = 4  # bytes
CPU_ROWS = 64  # more sequences at a time leave the processor's cache, and gain nothing


@dataclass(frozen=True)
class Score:
    """How well a model does at one length. `low` and `high` are Wilson's 95 % interval of the figure before them."""

    length: int  # the scale n
    samples: int
    exact_match: float  # share of instances with every answer token right, end token included
    exact_match_low: float
    exact_match_high: float
    exact_match_no_end: float  # the same with the end token left out: some failures are only a missed stop
    exact_match_no_end_low: float
    exact_match_no_end_high: float
    token_accuracy: float  # share of answer tokens that are right
    seed: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def wilson(right: int, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; it stays sensible at 0 and 1.

    >>> low, high = wilson(1000, 1000)
    >>> round(low, 4), high
    (0.9962, 1.0)
    """
    share, spread = right / samples, Z * Z / samples
    centre = share + spread / 2
    half = Z * math.sqrt(share * (1 - share) / samples + spread / (4 * samples))
    low, high = (centre - half) / (1 + spread), (centre + half) / (1 + spread)
    return (0.0 if right == 0 else low), (1.0 if right == samples else high)


def exact_match(
    model: HookedModel,
    task: Task,
    lengths: Sequence[int],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    memory: int = MEMORY,
    report: Callable[[str], None] | None = None,
) -> list[Score]:
    """Exact match on `samples` random instances of each length (scale), in blocks of at most `memory` bytes.

    The instances of a length follow from `seed` and the length alone, not from the other lengths or the memory.

    >>> from lengthlens.models.config import ModelConfig
    >>> from lengthlens.models.transformer import build
    >>> from lengthlens.tasks import TASKS
    >>> model = build(ModelConfig(task="copy", scheme="rope"))
    >>> [score.length for score in exact_match(model, TASKS["copy"], [3, 5], samples=10)]
    [3, 5]
    """
    if samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}")
    for length in lengths:
        task.checked_scale(length)
    scores = []
    for length in lengths:
        if report:
            report(f"n = {length}")
        scores.append(score_of(length, seed, verdicts(model, task, length, samples, seed, memory)))
    return scores


def score_of(length: int, seed: int, right: Iterator[Tensor]) -> Score:
    """The score that follows from which answer tokens are right, given as blocks [row, answer]."""
    samples = whole = no_end = token = tokens = 0
    for block in right:
        samples += len(block)
        whole += int(block.all(1).sum())
        no_end += int(block[:, :-1].all(1).sum())
        token += int(block.sum())
        tokens += block.numel()
    return Score(
        length,
        samples,
        whole / samples,
        *wilson(whole, samples),
        no_end / samples,
        *wilson(no_end, samples),
        token / tokens,
        seed,
    )


def verdicts(
    model: HookedModel, task: Task, length: int, samples: int, seed: int, memory: int = MEMORY
) -> Iterator[Tensor]:
    """Which answer tokens are predicted right, in blocks [row, answer], end token last."""
    rows = rows_within(memory, model, task.length(length))
    # Drawn in one go, so that the instances do not depend on the size of the blocks.
    drawn = task.sample(length, samples, torch.Generator().manual_seed(instance_seed(seed, length)))
    training = model.training
    model.eval()
    try:
        for start in range(0, samples, rows):
            yield right_tokens(model, rows_of(drawn, start, start + rows))
    finally:
        model.train(training)


def instance_seed(seed: int, length: int) -> int:
    """Seeds of different lengths, and of training (which uses small ones), do not meet.

    >>> instance_seed(0, 10)
    4611686018427387914
    """
    return (1 << 62) + (seed << 31) + length


def rows_of(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(batch.tokens[start:stop], batch.answer_mask[start:stop], batch.scale[start:stop])


@torch.inference_mode()
def right_tokens(model: HookedModel, batch: Batch) -> Tensor:
    """Whether each answer token of instances of one scale is the model's arg-max. [row, answer]"""
    device = model.embed.W_E.device
    tokens = batch.tokens.to(device)
    logits = model(tokens, batch.scale.to(device))
    first = tokens.shape[1] - int(batch.answer_mask[0].sum())  # where the answer begins
    right: Tensor = logits[:, first - 1 : -1].argmax(-1) == tokens[:, first:]
    return right.cpu()


def rows_within(memory: int, model: HookedModel, length: int) -> int:
    """How many sequences of `length` tokens fit into `memory` bytes at once; at least one is tried.

    Attention looks at a bounded block of scores at a time, so what counts is the residual stream, queries, keys and
    values, the hidden layer of the MLP and the logits: all linear in the length.
    """
    cfg = model.cfg
    numbers = 8 * cfg.d_model + 3 * (cfg.d_mlp or 0) + 3 * cfg.d_vocab_out + 4 * cfg.n_heads * cfg.d_head
    left = memory - 2 * block_bytes(model)
    fitting = max(1, left // (FLOAT * length * numbers))
    return min(fitting, CPU_ROWS) if model.embed.W_E.device.type == "cpu" else fitting


def block_bytes(model: HookedModel) -> int:
    """What one block of attention scores takes."""
    return max((FLOAT * cast(Block, block).attn.block_elements for block in model.blocks), default=0)
