"""Commands that need no training: POLA, and the verdict on a task and a scheme."""

import os
from pathlib import Path
from typing import Any

import click

from lengthlens.commands.options import as_json, plot_file, scheme_option
from lengthlens.commands.progress import progress
from lengthlens.commands.terminal import print_json, print_table, save_figure
from lengthlens.errors import UserError

train_max = click.option("--train-max", type=int, default=10, show_default=True, help="The largest training scale.")
test_max = click.option("--test-max", type=int, default=40, show_default=True, help="The largest scale asked about.")


@click.command()
@click.option("--target", required=True, help="What attention should compute, e.g. prefix-sum, running-mean.")
@click.option("--scheme", required=True, help="A position embedding; 'ideal' has one code per value of the target.")
@scheme_option
@click.option("--train-max", type=int, default=8, show_default=True, help="The scale that is trained on.")
@click.option("--test-max", type=int, default=64, show_default=True, help="The largest scale asked about.")
@click.option("--train", is_flag=True, help="Also train by gradient descent, to set beside the prediction.")
@plot_file
@as_json
def pola(
    target: str,
    scheme: str,
    scheme_option: dict[str, str],
    train_max: int,
    test_max: int,
    train: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Position-only linear attention: LRC, the predicted error at every scale, and the trained one on top."""
    from lengthlens.theory.pola import pola_table

    with progress("training") as report:
        report("gradient descent to its limit") if train else None
        table = pola_table(target, scheme, train_max, test_max, train, scheme_option)
    rows: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    if as_json:
        print_json(rows)
    else:
        shown = {1, 2, 4, 8, train_max, test_max, *(train_max * 2**k for k in range(1, 12))}
        hidden = ("target", "scheme", "train_max")
        print_table([{k: v for k, v in row.items() if k not in hidden} for row in rows if row["scale"] in shown])
    if plot:
        from lengthlens.analyses.pola import plot as draw

        save_figure(draw(table), plot)


@click.command()
@click.option("--task", help="A task; see `lengthlens tasks`.")
@click.option("--scheme", help="A position embedding; see `lengthlens schemes`.")
@scheme_option
@click.option("--all", "every", is_flag=True, help="Every task under every scheme.")
@train_max
@test_max
@click.option("--jobs", type=int, default=os.cpu_count() or 1, show_default="all cores", help="With --all: processes.")
@plot_file
@as_json
def verdict(
    task: str | None,
    scheme: str | None,
    scheme_option: dict[str, str],
    every: bool,
    train_max: int,
    test_max: int,
    jobs: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Before any training: can this task generalize in length under this position embedding, and if not, why?"""
    if every:
        if scheme_option:
            raise UserError("--scheme-option goes with one --scheme, not with --all")
        _grid(task, scheme, train_max, test_max, jobs, plot, as_json)
        return
    if not task or not scheme:
        raise UserError("give a --task and a --scheme, or --all")
    if plot:
        raise UserError("--plot draws the grid of tasks and schemes, and goes with --all")
    from lengthlens.theory.verdict import verdict as judge

    with progress("verdict") as report:
        report(f"{task} under {scheme}, n up to {test_max}")
        found = judge(task, scheme, train_max, test_max, scheme_option)
    print_json(found.to_dict()) if as_json else click.echo(str(found))


def _grid(
    task: str | None, scheme: str | None, train_max: int, test_max: int, jobs: int, plot: Path | None, as_json: bool
) -> None:
    from lengthlens.theory.verdict_grid import verdict_grid

    with progress("verdicts") as report:
        table = verdict_grid(
            [task] if task else None,
            [scheme] if scheme else None,
            train_max,
            test_max,
            lambda done, of: report(f"{done} of {of}"),
            jobs,
        )
    rows: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    if as_json:
        print_json(rows)
    else:
        print_table([{"task": r["task"], "scheme": r["scheme"], "verdict": r["verdict"]} for r in rows])
    if plot:
        from lengthlens.analyses.outcome import plot_verdicts as draw

        save_figure(draw(table), plot)


THEORY_COMMANDS = (pola, verdict)
