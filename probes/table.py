"""The table of a model or a run: a row for each measurement, with its thresholds; stored with the run.

Columns are those of a study. Beside the rows of the probes there is exact_match, of 256 instances for each n of the
training range: it says whether the rest means something.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch

from lengthlens.errors import UserError
from lengthlens.files import StorageError
from lengthlens.models.devices import BrokenGpuError, present_device, working_gpu
from lengthlens.models.schemes.scheme import scheme_of
from lengthlens.models.schemes.spec import RelationLike
from lengthlens.parallel import in_parallel
from lengthlens.probes.network import AnyModel, Context, Network, exact_by_scale, network_of, reachable, task_of
from lengthlens.probes.probe import OURS, PROBES, Probe, Row, by_scale, chosen
from lengthlens.probes.schema import PROBE_COLUMNS
from lengthlens.runs.evaluation import ACCURATE, cpu_threads, is_accurate
from lengthlens.runs.run import Run, best_rows
from lengthlens.tasks import Task
from lengthlens.values import parse_parquet, parsed

FILE = "probes.parquet"

Report = Callable[[str], None]


def probe_model(
    model: AnyModel,
    task: Task | None = None,
    train_max: int = 10,
    measures: Sequence[str] | None = None,
    *,
    relation: RelationLike | None = None,
    layers: Sequence[int] | None = None,
    beyond: Sequence[int] = (),
    seed: int = 0,
    report: Report | None = None,
) -> pd.DataFrame:
    """What some of `PROBES` (all, if `measures` names none) say about a model, as rows with `PROBE_COLUMNS`.

    `relation`, `layers` and `beyond` are those of `Context`.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> table = probe_model(copy_by_hand(), train_max=4, measures=["src"])
    >>> table.loc[table["measure"] == "src", "value"].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    generator = torch.Generator().manual_seed(seed)
    context = Context(network_of(model), task_of(model, task), train_max, generator, layers, beyond, relation)
    return _table(context, chosen(measures), report)


def _table(context: Context, probes: Sequence[Probe], report: Report | None) -> pd.DataFrame:
    context.task.refuse_sets("a probe")
    tell = report or (lambda text: None)
    tell("exact match in range")
    rows = by_scale("exact_match", context.exact, {})
    for probe in probes:
        tell(probe.words)
        rows += probe.rows(context)
    accurate = min(context.exact.values()) >= ACCURATE
    table = pd.DataFrame([{**row, "accurate": accurate} for row in rows], columns=list(PROBE_COLUMNS))
    return table.astype(PROBE_COLUMNS)


