"""Curves over the input size n: exact match beyond training, complexity inside it, and every cell as a row."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas, drawn
from lengthlens.analyses.statistics import over_seeds
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import FACTORS, MissingError, declared, measured
from lengthlens.analyses.tables import Table, of_frame
from lengthlens.errors import UserError
from lengthlens.probes.probe import Probe

Curve: TypeAlias = "dict[str, NDArray[np.float64]]"  # of one scheme: scale, mean, low, high, …
DECLARED: dict[str, Any] = {"color": "black", "linewidth": 3.2, "alpha": 0.25}
TRAINED, BAND = Patch(color="0.93", label="training range"), "0.75"
SAME = 0.03  # exact match, within which marks hide each other
STEP = 0.8  # of a mark, between marks of one place, which stand side by side …
MOST_ASIDE = 5  # … over so many steps at most: more of them stand closer, and all at their length still


def mean_curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds at each n, with the lowest and highest seed.

    Columns: row, label, scale, mean, low, high, seeds, train_max.
    """
    grouped = rows.groupby(["row", "label", "scale"])
    means = grouped.agg(mean=("value", "mean"), low=("value", "min"), high=("value", "max"), seeds=("value", "count"))
    return means.assign(train_max=grouped["train_max"].max()).reset_index()


class Extrapolation(Finding):
    name, title = "extrapolation", "Exact match against input size"
    shows = "Exact match against input size, for each task and scheme."

    def draw(self, study: Study, canvas: Canvas) -> None:
        exact_multiples(mean_curves(measured(study.rows, "exact_match", "evaluate")), "lowest to highest seed", canvas)

    def tables(self, study: Study) -> dict[str, Table]:
        caption = (
            "Every cell: verdict before training, exact match beyond the training range (mean over the runs that are "
            "accurate in range), and invariance indices with Student's 95 % interval over seeds."
        )
        names = ["task", "scheme", "verdict", "runs", "accurate", *(f"exact_{factor}" for factor in FACTORS)]
        words = {f"exact_{FACTORS[0]}": f"exact match at {FACTORS[0]}×", f"exact_{FACTORS[1]}": f"at {FACTORS[1]}×"}
        words |= {each.index: each.short for each in study.indices}
        cells = of_frame(cell_table(study), [*names, *(each.index for each in study.indices)], **words)
        return {"cells": Table(caption, **cells, title="Every cell", folded=True)}


def cell_table(study: Study) -> pd.DataFrame:
    """Means over the runs of each cell. Indices are of runs that are accurate in range, with Student's 95 % interval.

    Columns: task, scheme, verdict, runs, accurate, exact_2, exact_10 (means over the accurate runs), and for each index
    its mean, _low and _high.
    """
    rows = []
    for task in theme.tasks_in_order(study.runs["row"]):
        own = study.runs[study.runs["row"] == task]
        for label in theme.schemes_in_order(own["label"]):
            part = own[own["label"] == label]
            good = part[part["accurate"]]
            row = {"task": task, "scheme": label, "verdict": part["verdict"].iloc[0]}
            row |= {"runs": len(part), "accurate": len(good)}
            row |= {f"exact_{factor}": good[f"exact_{factor}"].mean() for factor in FACTORS}
            for each in study.indices:
                row |= over_seeds(good[each.index].to_numpy(dtype=float)).columns(each.index)
            rows.append(row)
    return pd.DataFrame(rows)


