"""From nothing to the page: train a study's runs, probe them, make their study, draw it, and put it on one page.

What is finished is not done again, so that after an interruption the same call goes on where it was.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from lengthlens.analyses.findings import draw
from lengthlens.analyses.page import page as make_page
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import write_study
from lengthlens.errors import UserError
from lengthlens.files import read_whole, remove_quietly, sha256, write_whole
from lengthlens.plugins.fingerprint import code_version
from lengthlens.probes.table import Probed, is_probed, probe_all, unready
from lengthlens.runs.run import Run
from lengthlens.runs.store import RunStore, each_sound
from lengthlens.runs.sweep import Planned, RunOutcome, pending, sweep
from lengthlens.studies.build import earlier_study, provenance, study
from lengthlens.studies.presets import SUFFIX, Preset, preset_of
from lengthlens.values import map_of, parse_json, record, text

STUDY, PROVENANCE, PAGE, FIGURES = "study.parquet", "provenance.json", "index.html", "figures"
STAMP = ".shown"  # what study, figures and page were made of, and their checksums
STAMP_RULE = record("stamp", {"made_of": text(), "files": map_of(text())})

# Seconds on one core, for the time left: of a step of training, of probing a run, of the rest. As measured, roughly.
STEP_COST, PROBE_COST, REST_COST = 0.012, 12.0, {"study": 10.0, "figures": 30.0, "page": 20.0}


class Progress(NamedTuple):
    """How far `reproduce` is. `share` is the part of the whole that is done, by what each stage is thought to cost."""

    stage: str  # training, probing, study, figures, page
    done: int
    of: int
    text: str
    share: float
    failed: bool = False  # the text says what went wrong with a run

    def __str__(self) -> str:
        return f"{self.stage} {self.done} of {self.of}: {self.text}"


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Reproduced:
    """What became of each run, and where everything is. `made` is false if all was there already."""

    preset: str
    runs: list[RunOutcome]
    probed: list[Probed]
    study: Path
    figures: Path
    page: Path
    made: bool
    seconds: float
    damaged: dict[str, str] = field(default_factory=dict)  # runs that are not in the study, and what is wrong

    @property
    def failures(self) -> dict[str, str]:
        """Why runs failed, in training or when they were probed, or are damaged, by run."""
        probing = {each.run: each.reason for each in self.probed if each.status == "failed"}
        return {each.run: each.reason or "" for each in self.runs if each.failed} | probing | self.damaged


def reproduce(
    preset: str | Path,
    out: str | Path = "out",
    *,
    store: RunStore | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    device: str | None = None,
    report: Report | None = None,
) -> Reproduced:
    """Everything from nothing: train and probe a study's runs, then make its table, figures and page.

    `preset` is a name in `lengthlens.studies.presets.PRESETS`, or the path of a TOML file that says what the study
    consists of (`lengthlens.studies.presets` shows one). Study, figures and page go to the directory `out`, the
    runs to its folder runs or to the `store` given. `engine` "local" takes `workers` processes (one for each core or,
    where there are GPUs, for each GPU), "dask" the workers of the scheduler at `address`, each with `resources` such as
    {"GPU": 1}. `device` is where runs are trained and probed, if not as the study says. `report` is told a `Progress`
    after each step, and `print` will do.

    A run that fails is shown in the result and on the page, and stops nothing. An unknown preset or engine, a name in a
    file that does not exist, or a place that cannot be written, is a `UserError`.

    >>> from tempfile import TemporaryDirectory
    >>> tiny = ["tasks = ['copy']", "schemes = ['rope']", "samples = 9", "[settings]", "steps = 2", "train_max = 2"]
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "tiny.toml").write_text("\\n".join(tiny))
    ...     done = reproduce(f"{folder}/tiny.toml", f"{folder}/out", workers=1)
    >>> [run.status for run in done.runs], done.page.name
    (['not-converged'], 'index.html')
    """
    chosen, out, start = preset_of(preset), Path(out), time.monotonic()
    store = store or RunStore(out / "runs")
    place: dict[str, Any] = {"engine": engine, "workers": workers, "address": address, "resources": resources}
    plans = chosen.plans()
    if device is not None:
        plans = [replace(plan, config=replace(plan.config, device=device)) for plan in plans]
    work = Work(costs(chosen, plans, store), report)

    work.begin("training", len(plans), free=len(plans) - len(pending(plans, store)))
    trained = sweep(plans, store, **place, report=work.ended)
    runs = [run for run in (store.run(plan.config) for plan in plans) if run.has("config.json")]
    probed: list[Probed] = []
    if chosen.probed:
        work.begin("probing", len(runs), free=sum(is_probed(run, chosen.probes) or unready(run) != "" for run in runs))
        place["device"] = next((plan.config.device for plan in plans), None)
        probed = probe_all(runs, chosen.probes, **place, report=work.ended)
    damaged: dict[str, str] = {}
    sound = [run for run, _ in each_sound(runs, Run.verified, damaged.__setitem__)]
    made = show(str(preset), chosen, store, sound, out, work)

    seconds = round(time.monotonic() - start, 1)
    return Reproduced(str(preset), trained, probed, out / STUDY, out / FIGURES, out / PAGE, made, seconds, damaged)


def show(name: str, chosen: Preset, store: RunStore, runs: Sequence[Run], out: Path, work: "Work") -> bool:
    """Study, figures and page; False if all are there as they were made, of what they would be made of now."""
    made = [repr((name, chosen)), code_version(), [[run.id, run.manifest()] for run in runs]]
    made_of = sha256(json.dumps(made, sort_keys=True).encode())
    if is_shown(out, made_of):
        return False
    remove_quietly(out / STAMP)

    work.begin("study")
    known = earlier_study(out / STUDY)
    table = study(store, runs, pola_targets=chosen.pola_targets, report=work.tell, earlier=known)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    command = f"lengthlens reproduce {'' if name.endswith(SUFFIX) else '--preset '}{Path(name).name}"
    about = provenance(store, runs, today, command, chosen.held_out, chosen.title)
    write_study(table, about, out / STUDY)
    write_whole(out / PROVENANCE, (json.dumps(about, indent=1) + "\n").encode())

    work.begin("figures")
    shown = Study(table, about)
    drawn = draw(shown, chosen.figures, out / FIGURES, report=work.tell)

    work.begin("page")
    write_whole(out / PAGE, make_page(shown).encode())
    write_stamp(out, made_of, [out / STUDY, out / PROVENANCE, *drawn.files, out / PAGE])
    return True


def write_stamp(out: Path, made_of: str, paths: Iterable[Path]) -> None:
    """Keep what the files at `paths`, under `out`, were made of, and their checksums."""
    sums = {str(path.relative_to(out)): sha256(read_whole(path)) for path in paths}
    write_whole(out / STAMP, json.dumps({"made_of": made_of, "files": sums}, indent=1).encode())


def is_shown(out: Path, made_of: str) -> bool:
    """Whether every file that was made of this is there, whole."""
    try:
        stamp = parse_json(read_whole(out / STAMP), STAMP, STAMP_RULE)
        return stamp["made_of"] == made_of and all(
            sha256(read_whole(out / name)) == known for name, known in stamp["files"].items()
        )
    except UserError:
        return False


def costs(preset: Preset, plans: Sequence[Planned], store: RunStore) -> dict[str, float]:
    """What each stage may cost, in seconds: training by the steps that are left, probing by the runs that are left."""
    steps = 0
    for config in pending(plans, store):
        steps += config.steps
        with suppress(UserError):  # damaged: what will be tried with it says so
            steps -= store.run(config).status().steps
    unprobed = sum(not is_probed(store.run(plan.config), preset.probes) for plan in plans) if preset.probed else 0
    return {"training": STEP_COST * steps, "probing": PROBE_COST * unprobed, **REST_COST}


class Work:
    """Stages of known cost, one after the other; tells how far the whole is.

    >>> work = Work({"train": 30.0, "draw": 10.0}, print)
    >>> work.begin("train", 3, free=1)
    train 0 of 3: starting
    >>> work.step("finished before")
    train 1 of 3: finished before
    >>> work.share
    0.0
    >>> work.step("copy_rope converged"), work.share
    train 2 of 3: copy_rope converged
    (None, 0.375)
    """

    def __init__(self, costs: Mapping[str, float], report: Report | None = None) -> None:
        self.costs, self.report = dict(costs), report
        self.stage, self.done, self.of, self.free, self.before = "", 0, 0, 0, 0.0

    def begin(self, stage: str, of: int = 1, free: int = 0) -> None:
        """Enter a stage of so many steps, of which the first `free` cost nothing; the stage before it is done."""
        self.before += self.costs.get(self.stage, 0.0)
        self.stage, self.done, self.of, self.free = stage, 0, of, free
        self.tell("starting")

    def step(self, text: str, failed: bool = False) -> None:
        """One step of the stage is done."""
        self.done += 1
        self.tell(text, failed)

    def ended(self, outcome: RunOutcome | Probed) -> None:
        """One run was trained or probed."""
        why = f" ({outcome.reason})" if outcome.reason and outcome.status in ("failed", "left out") else ""
        self.step(f"{outcome.run} {outcome.status}{why}", failed=outcome.status == "failed")

    def tell(self, text: str, failed: bool = False) -> None:
        """What is going on."""
        if self.report:
            self.report(Progress(self.stage, self.done, self.of, text, self.share, failed))

    @property
    def share(self) -> float:
        of_stage = max(0, self.done - self.free) / max(1, self.of - self.free)
        now = self.before + self.costs.get(self.stage, 0.0) * of_stage
        return now / (sum(self.costs.values()) or 1.0)
