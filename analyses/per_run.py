"""From the long table of a study to one row for each run: what was measured in range, and what happened beyond it."""

from typing import Any

import numpy as np
import pandas as pd

from lengthlens.analyses import theme
from lengthlens.errors import UserError
from lengthlens.runs.store import ACCURATE

EXTRAPOLATES = 0.9  # least exact match beyond the training range of a run that is said to extrapolate
FACTORS = (2, 10)  # times the training range; the first decides whether a run extrapolates
INDICES = ("iota_src", "iota_lrc", "iota_cover")
ONCE = ("in_range_exact_match", "train_loss", "margin", "steps", "seconds")  # a run has these without a scale
CELL_MEASURES = ("verdict", "declared_src")

Frame = pd.DataFrame


class MissingError(UserError):
    """The table lacks what a figure or finding is made of; the message says what, and how to get it."""


def records(frame: Frame) -> list[dict[str, Any]]:
    """The rows of a frame, each by column name."""
    rows: list[dict[str, Any]] = frame.to_dict("records")  # type: ignore[assignment]
    return rows


def measured(table: Frame, measure: str, command: str = "probe") -> Frame:
    """The rows of a measure with a value; a sentence if there are none."""
    rows = table[(table["measure"] == measure) & table["value"].notna()]
    if rows.empty:
        raise MissingError(f"no run in the table has '{measure}': it comes from `lengthlens {command}`")
    return rows


def of_runs(table: Frame) -> Frame:
    """The rows that belong to runs. In a table by hand a run without a name is its task, scheme and seed."""
    rows = table[~table["measure"].isin(CELL_MEASURES) & ~table["task"].str.startswith("pola:")]
    seed = rows["seed"].astype("string").fillna("")
    named = (rows["task"] + "_" + rows["scheme"] + "_s" + seed.astype(str)).where(rows["run"] == "", rows["run"])
    return rows.assign(run=named)


def exact_at(table: Frame, factor: int) -> "pd.Series[float]":
    """Exact match of each run at `factor` times its training range, by run; missing where it was not evaluated.

    A length that the scheme cannot process counts as 0: nothing is matched there.
    """
    rows = table[(table["measure"] == "exact_match") & (table["scale"] == factor * table["train_max"]).fillna(False)]
    value = rows["value"].mask(rows["value"].isna() & (rows["text"] != ""), 0.0)
    return value.groupby(rows["run"]).mean()


def default_index(table: Frame, measure: str) -> "pd.Series[float]":
    """ι of each run at the default thresholds, which are those that the run's own growth curve was counted at.

    Cover numbers differ by layer and readout. The one that counts is the sequential readout one layer before the last:
    behind the last layer the unembedding reads every step alike, whatever came before.
    """
    rows = chosen_readout(table[table["measure"] == measure])
    curves = table.loc[table["measure"] == measure.removeprefix("iota_"), ["run", "threshold"]].drop_duplicates()
    at_default = rows.merge(curves, on=["run", "threshold"])
    bare = rows[~rows["run"].isin(curves["run"])]  # by hand, without curves: one index is the index
    alone = bare[bare.groupby("run")["value"].transform("size") == 1] if len(bare) else bare
    found = pd.concat([at_default, alone])
    return found.groupby("run")["value"].first()


def chosen_readout(rows: Frame) -> Frame:
    """Of rows by layer and readout those of the sequential readout, one layer before the last; others as they are."""
    if rows.empty or rows["layer"].isna().all():
        return rows
    if (rows["readout"] == "sequential").any():
        rows = rows[rows["readout"] == "sequential"]
    deepest = rows.groupby("run")["layer"].transform("max")
    return rows[rows["layer"] == (deepest - 1).clip(lower=0)]


def verdicts(table: Frame) -> Frame:
    """The verdict on each task and scheme: its text as `verdict`, its reasons as `reasons`."""
    rows = table.loc[table["measure"] == "verdict", ["task", "scheme", "text", "relation"]]
    rows = rows.drop_duplicates(["task", "scheme"])
    return rows.rename(columns={"text": "verdict", "relation": "reasons"})