def multiples(
    means: pd.DataFrame, canvas: Canvas, x: str, y: str, legend: Sequence[Artist], alpha: float,
    least: float = -math.inf, top: str = "", marks: Callable[..., None] | None = None,
) -> dict[str, Axes]:  # fmt: skip
    """Small multiples of rows as `mean_curves` has them: the axes of each task.

    A line for each scheme, on bands of strength `alpha`, and on it what `marks` draws. Lines that coincide lie on each
    other, label `top` above all. What is below `least` is drawn there. `x` and `y` say what the axes are.
    """
    names, parts = theme.tasks_in_order(means["row"]), dict(list(means.groupby(["row", "label"])))
    known = [name for name in ("scale", "mean", "low", "high", "train_max", "aside") if name in means]
    if not names:
        raise MissingError("the table has no value of an accurate run with its task, scheme and scale")
    legend = [*legend, *theme.thicker(means["label"])]
    wide = canvas.width(theme.PAGE if len(names) > 1 else theme.COLUMN * 1.2)
    axes_of = canvas.panels(
        names, wide, theme.PANEL_HEIGHT, across=theme.ACROSS, more=0.25, legend=legend,
        sharex=True, sharey=True,
    )  # fmt: skip
    looks = theme.drawing_order(theme.lines(means["label"]), top, marks=2.2 if canvas.narrow else 3.0)
    for task, axes in axes_of.items():
        axes.set_title(theme.literal(task))
        bands, colours = list[Any](), list[str]()
        for label, look in looks.items():
            if (task, label) in parts:
                curve = {
                    name: each.to_numpy(float, na_value=np.nan) for name, each in parts[task, label][known].items()
                }
                axes.add_line(Line2D(curve["scale"], curve["mean"].clip(min=least), **look | {"marker": "none"}))
                if marks is not None:
                    marks(axes, curve, look)
                ends = np.concatenate([curve["low"], curve["high"][::-1]]).clip(min=least)
                bands.append(np.column_stack([np.concatenate([curve["scale"], curve["scale"][::-1]]), ends]))
                colours.append(look["color"])
        axes.add_collection(PolyCollection(bands, facecolors=colours, alpha=alpha, linewidth=0))
    canvas.label(x, y)
    canvas.data |= {"": means.rename(columns={"row": "task", "label": "scheme"})}
    return axes_of


def exact_multiples(
    means: pd.DataFrame, band: str, canvas: Canvas, extra: Sequence[Artist] = (), top: str = ""
) -> dict[str, Axes]:
    """Exact match against length as `multiples`; `band` says in the legend what a band is."""
    bands = [Patch(color=BAND, label=band)] if (means["high"] > means["low"]).any() else []
    trained = means["train_max"].dropna()
    within = [TRAINED] if len(trained) and means["scale"].min() < trained.min() else []  # else it is not in the picture
    legend = [*theme.handles(means["label"]), *within, *bands, *extra]
    curves = side_by_side(means)
    axes_of = multiples(curves, canvas, "input size n", "exact match", legend, alpha=0.15, top=top, marks=_exact_marks)
    for task, axes in axes_of.items():
        trained = means.loc[means["row"] == task, "train_max"].dropna()
        known = int(trained.min()) if len(trained) and within else None  # shaded: where all runs were trained
        length_axis(axes, means["scale"].min(), means["scale"].max(), known)
    return axes_of


def side_by_side(means: pd.DataFrame) -> pd.DataFrame:
    """The rows with a column `aside`: by how many marks each is moved, so that those of one place can all be seen."""
    order = {label: k for k, label in enumerate(theme.schemes_in_order(means["label"]))}
    placed = means.assign(place=(means["mean"] / SAME).round(), order=means["label"].map(order)).sort_values("order")
    groups = placed.groupby(["row", "scale", "place"])["order"]
    size = groups.transform("size")
    aside = (groups.cumcount() - (size - 1) / 2) * (MOST_ASIDE / (size - 1)).clip(upper=1)
    return means.assign(aside=aside.reindex(means.index))


def _exact_marks(axes: Axes, curve: Curve, look: dict[str, Any]) -> None:
    """Those of one scheme, beyond the training range only; those of schemes at one place stand side by side."""
    figure, beyond = cast(Figure, axes.get_figure(root=True)), ~(curve["scale"] <= curve["train_max"])
    for aside in np.unique(curve["aside"][beyond]):
        part = beyond & (curve["aside"] == aside)
        moved = axes.transData + ScaledTranslation(aside * STEP * look["markersize"] / 72, 0, figure.dpi_scale_trans)
        mark = look | {"linestyle": "none", "transform": moved, "zorder": 3, "clip_on": False}
        axes.add_line(Line2D(curve["scale"][part], curve["mean"][part], **mark))


