"""Points of single runs, where many coincide: each is drawn, spread out around its place."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lengthlens.analyses import theme

GOLDEN = np.pi * (3 - np.sqrt(5))  # the angle at which seeds of a sunflower follow each other
SPREAD = 0.012  # of the width of the axes, between neighbours at one place
PLACE = 0.025  # of the width and height: marks nearer than that hide each other
FAMILY_WORDS = {
    "circuit": "ideal",
    "learned relation": "learned relation",
    "hinted": "with Scale Hint",
    "task-given": "given by the task",
    "none": "none (NoPE)",
}
MARKS = {"position-addressed": "o", "growing": "s", "content-addressed": "^", "": "D"}


def spread_out(x: "pd.Series[float]", y: "pd.Series[float]", aspect: float = 1.0) -> tuple[Any, Any]:
    """Offsets (dx, dy) that lay points of one place out as a sunflower; 0 for a lone point, and for the first of many.

    All in shares of the width and height of the axes, whose height is `aspect` times its width.

    >>> dx, dy = spread_out(pd.Series([0.0, 0.5, 0.5]), pd.Series([0.0, 1.0, 1.0]))
    >>> dx.round(3).tolist(), dy.round(3).tolist()
    ([0.0, 0.0, -0.009], [0.0, 0.0, 0.008])
    """
    place = pd.Series(list(zip((x / PLACE).round(), (y / PLACE).round())), index=x.index)
    k = place.groupby(place).cumcount().to_numpy()
    radius = SPREAD * np.sqrt(k)
    return radius * np.cos(k * GOLDEN), radius * np.sin(k * GOLDEN) / aspect


def points(axes: Axes, runs: pd.DataFrame, x: str, y: str, aspect: float) -> None:
    """One mark for each run: colour of the scheme's family, shape of the task's."""
    wide, high = np.ptp(axes.get_xlim()), np.ptp(axes.get_ylim())
    dx, dy = spread_out(runs[x] / wide, runs[y] / high, aspect)
    placed = runs.assign(at_x=runs[x] + dx * wide, at_y=runs[y] + dy * high)
    for (family, kind), part in placed.groupby(["family", "task_family"]):
        colour = theme.FAMILY_COLOURS.get(str(family), theme.BLACK)
        axes.scatter(
            part["at_x"], part["at_y"], s=11, marker=MARKS[str(kind)], color=colour, edgecolor="white", linewidth=0.3,
            clip_on=False, zorder=3,
        )  # fmt: skip


def families(runs: pd.DataFrame) -> list[Line2D]:
    """Legend entries: colours of families of schemes, shapes of families of tasks (if there are several)."""
    order = [family for family in [*theme.FAMILY_COLOURS, "your own"] if (runs["family"] == family).any()]
    plain: dict[str, Any] = {"linestyle": "none", "markersize": 4, "marker": "o"}
    entries = [
        Line2D(
            [], [], **plain, color=theme.FAMILY_COLOURS.get(family, theme.BLACK), label=FAMILY_WORDS.get(family, family)
        )
        for family in order
    ]
    kinds = [kind for kind in MARKS if (runs["task_family"] == kind).any()]
    if len(kinds) > 1:
        entries += [
            Line2D([], [], **plain | {"marker": MARKS[kind]}, color="0.6", label=f"{kind or 'other'} task")
            for kind in kinds
        ]
    return entries
