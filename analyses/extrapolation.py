"""Exact match against length: the figures that show whether a model goes beyond what it was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from lengthlens.analyses import theme
from lengthlens.analyses.panels import edges, legend, panels, stacked
from lengthlens.analyses.table import measured, of_runs


def plot_exact_match(rows: Sequence[Mapping[str, Any]], train_max: int, title: str) -> Figure:
    """Exact match of one run with its interval, with and without the end token; the training range is shaded.

    `rows` as `lengthlens evaluate --json` prints them; lengths that the scheme cannot process are left out.
    """
    scored = sorted((row for row in rows if not row.get("reason")), key=lambda row: row["length"])
    lengths = [row["length"] for row in scored]
    with theme.style():
        figure = Figure(figsize=(theme.COLUMN * 1.2, 2.3), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(
            lengths,
            [row["exact_match_low"] for row in scored],
            [row["exact_match_high"] for row in scored],
            color=theme.BLUE,
            alpha=0.25,
            linewidth=0,
        )
        exact, no_end = ([row[name] for row in scored] for name in ("exact_match", "exact_match_no_end"))
        axes.plot(lengths, exact, marker="o", color=theme.BLUE, label="exact match")
        axes.plot(lengths, no_end, "--", color=theme.ORANGE, label="without the end token")
        length_axis(axes, min([1, *lengths]), max([train_max, *lengths]), train_max)
        axes.set(xlabel="length n", ylabel="exact match")
        axes.set_title(theme.literal(title))
        axes.legend()
    return figure


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


# -- all runs ----------------------------------------------------------------------------------------------------


def curves(table: pd.DataFrame) -> pd.DataFrame:
    """The finding: mean exact match over seeds at each length, with the lowest and highest seed.

    Columns: task, scheme, scale, mean, low, high, seeds, train_max.
    """
    rows = measured(of_runs(table), "exact_match", "evaluate")
    grouped = rows.groupby(["task", "scheme", "scale"])
    found = grouped.agg(mean=("value", "mean"), low=("value", "min"), high=("value", "max"), seeds=("value", "count"))
    return found.assign(train_max=grouped["train_max"].max()).reset_index()


def plot(table: pd.DataFrame) -> Figure:
    """A panel for each task, a line for each scheme, a band from the lowest to the highest seed."""
    return multiples(curves(table), "lowest to highest seed")[0]


def multiples(
    found: pd.DataFrame, band: str, extra: Sequence[Artist] = (), top: str = ""
) -> tuple[Figure, dict[str, Axes]]:
    """Small multiples of rows as `curves` has them: the figure, and the axes of each task.

    Lines that coincide lie on each other, the wider below, scheme `top` above all. `band` says in the legend what a
    band is; `extra` is more of the legend.
    """
    labels = sorted(theme.in_order(found["scheme"]), key=lambda label: label != top)
    looks = theme.lines(labels)
    with theme.style():
        figure, axes_of = panels(found["task"], labels)
        for task, axes in axes_of.items():
            own = found[found["task"] == task]
            for k, label in enumerate(reversed(labels)):  # the first schemes on top
                _line(axes, own[own["scheme"] == label], stacked(looks[label], k, len(labels)))
            trained = own["train_max"].dropna()
            known = int(trained.max()) if len(trained) else None
            length_axis(axes, found["scale"].min(), found["scale"].max(), known)
        for axes, left, bottom in edges(axes_of):
            axes.set_ylabel("exact match" if left else "")
            axes.set_xlabel("length n" if bottom else "")
        legend(figure, labels, [Patch(color="0.93", label="training range"), Patch(color="0.75", label=band), *extra])
    return figure, axes_of


def _line(axes: Axes, own: pd.DataFrame, look: dict[str, Any]) -> None:
    """One scheme; marks only beyond the training range, where they do not crowd."""
    if own.empty:
        return  # an empty band would have no place on a logarithmic axis
    scale = own["scale"].astype(float)
    axes.fill_between(scale, own["low"], own["high"], color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(scale, own["mean"], **look | {"marker": "none"})
    beyond = own[(own["scale"] > own["train_max"]).fillna(True)]
    axes.plot(beyond["scale"].astype(float), beyond["mean"], **look | {"linestyle": "none"}, clip_on=False)
