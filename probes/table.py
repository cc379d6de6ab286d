"""One tidy table for a model or a run: a row for each measurement, with its thresholds."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch

from lengthlens.errors import UserError, unknown
from lengthlens.probes.invariance import invariance_index
from lengthlens.probes.lrc import TOLERANCE, measured_lrc
from lengthlens.probes.pruning import own_relation, prune
from lengthlens.probes.relations import Relation, RelationLike
from lengthlens.probes.src import FIDELITY, THRESHOLD, MeasuredSrc, measured_src, measured_src_at
from lengthlens.probes.subject import Subject, exact_by_scale, scales_up_to, task_of
from lengthlens.probes.transfer import BAR, readout_transfer
from lengthlens.runs.evaluation import ACCURATE
from lengthlens.runs.run import Run
from lengthlens.tasks import Task

ROWS = {  # what the rows of each measure are called
    "lrc": ("lrc", "r2", "iota_lrc"),
    "src": ("src", "signatures", "iota_src"),
    "transfer": ("transfer", "cover", "iota_cover"),
    "pruned": ("pruned", "pruned_src", "pruned_exact_match"),
}
MEASURES = tuple(ROWS)
FILE = "probes.parquet"

# Where ι is reported too, beside the defaults. Influence not beyond 0.4: a mark that stands for 0 in a running sum has
# an influence of one half, since half of the symbols that replace it change the sum.
TOLERANCES = (0.3, TOLERANCE, 0.7)
THRESHOLDS = (0.1, THRESHOLD, 0.4)
FIDELITIES = (0.8, FIDELITY, 0.97)
BARS = (0.8, BAR, 0.97)

PRUNED_AT = (2, 10)  # times the training range: where a pruned copy is tried
PRUNED_ROWS = 200  # instances of each

IDENTITY = ("run", "task", "scheme", "seed")
FACTS = {
    "measure": "str",
    "layer": "Int64",
    "head": "Int64",
    "readout": "str",
    "fit_scale": "Int64",
    "scale": "Int64",
    "value": "float64",
    "samples": "Int64",
    "control": "float64",
    "tolerance": "float64",
    "influence": "float64",
    "fidelity": "float64",
    "bar": "float64",
    "accurate": "bool",
    "relation": "str",
    "reason": "str",
}

Row = dict[str, Any]
Report = Callable[[str], None]


def probe_model(
    model: Callable[..., Any] | Subject,
    task: Task | None = None,
    train_max: int = 10,
    measures: Sequence[str] = MEASURES,
    *,
    relation: RelationLike | None = None,
    layers: Sequence[int] | None = None,
    beyond: Sequence[int] = (),
    seed: int = 0,
    report: Report | None = None,
) -> pd.DataFrame:
    """Every measure of a model as rows; columns as in `FACTS`.

    ============  =============================================================================================
    exact_match   of 256 instances, for each scale: whether the rest means something
    lrc           measured LRC for each scale, of each head and (without a layer) summed
    r2            how position-only each head is, for each scale
    src           measured SRC for each scale; signatures: the same without the test of fidelity
    transfer      accuracy of readouts from the layer's output, fitted at fit_scale and tested at scale; control
    cover         the least number of those readouts, for each scale
    iota_…        invariance index of lrc, src and cover, at the default thresholds and at others around them
    pruned        ι of SRC for a copy without what answers in range do not need (`probes/pruning.py`), missing where
                  there is nothing to prune; pruned_src: its SRC; pruned_exact_match: beyond the training range
    ============  =============================================================================================
    """
    for measure in measures:
        if measure not in MEASURES:
            raise unknown("measure", measure, MEASURES)
    task = task_of(model, task)
    tell = report or (lambda text: None)
    generator = torch.Generator().manual_seed(seed)
    tell("exact match in range")
    exact = exact_by_scale(model, task, scales_up_to(task, train_max), generator=generator)
    rows = [{"measure": "exact_match", "scale": n, "value": value} for n, value in exact.items()]
    needs_relation = {"lrc", "src"} & set(measures)
    if needs_relation:
        tell("relation")
    subject, known = (
        own_relation(model, task, train_max, relation) if needs_relation else (model, Relation(_no_phi, ""))
    )
    if "lrc" in measures:
        tell("measured LRC")
        rows += lrc_rows(subject, task, train_max, known, layers, generator)
    if "src" in measures:
        tell("measured SRC")
        rows += src_rows(subject, task, train_max, known, generator)
    if "transfer" in measures:
        tell("readout transfer")
        rows += transfer_rows(model, task, train_max, layers, beyond, generator)
    if "pruned" in measures:
        tell("a pruned copy")
        rows += pruned_rows(model, task, train_max, generator)
    accurate = min(exact.values()) >= ACCURATE
    frame = pd.DataFrame([{**row, "accurate": accurate} for row in rows], columns=list(FACTS))
    return frame.astype(FACTS)


def _no_phi(*_: Any) -> Any:
    raise UserError("no relation was asked for")


# -- rows ----------------------------------------------------------------------------------------------------


def lrc_rows(
    subject: Callable[..., Any] | Subject,
    task: Task,
    train_max: int,
    relation: Relation,
    layers: Sequence[int] | None,
    generator: torch.Generator,
) -> list[Row]:
    found = measured_lrc(subject, task, train_max, relation=relation, layers=layers, generator=generator)
    about = {"relation": relation.words, "tolerance": found.tolerance}
    rows: list[Row] = [{**row, "measure": "lrc", **about} for row in _records(found.counts())]
    rows += [{"measure": "lrc", "scale": n, "value": value, **about} for n, value in found.curve.items()]
    rows += [{**row, "measure": "r2", "relation": relation.words} for row in _records(found.r2)]
    for tolerance in TOLERANCES:
        index = invariance_index(found.curve_at(tolerance))
        rows.append(_index("lrc", train_max, index, {**about, "tolerance": tolerance}))
    return rows


def src_rows(
    subject: Callable[..., Any] | Subject, task: Task, train_max: int, relation: Relation, generator: torch.Generator
) -> list[Row]:
    found = measured_src_at(THRESHOLDS, subject, task, train_max, relation, generator=generator)
    default = found[THRESHOLDS.index(THRESHOLD)]
    about = {"relation": relation.words, "influence": THRESHOLD, "fidelity": FIDELITY}
    rows = [{"measure": "src", "scale": n, "value": value, **about} for n, value in default.curve.items()]
    rows += [{"measure": "signatures", "scale": n, "value": v, **about} for n, v in signatures(default).items()]
    for each in found:
        for fidelity in FIDELITIES:
            at = {"influence": each.threshold, "fidelity": fidelity}
            index = invariance_index(each.curve_at(fidelity))
            rows.append(_index("src", train_max, index, {**about, **at}))
    return rows


def signatures(found: MeasuredSrc) -> dict[int, int]:
    """How many signatures there are up to each scale: SRC_M without its test of fidelity."""
    scales = sorted({step.scale for step in found.behaviours})
    return {n: len({step.signature for step in found.behaviours if step.scale <= n}) for n in scales}


def transfer_rows(
    model: Callable[..., Any] | Subject,
    task: Task,
    train_max: int,
    layers: Sequence[int] | None,
    beyond: Sequence[int],
    generator: torch.Generator,
) -> list[Row]:
    found = readout_transfer(model, task, train_max, beyond=beyond, layers=layers, generator=generator)
    rows = []
    for row in _records(found.by_scale()):
        row.update(measure="transfer", value=row.pop("accuracy"), layer=_layer(row.pop("hook")))
        rows.append(row)
    for hook, readout in found.accuracy:
        about = {"layer": _layer(hook), "readout": readout}
        for n, value in found.cover(hook, readout).items():
            rows.append({"measure": "cover", "scale": n, "value": value, **about, "bar": BAR})
        for bar in BARS:
            index = invariance_index(found.cover(hook, readout, bar))
            rows.append(_index("cover", train_max, index, {**about, "bar": bar}))
    return rows


def pruned_rows(
    model: Callable[..., Any] | Subject, task: Task, train_max: int, generator: torch.Generator
) -> list[Row]:
    copy = prune(model, task, train_max)
    if copy is None:
        return [{"measure": "pruned", "reason": "nothing to prune: no bias for each code"}]
    subject, relation = copy
    about = {"relation": relation.words, "influence": THRESHOLD, "fidelity": FIDELITY, "samples": PRUNED_ROWS}
    curve = measured_src(subject, task, train_max, relation=relation, generator=generator).curve
    far = _reachable(subject, task, [factor * train_max for factor in PRUNED_AT], asked=False)
    exact = exact_by_scale(subject, task, far, PRUNED_ROWS, generator)
    rows: list[Row] = [{"measure": "pruned", "scale": train_max, "value": invariance_index(curve), **about}]
    rows += [{"measure": "pruned_src", "scale": n, "value": value, **about} for n, value in curve.items()]
    rows += [{"measure": "pruned_exact_match", "scale": n, "value": v, **about} for n, v in exact.items()]
    return rows


def _index(of: str, train_max: int, value: float, about: Row) -> Row:
    return {"measure": f"iota_{of}", "scale": train_max, "value": value, **about}


def _records(frame: pd.DataFrame) -> list[Row]:
    rows: list[Row] = frame.to_dict("records")  # type: ignore[assignment]
    return rows


def _layer(hook: str) -> int:
    """The layer in a hook's name: 1 in ``blocks.1.hook_resid_post``."""
    return int(hook.split(".")[1])


