"""Every finding, one line each. Figures, tables, `lengthlens figures` and the page follow from `findings`.

To add one from outside::

    @lengthlens.register
    class Mine(Finding):
        name, title, shows = "mine", "What I found", "One number for each run."

        def figure(self, study): ...
"""

from lengthlens.analyses.curves import Extrapolation, Growth
from lengthlens.analyses.forecast import ForecastOfRuns
from lengthlens.analyses.front import Front, Indices, Sensitivity
from lengthlens.analyses.learned import LearnedRelations
from lengthlens.analyses.outcome import VerdictAndOutcome
from lengthlens.analyses.pola import LinearAttention
from lengthlens.analyses.pruning import PrunedRuns
from lengthlens.analyses.records import Records
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import indices
from lengthlens.analyses.tables import Table
from lengthlens.analyses.transfer import ReadoutTransfer
from lengthlens.plugins.registry import Extensible

OURS: tuple[Finding, ...] = (
    Front(), ForecastOfRuns(), Extrapolation(), Indices(), Sensitivity(), VerdictAndOutcome(), PrunedRuns(),
    ReadoutTransfer(), LearnedRelations(), LinearAttention(), Records(),
)  # fmt: skip
FINDINGS: Extensible[Finding] = Extensible("figure", {finding.name: finding for finding in OURS})


def findings(study: Study | None = None) -> dict[str, Finding]:
    """All findings by name: those registered, and the growth of each complexity that a probe measures, or a study has.

    A finding that the study has nothing of is among them if it is registered: it says what is missing.
    """
    grown = [Growth(index) for index in (study.indices if study else indices()) if index.growth]
    return {**FINDINGS, **{finding.name: finding for finding in grown}}


def all_tables(study: Study) -> dict[str, Table]:
    """The tables of all findings, by name."""
    return {name: table for finding in findings(study).values() for name, table in study.tables(finding).items()}
