"""What becomes of trained runs when something in them is changed, and nothing is trained again.

- *Pruned*: the biases levelled that the training range does not need (`lengthlens.probes.network.prune`). Does flat
  complexity bring extrapolation along? The runs whose SRC grows after it as before are the control.
- *Surgery*: the position codes of long inputs replaced by those of the training range (`lengthlens.probes.surgery`).
  Does the ideal relation repair a run that fails on long inputs? The same surgery inside the range is the control: what
  it harms does not go by its codes alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import FACTORS, MissingError, indices, measured
from lengthlens.analyses.tables import Table, of_frame
from lengthlens.runs.evaluation import EXTRAPOLATES, wilson

FLAT = 0.1  # ι up to which SRC is said not to grow: less than a doubling over a thousandfold of scale
EDGE: dict[str, Any] = {"markeredgewidth": 0.9, "markersize": 4.5, "linestyle": "none", "marker": "o"}


@dataclass(frozen=True)
class Pruning:
    """The finding: each run before and after.

    `runs` has the columns run, task, label, seed, left (what stays, in words), iota_before, iota_after, and for each
    factor exact_2_before, exact_2_after, …
    """

    runs: pd.DataFrame

    def failed(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The runs that failed beyond the range with growing SRC: those whose copy has a flat one, and the others."""
        pruned = self.runs[(self.runs["exact_2_before"] < EXTRAPOLATES) & (self.runs["iota_before"] > FLAT)]
        return pruned[pruned["iota_after"] <= FLAT], pruned[pruned["iota_after"] > FLAT]

    @property
    def sentence(self) -> str:
        """In words, with Wilson's 95 % interval of each share."""
        told = []
        for part, words in zip(self.failed(), ("became flat", "went on growing")):
            if len(part):
                right = int((part["exact_2_after"] >= EXTRAPOLATES).sum())
                low, high = wilson(right, len(part))
                medians = [
                    part[f"exact_{factor}_{side}"].median() for factor in FACTORS for side in ("before", "after")
                ]
                before, after, far_before, far_after = (f"{median:.2f}" for median in medians)
                told.append(
                    f"of {len(part)} runs that had failed at {FACTORS[0]} × the training range and whose SRC {words}, "
                    f"{right} ({right / len(part):.2f} [{low:.2f}, {high:.2f}]) extrapolate{'s' if right == 1 else ''} "
                    f"(median exact match {before} → {after}, at {FACTORS[1]} × {far_before} → {far_after})"
                )
        if not told:
            return "No run that failed beyond the training range with growing SRC was pruned."
        return f"Once pruned, by inputs of the training range alone: {'; '.join(told)}."


class PrunedRuns(Finding):
    name, title = "pruning", "Is it a cause? Runs pruned to what the training range needs"
    shows = (
        "The same trained weights with and without the biases that no answer in range needs: growth of SRC, and exact "
        "match beyond the range."
    )

    def draw(self, study: Study, canvas: Canvas) -> None:
        """An arrow for each run, from what it was to its pruned copy: growth of SRC across, exact match upwards.

        The panels are `2x` and `10x`: exact match at so many times the training range.
        """
        pruned = study.once(pruning).runs
        legend = theme.handles(pruned["label"], line=False)
        grey: dict[str, Any] = {**EDGE, "color": "0.4"}
        legend.append(Line2D([], [], **grey, markerfacecolor="white", label="as trained"))
        legend.append(Line2D([], [], **grey, label="pruned in range"))
        legend.append(Line2D([], [], linestyle="none", label="marks are slightly moved"))
        names = {f"{factor}x": factor for factor in FACTORS}
        axes_of = canvas.panels(
            list(names), theme.PAGE, 2.3, across=2, least=2.5, legend=legend, sharex=True, sharey=True
        )
        for name, axes in axes_of.items():
            _arrows(axes, pruned, names[name], theme.lines(pruned["label"]))
            axes.set_title(f"at {names[name]} × the training range")
        canvas.label("growth of SRC inside the training range, ι", "exact match")
        canvas.data |= {"": pruned}

    def tables(self, study: Study) -> dict[str, Table]:
        pruned, cells = study.once(pruning), []  # means over seeds
        for (task, scheme), part in pruned.runs.groupby(["task", "label"], sort=False):
            cell = {"task": task, "scheme": scheme, "runs": len(part)}
            names = {"iota": indices()[0].short, **{f"exact_{k}": f"exact match at {k}×" for k in FACTORS}}
            for name, words in names.items():
                cell[words] = f"{part[f'{name}_before'].mean():.2f} → {part[f'{name}_after'].mean():.2f}"
            cells.append(cell)
        caption = "As trained → pruned to what answers in range need, means over seeds; nothing is trained again. "
        title = "As trained → pruned, means over seeds"
        return {"pruning": Table(caption + pruned.sentence, **of_frame(pd.DataFrame(cells)), title=title)}


