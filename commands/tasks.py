"""Commands that show what there is: tasks, their instances and complexity, and position embeddings."""

from pathlib import Path

import click

from lengthlens.commands.options import as_json, plot_file
from lengthlens.commands.progress import progress
from lengthlens.commands.terminal import print_json, print_table, save_figure


@click.command()
@as_json
def tasks(as_json: bool) -> None:
    """List the tasks: an example at n = 4, vocabulary, sequence length and declared SRC."""
    from lengthlens.tasks import TASKS
    from lengthlens.tasks.complexity import task_rows

    rows = task_rows(TASKS.values())
    if as_json:
        print_json(rows)
        return
    print_table(
        [
            {
                "task": row["name"],
                "example at n = 4": row["example"],
                "tokens": row["vocabulary"],
                "length": row["length"],
                "SRC at n = 4, 8, 16": ", ".join(map(str, row["src"].values())),
            }
            for row in rows
        ],
        by=[row["family"] for row in rows],
    )


@click.command()
@click.argument("task")
@click.option("--scale", type=int, default=4, show_default=True, help="The scale n.")
@click.option("--batch", type=int, default=5, show_default=True, help="How many instances.")
@click.option("--seed", type=int, default=0, show_default=True)
@as_json
def sample(task: str, scale: int, batch: int, seed: int, as_json: bool) -> None:
    """Draw instances of TASK; the same seed gives the same instances."""
    import torch

    from lengthlens.tasks import TASKS

    drawn = TASKS[task].sample(scale, batch, torch.Generator().manual_seed(seed))
    lines = [TASKS[task].render(row) for row in drawn.tokens]
    if as_json:
        print_json([{"task": task, "scale": scale, "seed": seed, "text": line} for line in lines])
    else:
        click.echo("\n".join(lines))


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
@click.option("--max-scale", type=int, default=16, show_default=True, help="The largest scale n.")
@click.option("--search", is_flag=True, help="Also search the least number of operators, without the declaration.")
@click.option("--arity", type=int, default=2, show_default=True, help="With --search: the most sources of a step.")
@plot_file
@as_json
def src(task: str, max_scale: int, search: bool, arity: int, plot: Path | None, as_json: bool) -> None:
    """The sequential representation complexity of TASK at every scale up to --max-scale."""
    from lengthlens.tasks import TASKS
    from lengthlens.tasks.complexity import src_rows

    with progress("searching") as report:
        rows = src_rows(TASKS[task], max_scale, arity if search else None, report)
    if as_json:
        print_json(rows)
    else:
        print_table([{key: value for key, value in row.items() if key != "task"} for row in rows])
    if plot:
        from lengthlens.analyses.curves import plot_src

        save_figure(plot_src(rows), plot)


@click.command()
@as_json
def schemes(as_json: bool) -> None:
    """List the position embeddings: where each acts, which position pairs it treats alike, its options."""
    from lengthlens.models.schemes import scheme_rows

    rows = scheme_rows()
    if as_json:
        print_json(rows)
        return
    print_table(
        [
            {
                "scheme": row["name"],
                "acts on": ", ".join(row["acts"]) or "-",
                "its code of a pair (i, j) at scale n": row["relation"],
                "options": " ".join(f"{name}={value}" for name, value in row["options"].items()) or "-",
            }
            for row in rows
        ],
        by=[row["family"] for row in rows],
    )


TASK_COMMANDS = (tasks, sample, steps, src, schemes)