@drawn
def plot_exact_match(canvas: Canvas, rows: Sequence[Mapping[str, Any]], train_max: int, title: str) -> None:
    """Exact match of one run with its interval, with and without the end token; the training range is shaded.

    `rows` as `lengthlens evaluate --json` prints them; lengths that the scheme cannot process are left out. Where all
    sizes are tuples, a heat map of two axes.
    """
    scored = sorted((row for row in rows if not row.get("reason")), key=lambda row: row["length"])
    if scored and all(row.get("shape") for row in scored):
        exact_match_by_two(canvas, scored, train_max, title)
        return
    lengths = [row["length"] for row in scored]
    axes = canvas.panel(theme.COLUMN * 1.2, 2.3)
    names = ("exact_match", "exact_match_no_end", "exact_match_low", "exact_match_high")
    exact, no_end, low, high = ([row[name] for row in scored] for name in names)
    axes.fill_between(lengths, low, high, color=theme.BLUE, alpha=0.25, linewidth=0)
    axes.plot(lengths, exact, marker="o", color=theme.BLUE, label="exact match")
    axes.plot(lengths, no_end, "--", color=theme.ORANGE, label="without the end token")
    length_axis(axes, min([1, *lengths]), max([train_max, *lengths]), train_max)
    axes.set(xlabel="input size n", ylabel="exact match")
    axes.set_title(theme.literal(textwrap.fill(title, int(canvas.width(4) * 16))))
    axes.legend()


def exact_match_by_two(canvas: Canvas, rows: Sequence[Mapping[str, Any]], train_max: int, title: str) -> None:
    """Exact match at sizes that are tuples: by operands and their digits, or by the lengths of two fields.

    A line bounds the lengths up to `train_max`.
    """
    import seaborn

    shapes = [row["shape"] for row in rows]
    alike = all(len(set(shape)) == 1 for shape in shapes) and len({len(shape) for shape in shapes}) > 1
    if not alike and any(len(shape) != 2 for shape in shapes):
        raise UserError("a heat map needs sizes of two fields, such as 3:5, or of equal fields, such as 4x20")
    up, across = ("number of fields", "length of each") if alike else ("length of the second", "length of the first")
    places = [(len(shape), shape[0]) if alike else tuple(reversed(shape)) for shape in shapes]
    cells = pd.Series([row["exact_match"] for row in rows], pd.MultiIndex.from_tuples(places, names=[up, across]))
    table = cells.groupby(level=[0, 1]).mean().unstack().sort_index(ascending=False)
    axes = canvas.panel(1.0 + 0.4 * table.shape[1], 0.8 + 0.3 * table.shape[0])
    seaborn.heatmap(table, ax=axes, cmap="Greys", vmin=0, vmax=2.4, cbar=False, annot=True, fmt=".2f", linewidths=2)
    axes.axvline(sum(int(n) <= train_max for n in table.columns), color=theme.VERMILION)
    if not alike:
        axes.axhline(sum(int(n) > train_max for n in table.index), color=theme.VERMILION)
    axes.tick_params(length=0, rotation=0)
    axes.set_title(theme.literal(textwrap.fill(title, int(canvas.width(4) * 16))))
    canvas.data |= {"": cells.rename("exact_match").reset_index()}


def length_axis(axes: Axes, first: float, last: float, train_max: float | None) -> None:
    """Lengths on a log scale, exact match from 0 to 1, and the training range shaded and named."""
    axes.set_xscale("log")
    axes.set_xlim(first * 0.9, last * 1.15)
    axes.set_ylim(-0.04, 1.04)
    axes.xaxis.set_major_locator(LogLocator(10, (1, 2, 5)) if last / first < 200 else LogLocator(10))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    if train_max is not None:
        axes.axvspan(first * 0.9, train_max, color="0.93", zorder=0, linewidth=0)


