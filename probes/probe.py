"""Probes: what can be measured on a trained network from inputs of its training range. One class and one line each.

A probe has a name, the measures that its rows are called, and, if it follows a complexity that may grow with the scale,
the growth curve and its invariance index. Everything else follows from `PROBES`: the table of a model or a run
(`lengthlens.probes.table`), the command ``lengthlens probe``, the study, predictors, growth figures and the page.

One from outside has ``@lengthlens.register`` above its class; CONTRIBUTING.md has an example. What is heavy is imported
in `rows`, so that listing probes stays quick.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from lengthlens.errors import UserError
from lengthlens.plugins.registry import Extensible
from lengthlens.probes.schema import BAR, FIDELITY, INFLUENCE, TOLERANCE, Threshold

if TYPE_CHECKING:
    from lengthlens.probes.table import Context

Row = dict[str, Any]  # columns of a study, by name


class Probe(ABC):
    """What a probe is called, what its rows are, and how to make them."""

    name: str
    measures: tuple[str, ...]  # what its rows are called in the column `measure`
    words: str  # what it measures, for the help: a part of a sentence
    curves: Mapping[str, str] = {}  # measures that may grow with the scale, each with that of its invariance index ι
    index: str | None = (
        None  # the measure that is tried as a predictor of extrapolation: an ι, or what counts against it
    )
    label: str = ""  # of the index in figures: "ι of measured SRC"
    short: str = ""  # of the index in tables: "ι of SRC"
    growth: str | None = None  # title of the figure of the (first) growth curve; None for no figure
    thresholds: tuple[Threshold, ...] = ()

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
    """A row for each scale of a curve."""
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


class LrcProbe(Probe):
    """Measured LRC of each head and (rows without a layer) of all; r2: how position-only each head is."""

    name, measures, curves, index = "lrc", ("lrc", "r2", "iota_lrc"), {"lrc": "iota_lrc"}, "iota_lrc"
    label, short, growth = "ι of measured LRC", "ι of LRC", "measured LRC"
    words = "how many position codes the heads use (measured LRC)"
    thresholds = (TOLERANCE,)

    def rows(self, context: "Context") -> list[Row]:
        from lengthlens.probes.lrc import measured_lrc

        subject, relation = context.coded
        found = measured_lrc(
            subject, *context.range, relation=relation, layers=context.layers, generator=context.generator
        )
        codes = {"relation": relation.words}
        about = {**codes, **self.defaults}
        rows = [{**row, "measure": "lrc", **about} for row in _records(found.counts())]
        rows += by_scale("lrc", found.curve, about)
        rows += [{**row, "measure": "r2", **codes} for row in _records(found.r2)]
        for tolerance in TOLERANCE.tried:
            rows.append(index_row("iota_lrc", found.curve_at(tolerance), {**codes, "tolerance": tolerance}))
        return rows


class SrcProbe(Probe):
    """Measured SRC; signatures: the same without the test of fidelity."""

    name, measures, curves, index = "src", ("src", "signatures", "iota_src"), {"src": "iota_src"}, "iota_src"
    label, short, growth = "ι of measured SRC", "ι of SRC", "measured SRC"
    words = "how many operators explain its steps (measured SRC)"
    thresholds = (INFLUENCE, FIDELITY)

    def rows(self, context: "Context") -> list[Row]:
        from lengthlens.probes.src import measured_src_at

        subject, relation = context.coded
        found = measured_src_at(INFLUENCE.tried, subject, *context.range, relation, context.generator)
        usual, codes = found[INFLUENCE.tried.index(INFLUENCE.default)], {"relation": relation.words}
        about = {**codes, **self.defaults}
        rows = by_scale("src", usual.curve, about) + by_scale("signatures", usual.signatures(), about)
        for each, fidelity in product(found, FIDELITY.tried):
            tried = {"influence": each.threshold, "fidelity": fidelity}
            rows.append(index_row("iota_src", each.curve_at(fidelity), {**codes, **tried}))
        return rows


class TransferProbe(Probe):
    """Accuracy of readouts from each layer's output, fitted at fit_scale and tested at scale, with its control.

    cover: the least number of those readouts, for each scale.
    """

    name, measures, index = "transfer", ("transfer", "cover", "iota_cover"), "iota_cover"
    label, short, curves = "ι of cover number", "ι of cover", {"cover": "iota_cover"}
    words = "how far readouts transfer between steps and scales"
    thresholds = (BAR,)

    def rows(self, context: "Context") -> list[Row]:
        from lengthlens.probes.transfer import readout_transfer

        found = readout_transfer(
            context.subject, *context.range, beyond=context.beyond, layers=context.layers, generator=context.generator
        )
        layer = {hook: int(hook.split(".")[1]) for hook, _ in found.accuracy}  # 1 in blocks.1.hook_resid_post
        rows = _records(found.by_scale())
        for row in rows:
            row.update(measure="transfer", value=row.pop("accuracy"), layer=layer[row.pop("hook")])
        for hook, readout in found.accuracy:
            about = {"layer": layer[hook], "readout": readout}
            covers = {bar: found.cover(hook, readout, bar) for bar in BAR.tried}
            rows += by_scale("cover", covers[BAR.default], {**about, **self.defaults})
            rows += [index_row("iota_cover", cover, {**about, "bar": bar}) for bar, cover in covers.items()]
        return rows


class PrunedProbe(Probe):
    """A copy without what answers in range do not need: ι of its SRC, its SRC, and exact match beyond the range."""

    name, measures, curves = "pruned", ("pruned", "pruned_src", "pruned_exact_match"), {"pruned_src": "pruned"}
    words = "the operators and the exact match beyond the range of a copy without the biases that no answer needs"
    thresholds = (INFLUENCE, FIDELITY)
    factors = (2, 10)  # times the training range: where the copy is tried
    samples = 200  # instances of each

    def rows(self, context: "Context") -> list[Row]:
        from lengthlens.probes.network import exact_by_scale, reachable
        from lengthlens.probes.src import measured_src

        if context.pruned is None:
            return [{"measure": "pruned", "reason": "nothing to prune: no bias for each code"}]
        (subject, relation), task, generator = context.pruned, context.task, context.generator
        about = {"relation": relation.words, "samples": self.samples, **self.defaults}
        curve = measured_src(subject, *context.range, relation=relation, generator=generator).curve
        far = reachable(subject, task, [factor * context.train_max for factor in self.factors])
        exact = exact_by_scale(subject, task, far, self.samples, generator)
        rows = [index_row("pruned", curve, about), *by_scale("pruned_src", curve, about)]
        return rows + by_scale("pruned_exact_match", exact, about)

    def lines(self, rows: Sequence[Row]) -> list[str]:
        exact = [row for row in rows if row["measure"] == "pruned_exact_match"]
        texts = ", ".join(f"{row['value']:.2f} at n = {row['scale']}" for row in exact)
        found = {f"pruned to {row['relation']}": f"  exact match of the pruned copy: {texts}" for row in exact}
        return [line for pair in found.items() for line in pair]


class RelationProbe(Probe):
    """The relation that the heads learned, pruned, where the scheme learns one: a row for each form and value.

    The strongest come first; `value` is the bias, `form` the linear form and `form_value` its value.
    """

    name, measures = "relation", ("relation",)
    words = "the relation that was learned, where the scheme learns one"

    def rows(self, context: "Context") -> list[Row]:
        from lengthlens.models.schemes.scheme import scheme_of

        own = scheme_of(context.subject.model)
        if own is None or not own.learns_relation or context.pruned is None:
            return []
        subject, relation = context.pruned
        scheme = scheme_of(subject.model) or own
        rows = []
        for layer, head, form, value, _, bias in scheme.entries():
            row = {"measure": "relation", "layer": layer, "head": head, "relation": relation.words}
            rows.append({**row, "form": str(form), "form_value": value, "value": round(bias, 6)})
        return rows


class InterchangeProbe(Probe):
    """SRC by exchanging states between steps, its ι, and exact match with states taken from shorter inputs."""

    name, curves, index = "interchange", {"interchange_src": "iota_interchange"}, "iota_interchange"
    label, short, growth = "ι of interchange SRC", "ι of interchange", "interchange SRC"
    measures = ("interchange_src", "iota_interchange", "interchange_exact_match")
    words = "how many operators it uses, by exchanging its states between steps"
    thresholds = (FIDELITY,)  # the least agreement of two steps

    def rows(self, context: "Context") -> list[Row]:
        from lengthlens.probes.interchange import interchange_src

        if context.task.family == "content-addressed":
            return [
                {"measure": "interchange_src", "reason": "the sources follow from the tokens: no twins by position"}
            ]
        found = interchange_src(context.subject, *context.range, agreement=FIDELITY.default)
        rows = [index_row("iota_interchange", found.curve, self.defaults)]
        rows += by_scale("interchange_src", found.curve, self.defaults)
        return rows + by_scale("interchange_exact_match", {context.train_max: found.exchanged}, self.defaults)


class StretchProbe(Probe):
    """Exact match predicted at longer scales from inputs of the training range; where it falls below 0.9, and why.

    Its index is what is predicted to be missing at the shortest of these scales, twice the training range. There,
    part_exact_match has the codes of the long input in one part of the scheme alone, which `relation` names.
    """

    name = "stretch"
    measures = ("predicted_exact_match", "predicted_loss", "predicted_failure", "part_exact_match")
    index = "predicted_loss"
    label, short = "predicted failure", "predicted failure"
    words = "the exact match to expect on longer inputs, from short ones at the positions of long ones"

    def rows(self, context: "Context") -> list[Row]:
        from lengthlens.errors import UserError
        from lengthlens.probes.stretch import stretched_match

        try:
            found = stretched_match(context.subject, *context.range)
        except UserError as error:  # no position embedding of ours, a content-addressed task, too many positions
            return [{"measure": "predicted_exact_match", "reason": str(error)}]
        rows = []
        for scale, match, low, high in found.table[["scale", "exact_match", "low", "high"]].itertuples(index=False):
            rows.append({"measure": "predicted_exact_match", "scale": scale, "value": match, "low": low, "high": high})
        first = min(found.scales)
        rows.append({"measure": "predicted_loss", "scale": first, "value": 1 - found.at(first)})
        for words, match in found.parts.items():
            rows.append({"measure": "part_exact_match", "scale": first, "value": match, "relation": words})
        if found.fails_at is not None:
            (low, high), last = found.interval, max(found.scales)
            ends = {"low": low or last, "high": high or last}
            about = {"reason": found.cause, "relation": found.at_fault}
            rows.append({"measure": "predicted_failure", "scale": first, "value": found.fails_at, **ends, **about})
        return rows

    def lines(self, rows: Sequence[Row]) -> list[str]:
        values = [row for row in rows if row["measure"] == "predicted_exact_match" and not row["reason"]]
        texts = ", ".join(f"{row['value']:.2f} at n = {row['scale']}" for row in values)
        failures = [row for row in rows if row["measure"] == "predicted_failure"]
        fault = [
            f"predicted to fail at n = {row['value']:g}: {row['reason']} {row['relation'] or ''}" for row in failures
        ]
        parts = [row for row in rows if row["measure"] == "part_exact_match"]
        alone = ", ".join(f"{row['value']:.2f} in {row['relation']}" for row in parts)
        of_parts = [f"with the codes of n = {parts[0]['scale']} in one part alone: {alone}"] if parts else []
        return [*([f"predicted exact match: {texts}"] if texts else []), *of_parts, *map(str.strip, fault)]


class MarksProbe(Probe):
    """Where a source is a mark, how often the answer follows its code and how often its token."""

    name, measures = "marks", ("known_by_code", "known_by_content")
    words = "whether it knows marks by their code or by their token"

    def rows(self, context: "Context") -> list[Row]:
        from lengthlens.errors import UserError
        from lengthlens.probes.marks import known_by

        try:
            found = known_by(context.subject, *context.range)
        except UserError as error:  # a content-addressed task, or no mark that could be moved
            return [{"measure": "known_by_code", "reason": str(error)}]
        weighted = found[["by_code", "by_content"]].mul(found["inputs"], axis=0).sum() / found["inputs"].sum()
        about = {"scale": context.train_max, "samples": int(found["inputs"].sum())}
        return [{"measure": f"known_{name}", "value": float(value), **about} for name, value in weighted.items()]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        shares = {
            row["measure"].removeprefix("known_by_"): row["value"]
            for row in rows
            if row["measure"] in self.measures and not row["reason"]
        }
        texts = ", ".join(f"{share:.2f} by {name}" for name, share in shares.items())
        return [f"marks are known {texts}"] if texts else []


def _records(frame: Any) -> list[Row]:
    rows: list[Row] = frame.to_dict("records")
    return rows


OURS = (
    *(LrcProbe(), SrcProbe(), TransferProbe(), PrunedProbe(), RelationProbe()),
    *(InterchangeProbe(), StretchProbe(), MarksProbe()),
)
PROBES: Extensible[Probe] = Extensible("measure", {probe.name: probe for probe in OURS})


def chosen(names: Iterable[str] | None = None) -> list[Probe]:
    """The probes of these names, in the order of `PROBES`; all without names."""
    wanted = PROBES.values() if names is None else [PROBES[name] for name in names]
    return [probe for probe in PROBES.values() if probe in wanted]
