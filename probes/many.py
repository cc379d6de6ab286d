"""Probing many runs at once, on the engines that train them; what is kept with a run is not measured again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from joblib import Parallel, delayed

from lengthlens.errors import UserError
from lengthlens.probes.table import MEASURES, probe_run, stored
from lengthlens.runs.evaluation import best_rows, cpu_threads, is_accurate
from lengthlens.runs.run import Run
from lengthlens.runs.sweep import on_engine, persistently


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
    found = {run.id: Probed(run.id) for run in runs if is_probed(run)}
    found |= {run.id: left_out(run) for run in runs if run.id not in found and not is_ready(run)}
    for done in found.values():
        _tell(report, done)
    paths = {run.id: run.path.resolve() for run in runs if run.id not in found}
    if paths:
        with on_engine(engine, workers, address, None):
            for outcome in persistently(paths, _probe_each):
                found[outcome.run] = outcome
                _tell(report, outcome)
    return [found[run.id] for run in runs]


def is_probed(run: Run) -> bool:
    """Whether all measures are kept with a run."""
    try:
        kept = stored(run)
    except UserError:
        return False  # let the attempt say what is wrong with it
    return kept is not None and set(MEASURES) <= set(kept["measure"])


def is_ready(run: Run) -> bool:
    """Whether a run has a model that is accurate in range, by its own evaluation."""
    return run.status().has_model and is_accurate(run.config, best_rows(run.evaluation()))


def left_out(run: Run) -> Probed:
    status = run.status()
    reason = "it is not accurate in range" if status.has_model else f"it is {status.status}"
    return Probed(run.id, "left out", reason)


def probe_one(path: Path) -> Probed:
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


def _probe_each(paths: Sequence[Path]) -> Iterator[Probed]:
    work = Parallel(return_as="generator_unordered", pre_dispatch="all", batch_size=1)
    outcomes: Iterator[Probed] = work(delayed(probe_one)(path) for path in paths)
    return outcomes


def _tell(report: Callable[[Probed], None] | None, outcome: Probed) -> None:
    if report:
        report(outcome)
