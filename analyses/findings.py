"""Every finding, one line each. Figures, tables, `lengthlens figures` and the page follow from `findings`.

To add one from outside::

    @lengthlens.register
    class Mine(Finding):
        name, title, shows = "mine", "What I found", "One number for each run."

        def draw(self, study, canvas):
            axes = canvas.panel(3.4, 2.2)  # the usual width and height, in inches
            axes.plot(study.runs["steps"], study.runs["label"], "o")
"""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas, Given
from lengthlens.analyses.curves import Extrapolation, Growth
from lengthlens.analyses.forecast import ForecastOfRuns
from lengthlens.analyses.interventions import PrunedRuns, RepairedRuns
from lengthlens.analyses.learned import LearnedRelations, ReadoutTransfer
from lengthlens.analyses.outcome import VerdictAndOutcome
from lengthlens.analyses.pola import LinearAttention
from lengthlens.analyses.prediction import Front, Indices, Sensitivity
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import indices
from lengthlens.analyses.tables import Table
from lengthlens.errors import unknown
from lengthlens.plugins.registry import Extensible

OURS: tuple[Finding, ...] = (
    Front(), ForecastOfRuns(), Extrapolation(), Indices(), Sensitivity(), VerdictAndOutcome(), PrunedRuns(),
    RepairedRuns(), ReadoutTransfer(), LearnedRelations(), LinearAttention(),
)  # fmt: skip
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


def all_tables(study: Study) -> dict[str, Table]:
    """The tables of all findings, by name."""
    return {name: table for finding in findings(study).values() for name, table in study.tables(finding).items()}
