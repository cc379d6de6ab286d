"""Commands that need no training: tasks, their instances and complexity, position embeddings, POLA, and verdicts."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from lengthlens.commands.options import MOST_SCALE, Whole, as_json, plot_file, scheme_option
from lengthlens.commands.terminal import foresee, print_json, print_table, progress, save_figure
from lengthlens.errors import UserError
from lengthlens.files import cache_directory, make_directory, write_whole
from lengthlens.plugins.fingerprint import code_version
from lengthlens.plugins.registry import named_anywhere
from lengthlens.values import within_memory

Rows = list[dict[str, Any]]
SHOWN_TOKEN = 100  # bytes of a token as an id and as a text
SCALE_SECONDS = 6e-8  # of the circuits up to n, for each step of each, as it was measured


def cached(name: str, make: Callable[[], Rows]) -> Rows:
    """Rows that follow from the code alone: from the user's cache if this version of the code wrote them.

    With plug-ins, rows follow from more than this code, and are made every time.
    """
    if named_anywhere():
        return make()
    folder = cache_directory()
    path = folder / f"{name}-{code_version()}.json"
    with suppress(OSError, ValueError):
        known: Rows = json.loads(path.read_bytes())
        return known
    rows = make()
    with suppress(UserError, OSError):  # where nothing can be written, a listing takes its time
        make_directory(folder)
        for old in folder.glob(f"{name}-*"):
            old.unlink()
        write_whole(path, json.dumps(rows).encode())
    return rows


@click.command()
@as_json
def tasks(as_json: bool) -> None:
    """List the tasks: an example at n = 4, vocabulary, sequence length and declared SRC."""

    def make() -> Rows:
        from lengthlens.tasks import TASKS
        from lengthlens.tasks.complexity import task_rows

        return task_rows(TASKS.values())

    rows = cached("tasks", make)
    cells = [
        {
            "task": row["name"],
            "example at n = 4": row["example"],
            "tokens": row["vocabulary"],
            "length": row["length"],
            "SRC at n = 4, 8, 16": ", ".join(map(str, row["src"].values())),
        }
        for row in rows
    ]
    print_json(rows) if as_json else print_table(cells, by=[row["family"] for row in rows])


@click.command()
@click.argument("task")
@click.option("--scale", type=Whole(0, MOST_SCALE), default=4, show_default=True, help="The size n.")
@click.option("--batch", type=Whole(0, 100_000), default=5, show_default=True, help="How many instances.")
@click.option("--seed", type=Whole(0, 2**63 - 1), default=0, show_default=True, help="Of the random numbers.")
@as_json
def sample(task: str, scale: int, batch: int, seed: int, as_json: bool) -> None:
    """Draw instances of TASK; the same seed gives the same instances."""
    import torch

    from lengthlens.tasks import TASKS

    length = TASKS[task].length(TASKS[task].checked_scale(scale))
    within_memory(batch * length * SHOWN_TOKEN, f"{batch} instances of n = {scale}", 1 << 30)
    drawn = TASKS[task].sample(scale, batch, torch.Generator().manual_seed(seed))
    lines = [TASKS[task].render(row) for row in drawn.tokens]
    rows = [{"task": task, "scale": scale, "seed": seed, "text": line} for line in lines]
    print_json(rows) if as_json else click.echo("\n".join(lines))


@click.command()
@click.argument("task")
@click.argument("instance")
@as_json
def steps(task: str, instance: str, as_json: bool) -> None:
    """The circuit of TASK on one INSTANCE, e.g. copy "^ 7 3 =": which operator writes each token, from where."""
    from lengthlens.tasks import TASKS
    from lengthlens.tasks.task import step_rows

    rows = step_rows(TASKS[task], instance)
    print_json(rows) if as_json else print_table(rows)


@click.command()
@click.argument("task")
@click.option("--max-scale", type=Whole(0, MOST_SCALE), default=16, show_default=True, help="The largest n.")
@click.option("--search", is_flag=True, help="Also search the least number of operators, without the declaration.")
@click.option("--arity", type=Whole(0, 64), default=2, show_default=True, help="For --search: most sources of a step.")
@plot_file
@as_json
def src(task: str, max_scale: int, search: bool, arity: int, plot: Path | None, as_json: bool) -> None:
    """The sequential representation complexity (SRC) of TASK at every n up to --max-scale."""
    from lengthlens.tasks import TASKS
    from lengthlens.tasks.complexity import src_rows

    foresee(f"SRC up to n = {max_scale}", max_scale**2 * SCALE_SECONDS)
    with progress("searching") as report:
        rows = src_rows(TASKS[task], max_scale, arity if search else None, report)
    cells = [{key: value for key, value in row.items() if key != "task"} for row in rows]
    print_json(rows) if as_json else print_table(cells)
    if plot:
        from lengthlens.analyses.curves import plot_src

        save_figure(plot_src(rows), plot)


@click.command()
@as_json
def schemes(as_json: bool) -> None:
    """List the position embeddings: where each acts, which position pairs it treats alike, its options."""

    def make() -> Rows:
        from lengthlens.models.schemes.spec import scheme_rows

        return scheme_rows()

    rows = cached("schemes", make)
    cells = [
        {
            "scheme": row["name"],
            "acts on": ", ".join(row["acts"]) or "-",
            "its code of a pair (i, j) at size n": row["relation"],
            "options": " ".join(f"{name}={value}" for name, value in row["options"].items()) or "-",
        }
        for row in rows
    ]
    print_json(rows) if as_json else print_table(cells, by=[row["family"] for row in rows])


@click.command()
@click.option("--target", required=True, help="What attention should compute, e.g. prefix-sum, running-mean.")
@click.option("--scheme", required=True, help="A position embedding; 'ideal' has one code per value of the target.")
@scheme_option
@click.option("--train-max", type=Whole(0, MOST_SCALE), default=8, show_default=True, help="The n of training.")
@click.option("--test-max", type=Whole(0, MOST_SCALE), default=64, show_default=True, help="The largest n tested.")
@click.option("--train", is_flag=True, help="Also train by gradient descent, to set beside the prediction.")
@plot_file
@as_json
def pola(scheme_options: dict[str, str], plot: Path | None, as_json: bool, **asked: Any) -> None:
    """Position-only linear attention: LRC, and the predicted error at every n; with --train the trained one, too."""
    from lengthlens.theory.pola import pola_table

    with progress("training") as report:
        report("gradient descent to its limit") if asked["train"] else None
        table = pola_table(**asked, options=scheme_options)
    rows: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    if as_json:
        print_json(rows)
    else:
        shown = {1, 2, 4, 8, asked["test_max"], *(asked["train_max"] * 2**k for k in range(12))}
        hidden = ("target", "scheme", "train_max")
        print_table([{k: v for k, v in row.items() if k not in hidden} for row in rows if row["scale"] in shown])
    if plot:
        from lengthlens.analyses.pola import plot_pola as draw

        save_figure(draw(table), plot)


@click.command("verdict")
@click.option("--task", help="A task; see `lengthlens tasks`.")
@click.option("--scheme", help="A position embedding; see `lengthlens schemes`.")
@scheme_option
@click.option("--all", "every", is_flag=True, help="Every task under every scheme.")
@click.option("--train-max", type=Whole(0, MOST_SCALE), default=10, show_default=True, help="The largest n trained on.")
@click.option("--test-max", type=Whole(0, MOST_SCALE), default=40, show_default=True, help="The largest n tested.")
@click.option(
    "--jobs", type=Whole(1, 4096), default=os.cpu_count() or 1, show_default="all cores", help="With --all: processes."
)
@plot_file
@as_json
def verdict_command(
    scheme_options: dict[str, str], every: bool, jobs: int, plot: Path | None, as_json: bool, **asked: Any
) -> None:
    """Before any training: can this task generalize in length under this position embedding, and if not, why?"""
    if every:
        if scheme_options:
            raise UserError("--scheme-option goes with one --scheme, not with --all")
        show_grid(jobs, plot, as_json, **asked)
        return
    if not (asked["task"] and asked["scheme"]):
        raise UserError("give a --task and a --scheme, or --all")
    if plot:
        raise UserError("--plot draws the grid of tasks and schemes, and goes with --all")
    from lengthlens.theory.verdict import verdict

    with progress("verdict") as report:
        report("{task} under {scheme}, n up to {test_max}".format(**asked))
        answer = verdict(**asked, scheme_options=scheme_options)
    print_json(answer.to_dict()) if as_json else click.echo(str(answer))


def show_grid(jobs: int, plot: Path | None, as_json: bool, task: str | None, scheme: str | None, **scales: int) -> None:
    """Verdicts on every task under every scheme, or on those of one task or scheme."""

    def make() -> Rows:
        from lengthlens.theory.verdict import verdict_grid

        tasks, schemes = ([name] if name else None for name in (task, scheme))
        with progress("verdicts") as report:
            told = lambda done, of: report(f"{done} of {of}")  # noqa: E731
            grid = verdict_grid(tasks, schemes, **scales, progress=told, jobs=jobs)
        return grid.to_dict("records")  # type: ignore[return-value]

    rows = make() if task or scheme else cached("verdicts-{train_max}-{test_max}".format(**scales), make)
    cells = [{name: row[name] for name in ("task", "scheme", "verdict")} for row in rows]
    print_json(rows) if as_json else print_table(cells)
    if plot:
        from pandas import DataFrame

        from lengthlens.analyses.outcome import plot_verdicts as draw

        save_figure(draw(DataFrame(rows)), plot)


@click.command("check")
@click.argument("plugin", metavar="PLUGIN|NAME")
@as_json
def check_command(plugin: str, as_json: bool) -> None:
    """Test whether tasks, schemes, probes and figures of a PLUGIN (FILE.py or package.module) do what they must.

    Each failure names the method and shows the smallest example. A registered NAME can be given, too. The same tests
    run once, automatically, before anything is trained with a user-defined class.
    """
    from lengthlens.studies.checking import check

    with progress("checking") as report:
        report(plugin)
        results = check(plugin)
    rows = [{"kind": one.kind, "name": one.name, "breaches": [b._asdict() for b in one.breaches]} for one in results]
    print_json(rows) if as_json else click.echo("\n".join(map(str, results)))
    if not all(one.sound for one in results):
        sys.exit(1)


THEORY_COMMANDS = (tasks, sample, steps, src, schemes, pola, verdict_command, check_command)
