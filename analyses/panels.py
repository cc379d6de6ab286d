"""Small multiples: a panel for each task, all with the same look, and one legend of schemes below."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lengthlens.analyses import theme
from lengthlens.analyses.table import MissingError

ACROSS = 3  # panels in a row of a page
PANEL_HEIGHT = 1.55  # inches
LEGEND_ROW = 0.16
LEGEND_COLUMNS = 4


def panels(tasks: Iterable[str], schemes: Iterable[str], sharey: bool = True) -> tuple[Figure, dict[str, Axes]]:
    """A figure of page width with an axes for each task, in order, and room for the legend."""
    names = theme.tasks_in_order(tasks)
    if not names:
        raise MissingError("the table has no value of an accurate run with its task, scheme and scale")
    across = min(ACROSS, len(names))
    down = math.ceil(len(names) / across)
    legend = LEGEND_ROW * (1 + math.ceil((2 + len(set(schemes))) / LEGEND_COLUMNS))
    width = theme.PAGE if across > 1 else theme.COLUMN * 1.2
    height = min(PANEL_HEIGHT * down + legend + 0.25, theme.PAGE_HEIGHT)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=sharey)
    for spare in grid.flat[len(names) :]:
        spare.set_axis_off()
    found = dict(zip(names, grid.flat))
    for k, (name, axes) in enumerate(found.items()):
        axes.set_title(theme.literal(name))
        if k + across >= len(names):  # nothing below it
            axes.tick_params(labelbottom=True)
    return figure, found


def stacked(look: dict[str, Any], place: int, of: int) -> dict[str, Any]:
    """The look of the line that is drawn as number `place` of `of`, the last on top: the lower, the wider.

    Where lines coincide, those below then show at the edges of those above.
    """
    below = (of - 1 - place) / max(1, of - 1)
    return {**look, "linewidth": 1.0 + 1.2 * below, "markersize": 2.6 + 2.2 * below}


def edges(found: dict[str, Axes]) -> Iterator[tuple[Axes, bool, bool]]:
    """Each axes, whether it stands at the left, and whether nothing stands below it."""
    axes = list(found.values())
    across = min(ACROSS, len(axes))
    for k, each in enumerate(axes):
        yield each, k % across == 0, k + across >= len(axes)


def legend(figure: Figure, schemes: Iterable[str], extra: Iterable[Artist] = ()) -> None:
    """The schemes in order, with the look they have in all figures."""
    looks = theme.lines(schemes)
    handles = [Line2D([], [], **look, label=theme.shown(label)) for label, look in looks.items()]
    figure.legend(handles=[*handles, *extra], loc="outside lower center", ncols=LEGEND_COLUMNS, handlelength=2.8)
