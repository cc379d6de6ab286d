"""Figures as the page holds them: pictures inside the file itself, sharp at any size."""

import base64
import io
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure

from lengthlens.analyses.gallery import FIGURES, Gallery

PIXELS = 120  # of the page for an inch of paper, so that the small letters of a paper can be read
WIDE = 5.0  # inches from which a figure is too wide for a phone, and scrolls there in a box of its own
NAMES = {"svg.fonttype": "path", "svg.hashsalt": "lengthlens"}  # letters as shapes, since a phone has other fonts


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    image: str  # a data: address; empty where there is nothing to draw
    width: int
    height: int
    wide: bool
    missing: str = ""  # why there is nothing to draw


def pictures(gallery: Gallery) -> list[Picture]:
    """All figures of a study; where something is missing, a sentence in place of the picture."""
    return [picture(name, gallery) for name in FIGURES]


def picture(name: str, gallery: Gallery) -> Picture:
    figure = gallery.figure(name)
    title, missing = FIGURES[name].shows, gallery.missing.get(name, "")
    if missing:
        return Picture(name, title, "", 0, 0, False, missing)
    width, height = figure.get_size_inches()
    return Picture(name, title, embedded(figure), round(width * PIXELS), round(height * PIXELS), width > WIDE)


def embedded(figure: Figure) -> str:
    """A figure as an address that holds it all. The same figure gives the same text: no dates, no random names."""
    drawn = io.BytesIO()
    with mpl.rc_context(NAMES):  # type: ignore[arg-type]
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode()
