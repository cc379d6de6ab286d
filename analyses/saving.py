"""A figure as a file: PDF, PNG, SVG, or PGF for ``\\input`` in LaTeX. The same figure is the same bytes.

In PGF, lines are drawn by the document and letters set in its fonts. For it Matplotlib asks a running LaTeX how wide
its letters are, and how to include a picture. We take the widths of its own font, and ``\\includegraphics``: that needs
no LaTeX here, and the file is the same everywhere. Most text is placed by its anchor and does not depend on the widths.
"""

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import matplotlib as mpl
from fontTools import subset  # type: ignore[import-untyped]
from matplotlib.backends import backend_pgf
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from PIL import Image

from lengthlens.analyses import theme
from lengthlens.analyses.tables import LATEX
from lengthlens.errors import UserError
from lengthlens.files import make_directory, write_whole

PLAIN = {"pgf.texsystem": "pdflatex", "pgf.rcfonts": False}  # no font of ours: that of the document
SIGNS = {"◇": r"$\diamond$", "✓": r"$\surd$", "·": r"$\cdot$", "…": r"\ldots{}", "ϕ": r"$\varphi$"}


LAYOUT = ("GDEF", "GPOS", "GSUB", "MATH", "kern")  # tables by which a program sets letters; those of a PDF are set


def without_layout(*args: Any, load: Any = subset.load_font, **options: Any) -> Any:
    """A font as fontTools loads it, without these tables: to read and cut them takes most of the time of a font."""
    font = load(*args, **options)
    for table in filter(font.__contains__, LAYOUT):
        del font[table]
    return font


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all, at the resolution of all figures; the same figure is the same bytes."""
    kind, formats = path.suffix[1:], figure.canvas.get_supported_filetypes()
    if kind not in formats:
        raise UserError(f"cannot draw into '{path}': the formats are {', '.join(sorted(formats))}")
    make_directory(path.parent)
    if kind == "pgf":
        with theme.style():
            write_pgf(figure, path)
        return
    data = io.BytesIO()
    without_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with theme.style(), patch.object(subset, "load_font", without_layout):
        figure.savefig(data, format={"png": "rgba"}.get(kind, kind), metadata=without_date)
    write_whole(path, opaque(data.getvalue(), figure) if kind == "png" else data.getvalue())


def opaque(pixels: bytes, figure: Figure) -> bytes:
    """A drawn figure as PNG: without transparency, of which it has none, it is as small and made in half the time."""
    dpi, data = theme.RC["savefig.dpi"], io.BytesIO()
    wide = int(figure.get_figwidth() * dpi)
    image = Image.frombuffer("RGBA", (wide, len(pixels) // 4 // wide), pixels, "raw", "RGBA", 0, 1).convert("RGB")
    image.save(data, "png", dpi=(dpi, dpi), compress_level=3)
    return data.getvalue()


def write_pgf(figure: Figure, path: Path) -> None:
    """Write a figure as PGF, with pictures that it contains (heat maps) as files beside it."""
    measure: Any = RendererAgg(1, 1, figure.dpi)  # type: ignore[no-untyped-call]

    def size(self: Any, text: str, font: Any, is_math: Any) -> Any:
        return measure.get_text_width_height_descent(text, font, is_math)

    with TemporaryDirectory() as folder, mpl.rc_context(PLAIN):  # type: ignore[arg-type]
        with (
            patch.object(backend_pgf.RendererPgf, "get_text_width_height_descent", size),
            patch.object(backend_pgf, "_get_image_inclusion_command", lambda: r"\includegraphics"),
        ):
            figure.savefig(Path(folder) / path.name, format="pgf", dpi=figure.dpi)
        for made in sorted(Path(folder).iterdir()):
            data = made.read_bytes()
            write_whole(path.with_name(made.name), spelled(data.decode()).encode() if made.suffix == ".pgf" else data)


def spelled(text: str) -> str:
    """Letters that every LaTeX knows.

    >>> spelled("ι ≤ 3")
    '$\\\\iota$ $\\\\le$ 3'
    """
    signs = SIGNS | {letter: command for letter, command in LATEX.items() if not letter.isascii()}
    return "".join(signs.get(letter, letter) for letter in text)