def pruning(study: Study) -> Pruning:
    """Each run that is accurate in range and was pruned, before and after.

    Left out are runs whose SRC was counted on the pruned copy to begin with: the relation is the same one.
    """
    rows, first = study.rows, indices()[0]
    index = rows[(rows["measure"] == "pruned") & rows["value"].notna()].drop_duplicates("run").set_index("run")
    if index.empty:
        raise MissingError("no run in the table was pruned: it comes from `lengthlens probe`")
    counted = rows[rows["measure"] == first.curve].drop_duplicates("run").set_index("run")["relation"]
    runs = study.runs[study.runs["run"].isin(index.index) & study.runs["accurate"]]
    same = runs["run"].map(counted).fillna("") == runs["run"].map(index["relation"])
    runs = runs[~same].reset_index(drop=True)
    if runs.empty:
        raise MissingError("no run that is accurate in range has more in it than its pruned copy")
    columns = {
        "left": runs["run"].map(index["relation"]),
        "iota_before": runs.get(first.index, np.nan),
        "iota_after": runs["run"].map(index["value"]),
    }
    exact = rows[rows["measure"] == "pruned_exact_match"]
    for factor in FACTORS:
        own = exact[(exact["scale"] == factor * exact["train_max"]).fillna(False)].groupby("run")["value"].first()
        columns[f"exact_{factor}_before"] = runs[f"exact_{factor}"]
        columns[f"exact_{factor}_after"] = runs["run"].map(own)
    return Pruning(runs[["run", "row", "label", "seed"]].rename(columns={"row": "task"}).assign(**columns))


def _arrows(axes: Axes, pruned: pd.DataFrame, factor: int, looks: dict[str, dict[str, Any]]) -> None:
    """For each run a mark as it was trained, one as it is pruned, and an arrow between; see `theme.jitter`."""
    top = max(1.0, float(np.nanmax(pruned[["iota_before", "iota_after"]].to_numpy(float))))
    axes.set_xlim(-0.05 * top, 1.05 * top)
    axes.set_ylim(-0.06, 1.06)
    columns = [f"{name}_{side}" for side in ("before", "after") for name in ("iota", f"exact_{factor}")]
    known = pruned.dropna(subset=columns)
    moved = np.column_stack(theme.jitter(axes, len(known)))
    before, after = (known[pair].to_numpy(float) + moved for pair in (columns[:2], columns[2:]))
    for label, start, end in zip(known["label"], before, after):
        look = {name: looks[label][name] for name in ("color", "marker")} | {"clip_on": False, "zorder": 3}
        if np.abs((start - end) / (top, 1)).sum() > 0.08:
            line = {"arrowstyle": "-|>", "color": look["color"], "alpha": 0.35, "linewidth": 0.7}
            axes.annotate("", end, start, arrowprops={**line, "shrinkA": 2, "shrinkB": 2})
        axes.plot(*start, **look, markersize=3.6, markerfacecolor="white", markeredgewidth=0.8)
        axes.plot(*end, **look, markersize=3.6, markeredgecolor="white", markeredgewidth=0.3)


# -- surgery ---------------------------------------------------------------------------------------------------------


