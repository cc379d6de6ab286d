"""The verdict on many tasks and schemes at once, as a table."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pandas as pd
import torch

from lengthlens.errors import UserError
from lengthlens.models.schemes import scheme_names
from lengthlens.tasks import TASKS, Task
from lengthlens.theory.verdict import PROPERTIES, Case, RefusedError, Scheme, checked_range


def verdict_grid(
    tasks: Sequence[str | Task] | None = None,
    schemes: Sequence[Scheme] | None = None,
    train_max: int = 10,
    test_max: int = 40,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
) -> pd.DataFrame:
    """One row for each task and scheme, all of them by default; `progress` is told how many of how many are done.

    A scheme that refuses a task has the verdict ``refused``, and its reason. With more than one job, tasks are shared
    out among that many processes.
    """
    if jobs < 1:
        raise UserError(f"the number of jobs must be at least 1, not {jobs}")
    chosen = [TASKS[task] if isinstance(task, str) else task for task in tasks or TASKS.values()]
    names = list(schemes or scheme_names())
    for task in chosen:
        checked_range(task, train_max, test_max)
    rows: list[dict[str, Any]] = []
    for row in _one_by_one(chosen, names, train_max, test_max, jobs):
        rows.append(row)
        if progress:
            progress(len(rows), len(chosen) * len(names))
    return pd.DataFrame(rows)


def _one_by_one(
    tasks: Sequence[Task], schemes: Sequence[Scheme], train_max: int, test_max: int, jobs: int
) -> Iterator[dict[str, Any]]:
    """The rows of all tasks, in order, as they are ready."""
    if jobs == 1:
        for task in tasks:
            case = Case(task, train_max, test_max)
            yield from (row_of(case, scheme) for scheme in schemes)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:  # torch's threads do not survive a fork
        parts = [pool.submit(rows_of, task, schemes, train_max, test_max) for task in tasks]
        for part in parts:
            yield from part.result()


def rows_of(task: Task, schemes: Sequence[Scheme], train_max: int, test_max: int) -> list[dict[str, Any]]:
    """All rows of one task, in a process of its own."""
    torch.set_num_threads(1)  # the other processes have their own
    return list(_one_by_one([task], schemes, train_max, test_max, jobs=1))


def row_of(case: Case, scheme: Scheme) -> dict[str, Any]:
    """A verdict as a row of plain values."""
    try:
        found = case.verdict(scheme, {})
    except RefusedError as refusal:
        found = case.result(scheme, {}, "refused", [str(refusal)], [])
    row: dict[str, Any] = {
        "task": found.task,
        "task_family": case.task.family,
        "scheme": found.scheme,
        "verdict": found.verdict,
    }
    for name in PROPERTIES:
        own = getattr(found, name)
        row[name] = None if own is None else own.holds
    row["failing"] = found.failing
    row["other_option"] = any(help.kind == "option" for help in found.helps)
    for name in ("src_declared_train", "src_declared_test", "src_train", "src_test", "train_max", "test_max"):
        row[name] = getattr(found, name)
    return {**row, "reasons": "; ".join(found.reasons), "helps": "; ".join(map(str, found.helps))}
