"""Figures as PGF, for ``\\input`` in LaTeX: lines are drawn by the document, letters set in its fonts.

Matplotlib asks a running LaTeX how wide its letters are, and how to include a picture. We take the widths of its own
font, and ``\\includegraphics``: that needs no LaTeX here, and the file is the same everywhere. Most text is placed by
its anchor and does not depend on the widths.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import matplotlib as mpl
from matplotlib.backends import backend_pgf
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure

from lengthlens.analyses.tables import LATEX
from lengthlens.files import write_whole

PLAIN = {"pgf.texsystem": "pdflatex", "pgf.rcfonts": False}  # no font of ours: that of the document
SIGNS = {"◇": r"$\diamond$", "✓": r"$\surd$", "·": r"$\cdot$", "…": r"\ldots{}", "ϕ": r"$\varphi$"}


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