# -- runs ----------------------------------------------------------------------------------------------------


def probe_run(
    run: Run,
    measures: Sequence[str] = MEASURES,
    *,
    layers: Sequence[int] | None = None,
    beyond: Sequence[int] | None = None,
    force: bool = False,
    again: bool = False,
    report: Report | None = None,
    unkept: Callable[[UserError], None] | None = None,
) -> pd.DataFrame:
    """The table of a run, kept with it; measures that are kept already are not measured again unless asked `again`.

    Transfer is also tested at twice the training range, or at the scales `beyond`. A run that is not accurate in range
    is refused without `force`, and flagged in the table. A choice of `layers` or `beyond` is not kept.
    """
    for measure in measures:
        if measure not in MEASURES:
            raise unknown("measure", measure, MEASURES)
    config, default = run.config, layers is None and beyond is None
    kept = stored(run) if default else None
    if kept is not None and again:
        kept = kept[~kept["measure"].isin(_names(measures))]
    missing = [m for m in measures if kept is None or m not in set(kept["measure"])]
    if not missing:
        assert kept is not None
        return _checked(run, _only(kept, measures), force)
    model, task = run.model(), config.task_object
    far = _reachable(model, task, [2 * config.train_max] if beyond is None else beyond, beyond is not None)
    if not force:
        _refuse_inaccurate(run, exact_by_scale(model, task, scales_up_to(task, config.train_max)))
    found = probe_model(model, task, config.train_max, missing, layers=layers, beyond=far, report=report)
    identity: Row = {"run": run.id, "task": config.task, "scheme": config.scheme, "seed": config.seed}
    for place, (name, value) in enumerate(identity.items()):
        found.insert(place, name, value)
    if kept is not None:
        known = set(kept["measure"]) - set(_names(measures))
        found = pd.concat([kept, found[~found["measure"].isin(known)]], ignore_index=True)
    if default:
        _keep(run, found, unkept)
    return _only(found, measures)


