"""One place for the look of every figure: order and colour of schemes, fonts, widths, panels, legends, marks.

Colours are those of Okabe and Ito, which readers with any form of colour blindness can tell apart. A colour stands for
a family of schemes; within a family, line style and marker tell them apart, so that nothing hangs on colour alone.
"""

import itertools
import re
import textwrap
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform

from lengthlens.models.schemes.spec import SCHEMES, WRAPPERS, split_label
from lengthlens.tasks import TASKS

COLUMN = 3.4  # inches: one column of a two-column paper
PAGE = 7.0  # both columns
PAGE_HEIGHT = 9.2
NARROW = 5.0  # less than this is a column
ACROSS = 3  # small multiples in a row of a page
PANEL_HEIGHT = 1.55

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#8C8C8C", "#E4E4E4"

FAMILY_COLOURS = {
    "circuit": BLUE, "learned relation": GREEN, "hinted": SKY, "task-given": YELLOW, "contextual": PURPLE,
    "relative": ORANGE, "rotary": VERMILION, "absolute": GREY, "randomized": "#B8A04A", "none": BLACK,
}  # fmt: skip
# Of schemes that are not of this package, one after the other: Tol's muted colours that are not like one above.
OWN = "your own"
OWN_COLOURS = ("#882255", "#44AA99", "#332288", "#999933", "#AA4499", "#117733")
FAMILY_WORDS = {
    "circuit": "ideal", "hinted": "with Scale Hint", "task-given": "given by the task", "none": "none (NoPE)"
}  # fmt: skip
TASK_MARKS = {"position-addressed": "o", "growing": "s", "content-addressed": "^", "": "D"}
GOLDEN = np.pi * (3 - np.sqrt(5))  # the angle at which seeds of a sunflower follow each other
SPREAD = 0.018  # of the width of the axes, between neighbours at one place whose marks are of one run
PLACE = 0.025  # of the width and height: marks nearer than that hide each other
MARK = 11.0  # area of the mark of one run, in square points; that of more grows as the root of their number
LINES = (
    *("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 3))),
    *((0, (8, 2)), (0, (1, 3)), (0, (6, 1, 1, 1)), (0, (2, 2))),
)
REFERENCE = "circuit"  # the family of `ideal`, which is given what others have to learn
RANGE = " (n ≤ "  # between a task and its training range
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")

# What a verdict looks like: colour of the cell, colour of its letters, its sign. All differ in lightness as well.
VERDICTS = {
    "possible": (BLUE, "white", "✓"), "impossible": ("#FBD9A2", BLACK, ""), "task-limited": (GREY, "white", "–"),
    "open": (PALE, "#555555", "?"), "refused": ("white", "#555555", "×"),
}  # fmt: skip

Box = tuple[tuple[float, float], tuple[float, float]]  # the ranges of x and y

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 7, "axes.titlesize": 8, "axes.labelsize": 7,
    "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "legend.fontsize": 6.5, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.3, "lines.markersize": 3.5,
    "figure.dpi": 150, "savefig.dpi": 300, "pdf.fonttype": 42, "svg.fonttype": "none",  # text stays text
    "ps.fonttype": 42,  # by which Matplotlib decides whether a PDF has one font, or one for each 256 letters
    "axes.titley": 1.0,  # above the panel; looking for what else might be there takes a third of every layout
    "image.composite_image": False,  # each map in its own few pixels, not all in one large picture
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
    return split_label(label)[0]


def shown(label: str) -> str:
    """A label as figures print it: without signs that separate options.

    >>> shown("hinted:relative/max_distance=3"), shown("lbpe/forms=nine/other=each/score_scaling=none")
    ('hinted:relative, max_distance 3', 'lbpe, nine forms, unscaled scores')
    """
    text = label.replace("max_distance=", "max_distance ").replace("score_scaling=none", "unscaled scores")
    text = text.replace("/forms=nine/other=each", "/nine forms").replace("/forms=nine", "/nine forms")
    return literal(text.replace("train_max=", "n ≤ ").replace("/", ", "))


def literal(text: str) -> str:
    """A text from the data, so that a figure shows it as it is and takes no dollar for the sign of a formula."""
    return text.replace("$", r"\$")


def family(scheme: str) -> str:
    """The family a scheme is shown with: that of its wrapper, if it has one. Schemes of the user's own come last."""
    prefix, colon, _ = bare(scheme).partition(":")
    if colon and prefix in WRAPPERS:
        return prefix
    return SCHEMES[bare(scheme)].family if bare(scheme) in SCHEMES else OWN


def schemes_in_order(schemes: Iterable[str]) -> list[str]:
    """Schemes as every figure lists them: by family, the most structured first, then as they are registered.

    Options come behind the scheme they belong to, numbers by size.

    >>> schemes_in_order(["none", "rope", "ideal", "hinted:relative", "relative"])
    ['ideal', 'hinted:relative', 'relative', 'rope', 'none']
    >>> schemes_in_order(["t5", "relative/max_distance=12", "relative/max_distance=3", "relative"])
    ['t5', 'relative', 'relative/max_distance=3', 'relative/max_distance=12']
    """
    families, registered = ({name: k for k, name in enumerate(names)} for names in (FAMILY_COLOURS, SCHEMES))

    def place(label: str) -> tuple[int, int, list[tuple[int, int, str]]]:
        parts = [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", label)]
        inner = bare(label).rpartition(":")[2]
        return families.get(group(label), len(families)), registered.get(inner, len(registered)), parts

    return sorted(dict.fromkeys(schemes), key=place)


def is_own(label: str) -> bool:
    """Whether a scheme is not one of this package: registered from outside, or only named in a table."""
    name = bare(label).rpartition(":")[2]
    return name not in SCHEMES or SCHEMES.origin(name) is not None


def group(label: str) -> str:
    """What a colour stands for: the family of a scheme; each scheme of the user's own has one to itself."""
    return bare(label) if is_own(label) else family(label)


def colours(labels: Iterable[str]) -> dict[str, str]:
    """The colour of each group of the labels of a study, in order. A class of one's own may name its `colour`.

    >>> colours(["rope", "mine/k=2", "mine", "another"])
    {'rotary': '#D55E00', 'another': '#882255', 'mine': '#44AA99'}
    """
    groups = list(dict.fromkeys(map(group, schemes_in_order(labels))))
    taken = iter(itertools.cycle(OWN_COLOURS))
    return {each: FAMILY_COLOURS.get(each) or _named_colour(each) or next(taken) for each in groups}


def _named_colour(scheme: str) -> str | None:
    found = getattr(SCHEMES[scheme], "colour", None) if scheme in SCHEMES else None
    return found if isinstance(found, str) and is_color_like(found) else None


def line(scheme: str) -> dict[str, Any]:
    """Colour, line style and marker of a scheme: the same in every figure, whatever else is shown."""
    return lines([scheme])[scheme]


def lines(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The look of every label of a study; labels that differ in options alone get different line styles and markers.

    >>> looks = lines(["relative", "relative/max_distance=3"])
    >>> looks["relative"] == line("relative")
    True
    >>> looks["relative"]["marker"] == looks["relative/max_distance=3"]["marker"]
    False
    """
    found, taken, ordered = dict[str, dict[str, Any]](), set[tuple[str, int]](), schemes_in_order(labels)
    colour_of = colours(ordered)
    for label in sorted(ordered, key=lambda each: "/" in each):
        mine, first = group(label), _place(label)
        places = [k % len(MARKERS) for k in range(first, first + len(MARKERS))]
        place = next((k for k in places if (mine, k) not in taken), places[0])
        taken.add((mine, place))
        found[label] = {"color": colour_of[mine], "linestyle": LINES[place], "marker": MARKERS[place]}
    return {label: found[label] for label in ordered}


def _place(label: str) -> int:
    """Where a scheme stands within its family. The reference is drawn broken: what it hides is seen in its gaps."""
    scheme, mine = bare(label), family(label)
    inner = scheme.rpartition(":")[2]
    others = [name for name in SCHEMES if ":" in scheme or SCHEMES[name].family == mine]
    place = others.index(inner) if inner in others and not is_own(label) else 0
    return (place + (mine == REFERENCE)) % len(MARKERS)


def row_name(task: str, train_max: int) -> str:
    """A task that a study has with several training ranges, with one of them.

    >>> row_name("copy", 5)
    'copy (n ≤ 5)'
    """
    return f"{task}{RANGE}{train_max})"


def tasks_in_order(tasks: Iterable[str]) -> list[str]:
    """Tasks as they are registered: position-addressed ones, growing ones, content-addressed ones; others last.

    >>> tasks_in_order(["parity", "sort", "mine", "copy (n ≤ 10)", "copy (n ≤ 5)"])
    ['copy (n ≤ 5)', 'copy (n ≤ 10)', 'parity', 'sort', 'mine']
    """
    registered = {task: k for k, task in enumerate(TASKS)}

    def place(row: str) -> tuple[int, str, int]:
        task, _, scale = row.partition(RANGE)
        number = scale.rstrip(")")
        return registered.get(task, len(registered)), task, int(number) if number.isdigit() else 0

    return sorted(dict.fromkeys(tasks), key=place)


def saying(sentence: str, width: float = COLUMN) -> Figure:
    """A figure that has nothing to show, and says why."""
    with style():
        figure = Figure(figsize=(width, 1.1), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axis_off()
        text = literal(textwrap.fill(sentence, int(width * 16)))
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, color="#555555")
    return figure


def drawing_order(looks: dict[str, dict[str, Any]], top: str = "", marks: float = 3.0) -> dict[str, dict[str, Any]]:
    """The looks in the order to draw them, with widths by which each can be seen where all coincide.

    Unbroken lines come first, the widest at the bottom; then broken ones, which leave gaps. Label `top` is the last.
    `marks` is the size of marks.
    """
    solid = [label for label, look in reversed(looks.items()) if look["linestyle"] == "-" and label != top]
    broken = [label for label in reversed(looks) if label not in solid and label != top]
    widths = {label: 1.0 + 1.2 * k / max(1, len(solid) - 1) for k, label in enumerate(reversed(solid))}
    order = [*solid, *broken, *([top] if top in looks else [])]
    return {label: looks[label] | {"linewidth": widths.get(label, 1.1), "markersize": marks} for label in order}


def thicker(labels: Iterable[str]) -> list[Line2D]:
    """What a legend says of the widths that `drawing_order` gives; nothing where they do not differ."""
    solid = [label for label, look in lines(labels).items() if look["linestyle"] == "-"]
    words = "thicker lines: to be\nseen below others"
    return [Line2D([], [], linestyle="none", label=words)] if len(solid) > 1 else []


def handles(labels: Iterable[str], line: bool = True, marks: bool = True) -> list[Line2D]:
    """What a legend shows of schemes: the look they have in all figures, with or without line and mark."""
    without = ({} if line else {"linestyle": "none"}) | ({} if marks else {"marker": "none"})
    return [Line2D([], [], **look | without, label=shown(label)) for label, look in lines(labels).items()]


def spread_out(
    x: "pd.Series[float]", y: "pd.Series[float]", box: Box, aspect: float = 1.0, counts: Any = 1
) -> tuple[Any, Any]:
    """Points of one place laid out around it, (x, y); a lone point, and the first of many, stay where they are.

    Points at the border of what is possible are laid out inwards: no exact match above 1 is shown. `box` is the
    possible range ((left, right), (low, high)) of both, the height of the axes is `aspect` times its width, and each
    point stands for `counts` runs.

    >>> x, y = spread_out(pd.Series([0.0, 0.0, 0.0]), pd.Series([1.0, 1.0, 0.5]), ((0, 2), (0, 1)))
    >>> bool(x.min() >= 0), bool(y.max() <= 1), (x[0], y[0]), (x[2], y[2])
    (True, True, (np.float64(0.0), np.float64(1.0)), (np.float64(0.0), np.float64(0.5)))
    """
    (left, right), (low, high) = box
    wide, tall = right - left, high - low
    place = pd.Series(list(zip((x / wide / PLACE).round(), (y / tall / PLACE).round())), index=x.index)
    k = place.groupby(place).cumcount().to_numpy()
    start, end = np.zeros(len(x)), np.full(len(x), 2 * np.pi)  # the angles in which there is room
    at_left, at_top, at_bottom = (x <= left + PLACE * wide), (y >= high - PLACE * tall), (y <= low + PLACE * tall)
    for where, first, last in ((at_top, np.pi, 2 * np.pi), (at_bottom, 0.0, np.pi)):
        start, end = np.where(where, first, start), np.where(where, last, end)
    start, end = np.where(at_left & at_top, 1.5 * np.pi, start), np.where(at_left & at_bottom, 0.5 * np.pi, end)
    edge = at_left & ~at_top & ~at_bottom
    start, end = np.where(edge, -0.5 * np.pi, start), np.where(edge, 0.5 * np.pi, end)
    angle = start + (end - start) * ((k * GOLDEN / (2 * np.pi)) % 1)
    radius = SPREAD * np.sqrt(k * 2 * np.pi / (end - start)) * np.sqrt(area(counts) / MARK)
    inside_x = np.maximum(x + radius * np.cos(angle) * wide, np.minimum(x, left))
    inside_y = np.clip(y + radius * np.sin(angle) / aspect * tall, np.minimum(y, low), np.maximum(y, high))
    return inside_x, inside_y


def bins(frame: pd.DataFrame, places: dict[str, float]) -> "dict[str, pd.Series[float]]":
    """The place of each row, by columns bin_x, …: those of one place hide each other. See `gathered`."""
    return {f"bin_{name}": (frame[name].astype(float) / span / PLACE).round() for name, span in places.items()}


def gathered(frame: pd.DataFrame, places: dict[str, float], by: list[str]) -> pd.DataFrame:
    """One row for all rows that share `by` and lie at one place: the means of their coordinates, and `count`.

    `places` are the columns of the coordinates, each with the span of its axis.
    """
    own = bins(frame, places)
    grouped = frame.assign(**own).groupby([*by, *own], sort=False, dropna=False)
    found = grouped.agg(**{name: (name, "mean") for name in places}, count=(by[0], "size"))
    return found.reset_index().sort_values("count", ascending=False, kind="stable", ignore_index=True)


def area(count: Any) -> Any:
    """The area of the mark of so many runs."""
    return MARK * np.sqrt(count)


def points(axes: Axes, runs: pd.DataFrame, x: str, y: str, box: Box) -> None:
    """One mark for all runs at a place, where they are: a sector for each family of schemes, larger for more runs.

    The shape is that of the task's family. Larger marks are drawn first, so that they hide no smaller one.
    """
    own = bins(runs, {x: box[0][1] - box[0][0], y: box[1][1] - box[1][0]})
    places = [place for _, place in runs.assign(**own).groupby(["task_family", *own], sort=False, dropna=False)]
    marks: dict[str, list[Any]] = {"paths": [], "offsets": [], "sizes": [], "facecolors": []}
    for place in sorted(places, key=len, reverse=True):
        end, at, mark = 0.0, (place[x].mean(), place[y].mean()), TASK_MARKS[place["task_family"].iloc[0]]
        for colour, count in place["colour"].value_counts(sort=False).items():
            start, end = end, end + count / len(place)
            for name, value in zip(marks, (sector(mark, start, end), at, area(len(place)), colour)):
                marks[name].append(value)
    look: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.3, "clip_on": False, "zorder": 3}
    where: dict[str, Any] = {
        "transform": IdentityTransform(),
        "offset_transform": axes.transData,
    }  # sizes are those of the paper
    axes.add_collection(PathCollection(**marks, **look, **where))


def sector(mark: str, start: float, end: float) -> Path:
    """A convex mark, or a part of it: from `start` to `end` of a turn, clockwise from the top.

    >>> sector("s", 0, 0.25).vertices[2:].tolist()  # of a square its upper right quarter
    [[0.0, 0.0], [0.0, 0.5], [0.5, 0.5], [0.5, 0.0], [0.0, 0.0]]
    """
    style = MarkerStyle(mark)
    whole = style.get_path().transformed(style.get_transform())
    if end - start > 1 - 1e-9:
        return whole
    outline = np.asarray(whole.to_polygons()[0])[:-1]
    turns = np.arctan2(outline[:, 0], outline[:, 1]) / (2 * np.pi) % 1
    order = np.argsort(turns)
    at = np.array([start, *(turn for turn in turns[order] if start < turn < end), end])
    arc = np.column_stack([np.interp(at, turns[order], outline[order, axis], period=1) for axis in (0, 1)])
    corners = np.vstack([[0, 0], arc, [0, 0]])
    box = [(-0.5, -0.5), (0.5, 0.5)]  # moved to and not drawn, so that a part has the scale of the whole
    return Path(np.vstack([box, corners]), [Path.MOVETO] * 3 + [Path.LINETO] * (len(corners) - 1))


def family_handles(runs: pd.DataFrame) -> list[Line2D]:
    """Colours of families of schemes, shapes of families of tasks (if there are several), and sizes of marks."""
    plain: dict[str, Any] = {"linestyle": "none", "markersize": 4}
    found = [
        Line2D([], [], **plain, marker="o", color=colour, label=literal(FAMILY_WORDS.get(each, each)))
        for each, colour in colours(runs["label"]).items()
    ]
    kinds = [kind for kind in TASK_MARKS if (runs["task_family"] == kind).any()]
    for kind in kinds if len(kinds) > 1 else ():
        found.append(Line2D([], [], **plain, marker=TASK_MARKS[kind], color="0.6", label=f"{kind or 'other'} task"))
    several: dict[str, Any] = {"linestyle": "none", "markersize": 4 * np.sqrt(area(20) / area(1))}
    return [*found, Line2D([], [], **several, marker="o", color="0.6", label="larger: more runs")]
