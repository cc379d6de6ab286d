"""Every finding, one line each, and its figure and tables: on axes, or as files.

`lengthlens figures` and the page follow from `findings`.

To add one from outside::

    @lengthlens.register
    class Mine(Finding):
        name, title, shows = "mine", "What I found", "One number for each run."

        def draw(self, study, canvas):
            axes = canvas.panel(3.4, 2.2)  # the usual width and height, in inches
            axes.plot(study.runs["steps"], study.runs["label"], "o")
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas, Given, save
from lengthlens.analyses.curves import Extrapolation, Growth
from lengthlens.analyses.forecast import ForecastOfRuns
from lengthlens.analyses.interventions import PrunedRuns, RepairedRuns
from lengthlens.analyses.learned import LearnedRelations, ReadoutTransfer
from lengthlens.analyses.outcome import VerdictAndOutcome
from lengthlens.analyses.pola import LinearAttention
from lengthlens.analyses.prediction import Front, Indices, Sensitivity
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import indices
from lengthlens.errors import UserError, unknown
from lengthlens.files import make_directory, write_whole
from lengthlens.plugins.registry import Extensible

OURS: tuple[Finding, ...] = (
    Front(), ForecastOfRuns(), Extrapolation(), Indices(), Sensitivity(), VerdictAndOutcome(), PrunedRuns(),
    RepairedRuns(), ReadoutTransfer(), LearnedRelations(), LinearAttention(),
)  # fmt: skip
FORMATS = ("pdf", "png", "svg", "pgf")
TABLES = "tables"  # the name that asks for all tables

FINDINGS: Extensible[Finding] = Extensible("figure", {finding.name: finding for finding in OURS})


def findings(study: Study | None = None) -> dict[str, Finding]:
    """All findings by name: those registered, and the growth of each complexity that a probe measures, or a study has.

    A finding that the study has nothing of is among them if it is registered: it says what is missing.
    """
    grown = [Growth(probe) for probe in (study.indices if study else indices()) if probe.growth]
    return {**FINDINGS, **{finding.name: finding for finding in grown}}


def plot(
    name: str,
    study: Study | pd.DataFrame | str | Path,
    ax: Given | None = None,
    *,
    width: float | None = None,
    height: float | None = None,
    legend: bool = True,
    tasks: Iterable[str] = (),
    schemes: Iterable[str] = (),
    seeds: Iterable[int] = (),
) -> Figure:
    """Draw one figure of a study, or of those `tasks`, `schemes` and `seeds` of it that are named.

    `name` is one of `lengthlens.analyses.findings.findings`, `study` a table as `ll.study` makes it, or its file. The
    figure is `width` inches wide (3.3 is a column of a paper, 7 a page) and `height` high, both as it usually is if not
    given. With `ax` it is drawn on axes that you have: one, or a dictionary of them by the names of the figure's
    panels, of which those that you give are drawn. `legend` may be switched off. Returns the Matplotlib figure.

    What the study lacks is a `MissingError` with a sentence; a name that does not exist is a `UserError`.

    >>> from matplotlib.figure import Figure
    >>> table, axes = "figures/study/study.parquet", Figure().subplots(1, 2)
    >>> figure = plot("extrapolation", table, {"copy": axes[0], "parity": axes[1]}, schemes=["rope", "lbpe"])
    >>> figure is axes[0].figure, float(plot("extrapolation", table, width=3.3).get_figwidth())
    (True, 3.3)
    """
    known = findings()
    if name not in known:
        raise unknown("figure", name, known)
    part, canvas = Study.of(study).select(tasks, schemes, seeds), Canvas(ax, width, height, legend)
    with theme.style():
        known[name].draw(part, canvas)
    return canvas.figure


class Drawn(NamedTuple):
    """The files that were written, and by name a sentence for each figure or table that has nothing to show."""

    files: list[Path]
    missing: dict[str, str]


def draw(
    table: pd.DataFrame | Study | str | Path,
    names: Sequence[str] = (),
    out: str | Path = "figures",
    formats: Sequence[str] = ("pdf", "png"),
    *,
    held_out: Sequence[str] = (),
    width: float | None = None,
    height: float | None = None,
    tasks: Sequence[str] = (),
    schemes: Sequence[str] = (),
    seeds: Sequence[int] = (),
    csv: bool = False,
    report: Callable[[str], None] | None = None,
) -> Drawn:
    """Write the figures and tables of a study, in seconds; the same study gives the same bytes.

    `table` is a study, as `ll.study` makes it, or its file. `names` are findings, each with a figure and
    perhaps tables, and "tables" stands for the tables of all; no names mean everything. Figures go to `out` in each of
    the `formats` (pdf, png, svg, pgf), `width` inches wide and `height` high (as usual if None), and with `csv` the
    numbers that each shows beside it; tables go to `out`/tables in Markdown, LaTeX and csv. Only `tasks`, `schemes` and
    `seeds` that are named count, all if none are. Tasks `held_out` are reported on their own, too. `report` is told
    each name.

    A figure for which the study lacks something is left out, and drawn as a sentence if it was asked for by name; the
    sentence is in `missing`, too. A name or a format that does not exist is a `UserError`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     drawn = draw("figures/study/study.parquet", ["extrapolation"], folder, formats=["png"], tasks=["copy"])
    >>> [path.name for path in drawn.files], drawn.missing
    (['extrapolation.png', 'cells.md', 'cells.tex', 'cells.csv'], {})
    """
    check_names(names, formats)
    study = Study.of(table, held_out or None).select(tasks, schemes, seeds)
    tell, files = report or (lambda name: None), list[Path]()
    for name, finding in findings(None if names else study).items():
        tell(name)
        if not names or name in names:
            drawing = study.drawing(finding, width, height)
            for kind in formats if names or name not in study.missing else ():
                files.append(Path(out) / f"{finding.name}.{kind}")
                save(drawing.figure, files[-1])
            for part, numbers in drawing.data.items() if csv else ():
                files.append(Path(out) / f"{'-'.join(filter(None, [finding.name, part]))}.csv")
                write_whole(files[-1], numbers.to_csv(index=False, lineterminator="\n").encode())
        if not names or name in names or TABLES in names:
            make_directory(Path(out) / TABLES)
            for table_name, each in study.tables(finding).items():
                for ending, text in (("md", each.markdown()), ("tex", each.latex()), ("csv", each.csv())):
                    files.append(Path(out) / TABLES / f"{table_name}.{ending}")
                    write_whole(files[-1], text.encode())
    return Drawn(files, study.missing)


def check_names(names: Sequence[str], formats: Sequence[str]) -> None:
    """Refuse names and formats that do not exist."""
    for kind, given, known in (("figure", names, (*findings(), TABLES)), ("format", formats, FORMATS)):
        for name in given:
            if name not in known:
                raise unknown(kind, name, known)
    if not formats:
        raise UserError(f"give at least one format: {', '.join(FORMATS)}")
