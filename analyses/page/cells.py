"""What the page knows of each cell, a task under a scheme, in plain values that its script can read."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lengthlens.analyses import theme
from lengthlens.analyses.table import FACTORS, ONCE, MissingError, of_runs, per_run, records, verdicts
from lengthlens.models.schemes.relation import read_form

GROWTH = ("src", "lrc")  # the complexities whose growth a cell shows

Cell = dict[str, Any]
Point = list[Any]


def cells(table: pd.DataFrame) -> list[Cell]:
    """Every cell of a study, tasks and schemes in the order of all figures; POLA has no cells.

    >>> from lengthlens.analyses.table import as_study
    >>> row = {"task": "copy", "scheme": "rope", "run": "r", "seed": 1, "train_max": 10}
    >>> row |= {"measure": "exact_match", "scale": 20, "value": 0.5}
    >>> cells(as_study(pd.DataFrame([row])))[0]["runs"][0]["at"]
    {'2': 0.5, '10': None}
    """
    trained = table[table["target"] == ""]
    before = {(row.task, row.scheme): row for row in verdicts(trained).itertuples()}
    runs = by_cell(trained)
    declared = trained[trained["measure"] == "declared_src"]
    reach = trained[trained["measure"] == "verdict"].groupby(["task", "scheme"])["scale"].first()
    found = []
    for task in theme.tasks_in_order(trained["task"]):
        for scheme in theme.in_order(sorted(trained["scheme"].unique())):
            if (task, scheme) not in before and (task, scheme) not in runs:
                continue
            own, said = runs.get((task, scheme), []), before.get((task, scheme))
            found.append(
                {
                    "task": task,
                    "scheme": scheme,
                    "verdict": said.verdict if said else "",
                    "reasons": said.reason if said else "",
                    "verdict_up_to": whole(reach.get((task, scheme))),
                    "declared": points(declared[(declared["task"] == task) & (declared["scheme"] == scheme)]),
                    "at": {str(k): mean([run["at"][str(k)] for run in own]) for k in FACTORS},
                    "train_max": next((run["train_max"] for run in own), None),
                    "runs": own,
                }
            )
    return found


def by_cell(trained: pd.DataFrame) -> dict[tuple[str, str], list[Cell]]:
    """The runs of each cell, by seed."""
    try:
        runs = per_run(trained)
    except MissingError:
        return {}
    curves = dict(list(of_runs(trained).groupby("run")))
    found: dict[tuple[str, str], list[Cell]] = {}
    for row in runs.to_dict("records"):
        found.setdefault((row["task"], row["scheme"]), []).append({**outcome(row), **growth(curves[row["run"]])})
    return found


def outcome(row: Any) -> Cell:
    """How a run ended, from its row in `per_run`."""
    return {
        "run": row["run"],
        "seed": whole(row["seed"]),
        "train_max": whole(row["train_max"]),
        "status": row["status"],
        "accurate": bool(row["accurate"]),
        "at": {str(k): number(row[f"exact_{k}"]) for k in FACTORS},
        "extrapolates": None if pd.isna(row["extrapolates_2"]) else bool(row["extrapolates_2"]),
        **{name: number(row[name]) for name in ONCE},
        **{f"iota_{name}": number(row[f"iota_{name}"]) for name in GROWTH},
    }


def growth(rows: pd.DataFrame) -> Cell:
    """The curves of a run over the scale, what it learned to go by, and what went wrong in words."""
    exact, ended = rows[rows["measure"] == "exact_match"], rows[rows["measure"] == "converged"]
    refused = exact.loc[exact["value"].isna() & (exact["reason"] != ""), "reason"]
    return {
        "exact": points(exact),
        **{name: points(rows[(rows["measure"] == name) & rows["head"].isna()]) for name in GROWTH},
        "learned": [learned_words(row) for row in records(rows[rows["form"] != ""])],
        "reason": next(iter(ended["reason"]), ""),
        "refused": next(iter(refused), ""),
    }


def learned_words(row: Cell) -> str:
    """A learned relation as a line: "layer 0 head 1 attends to i−j = n"."""
    verb = "attends to" if row["value"] > 0 else "avoids"
    equation = read_form(row["form"]).says(int(row["form_value"]))
    return f"layer {row['layer']} head {row['head']} {verb} {equation}"


def points(rows: pd.DataFrame) -> list[Point]:
    """A curve: scale, value, and the ends of its interval, in the order of scale; what is missing is left out."""
    known = rows[rows["scale"].notna() & rows["value"].map(math.isfinite)].sort_values("scale", kind="stable")
    return [
        [int(n), number(v), number(low), number(high)]
        for n, v, low, high in zip(known["scale"], known["value"], known["low"], known["high"])
    ]


def number(value: Any) -> float | None:
    """A number that JSON can hold, to six digits; else nothing."""
    return None if pd.isna(value) or not math.isfinite(value) else float(f"{value:.6g}")


def whole(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else int(value)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known.

    >>> mean([1.0, None, 0.5]), mean([None])
    (0.75, None)
    """
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known)) if known else None
