"""Verdicts of many tasks and schemes at once, as a table, on several processes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lengthlens.errors import UserError
from lengthlens.models.schemes import scheme_names
from lengthlens.parallel import in_parallel
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
    longest_first = sorted(range(len(chosen)), key=lambda k: -chosen[k].length(test_max))
    named = [task.name if TASKS.get(task.name) is task else task for task in chosen]  # a plug-in's by name
    work = partial(rows_of, schemes=names, train_max=train_max, test_max=test_max)
    rows: dict[int, list[dict[str, Any]]] = {}
    for k, own in in_parallel(work, {k: named[k] for k in longest_first}, workers=jobs, fork=True):
        rows[k] = own
        if progress:
            progress(len(rows) * len(names), len(chosen) * len(names))
    import pandas as pd  # by now the work is done, elsewhere if there are several jobs

    return pd.DataFrame([row for k in range(len(chosen)) for row in rows[k]])


def rows_of(task: str | Task, schemes: Sequence[Scheme], train_max: int, test_max: int) -> list[dict[str, Any]]:
    """All rows of one task."""
    case = Case(TASKS[task] if isinstance(task, str) else task, train_max, test_max)
    return [row_of(case, scheme) for scheme in schemes]


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