def stored(run: Run) -> pd.DataFrame | None:
    """The table kept with a run, if there is one."""
    return typed(pd.read_parquet(io.BytesIO(run.read(FILE)))) if run.has(FILE) else None


def typed(table: pd.DataFrame) -> pd.DataFrame:
    """A stored table with the columns of today: those of runs probed earlier had all thresholds in one text.

    >>> old = pd.DataFrame({"measure": ["iota_src"], "threshold": ["influence=0.25 fidelity=0.9"], "relation": [""]})
    >>> typed(old.assign(value=0.5))[["influence", "fidelity"]].to_numpy().tolist()
    [[0.25, 0.9]]
    """
    if "threshold" not in table:
        return table
    for name in ("samples", "tolerance", "influence", "fidelity", "bar"):
        found = pd.to_numeric(table["threshold"].str.extract(rf"\b{name}=(\S+)")[0])
        table[name] = found.astype("Int64") if name == "samples" else found
    unpruned = (table["measure"] == "pruned") & table["value"].isna()
    table["reason"] = table["relation"].where(unpruned, "")
    table["relation"] = table["relation"].mask(unpruned, "")
    return table[[name for name in (*IDENTITY, *FACTS) if name in table]]


def _keep(run: Run, table: pd.DataFrame, unkept: Callable[[UserError], None] | None) -> None:
    try:
        with run.locked(wait=True):
            run.write(FILE, table.to_parquet(None, index=False))
    except UserError as error:
        if unkept is None:
            raise
        unkept(error)


def _only(table: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """The rows that belong to some measures."""
    return table[table["measure"].isin(["exact_match", *_names(measures)])].reset_index(drop=True)


def _names(measures: Sequence[str]) -> list[str]:
    """What the rows of some measures are called."""
    return [name for measure in measures for name in ROWS[measure]]


def _checked(run: Run, table: pd.DataFrame, force: bool) -> pd.DataFrame:
    if not force:
        exact = table[table["measure"] == "exact_match"]
        _refuse_inaccurate(run, dict(zip(exact["scale"], exact["value"])))
    return table


def _refuse_inaccurate(run: Run, exact: dict[int, float]) -> None:
    worst = min(exact, key=lambda n: exact[n])
    if exact[worst] < ACCURATE:
        raise UserError(
            f"run '{run.id}' ({run.status().status}) is not accurate in range, exact match {exact[worst]:.2f} at "
            f"n = {worst}, so its complexity says little: use --force to probe it all the same"
        )


def _reachable(model: Any, task: Task, scales: Sequence[int], asked: bool) -> list[int]:
    """Those of the scales that the task has and the scheme can process; where they were asked for, all or an error."""
    possible = []
    for scale in scales:
        try:
            exact_by_scale(model, task, [task.checked_scale(scale)], rows=1)
            possible.append(scale)
        except UserError:
            if asked:
                raise
    return possible
