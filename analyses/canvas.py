"""What a finding draws on: a new figure of any width, or axes that the caller has; the numbers it drew; and its file.

A figure consists of named panels. Without axes, panels are laid out for the width: as many beside each other as fit,
and the legend below them in as many columns as fit. With axes, only the panels that were given are drawn.

A figure is saved as PDF, PNG, SVG, or as PGF for ``\\input`` in LaTeX, where the document draws the lines and sets the
letters in its own fonts.
"""

import io
import math
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, ParamSpec, cast

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.table import MissingError
from lengthlens.analyses.tables import LATEX
from lengthlens.errors import UserError, unknown
from lengthlens.files import make_directory, write_whole

Given = Axes | Mapping[str, Axes]
Arguments = ParamSpec("Arguments")
LETTER = 0.048  # inches of a letter of a legend, on average
HANDLE = 0.5  # inches of the sign before it, and of the gap behind it
ROW = 0.155  # inches of a line of a legend


class Canvas:
    """A figure of its own, `width` inches wide and `height` high (as the finding has it, if None), or axes `ax`.

    `legend` says whether one is drawn: below a figure of its own, inside the first axes that were given.

    >>> canvas = Canvas(width=3.3)
    >>> list(canvas.panels(["copy", "sort", "parity"], theme.PAGE, 1.5, across=3)), float(canvas.figure.get_figwidth())
    (['copy', 'sort', 'parity'], 3.3)
    >>> canvas.first_column, canvas.last_row
    (['copy', 'parity'], ['sort', 'parity'])
    """

    def __init__(
        self, ax: Given | None = None, width: float | None = None, height: float | None = None, legend: bool = True
    ) -> None:
        for name, size in (("width", width), ("height", height)):
            if size is not None and not 0.5 <= size <= 100:
                raise UserError(f"{name} {size:g} is no size in inches: a column of a paper is 3.3 wide, a page 7")
        self.given, self.height, self.shows_legend = ax, height, legend
        self._width = width
        self.own = ax is None
        self.data: dict[str, pd.DataFrame] = {}  # by part, what was drawn
        self.first_column: list[str] = []
        self.last_row: list[str] = []
        self._axes: dict[str, Axes] = {}
        self._figure: Figure | None = None

    def width(self, usual: float) -> float:
        """The width asked for, else the usual one."""
        return self._width or usual

    @property
    def narrow(self) -> bool:
        """Whether it is less wide than a page by much: a column of a paper."""
        return self._width is not None and self._width < theme.NARROW

    @property
    def figure(self) -> Figure:
        """The figure that was drawn, or that the axes given belong to."""
        if self._figure is None:
            raise MissingError("nothing was drawn")
        return self._figure

    def panels(
        self, names: Sequence[str], width: float, panel: float, *, across: int, least: float = 1.5, more: float = 0.0,
        most: float = theme.PAGE_HEIGHT, ratios: Sequence[float] | None = None, legend: Sequence[Artist] = (),
        **share: Any,
    ) -> dict[str, Axes]:  # fmt: skip
        """An axes for each name: those given, or new ones, at most `across` beside each other, each `least` inches.

        `width` is the usual one and `panel` the height of a panel, of which a figure has so many; `legend` are its
        handles, `more` is the height of all else, and `most` that of the figure at most. `ratios` are of the widths of
        panels side by side, if so many are, and `share` is as in `Figure.subplots`.
        """
        if self.given is not None:
            given = {names[0]: self.given} if isinstance(self.given, Axes) else dict(self.given)
            if isinstance(self.given, Axes) and len(names) > 1:
                why = "give axes by these names, or select one"
                raise UserError(f"this figure has the panels {', '.join(names)}: {why}")
            for name in given:
                if name not in names:
                    raise unknown("panel", name, names)
            self._axes = {name: given[name] for name in names if name in given}
            self.first_column = self.last_row = list(self._axes)
            self._figure = cast(Figure, next(iter(self._axes.values())).get_figure(root=True))
            self._legend(legend)
            return self._axes
        wide = self.width(width)
        across = max(1, min(across, len(names), int(wide / least)))
        down = math.ceil(len(names) / across)
        lines = math.ceil(len(legend) / legend_columns(legend, wide)) + 1 if legend else 0
        size = (wide, self.height or min(panel * down + more + ROW * lines, most))
        self._figure = Figure(figsize=size, layout="constrained")
        ratios = ratios if ratios and across == len(ratios) else None
        grid = self._figure.subplots(down, across, squeeze=False, width_ratios=ratios, **share)
        for spare in grid.flat[len(names) :]:
            spare.set_axis_off()
        self.first_column, self.last_row = list(names[::across]), list(names[-across:])
        self._axes = dict(zip(names, grid.flat))
        for name in self.last_row:  # of shared axes only the lowest row has numbers, and a spare one may be below
            self._axes[name].tick_params(labelbottom=True)
        self._legend(legend)
        return self._axes

    def panel(self, width: float, height: float, name: str = "figure", legend: Sequence[Artist] = ()) -> Axes:
        """The axes of a figure that has only one."""
        return self.panels([name], width, height, across=1, legend=legend)[name]

    def say(self, sentence: str) -> None:
        """In place of a figure: why there is none."""
        wide = self.width(theme.COLUMN)
        with theme.style():
            self._figure = Figure(figsize=(wide, 1.1), layout="constrained")
            axes = self._figure.add_subplot()
            axes.set_axis_off()
            text = theme.literal(textwrap.fill(sentence, int(wide * 16)))
            axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, color="#555555")

    def label(self, x: str, y: str) -> None:
        """What the axes are, said once for each row and column of panels."""
        for name, axes in self._axes.items():
            axes.set_xlabel(x if name in self.last_row else "")
            axes.set_ylabel(y if name in self.first_column else "")

    def _legend(self, handles: Sequence[Artist]) -> None:
        """All handles, below a new figure in as many columns as fit, or inside the first of the axes given."""
        if not (self.shows_legend and handles and self._axes):
            return
        if self.own:
            columns = legend_columns(handles, self.figure.get_figwidth())
            where: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "columnspacing": 1.2}
            self.figure.legend(handles=list(handles), handlelength=2.6, **where)
        else:
            first = self.given if isinstance(self.given, Axes) else next(iter((self.given or {}).values()))
            first.legend(handles=list(handles), handlelength=2.6)


