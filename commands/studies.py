"""Commands about studies of many runs: make one from nothing, or of runs there are; its figures, tables and page."""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands import options, terminal
from lengthlens.commands.options import as_json
from lengthlens.commands.terminal import counted, print_json, print_table, progress, stoppable
from lengthlens.errors import UserError

if TYPE_CHECKING:
    from lengthlens.analyses.study import Study
    from lengthlens.runs.store import RunStore

COLLECTED = 500_000  # objects between garbage collections: imports and figures stay, and a collection takes seconds
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
    help="Tasks on which nothing was chosen, with commas: reported apart, too.  [default: those in the study]",
)
where_option = click.option(
    "--where",
    metavar="FIELD=VALUE,…",
    callback=options.reading(options.read_where),
    help="Only runs whose config has these values: task=copy|reverse,train_max=10. A bar separates choices.",
)
title_option = click.option("--title", help="The title of the page.  [default: that of the study]")


@click.command("study")
@options.store_option
@click.option("--out", type=options.OutFile(), default="study.parquet", show_default=True, help="The study.")
@where_option
@title_option
@click.option("--held-out", metavar="TASKS", callback=options.names, help="Tasks on which nothing was chosen.")
@click.option(
    "--pola",
    metavar="TARGETS",
    callback=options.names,
    help="Targets of position-only linear attention to add, with commas; it needs no runs.",
)
@as_json
def study_command(
    store: "RunStore", out: Path, where: dict[str, list[Any]] | None, title: str | None, held_out: list[str] | None,
    pola: list[str] | None, as_json: bool,
) -> None:  # fmt: skip
    """Make a study of the runs in a store: one table with all their measurements, and verdicts.

    `lengthlens figures` and `lengthlens report` show it. Runs without probes are in it with their scores; for their
    complexity, probe them first with `lengthlens probe --all`. If the file exists, it is updated: only new and changed
    runs are read.
    """
    import time

    from lengthlens.analyses.study import chosen
    from lengthlens.analyses.table import write_study
    from lengthlens.studies.build import earlier_study, matching, provenance, study

    words = f"lengthlens study{f' --where {shown_where(where)}' if where else ''}"
    with terminal.leaving_out("the study") as left_out, progress("study") as tell:
        wanted = list(matching(store.must_exist().runs(), where or {}, left_out))
        if where and not wanted:
            raise UserError(
                f"no run in '{store.path}' that can be read has {shown_where(where)}: see `lengthlens runs --store "
                f"{store.path}`"
            )
        table = study(
            store, wanted, pola_targets=pola or (), report=tell, left_out=left_out, earlier=earlier_study(out)
        )
        runs = [name for name in table["run"].unique() if name]
        today = time.strftime("%Y-%m-%d", time.gmtime())
        tasks = chosen("task in the study", held_out or (), [task for task in table["task"].unique() if task])
        about = provenance(store, runs, today, words, tasks, title or "")
        write_study(table, about, out)
        cells = len(table.loc[table["run"] != "", ["task", "scheme", "recipe", "train_max"]].drop_duplicates())
        if as_json:
            print_json({"study": str(out), "runs": len(runs), "cells": cells, "rows": len(table)})
        else:
            click.echo(f"{len(runs)} runs in {cells} cells: {out}")


def shown_where(where: dict[str, list[Any]]) -> str:
    return ",".join(f"{name}={'|'.join(map(str, values))}" for name, values in where.items())


@click.command("reproduce")
@click.argument("file", required=False, metavar="[STUDY.toml]")
@click.option(
    "--preset", help="One of our studies: smoke, quick, paper, unscaled, schemes, records or full.  [default: quick]"
)
@click.option("--out", type=options.OutFolder(), default="out", show_default=True, help="Where everything goes.")
@click.option("--store", callback=options.open_store, help="Where the runs are.  [default: runs in --out]")
@options.engine_options
@options.resources_option
@options.device_option
@click.option("--dry-run", is_flag=True, help="Show which runs there are to train, and do nothing.")
@options.quiet
@as_json
def reproduce_command(
    file: str | None, preset: str | None, out: Path, store: "RunStore | None", dry_run: bool, quiet: bool,
    as_json: bool, **where: Any,
) -> None:  # fmt: skip
    """Everything from nothing: train and probe a study's runs, then its table, figures and page.

    The study is a preset, or a file STUDY.toml that names its tasks, schemes, seeds, lengths, probes and title.
    Finished work is not repeated: after an interruption, the same command continues. A run that fails is shown in the
    summary and on the page; the others go on.
    """
    from lengthlens.studies.reproduce import reproduce

    if dry_run:
        show_plans(file or preset or "quick", store, out, as_json)
        return
    if file and preset:
        raise UserError(f"'{file}' and --preset {preset} are two studies: give one of them")
    with stoppable("the study"), terminal.study_progress(quiet or as_json) as show:
        done = reproduce(file or preset or "quick", out, store=store, report=show, **where)
    if as_json:
        outcomes = {"runs": list(map(vars, done.runs)), "probed": [each._asdict() for each in done.probed]}
        paths = {"study": str(done.study), "figures": str(done.figures), "page": str(done.page)}
        print_json({"preset": done.preset, **outcomes, **paths, "seconds": done.seconds, "damaged": done.damaged})
    else:
        click.echo(f"runs: {counted([run.status for run in done.runs])}")
        if done.probed:
            click.echo(f"probes: {counted([run.status for run in done.probed])}")
        for run, reason in done.failures.items():
            click.echo(f"failed: {run}: {reason}")
        click.echo(f"study: {done.study}\nfigures: {done.figures}")
        click.echo(f"done in {terminal.minutes(done.seconds)}; open the page in a browser:\n{done.page}")
    if done.damaged:
        click.echo(f"{len(done.damaged)} damaged, not in the study: see `lengthlens runs repair`", err=True)
        sys.exit(1)