def plain_rows(table: pd.DataFrame) -> list[Row]:
    """Rows as plain values, None where a column means nothing for a row."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def probe_run(
    run: Run,
    measures: Sequence[str] | None = None,
    *,
    layers: Sequence[int] | None = None,
    beyond: Sequence[int] | None = None,
    force: bool = False,
    again: bool = False,
    device: str | None = None,
    report: Report | None = None,
    unkept: Callable[[UserError], None] | None = None,
) -> pd.DataFrame:
    """The table of a run, stored with it; what is stored already is not measured again unless asked `again`.

    Transfer is also tested at twice the training range, or at the sizes `beyond`. A run that is not accurate in range
    is refused without `force`, and flagged in the table. `device` is a GPU where there is one, unless given. A choice
    of `layers` or `beyond` is not stored. Where the table cannot be written, `unkept` is told, if given.
    """
    probes, default = chosen(measures), layers is None and beyond is None
    earlier, damaged = None, False
    if default:
        try:
            earlier = stored(run)
        except StorageError:
            if not again:
                raise
            damaged = True
    known = [] if earlier is None else stored_probes(earlier)
    left = [probe for probe in probes if again or probe not in known]
    if earlier is not None and not left:
        exact = earlier[earlier["measure"] == "exact_match"]
        _check_accurate(run, dict(zip(exact["scale"], exact["value"])), force)
        return _of_probes(earlier, probes)
    subject, config = Network(run.model(str(present_device(device or "auto")))), run.config
    task, train_max = config.task_object, config.train_max
    far = reachable(subject, task, [2 * train_max]) if beyond is None else beyond
    exact_by_scale(subject, task, far, n_instances=1)  # refuses what cannot be processed
    context = Context(subject, task, train_max, torch.Generator().manual_seed(0), layers, far)
    _check_accurate(run, context.exact, force)
    table = _table(context, left, report)
    identity: Row = {"run": run.id, "task": config.task, "scheme": config.scheme, "seed": config.seed}
    table = table.assign(**identity)[[*identity, *table.columns]]
    if earlier is not None:
        others = earlier[~earlier["measure"].isin([name for probe in left for name in probe.measures])]
        table = pd.concat([others, table[table["measure"] != "exact_match"]], ignore_index=True)
    if default:
        table.attrs["probes"] = [name for name, probe in PROBES.items() if probe in left or probe in known]
        try:
            with run.locked(wait=True):
                if damaged:
                    run.set_aside(FILE)
                run.write(FILE, table.to_parquet(None, index=False))
        except UserError as error:
            if unkept is None:
                raise
            unkept(error)
    return _of_probes(table, probes)


def _of_probes(table: pd.DataFrame, probes: Sequence[Probe]) -> pd.DataFrame:
    """Exact match, and the rows of these probes."""
    wanted = ["exact_match", *(name for probe in probes for name in probe.measures)]
    return table[table["measure"].isin(wanted)].reset_index(drop=True)


def _check_accurate(run: Run, exact: dict[int, float], force: bool) -> None:
    worst = min(exact, key=exact.__getitem__)
    if exact[worst] < ACCURATE and not force:
        why = f"is not accurate in range, exact match {exact[worst]:.2f} at n = {worst}, so its complexity says little"
        raise UserError(f"run '{run.id}' ({run.status().status}) {why}: use --force to probe it all the same")


def stored(run: Run) -> pd.DataFrame | None:
    """The table stored with a run, if there is one. One that lacks a column is of an earlier version, and refused."""
    if not run.has(FILE):
        return None
    try:
        arrow = parse_parquet(run.read(FILE), FILE)
        table: pd.DataFrame = parsed(lambda: arrow.to_pandas().astype(PROBE_COLUMNS), FILE, "a table of this version")
        return table
    except UserError as error:
        again = f"`lengthlens probe {run.id} --again` makes it again"
        raise run.damaged(FILE, f"cannot be understood ({error}): {again}") from None


def stored_probes(table: pd.DataFrame) -> list[Probe]:
    """The probes of a stored table. A probe that gave no rows is named beside the rows (not in old files)."""
    named, measured = table.attrs.get("probes", ()), set(table["measure"])
    return [probe for name, probe in PROBES.items() if name in named or measured & set(probe.measures)]


class Probed(NamedTuple):
    """What became of one run: probed, left out because it cannot be, or failed; `reason` says why."""

    run: str
    status: Literal["probed", "left out", "failed"] = "probed"
    reason: str = ""


def probe_all(
    runs: Sequence[Run],
    measures: Iterable[str] | None = None,
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    device: str | None = None,
    report: Callable[[Probed], None] | None = None,
) -> list[Probed]:
    """Probe every run that is accurate in range, by all probes or those named; the outcomes by run, in the order given.

    Runs that are not accurate are left out, since their complexity says little. A worker that dies is replaced.
    """
    outcomes: dict[str, Probed] = {}
    names = [probe.name for probe in chosen(measures)]
    for run in runs:
        if is_probed(run, names):
            outcomes[run.id] = Probed(run.id)
        elif reason := unready(run):
            outcomes[run.id] = Probed(run.id, "left out", reason)
    paths = {run.id: run.path.resolve() for run in runs if run.id not in outcomes}
    where: dict[str, Any] = {"engine": engine, "workers": workers, "address": address, "resources": resources}
    measured = in_parallel(partial(_probe_one, names, device), paths, **where, device=device or "auto")
    for name, outcome in itertools.chain(outcomes.copy().items(), measured):
        outcomes[name] = outcome
        if report:
            report(outcome)
    return [outcomes[run.id] for run in runs]


def is_probed(run: Run, measures: Iterable[str] | None = None) -> bool:
    """Whether what every probe measures, or those named, is stored with a run."""
    try:
        table = stored(run)
    except UserError:
        return False  # let the attempt say what is wrong with it
    return table is not None and all(probe in stored_probes(table) for probe in chosen(measures))


def unready(run: Run) -> str:
    """Why a run cannot be probed: it has no model, is not accurate in range (by its stored evaluation), or is damaged;
    nothing if it can."""
    try:
        status = run.status()
        if not status.has_model:
            return f"it is {status.status}"
        accurate = is_accurate(run.config, best_rows(run.evaluation()))
        return "" if accurate else "it is not accurate in range"
    except UserError as error:
        return str(error)


def _probe_one(measures: Sequence[str], device: str | None, path: Path) -> Probed:
    """Probe one run in a worker. Whatever goes wrong with it is its outcome, and no other run's."""
    run = Run(path)
    try:
        with working_gpu(), cpu_threads(1):
            probe_run(run, measures, device=device)
    except BrokenGpuError:
        raise
    except UserError as error:
        return Probed(run.id, "left out", str(error))
    except Exception as error:
        return Probed(run.id, "failed", str(error) or type(error).__name__)
    return Probed(run.id)


class RelationProbe(Probe):
    """The relation that the heads learned, pruned, where the scheme learns one: a row for each form and value.

    The strongest come first; `value` is the bias, `form` the linear form and `form_value` its value.
    """

    name, measures = "relation", ("relation",)
    words = OURS["relation"].words

    def rows(self, context: Context) -> list[Row]:
        scheme = scheme_of(context.subject.model)
        if scheme is None or not scheme.learns_relation or context.pruned is None:
            return []
        network, relation = context.pruned
        about = {"measure": "relation", "relation": relation.words}
        return [
            {**about, "layer": layer, "head": head, "form": str(form), "form_value": value, "value": round(bias, 6)}
            for layer, head, form, value, _, bias in (scheme_of(network.model) or scheme).entries()
        ]