def drawn(draw: Callable[Concatenate[Canvas, Arguments], None]) -> Callable[..., Figure]:
    """A figure function from one that draws on a canvas.

    It takes the arguments behind the canvas, and by name `ax` (axes, or a dictionary of them by panel), `width` and
    `height` in inches, and `legend`; it gives the Matplotlib figure.
    """

    @wraps(draw)
    def plot(
        *args: Any,
        ax: Given | None = None,
        width: float | None = None,
        height: float | None = None,
        legend: bool = True,
        **options: Any,
    ) -> Figure:
        canvas = Canvas(ax, width, height, legend)
        with theme.style():
            draw(canvas, *args, **options)
        return canvas.figure

    return plot


def legend_columns(handles: Sequence[Artist], width: float) -> int:
    """In how many columns the entries of a legend fit into a width.

    >>> from matplotlib.lines import Line2D
    >>> handles = [Line2D([], [], label=name) for name in ("ideal", "lbpe", "hinted:relative, K=12")]
    >>> legend_columns(handles, 7.0), legend_columns(handles, 3.3), legend_columns(handles, 2.0)
    (3, 2, 1)
    """
    longest = max(len(line) for each in handles for line in str(each.get_label()).splitlines() or [""])
    return max(1, min(len(handles), int(width / (HANDLE + LETTER * longest))))


# Letters of figures that LaTeX does not know as they are; PGF is set in the document's own font, by pdflatex.
SIGNS = {letter: command for letter, command in LATEX.items() if not letter.isascii()}
SIGNS |= {"◇": r"$\diamond$", "✓": r"$\surd$", "·": r"$\cdot$", "…": r"\ldots{}", "ϕ": r"$\varphi$"}
NEW = "".join(rf"\newunicodechar{{{letter}}}{{{command}}}" for letter, command in SIGNS.items())
PGF = {"pgf.texsystem": "pdflatex", "pgf.rcfonts": False, "pgf.preamble": r"\usepackage{newunicodechar}" + NEW}
NO_DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all, at the resolution of all figures; the same figure is the same bytes.

    Matplotlib asks a LaTeX that is installed how wide the letters of a PGF file are.
    """
    kind, formats = path.suffix[1:], figure.canvas.get_supported_filetypes()
    if kind not in formats:
        raise UserError(f"cannot draw into '{path}': the formats are {', '.join(sorted(formats))}")
    make_directory(path.parent)
    with theme.style():
        if kind == "pgf":
            write_pgf(figure, path)
            return
        data = io.BytesIO()
        figure.savefig(data, format=kind, metadata=NO_DATE.get(kind))
    write_whole(path, data.getvalue())


def write_pgf(figure: Figure, path: Path) -> None:
    """Write a figure as PGF, with pictures that it contains (heat maps) as files beside it."""
    if shutil.which("pdflatex") is None:
        raise UserError(f"cannot draw into '{path}': PGF needs pdflatex, which is not installed: draw pdf, png or svg")
    with TemporaryDirectory() as folder, mpl.rc_context(PGF):  # type: ignore[arg-type]
        figure.savefig(Path(folder) / path.name, dpi=figure.dpi)
        for made in sorted(Path(folder).iterdir()):
            data = made.read_bytes()
            write_whole(path.with_name(made.name), spelled(data.decode()).encode() if made.suffix == ".pgf" else data)


def spelled(text: str) -> str:
    """Letters that every LaTeX knows.

    >>> spelled("ι ≤ 3")
    '$\\\\iota$ $\\\\le$ 3'
    """
    return "".join(SIGNS.get(letter, letter) for letter in text)