def show_plans(study: str, store: "RunStore | None", out: Path, as_json: bool) -> None:
    """The runs of a study: what each is evaluated at, and whether it is done."""
    from lengthlens.runs.store import RunStore
    from lengthlens.runs.sweep import pending
    from lengthlens.studies.presets import preset_of

    plans = preset_of(study).plans()
    left = {config.id for config in pending(plans, store or RunStore(out / "runs"))}
    rows = [
        {"run": plan.config.id, "state": "to do" if plan.config.id in left else "done", "steps": plan.config.steps,
         "lengths": ",".join(map(str, sorted(plan.samples)))}
        for plan in plans
    ]  # fmt: skip
    if as_json:
        print_json({"runs": rows, "to_do": len(left)})
        return
    print_table(rows)
    click.echo(f"{len(left)} of {len(rows)} runs to do")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@table_file
@click.option(
    "--out",
    type=options.OutFolder(),
    default="figures",
    show_default=True,
    help="Where to; tables go into its folder tables.",
)
@click.option(
    "--formats", default="pdf,png", show_default=True, callback=options.names, help="Of figures, with commas."
)
@options.width_option
@click.option("--height", type=float, help="The same for their height.  [default: what each needs]")
@click.option("--tasks", callback=options.names, help="Only these tasks, with commas.")
@click.option("--schemes", callback=options.names, help="Only these schemes, with commas; with all their options.")
@click.option("--seeds", callback=options.numbers, help="Only these seeds: 0,1,2 or 0-9.")
@click.option("--csv", is_flag=True, help="The numbers that each figure shows, too, beside it.")
@held_out_tasks
@as_json
def figures(
    names: tuple[str, ...], out: Path, formats: list[str], as_json: bool, tables: Sequence[Path],
    held_out: list[str] | None, **asked: Any,
) -> None:  # fmt: skip
    """Redraw every figure and table of a study, or only those NAMEs. The same study gives the same bytes.

    Figures are written in each of the formats pdf, png, svg and pgf, tables in Markdown, LaTeX and csv.
    """
    gc.set_threshold(COLLECTED)
    from lengthlens.analyses.findings import check_names, draw

    check_names(names, formats)
    study = opened(tables, held_out)
    with progress("drawing") as report:
        drawn = draw(study, names, out, formats, report=report, **{k: v for k, v in asked.items() if v})
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
    default="report/index.html",
    show_default=True,
    help="The page: one file, which needs nothing else.",
)
@click.option("--figures", type=options.OutFolder(), help="Write its figures and tables, too, as `figures` does.")
@held_out_tasks
@title_option
def report(out: Path, title: str | None, figures: Path | None, **about: Any) -> None:
    """Make one page of a study: the finding, the figures, and every cell (a task under a scheme) in detail."""
    gc.set_threshold(COLLECTED)
    from lengthlens.analyses.page import page
    from lengthlens.files import make_directory, write_whole

    study = opened(**about)
    study.about |= {"title": title} if title else {}
    with progress("report") as tell:
        tell("drawing")
        text = page(study)
        if figures is not None:
            from lengthlens.analyses.findings import draw

            draw(study, out=figures, report=tell)
    make_directory(out.parent)
    write_whole(out, text.encode())
    click.echo(out)


def opened(tables: Sequence[Path], held_out: list[str] | None) -> "Study":
    """A study, or several as one, with the tasks held out: those asked for, else those that it names."""
    from lengthlens.analyses.study import Study
    from lengthlens.analyses.table import joined, read_study

    table, about = joined({str(path): read_study(path) for path in tables})
    return Study(table, about, held_out)


STUDY_COMMANDS = (reproduce_command, study_command, figures, report)
