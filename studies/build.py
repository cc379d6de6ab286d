"""A study: all that is known about many runs in one tidy table, one row for each measurement, with its provenance.

Analyses, figures and the page read this one file and nothing else. Where a row belongs to a task and a scheme rather
than to a run (the verdict before training, say), `run` is empty and `seed` missing.

=================================  =================================================================================
exact_match, exact_match_no_end,   per length (`scale`), with interval and samples; where the scheme cannot process a
token_accuracy                     length the value is missing and `reason` says why
in_range_exact_match, train_loss,  how training ended; the loss and the margin are those at the last check; `converged`
margin, steps, seconds, converged  is 1 or 0, with `status` and, if it is 0, `reason`
the `measures` of each probe       what `lengthlens probe` stored with the run (`lengthlens.probes.probe.PROBES` names
                                   them all)
probe_exact_match                  exact match in range on the instances that the probes drew
verdict                            before training: `verdict` with its `reason`, and `scale`, how far it looks
declared_src                       operators of the task's own circuit up to each scale
pola_…                             position-only linear attention: errors, energy and LRC at scale N
=================================  =================================================================================
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lengthlens.analyses.table import CELL, OF_CELLS, as_study, read_study
from lengthlens.errors import UserError, unknown
from lengthlens.files import make_directory, write_whole
from lengthlens.models.schemes import SchemeSpec
from lengthlens.plugins.fingerprint import code_version
from lengthlens.runs.config import EXECUTION, RunConfig
from lengthlens.runs.evaluation import is_accurate
from lengthlens.runs.run import Run, best_rows
from lengthlens.runs.store import LeftOut, RunStore, each_sound
from lengthlens.tasks import Task
from lengthlens.tasks.complexity import src_curve
from lengthlens.theory.pola import pola_table
from lengthlens.theory.verdict import Case, RefusedError

VERDICT_REACH = 4  # times the training range: as far as `lengthlens verdict` looks when nothing is said
SCORES = ("exact_match", "exact_match_no_end", "token_accuracy")
NAMED = ("task", "scheme", "scheme_options", "score_scaling", "train_max", "seed", "plugins")  # columns of their own

# The worked values of the theory: one target of each kind, under the schemes that tell them apart.
POLA_TARGETS = ("shift-by-one", "prefix-sum", "alternating-sign", "running-mean", "first-token")
POLA_SCHEMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ideal", {}), ("relative", {}), ("relative", {"max_distance": 4}), ("learned", {}), ("none", {})
)  # fmt: skip
POLA_TRAIN_MAX, POLA_TEST_MAX = 8, 64

Row = dict[str, Any]
Report = Callable[[str], None]


def study(
    store: RunStore,
    runs: Iterable[Run | str] | None = None,
    *,
    test_max: int | None = None,
    pola_targets: Sequence[str] = POLA_TARGETS,
    report: Report | None = None,
    left_out: LeftOut | None = None,
    earlier: tuple[pd.DataFrame, Mapping[str, Any]] | None = None,
) -> pd.DataFrame:
    """Everything that a store knows, as one tidy table: a row for each measurement, the columns `STUDY_COLUMNS`.

    `runs` are runs or names of runs; all that ended if none are given. Verdicts look at scales up to `test_max`, four
    times the training range by default; `pola_targets` are what position-only linear attention is to compute, and
    `report` is told what is being looked at. Nothing is written. The same store gives the same table: runs come by
    name, then the cells in the order of the runs, then POLA.

    A store in which no run has ended, an unknown name or a damaged run is a `UserError`; where `left_out` is given,
    it is told the name of each damaged run and what is wrong with it, and the run is not in the table.

    `earlier` is a study of the same store with its provenance, as `read_study` reads it. If it was made by the same
    code, what it says of cells, and of runs whose files are still the same, byte for byte, is taken from it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     store = RunStore(folder)
    ...     run = store.find("copy/lbpe")  # a trained model of the package, taken into the store
    ...     table = study(store, test_max=20, pola_targets=[])
    >>> table.loc[table["measure"] == "verdict", ["task", "verdict"]].values.tolist()
    [['copy', 'possible']]
    """
    tell, before = report or (lambda text: None), Earlier(earlier)

    def of_run(run: Run) -> pd.DataFrame:
        if before.digests.get(run.id) == run.digest():
            return before.table[before.table["run"] == run.id]
        tell(run.id)
        return run_rows(run)

    read = list(each_sound(ended(store, runs, left_out), of_run, left_out))
    parts = [part for _, part in read]
    cases: dict[tuple[str, int], Case] = {}
    for key, config in {tuple(cell_of(run.config).values()): run.config for run, _ in read}.items():
        reach, known = test_max or VERDICT_REACH * config.train_max, before.cells.get(key)
        if known is not None and known.loc[known["measure"] == "verdict", "scale"].tolist() == [reach]:
            parts.append(known)
        else:
            tell(f"verdict on {config.task} under {scheme_label(config)}")
            parts.append(as_study(pd.DataFrame(cell_rows(config, reach, cases))))
    for target in pola_targets:
        tell(f"position-only linear attention: {target}")
        parts.append(as_study(pd.DataFrame(pola_rows(target))))
    return pd.concat(parts, ignore_index=True)


class Earlier:
    """What an earlier study says, if it was made by the same code: of runs whose files are the same, and of cells."""

    def __init__(self, earlier: tuple[pd.DataFrame, Mapping[str, Any]] | None) -> None:
        table, about = earlier or (as_study(pd.DataFrame()), {})
        if about.get("code") != code_version():
            table, about = as_study(pd.DataFrame()), {}
        self.table, self.digests = table, about.get("digests", {})
        self.cells = dict(list(table[table["measure"].isin(OF_CELLS)].groupby(CELL)))


def earlier_study(path: Path) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """The study at a path, of which what is still true can be taken over; None if there is none that is sound."""
    with suppress(UserError):
        return read_study(path) if path.exists() else None
    return None


def ended(store: RunStore, runs: Iterable[Run | str] | None = None, left_out: LeftOut | None = None) -> list[Run]:
    """The runs asked for, or all in the store, that are no longer under way; by name."""
    named = store.runs() if runs is None else [r if isinstance(r, Run) else store.find(r) for r in runs]
    by_name = sorted({run.id: run for run in named}.items())
    states = each_sound((run for _, run in by_name), Run.status, left_out)
    over = [run for run, status in states if status.finished or status.status == "failed"]
    if not over:
        raise UserError(f"no run in '{store.path}' has ended yet: train some with `lengthlens train` or `sweep`")
    return over


def matching(runs: Iterable[Run], where: Mapping[str, Sequence[Any]], left_out: LeftOut | None = None) -> Iterator[Run]:
    """Those of the runs whose config has, for each field named, one of the values given.

    A scheme is given by its name, which means all its options, or with its options.
    """
    known = [field.name for field in dataclasses.fields(RunConfig)]
    for name in where:
        if name not in known:
            raise unknown("field of a run's config", name, known)
    for run, config in each_sound(runs, lambda run: run.config, left_out):
        schemes = [config.scheme, config.spec.label, scheme_label(config)]
        has = {name: schemes if name == "scheme" else [getattr(config, name)] for name in where}
        if all(any(value in has[name] for value in values) for name, values in where.items()):
            yield run


def scheme_label(config: RunConfig) -> str:
    """The scheme as tables and figures name it: with those of its options that are not the default.

    >>> scheme_label(RunConfig(task="copy", scheme="hinted:relative", scheme_options={"max_distance": 3}))
    'hinted:relative/max_distance=3'
    >>> scheme_label(RunConfig(task="copy", scheme="ideal", score_scaling="none"))
    'ideal/score_scaling=none'
    """
    return SchemeSpec.of(config.scheme, config.scheme_options, config.score_scaling).label


def cell_of(config: RunConfig) -> Row:
    """The cell of a run, by the columns `lengthlens.analyses.table.CELL`.

    Its recipe is what is not the default, apart from what a cell names anyway and where it was computed.

    >>> cell_of(RunConfig("copy", "rope", n_layers=4, steps=10, seed=3))
    {'task': 'copy', 'scheme': 'rope', 'recipe': 'n_layers=4, steps=10', 'train_max': 10}
    """
    usual = {field.name: field.default for field in dataclasses.fields(RunConfig)}
    own = {name: value for name, value in config.to_dict().items() if name not in (*NAMED, *EXECUTION)}
    recipe = ", ".join(f"{name}={value}" for name, value in own.items() if value != usual[name])
    recipe = f"imported {config.imported.get('name')}" if config.imported else recipe
    return {"task": config.task, "scheme": scheme_label(config), "recipe": recipe, "train_max": config.train_max}


def run_rows(run: Run) -> pd.DataFrame:
    """All rows of one run: how it was trained, scored and probed."""
    # Imports TransformerLens, which reading a study does without.
    from lengthlens.probes.table import stored

    config, scores, probed = run.config, best_rows(run.evaluation()), stored(run)
    status, looks = run.status(), run.metrics()
    last = looks[-1] if looks else {}
    values = {
        "in_range_exact_match": status.in_range_exact_match, "train_loss": last.get("loss"),
        "margin": last.get("margin"), "steps": status.steps, "seconds": status.seconds,
        "converged": float(status.status == "converged"),
    }  # fmt: skip
    rows: list[Row] = [{"measure": name, "value": value} for name, value in values.items()]
    rows[-1] |= {"status": status.status, "reason": status.reason}
    rows += [
        {"measure": name, "scale": row["length"], "samples": row["samples"], "reason": row.get("reason")}
        | {"value": row.get(name), "low": row.get(f"{name}_low"), "high": row.get(f"{name}_high")}
        for name in SCORES
        for row in scores
    ]
    tables = [pd.DataFrame(rows)]
    if probed is not None:
        tables.append(probed.replace({"measure": {"exact_match": "probe_exact_match"}}))
    about = {"run": run.id, **cell_of(config), "seed": config.seed, "accurate": is_accurate(config, scores)}
    return pd.concat([as_study(table.assign(**about)) for table in tables], ignore_index=True)


def surgery_study(
    store: RunStore, path: Path, scales: Sequence[int] | None = None, *, report: Report | None = None
) -> pd.DataFrame:
    """The rows of the probe ``surgery`` for every run of a store that is accurate in range, as a study, written to csv.

    They are kept with the runs, so that after an interruption the same call goes on where it was; those at `scales` of
    one's choice are not.
    """
    from lengthlens.probes.surgery import SurgeryProbe
    from lengthlens.probes.table import probe_run, unready

    tell, probe, parts = report or (lambda text: None), SurgeryProbe(), list[pd.DataFrame]()
    ready = [run for run in store.must_exist().runs() if not unready(run)]
    if not ready:
        raise UserError(f"no run in '{store.path}' is trained and accurate in range: there is none to operate on")
    for place, run in enumerate(ready):
        tell(f"{run.id} ({place + 1} of {len(ready)})")
        config = run.config
        if scales is None:
            rows = probe_run(run, [probe.name], force=True, device="cpu")
        else:
            model = run.model("cpu").eval()
            rows = pd.DataFrame(probe.rows_at(scales, model, config.task_object, config.train_max))
        about = {"run": run.id, **cell_of(config), "seed": config.seed, "accurate": True}
        parts.append(as_study(rows[rows["measure"].isin(probe.measures)].assign(**about)))
    table = pd.concat(parts).sort_values(["task", "scheme", "seed", "run"], kind="stable", ignore_index=True)
    holding = [name for name in table if (table[name].notna() & (table[name] != "")).any()]
    make_directory(path.parent)
    write_whole(path, table[holding].to_csv(index=False, lineterminator="\n").encode())
    return table


def cell_rows(config: RunConfig, test_max: int, cases: dict[tuple[str, int], Case] | None = None) -> list[Row]:
    """What is known of a task under a scheme before training: the verdict, and the declared SRC.

    `cases` keeps what does not depend on the scheme from one call to the next.
    """
    task = config.task_object
    cases, key = {} if cases is None else cases, (config.task, config.train_max)
    if key not in cases:
        cases[key] = Case(task, config.train_max, test_max)
    try:
        judged = cases[key].verdict(config.scheme, dict(config.scheme_options), helps=False)
        named, reasons = judged.verdict, "; ".join(judged.reasons)
    except RefusedError as refusal:
        named, reasons = "refused", str(refusal)
    about = {"run": "", **cell_of(config)}
    verdict = {"measure": "verdict", "scale": test_max, "verdict": named, "reason": reasons}
    return [{**row, **about} for row in [verdict, *declared_rows(task, config.train_max, test_max)]]


def declared_rows(task: Task, train_max: int, test_max: int) -> list[Row]:
    """Declared SRC at every scale of the training range, and at `test_max`."""
    if not task.declares_circuit:
        return []
    curve = dict(enumerate(src_curve(task, test_max), task.min_scale))
    scales = [*range(task.min_scale, train_max + 1), *([test_max] if test_max > train_max else [])]
    return [{"measure": "declared_src", "scale": n, "value": curve[n]} for n in scales]


def pola_rows(target: str) -> list[Row]:
    """Errors and complexity of one target under each scheme of `POLA_SCHEMES`, predicted and trained."""
    rows = []
    for scheme, options in POLA_SCHEMES:
        generator = torch.Generator().manual_seed(0)  # of the inputs, so that the same bits come out every time
        table = pola_table(target, scheme, POLA_TRAIN_MAX, POLA_TEST_MAX, True, options, generator)
        label = SchemeSpec.of(scheme, options).label
        about: Row = {"run": "", "target": target, "scheme": label, "train_max": POLA_TRAIN_MAX}
        for measure in ("predicted_error", "trained_error", "target_energy", "lrc", "lrc_under"):
            for n, value in zip(table["scale"], table[measure]):
                # To nine digits: what lies below is the order of summation, which differs between machines.
                rounded = float(f"{value:.9g}") if abs(value) > 1e-9 else 0.0
                rows.append({"measure": f"pola_{measure}", "scale": int(n), "value": rounded, **about})
    return rows


def provenance(
    store: RunStore,
    runs: Iterable[Run | str] | None,
    made: str,
    command: str,
    held_out: Sequence[str] = (),
    title: str = "",
) -> dict[str, Any]:
    """Where a study comes from: date, versions, class of machine, the config of every run, and the command.

    `held_out` are the tasks on which nothing was chosen: analyses report them apart. `made` is a date as ISO has it
    (2030-01-31); it is asked for, so that the same store can give the same bytes. `title` is what the page is called.
    """
    from lengthlens.runs.training import library_versions

    about = {"made": made, "command": command, "machine": machine_class(), "versions": library_versions()}
    over, named = ended(store, runs), {"title": title} if title else {}
    made_of = {"configs": {run.id: run.config.to_dict() for run in over}, "code": code_version()}
    digests = {run.id: run.digest() for run in over}  # by which a later study knows what is new
    return about | named | {"held_out": list(held_out), **made_of, "digests": digests}


def machine_class() -> str:
    """What kind of machine this is, and not which one: "2 CPU cores, no GPU"."""
    cores, gpus = os.cpu_count() or 1, torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(k) for k in range(gpus)})
    return f"{cores} CPU core{'s' if cores > 1 else ''}, {f'{gpus} × ' + ', '.join(names) if gpus else 'no GPU'}"
