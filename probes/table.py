"""The table of a model or a run: a row for each measurement, with its thresholds; kept with the run.

Columns are those of a study. Beside the rows of the probes there is exact_match, of 256 instances for each scale of the
training range: it says whether the rest means something.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import torch

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import read_forms
from lengthlens.models.schemes.spec import RelationLike
from lengthlens.probes.probe import PROBES, Context, Probe, Row, by_scale, chosen
from lengthlens.probes.subject import AnyModel, check_reachable, reachable
from lengthlens.runs.evaluation import ACCURATE, best_rows, cpu_threads, is_accurate
from lengthlens.runs.run import Run
from lengthlens.runs.sweep import in_parallel
from lengthlens.tasks import Task

FILE = "probes.parquet"
EARLIER_RELATION = "relation.json"  # where the learned relation of a run was kept before it was a probe

COLUMNS = {
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
    "form": "str",
    "form_value": "Int64",
    "reason": "str",
}

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
    """What some of `PROBES` (all, if `measures` names none) say about a model, as rows with `COLUMNS`.

    `relation` gives codes in the place of the model's own relation; `layers` are those of lrc and transfer; transfer is
    tested at the scales `beyond` the training range, too.

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> table = probe_model(copy_by_hand(), train_max=4, measures=["src"])
    >>> table.loc[table["measure"] == "src", "value"].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    generator = torch.Generator().manual_seed(seed)
    context = Context(model, task, train_max, relation=relation, layers=layers, beyond=beyond, generator=generator)
    return _table(context, chosen(measures), report or _silent)


def _table(context: Context, probes: Sequence[Probe], tell: Report) -> pd.DataFrame:
    tell("exact match in range")
    rows = by_scale("exact_match", context.exact, {})
    for probe in probes:
        tell(probe.words)
        rows += probe.rows(context)
    accurate = min(context.exact.values()) >= ACCURATE
    return pd.DataFrame([{**row, "accurate": accurate} for row in rows], columns=list(COLUMNS)).astype(COLUMNS)


def _silent(text: str) -> None:
    pass


def plain_rows(table: pd.DataFrame) -> list[Row]:
    """Rows as plain values, None where a column means nothing for a row."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


# -- a run -------------------------------------------------------------------------------------------------------


def probe_run(
    run: Run,
    measures: Sequence[str] | None = None,
    *,
    layers: Sequence[int] | None = None,
    beyond: Sequence[int] | None = None,
    force: bool = False,
    again: bool = False,
    report: Report | None = None,
    unkept: Callable[[UserError], None] | None = None,
) -> pd.DataFrame:
    """The table of a run, kept with it; what is kept already is not measured again unless asked `again`.

    Transfer is also tested at twice the training range, or at the scales `beyond`. A run that is not accurate in range
    is refused without `force`, and flagged in the table. A choice of `layers` or `beyond` is not kept. Where the table
    cannot be written, `unkept` is told, if given.
    """
    probes, default = chosen(measures), layers is None and beyond is None
    kept = stored(run) if default else None
    done = [] if kept is None or again else kept_probes(kept)
    left = [probe for probe in probes if probe not in done]
    if kept is not None and not left:
        exact = kept[kept["measure"] == "exact_match"]
        _check_accurate(run, dict(zip(exact["scale"], exact["value"])), force)
        return _of_probes(kept, probes)
    model, task, train_max = run.model(), run.config.task_object, run.config.train_max
    for scale in beyond or ():
        check_reachable(model, task, scale)
    far = reachable(model, task, [2 * train_max]) if beyond is None else beyond
    context = Context(model, task, train_max, layers=layers, beyond=far)
    _check_accurate(run, context.exact, force)
    found = _with_identity(run, _table(context, left, report or _silent))
    if kept is not None:
        others = kept[~kept["measure"].isin(_measures(left))]
        found = pd.concat([others, found[found["measure"] != "exact_match"]], ignore_index=True)
    if default:
        _keep(run, found, {*left, *(kept_probes(kept) if kept is not None else ())}, unkept)
    return _of_probes(found, probes)


def _with_identity(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    config = run.config
    identity: Row = {"run": run.id, "task": config.task, "scheme": config.scheme, "seed": config.seed}
    for place, (name, value) in enumerate(identity.items()):
        table.insert(place, name, value)
    return table


def _measures(probes: Sequence[Probe]) -> list[str]:
    return [name for probe in probes for name in probe.measures]


def _of_probes(table: pd.DataFrame, probes: Sequence[Probe]) -> pd.DataFrame:
    """Exact match, and the rows of these probes."""
    return table[table["measure"].isin(["exact_match", *_measures(probes)])].reset_index(drop=True)


def _check_accurate(run: Run, exact: dict[int, float], force: bool) -> None:
    worst = min(exact, key=lambda n: exact[n])
    if exact[worst] < ACCURATE and not force:
        raise UserError(
            f"run '{run.id}' ({run.status().status}) is not accurate in range, exact match {exact[worst]:.2f} at "
            f"n = {worst}, so its complexity says little: use --force to probe it all the same"
        )


# -- on disk -----------------------------------------------------------------------------------------------------


def stored(run: Run) -> pd.DataFrame | None:
    """The table kept with a run, if there is one; one of an earlier version with the columns of today."""
    if not run.has(FILE):
        return None
    table = pd.read_parquet(io.BytesIO(run.read(FILE)))
    return table if "reason" in table else _converted(table)


def kept_probes(table: pd.DataFrame) -> list[Probe]:
    """The probes whose rows are in a kept table. One that found nothing is named beside the rows (not in old files)."""
    named, measured = table.attrs.get("probes", ()), set(table["measure"])
    return [probe for name, probe in PROBES.items() if name in named or measured & set(probe.measures)]


def _keep(run: Run, table: pd.DataFrame, probes: set[Probe], unkept: Callable[[UserError], None] | None) -> None:
    table.attrs["probes"] = [name for name, probe in PROBES.items() if probe in probes]
    try:
        with run.locked(wait=True):
            run.write(FILE, table.to_parquet(None, index=False))
    except UserError as error:
        if unkept is None:
            raise
        unkept(error)


def _converted(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose thresholds are a text ("influence=0.25 fidelity=0.9"), and a reason stands under `relation`."""
    texts = table["threshold"].fillna("")
    numbers = pd.DataFrame([dict(part.split("=") for part in text.split()) for text in texts], index=table.index)
    table = table.assign(**numbers.astype(float), reason=table["relation"].where(table["value"].isna()))
    table["relation"] = table["relation"].where(table["value"].notna())
    identity = [name for name in table.columns if name in ("run", "task", "scheme", "seed")]
    return table.reindex(columns=[*identity, *COLUMNS]).astype(COLUMNS)


