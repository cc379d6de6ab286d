"""Probes: what can be measured on a trained network from inputs of its training range. One class and one line each.

A probe has a name, the measures that its rows are called, and, if it follows a complexity that may grow with n,
the growth curve and its invariance index. Everything else follows from `PROBES`: the table of a model or a run
(`lengthlens.probes.table`), the command ``lengthlens probe``, the study, predictors, growth figures and the page.

One from outside has ``@lengthlens.register`` above its class; CONTRIBUTING.md has an example. What is heavy is imported
in `rows`, so that listing probes stays quick.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from lengthlens.errors import UserError
from lengthlens.plugins.registry import Extensible
from lengthlens.probes.schema import Threshold

if TYPE_CHECKING:
    from lengthlens.probes.network import Context

Row = dict[str, Any]  # columns of a study, by name


class Probe(ABC):
    """What a probe is called, what its rows are, and how to make them."""

    name: str
    measures: tuple[str, ...]  # what its rows are called in the column `measure`
    words: str  # what it measures, for the help: a part of a sentence
    curves: Mapping[str, str] = {}  # measures that may grow with n, each with that of its invariance index ι
    index: str = ""  # the measure that is tried as a predictor of extrapolation: an ι, or what counts against it
    label: str = ""  # of the index in figures: "ι of measured SRC"
    short: str = ""  # of the index in tables: "ι of SRC"
    growth: str | None = None  # title of the figure of the (first) growth curve; None for no figure
    thresholds: tuple[Threshold, ...] = ()

    @property
    def curve(self) -> str:
        """The growth curve of its index; empty if it has none."""
        return next((curve for curve, index in self.curves.items() if index == self.index), "")

    @property
    def defaults(self) -> dict[str, float]:
        """The thresholds at which curves are counted, by column."""
        return {threshold.column: threshold.default for threshold in self.thresholds}

    @abstractmethod
    def rows(self, context: "Context") -> list[Row]:
        """The measurements of one network, as rows with columns of a study."""

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """What a terminal shows of a run's rows beside growth curves."""
        return []


def by_scale(measure: str, curve: Mapping[int, float], about: Row) -> list[Row]:
    """A row for each n of a curve."""
    return [{"measure": measure, "scale": n, "value": value, **about} for n, value in curve.items()]


def index_row(measure: str, curve: Mapping[int, float], about: Row) -> Row:
    """The invariance index of a curve, at its largest n."""
    return {"measure": measure, "scale": max(curve), "value": invariance_index(curve), **about}


def invariance_index(curve: Mapping[int, float]) -> float:
    """The invariance index ι: how fast a measured complexity grows with n, inside the training range.

    We define: ι is the slope of log complexity against log n, by least squares, on the upper half of the training range
    (n from train_max / 2, rounded up). 0 is invariant, 1 grows linearly. A complexity of 0 counts as 1. The conjecture
    (the paper's, for SRC) is that length generalization is possible if and only if complexity does not grow.

    Arguments:
        curve: a complexity for each n up to the largest in training, such as `MeasuredSrc.curve`.

    Result: ι; 0 for a complexity that does not grow, 1 for one that grows linearly.

    Errors: UserError if fewer than two values of n are in the upper half.

    >>> invariance_index({n: 4 for n in range(1, 11)})
    0.0
    >>> round(invariance_index({n: 3 * n for n in range(1, 11)}), 6)
    1.0
    """
    if not curve:
        raise UserError("the invariance index needs a complexity at two values of n at least, and none is given")
    used = [n for n in sorted(curve) if 2 * n >= max(curve)]
    if len(used) < 2:
        raise UserError(f"the invariance index needs two values of n at least, and there is only n = {used[0]}")
    import numpy as np

    logs = np.log([max(1.0, float(curve[n])) for n in used])
    slope = np.polyfit(np.log(used), logs, 1)[0]
    return 0.0 if np.ptp(logs) == 0 else float(slope)


def records(frame: Any) -> list[Row]:
    """A frame as rows."""
    rows: list[Row] = frame.to_dict("records")
    return rows


class Listed(NamedTuple):
    """A probe of this package as it is listed: its class, which stands beside its measurement, and what it measures."""

    home: str
    words: str


OURS = {
    "lrc": Listed("lrc.LrcProbe", "how many position codes the heads use (measured LRC)"),
    "src": Listed("src.SrcProbe", "how many operators explain its steps (measured SRC)"),
    "transfer": Listed("transfer.TransferProbe", "how far readouts transfer between steps and input sizes"),
    "pruned": Listed(
        "src.PrunedProbe",
        "the operators and the exact match beyond the range of a copy without the biases that no answer needs",
    ),
    "relation": Listed("table.RelationProbe", "the relation that was learned, where the scheme learns one"),
    "interchange": Listed(
        "interchange.InterchangeProbe", "how many operators it uses, by exchanging its states between steps"
    ),
    "stretch": Listed(
        "stretch.StretchProbe",
        "the exact match to expect on longer inputs, from short ones at the positions of long ones",
    ),
    "marks": Listed("interchange.MarksProbe", "whether it knows marks by their code or by their token"),
    "surgery": Listed("surgery.SurgeryProbe", "whether the codes of the training range repair it on longer inputs"),
}


class _Probes(Extensible[Probe]):
    """Probes by name. One of this package is imported when it is looked up: torch takes seconds, and a listing none."""

    def __getitem__(self, name: str) -> Probe:
        entry: Any = super().__getitem__(name)
        if isinstance(entry, Listed):
            module, _, kind = entry.home.rpartition(".")
            entry = self._entries[name] = getattr(import_module(f"lengthlens.probes.{module}"), kind)()
        return cast(Probe, entry)


PROBES: Extensible[Probe] = _Probes("measure", cast(Any, OURS))


def chosen(names: Iterable[str] | None = None) -> list[Probe]:
    """The probes of these names, in the order of `PROBES`; all without names."""
    wanted = PROBES.values() if names is None else [PROBES[name] for name in names]
    return [probe for probe in PROBES.values() if probe in wanted]
