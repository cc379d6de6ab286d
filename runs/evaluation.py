"""Exact match at any input size n, from one teacher-forced pass: of a model, and of a run, where scores are stored.

A greedy decoder that has been right so far sees exactly the tokens that teacher forcing shows, so it writes the whole
answer exactly when the arg-max is right at every answer token of the true sequence. (This holds where the output at a
position does not depend on what follows it; ``randomized:`` schemes place a prefix otherwise than the whole, and for
them exact match is a statement about the whole sequence.)
"""

import inspect
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lengthlens.errors import TooLongError, UserError
from lengthlens.files import StorageError
from lengthlens.models.config import ModelConfig
from lengthlens.models.devices import present_device
from lengthlens.models.saved import refuse_not_finite
from lengthlens.models.schemes.scheme import schemes_in
from lengthlens.runs.config import RunConfig
from lengthlens.runs.run import EVALUATION, Run
from lengthlens.tasks import Batch, Task
from lengthlens.tasks.scale import size_of
from lengthlens.tasks.task import sets_of
from lengthlens.values import whole, within_memory

MEMORY = 1 << 30  # bytes that one block may take by default: safe beside whatever else a laptop runs
SAMPLES = 1000  # of each length; all right then says "above 0.996" with 95 % confidence
Z = 1.96  # of a 95 % interval
FLOAT = 4  # bytes
LEAST_MEMORY = 1 << 26  # bytes that instances may take whatever is asked for: less than importing torch does
TOKEN = 9  # bytes: its id, and whether it belongs to the answer
CPU_ROWS = 64  # more sequences at a time leave the processor's cache, and gain nothing
ACCURATE = 0.9  # least exact match, at every n in range, of a run whose complexity means something
EXTRAPOLATES = 0.9  # least exact match beyond the training range of a run that counts as extrapolating

FINAL_SAMPLES = 200  # of each n in range, for the figure that a run ends with

Model = Callable[..., Any]  # a HookedModel, or any function from ids [row, pos] to logits [row, pos, token]
Row = dict[str, Any]  # a score as a run keeps it
Length = int | tuple[int, ...]  # an input size n, or a tuple of sizes, of a task that has several (tasks/scale.py)


@dataclass(frozen=True)
class Score:
    """How well a model does at one n, called `length` on disk; `low` and `high` are Wilson's 95 % interval."""

    length: int  # the input size n
    samples: int
    exact_match: float  # share of instances with every answer token right, end token included
    exact_match_low: float
    exact_match_high: float
    exact_match_no_end: float  # the same with the end token left out: some failures are only a missed stop
    exact_match_no_end_low: float
    exact_match_no_end_high: float
    token_accuracy: float  # share of answer tokens that are right
    seed: int


def exact_match(
    model: Model,
    task: Task,
    lengths: Sequence[Length],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    memory: int = MEMORY,
    report: Callable[[str], None] | None = None,
) -> list[Score]:
    """Exact match on random instances of each length.

    Of a task whose instances have a tuple of sizes, n asks for random tuples of that size, and a tuple for itself.

    Arguments:
        model: a HookedModel, or any function from ids [row, pos] to logits [row, pos, token]; one with a parameter
            `scale` is told the n of the instances.
        task: whose instances they are.
        lengths: input sizes n (or tuples, of a task that has them), in any order.
        samples: instances of each length.
        seed: with the length, decides the instances; neither the other lengths nor the memory do.
        memory: bytes that a block of instances may take.
        report: is told each length as it begins.

    Result: a `Score` for each length, in the order given.

    Errors: UserError for a length that the task does not have or the scheme cannot process, for samples below 1, for
    instances that take more than `memory` by themselves, and for weights that are not finite.

    >>> import lengthlens as ll
    >>> model = ll.build(ll.ModelConfig(task="copy", scheme="rope"))
    >>> scores = exact_match(model, ll.TASKS["copy"], [3, 5], samples=10)
    >>> [(score.length, score.samples, score.exact_match) for score in scores]
    [(3, 10, 0.0), (5, 10, 0.0)]
    """
    whole(1)(samples, "samples")
    refuse_not_finite(model)
    for length in lengths:
        refuse_too_many(task, length, samples, memory)
    scores = []
    for length in lengths:
        if report:
            report(f"n = {length}")
        size = size_of(task.number_of(length))
        scores.append(score_of(size, list(answers_at(model, task, length, samples, seed, memory)), seed))
    return scores


def answers_at(
    model: Model, task: Task, length: Length, samples: int, seed: int, memory: int = MEMORY
) -> Iterator[Tensor]:
    """Which answer tokens are predicted right, [row, answer] for each size that is drawn: n, or random tuples."""
    if task.one_number or not isinstance(length, int):
        yield right_answers(model, task, task.number_of(length), samples, seed, memory, instance_seed(seed, length))
        return
    generator = torch.Generator().manual_seed(instance_seed(seed, length))
    drawn = Counter(task.drawn_scale(length, generator) for _ in range(samples))
    for scale in sorted(drawn, key=task.parts):
        of_scale = int(torch.randint(1 << 62, (), generator=generator))
        yield right_answers(model, task, scale, drawn[scale], seed, memory, of_scale)


