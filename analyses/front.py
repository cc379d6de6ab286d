"""The figures that a paper would open with, and their tables: does growth in range predict extrapolation?"""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.prediction import Prediction, labels, measures, prediction
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import EXTRAPOLATES, FACTORS, MissingError, indices, records
from lengthlens.analyses.tables import Table, interval, of_frame
from lengthlens.tasks import TASKS

HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 0.8, "markersize": 3, "zorder": 4}
COLOURS = {"measure": theme.BLUE, "verdict": theme.GREEN, "baseline": theme.GREY}


class Front(Finding):
    """ι of the first measure against exact match, and the AUC of every predictor."""

    name, title = "front", "What predicts extrapolation?"
    shows = (
        "Growth of measured SRC inside the training range against exact match beyond it, and how well it and every "
        "baseline tell the runs that extrapolate."
    )

    def figure(self, study: Study) -> Figure:
        return plot(study.once(prediction))

    def tables(self, study: Study) -> dict[str, Table]:
        return prediction_tables(study.once(prediction))


class Indices(Finding):
    """The left panel of the front figure for every index."""

    name, title = "invariance", "Every invariance index against extrapolation"
    shows = "Each index against exact match beyond the range."

    def figure(self, study: Study) -> Figure:
        return plot_measures(study.once(prediction))


class Sensitivity(Finding):
    """AUC of each index at each of the thresholds it was stored at."""

    name, title = "sensitivity", "How much it depends on the thresholds"
    shows = "How much the AUC depends on the thresholds of the probes."

    def figure(self, study: Study) -> Figure:
        return plot_sensitivity(study.once(prediction))

    def tables(self, study: Study) -> dict[str, Table]:
        return {"sensitivity": sensitivity_table(study.once(prediction))}


def plot(found: Prediction) -> Figure:
    """Left, every run by the first index and exact match at twice the range; right, AUC of every predictor.

    Marks of runs that coincide are spread out around their place. Bars are 95 % intervals over resampled cells; with
    tasks held out, hollow marks below are the AUC on those alone.
    """
    with theme.style():
        figure = Figure(figsize=(theme.PAGE, 2.75), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1, 1])
        first = measures()[0]
        scatter(left, found.runs, first)
        counted = int(found.runs[first].notna().sum())
        left.set_title(f"{counted} run{'s' * (counted != 1)} accurate in range (near ones spread out)")
        forest(right, found)
        figure.legend(
            handles=theme.families(_with_kind(found.runs)), loc="outside lower center", ncols=6, columnspacing=1.2
        )
    return figure


def plot_measures(found: Prediction) -> Figure:
    """The left panel of the front figure for each of the measures."""
    with theme.style():
        figure = Figure(figsize=(theme.PAGE, 2.5), layout="constrained")
        grid = figure.subplots(1, len(measures()), sharey=True)
        for k, (axes, measure) in enumerate(zip(grid, measures())):
            scatter(axes, found.runs, measure)
            axes.set_ylabel(axes.get_ylabel() if k == 0 else "")
            own = found.predictors[found.predictors["predictor"] == measure].iloc[0]
            auc = "undefined" if np.isnan(own["auc"]) else f"{own['auc']:.3f}"
            axes.set_title(f"AUC {auc}, {own['runs']} runs", fontsize=7)
        figure.legend(
            handles=theme.families(_with_kind(found.runs)), loc="outside lower center", ncols=6, columnspacing=1.2
        )
    return figure


