"""The figures that a paper would open with, and their tables: does growth in range predict extrapolation?"""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas, legend_height
from lengthlens.analyses.prediction import Prediction, prediction, predictors
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import FACTORS, Index, MissingError, indices, records
from lengthlens.analyses.tables import Table, interval, of_frame
from lengthlens.runs.evaluation import EXTRAPOLATES
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
        "The same on the tasks that were held out, and on the others (2 × the training range).",
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
        "Spearman correlation with exact match at 2 × the training range, within each task and each scheme; 1 if less "
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

    def draw(self, study: Study, canvas: Canvas) -> None:
        """The panel `runs`: every run by the first index and exact match at twice the range; `auc`: every predictor.

        A mark stands for all runs of its kind at one place. Bars are 95 % intervals over resampled cells; with tasks
        held out, hollow marks below are the AUC on those alone.
        """
        found, wide = study.once(prediction), canvas.width(theme.PAGE)
        runs = with_kind(found.runs)
        legend = theme.family_handles(runs)
        room = legend_height([str(each.get_label()) for each in legend], wide)
        high = 2.9 if canvas.narrow else 2.45
        axes = canvas.panels(["runs", "auc"], theme.PAGE, high, across=2, least=2.5, more=room + 0.1)
        if "runs" in axes:
            counted = scatter(axes["runs"], runs, study.indices[0])
            networks = "network,\naccurate" if counted == 1 else "networks,\nall accurate"
            axes["runs"].set_title(f"{counted} trained {networks} in range")
        if "auc" in axes:
            forest(axes["auc"], found, canvas.narrow)
        kept = ["run", "task", "label", "seed", study.indices[0].index, f"exact_{FACTORS[0]}"]
        canvas.data |= {"runs": runs[kept], "auc": found.predictors[found.predictors["factor"] == FACTORS[0]]}
        canvas.legend(legend)

    def tables(self, study: Study) -> dict[str, Table]:
        """Measures and baselines side by side, then what could explain the measures away."""
        found = study.once(prediction)
        tables = {
            f"predictors-{factor}x": shown(
                found.predictors[found.predictors["factor"] == factor], ASSOCIATION,
                f"Telling runs that extrapolate to {factor} times the training range",
                f"Telling runs with exact match of at least 0.9 at {factor} × the training range from the others. "
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

    def draw(self, study: Study, canvas: Canvas) -> None:
        """A panel for each index, by its measure: `iota_src`, …"""
        found = study.once(prediction)
        runs, names = with_kind(found.runs), [each.index for each in study.indices]
        legend = theme.family_handles(runs)
        room = legend_height([str(each.get_label()) for each in legend], canvas.width(theme.PAGE))
        axes_of = canvas.panels(names, theme.PAGE, 2.05, across=len(names), least=1.9, more=room + 0.1, sharey=True)
        for index in study.indices:
            if (axes := axes_of.get(index.index)) is not None:
                scatter(axes, runs, index)
                axes.set_ylabel(axes.get_ylabel() if index.index in canvas.first_column else "")
                own = found.predictors[found.predictors["predictor"] == index.index].iloc[0]
                auc = "not stated" if np.isnan(own["auc"]) else f"{own['auc']:.3f}"
                axes.set_title(f"AUC {auc}, {own['runs']} networks", fontsize=7)
        canvas.data |= {"": runs[["run", "task", "label", "seed", *names, f"exact_{FACTORS[0]}"]]}
        canvas.legend(legend)


class Sensitivity(Finding):
    name, title = "sensitivity", "How much it depends on the thresholds"
    shows = "How much the AUC depends on the thresholds of the probes."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """AUC of each index at each of its thresholds; the default is filled."""
        found = study.once(prediction).sensitivity
        if found["auc"].isna().all():
            why = found["note"].max() or "no index is stored"
            raise MissingError(f"the AUC is undefined at every threshold: {why}")
        axes = canvas.panel(theme.COLUMN * 1.15, min(0.7 + 0.145 * len(found), theme.PAGE_HEIGHT))
        mark: dict[str, Any] = {"color": theme.BLUE, "markersize": 4, "clip_on": False, "zorder": 4}
        for y, row in enumerate(records(found)):
            axes.plot([row["auc_low"], row["auc_high"]], [y, y], color=theme.BLUE, linewidth=1.2)
            axes.plot(row["auc"], y, "o", **mark, markerfacecolor=theme.BLUE if row["default"] else "white")
        short = found["measure"].map({each.index: each.short for each in study.indices})
        axes.set_yticks(range(len(found)), list(map(theme.literal, short + ", " + found["threshold"])))
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(min(0.5, np.floor(float(found[["auc", "auc_low"]].min().min()) * 10) / 10), 1)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("AUC of ι\nfilled: the default thresholds")
        canvas.data |= {"": found}

    def tables(self, study: Study) -> dict[str, Table]:
        columns, title = "measure threshold default auc runs extrapolating note", "AUC at each of the thresholds"
        caption = "AUC of each index at each of the thresholds it was stored at."
        return {"sensitivity": shown(study.once(prediction).sensitivity, columns, title, caption, folded=True)}


def shown(frame: pd.DataFrame, columns: str, title: str, caption: str, **more: Any) -> Table:
    """A table of a prediction, predictors under their labels; what stands out are our measures, and all tasks."""
    labels = {name: predictor.label for name, predictor in predictors().items()}
    named = {name: frame[name].map(labels) for name in ("predictor", "measure", "baseline") if name in frame}
    strong = frame["kind"] == "measure" if "kind" in frame else frame.get("task", "") == "all"
    sides = {f"{each.index}_{side}": f"{each.short}, {side}" for each in indices() for side in ("yes", "no")}
    given = of_frame(frame.assign(**named, strong=strong), columns.split() or list(map(str, frame)), **WORDS | sides)
    return Table(caption, **given, title=title, strong="strong", **more)


def with_kind(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with what decides how they are marked: family of the task, group and colour of the scheme."""
    kinds = [TASKS[task].family if task in TASKS else "" for task in runs["task"]]
    groups, colours = runs["label"].map(theme.group), theme.colours(runs["label"])
    return runs.assign(task_family=kinds, group=groups, colour=groups.map(colours))


def scatter(axes: Axes, runs: pd.DataFrame, index: Index) -> int:
    """Every run that has it, `with_kind`: an index against exact match at twice the training range; how many."""
    own = runs[np.isfinite(runs[index.index].astype(float))]
    axes.set(xlabel=f"{index.label} (in range)", ylabel=f"exact match at\n{FACTORS[0]} × training range")
    axes.set_ylim(-0.06, 1.06)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if own.empty:
        axes.text(0.5, 0.5, f"no run has\n{index.label}", ha="center", va="center", transform=axes.transAxes)
    else:
        low, high = min(0.0, float(own[index.index].min())), max(1.0, float(own[index.index].max()))
        edge = 0.05 * (high - low)
        axes.set_xlim(low - edge, high + edge)
        axes.axhline(EXTRAPOLATES, **CHANCE)
        small: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 5.5, "color": "0.45"}
        axes.text(high + edge, EXTRAPOLATES - 0.015, "extrapolates above", **small)
        theme.points(axes, own, index.index, f"exact_{FACTORS[0]}", ((low, high), (0.0, 1.0)))
    return int(runs[index.index].notna().sum())


def forest(axes: Axes, found: Prediction, narrow: bool = False) -> None:
    """AUC of each predictor with its interval, ours above and baselines below; in a column names stand above bars."""
    table = found.predictors[found.predictors["factor"] == FACTORS[0]].reset_index(drop=True)
    held = found.held_out[found.held_out["tasks"] == "held out"].set_index("predictor") if len(found.held_out) else None
    if table["auc"].isna().all():
        axes.set_axis_off()
        why = textwrap.fill(f"The AUC is not stated: {table['note'].iloc[0]}.", 40)
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
            axes.plot(
                held["auc"][row["predictor"]],
                y + (0.15 if narrow else 0.3),
                "D",
                **HOLLOW,
                markeredgecolor=colour,
                clip_on=False,
            )
        label = interval(row["auc"], row["auc_low"], row["auc_high"])
        if narrow:
            axes.text(0, y - 0.42, row["label"], fontsize=6, va="center", transform=axes.get_yaxis_transform())
            axes.text(1, y - 0.42, label, fontsize=6, ha="right", va="center", transform=axes.get_yaxis_transform())
        else:
            axes.text(1.04, y, label, fontsize=6, va="center", transform=axes.get_yaxis_transform())
    axes.axvline(0.5, **CHANCE)
    axes.set_yticks(np.arange(len(table)), table["label"] if not narrow else [""] * len(table))
    axes.set_ylim(len(table) - 0.4, -0.6 - 0.2 * narrow)
    lowest = min(table["auc_low"].min(), table["auc"].min(), held["auc"].min() if held is not None else 1)
    axes.set_xlim(min(0.3, np.floor(lowest * 10) / 10), 1.0)
    far = int(found.runs[f"extrapolates_{FACTORS[0]}"].sum())
    axes.set_title(f"How well each number tells the\n{far} that extrapolate from the rest")
    axes.set_xlabel("AUC, 95 % interval over cells" + ("\n◇ on held-out tasks" if held is not None else ""))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
