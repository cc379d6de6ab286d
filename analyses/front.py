"""The figures that a paper would open with, and their tables: does growth in range predict extrapolation?"""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.prediction import Prediction, prediction, predictors
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import EXTRAPOLATES, FACTORS, Index, MissingError, records
from lengthlens.analyses.tables import Table, interval, of_frame
from lengthlens.tasks import TASKS

HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 0.8, "markersize": 3, "zorder": 4}
CHANCE: dict[str, Any] = {"color": "0.6", "linewidth": 0.6, "linestyle": (0, (3, 2)), "zorder": 0}
COLOURS = {"measure": theme.BLUE, "verdict": theme.GREEN, "baseline": theme.GREY}
WORDS = {
    "label": "predictor", "groups": "cells", "auc": "AUC", "spearman": "Spearman", "kendall": "Kendall", "what": "",
    "difference": "difference of AUC",
}  # fmt: skip
ASSOCIATION = "label auc spearman kendall runs groups extrapolating note"
# Parts of a prediction that are tables: columns (none: all), title, caption.
PARTS = {
    "held-out": (
        f"tasks {ASSOCIATION}", "On the tasks held out, and on the others",
        "The same on the tasks that were held out, and on the others (2 × the training length).",
    ),
    "versus": (
        "measure baseline difference runs note", "Our measures against each baseline",
        "How much higher the AUC of a measure is than that of a baseline, on the runs that have both.",
    ),
    "within": (
        "predictor within auc strata runs note", "Among runs of the same task, scheme, family, verdict or cell",
        "AUC over pairs of runs of the same task, scheme, family, verdict or cell only.",
    ),
    "ranks": (
        "predictor by name spearman runs extrapolating note", "Rank correlation within each task and each scheme",
        "Spearman correlation with exact match at 2 × the training length, within each task and each scheme; 1 if less "
        "growth always goes with more.",
    ),
    "left-out": (
        "predictor task balanced_accuracy threshold runs extrapolating note", "A threshold chosen on all other tasks",
        "Leave one task out: the threshold is chosen on all other tasks, and judged on this one.",
    ),
    "added": (
        "predictor what value runs groups note", "What a measure adds to the verdict before training",
        "What each measure adds to the verdict before training. Gains are of a logistic regression on verdict and ι "
        "over one on the verdict alone, fitted on all tasks but one and judged on that one; log loss in nats per run.",
    ),
    "both-ways": (
        "", "Cells that go both ways",
        "Cells of which some seeds extrapolate and some do not: mean index of the ones (yes) and of the others (no).",
    ),
}  # fmt: skip
FOLDED: dict[str, Any] = {"folded": True}
MORE: dict[str, dict[str, Any]] = {
    "held-out": {},
    "left-out": FOLDED | {"empty": "There are fewer than two tasks, so none can be left out."},
    "both-ways": {"empty": "In every cell all accurate runs did the same."},
}


class Front(Finding):
    name, title = "front", "What predicts extrapolation?"
    shows = (
        "Growth of measured SRC inside the training range against exact match beyond it, and how well it and every "
        "baseline tell the runs that extrapolate."
    )

    def figure(self, study: Study) -> Figure:
        """Left, every run by the first index and exact match at twice the range; right, AUC of every predictor.

        Marks of runs that coincide are spread out around their place. Bars are 95 % intervals over resampled cells;
        with tasks held out, hollow marks below are the AUC on those alone.
        """
        found = study.once(prediction)
        with theme.style():
            figure = Figure(figsize=(theme.PAGE, 2.75), layout="constrained")
            left, right = figure.subplots(1, 2, width_ratios=[1, 1])
            counted = scatter(left, found.runs, study.indices[0])
            left.set_title(f"{counted} run{'s' * (counted != 1)} accurate in range (near ones spread out)")
            forest(right, found)
            theme.family_legend(figure, with_kind(found.runs))
        return figure

    def tables(self, study: Study) -> dict[str, Table]:
        """Measures and baselines side by side, then what could explain the measures away."""
        found = study.once(prediction)
        tables = {
            f"predictors-{factor}x": shown(
                found.predictors[found.predictors["factor"] == factor], ASSOCIATION,
                f"Telling runs that extrapolate to {factor} times the training range",
                f"Telling runs with exact match of at least 0.9 at {factor} × the training length from the others. "
                "Runs that are accurate in range; 95 % intervals of a bootstrap over whole cells of task and scheme.",
            )
            for factor in FACTORS
        }  # fmt: skip
        said = [{"note": note} for note in [found.headline, *found.notes]]
        tables["notes"] = Table("What to know about the numbers.", said, {"note": "note"}, title="Notes", folded=True)
        parts = {name: getattr(found, name.replace("-", "_")) for name in PARTS}
        wanted = {name: frame for name, frame in parts.items() if name != "held-out" or len(frame)}
        return tables | {name: shown(frame, *PARTS[name], **MORE.get(name, FOLDED)) for name, frame in wanted.items()}


