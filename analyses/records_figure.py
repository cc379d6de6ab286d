"""The figure of the records: exact match against length, from the training range to a thousand times beyond."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lengthlens.analyses import theme
from lengthlens.analyses.records import goals, number, tasks_in_order
from lengthlens.runs.record_grid import GOAL, GOAL_SCHEME, REFERENCE

COLUMNS = 4
LEGEND_COLUMNS = 3
ROW_HEIGHT, REST = 1.55, 0.75  # inches: a row of panels; legend and labels
BROAD: dict[str, Any] = {"linewidth": 4.0, "alpha": 0.45, "marker": "none"}  # the reference, beneath the others
STAR: dict[str, Any] = {"marker": "*", "markersize": 5, "color": "black", "linestyle": "none"}
MISSED = STAR | {"markerfacecolor": "white", "markeredgewidth": 0.7}


def plot(chosen: pd.DataFrame, train_max: int) -> Figure:
    """A panel for each task, a line for each scheme (at its best scaling of scores), from `records`.

    Lines are medians over the seeds, bands reach down to the worst seed. A star stands at each goal, filled if every
    seed reaches it.
    """
    tasks, styles = tasks_in_order(chosen["task"]), scheme_styles(chosen)
    columns = min(COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    with theme.style():
        figure = Figure(figsize=(theme.PAGE, ROW_HEIGHT * rows + REST), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
        for axes, task in zip(panels, tasks):
            _panel(axes, chosen[chosen["task"] == task], styles, train_max)
            axes.set_title(task, pad=9)
            axes.set_xlabel("length n")
            axes.label_outer()
        for axes in list(panels)[len(tasks) :]:
            axes.set_visible(False)
        _scales(figure, chosen, train_max)
        figure.legend(handles=_legend(styles), loc="outside lower center", ncols=LEGEND_COLUMNS)
    return figure


def scheme_styles(chosen: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The look of each scheme, in the order of the table; variants of one scheme differ in line and marker."""
    schemes = list(dict.fromkeys(chosen["scheme"]))
    bases = [scheme.partition("/")[0] for scheme in schemes]
    styles = {}
    for k, (scheme, base) in enumerate(zip(schemes, bases)):
        variant = bases[:k].count(base)
        own = {"linestyle": theme.LINES[variant], "marker": theme.MARKERS[variant]} if base in bases[:k] else {}
        # The first is drawn last, on top of what it is compared with.
        styles[scheme] = theme.line(base) | own | {"zorder": 10 + len(schemes) - k}
        if scheme == REFERENCE:
            styles[scheme] |= BROAD | {"zorder": 2}
    return styles


def _panel(axes: Axes, rows: pd.DataFrame, styles: dict[str, dict[str, Any]], train_max: int) -> None:
    axes.axvspan(rows["length"].min() / 2, train_max, color="0.94", zorder=0, linewidth=0)
    for scheme, style in styles.items():
        own = rows[(rows["scheme"] == scheme) & (rows["seeds"] > 0)]
        if own.empty:
            continue  # an empty band would have no place on a logarithmic axis
        lengths = own["length"].astype(float)
        axes.plot(lengths, own["median"], **style, clip_on=False)
        axes.fill_between(lengths, own["worst"], own["median"], color=style["color"], alpha=0.18, linewidth=0)
    for goal in goals(rows).to_dict("records"):
        axes.plot(goal["length"], 1.1, **STAR if goal["state"] == "reached" else MISSED, clip_on=False)


def _scales(figure: Figure, chosen: pd.DataFrame, train_max: int) -> None:
    first = figure.axes[0]
    first.set_xscale("log")
    first.set_xlim(min(train_max, chosen["length"].min()) * 0.8, chosen["length"].max() * 1.25)
    first.set_ylim(-0.04, 1.04)
    first.xaxis.set_major_locator(LogLocator(10, numticks=9))
    first.xaxis.set_minor_locator(NullLocator())
    first.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(round(value))))
    figure.supylabel("exact match, end token included", fontsize=7)


def _legend(styles: dict[str, dict[str, Any]]) -> list[Line2D]:
    entries = [Line2D([], [], **style, label=scheme) for scheme, style in styles.items()]
    stars = [
        Line2D([], [], **STAR, label=f"{GOAL_SCHEME} reaches {GOAL} with every seed"),
        Line2D([], [], **MISSED, label="goal not reached, or open"),
    ]
    return [*entries, *stars]