def per_run(table: Frame) -> Frame:
    """One row for each run: who it is, whether it is accurate in range, its indices, and what happened beyond.

    Columns: run, task, scheme, family, seed, train_max, accurate, status, `ONCE`, `INDICES`, verdict, reasons, and for
    each factor exact_2, extrapolates_2, … (missing where that length was not evaluated).
    """
    rows = of_runs(table)
    identity = ["run", "task", "scheme", "seed", "train_max"]
    runs = rows[identity].drop_duplicates("run").sort_values(["task", "scheme", "seed", "run"])
    if runs.empty:
        raise MissingError("there is no run in the table: it takes `lengthlens train` or `lengthlens sweep`")
    columns: dict[str, Any] = {"accurate": accurate(rows)}
    for name in ONCE:
        columns[name] = rows[rows["measure"] == name].groupby("run")["value"].first()
    columns["status"] = rows[rows["measure"] == "converged"].groupby("run")["text"].first()
    for name in INDICES:
        columns[name] = default_index(rows, name)
    for factor in FACTORS:
        exact = exact_at(rows, factor)
        columns[f"exact_{factor}"] = exact
        columns[f"extrapolates_{factor}"] = (exact >= EXTRAPOLATES).where(exact.notna()).astype("boolean")
    found = runs.join(pd.DataFrame(columns), on="run").reset_index(drop=True)
    found = found.merge(verdicts(table), on=["task", "scheme"], how="left")
    found["accurate"] = found["accurate"].astype("boolean").fillna(False).astype(bool)
    found["family"] = [theme.family(label) for label in found["scheme"]]
    for name in ("verdict", "reasons", "status"):
        found[name] = found[name].fillna("")
    return found


def accurate(rows: Frame) -> "pd.Series[bool]":
    """Whether each run is accurate in range: as flagged, else from its exact match at the scales of training."""
    flagged = rows[rows["accurate"].notna()].groupby("run")["accurate"].all()
    in_range = rows[(rows["measure"] == "exact_match") & (rows["scale"] <= rows["train_max"]).fillna(False)]
    computed = in_range.groupby("run")["value"].min() >= ACCURATE
    return flagged.astype(bool).combine_first(computed)


def usable(runs: Frame) -> Frame:
    """The runs that say something about the conjecture: accurate in range, and evaluated beyond it."""
    found = runs[runs["accurate"] & runs[f"exact_{FACTORS[0]}"].notna()]
    if found.empty:
        raise MissingError(why_none(runs))
    return found.reset_index(drop=True)


def why_none(runs: Frame) -> str:
    """Why no run can be used, in a sentence."""
    if not runs["accurate"].any():
        return (
            f"none of the {len(runs)} runs is accurate in range (exact match of at least {ACCURATE} at every scale), "
            "so their complexity says nothing about extrapolation"
        )
    return f"no run that is accurate in range was evaluated at {FACTORS[0]} times its training range"


def spread(values: "pd.Series[float]") -> str:
    """Values of several seeds as a text: one number if they agree to two digits, else all of them.

    >>> spread(pd.Series([1.0, 1.0, 0.999])), spread(pd.Series([1.0, 0.25, np.nan]))
    ('1.00', '1.00, 0.25, –')
    """
    texts = ["–" if np.isnan(value) else f"{value:.2f}" for value in values.astype(float)]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def interval(value: float, low: float, high: float) -> str:
    """An estimate as a text.

    >>> interval(0.9, 0.8, 1.0), interval(0.9, np.nan, np.nan), interval(np.nan, np.nan, np.nan)
    ('0.900 [0.800, 1.000]', '0.900', '–')
    """
    if np.isnan(value):
        return "–"
    return f"{value:.3f}" if np.isnan(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"