class Indices(Finding):
    name, title = "invariance", "Every invariance index against extrapolation"
    shows = "Each index against exact match beyond the range."

    def figure(self, study: Study) -> Figure:
        found = study.once(prediction)
        with theme.style():
            figure = Figure(figsize=(theme.PAGE, 2.5), layout="constrained")
            grid = figure.subplots(1, len(study.indices), sharey=True, squeeze=False)[0]
            for k, (axes, index) in enumerate(zip(grid, study.indices)):
                scatter(axes, found.runs, index)
                axes.set_ylabel("" if k else axes.get_ylabel())
                own = found.predictors[found.predictors["predictor"] == index.index].iloc[0]
                auc = "undefined" if np.isnan(own["auc"]) else f"{own['auc']:.3f}"
                axes.set_title(f"AUC {auc}, {own['runs']} runs", fontsize=7)
            theme.family_legend(figure, with_kind(found.runs))
        return figure


class Sensitivity(Finding):
    name, title = "sensitivity", "How much it depends on the thresholds"
    shows = "How much the AUC depends on the thresholds of the probes."

    def figure(self, study: Study) -> Figure:
        """AUC of each index at each of its thresholds; the default is filled."""
        found = study.once(prediction).sensitivity
        if found["auc"].isna().all():
            why = found["note"].max() or "no index is stored"
            raise MissingError(f"the AUC is undefined at every threshold: {why}")
        with theme.style():
            figure = Figure(figsize=(theme.COLUMN * 1.15, 0.7 + 0.145 * len(found)), layout="constrained")
            axes = figure.add_subplot()
            mark: dict[str, Any] = {"color": theme.BLUE, "markersize": 4, "clip_on": False, "zorder": 4}
            for y, row in enumerate(records(found)):
                axes.plot([row["auc_low"], row["auc_high"]], [y, y], color=theme.BLUE, linewidth=1.2)
                axes.plot(row["auc"], y, "o", **mark, markerfacecolor=theme.BLUE if row["default"] else "white")
            short = found["measure"].map({each.index: each.short for each in study.indices})
            axes.set_yticks(range(len(found)), list(map(theme.literal, short + ", " + found["threshold"])))
            axes.set_ylim(len(found) - 0.4, -0.6)
            axes.set_xlim(min(0.5, np.floor(float(found[["auc", "auc_low"]].min().min()) * 10) / 10), 1)
            axes.tick_params(axis="y", length=0)
            axes.set_xlabel("AUC of ι; filled: the default thresholds")
        return figure

    def tables(self, study: Study) -> dict[str, Table]:
        columns, title = "measure threshold default auc runs extrapolating note", "AUC at each of the thresholds"
        caption = "AUC of each index at each of the thresholds it was stored at."
        return {"sensitivity": shown(study.once(prediction).sensitivity, columns, title, caption, folded=True)}


def shown(frame: pd.DataFrame, columns: str, title: str, caption: str, **more: Any) -> Table:
    """A table of a prediction, predictors under their labels; what stands out are our measures, and all tasks."""
    labels = {name: predictor.label for name, predictor in predictors().items()}
    named = {name: frame[name].map(labels) for name in ("predictor", "measure", "baseline") if name in frame}
    strong = frame["kind"] == "measure" if "kind" in frame else frame.get("task", "") == "all"
    given = of_frame(frame.assign(**named, strong=strong), columns.split() or list(map(str, frame)), **WORDS)
    return Table(caption, **given, title=title, strong="strong", **more)


def with_kind(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.assign(task_family=[TASKS[task].family if task in TASKS else "" for task in runs["task"]])


def scatter(axes: Axes, runs: pd.DataFrame, index: Index) -> int:
    """Every run that has it: an index against exact match at twice the training range. Returns how many."""
    values = runs[index.index].astype(float)
    own = with_kind(runs[np.isfinite(values)])
    axes.set(xlabel=f"{index.label} (in range)", ylabel=f"exact match at {FACTORS[0]} × training length")
    axes.set_ylim(-0.12, 1.12)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if own.empty:
        axes.text(0.5, 0.5, f"no run has\n{index.label}", ha="center", va="center", transform=axes.transAxes)
    else:
        low, high = min(0.0, float(own[index.index].min())), max(1.0, float(own[index.index].max()))
        axes.set_xlim(low - 0.12, high + 0.12)
        axes.axhline(EXTRAPOLATES, **CHANCE)
        small: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 5.5, "color": "0.45"}
        axes.text(high + 0.12, EXTRAPOLATES - 0.015, "extrapolates above", **small)
        theme.points(axes, own, index.index, f"exact_{FACTORS[0]}", aspect=0.75)
    return int(values.notna().sum())


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
    axes.axvline(0.5, **CHANCE)
    axes.set_yticks(np.arange(len(table)), table["label"])
    axes.set_ylim(len(table) - 0.4, -0.6)
    lowest = min(table["auc_low"].min(), table["auc"].min(), held["auc"].min() if held is not None else 1)
    axes.set_xlim(min(0.3, np.floor(lowest * 10) / 10), 1.0)
    axes.set_title(f"{found.runs[f'extrapolates_{FACTORS[0]}'].sum()} of them extrapolate: told from the rest by")
    axes.set_xlabel("AUC, 95 % interval over cells" + ("; ◇ on held-out tasks" if held is not None else ""))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
