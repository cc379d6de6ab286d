"""The command line: parse, call, print, save; nothing else. What is heavy is imported inside the commands."""

from importlib.metadata import version
from pathlib import Path

import click

from lengthlens.probe_commands import PROBE_COMMANDS
from lengthlens.run_commands import RUN_COMMANDS
from lengthlens.terminal import Group, as_json, plot_file, print_json, print_table, progress, save_figure
from lengthlens.theory_commands import THEORY_COMMANDS


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("lengthlens"), prog_name="lengthlens")
def main() -> None:
    """Why Transformers fail, or do not fail, on inputs longer than those they were trained on.

    \b
    Before any training:
      tasks     what can be computed, with its sequential complexity (SRC)
      sample    instances of a task
      steps     one instance taken apart: which operator writes each token, from where
      src       the SRC of a task, scale by scale
      schemes   the position embeddings, with where they act and which pairs they treat alike
      verdict   can this task generalize in length under this embedding, and if not, why?
      pola      the theory's own model: exact predictions, and training beside them
    \b
    Trained runs:
      train     train one run; the same config is the same run
      evaluate  exact match at any length, in one pass
      sweep     a grid of tasks, schemes and seeds, here or on a cluster
      runs      list, show and check runs; one table of all
      probe     how many position codes and operators a run spends, and how that grows with scale
    """


@main.command()
@as_json
def tasks(as_json: bool) -> None:
    """List the tasks: an example at n = 4, vocabulary, sequence length and declared SRC."""
    from lengthlens.tasks.listing import task_rows

    rows = task_rows()
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


@main.command()
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


@main.command()
@click.argument("task")
@click.argument("instance")
@as_json
def steps(task: str, instance: str, as_json: bool) -> None:
    """The circuit of TASK on one INSTANCE, e.g. copy "^ 7 3 =": which operator writes each token, from where."""
    from lengthlens.tasks import TASKS
    from lengthlens.tasks.listing import step_rows

    rows = step_rows(TASKS[task], instance)
    print_json(rows) if as_json else print_table(rows)


@main.command()
@click.argument("task")
@click.option("--max-scale", type=int, default=16, show_default=True, help="The largest scale n.")
@click.option(
    "--search", is_flag=True, help="Also search the least number of operators, without the declaration."
)
@click.option(
    "--arity", type=int, default=2, show_default=True, help="With --search: the most sources of a step."
)
@plot_file
@as_json
def src(task: str, max_scale: int, search: bool, arity: int, plot: Path | None, as_json: bool) -> None:
    """The sequential representation complexity of TASK at every scale up to --max-scale."""
    from lengthlens.tasks import TASKS
    from lengthlens.tasks.listing import src_rows

    with progress("searching") as report:
        rows = src_rows(TASKS[task], max_scale, arity if search else None, report)
    if as_json:
        print_json(rows)
    else:
        print_table([{key: value for key, value in row.items() if key != "task"} for row in rows])
    if plot:
        from lengthlens.analyses.complexity import plot_src

        save_figure(plot_src(rows), plot)


@main.command()
@as_json
def schemes(as_json: bool) -> None:
    """List the position embeddings: where each acts, which position pairs it treats alike, its options."""
    from lengthlens.models.schemes.listing import scheme_rows

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


for command in (*THEORY_COMMANDS, *RUN_COMMANDS, *PROBE_COMMANDS):
    main.add_command(command)


if __name__ == "__main__":
    main()
