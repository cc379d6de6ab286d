"""Verdicts of many tasks and schemes at once, as a table, on several processes."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch

from lengthlens.errors import UserError
from lengthlens.models.schemes import scheme_names
from lengthlens.plugins.registry import WorkerPlugins, load_in_worker, plugins_for_workers
from lengthlens.processes import end_with
from lengthlens.tasks import TASKS, Task
from lengthlens.theory.verdict import PROPERTIES, Case, RefusedError, Scheme, checked_range

if TYPE_CHECKING:
    import pandas as pd


def verdict_grid(
    tasks: Sequence[str | Task] | None = None,
    schemes: Sequence[Scheme] | None = None,
    train_max: int = 10,
    test_max: int = 40,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
) -> "pd.DataFrame":
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
    import pandas as pd  # by now the work is done, elsewhere if there are several jobs

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
    # A fork need not import everything again; threads do not survive it, so that it takes a process without any.
    forks = sys.platform == "linux" and threading.active_count() == 1 and not torch.cuda.is_initialized()
    how, jobs = get_context("fork" if forks else "spawn"), min(jobs, len(tasks))
    with ProcessPoolExecutor(jobs, how, initializer=_begin, initargs=(os.getpid(),)) as pool:
        named = {task: task.name if TASKS.get(task.name) is task else task for task in tasks}  # a plug-in's by name
        longest_first = sorted(tasks, key=lambda task: -task.length(test_max))
        parts = {
            each: pool.submit(rows_of, named[each], schemes, train_max, test_max, plugins_for_workers())
            for each in longest_first
        }
        for task in tasks:
            yield from parts[task].result()


def _begin(parent: int) -> None:
    """The first thing that a process does."""
    end_with(parent)
    torch.set_num_threads(1)  # the other processes have their own
    gc.freeze()  # what is imported stays, and need not be looked through again and again


def rows_of(
    task: str | Task, schemes: Sequence[Scheme], train_max: int, test_max: int, plugins: WorkerPlugins
) -> list[dict[str, Any]]:
    """All rows of one task, in a process of its own."""
    load_in_worker(plugins)
    chosen = TASKS[task] if isinstance(task, str) else task
    return list(_one_by_one([chosen], schemes, train_max, test_max, jobs=1))


def row_of(case: Case, scheme: Scheme) -> dict[str, Any]:
    """A verdict as a row of plain values."""
    try:
        found = case.verdict(scheme, {})
    except RefusedError as refusal:
        found = case.result(scheme, {}, "refused", [str(refusal)])
    numbers = ("src_declared_train", "src_declared_test", "src_train", "src_test", "train_max", "test_max")
    return {
        "task": found.task,
        "task_family": case.task.family,
        "scheme": found.scheme,
        "verdict": found.verdict,
        **{name: (own := getattr(found, name)) and own.holds for name in PROPERTIES},
        "failing": found.failing,
        "other_option": any(help.kind == "option" for help in found.helps),
        **{name: getattr(found, name) for name in numbers},
        "reasons": "; ".join(found.reasons),
        "helps": "; ".join(map(str, found.helps)),
    }
