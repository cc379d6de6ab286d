"""The studies that `lengthlens reproduce` knows by name: which runs, and how far each is trained and evaluated."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lengthlens.analyses.records import FEWER, GOAL_SCHEME, GOALS
from lengthlens.errors import Registry
from lengthlens.models.schemes import scheme_names
from lengthlens.runs.sweep import Grid, Planned
from lengthlens.tasks import TASKS


@dataclass(frozen=True)
class Preset:
    """A study by name. Its grids may differ in anything but the store that they share.

    >>> len(PRESETS["quick"].plans())
    30
    """

    summary: str
    grids: tuple[Grid, ...]
    pola_targets: tuple[str, ...]  # of position-only linear attention, which needs no runs
    held_out: tuple[str, ...] = ()  # tasks on which neither recipe nor thresholds were chosen
    instances: Mapping[int, int] = field(default_factory=dict)  # of a length, where not what its grid says
    probed: bool = True  # whether its runs are probed
    figures: tuple[str, ...] = ()  # those that it has something for; all if empty

    def plans(self) -> list[Planned]:
        """Every run, with what it is evaluated at; those that may take longest first, so that none is left alone."""
        plans = [plan for grid in self.grids for plan in grid.planned()]
        samples = [{n: self.instances.get(n, number) for n, number in plan.samples.items()} for plan in plans]
        counted = [replace(plan, samples=own, share_after_none_right=FEWER) for plan, own in zip(plans, samples)]
        return sorted(counted, key=lambda plan: -plan.config.steps)


def grid(tasks: str, schemes: str, seeds: int, lengths: tuple[int, ...], samples: int, **settings: Any) -> Grid:
    """A grid in the words of the command line.

    >>> grid("copy", "rope relative/max_distance=3", 1, (20,), 100, train_max=10).schemes[1]
    'relative/max_distance=3'
    """
    return Grid(tasks.split(), schemes.split(), range(seeds), lengths, samples, settings)


# Two that are accurate in range and nowhere else, three that go on: one of them by the value of a single integer.
QUICK_SCHEMES = "rope learned ideal lbpe hinted:relative/max_distance=3"
QUICK_TARGETS = ("prefix-sum", "running-mean")
ALL_TARGETS = (*QUICK_TARGETS, "shift-by-one", "alternating-sign", "first-token")

# On six scales and in 2400 steps `rope` and `learned` become accurate in range, in half a minute on a core. No scheme
# can extrapolate a task of growing SRC: it is there to show that, not to be solved, and gets an eighth of the steps.
QUICK = {"train_max": 6, "steps": 2400}
GROWING = {"train_max": 6, "steps": 300}
QUICK_LENGTHS = (12, 30, 60)
# The study in figures/, under the default recipe. Recipe and thresholds were chosen on parity-cot, copy and addition.
PAPER_TASKS = "parity-cot copy reverse modular-sum-cot shift parity"
REPEATED_TASKS = "parity-cot copy reverse modular-sum-cot shift"  # all but the one that no scheme can extrapolate
HELD_OUT = ("reverse", "modular-sum-cot", "shift")
PAPER_SCHEMES = (
    "ideal lbpe hinted:relative/max_distance=3 hinted:relative/max_distance=12 relative t5 alibi rope learned none"
)
# The records: train on lengths up to 10, be exact at 1000 and more. The learned relation with all keys that it does not
# name weighing as one, and each by itself; the reference that is given every role; and one integer that decides: with a
# clip of 3 all codes occur in training, with one of 12 every longer input brings codes that were never seen.
RECORD_SCHEMES = f"{GOAL_SCHEME} lbpe ideal hinted:relative/max_distance=3 hinted:relative/max_distance=12"
RECORD_LENGTHS = (10, 20, 50, 100, 200, 500)  # of every task, beside those of its goals
# If all instances are right, 1000 of them say "above 0.996" with 95 % confidence, 200 "above 0.98" and 20 "above 0.83".
# One takes about a tenth of a second at n = 1000 and some ten seconds at 10,000, on one core.
RECORD_INSTANCES = {10: 1000, 20: 1000, 50: 1000, 100: 500, 200: 300, 500: 200, 1000: 200, 10_000: 20}
SMOKE = {"train_max": 3, "n_heads": 2, "d_model": 32, "check_every": 50, "warmup": 20}

PRESETS: Registry[Preset] = Registry("preset", {
    "smoke": Preset(
        "a few tiny runs, to see that everything works; under a minute on two cores",
        (grid("copy", "ideal relative", 1, (6, 30), 100, steps=400, **SMOKE),
         grid("parity", "ideal", 1, (6, 30), 100, steps=50, **SMOKE)),
        ("prefix-sum",),
    ),
    "quick": Preset(
        "three tasks, one of growing SRC, five schemes, two seeds; within ten minutes on two cores",
        (grid("parity-cot copy", QUICK_SCHEMES, 2, QUICK_LENGTHS, 300, **QUICK),
         grid("parity", QUICK_SCHEMES, 2, QUICK_LENGTHS, 300, **GROWING)),
        QUICK_TARGETS,
    ),
    "paper": Preset(
        "the study in figures/: six tasks, ten schemes, three seeds; some hours on two cores",
        (grid(PAPER_TASKS, PAPER_SCHEMES, 3, (20, 50, 100), 300),), ALL_TARGETS, held_out=HELD_OUT,
    ),
    "unscaled": Preset(
        "the study again without length-scaled scores, on runs of its own: five tasks, ten schemes, two seeds",
        (grid(REPEATED_TASKS, PAPER_SCHEMES, 2, (20, 50, 100), 100, score_scaling="none"),),
        QUICK_TARGETS, held_out=HELD_OUT,
    ),
    "records": Preset(
        "trained on n ≤ 10, evaluated up to 10,000: eight tasks, five schemes, three seeds; a day on two cores",
        tuple(
            grid(task, RECORD_SCHEMES, 3, (*RECORD_LENGTHS, *goals), 1000, score_scaling=scaling)
            for scaling in ("log", "none")
            for task, goals in GOALS.items()
        ),
        (), instances=RECORD_INSTANCES, probed=False, figures=("records", "extrapolation", "outcome", "tables"),
    ),
    "full": Preset(
        "every task under every scheme with five seeds, for a GPU or a cluster",
        (grid(" ".join(TASKS), " ".join(scheme_names()), 5, (20, 50, 100, 200, 500, 1000), 1000),), ALL_TARGETS,
    ),
})  # fmt: skip
