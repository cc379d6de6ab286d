"""What the runs of the record grid scored: one row for each run and length, also where there is nothing yet."""

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lengthlens.errors import UserError
from lengthlens.files import read_whole
from lengthlens.runs.config import RunConfig
from lengthlens.runs.evaluation import best_rows, is_accurate
from lengthlens.runs.record_grid import HOPELESS, cell_of, recipe_of
from lengthlens.runs.run import VERSIONS, Run, Status
from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Planned
from lengthlens.runs.training import library_versions
from lengthlens.studies.build import scheme_label

COLUMNS = {
    "run": "str",
    "task": "str",
    "scheme": "str",  # with those options that are not the default
    "score_scaling": "str",
    "seed": "Int64",
    "train_max": "Int64",
    "status": "str",
    "steps": "Int64",
    "seconds": "float64",  # of training
    "accurate": "boolean",  # exact match ≥ 0.9 at every scale of the training range
    "in_range_exact_match": "float64",  # mean over the training range
    "length": "Int64",
    "outcome": "str",  # scored, refused (the scheme cannot process the length), diverged, or missing
    "samples": "Int64",
    "exact_match": "float64",  # end token included
    "exact_match_low": "float64",
    "exact_match_high": "float64",
    "exact_match_no_end": "float64",
    "token_accuracy": "float64",
    "note": "str",  # why there is no score, or what is wrong with the run
}
SCORES = ("samples", "exact_match", "exact_match_low", "exact_match_high", "exact_match_no_end", "token_accuracy")

Row = dict[str, Any]


def record_table(plans: Sequence[Planned], store: RunStore) -> pd.DataFrame:
    """The scores of the planned runs, as far as a store has them, at the planned lengths."""
    rows = [row for plan in plans for row in planned_rows(plan, store.run(plan.config))]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def read_records(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table of records that were written before, and all that was written about them."""
    try:
        table = pd.read_csv(io.BytesIO(read_whole(folder / "records.csv")), keep_default_na=True)
        facts = json.loads(read_whole(folder / "records.json"))
        texts = {name: "" for name, kind in COLUMNS.items() if kind == "str"}
        return table.fillna(texts)[list(COLUMNS)].astype(COLUMNS), facts
    except (KeyError, ValueError) as error:
        raise UserError(f"'{folder}' has no records that can be read: {error}") from None


def merged(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table of several, each run and length once: scored on as many instances as anywhere.

    How a run was trained is what the first table says that has it trained; of a run that none has, all is kept.
    """
    rows = pd.concat(tables, ignore_index=True)
    trained = rows["steps"].notna()
    rows = rows[trained | ~rows["run"].isin(rows.loc[trained, "run"])].reset_index(drop=True)
    place = {key: k for k, key in enumerate(dict.fromkeys(zip(rows["run"], rows["length"])))}
    for name in ("status", "steps", "seconds", "accurate", "in_range_exact_match"):
        rows[name] = rows.groupby("run")[name].transform("first")
    best = rows.sort_values("samples", ascending=False, kind="stable", na_position="last")
    best = best.drop_duplicates(["run", "length"])
    order = [place[key] for key in zip(best["run"], best["length"])]
    return best.iloc[pd.Series(order).argsort()].reset_index(drop=True).astype(COLUMNS)


def provenance(sources: Sequence[tuple[RunStore, Sequence[Planned]]]) -> dict[str, Any]:
    """All that is needed to make the runs again: the config of each is `recipe` and its own entry in `configs`.

    There is no date, so that the same runs give the same text.
    """
    plans = [plan for _, own in sources for plan in own]
    runs = [store.run(plan.config) for store, own in sources for plan in own]
    trained_with = {tuple(run.read_json(VERSIONS).items()) for run in runs if run.has(VERSIONS)}
    return {
        "versions": library_versions(),
        "trained_with": [dict(versions) for versions in sorted(trained_with)],
        "recipe": recipe_of(plans[0].config),
        "instances": {plan.config.task: dict(plan.samples) for plan in plans},
        "share_of_instances_once_none_was_right": HOPELESS,
        "configs": {plan.config.id: cell_of(plan.config) for plan in plans},
    }


def planned_rows(plan: Planned, run: Run) -> list[Row]:
    """One row for each planned length of a run. A run that cannot be read is missing, and says why."""
    config = plan.config
    try:
        status, scores = run.status(), best_rows(run.evaluation())
    except UserError as error:
        status, scores = Status("failed", reason=str(error)), []
    about = {
        "run": run.id,
        "task": config.task,
        "scheme": cell_label(config),
        "score_scaling": config.score_scaling,
        "seed": config.seed,
        "train_max": config.train_max,
        "status": status.status,
        "steps": status.steps if status.finished else None,
        "seconds": status.seconds if status.finished else None,
        "accurate": is_accurate(config, scores) if status.finished else None,
        "in_range_exact_match": status.in_range_exact_match if status.finished else None,
    }
    found = {row["length"]: row for row in scores} if status.has_model else {}
    return [{**about, "length": n, **look(status, found.get(n))} for n in sorted(plan.samples)]


def cell_label(config: RunConfig) -> str:
    """The scheme's label; the scaling of scores is a column of its own."""
    return scheme_label(dataclasses.replace(config, score_scaling=RunConfig.score_scaling))


def look(status: Status, row: Row | None) -> Row:
    """What is known about a run at one length."""
    if row is not None and row.get("reason"):
        return {"outcome": "refused", "note": row["reason"]}
    if row is not None:
        return {"outcome": "scored", **{name: row[name] for name in SCORES}, "note": status.reason or ""}
    if status.status == "diverged":
        return {"outcome": "diverged", "note": status.reason or ""}
    if status.has_model:
        return {"outcome": "missing", "note": "not evaluated yet"}
    return {"outcome": "missing", "note": status.reason or f"not trained yet ({status.status})"}