def earlier_relation(run: Run) -> list[Row]:
    """The learned relation that was kept with a run before it was a probe; nothing if there is none."""
    if not run.has(EARLIER_RELATION):
        return []
    options = run.config.scheme_options
    values = range(-options["window"], options["window"] + 1)
    known = {form.says(value): (str(form), value) for form in read_forms(options["forms"]) for value in values}
    rows = []
    for row in run.read_json(EARLIER_RELATION):
        if "text" in row:
            form, value = known[row.pop("text").split(" ", 5)[5]]  # layer 0 head 1 reads i−j = n
            row |= {"form": form, "form_value": value}
        rows.append(row)
    return rows


# -- many runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probed:
    """What became of one run: probed, left out because it cannot be, or failed; `reason` says why."""

    run: str
    status: Literal["probed", "left out", "failed"] = "probed"
    reason: str = ""


def probe_all(
    runs: Sequence[Run],
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    report: Callable[[Probed], None] | None = None,
) -> list[Probed]:
    """Probe every run that is accurate in range; the outcomes by run, in the order given.

    Runs that are not accurate are left out, since their complexity says little. A worker that dies is replaced.
    """
    tell = report or (lambda outcome: None)
    found = {run.id: Probed(run.id) for run in runs if is_probed(run)}
    found |= {run.id: _left_out(run) for run in runs if run.id not in found and not is_ready(run)}
    for done in found.values():
        tell(done)
    paths = {run.id: run.path.resolve() for run in runs if run.id not in found}
    for name, outcome in in_parallel(_probe_one, paths, engine=engine, workers=workers, address=address):
        found[name] = outcome
        tell(outcome)
    return [found[run.id] for run in runs]


def is_probed(run: Run) -> bool:
    """Whether what every probe measures is kept with a run."""
    try:
        kept = stored(run)
    except UserError:
        return False  # let the attempt say what is wrong with it
    return kept is not None and kept_probes(kept) == chosen()


def is_ready(run: Run) -> bool:
    """Whether a run has a model that is accurate in range, by its own evaluation."""
    return run.status().has_model and is_accurate(run.config, best_rows(run.evaluation()))


def _left_out(run: Run) -> Probed:
    status = run.status()
    reason = "it is not accurate in range" if status.has_model else f"it is {status.status}"
    return Probed(run.id, "left out", reason)


def _probe_one(path: Path) -> Probed:
    """Probe one run in a worker. Whatever goes wrong with it is its outcome, and no other run's."""
    run = Run(path)
    try:
        with cpu_threads(1):
            probe_run(run)
    except UserError as error:
        return Probed(run.id, "left out", str(error))
    except Exception as error:
        return Probed(run.id, "failed", str(error) or type(error).__name__)
    return Probed(run.id)
