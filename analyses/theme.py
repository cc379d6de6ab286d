"""One place for the look of every figure: order and colour of schemes, fonts, widths, panels, legends, marks.

Colours are those of Okabe and Ito, which readers with any form of colour blindness can tell apart. A colour stands for
a family of schemes; within a family, line style and marker tell them apart, so that nothing hangs on colour alone.
"""

import itertools
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like
from matplotlib.lines import Line2D
from numpy.typing import NDArray

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
    "accumulated": "#661100", "relative": ORANGE, "rotary": VERMILION, "continuous": "#DDCC77",
    "windowed": "#117733", "dropped": "#AA4466", "absolute": GREY, "randomized": "#B8A04A", "none": BLACK,
}  # fmt: skip
# Of schemes that are not of this package, one after the other: Tol's muted colours that are not like one above.
OWN = "your own"
OWN_COLOURS = ("#882255", "#44AA99", "#332288", "#999933", "#AA4499", "#117733")
FAMILY_WORDS = {
    "circuit": "ideal", "hinted": "with Scale Hint", "task-given": "given by the task", "none": "none (NoPE)"
}  # fmt: skip
TASK_MARKS = {"position-addressed": "o", "growing": "s", "content-addressed": "^", "": "D"}
JITTER = 0.025  # of the width and height of the axes, by which a mark may be moved so that it can be seen
LINES = (
    *("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 3))),
    *((0, (8, 2)), (0, (1, 3)), (0, (6, 1, 1, 1)), (0, (2, 2))),
)
REFERENCE = "circuit"  # the family of `ideal`, which is given what others have to learn
RANGE = " (n ≤ "  # between a task and its training range
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")

# What a verdict looks like: colour and sign of the cell. All differ in lightness as well.
VERDICTS = {
    "possible": (BLUE, "✓"), "impossible": ("#FBD9A2", ""), "task-limited": (GREY, "–"), "open": (PALE, "?"),
    "refused": ("white", "×"),
}  # fmt: skip

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
    wishes = {each: getattr(SCHEMES[each], "colour", None) for each in groups if each in SCHEMES}
    named = {each: wish for each, wish in wishes.items() if isinstance(wish, str) and is_color_like(wish)}
    return {each: FAMILY_COLOURS.get(each) or named.get(each) or next(taken) for each in groups}


def lines(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, line style and marker of every label of a study: the same in every figure, whatever else is shown.

    Labels that differ in options alone get different line styles and markers.

    >>> looks = lines(["relative", "relative/max_distance=3"])
    >>> looks["relative"] == lines(["relative"])["relative"]
    True
    >>> looks["relative"]["marker"] == looks["relative/max_distance=3"]["marker"]
    False
    """
    result, taken, ordered = dict[str, dict[str, Any]](), set[tuple[str, int]](), schemes_in_order(labels)
    colour_of = colours(ordered)
    for label in sorted(ordered, key=lambda each: "/" in each):
        mine, scheme, inner = group(label), bare(label), bare(label).rpartition(":")[2]
        # Where it stands in its family. The reference is drawn broken: what it hides is seen in its gaps.
        others = [name for name in SCHEMES if ":" in scheme or SCHEMES[name].family == family(label)]
        first = others.index(inner) if inner in others and not is_own(label) else 0
        first = (first + (family(label) == REFERENCE)) % len(MARKERS)
        places = [k % len(MARKERS) for k in range(first, first + len(MARKERS))]
        place = next((k for k in places if (mine, k) not in taken), places[0])
        taken.add((mine, place))
        result[label] = {"color": colour_of[mine], "linestyle": LINES[place], "marker": MARKERS[place]}
    return {label: result[label] for label in ordered}


def task_family(task: str) -> str:
    """The family of a task; empty for one that is not registered."""
    return TASKS[task].family if task in TASKS else ""


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
    words = "thicker lines lie\nbeneath others"
    return [Line2D([], [], linestyle="none", label=words)] if len(solid) > 1 else []


def handles(labels: Iterable[str], line: bool = True, marks: bool = True) -> list[Line2D]:
    """What a legend shows of schemes: the look they have in all figures, with or without line and mark."""
    without = ({} if line else {"linestyle": "none"}) | ({} if marks else {"marker": "none"})
    return [Line2D([], [], **look | without, label=shown(label)) for label, look in lines(labels).items()]


def jitter(axes: Axes, number: int) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """Small moves (x, y) of so many marks, so that those at one place can all be seen; the same every time."""
    random = np.random.default_rng(0)
    angle, radius = 2 * np.pi * random.random(number), JITTER * np.sqrt(random.random(number))
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    return radius * np.cos(angle) * (right - left), radius * np.sin(angle) * (high - low)


def points(axes: Axes, runs: pd.DataFrame, x: str, y: str) -> None:
    """A mark for each run, near its place (see `jitter`): colour by family of schemes, shape by family of tasks.

    `runs` has the columns task and label; the limits of the axes are set. Marks are in random order, so that no family
    lies above all others.
    """
    shuffled = runs.sample(frac=1, random_state=0)
    colour_of = colours(runs["label"])
    right, up = jitter(axes, len(runs))
    at_x, at_y = shuffled[x].astype(float) + right, shuffled[y].astype(float) + up
    look: dict[str, Any] = {"s": 8, "edgecolors": "white", "linewidths": 0.25, "clip_on": False, "zorder": 3}
    colour, kinds = shuffled["label"].map(group).map(colour_of), shuffled["task"].map(task_family)
    for kind in kinds.unique():
        mine = kinds == kind
        axes.scatter(at_x[mine], at_y[mine], c=list(colour[mine]), marker=TASK_MARKS[kind], **look)


def family_handles(runs: pd.DataFrame) -> list[Line2D]:
    """What a legend says of `points`: colours of families of schemes, and shapes of families of tasks if several."""
    plain: dict[str, Any] = {"linestyle": "none", "markersize": 4}
    result = [
        Line2D([], [], **plain, marker="o", color=colour, label=literal(FAMILY_WORDS.get(each, each)))
        for each, colour in colours(runs["label"]).items()
    ]
    kinds = set(runs["task"].map(task_family))
    for kind, mark in TASK_MARKS.items():
        if kind in kinds and len(kinds) > 1:
            result.append(Line2D([], [], **plain, marker=mark, color="0.6", label=f"{kind or 'other'} task"))
    return [*result, Line2D([], [], linestyle="none", label="each network is one mark,\nslightly moved")]
