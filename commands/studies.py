"""Commands about studies of many runs: make one from nothing, redraw its figures and tables, make its page."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands import options
from lengthlens.commands.options import as_json
from lengthlens.commands.terminal import counted, minutes, print_json, progress, stoppable, study_progress

if TYPE_CHECKING:
    from lengthlens.analyses.study import Study
    from lengthlens.runs.store import RunStore
    from lengthlens.studies.reproduce import Reproduced

table_file = click.option(
    "--table",
    "tables",
    required=True,
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The study, as `lengthlens reproduce` writes it (.parquet or .csv). Given several times: all of them as one.",
)
held_out_tasks = click.option(
    "--held-out",
    metavar="TASKS",
    callback=options.names,
    help="Tasks on which nothing was chosen, with commas: reported apart, too.  [default: as the study says]",
)


@click.command("reproduce")
@click.option(
    "--preset", default="quick", show_default=True, help="Which study: smoke, quick, paper, unscaled, records or full."
)
@click.option("--out", type=options.OutFolder(), default=Path("out"), show_default=True)
@click.option("--store", callback=options.open_store, help="Where the runs are.  [default: runs in --out]")
@options.engine_options
@options.quiet
@as_json
def reproduce_command(
    preset: str, out: Path, store: "RunStore | None", quiet: bool, as_json: bool, **where: Any
) -> None:
    """Everything from nothing: train and probe a preset's runs, then its study, figures and page.

    What is finished is not done again, so that after an interruption the same command goes on where it was. A run
    that fails is shown in the summary and on the page, and stops nothing.
    """
    from lengthlens.studies.reproduce import reproduce

    with stoppable("the study"), study_progress(quiet or as_json) as show:
        done = reproduce(preset, out, store=store, report=show, **where)
    if as_json:
        outcomes = {"runs": list(map(vars, done.runs)), "probed": [each._asdict() for each in done.probed]}
        paths = {"study": str(done.study), "figures": str(done.figures), "page": str(done.page)}
        print_json({"preset": done.preset, **outcomes, **paths, "seconds": done.seconds, "damaged": done.damaged})
    else:
        show_reproduced(done)
    if done.damaged:
        click.echo(f"{len(done.damaged)} damaged, not in the study: see `lengthlens runs repair`", err=True)
        sys.exit(1)


def show_reproduced(done: "Reproduced") -> None:
    """What became of all runs, and where everything is."""
    click.echo(f"runs: {counted([run.status for run in done.runs])}")
    if done.probed:
        click.echo(f"probes: {counted([run.status for run in done.probed])}")
    for run, reason in done.failures.items():
        click.echo(f"failed: {run}: {reason}")
    click.echo(f"study: {done.study}\nfigures: {done.figures}")
    click.echo(f"done in {minutes(done.seconds)}; open the page in a browser:\n{done.page}")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@table_file
@click.option(
    "--out",
    type=options.OutFolder(),
    default=Path("figures"),
    show_default=True,
    help="Where to; tables go into its folder tables.",
)
@click.option(
    "--formats", default="pdf,png", show_default=True, callback=options.names, help="Of figures, with commas."
)
@held_out_tasks
@as_json
def figures(names: tuple[str, ...], out: Path, formats: list[str], as_json: bool, **about: Any) -> None:
    """Redraw every figure and table of a study, or only those NAMEs. The same study gives the same bytes."""
    from lengthlens.studies.drawing import check_names, draw

    check_names(names, formats)
    study = opened(**about)
    with progress("drawing") as report:
        drawn = draw(study, names, out, formats, report=report)
    for name, sentence in drawn.missing.items():
        click.echo(f"{name}: {sentence}", err=True)
    if as_json:
        print_json({"written": [str(path) for path in drawn.files], "missing": drawn.missing})
    else:
        click.echo(f"{len(drawn.files)} files in {out}")


@click.command()
@table_file
@click.option(
    "--out",
    type=options.OutFile(),
    default=Path("report/index.html"),
    show_default=True,
    help="The page: one file, which needs nothing else.",
)
@held_out_tasks
def report(out: Path, **about: Any) -> None:
    """Make one page of a study: the finding, the figures, and every cell to look into."""
    from lengthlens.analyses.page import page
    from lengthlens.files import make_directory, write_whole

    study = opened(**about)
    with progress("report") as tell:
        tell("drawing")
        text = page(study)
    make_directory(out.parent)
    write_whole(out, text.encode())
    click.echo(out)


def opened(tables: Sequence[Path], held_out: list[str] | None) -> "Study":
    """A study, or several as one, with the tasks held out: those asked for, else those that it names."""
    from lengthlens.analyses.study import Study
    from lengthlens.analyses.table import joined, read_study

    table, about = joined({str(path): read_study(path) for path in tables})
    return Study(table, about, held_out)


STUDY_COMMANDS = (reproduce_command, figures, report)