def _with_kind(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.assign(task_family=[TASKS[task].family if task in TASKS else "" for task in runs["task"]])


def scatter(axes: Axes, runs: pd.DataFrame, measure: str) -> None:
    """Every run: an index against exact match at twice the training range."""
    own = _with_kind(runs[np.isfinite(runs[measure].astype(float))])
    label = labels()[measure]
    axes.set(xlabel=f"{label} (in range)", ylabel=f"exact match at {FACTORS[0]} × training length")
    axes.set_ylim(-0.12, 1.12)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if own.empty:
        axes.text(0.5, 0.5, f"no run has\n{label}", ha="center", va="center", transform=axes.transAxes)
        return
    low, high = min(0.0, float(own[measure].min())), max(1.0, float(own[measure].max()))
    axes.set_xlim(low - 0.12, high + 0.12)
    axes.axhline(EXTRAPOLATES, color="0.6", linewidth=0.6, linestyle=(0, (3, 2)), zorder=0)
    axes.text(high + 0.12, EXTRAPOLATES - 0.015, "extrapolates above", ha="right", va="top", fontsize=5.5, color="0.45")
    theme.points(axes, own, measure, f"exact_{FACTORS[0]}", aspect=0.75)


def forest(axes: Axes, found: Prediction) -> None:
    """AUC of each predictor with its interval, ours above and baselines below."""
    table = found.predictors[found.predictors["factor"] == FACTORS[0]].reset_index(drop=True)
    held = found.held_out[found.held_out["tasks"] == "held out"].set_index("predictor") if len(found.held_out) else None
    if table["auc"].isna().all():
        axes.set_axis_off()
        why = textwrap.fill(f"The AUC is undefined: {table['note'].iloc[0]}.", 40)
        axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color="#555555")
        return
    for y, row in enumerate(records(table)):
        colour = COLOURS[row["kind"]]
        if np.isnan(row["auc"]):
            axes.text(0.5, y, row["note"], fontsize=5.5, color="0.45", ha="center", va="center")
            continue
        axes.plot([row["auc_low"], row["auc_high"]], [y, y], color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot(row["auc"], y, "o", color=colour, markersize=4, clip_on=False, zorder=4)
        if held is not None and not np.isnan(held["auc"][row["predictor"]]):
            axes.plot(held["auc"][row["predictor"]], y + 0.3, "D", **HOLLOW, markeredgecolor=colour, clip_on=False)
        label = interval(row["auc"], row["auc_low"], row["auc_high"])
        axes.text(1.04, y, label, fontsize=6, va="center", transform=axes.get_yaxis_transform())
    axes.axvline(0.5, color="0.6", linewidth=0.6, linestyle=(0, (3, 2)), zorder=0)
    axes.set_yticks(np.arange(len(table)), table["label"])
    axes.set_ylim(len(table) - 0.4, -0.6)
    lowest = min(table["auc_low"].min(), table["auc"].min(), held["auc"].min() if held is not None else 1)
    axes.set_xlim(min(0.3, np.floor(lowest * 10) / 10), 1.0)
    size = found.runs[f"extrapolates_{FACTORS[0]}"].astype(bool)
    axes.set_title(f"{size.sum()} of them extrapolate: told from the rest by")
    axes.set_xlabel("AUC, 95 % interval over cells" + ("; ◇ on held-out tasks" if held is not None else ""))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def plot_sensitivity(finding: Prediction) -> Figure:
    """AUC of each index at each of the thresholds it was stored at; the default is filled."""
    found = finding.sensitivity
    if found["auc"].isna().all():
        raise MissingError("the AUC is undefined at every threshold: " + (found["note"].max() or "no index is stored"))
    with theme.style():
        figure = Figure(figsize=(theme.COLUMN * 1.15, 0.7 + 0.145 * len(found)), layout="constrained")
        axes = figure.add_subplot()
        for y, row in enumerate(records(found)):
            axes.plot([row["auc_low"], row["auc_high"]], [y, y], color=theme.BLUE, linewidth=1.2)
            fill = theme.BLUE if row["default"] else "white"
            axes.plot(row["auc"], y, "o", color=theme.BLUE, markerfacecolor=fill, markersize=4, clip_on=False, zorder=4)
        short = {each.index: each.short for each in indices()}
        names = found["measure"].map(short) + ", " + found["threshold"]
        axes.set_yticks(range(len(found)), list(map(theme.literal, names)))
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(min(0.5, np.floor(float(found[["auc", "auc_low"]].min().min()) * 10) / 10), 1)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("AUC of ι; filled: the default thresholds")
    return figure


# -- tables ------------------------------------------------------------------------------------------------------

WORDS = {
    "label": "predictor",
    "groups": "cells",
    "auc": "AUC",
    "spearman": "Spearman",
    "kendall": "Kendall",
    "what": "",
}
ASSOCIATION = ["auc", "spearman", "kendall", "runs", "groups", "extrapolating", "note"]


def prediction_tables(found: Prediction) -> dict[str, Table]:
    """Measures and baselines side by side, then what could explain the measures away."""
    tables = {}
    for factor in FACTORS:
        own = found.predictors[found.predictors["factor"] == factor]
        tables[f"predictors-{factor}x"] = Table(
            f"Telling runs with exact match of at least 0.9 at {factor} × the training length from the others. "
            "Runs that are accurate in range; 95 % intervals of a bootstrap over whole cells of task and scheme.",
            **of_frame(own.assign(ours=own["kind"] == "measure"), ["label", *ASSOCIATION], **WORDS),
            title=f"Telling runs that extrapolate to {factor} times the training range",
            strong="ours",
        )
    tables["notes"] = Table(
        "What to know about the numbers.",
        [{"note": note} for note in [found.headline, *found.notes]],
        {"note": "note"},
        title="Notes",
        folded=True,
    )
    if len(found.held_out):
        own = found.held_out
        tables["held-out"] = Table(
            "The same on the tasks that were held out, and on the others (2 × the training length).",
            **of_frame(own.assign(ours=own["kind"] == "measure"), ["tasks", "label", *ASSOCIATION], **WORDS),
            title="On the tasks held out, and on the others",
            strong="ours",
        )
    tables["versus"] = Table(
        "How much higher the AUC of a measure is than that of a baseline, on the runs that have both.",
        **of_frame(
            named(found.versus, "measure", "baseline"),
            ["measure", "baseline", "difference", "runs", "note"],
            difference="difference of AUC",
        ),
        title="Our measures against each baseline",
        folded=True,
    )
    tables["within"] = Table(
        "AUC over pairs of runs of the same task, scheme, family, verdict or cell only.",
        **of_frame(named(found.within), ["predictor", "within", "auc", "strata", "runs", "note"], auc="AUC"),
        title="Among runs of the same task, scheme, family, verdict or cell",
        folded=True,
    )
    tables["ranks"] = Table(
        "Spearman correlation with exact match at 2 × the training length, within each task and each scheme; "
        "1 if less growth always goes with more.",
        **of_frame(
            named(found.ranks), ["predictor", "by", "name", "spearman", "runs", "extrapolating", "note"], **WORDS
        ),
        title="Rank correlation within each task and each scheme",
        folded=True,
    )
    tables["left-out"] = Table(
        "Leave one task out: the threshold is chosen on all other tasks, and judged on this one.",
        **of_frame(
            named(found.left_out).assign(all=found.left_out["task"] == "all"),
            ["predictor", "task", "balanced_accuracy", "threshold", "runs", "extrapolating", "note"],
        ),
        title="A threshold chosen on all other tasks",
        folded=True,
        strong="all",
        empty="There are fewer than two tasks, so none can be left out.",
    )
    tables["added"] = Table(
        "What each measure adds to the verdict before training. Gains are of a logistic regression on verdict and ι "
        "over one on the verdict alone, fitted on all tasks but one and judged on that one; log loss in nats per run.",
        **of_frame(named(found.added), ["predictor", "what", "value", "runs", "groups", "note"], **WORDS),
        title="What a measure adds to the verdict before training",
        folded=True,
    )
    tables["both-ways"] = Table(
        "Cells of which some seeds extrapolate and some do not: mean index of the ones (yes) and of the others (no).",
        **of_frame(found.both_ways),
        title="Cells that go both ways",
        empty="In every cell all accurate runs did the same.",
    )
    return tables


def sensitivity_table(found: Prediction) -> Table:
    return Table(
        "AUC of each index at each of the thresholds it was stored at.",
        **of_frame(
            named(found.sensitivity, "measure"),
            ["measure", "threshold", "default", "auc", "runs", "extrapolating", "note"],
            auc="AUC",
        ),
        title="AUC at each of the thresholds",
        folded=True,
    )


def named(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """The frame with predictors under their labels."""
    return frame.assign(**{name: frame[name].map(labels()) for name in names or ("predictor",)})
