"""What a study is made of, said in a TOML file: which runs, how far each is trained and evaluated, what is shown.

The studies that `lengthlens reproduce` knows by name are such files in this folder; one of your own is run by
``lengthlens reproduce my-study.toml``::

    title = "Does max_distance help addition?"
    tasks = ["addition", "copy"]                # or "all"
    schemes = ["ideal", "relative/max_distance=3", { name = "relative", max_distance = 12 }]  # or "all"
    seeds = 3                                   # 0, 1, 2; or a list
    lengths = [20, 100]                         # evaluated beside every length of training
    samples = 300                               # instances of each length
    held_out = ["copy"]                         # tasks on which nothing was chosen: reported apart, too
    probes = ["src", "lrc"]                     # all without this entry, none if the list is empty
    figures = ["front", "extrapolation"]        # all without it
    plugins = ["mine.py"]                       # beside this file, or modules: tasks and schemes of your own

    [settings]                                  # fields of the runs' configs
    steps = 2000

    [more_lengths]                              # of single tasks
    copy = [1000]

    [instances]                                 # of single lengths, where not `samples`
    1000 = 50

A study whose runs do not all have the same in common has several parts ``[[grids]]``, each with any of tasks, schemes,
seeds, lengths, samples and settings; what a part does not say is said above for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from lengthlens.analyses.findings import TABLES, findings
from lengthlens.errors import Registry, UserError, unknown
from lengthlens.files import read_whole
from lengthlens.models.schemes import SchemeSpec, scheme_names
from lengthlens.plugins.registry import load_plugin
from lengthlens.probes.probe import PROBES
from lengthlens.runs.evaluation import SAMPLES
from lengthlens.runs.sweep import GRID_ENTRIES, Grid, Planned
from lengthlens.tasks import TASKS
from lengthlens.theory.pola import TARGETS
from lengthlens.values import Rule, anything, list_of, map_of, one_of, parse_toml, record, text, whole

ALL = "all"
SUFFIX = ".toml"
FEWER = 0.1  # share of the instances that do for a length, once none was right at a shorter one
OURS = ("smoke", "quick", "paper", "unscaled", "schemes", "records", "full")


@dataclass(frozen=True)
class Preset:
    """A study to make. Its grids may differ in anything but the store that they share.

    >>> len(PRESETS["quick"].plans())
    30
    """

    summary: str
    grids: tuple[Grid, ...]
    pola_targets: tuple[str, ...] = ()  # of position-only linear attention, which needs no runs
    held_out: tuple[str, ...] = ()  # tasks on which neither recipe nor thresholds were chosen
    more_lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of a task, beside those of its grid
    instances: Mapping[int, int] = field(default_factory=dict)  # of a length, where not what its grid says
    probes: tuple[str, ...] | None = None  # by which its runs are probed; by all if None
    figures: tuple[str, ...] = ()  # those that it has something for; all if empty
    title: str = ""  # of its page
    plugins: tuple[str, ...] = ()  # files and modules that register what it names

    @property
    def probed(self) -> bool:
        """Whether its runs are probed at all."""
        return self.probes != ()

    def plans(self) -> list[Planned]:
        """Every run, with what it is evaluated at; those that may take longest first, so that none is left alone."""
        plans = []
        for grid in self.grids:
            tasks = list(TASKS) if grid.tasks == ALL else grid.tasks
            schemes = list(scheme_names()) if grid.schemes == ALL else grid.schemes
            plans += replace(grid, tasks=tasks, schemes=schemes).planned()
        counted = []
        for plan in plans:
            usual = next(iter(plan.samples.values()), SAMPLES)
            lengths = {**plan.samples, **dict.fromkeys(self.more_lengths.get(plan.config.task, ()), usual)}
            samples = {n: self.instances.get(n, number) for n, number in lengths.items()}
            counted.append(replace(plan, samples=samples, share_after_none_right=FEWER))
        return sorted(counted, key=lambda plan: -plan.config.steps)

    def loaded(self) -> "Preset":
        """The same, once its plug-ins are loaded."""
        for plugin in self.plugins:
            load_plugin(plugin)
        return self

    def checked(self) -> "Preset":
        """The same; a name in it that does not exist, or that no run of it has, is a `UserError` before any work."""
        tasks = dict.fromkeys(plan.config.task for plan in self.plans())
        known = {
            "held-out task of the study": (self.held_out, tasks),
            "task of the study in more_lengths": (self.more_lengths, tasks),
            "probe": (self.probes or (), PROBES),
            "figure": (self.figures, (*findings(), TABLES)),
            "target of position-only linear attention": (self.pola_targets, TARGETS),
        }
        for kind, (names, choices) in known.items():
            for name in names:
                if name not in choices:
                    raise unknown(kind, name, choices)
        return self


def list_or(other: Rule, of: Rule) -> Rule:
    """A list that is not empty, or what else will do."""
    several = list_of(of)
    return Rule(
        f"{several.words}, or {other.words}",
        lambda value: other.holds(value) or (value != [] and several.holds(value)),
        lambda value: () if other.holds(value) else several.parts(value),
    )


# What a part of a study may say, and the study above all parts.
PART = GRID_ENTRIES | {
    "tasks": list_or(one_of(ALL), text()),
    "schemes": list_or(one_of(ALL), anything()),
    "seeds": list_or(whole(1, 10_000), whole(0)),  # how many there are, or which
}
ABOVE = {name: list_of(text()) for name in ("held_out", "pola_targets", "probes", "figures", "plugins")}
ABOVE |= {"title": text(), "summary": text(), "instances": map_of(whole(1)), "more_lengths": map_of(list_of(whole(1)))}
STUDY_RULE = record("study", {}, {**PART, **ABOVE, "grids": list_of(record("part of a study", {}, PART))})


def read_preset(path: Path, load: bool = True) -> Preset:
    """A study from a TOML file; what stands in it and cannot be meant is a `UserError` that says where.

    Its plug-ins are loaded before its names are looked up, if `load`: those that are files from the folder it is in.
    """
    values = parse_toml(read_whole(path), f"'{path}'", STUDY_RULE)
    named = values.get("plugins", ())
    plugins = tuple(str(path.parent / name) if name.endswith(".py") else name for name in named)
    for plugin in plugins if load else ():
        load_plugin(plugin)
    return as_preset(values, f"'{path}'", plugins)


def as_preset(values: Mapping[str, Any], name: str, plugins: tuple[str, ...] = ()) -> Preset:
    """A study from the values of a file."""
    common = {entry: values[entry] for entry in PART if entry in values}
    parts = [{**common, **part, "settings": {**common.get("settings", {}), **part.get("settings", {})}}
             for part in values.get("grids", [{}])]  # fmt: skip
    for part in parts:
        for entry in ("tasks", "schemes"):
            if entry not in part:
                raise UserError(f'{name} has no {entry}: write {entry} = ["…"], or {entry} = "{ALL}"')
    instances = {str(n): number for n, number in values.get("instances", {}).items()}
    for length in instances:
        if not length.isascii() or not length.isdigit():
            raise UserError(f"'{length}' under instances in {name} is no length: write a whole number")
    return Preset(
        summary=values.get("summary", ""),
        grids=tuple(_grid(part) for part in parts),
        pola_targets=tuple(values.get("pola_targets", ())),
        held_out=tuple(values.get("held_out", ())),
        more_lengths=values.get("more_lengths", {}),
        instances={int(length): number for length, number in instances.items()},
        probes=tuple(values["probes"]) if "probes" in values else None,
        figures=tuple(values.get("figures", ())),
        title=values.get("title", ""),
        plugins=plugins,
    )


def _grid(part: Mapping[str, Any]) -> Grid:
    seeds, schemes = part.get("seeds", 1), part["schemes"]
    entries = schemes if schemes == ALL else [SchemeSpec.of(entry) for entry in schemes]
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    lengths, samples = part.get("lengths", ()), part.get("samples", SAMPLES)
    return Grid(part["tasks"], entries, numbers, tuple(lengths), samples, part["settings"])


def preset_of(name: str | Path) -> Preset:
    """A study by the name of a preset, or from a file; every name in it is checked."""
    if isinstance(name, Path) or name.endswith(SUFFIX):
        return read_preset(Path(name)).checked()
    return PRESETS[name].loaded()


# Their plug-ins are loaded once one of them is asked for.
PRESETS: Registry[Preset] = Registry(
    "preset", {name: read_preset(Path(str(files("lengthlens.studies"))) / f"{name}{SUFFIX}", False) for name in OURS}
)
