"""One place for the look of every figure: the order and colour of schemes, fonts, and column widths.

Colours are those of Okabe and Ito, which readers with any form of colour blindness can tell apart. A colour stands for
a family of schemes; within a family, line style and marker tell them apart, so that nothing hangs on colour alone.
"""

import io
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from lengthlens.errors import UserError
from lengthlens.files import make_directory, write_whole
from lengthlens.models.schemes import SCHEMES, WRAPPERS
from lengthlens.tasks import TASKS

COLUMN = 3.4  # inches: one column of a two-column paper
PAGE = 7.0  # both columns
PAGE_HEIGHT = 9.2

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#8C8C8C", "#E4E4E4"

FAMILY_COLOURS = {
    "circuit": BLUE,
    "learned relation": GREEN,
    "hinted": SKY,
    "task-given": YELLOW,
    "contextual": PURPLE,
    "relative": ORANGE,
    "rotary": VERMILION,
    "absolute": GREY,
    "randomized": "#B8A04A",
    "none": BLACK,
}
LINES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")

# What a verdict looks like: colour of the cell, colour of its letters, its sign. All differ in lightness as well.
VERDICTS = {
    "possible": (BLUE, "white", "✓"),
    "pe-limited": ("#FBD9A2", BLACK, ""),
    "task-limited": (GREY, "white", "–"),
    "content-addressed": (PALE, "#555555", "·"),
    "refused": ("white", "#555555", "×"),
}

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "lengthlens",  # names inside the file follow from it, so that the same figure is the same bytes
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's settings for one figure; those outside are left alone."""
    with mpl.rc_context(RC):
        yield


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
    return literal(text.replace("/", ", "))


def literal(text: str) -> str:
    """A text from the data, so that a figure shows it as it is and takes no dollar for the sign of a formula."""
    return text.replace("$", r"\$")


def family(scheme: str) -> str:
    """The family a scheme is shown with: that of its wrapper, if it has one. Schemes of the user's own come last."""
    scheme = bare(scheme)
    prefix, colon, _ = scheme.partition(":")
    if colon and prefix in WRAPPERS:
        return prefix
    return SCHEMES[scheme].family if scheme in SCHEMES else "your own"


def in_order(schemes: Iterable[str]) -> list[str]:
    """Schemes as every figure lists them: by family, the most structured first, then as they are registered.

    Options come behind the scheme they belong to, numbers by size.

    >>> in_order(["none", "rope", "ideal", "hinted:relative", "relative"])
    ['ideal', 'hinted:relative', 'relative', 'rope', 'none']
    >>> in_order(["t5", "relative/max_distance=12", "relative/max_distance=3", "relative"])
    ['t5', 'relative', 'relative/max_distance=3', 'relative/max_distance=12']
    """
    families, registered = list(FAMILY_COLOURS), list(SCHEMES)

    def place(label: str) -> tuple[int, int, list[tuple[int, int, str]]]:
        own, inner = family(label), bare(label).rpartition(":")[2]
        return (
            families.index(own) if own in families else len(families),
            registered.index(inner) if inner in registered else len(registered),
            [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", label)],
        )

    return sorted(dict.fromkeys(schemes), key=place)


def colour(scheme: str) -> str:
    return FAMILY_COLOURS.get(family(scheme), BLACK)


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
    found: dict[str, dict[str, Any]] = {}
    taken: set[tuple[str, int]] = set()
    ordered = in_order(labels)
    for label in [*(each for each in ordered if "/" not in each), *(each for each in ordered if "/" in each)]:
        mine, place = family(label), _place(label) % len(MARKERS)
        free = [k % len(MARKERS) for k in range(place, place + len(MARKERS))]
        place = next((k for k in free if (mine, k) not in taken), place)
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
    return {"color": colour(label), "linestyle": LINES[place % len(LINES)], "marker": MARKERS[place % len(MARKERS)]}


def tasks_in_order(tasks: Iterable[str]) -> list[str]:
    """Tasks as they are registered: position-addressed ones, growing ones, content-addressed ones; others last.

    >>> tasks_in_order(["parity", "sort", "mine", "copy"])
    ['copy', 'parity', 'sort', 'mine']
    """
    registered = list(TASKS)
    return sorted(
        dict.fromkeys(tasks), key=lambda task: (registered.index(task) if task in TASKS else len(registered), task)
    )


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
