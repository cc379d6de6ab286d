"""What the page knows of each cell and run, in plain values that its script can read, and its tables of them."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lengthlens.analyses import theme
from lengthlens.analyses.learned import learned_equations
from lengthlens.analyses.outcome import outcome
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import FACTORS, ONCE, Index, MissingError, records
from lengthlens.analyses.tables import Table

Cell = dict[str, Any]
Point = list[Any]
DIFFERS = {  # "possible" promises no more than that positions do not stand in the way
    "does not extrapolate": "Possible, but did not extrapolate",
    "not accurate in range": "Possible, but not learned in range",
}


def all_cells(study: Study) -> list[Cell]:
    """Every cell of a study, tasks and schemes in the order of all figures; POLA has no cells.

    >>> from lengthlens.analyses.table import as_study
    >>> row = {"task": "copy", "scheme": "rope", "run": "r", "seed": 1, "train_max": 10}
    >>> row |= {"measure": "exact_match", "scale": 20, "value": 0.5}
    >>> all_cells(Study(as_study(pd.DataFrame([row]))))[0]["runs"][0]["at"]
    {'2': 0.5, '10': None}
    """
    trained = study.table[study.table["target"] == ""]
    verdicts = trained[trained["measure"] == "verdict"].drop_duplicates(["row", "label"])
    before = {(row["row"], row["label"]): row for row in records(verdicts)}
    runs, against = by_cell(study), contradictions(study)
    of_cells = trained[trained["run"] == ""]
    declared = {i.curve: points_by(of_cells[of_cells["measure"] == i.declared], "row", "label") for i in study.indices}
    found = []
    labels = theme.schemes_in_order(sorted(trained["label"].unique()))
    for task in theme.tasks_in_order(trained["row"].unique()):
        for label in labels:
            key = (task, label)
            if key not in before and key not in runs:
                continue
            own, said = runs.get(key, []), before.get(key, {})
            names = {"task": task, "scheme": label}
            verdict = {"verdict": said.get("verdict", ""), "reasons": said.get("reason", "")}
            found.append(
                {
                    **names, **verdict, "verdict_up_to": whole(said.get("scale")),
                    "declared": {curve: found.get(key, []) for curve, found in declared.items()},
                    "at": {str(k): mean([run["at"][str(k)] for run in own]) for k in FACTORS},
                    "train_max": next((run["train_max"] for run in own), None),
                    "surprise": " ".join(against.get(key, [])),
                    "runs": own,
                }
            )  # fmt: skip
    return found


def by_cell(study: Study) -> dict[tuple[str, str], list[Cell]]:
    """The runs of each cell, by seed."""
    try:
        runs = study.runs
    except MissingError:
        return {}
    of_run = curves(study.rows, grown(study))
    found: dict[tuple[str, str], list[Cell]] = {}
    for row in records(runs):
        about = {name: own.get(row["run"], "") for name, own in of_run["texts"].items()}
        about |= {name: own.get((row["run"],), []) for name, own in of_run["lists"].items()}
        growth = {curve: own.get((row["run"],), []) for curve, own in of_run["growth"].items()}
        found.setdefault((row["row"], row["label"]), []).append(
            {**how_it_ended(row, study.indices), **about, "growth": growth}
        )
    return found


def how_it_ended(row: Cell, indices: Sequence[Index]) -> Cell:
    """What became of a run, from its row in `Study.runs`."""
    return {name: whole(row[name]) for name in ("seed", "train_max")} | {
        **{name: row[name] for name in ("run", "status", "accurate")},
        "at": {str(k): number(row[f"exact_{k}"]) for k in FACTORS},
        "extrapolates": None if pd.isna(row["extrapolates_2"]) else bool(row["extrapolates_2"]),
        **{name: number(row[name]) for name in ONCE},
        "iota": {each.index: number(row[each.index]) for each in indices},
    }


def curves(rows: pd.DataFrame, grown: Sequence[Index]) -> dict[str, dict[str, dict[Any, Any]]]:
    """By run: its curves over the scale, what it learned to attend to, and what went wrong in words."""
    exact, ended = rows[rows["measure"] == "exact_match"], rows[rows["measure"] == "converged"]
    refused = exact[exact["value"].isna() & (exact["reason"] != "")]
    learned: dict[tuple[str], list[str]] = {}
    for row in records(learned_equations(rows)[["run", "layer", "head", "value", "equation"]]):
        verb = "attends to" if row["value"] > 0 else "avoids"
        said = f"layer {row['layer']} head {row['head']} {verb} {row['equation']}"
        learned.setdefault((row["run"],), []).append(said)
    texts = {
        name: dict(zip(reversed(list(part["run"])), reversed(list(part["reason"]))))  # the first of each run
        for name, part in (("reason", ended), ("refused", refused))
    }
    whole_runs = rows[rows["head"].isna()]
    growth = {each.curve: points_by(whole_runs[whole_runs["measure"] == each.curve], "run") for each in grown}
    return {"lists": {"exact": points_by(exact, "run"), "learned": learned}, "texts": texts, "growth": growth}


def grown(study: Study) -> list[Index]:
    """The indices of complexities whose growth a cell shows."""
    return [each for each in study.indices if each.growth]


def contradictions(study: Study) -> dict[tuple[str, str], list[str]]:
    """How cells differ from their verdict, a sentence for each outcome."""
    try:
        rows = records(study.once(outcome).disagreements)
    except MissingError:
        return {}
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        seeds = f"seed{'s' * (',' in row['seeds'])} {row['seeds']} of {row['of']}"
        said = f"{DIFFERS.get(row['outcome'], 'Against it: ' + row['outcome'])} ({seeds})."
        found.setdefault((row["task"], row["scheme"]), []).append(said)
    return found


def points_by(rows: pd.DataFrame, *by: str) -> dict[tuple[str, ...], list[Point]]:
    """The curve of each run, or of what else these columns name: scale, value, and the ends of its interval.

    In the order of scale; what is missing is left out.
    """
    known = rows[rows["scale"].notna() & np.isfinite(rows["value"])].sort_values("scale", kind="stable")
    found: dict[tuple[str, ...], list[Point]] = {}
    columns = (known[name].tolist() for name in ("scale", "value", "low", "high"))
    for key, n, *ends in zip(zip(*(known[name].tolist() for name in by)), *columns):
        found.setdefault(key, []).append([int(n), *map(number, ends)])
    return found


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


def runs_table(found: Sequence[Cell], indices: Sequence[Index]) -> Table:
    """Every run of the study, as it ended and as it was measured."""
    rows = [
        {"task": cell["task"], "scheme": cell["scheme"], **run, "inaccurate": not run["accurate"]}
        | {f"at_{k}": run["at"][str(k)] for k in FACTORS}
        | {"steps": whole(run["steps"]), "seconds": whole(run["seconds"]), **run["iota"]}
        for cell in found
        for run in cell["runs"]
    ]
    columns = {"task": "task", "scheme": "scheme", "seed": "seed", "status": "ended"}
    columns |= {"in_range_exact_match": "in range", **{f"at_{k}": f"at {k}×" for k in FACTORS}}
    columns |= {**{each.index: each.short for each in indices}, "steps": "steps", "seconds": "seconds"}
    note = "Runs with a mark at their left are not accurate in range: exact match below 0.9 at some scale."
    return Table(note, rows, columns, f"{len(rows)} runs", empty="The table has no run.", bad="inaccurate")


def failures_table(found: Sequence[Cell]) -> Table:
    """Runs that failed, diverged, did not converge or are not accurate, and lengths that no scheme could process."""
    runs = [(cell, run, troubles(run)) for cell in found for run in cell["runs"]]
    rows = [
        {"task": cell["task"], "scheme": cell["scheme"], "seed": run["seed"], "bad": True}
        | {"what": "; ".join(sentences for _, sentences in wrong)}
        for cell, run, wrong in runs
        if wrong
    ]
    kinds = Counter(kind for _, _, wrong in runs for kind, _ in wrong)
    counted = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    columns = {"task": "task", "scheme": "scheme", "seed": "seed", "what": "what happened"}
    note = "Runs that are not accurate in range are kept out of what predicts extrapolation, and shown here."
    empty = "Every run converged, is accurate in range and could be evaluated at every length."
    return Table(note, rows, columns, f"{len(rows)} of {len(runs)} runs: {counted}", empty=empty, bad="bad")


def troubles(run: Cell) -> list[tuple[str, str]]:
    """What went wrong with a run: in a word or two, and in a sentence."""
    found, status, value = [], run["status"], run["in_range_exact_match"]
    if status == "not-converged" and value is not None:  # to four digits: 0.9896 is below 0.99
        found.append(("did not converge", f"did not converge: mean exact match in range {value:.4f}"))
    elif status not in ("", "converged"):
        found.append((status, f"{status}: {run['reason']}" if run["reason"] else status))
    if run["accurate"] is False:
        found.append(("not accurate in range", "not accurate in range: exact match below 0.9 at some scale"))
    if run["accurate"] and status and not any(run["growth"].values()):
        found.append(("not probed", "accurate, and not probed: it has no measured complexity"))
    return [
        *found,
        *([("not evaluated at every length", f"cannot be evaluated: {run['refused']}")] if run["refused"] else []),
    ]
