"""One place for the look of every figure: order and colour of schemes, fonts, widths, panels, legends, marks.

Colours are those of Okabe and Ito, which readers with any form of colour blindness can tell apart. A colour stands for
a family of schemes; within a family, line style and marker tell them apart, so that nothing hangs on colour alone.
"""

import io
import math
import re
import textwrap
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lengthlens.analyses.table import MissingError
from lengthlens.errors import UserError
from lengthlens.files import make_directory, write_whole
from lengthlens.models.schemes.spec import SCHEMES, WRAPPERS
from lengthlens.tasks import TASKS

COLUMN = 3.4  # inches: one column of a two-column paper
PAGE = 7.0  # both columns
PAGE_HEIGHT = 9.2
ACROSS = 3  # small multiples in a row of a page
PANEL_HEIGHT = 1.55
LEGEND_ROW = 0.16
LEGEND_COLUMNS = 4

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#8C8C8C", "#E4E4E4"

FAMILY_COLOURS = {
    "circuit": BLUE, "learned relation": GREEN, "hinted": SKY, "task-given": YELLOW, "contextual": PURPLE,
    "relative": ORANGE, "rotary": VERMILION, "absolute": GREY, "randomized": "#B8A04A", "none": BLACK,
}  # fmt: skip
FAMILY_WORDS = {
    "circuit": "ideal", "hinted": "with Scale Hint", "task-given": "given by the task", "none": "none (NoPE)"
}  # fmt: skip
TASK_MARKS = {"position-addressed": "o", "growing": "s", "content-addressed": "^", "": "D"}
GOLDEN = np.pi * (3 - np.sqrt(5))  # the angle at which seeds of a sunflower follow each other
SPREAD = 0.012  # of the width of the axes, between neighbours at one place
PLACE = 0.025  # of the width and height: marks nearer than that hide each other
LINES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")

# What a verdict looks like: colour of the cell, colour of its letters, its sign. All differ in lightness as well.
VERDICTS = {
    "possible": (BLUE, "white", "✓"), "impossible": ("#FBD9A2", BLACK, ""), "task-limited": (GREY, "white", "–"),
    "open": (PALE, "#555555", "?"), "refused": ("white", "#555555", "×"),
}  # fmt: skip

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 7, "axes.titlesize": 8, "axes.labelsize": 7,
    "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "legend.fontsize": 6.5, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.3, "lines.markersize": 3.5,
    "figure.dpi": 150, "savefig.dpi": 300, "pdf.fonttype": 42, "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "lengthlens",  # names inside the file follow from it, so that the same figure is the same bytes
}  # fmt: skip


def style() -> AbstractContextManager[None]:
    """Matplotlib's settings for one figure; those outside are left alone."""
    return mpl.rc_context(RC)


def bare(label: str) -> str:
    """The scheme's name without the options behind slashes.

    >>> bare("hinted:relative/max_distance=3")
    'hinted:relative'
    """
    return label.partition("/")[0]


def shown(label: str) -> str:
    """A label as figures print it: short, the clip called K as in the theory.

    >>> shown("hinted:relative/max_distance=3"), shown("lbpe/score_scaling=none")
    ('hinted:relative, K=3', 'lbpe, unscaled scores')
    """
    text = label.replace("max_distance=", "K=").replace("score_scaling=none", "unscaled scores")
    return literal(text.replace("train_max=", "n ≤ ").replace("/", ", "))


def literal(text: str) -> str:
    """A text from the data, so that a figure shows it as it is and takes no dollar for the sign of a formula."""
    return text.replace("$", r"\$")


def family(scheme: str) -> str:
    """The family a scheme is shown with: that of its wrapper, if it has one. Schemes of the user's own come last."""
    prefix, colon, _ = bare(scheme).partition(":")
    if colon and prefix in WRAPPERS:
        return prefix
    return SCHEMES[bare(scheme)].family if bare(scheme) in SCHEMES else "your own"


