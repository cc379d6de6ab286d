"""The record grid: train on lengths up to 10, be exact at 1000 and more. Tasks, schemes, lengths and goals, as data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from lengthlens.errors import UserError, unknown
from lengthlens.runs.config import RunConfig
from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Planned, read_scheme
from lengthlens.tasks import TASKS

RECORD_TASKS = (
    "copy",
    "reverse",
    "shift",
    "duplicate",
    "parity-cot",
    "modular-sum-cot",
    "addition",
    "multiplication-by-digit",
)
# The learned relation, with all keys that it does not name weighing as one, and each by itself; the reference that is
# given every role; and one integer that decides: with a clip of 3 all codes occur in training, with one of 12 every
# longer input brings codes that were never seen.
GOAL_SCHEME = "lbpe/other=one"
REFERENCE = "ideal"
HINTED = ("hinted:relative/max_distance=3", "hinted:relative/max_distance=12")
RECORD_SCHEMES = (GOAL_SCHEME, "lbpe", REFERENCE, *HINTED)
SCALINGS = ("log", "none")  # every scheme is shown at the better of the two
SEEDS = (0, 1, 2)

# Instances of each length. If all are right, 1000 of them say "above 0.996" with 95 % confidence, 200 "above 0.98" and
# 20 "above 0.83". One takes about a tenth of a second at n = 1000 and some ten seconds at 10,000, on one core.
SAMPLES = {10: 1000, 20: 1000, 50: 1000, 100: 500, 200: 300, 500: 200, 1000: 200, 10_000: 20}
LENGTHS = (10, 20, 50, 100, 200, 500, 1000)
FURTHER = {"copy": (10_000,), "parity-cot": (10_000,)}  # lengths that only some tasks are taken to
HOPELESS = 0.1  # the share of instances that a run is given once it had none right at a shorter length

GOAL = 0.99  # exact match, end token included, that every seed has to reach
GOALS = {task: (1000, *FURTHER.get(task, ())) for task in RECORD_TASKS}

# Fields in which runs of one recipe may differ: a cell of the grid.
CELL = ("task", "scheme", "scheme_options", "score_scaling", "seed")


@dataclass(frozen=True)
class RecordGrid:
    """The record grid, or a part of it.

    >>> grid = RecordGrid(tasks=("copy",), schemes=("lbpe",))
    >>> len(grid.configs()), {config.score_scaling for config in grid.configs()} == {"log", "none"}
    (6, True)
    >>> grid.samples("copy")[10_000], 10_000 in grid.samples("shift")
    (20, False)
    """

    tasks: Sequence[str] = RECORD_TASKS
    schemes: Sequence[str] = RECORD_SCHEMES
    scalings: Sequence[str] = SCALINGS
    seeds: Sequence[int] = SEEDS
    lengths: Sequence[int] = ()  # of every task; those of the record if empty
    most: int | None = None  # instances of any length
    exactly: Mapping[int, int] = field(default_factory=dict)  # instances of single lengths
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of RunConfig: not the record's recipe

    def __post_init__(self) -> None:
        if not (self.tasks and self.schemes and self.seeds):
            raise UserError("the records need at least one task, one scheme and one seed")
        for name in self.settings:
            if name in CELL:
                raise UserError(f"{name} is what the records compare: it cannot be set for all of them")
        for task in self.tasks:
            for length, samples in self.samples(task).items():
                TASKS[task].checked_scale(length)
                if samples < 1:
                    raise UserError(f"samples must be at least 1, not {samples}")
        lengths = sorted({length for task in self.tasks for length in self.samples(task)})
        for length in self.exactly:
            if length not in lengths:
                raise unknown("length to take samples of", str(length), map(str, lengths))

    def configs(self) -> list[RunConfig]:
        """One config for each task, scheme, scaling of scores and seed."""
        cells = product(self.tasks, map(read_scheme, self.schemes), self.scalings, self.seeds)
        configs = [
            RunConfig.from_dict({**self.settings, **dict(zip(CELL, (task, *scheme, scaling, seed)))})
            for task, scheme, scaling, seed in cells
        ]
        return list({config.id: config for config in configs}.values())

    def samples(self, task: str) -> dict[int, int]:
        """Instances of each length at which runs of a task are evaluated."""
        lengths = self.lengths or (*LENGTHS, *FURTHER.get(task, ()))
        return {n: self.exactly.get(n, self._usual(n)) for n in sorted(set(lengths))}

    def _usual(self, length: int) -> int:
        """The record's number of instances: that of the next length in `SAMPLES`."""
        number = next((SAMPLES[n] for n in SAMPLES if n >= length), min(SAMPLES.values()))
        return number if self.most is None else min(number, self.most)

    def planned(self, configs: Sequence[RunConfig] | None = None) -> list[Planned]:
        """The runs of the grid, or others of its tasks, with what they are evaluated at."""
        chosen = self.configs() if configs is None else configs
        return [Planned(config, self.samples(config.task), HOPELESS) for config in chosen]

    def others(self, store: RunStore) -> list[RunConfig]:
        """Runs in a store whose training has ended: not of the grid, but of its tasks, its seeds and its recipe."""
        own, recipe = {config.id for config in self.configs()}, self._recipe()
        return [
            config
            for config in trained_configs(store)
            if config.id not in own
            and config.task in self.tasks
            and config.seed in self.seeds
            and recipe_of(config) == recipe
        ]

    def _recipe(self) -> dict[str, Any]:
        return recipe_of(self.configs()[0])


def trained_configs(store: RunStore) -> Iterator[RunConfig]:
    """The configs of all runs in a store whose training has ended."""
    for run in store.runs():
        try:
            if run.status().finished:
                yield run.config
        except UserError:
            continue  # `lengthlens runs check` says what is wrong with it


def recipe_of(config: RunConfig) -> dict[str, Any]:
    """All choices about a run but its cell of the grid: size, training range, optimizer, budget.

    >>> recipe_of(RunConfig("copy", "rope")) == recipe_of(RunConfig("shift", "lbpe", seed=3))
    True
    >>> recipe_of(RunConfig("copy", "rope")) == recipe_of(RunConfig("copy", "rope", steps=9))
    False
    """
    return {name: value for name, value in config.identity().items() if name not in CELL}


def cell_of(config: RunConfig) -> dict[str, Any]:
    """The rest: what tells a run from the others of its recipe."""
    return {name: value for name, value in config.identity().items() if name in CELL}
