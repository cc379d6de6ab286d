"""The command line: parse, call, print, save; nothing else. What is heavy is imported inside the commands."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.registry import UserError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Group(click.Group):
    """Commands that turn a `UserError` into one line and exit code 2, and a misspelt command into a suggestion."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UserError(str(unknown("command", args[0], self.list_commands(ctx))))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(2)


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
    """


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
plot_file = click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw into this file (.png, .pdf or .svg).",
)


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


# -- printing and saving ---------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """JSON as the standard has it: infinity and NaN, which it does not know, become the strings "inf" and "nan"."""
    click.echo(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def finite(value: Any) -> Any:
    """The value with every float that JSON cannot hold spelt out."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    return value


def print_table(rows: list[dict[str, Any]], by: list[str] | None = None) -> None:
    """Rows under their column names, columns aligned; `by` puts a heading above each run of equal groups."""
    cells = [[cell(value) for value in row.values()] for row in rows]
    names = list(rows[0])
    widths = [max(len(line[k]) for line in [names, *cells]) for k in range(len(names))]
    numeric = [all(isinstance(row[name], int | float) for row in rows) for name in names]

    def line(texts: list[str]) -> str:
        padded = [t.rjust(w) if right else t.ljust(w) for t, w, right in zip(texts, widths, numeric)]
        return "  ".join(padded).rstrip()

    click.echo(click.style(line(names), bold=True))
    previous = None
    for k, texts in enumerate(cells):
        if by and by[k] != previous:
            previous = by[k]
            click.echo(click.style(f"\n{previous}", underline=True))
        click.echo(line(texts))


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == float("inf"):
        return "∞"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """One live line on a terminal, nothing elsewhere: ``with progress("searching") as report: report("n = 3")``."""
    live = sys.stderr.isatty()

    def report(text: str) -> None:
        if live:
            click.echo(f"\r\033[K{what}: {text}", err=True, nl=False)

    try:
        yield report
    finally:
        if live:
            click.echo("\r\033[K", err=True, nl=False)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure whole or not at all."""
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix[1:] not in formats:
        raise UserError(f"cannot draw into '{path}': the formats are {', '.join(sorted(formats))}")
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No dates inside, so that the same table gives the same bytes.
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(path.suffix[1:])
        figure.savefig(partial, format=path.suffix[1:], metadata=metadata)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"cannot write '{path}': {error.strerror}") from None
    click.echo(f"drawn: {path}", err=True)


if __name__ == "__main__":
    main()
