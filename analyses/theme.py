"""One place for the look of every figure: the order and colour of schemes, fonts, and column widths.

Colours are those of Okabe and Ito, which readers with any form of colour blindness can tell apart. A colour stands for
a family of schemes; within a family, line style and marker tell them apart, so that nothing hangs on colour alone.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl

from lengthlens.models.schemes import SCHEMES, WRAPPERS

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
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's settings for one figure; those outside are left alone."""
    with mpl.rc_context(RC):
        yield


def family(scheme: str) -> str:
    """The family a scheme is shown with: that of its wrapper, if it has one. Schemes of the user's own come last."""
    prefix, colon, _ = scheme.partition(":")
    if colon and prefix in WRAPPERS:
        return prefix
    return SCHEMES[scheme].family if scheme in SCHEMES else "your own"


def in_order(schemes: Iterable[str]) -> list[str]:
    """Schemes as every figure lists them: by family, the most structured first, then as they are registered.

    >>> in_order(["none", "rope", "ideal", "hinted:relative", "relative"])
    ['ideal', 'hinted:relative', 'relative', 'rope', 'none']
    """
    families, registered = list(FAMILY_COLOURS), list(SCHEMES)

    def place(scheme: str) -> tuple[int, int]:
        own, inner = family(scheme), scheme.rpartition(":")[2]
        return (
            families.index(own) if own in families else len(families),
            registered.index(inner) if inner in registered else len(registered),
        )

    return sorted(dict.fromkeys(schemes), key=place)


def colour(scheme: str) -> str:
    return FAMILY_COLOURS.get(family(scheme), BLACK)


def line(scheme: str) -> dict[str, Any]:
    """Colour, line style and marker of a scheme: the same in every figure, whatever else is shown."""
    mine = family(scheme)
    inner = scheme.rpartition(":")[2]
    others = (
        [name for name in SCHEMES if SCHEMES[name].family == mine] if ":" not in scheme else list(SCHEMES)
    )
    place = others.index(inner) if inner in others else 0
    return {
        "color": colour(scheme),
        "linestyle": LINES[place % len(LINES)],
        "marker": MARKERS[place % len(MARKERS)],
    }