class Growth(Finding):
    """How a measured complexity grows with n inside the training range; there is one for each probe."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.name, self.title = f"growth-{probe.curve}", f"Growth of {probe.growth} in the training range"
        self.shows = f"Growth of {probe.growth} with input size."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """A panel for each task, a line for each scheme, a band from the lowest to the highest seed.

        On the logarithmic axes ι is the slope of the right half of a line: flat is invariant, the diagonal grows as n
        does. The count that the task's own circuit declares is drawn behind.
        """
        means, circuits = growth_curves(study, self.probe.curve), declared_curves(study, self.probe)
        legend: list[Artist] = [*theme.handles(means["label"], marks=False)]
        legend += [Line2D([], [], **DECLARED, label="declared by the task")] if len(circuits) else []
        legend += [Patch(color=BAND, label="lowest to highest seed")] if (means["high"] > means["low"]).any() else []
        words = "input sizes up to n", str(self.probe.growth)
        axes_of = multiples(means, canvas, *words, legend, alpha=0.1, least=1.0)
        for task, axes in axes_of.items():
            own = circuits[circuits["row"] == task]
            if len(own):
                axes.plot(own["scale"].astype(float), own["value"], **DECLARED, zorder=1.9)
            _log_axes(axes, means, bottom=1.0 if len(circuits) else float(means["low"].min()))


def growth_curves(study: Study, curve: str) -> pd.DataFrame:
    """Mean complexity over seeds up to each scale; accurate runs only, and of all heads together."""
    rows = measured(study.rows, curve)
    return mean_curves(rows[rows["head"].isna() & rows["accurate"].fillna(True)])


def declared_curves(study: Study, probe: Probe) -> pd.DataFrame:
    """What each task's own circuit says inside the training range, if it says something: row, scale, value."""
    rows = study.table[study.table["measure"] == declared(probe)]
    rows = rows[(rows["scale"] <= rows["train_max"]).fillna(False)]
    return rows[["row", "scale", "value"]].drop_duplicates(["row", "scale"]).sort_values(["row", "scale"])


def _log_axes(axes: Axes, means: pd.DataFrame, bottom: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, values in ((axes.xaxis, means["scale"]), (axes.yaxis, means["high"])):
        wide = np.log10(float(values.max()) / max(1.0, float(values.min()))) > 1.6
        axis.set_major_locator(LogLocator(10, (1,) if wide else (1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if means["high"].max() <= 4:
        axes.set_yscale("linear")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0.8 * max(1.0, bottom))


@drawn
def plot_src(canvas: Canvas, rows: list[dict[str, Any]]) -> None:
    """SRC against n from the rows of `lengthlens.tasks.complexity.src_rows`: declared, and searched where it was.

    A scale at which no operators of the arity suffice has infinite SRC and is marked at the upper edge.
    """
    table = pd.DataFrame(rows)
    axes = canvas.panel(theme.COLUMN, 2.2)
    axes.plot(table["scale"], table["declared"], color=theme.BLUE, marker="o", label="declared (upper bound)")
    top = 1.25 * max(2.0, float(table["declared"].max()))
    if "searched" in table:
        finite = table[table["searched"] < math.inf]
        label = f"searched, arity ≤ {int(table['arity'].iloc[0])}"
        axes.plot(finite["scale"], finite["searched"], "s--", color=theme.VERMILION, label=label)
        beyond = table.loc[table["searched"] == math.inf, "scale"]
        if len(beyond):
            infinite = [top * 0.97] * len(beyond)
            axes.plot(beyond, infinite, "^", color=theme.VERMILION, clip_on=False, label="searched: infinite")
    axes.set(title=table["task"].iloc[0], xlabel="input size n", ylim=(0, top))
    axes.set_ylabel("distinct operators up to n")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")