class RepairedRuns(Finding):
    name, title = "healing", "Are codes at fault? Runs with the position codes of the training range"
    shows = (
        "Exact match of runs that fail on long inputs, as trained and with the ideal relation; and, to the right, "
        "against the same surgery inside the training range."
    )

    def draw(self, study: Study, canvas: Canvas) -> None:
        """Panels: `tasks`, exact match as trained and with the ideal relation, by task; `control`, by that in range."""
        runs = study.once(operated_runs)
        failing = runs[runs["own"] < EXTRAPOLATES]
        if failing.empty:
            raise MissingError("no run that was operated on fails on long inputs")
        colour_of = theme.colours(failing["label"])
        shown = failing.assign(colour=failing["label"].map(theme.group).map(colour_of))
        legend, ratios = theme.family_handles(shown), [1.25, 1]
        panels = canvas.panels(
            ["tasks", "control"], theme.PAGE, 2.55, across=2, least=2.5, more=0.1, legend=legend, ratios=ratios
        )
        longest, trained = _sizes(runs)
        if "tasks" in panels:
            axes = panels["tasks"]
            _by_task(axes, shown, canvas.narrow)
            axes.set_ylabel(f"exact match at {longest}")
            axes.set_title(f"open: as trained on {trained}; filled: with the ideal relation", fontsize=7)
        if "control" in panels:
            axes = panels["control"]
            axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1))
            axes.axhline(EXTRAPOLATES, color=theme.PALE, linewidth=0.8, zorder=0)
            axes.axvline(EXTRAPOLATES, color=theme.PALE, linewidth=0.8, zorder=0)
            theme.points(axes, shown, "in_range", "ideal")
            axes.set_xlabel("control in range: exact match\nwith the codes of a smaller n")
            axes.set_ylabel(f"with the ideal relation, {longest}")
            axes.set_title("runs that fail", fontsize=7)
        canvas.data |= {"": runs}

    def tables(self, study: Study) -> dict[str, Table]:
        """By the control in range, and run by run."""
        runs = study.once(operated_runs)
        failing = runs[runs["own"] < EXTRAPOLATES]
        in_range = np.where(failing["in_range"] >= EXTRAPOLATES, "unharmed in range", "harmed in range")
        rows = []
        for (control, cause), part in failing.assign(control=in_range).groupby(["control", "cause"]):
            counted = {"healed": "ideal", "healed_as_one": "ideal_one", "displaced": "displaced"}
            repaired = {name: int((part[surgery] >= EXTRAPOLATES).sum()) for name, surgery in counted.items()}
            rows.append({"control": control, "cause": cause or "–", "runs": len(part), **repaired})
        words = {"cause": "cause by stretching", "healed_as_one": "healed, others as one"}
        longest, trained = _sizes(runs)
        caption = f"Runs that are accurate on {trained} and fail at {longest}: which the ideal relation heals."
        summary = Table(caption, **of_frame(pd.DataFrame(rows), **words, displaced="healed, displaced"))
        columns = ["task", "scheme", "seed", "own", "ideal", "ideal_one", "displaced", "none", "in_range", "cause"]
        each = runs[columns].sort_values(["task", "scheme", "seed"])
        also = {"ideal_one": "ideal, others as one", "in_range": "borrowed in range"}
        by_run = Table("Exact match at the largest scale under each surgery.", **of_frame(each, **also))
        return {"healing": summary, "healing-runs": by_run}


def operated_runs(study: Study) -> pd.DataFrame:
    """One row for each run that was operated on: its exact match under each surgery at the largest n that was tried.

    Columns besides those of the run: scale, own (as trained), ideal, ideal_one, displaced, none, in_range, cause.
    """
    from lengthlens.probes.surgery import AS_TRAINED, IN_RANGE  # imports torch

    rows = measured(study.rows, "surgery_exact_match", "probe --measure surgery")
    if not (rows["relation"] == AS_TRAINED).any():
        raise MissingError("the table has exact match after surgery, and does not name the surgery in 'relation'")
    rows = rows.assign(longest=rows.groupby("run")["scale"].transform("max"))
    at = rows[(rows["scale"] == rows["longest"]) | (rows["relation"] == IN_RANGE)]
    about = ["run", "task", "scheme", "label", "seed", "train_max", "longest"]
    wide = at.pivot(index=about, columns="relation", values="value").reset_index().rename_axis(columns=None)
    names = {"longest": "scale", "ideal, others as one": "ideal_one", IN_RANGE: "in_range"}
    causes = at[at["relation"] == AS_TRAINED].set_index("run")["reason"]
    return wide.rename(columns=names).assign(cause=wide["run"].map(causes))


def _sizes(runs: pd.DataFrame) -> tuple[str, str]:
    """At which n runs were operated on, and on which n they were trained, in words."""
    longest, trained = (runs[name].dropna().unique() for name in ("scale", "train_max"))
    where = f"n = {longest[0]}" if len(longest) == 1 else "the largest n"
    return where, f"n ≤ {trained[0]}" if len(trained) == 1 else "shorter inputs"


def _by_task(axes: Axes, shown: pd.DataFrame, narrow: bool) -> None:
    tasks = theme.tasks_in_order(shown["task"])
    for place, task in enumerate(tasks):
        part = shown[shown["task"] == task].sort_values(["ideal", "own"])
        offset = np.linspace(-0.3, 0.3, len(part)) if len(part) > 1 else np.zeros(1)
        for x, (_, run) in zip(place + offset, part.iterrows()):
            colour = run["colour"]
            axes.plot([x, x], [run["own"], run["ideal"]], color=colour, linewidth=0.9)
            axes.plot(x, run["own"], "o", markersize=3, markerfacecolor="white", markeredgecolor=colour)
            axes.plot(x, run["ideal"], "o", markersize=3.2, color=colour)
        repaired = int((part["ideal"] >= EXTRAPOLATES).sum())
        axes.text(place, 1.09, f"{repaired} of {len(part)}", ha="center", fontsize=6.5)
    axes.set_xticks(range(len(tasks)), [task.replace("-", "-\n", 2 if narrow else 1) for task in tasks])
    axes.set_ylim(-0.05, 1.18)
    axes.set_yticks([0, 0.5, 1])
