"""The command that does everything: train, evaluate, probe, judge, draw, and make the page."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lengthlens.commands.options import as_json, engine_options
from lengthlens.commands.progress import minutes, study_progress
from lengthlens.commands.terminal import counted, print_json, stoppable

if TYPE_CHECKING:
    from lengthlens.studies.reproduce import Reproduced


@click.command()
@click.option(
    "--preset", default="quick", show_default=True, help="Which study: smoke, quick, paper, unscaled, records or full."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out"), show_default=True)
@click.option("--store", help="Where the runs are.  [default: runs in --out]")
@engine_options
@click.option("--quiet", is_flag=True, help="Only the summary.")
@as_json
def reproduce(
    preset: str,
    out: Path,
    store: str | None,
    engine: str,
    workers: int | None,
    address: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Everything from nothing: train and probe a preset's runs, then its study, figures and page.

    What is finished is not done again, so that after an interruption the same command goes on where it was. A run
    that fails is shown in the summary and on the page, and stops nothing.
    """
    from lengthlens.runs.store import RunStore
    from lengthlens.studies.reproduce import reproduce as make

    with stoppable("the study"), study_progress(quiet or as_json) as show:
        runs = RunStore(store) if store else None
        done = make(preset, out, store=runs, engine=engine, workers=workers, address=address, report=show)
    if as_json:
        print_json(
            {
                "preset": done.preset,
                "runs": [vars(outcome) for outcome in done.runs],
                "probed": [vars(outcome) for outcome in done.probed],
                "study": str(done.study),
                "figures": str(done.figures),
                "page": str(done.page),
                "seconds": done.seconds,
            }
        )
    else:
        print_summary(done)


def print_summary(done: "Reproduced") -> None:
    """How many runs ended how, by name those that failed, and where everything is."""
    click.echo(f"runs: {counted([run.status for run in done.runs])}")
    if done.probed:
        click.echo(f"probes: {counted([run.status for run in done.probed])}")
    for run, reason in done.failures.items():
        click.echo(f"failed: {run}: {reason}")
    click.echo(f"study: {done.study}\nfigures: {done.figures}")
    click.echo(f"done in {minutes(done.seconds)}; open the page in a browser:")
    click.echo(str(done.page))


REPRODUCE_COMMANDS = (reproduce,)
