"""What the page knows of each cell, a task under a scheme, in plain values that its script can read."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lengthlens.analyses import theme
from lengthlens.tasks import TASKS

MULTIPLES = (2, 10)  # of the training range, at which the matrix can be looked at
EXTRAPOLATES = 0.9  # least exact match, at twice the training range, of a run that is said to extrapolate
GROWTH = ("src", "lrc")  # the complexities whose growth a cell shows

Cell = dict[str, Any]
Point = list[Any]


def cells(table: pd.DataFrame) -> list[Cell]:
    """Every cell of a study, tasks and schemes in the order of all figures; POLA has no cells.

    >>> from lengthlens.probes.study import as_study
    >>> rows = [{"task": "copy", "scheme": "rope", "run": "r", "measure": "exact_match", "scale": 20, "value": 0.5}]
    >>> found = cells(as_study(pd.DataFrame(rows)).assign(train_max=10, seed=1))
    >>> found[0]["runs"][0]["at"]
    {'2': 0.5, '10': None}
    """
    trained = table[~table["task"].str.startswith("pola:")]
    groups = {(str(task), str(scheme)): rows for (task, scheme), rows in trained.groupby(["task", "scheme"])}  # type: ignore[misc]
    return [
        cell(task, scheme, groups[task, scheme])
        for task in tasks_in_order(trained["task"])
        for scheme in schemes_in_order(trained["scheme"])
        if (task, scheme) in groups
    ]


def tasks_in_order(names: "pd.Series[str]") -> list[str]:
    """As they are registered; a user's own come last."""
    registered = list(TASKS)
    return sorted(
        names.unique(),
        key=lambda name: (registered.index(name) if name in registered else len(registered), name),
    )


def schemes_in_order(labels: "pd.Series[str]") -> list[str]:
    """As every figure lists them; one scheme with several options beside itself."""
    order = theme.in_order(label.partition("/")[0] for label in sorted(labels.unique()))
    return sorted(labels.unique(), key=lambda label: (order.index(label.partition("/")[0]), label))


def cell(task: str, scheme: str, rows: pd.DataFrame) -> Cell:
    """One cell: what was said of it before training, and its runs."""
    named = rows[rows["run"] != ""]
    runs = [run_facts(str(run), own) for run, own in named.groupby("run")]
    runs.sort(key=lambda run: (math.inf if run["seed"] is None else run["seed"], run["run"]))
    verdict = rows[rows["measure"] == "verdict"]
    return {
        "task": task,
        "scheme": scheme,
        "verdict": str(verdict["text"].iloc[0]) if len(verdict) else "",
        "reasons": str(verdict["relation"].iloc[0]) if len(verdict) else "",
        "verdict_up_to": whole(verdict["scale"].iloc[0]) if len(verdict) else None,
        "declared": points(rows[rows["measure"] == "declared_src"]),
        "at": {str(m): mean([run["at"][str(m)] for run in runs]) for m in MULTIPLES},
        "train_max": next((run["train_max"] for run in runs), None),
        "runs": runs,
    }


def run_facts(run: str, rows: pd.DataFrame) -> Cell:
    """One run: how its training ended, its scores over length, and how its complexity grew."""
    train_max, converged = whole(rows["train_max"].iloc[0]), rows[rows["measure"] == "converged"]
    exact = rows[rows["measure"] == "exact_match"].sort_values("scale")
    scores = {int(n): number(value) for n, value in zip(exact["scale"], exact["value"]) if not pd.isna(n)}
    refused = exact[exact["value"].isna() & (exact["text"] != "")]
    return {
        "run": run,
        "seed": whole(rows["seed"].iloc[0]),
        "train_max": train_max,
        "status": str(converged["text"].iloc[0]) if len(converged) else "",
        "reason": str(converged["relation"].iloc[0]) if len(converged) else "",
        "accurate": None if rows["accurate"].isna().all() else bool(rows["accurate"].any()),
        "exact": points(exact),
        "refused": str(refused["text"].iloc[0]) if len(refused) else "",
        "at": {str(m): scores.get(m * train_max) if train_max else None for m in MULTIPLES},
        **{
            name: single(rows, name)
            for name in ("in_range_exact_match", "train_loss", "margin", "steps", "seconds")
        },
        **{name: points(rows[(rows["measure"] == name) & rows["head"].isna()]) for name in GROWTH},
        **{f"iota_{name}": index(rows, name) for name in GROWTH},
        "learned": list(rows.loc[rows["measure"] == "relation", "text"]),
    }


def index(rows: pd.DataFrame, of: str) -> float | None:
    """ι at the default thresholds: those that the curve itself was measured at."""
    found = rows[rows["measure"] == f"iota_{of}"]
    thresholds = rows.loc[rows["measure"] == of, "threshold"].unique()
    default = found[found["threshold"].isin(thresholds)] if len(thresholds) else found.head(1)
    return number(default["value"].iloc[0]) if len(default) else None


def single(rows: pd.DataFrame, measure: str) -> float | None:
    """The value of a measure that a run has once."""
    found = rows.loc[rows["measure"] == measure, "value"]
    return number(found.iloc[0]) if len(found) else None


def points(rows: pd.DataFrame) -> list[Point]:
    """A curve: scale, value, and the ends of its interval, in the order of scale; what is missing is left out."""
    known = rows[rows["scale"].notna() & rows["value"].notna()].sort_values("scale", kind="stable")
    return [
        [int(n), number(v), number(low), number(high)]
        for n, v, low, high in zip(known["scale"], known["value"], known["low"], known["high"])
    ]


def number(value: Any) -> float | None:
    """A number that JSON can hold, to six digits; else nothing."""
    return None if pd.isna(value) or not math.isfinite(value) else float(f"{value:.6g}")


def whole(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known.

    >>> mean([1.0, None, 0.5]), mean([None])
    (0.75, None)
    """
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known)) if known else None


def extrapolates(run: Cell) -> bool | None:
    """Whether exact match holds at twice the training range; None where it was not looked at."""
    at = run["at"][str(MULTIPLES[0])]
    return None if at is None else at >= EXTRAPOLATES
