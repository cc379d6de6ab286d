"""Many runs at once: a grid of configs, worked off by processes here or by the workers of a cluster."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from lengthlens.errors import UserError
from lengthlens.files import read_whole
from lengthlens.models.devices import BrokenGpuError, working_gpu
from lengthlens.models.schemes import SchemeSpec
from lengthlens.parallel import in_parallel
from lengthlens.runs.config import RunConfig
from lengthlens.runs.evaluation import SAMPLES, cpu_threads, evaluate, refuse_too_many
from lengthlens.runs.run import Run, best_rows
from lengthlens.runs.stack import stacks
from lengthlens.runs.store import RunStore, listed
from lengthlens.runs.trainer import Trainer
from lengthlens.runs.training import CHECKPOINT_SECONDS, train, train_stacked
from lengthlens.tasks import TASKS
from lengthlens.values import anything, list_of, map_of, parse_toml, record, text, whole

BUSY = "busy"  # the status of a run that another process works on
TRIAL_STEPS = 10  # for an estimate


@dataclass(frozen=True)
class Planned:
    """A run to train, and on how many instances of each length n it is to be evaluated."""

    config: RunConfig
    samples: Mapping[int, int]
    share_after_none_right: float = 1.0  # of a length's instances, once none of a shorter length was right

    def next_evaluation(self, rows: Sequence[dict[str, Any]]) -> tuple[int, int] | None:
        """The shortest length that the rows of an evaluation do not have yet, and its number of instances.

        >>> plan = Planned(RunConfig("copy", "rope"), {20: 100, 50: 100}, share_after_none_right=0.1)
        >>> plan.next_evaluation([])
        (20, 100)
        >>> plan.next_evaluation([{"length": 20, "samples": 100, "seed": 0, "exact_match": 0.0}])
        (50, 10)
        """
        best = {row["length"]: row for row in best_rows([row for row in rows if row["seed"] == 0])}
        share = 1.0
        for length, samples in sorted(self.samples.items()):
            wanted = math.ceil(share * samples)
            if length not in best or best[length]["samples"] < wanted:
                return length, wanted
            if not best[length].get("exact_match"):
                share = self.share_after_none_right
        return None

    def complete(self, run: Run) -> bool:
        """Whether nothing is left to do. A run that cannot be read is not complete: the attempt says what is wrong."""
        try:
            status = run.status()
            if not status.finished or run.config.id != self.config.id:
                return False
            return status.status == "diverged" or self.next_evaluation(run.evaluation()) is None
        except UserError:
            return False


# What a sweep may say, in a file or by options.
GRID_ENTRIES = {
    "tasks": list_of(text()),
    "schemes": list_of(anything()),
    "seeds": list_of(whole(0, 2**63 - 1)),
    "lengths": list_of(whole(1)),
    "samples": whole(1),
    "settings": map_of(anything()),
}
GRID_RULE = record("sweep", {}, GRID_ENTRIES)


@dataclass(frozen=True)
class Grid:
    """Tasks × schemes × seeds, and what all runs have in common.

    >>> grid = Grid(["copy"], ["rope", "relative/max_distance=3"], [0, 1], settings={"steps": 5})
    >>> [config.scheme for config in grid.configs()]
    ['rope', 'rope', 'relative', 'relative']
    """

    tasks: Sequence[str]
    schemes: Sequence[str | SchemeSpec]  # a word such as "relative/max_distance=3" will do
    seeds: Sequence[int] = (0,)
    lengths: Sequence[int] = ()  # evaluated after training, beside every length in range
    samples: int = SAMPLES
    settings: Mapping[str, Any] = field(default_factory=dict)  # further fields of RunConfig

    def configs(self) -> list[RunConfig]:
        """One config for each cell, each once."""
        GRID_RULE(vars(self), "the sweep")
        if not (self.tasks and self.schemes and self.seeds):
            raise UserError("a sweep needs at least one task, one scheme and one seed")
        for name in {"task", "scheme", "scheme_options", "seed"} & set(self.settings):
            raise UserError(f"{name} differs between the runs of a sweep: give it by tasks, schemes or seeds")
        for task in map(TASKS.__getitem__, self.tasks):
            task.checked_scale(min(self.lengths, default=task.min_scale))  # before any training
            there = [n for n in self.lengths if task.max_scale is None or n <= task.max_scale]
            refuse_too_many(task, max(there, default=task.min_scale), self.samples)
        cells = product(self.tasks, map(SchemeSpec.of, self.schemes), self.seeds)
        configs = (
            RunConfig.from_dict({**self.settings, "task": task, **scheme.to_dict(), "seed": seed})
            for task, scheme, seed in cells
        )
        return list({config.id: config for config in configs}.values())

    def planned(self) -> list[Planned]:
        """The same, with what each is evaluated at."""
        return [Planned(config, dict.fromkeys(self.lengths, self.samples)) for config in self.configs()]


def read_grid(path: Path) -> Grid:
    """A grid from a TOML file::

    tasks = ["copy", "parity-cot"]
    schemes = ["ideal", { name = "hinted:relative", max_distance = 3 }]
    seeds = [0, 1, 2]
    lengths = [20, 100]
    [settings]
    steps = 2000
    """
    values = parse_toml(read_whole(path), f"'{path}'", GRID_RULE)
    schemes = [SchemeSpec.of(entry) for entry in values.get("schemes", [])]
    return Grid(**{"tasks": [], **values, "schemes": schemes})


@dataclass(frozen=True)
class RunOutcome:
    """What became of one run of a sweep. `trained` is false if there was nothing left to train; `alone` says
    why a stack that this run was the first of was trained one by one."""

    run: str
    status: str
    reason: str | None = None
    trained: bool = True
    alone: str | None = None

    @property
    def failed(self) -> bool:
        return self.status == "failed"


def train_and_evaluate(plan: Planned, store: RunStore, checkpoint_seconds: float, wait: bool) -> RunOutcome:
    """Do all of one run. Whatever goes wrong with it is its outcome, and no other run's.

    `wait` says what to do with a run that another process works on: wait for it, or call it busy.
    """
    run = store.run(plan.config)
    try:
        if not wait and run.busy():
            return RunOutcome(run.id, BUSY)
        finished = run.status().finished
        with working_gpu():
            status = train(plan.config, store, checkpoint_seconds=checkpoint_seconds, wait=True, progress=False).status
        if status.has_model:
            with working_gpu(), cpu_threads(plan.config.threads):
                while following := plan.next_evaluation(run.evaluation()):  # each is stored before the next begins
                    length, samples = following
                    evaluate(run, [length], samples=samples, device=plan.config.device, wait=True)
        return RunOutcome(run.id, status.status, status.reason, not finished)
    except BrokenGpuError:
        raise
    except Exception as error:
        return RunOutcome(run.id, "failed", str(error) or type(error).__name__)


def train_and_evaluate_all(
    plans: Sequence[Planned], store: RunStore, checkpoint_seconds: float, wait: bool
) -> list[RunOutcome]:
    """The same for runs that are trained as one. If that fails they are trained one by one, and the first says so."""
    before = {plan.config.id for plan in plans if store.run(plan.config).status().finished}
    alone = None
    if len(plans) > 1:
        try:
            with working_gpu():
                train_stacked([plan.config for plan in plans], store, checkpoint_seconds)
        except BrokenGpuError:
            raise
        except Exception as error:
            alone = f"{type(error).__name__}: {error}".splitlines()[0]
    first, *outcomes = [train_and_evaluate(plan, store, checkpoint_seconds, wait) for plan in plans]
    outcomes = [replace(first, alone=alone), *outcomes]
    return [outcome if outcome.run in before else replace(outcome, trained=True) for outcome in outcomes]


def pending(grid: Grid | Sequence[Planned], store: RunStore) -> list[RunConfig]:
    """The configs of a grid with something left to train or to evaluate."""
    plans = grid.planned() if isinstance(grid, Grid) else grid
    return [plan.config for plan in plans if not plan.complete(store.run(plan.config))]


def sweep(
    grid: Grid | Sequence[Planned],
    store: RunStore,
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    stack: int = 1,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    report: Callable[[RunOutcome], None] | None = None,
) -> list[RunOutcome]:
    """Train and evaluate every run of a grid that is not finished.

    Arguments:
        grid: a `Grid`, or a plan for each run.
        store: where the runs are stored.
        engine, workers, address, resources: where the work is done, as in `in_parallel`; workers of a cluster must
            see the store under the same path.
        stack: how many runs that differ in seed, learning rate or initial values only are trained as one network.
        checkpoint_seconds: about how much of a run's work is lost if its process dies.
        report: is told each outcome as it comes, those of finished runs first.

    Result: an outcome for each run, in the order of the grid. A worker that dies is replaced and its run is taken up
    where it was; runs that other processes work on come last, and are waited for.

    Errors: a run that fails is an outcome, and stops nothing; UserError for an engine that cannot be had, and for a GPU
    that answers nothing any more.

    >>> import tempfile
    >>> tiny = {"steps": 2, "batch": 2, "train_max": 2, "d_model": 8}
    >>> grid = Grid(["copy"], ["rope"], seeds=[0, 1], lengths=[4], samples=5, settings=tiny)
    >>> store = RunStore(tempfile.mkdtemp())
    >>> [outcome.status for outcome in sweep(grid, store, workers=1)]
    ['not-converged', 'not-converged']
    >>> store.table()["length"].tolist()
    [1, 2, 4, 1, 2, 4]
    """
    plans = {plan.config.id: plan for plan in (grid.planned() if isinstance(grid, Grid) else grid)}
    outcomes: dict[str, RunOutcome] = {}

    def note(outcome: RunOutcome) -> None:
        outcomes[outcome.run] = outcome
        if report:
            report(outcome)

    rows = {name: listed(store.run(plan.config)) for name, plan in plans.items()}
    for name, plan in plans.items():
        if plan.complete(store.run(plan.config)):
            note(RunOutcome(name, rows[name]["status"], rows[name]["reason"], trained=False))
    in_turn = sorted(plans, key=lambda name: rows[name]["status"] == "failed")  # what failed is tried again at the end
    place = RunStore(store.path.resolve())
    where: dict[str, Any] = {"engine": engine, "workers": workers, "address": address, "resources": resources}
    where["device"] = next((plan.config.device for plan in plans.values()), "cpu")
    for wait in (False, True):
        left = stacks([plans[name].config for name in in_turn if name not in outcomes], stack)
        groups = {group[0].id: [plans[config.id] for config in group] for group in left}
        work = partial(train_and_evaluate_all, store=place, checkpoint_seconds=checkpoint_seconds, wait=wait)
        for _, done in in_parallel(work, groups, **where):
            for outcome in done:
                if outcome.status != BUSY:
                    note(outcome)
    return [outcomes[name] for name in plans]


def estimate(configs: Sequence[RunConfig], workers: int) -> float:
    """Seconds that the runs will take at most, from a few steps of one run of each scheme."""
    paces = {}  # seconds a step
    for kind, config in {(config.task, config.scheme): config for config in reversed(configs)}.items():
        try:
            with cpu_threads(config.threads):
                trainer = Trainer(replace(config, steps=TRIAL_STEPS, check_every=TRIAL_STEPS))
                start = time.monotonic()
                trainer.advance()
                paces[kind] = (time.monotonic() - start) / TRIAL_STEPS
        except UserError:
            paces[kind] = 0.0  # it will fail at once
    total = sum(paces[config.task, config.scheme] * config.steps for config in configs)
    return total / max(1, min(workers, len(configs)))
