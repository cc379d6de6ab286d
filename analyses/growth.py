"""How measured complexity grows with scale inside the training range, scheme by scheme."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from lengthlens.analyses import theme
from lengthlens.analyses.panels import edges, legend, panels, stacked
from lengthlens.analyses.table import measured, of_runs
from lengthlens.errors import unknown

CURVES = {"src": "measured SRC", "lrc": "measured LRC"}
DECLARED: dict[str, Any] = {"color": "black", "linewidth": 3.2, "alpha": 0.25}


def curves(table: pd.DataFrame, measure: str = "src") -> pd.DataFrame:
    """The finding: mean complexity over seeds up to each scale, with the lowest and highest; accurate runs only.

    Columns: task, scheme, scale, mean, low, high, seeds. LRC is that of all heads together.
    """
    if measure not in CURVES:
        raise unknown("complexity", measure, CURVES)
    rows = measured(of_runs(table), measure)
    rows = rows[rows["head"].isna() & rows["accurate"].fillna(True)]
    grouped = rows.groupby(["task", "scheme", "scale"])["value"]
    found: pd.DataFrame = grouped.agg(mean="mean", low="min", high="max", seeds="count").reset_index()
    return found


def declared(table: pd.DataFrame) -> pd.DataFrame:
    """SRC of each task's own circuit inside the training range: task, scale, value."""
    rows = table[(table["measure"] == "declared_src") & (table["scale"] <= table["train_max"]).fillna(False)]
    return rows[["task", "scale", "value"]].drop_duplicates(["task", "scale"]).sort_values(["task", "scale"])


def plot(table: pd.DataFrame, measure: str = "src") -> Figure:
    """A panel for each task, a line for each scheme, a band from the lowest to the highest seed; axes are logarithmic.

    On them ι is the slope of the right half of a line: flat is invariant, the diagonal grows as n does. For SRC
    the count that the task's own circuit declares is drawn behind.
    """
    found = curves(table, measure)
    labels = theme.in_order(found["scheme"])
    looks = theme.lines(labels)
    with theme.style():
        figure, axes_of = panels(found["task"], labels)
        extra = [Patch(color="0.75", label="lowest to highest seed")]
        for task, axes in axes_of.items():
            if measure == "src":
                own = declared(table[table["task"] == task])
                axes.plot(own["scale"].astype(float), own["value"], **DECLARED)
            for k, label in enumerate(reversed(labels)):
                own = found[(found["task"] == task) & (found["scheme"] == label)]
                _line(axes, own, stacked(looks[label], k, len(labels)))
            _log_axes(axes, found, measure)
        for axes, left, bottom in edges(axes_of):
            axes.set_ylabel(CURVES[measure] if left else "")
            axes.set_xlabel("scales up to n" if bottom else "")
        circuit = [Line2D([], [], **DECLARED, label="declared by the task")] if measure == "src" else []
        legend(figure, labels, [*circuit, *extra])
    return figure


def _line(axes: Axes, own: pd.DataFrame, look: dict[str, Any]) -> None:
    scale = own["scale"].astype(float)
    axes.fill_between(scale, own["low"].clip(lower=1), own["high"], color=look["color"], alpha=0.1, linewidth=0)
    axes.plot(scale, own["mean"].clip(lower=1), **look | {"marker": "none"})


def _log_axes(axes: Axes, found: pd.DataFrame, measure: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, values in ((axes.xaxis, found["scale"]), (axes.yaxis, found["high"])):
        wide = np.log10(float(values.max()) / max(1.0, float(values.min()))) > 1.6
        axis.set_major_locator(LogLocator(10, (1,) if wide else (1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if found["high"].max() <= 4:
        axes.set_yscale("linear")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0.8 * max(1.0, float(found["low"].min())) if measure == "lrc" else 0.8)
