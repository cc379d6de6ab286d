"""Evaluating a run on disk: what is known already is not computed again, and what is new is kept with the run."""

from collections.abc import Callable, Sequence
from typing import Any

from lengthlens.runs.evaluation import MEMORY, SAMPLES, exact_match
from lengthlens.runs.run import Run
from lengthlens.runs.trainer import present_device
from lengthlens.errors import UserError

Row = dict[str, Any]


def evaluate(
    run: Run,
    lengths: Sequence[int],
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

    Where the store cannot be written, or another process has the run in hand, `unkept` is told, if given, and the
    rows are returned all the same.
    """
    known = {} if again else {(row["length"], row["samples"], row["seed"]): row for row in run.evaluation()}
    missing = [n for n in dict.fromkeys(lengths) if (n, samples, seed) not in known]
    if missing:
        model = run.model(str(present_device(device)))
        for length in missing:
            known[length, samples, seed] = _row(run, model, length, samples, seed, memory, report)
        _keep(run, [known[n, samples, seed] for n in missing], wait, unkept)
    return [known[n, samples, seed] for n in lengths]


def _row(
    run: Run,
    model: Any,
    length: int,
    samples: int,
    seed: int,
    memory: int,
    report: Callable[[str], None] | None,
) -> Row:
    task = run.config.task_object
    task.checked_scale(length)
    try:
        (score,) = exact_match(
            model, task, [length], samples=samples, seed=seed, memory=memory, report=report
        )
    except UserError as error:
        return {"length": length, "samples": samples, "seed": seed, "reason": str(error)}
    return score.to_dict()


def _keep(run: Run, rows: Sequence[Row], wait: bool, unkept: Callable[[UserError], None] | None) -> None:
    try:
        with run.locked(wait):
            run.add_evaluation(rows)
    except UserError as error:
        if unkept is None:
            raise
        unkept(error)


def summary_lengths(train_max: int) -> list[int]:
    """The lengths that are looked at when none are named: the training length and 2, 5 and 10 times it.

    >>> summary_lengths(10)
    [10, 20, 50, 100]
    """
    return [factor * train_max for factor in (1, 2, 5, 10)]


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_bytes(text: str) -> int:
    """An amount of memory.

    >>> read_bytes("2GiB"), read_bytes("512M"), read_bytes("1.5 GB")
    (2147483648, 536870912, 1610612736)
    """
    number, unit = split_number(text.strip().upper().removesuffix("B").removesuffix("I"))
    if number is None or unit not in UNITS or number <= 0:
        raise UserError(f"'{text}' is no amount of memory: write it as 512MiB or 2GiB")
    return int(number * UNITS[unit])


def split_number(text: str) -> tuple[float | None, str]:
    """The number that a text begins with, and the rest."""
    digits = text.rstrip("KMG ")
    try:
        return float(digits), text[len(digits) :].strip()
    except ValueError:
        return None, text
