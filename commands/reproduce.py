"""The command that does everything: train, evaluate, probe, judge, draw, and make the page."""

import hashlib
import json
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.figures import draw
from lengthlens.commands.runs import counted, stoppable
from lengthlens.commands.stages import Stages, minutes
from lengthlens.commands.terminal import as_json, print_json

if TYPE_CHECKING:
    from lengthlens.probes.many import Probed
    from lengthlens.runs.run import Run
    from lengthlens.runs.store import RunStore
    from lengthlens.runs.sweep import Outcome, Planned
    from lengthlens.studies.presets import Preset

ROOMS = ("tasks", "models", "theory", "runs", "probes", "analyses", "studies")  # whose code decides what a study shows

# Seconds on one core, for the time left: of a step of training, of probing a run, of the rest. As measured, roughly.
STEP_COST, PROBE_COST, STUDY_COST, DRAWING_COST, PAGE_COST = 0.012, 12.0, 10.0, 30.0, 20.0


@click.command()
@click.option(
    "--preset", default="quick", show_default=True, help="Which study: smoke, quick, paper, unscaled or full."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out"), show_default=True)
@click.option("--engine", default="local", show_default=True, help="local or dask.")
@click.option("--workers", type=int, help="Local processes.  [default: one for each core]")
@click.option("--address", help="Of the Dask scheduler: tcp://…")
@click.option("--quiet", is_flag=True, help="Only the summary.")
@as_json
def reproduce(
    preset: str, out: Path, engine: str, workers: int | None, address: str | None, quiet: bool, as_json: bool
) -> None:
    """Everything from nothing: train and probe a preset's runs, then its study, figures and page.

    What is finished is not done again, so that after an interruption the same command goes on where it was. A run
    that fails is shown in the summary and on the page, and stops nothing.
    """
    from lengthlens.runs.store import RunStore
    from lengthlens.studies.presets import PRESETS

    chosen, store = PRESETS[preset], RunStore(out / "runs")
    plans, place, start = (chosen.plans(), {"engine": engine, "workers": workers, "address": address}, time.monotonic())
    with stoppable("the study"), Stages(costs(plans, store), quiet or as_json) as stages:
        trained = train_all(plans, store, place, stages)
        runs = [store.run(plan.config) for plan in plans if store.run(plan.config).has("config.json")]
        probed = probe_all(runs, place, stages)
        page = show_all(chosen, f"lengthlens reproduce --preset {preset}", store, runs, out, stages)
    summary = {
        "preset": preset,
        "runs": [vars(outcome) for outcome in trained],
        "probed": [vars(outcome) for outcome in probed],
        "study": str(out / "study.parquet"),
        "figures": str(out / "figures"),
        "page": str(page),
        "seconds": round(time.monotonic() - start, 1),
    }
    print_json(summary) if as_json else print_summary(summary)


def costs(plans: "Sequence[Planned]", store: "RunStore") -> dict[str, float]:
    """What each stage may cost: training goes by steps that are left, probing by runs that are left."""
    from lengthlens.probes.many import is_probed
    from lengthlens.runs.sweep import pending

    left = pending(plans, store)
    steps = sum(config.steps - store.run(config).status().steps for config in left)
    unprobed = sum(not is_probed(store.run(plan.config)) for plan in plans)
    return {
        "training": STEP_COST * steps,
        "probing": PROBE_COST * unprobed,
        "study": STUDY_COST,
        "figures": DRAWING_COST,
        "page": PAGE_COST,
    }


# -- stages ------------------------------------------------------------------------------------------------------


def train_all(plans: "Sequence[Planned]", store: "RunStore", place: dict[str, Any], stages: Stages) -> "list[Outcome]":
    from lengthlens.runs.sweep import pending, sweep

    def report(outcome: "Outcome") -> None:
        reason = f" ({outcome.reason})" if outcome.failed else ""
        stages.step(f"{outcome.run} {outcome.status}{reason}", permanent=outcome.failed)

    stages.begin("training", len(plans), free=len(plans) - len(pending(plans, store)))
    return sweep(plans, store, **place, report=report)


def probe_all(runs: "Sequence[Run]", place: dict[str, Any], stages: Stages) -> "list[Probed]":
    from lengthlens.probes.many import is_probed, is_ready
    from lengthlens.probes.many import probe_all as probe

    def report(outcome: "Probed") -> None:
        reason = f" ({outcome.reason})" if outcome.reason else ""
        stages.step(f"{outcome.run} {outcome.status}{reason}", permanent=outcome.status == "failed")

    left = sum(is_ready(run) and not is_probed(run) for run in runs)
    stages.begin("probing", len(runs), free=len(runs) - left)
    return probe(runs, **place, report=report)


def show_all(
    preset: "Preset", command: str, store: "RunStore", runs: "Sequence[Run]", out: Path, stages: Stages
) -> Path:
    """Study, figures and page; nothing if all is there and nothing that it is made of has changed."""
    from lengthlens.analyses.gallery import Gallery
    from lengthlens.analyses.report import page as make_page
    from lengthlens.files import write_whole

    page, stamp = out / "index.html", out / ".shown"
    if page.exists() and stamp.exists() and stamp.read_text() == fingerprint(command, runs):
        return page
    stamp.unlink(missing_ok=True)
    table, about = make_study(preset, command, store, runs, out / "study.parquet", stages)
    gallery = Gallery(table, preset.held_out)
    stages.begin("figures", permanent=True)
    draw(gallery, out=out / "figures", report=lambda name: None)
    stages.begin("page")
    write_whole(page, make_page(table, about, gallery=gallery).encode())
    write_whole(stamp, fingerprint(command, runs).encode())  # anew: a study keeps what it finds out with the runs
    return page


def make_study(
    preset: "Preset", command: str, store: "RunStore", runs: "Sequence[Run]", path: Path, stages: Stages
) -> tuple[Any, dict[str, Any]]:
    from lengthlens.analyses.table import write_study
    from lengthlens.files import write_whole
    from lengthlens.studies.build import provenance, study

    stages.begin("study")
    table = study(store, runs, pola_targets=preset.pola_targets, report=stages.tell)
    made = time.strftime("%Y-%m-%d", time.gmtime())
    about = provenance(store, runs, made, command, preset.held_out)
    write_study(table, about, path)
    write_whole(path.with_name("provenance.json"), (json.dumps(about, indent=1) + "\n").encode())
    return table, about


def fingerprint(command: str, runs: "Sequence[Run]") -> str:
    """Of all that study, figures and page are made of: the files of the runs, and the code."""
    known = hashlib.sha256(command.encode())
    for run in runs:
        known.update(json.dumps([run.id, run.manifest()], sort_keys=True).encode())
    for room in ROOMS:
        folder = Path(str(files("lengthlens"))) / room
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".html", ".css", ".js")):
            known.update(path.read_bytes())
    return known.hexdigest()


# -- summary -----------------------------------------------------------------------------------------------------


def print_summary(summary: dict[str, Any]) -> None:
    """How many runs ended how, by name those that failed, and where everything is."""
    click.echo(f"runs: {counted([run['status'] for run in summary['runs']])}")
    click.echo(f"probes: {counted([run['status'] for run in summary['probed']])}")
    for run in [*summary["runs"], *summary["probed"]]:
        if run["status"] == "failed":
            click.echo(f"failed: {run['run']}: {run['reason']}")
    click.echo(f"study: {summary['study']}\nfigures: {summary['figures']}")
    click.echo(f"done in {minutes(summary['seconds'])}; open the page in a browser:")
    click.echo(summary["page"])


REPRODUCE_COMMANDS = (reproduce,)
