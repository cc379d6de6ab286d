"""What all commands share: errors as one line, interruption, tables, JSON, figures."""

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
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


@contextmanager
def stoppable(what: str) -> Iterator[None]:
    """Ctrl-C, and the terminate signal of batch systems, end with a sentence; work done so far is kept."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted: the same command continues {what}", err=True)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


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
    from lengthlens.analyses.tables import aligned

    cells = [[cell(value) for value in row.values()] for row in rows]
    names = list(rows[0])
    head, *lines = aligned([names, *cells], [all(isinstance(row[name], int | float) for row in rows) for name in names])
    click.echo(click.style(head, bold=True))
    previous = None
    for k, line in enumerate(lines):
        if by and by[k] != previous:
            previous = by[k]
            click.echo(click.style(f"\n{previous}", underline=True))
        click.echo(line)


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == float("inf"):
        return "∞"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def counted(statuses: list[str]) -> str:
    """How many of each, in the order of first appearance: "3 converged, 1 failed"."""
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure, and say where."""
    from lengthlens.analyses import theme

    theme.save(figure, path)
    click.echo(f"drawn: {path}", err=True)
