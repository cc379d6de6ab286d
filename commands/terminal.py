"""What all commands share: errors as one line, tables, JSON, progress, figures."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.errors import UserError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Group(click.Group):
    """Commands that turn a `UserError` into one line and exit code 2, and a misspelt command into a suggestion."""

    sections: Mapping[str, Sequence[click.Command]] = {}

    def add_sections(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Add commands under headings, which is how the help lists them."""
        self.sections = sections
        for commands in sections.values():
            for command in commands:
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.sections:
            super().format_commands(ctx, formatter)
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(c.name or "", c.get_short_help_str(limit=200)) for c in commands])

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


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
plot_file = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw into this file (.png, .pdf or .svg)."
)


def pairs(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Texts ``name=value`` as a dictionary."""
    split = [text.partition("=") for text in given]
    for name, equals, value in split:
        if not (name and equals):
            raise UserError(f"'{name}{equals}{value}' is no {parameter.opts[0]}: write NAME=VALUE")
    return {name.strip().replace("-", "_"): value.strip() for name, _, value in split}


scheme_option = click.option(
    "--scheme-option",
    multiple=True,
    metavar="NAME=VALUE",
    callback=pairs,
    help="An option of the scheme, e.g. max_distance=3; may be given again.",
)


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
    """Write a figure, and say where."""
    from lengthlens.analyses import theme

    theme.save(figure, path)
    click.echo(f"drawn: {path}", err=True)
