"""What the network does, not what the scheme declares: how well interchange and stretching tell what a run will do.

Both look at inputs of the training range only. *Flat*: the number of operators under interchange of states hardly grows
(ι ≤ 0.3). *Carries*: short inputs at the positions of inputs twice as long are answered (exact match of at least 0.9
predicted). A run is called right or wrong at twice the training range: it extrapolates exactly if it is flat and
carries. The bound on ι is from an earlier trial with runs of all six tasks; copy and parity-cot, on which agreement of
steps was fixed, do not decide it. The other bound is that of extrapolation itself.

Flat and carrying are reported alone, too: carrying may do without the other.

Beside the call, a length: the shortest of 2, 3, 4, 6 and 10 times the training range at which exact match is predicted
below 0.9, with the cause. It is right if the length at which the run really falls below is within a factor of two.

The baselines are those of `analyses/prediction.py`, and one more: whether the scheme is told n.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.prediction import others_mean, usable
from lengthlens.analyses.statistics import auc, difference, estimate
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import MissingError
from lengthlens.analyses.tables import Table, interval, of_frame
from lengthlens.models.schemes import SchemeSpec
from lengthlens.runs.evaluation import EXTRAPOLATES, wilson

FLAT = 0.3  # ι of interchange SRC up to which the operators are said not to grow; any bound up to 0.5 calls the same
WITHIN = 2  # factor by which a predicted length may be off
CHOSEN_ON = ("copy", "parity-cot")
SCORES = {
    "call": "flat and carries (call, then predicted exact match)",
    "predicted": "predicted exact match",
    "iota_interchange": "ι of interchange SRC",
    "iota_src": "ι of measured SRC",
    "iota_lrc": "ι of measured LRC",
    "margin": "margin",
    "scheme": "other runs of the scheme",
    "knows_scale": "the scheme is told the scale",
}


@dataclass(frozen=True)
class Forecast:
    """The finding: every run with what was predicted and what came of it."""

    runs: pd.DataFrame  # predicted, flat, carries, called, extrapolates, right, fails_at, failed_at, cause
    scores: pd.DataFrame  # predictor: AUC over all runs and over held-out tasks, difference to the call
    groups: pd.DataFrame  # how many calls are right, by group of runs
    both_ways: pd.DataFrame  # cells of which some seeds extrapolate and some do not

    @property
    def sentence(self) -> str:
        apart = self.runs[~self.runs["task"].isin(CHOSEN_ON)]
        right, number = int(apart["right"].sum()), len(apart)
        if not number:
            return f"All runs are on {' and '.join(CHOSEN_ON)}; {int(self.runs['right'].sum())} are called right."
        low, high = wilson(right, number)
        return (
            f"On tasks other than {' and '.join(CHOSEN_ON)}, the call is right for {right} of {number} runs "
            f"({right / number:.3f} [{low:.3f}, {high:.3f}])."
        )


class ForecastOfRuns(Finding):
    name, title = "forecast", "What the network does: predicted from the training range, and what came of it"
    shows = "Exact match and failure predicted from inputs of the training range alone, against what was measured."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """The panel `match`: exact match at twice the training range; `length`: that of failure; predicted across."""
        runs = study.once(forecast).runs
        legend = theme.family_handles(runs)
        axes = canvas.panels(["match", "length"], theme.PAGE, 2.7, across=2, least=2.5, legend=legend)
        for name, panel in axes.items():
            {"match": _matches, "length": _lengths}[name](panel, runs)
        columns = "run task label seed predicted flat called extrapolates right exact fails_at failed_at cause".split()
        canvas.data |= {"": runs[columns]}

    def tables(self, study: Study) -> dict[str, Table]:
        result = study.once(forecast)
        wrong = result.runs[~result.runs["right"]]
        shown = "task label seed iota_interchange predicted exact fails_at failed_at cause fault".split()
        causes = result.runs.dropna(subset=["fails_at"]).groupby("cause")
        counted = causes.agg(runs=("run", "size"), extrapolating=("extrapolates", "sum"), example=("fault", "first"))
        names = {"label": "scheme", "iota_interchange": "ι of interchange", "fault": "code at fault"}
        names |= {"exact": "exact match", "fails_at": "predicted to fail at", "failed_at": "failed at"}
        return {
            "forecast": Table(
                "How often the call “extrapolates exactly if flat and carrying” is right. " + result.sentence,
                **of_frame(result.groups), title="Calls that are right",
            ),
            "forecast-scores": Table(
                "AUC of telling runs that extrapolate, with intervals of a bootstrap over cells, and how much more the "
                "call has on the same runs.", **of_frame(result.scores), title="Beside other predictors",
            ),
            "forecast-wrong": Table(
                "Every run whose call is wrong.", **of_frame(wrong[shown].rename(columns=names)),
                title="Where the call is wrong", empty="No call is wrong.",
            ),
            "forecast-both-ways": Table(
                "Cells of which some seeds extrapolate and some do not, seed by seed.", **of_frame(result.both_ways),
                title="Seeds of one cell", empty="All seeds of every cell do the same.",
            ),
            "forecast-causes": Table(
                "Why runs are predicted to fall below 0.9 within ten times the training range, and how many of them "
                "extrapolate to twice that range.", **of_frame(counted.reset_index()), title="Causes",
            ),
        }  # fmt: skip


def forecast(study: Study) -> Forecast:
    """What was predicted of each run that is accurate in range, and what came of it."""
    runs = usable(study.runs)
    if "predicted_loss" not in runs or "iota_interchange" not in runs:
        raise MissingError("no run was stretched: it takes `lengthlens probe --measure interchange,stretch`")
    runs = runs.dropna(subset=["predicted_loss", "iota_interchange"]).reset_index(drop=True)
    rows = study.rows
    failure = rows[rows["measure"] == "predicted_failure"].drop_duplicates("run").set_index("run")
    exact = rows[rows["measure"] == "exact_match"]
    below = exact[(exact["scale"] > exact["train_max"]) & (exact["value"].fillna(0) < EXTRAPOLATES)]
    runs = runs.assign(
        predicted=1 - runs["predicted_loss"],
        flat=runs["iota_interchange"] <= FLAT,
        exact=runs["exact_2"],
        extrapolates=runs["extrapolates_2"].astype(bool),
        fails_at=runs["run"].map(failure["value"]),
        cause=runs["run"].map(failure["reason"]),
        fault=runs["run"].map(failure["relation"]),
        failed_at=runs["run"].map(below.groupby("run")["scale"].min().astype(float)),
        cell=runs["row"] + " " + runs["label"],
        family=runs["scheme"].map(theme.family),
        knows_scale=runs["scheme"].map(lambda label: float(SchemeSpec.of(theme.bare(label)).uses_scale)),
    )
    runs["carries"] = runs["predicted"] >= EXTRAPOLATES
    runs["called"] = runs["flat"] & runs["carries"]
    runs["call"] = runs["flat"] * runs["predicted"]
    runs["right"] = runs["called"] == runs["extrapolates"]
    both_ways, mixed = [], runs.groupby("cell")["extrapolates"].transform("nunique") > 1
    for (task, label), part in runs[mixed].groupby(["row", "label"], sort=False):
        part = part.sort_values("seed")
        numbers = {
            "exact match": part["exact"], "predicted": part["predicted"], "ι of interchange": part["iota_interchange"]
        }  # fmt: skip
        texts = {name: ", ".join(f"{value:.2f}" for value in values) for name, values in numbers.items()}
        right = int(part["right"].sum())
        both_ways.append({"task": task, "scheme": label, "seeds": len(part), **texts, "right": right})
    return Forecast(runs, _scores(runs), _groups(runs), pd.DataFrame(both_ways))


def _scores(runs: pd.DataFrame) -> pd.DataFrame:
    """How well each of `SCORES` tells the runs that extrapolate; growth (ι) counts against a run."""
    columns = {name: runs[name].astype(float) for name in SCORES if name in runs and name != "scheme"}
    columns["scheme"] = others_mean(runs["exact_2"], runs["scheme"])
    signed = pd.DataFrame({name: -each if name.startswith("iota") else each for name, each in columns.items()})
    parts = {"all": runs.index, "other tasks": runs.index[~runs["task"].isin(CHOSEN_ON)]}
    rows = []
    for name, label in SCORES.items():
        if name not in signed:
            continue
        known = signed.index[signed[name].notna()]
        row: dict[str, Any] = {"predictor": label}
        for words, part in parts.items():
            at = part.intersection(known)
            yes, cells = runs["extrapolates"][at], runs["cell"][at]
            row[f"AUC, {words}"] = interval(*estimate(auc(signed[name][at], yes), cells)[:3])
            if name != "call":
                more = difference(auc(signed["call"][at], yes), auc(signed[name][at], yes))
                row[f"call has more, {words}"] = interval(*estimate(more, cells)[:3])
        cells = runs["cell"][known]
        among = estimate(auc(signed[name][known], runs["extrapolates"][known], cells), cells)
        rows.append({**row, "AUC among seeds of one cell": interval(*among[:3]), "runs": len(known)})
    return pd.DataFrame(rows).fillna("–")


def _groups(runs: pd.DataFrame) -> pd.DataFrame:
    """How many calls are right, over all runs, on tasks chosen on and not, by task, and lengths of failure."""
    chosen = runs["task"].isin(CHOSEN_ON)
    parts = {"all": runs, f"tasks chosen on ({', '.join(CHOSEN_ON)})": runs[chosen], "other tasks": runs[~chosen]}
    parts |= {str(task): part for task, part in runs.groupby("task", sort=False)}
    result = []
    for words, part in parts.items():
        if len(part):
            fail = part[part["failed_at"].notna()]
            ratio = fail["fails_at"] / fail["failed_at"]
            near = int(((ratio >= 1 / WITHIN) & (ratio <= WITHIN)).sum())
            right, alone = int(part["right"].sum()), int((part["flat"] == part["extrapolates"]).sum())
            row: dict[str, Any] = {"runs": words, "right": f"{right} of {len(part)}"}
            row |= {"share": interval(right / len(part), *wilson(right, len(part))), "flat alone": alone}
            row |= {"carries alone": int((part["carries"] == part["extrapolates"]).sum())}
            row |= {"extrapolating": int(part["extrapolates"].sum())}
            result.append({**row, f"length within a factor of {WITHIN}": f"{near} of {len(fail)}"})
    return pd.DataFrame(result)


def _matches(axes: Axes, runs: pd.DataFrame) -> None:
    axes.set(xlim=(-0.06, 1.06), ylim=(-0.06, 1.06), xlabel="predicted from the training range", ylabel="measured")
    axes.plot([0, 1], [0, 1], color="0.85", linewidth=0.7, linestyle="--")
    for line in (axes.axhline, axes.axvline):
        line(EXTRAPOLATES, color="0.8", linewidth=0.7)
    theme.points(axes, runs, "call", "exact")
    axes.set_title("exact match at twice the training range\n(predicted 0 where operators grow, ι > 0.3)")


def _lengths(axes: Axes, runs: pd.DataFrame) -> None:
    """Predicted against measured length of failure, in multiples of the training range; areas count runs."""
    never = 20.0
    at = runs.assign(
        x=(runs["fails_at"] / runs["train_max"]).fillna(never), y=(runs["failed_at"] / runs["train_max"]).fillna(never)
    )
    for x, y, number in at.groupby(["x", "y"]).size().reset_index().itertuples(index=False):
        near = 1 / WITHIN <= x / y <= WITHIN
        axes.scatter(x, y, s=14 + 6 * number, color="0.75" if near else theme.VERMILION, zorder=2)
        axes.annotate(str(number), (x, y), ha="center", va="center", fontsize=6, zorder=3)
    grid = np.array([1.5, 26.0])
    axes.fill_between(grid, grid / WITHIN, grid * WITHIN, color="0.95", zorder=0, linewidth=0)
    axes.set(xscale="log", yscale="log", xlim=grid, ylim=grid)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([2, 3, 4, 6, 10, never], ["2", "3", "4", "6", "10", "none"])
        axis.set_ticks([], minor=True)
    axes.set_xlabel("predicted, in multiples of the training range")
    axes.set_ylabel("measured")
    axes.set_title("length at which exact match falls below 0.9\n(number of runs; band: a factor of two)")