def refuse_too_many(task: Task, length: Length, samples: int, memory: int = MEMORY) -> None:
    """Refuse, before any is drawn, instances that do not fit into `memory` bytes.

    Those of random tuples are drawn tuple by tuple, and there are at least as many of these as the largest length.
    """
    number, together = task.checked_scale(task.number_of(length)), samples
    tokens = task.length(number)
    if isinstance(length, int) and not task.one_number:
        tokens, together = task.longest(length), -(-samples // length)
    within_memory(together * tokens * TOKEN, f"{samples} instances of n = {length}", max(memory, LEAST_MEMORY))


def right_tokens(logits: Float[Tensor, "row some_pos token"], batch: Batch) -> Bool[Tensor, "row answer"]:
    """Whether each answer token of instances of one n is the arg-max of the logits at its query. [row, answer]

    `logits` are those at every position, or at the queries of the answer alone; the result is where they are.

    >>> batch = Batch(torch.tensor([[1, 2, 3]]), torch.tensor([[False, True, True]]), torch.tensor([1]))
    >>> right_tokens(torch.eye(4)[torch.tensor([[2, 2, 0]])], batch)
    tensor([[ True, False]])
    """
    first = int(batch.answer_mask[0].to(torch.uint8).argmax())
    answer, given = batch.tokens[:, first:], batch.answer_mask[:, first:]
    if logits.shape[1] == batch.tokens.shape[1]:
        logits = logits[:, -1 - answer.shape[1] : -1]
    if batch.targets is not None:
        return right_sets(logits, batch.targets[:, first - 1 : -1].to(logits.device))
    right: Tensor = logits.argmax(-1) == answer.to(logits.device, non_blocking=True)
    if not bool(given.all()):  # shorter answers move, so that every end is in the last column
        right = right | ~given.to(right.device)
        places = torch.arange(answer.shape[1]) - (~given).sum(1, keepdim=True)
        right = right.gather(1, (places % answer.shape[1]).to(right.device))
    return right


def right_sets(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether the tokens with a logit above 0 are the set, at each query [row, answer, token]; ``$`` apart.

    First, of each query, whether the set is right but for ``$``. Last, whether ``$`` is right at all queries, so that
    stop and content are told apart as for one token. [row, answer + 1]
    """
    wrong = (sets_of(logits) > 0) != sets_of(targets)
    return ~torch.cat([wrong[..., :-1].any(2), wrong[..., -1].any(1, keepdim=True)], 1)


def score_of(length: int, right: Tensor | Sequence[Tensor], seed: int = 0) -> Score:
    """The score that follows from which answer tokens are right [row, answer], end token last; or several such."""
    parts = [right] if isinstance(right, Tensor) else right
    samples, tokens = sum(map(len, parts)), sum(part.numel() for part in parts)
    counts = [sum(int(part[:, :last].all(1).sum()) for part in parts) for last in (None, -1)]
    whole, no_end = ((count / samples, *wilson(count, samples)) for count in counts)
    return Score(length, samples, *whole, *no_end, sum(int(part.sum()) for part in parts) / tokens, seed)


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


def right_answers(
    model: Model, task: Task, length: int, samples: int, seed: int, memory: int = MEMORY, drawn_by: int | None = None
) -> Tensor:
    """Which answer tokens of random instances are predicted right, computed block by block. [row, answer]"""
    # Drawn in one go, so that the instances do not depend on the size of the blocks.
    generator = torch.Generator().manual_seed(instance_seed(seed, length) if drawn_by is None else drawn_by)
    drawn = task.sample(length, samples, generator)
    device, named = device_of(model), {"scale": length} if takes(model, "scale") else {}
    rows, right = rows_within(memory, model, task.length(length)), []
    with evaluating(model), torch.inference_mode():
        for first, last in by_placement(model, samples):
            for start in range(first, last, rows):
                end = min(start + rows, last)
                block = drawn[start:end]
                right.append(right_tokens(model(block.tokens.to(device), **named), block).cpu())
    return torch.cat(right)


def by_placement(model: Model, samples: int) -> Iterator[tuple[int, int]]:
    """The instances, from first to last, that share a placement of positions; the model uses it meanwhile.

    A scheme with several random placements is averaged over them: each has its share of the instances.
    """
    schemes = schemes_in(model) if isinstance(model, nn.Module) else []
    count = max((scheme.placements for scheme in schemes), default=1)
    bounds = [samples * k // count for k in range(count + 1)]
    try:
        for placement, (first, last) in enumerate(pairwise(bounds)):
            for scheme in schemes:
                scheme.placement = placement
            yield first, last
    finally:
        for scheme in schemes:
            scheme.placement = 0


def instance_seed(seed: int, length: Length) -> int:
    """Seeds of different lengths, and of training (which uses small ones), do not meet.

    >>> instance_seed(0, 10)
    4611686018427387914
    """
    number = length if isinstance(length, int) else (1 << 30) + zlib.crc32(repr(length).encode()) % (1 << 30)
    return (1 << 62) + (seed << 31) + number


def rows_within(memory: int, model: Model, length: int) -> int:
    """How many sequences of `length` tokens fit into `memory` bytes at once; at least one is tried.

    Attention computes a bounded block of scores at a time, so what counts is the residual stream, queries, keys and
    values, the hidden layer of the MLP and the logits: all linear in the length. Of another model nothing is known.
    """
    from lengthlens.models.transformer import HookedModel

    if not isinstance(model, HookedModel):
        return CPU_ROWS
    numbers = numbers_a_token(model.config)
    scores = max((FLOAT * cast(Any, block).attn.block_elements for block in model.blocks), default=0)
    fitting = max(1, (memory - 2 * scores) // (FLOAT * length * numbers))
    return min(fitting, CPU_ROWS) if device_of(model).type == "cpu" else fitting


def numbers_a_token(config: ModelConfig) -> int:
    """About how many numbers a layer computes for each token, and the logits."""
    mlp = 0 if config.attn_only else 3 * (config.d_mlp or 4 * config.d_model)
    heads = 4 * config.n_heads * (config.d_head or config.d_model // config.n_heads)
    return 8 * config.d_model + mlp + heads + 3 * (config.d_vocab_out or config.d_vocab or 0)


def takes(model: Model, name: str) -> bool:
    """Whether a model has a parameter of this name.

    >>> takes(lambda tokens: tokens, "scale"), takes(lambda tokens, scale: tokens, "scale")
    (False, True)
    """
    call = model.forward if isinstance(model, nn.Module) else model
    return name in inspect.signature(call).parameters


def device_of(model: Model) -> torch.device:
    """Where a model's weights are; the CPU for a function."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """No gradients, and evaluation mode where there is one; as it was afterwards."""
    module = model if isinstance(model, nn.Module) else nn.Module()
    training, switched = module.training, any(part.training for part in module.modules())
    if switched:  # which takes as long as a small forward pass
        module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if switched:
            module.train(training)


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """torch computes with `count` threads inside the block, and as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluate(
    run: Run,
    lengths: Sequence[Length],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    memory: int = MEMORY,
    device: str = "auto",
    again: bool = False,
    wait: bool = False,
    report: Callable[[str], None] | None = None,
    unkept: Callable[[UserError], None] | None = None,
) -> list[Row]:
    """A row for each length, as `Score` has it; one with a `reason` instead where the scheme cannot process a length.

    What is known already is not computed again (unless `again`), and what is new is kept with the run. Where the
    store cannot be written, or another process has the run in hand, `unkept` is told, if given, and the rows are
    returned all the same.
    """
    whole(1)(samples, "samples")
    known, damaged = dict[Any, Row](), False
    try:
        stored = run.evaluation()
        known = {} if again else {(asked_for(row), row["samples"], row["seed"]): row for row in stored}
    except StorageError:
        if not again:
            raise
        damaged = True
    missing = [n for n in dict.fromkeys(lengths) if (n, samples, seed) not in known]
    if missing:
        model, task = run.model(str(present_device(device))), run.config.task_object
        for length in missing:
            task.checked_scale(task.number_of(length))
            shape = {} if isinstance(length, int) else {"shape": list(length)}
            try:
                (score,) = exact_match(model, task, [length], samples=samples, seed=seed, memory=memory, report=report)
                row = asdict(score) | shape
            except TooLongError as error:  # and nothing else: any other error is no result
                size = size_of(task.number_of(length))
                row = {"length": size, "samples": samples, "seed": seed, "reason": str(error), **shape}
            known[length, samples, seed] = row
        try:
            with run.locked(wait):
                if damaged:  # what followed from the model is made again, and asked for
                    run.set_aside(EVALUATION)
                    run.add_evaluation(in_range_rows(model, run.config))
                run.add_evaluation([known[n, samples, seed] for n in missing])
        except UserError as error:
            if unkept is None:
                raise
            unkept(error)
    return [known[n, samples, seed] for n in lengths]


def asked_for(row: Row) -> Length:
    """The n that a row is about, or the tuple."""
    return tuple(row["shape"]) if row.get("shape") else int(row["length"])


def in_range_rows(model: Model, config: RunConfig, report: Callable[[str], None] | None = None) -> list[Row]:
    """The scores that a run ends with: at each n of its training range."""
    scales = range(config.task_object.min_scale, config.train_max + 1)
    scores = exact_match(model, config.task_object, scales, samples=FINAL_SAMPLES, report=report)
    return [asdict(score) for score in scores]


def is_accurate(config: RunConfig, scores: Sequence[Row]) -> bool:
    """Whether exact match is high enough at every n of the training range."""
    shares = {row["length"]: row.get("exact_match") for row in scores}
    in_range = [shares.get(n) for n in range(config.task_object.min_scale, config.train_max + 1)]
    return all(value is not None and value >= ACCURATE for value in in_range)


def summary_lengths(train_max: int) -> list[int]:
    """The lengths that are evaluated when none are named: the training length and 2, 5 and 10 times it.

    >>> summary_lengths(10)
    [10, 20, 50, 100]
    """
    return [factor * train_max for factor in (1, 2, 5, 10)]