def in_order(schemes: Iterable[str]) -> list[str]:
    """Schemes as every figure lists them: by family, the most structured first, then as they are registered.

    Options come behind the scheme they belong to, numbers by size.

    >>> in_order(["none", "rope", "ideal", "hinted:relative", "relative"])
    ['ideal', 'hinted:relative', 'relative', 'rope', 'none']
    >>> in_order(["t5", "relative/max_distance=12", "relative/max_distance=3", "relative"])
    ['t5', 'relative', 'relative/max_distance=3', 'relative/max_distance=12']
    """
    families, registered = ({name: k for k, name in enumerate(names)} for names in (FAMILY_COLOURS, SCHEMES))

    def place(label: str) -> tuple[int, int, list[tuple[int, int, str]]]:
        parts = [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", label)]
        inner = bare(label).rpartition(":")[2]
        return families.get(family(label), len(families)), registered.get(inner, len(registered)), parts

    return sorted(dict.fromkeys(schemes), key=place)


def line(scheme: str) -> dict[str, Any]:
    """Colour, line style and marker of a scheme: the same in every figure, whatever else is shown."""
    return _look(scheme, _place(scheme))


def lines(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The look of every label of a study; labels that differ in options alone get different line styles and markers.

    >>> looks = lines(["relative", "relative/max_distance=3"])
    >>> looks["relative"] == line("relative")
    True
    >>> looks["relative"]["marker"] == looks["relative/max_distance=3"]["marker"]
    False
    """
    found, taken, ordered = dict[str, dict[str, Any]](), set[tuple[str, int]](), in_order(labels)
    for label in sorted(ordered, key=lambda each: "/" in each):
        mine, first = family(label), _place(label)
        places = [k % len(MARKERS) for k in range(first, first + len(MARKERS))]
        place = next((k for k in places if (mine, k) not in taken), places[0])
        taken.add((mine, place))
        found[label] = _look(label, place)
    return {label: found[label] for label in ordered}


def _place(label: str) -> int:
    """Where a scheme stands within its family."""
    scheme, mine = bare(label), family(label)
    inner = scheme.rpartition(":")[2]
    others = [name for name in SCHEMES if ":" in scheme or SCHEMES[name].family == mine]
    return others.index(inner) if inner in others else 0


def _look(label: str, place: int) -> dict[str, Any]:
    own = {"linestyle": LINES[place % len(LINES)], "marker": MARKERS[place % len(MARKERS)]}
    return {"color": FAMILY_COLOURS.get(family(label), BLACK), **own}


def tasks_in_order(tasks: Iterable[str]) -> list[str]:
    """Tasks as they are registered: position-addressed ones, growing ones, content-addressed ones; others last.

    >>> tasks_in_order(["parity", "sort", "mine", "copy"])
    ['copy', 'parity', 'sort', 'mine']
    """
    place = {task: k for k, task in enumerate(TASKS)}
    return sorted(dict.fromkeys(tasks), key=lambda task: (place.get(task, len(place)), task))


def saying(sentence: str, width: float = COLUMN) -> Figure:
    """A figure that has nothing to show, and says why."""
    with style():
        figure = Figure(figsize=(width, 1.1), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axis_off()
        text = literal(textwrap.fill(sentence, int(width * 16)))
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, color="#555555")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all, at the resolution of all figures; the same figure is the same bytes."""
    kind, formats = path.suffix[1:], figure.canvas.get_supported_filetypes()
    if kind not in formats:
        raise UserError(f"cannot draw into '{path}': the formats are {', '.join(sorted(formats))}")
    data = io.BytesIO()
    without_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with style():  # resolution and fonts are decided here
        figure.savefig(data, format=kind, metadata=without_date)
    make_directory(path.parent)
    write_whole(path, data.getvalue())


def panels(tasks: Iterable[str], schemes: Iterable[str], x: str, y: str) -> tuple[Figure, dict[str, Axes]]:
    """A figure of page width with an axes for each task, in order, what the axes are, and room for the legend."""
    names = tasks_in_order(tasks)
    if not names:
        raise MissingError("the table has no value of an accurate run with its task, scheme and scale")
    across, down = min(ACROSS, len(names)), math.ceil(len(names) / ACROSS)
    legend = LEGEND_ROW * (1 + math.ceil((2 + len(set(schemes))) / LEGEND_COLUMNS))
    width = PAGE if across > 1 else COLUMN * 1.2
    height = min(PANEL_HEIGHT * down + legend + 0.25, PAGE_HEIGHT)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for spare in grid.flat[len(names) :]:
        spare.set_axis_off()
    found = dict(zip(names, grid.flat))
    for k, (name, axes) in enumerate(found.items()):
        axes.set_title(literal(name))
        if k % across == 0:
            axes.set_ylabel(y)
        if k + across >= len(names):  # nothing below it
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(x)
    return figure, found


def stacked(look: dict[str, Any], place: int, of: int) -> dict[str, Any]:
    """The look of the line that is drawn as number `place` of `of`, the last on top: the lower, the wider.

    Where lines coincide, those below then show at the edges of those above.
    """
    below = (of - 1 - place) / max(1, of - 1)
    return {**look, "linewidth": 1.0 + 1.2 * below, "markersize": 2.6 + 2.2 * below}


def legend(figure: Figure, schemes: Iterable[str], extra: Iterable[Artist] = ()) -> None:
    """The schemes in order, with the look they have in all figures."""
    handles = [Line2D([], [], **look, label=shown(label)) for label, look in lines(schemes).items()]
    figure.legend(handles=[*handles, *extra], loc="outside lower center", ncols=LEGEND_COLUMNS, handlelength=2.8)


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
        colour = FAMILY_COLOURS.get(str(family), BLACK)
        axes.scatter(
            part["at_x"], part["at_y"], s=11, marker=TASK_MARKS[str(kind)], color=colour, edgecolor="white",
            linewidth=0.3, clip_on=False, zorder=3,
        )  # fmt: skip


def family_legend(figure: Figure, runs: pd.DataFrame) -> None:
    """Colours of families of schemes, and shapes of families of tasks (if there are several)."""
    plain: dict[str, Any] = {"linestyle": "none", "markersize": 4}
    entries = [
        Line2D([], [], **plain, marker="o", color=FAMILY_COLOURS.get(each, BLACK), label=FAMILY_WORDS.get(each, each))
        for each in [*FAMILY_COLOURS, "your own"]
        if (runs["family"] == each).any()
    ]
    kinds = [kind for kind in TASK_MARKS if (runs["task_family"] == kind).any()]
    for kind in kinds if len(kinds) > 1 else ():
        entries.append(Line2D([], [], **plain, marker=TASK_MARKS[kind], color="0.6", label=f"{kind or 'other'} task"))
    figure.legend(handles=entries, loc="outside lower center", ncols=6, columnspacing=1.2)
