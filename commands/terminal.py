"""What all commands share: errors as one line, interruption, progress, tables, JSON, figures."""

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.options import plugin_option
from lengthlens.errors import UserError, unknown
from lengthlens.values import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lengthlens.runs.training import Report, TrainingProgress
    from lengthlens.studies.reproduce import Progress

PLAIN_SECONDS = 5.0  # between plain lines about one run
MOST_WORD = 100_000  # characters of an argument; a long list of lengths has a few hundred


class Group(click.Group):
    """Commands that turn a `UserError` into one line and exit code 2, and a misspelt command into a suggestion."""

    sections: Mapping[str, Sequence[click.Command]] = {}  # by heading, which is how the help lists them

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Every command takes ``--plugin``."""
        if not any(parameter.name == "plugins" for parameter in cmd.params):
            cmd.params.append(plugin_option())
        super().add_command(cmd, name)

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
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        words = sys.argv[1:] if args is None else args
        try:
            for word in words:  # bytes that are not UTF-8, and a zero byte, before anything looks at them
                text(MOST_WORD)(word, "an argument")
            return super().main(args, *rest, **options)
        except UserError as error:
            sentence = str(error)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate" not in str(error):  # which is how torch says it
                raise
            sentence = "there is not enough memory for this"
        except OSError as error:
            sentence = f"{error.strerror or error}" + (f": '{error.filename}'" if error.filename else "")
        click.echo(f"Error: {sentence}", err=True)
        sys.exit(2)


@contextmanager
def stoppable(what: str, kept: bool = True) -> Iterator[None]:
    """After Ctrl-C, or the terminate signal of a batch system, a sentence says whether work so far is `kept`."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted: the same command {'continues' if kept else 'begins again with'} {what}", err=True)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


# -- progress: one live line on a terminal; elsewhere plain lines, or nothing --------------------------------------


@contextmanager
def live_line(quiet: bool = False) -> Iterator[Callable[[str], None] | None]:
    """A function that shows a text on the live line; None if `quiet` or stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(bar_format="{desc}", dynamic_ncols=True, leave=False, file=sys.stderr) as line:
        yield line.set_description_str  # cut off where the terminal ends


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """On a terminal only: ``with progress("searching") as report: report("n = 3")``."""
    with live_line() as show:
        yield (lambda text: show(f"{what}: {text}")) if show else (lambda _: None)


@contextmanager
def training_progress(quiet: bool) -> "Iterator[Report]":
    """Progress of one run; without a terminal, a plain line every few seconds."""
    last = -PLAIN_SECONDS
    with live_line(quiet) as show:

        def report(now: "TrainingProgress") -> None:
            nonlocal last
            if show:
                show(training_line(now))
            elif not quiet and time.monotonic() - last >= PLAIN_SECONDS:
                last = time.monotonic()
                click.echo(training_line(now), err=True)

        yield report


def training_line(now: "TrainingProgress") -> str:
    metrics = now.metrics
    return (
        f"step {metrics.step}/{now.end}  loss {metrics.loss:.4f}  in-range {metrics.in_range_exact_match:.3f}  "
        f"{now.tokens_per_second:,.0f} tokens/s  {minutes(now.seconds_left)} left"
    )


@contextmanager
def study_progress(
    quiet: bool = False, clock: Callable[[], float] = time.monotonic
) -> "Iterator[Callable[[Progress], None]]":
    """Progress of a study, with the time left at the pace so far; a plain line for each step and failure."""
    start, last = clock(), ("", -1)
    with live_line(quiet) as show:

        def report(now: "Progress") -> None:
            nonlocal last
            new, last = last != now[:2], now[:2]
            # Of runs that end early the pace so far says little, and of the first ones nothing.
            left = minutes((clock() - start) * (1 - now.share) / now.share) if now.share >= 0.2 else ""
            line = f"{now}, about {left} left" if left else str(now)
            if show and not now.failed:
                show(line)
            elif not quiet and (new or show):
                click.echo(line, err=True)

        yield report


def minutes(seconds: float) -> str:
    """
    >>> minutes(125.4)
    '2:05'
    """
    return "{}:{:02d}".format(*divmod(round(seconds), 60))


# -- results -------------------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """JSON as the standard has it: infinity and NaN, which it does not know, become the strings "inf" and "nan"."""
    click.echo(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def finite(value: Any) -> Any:
    """The value with every float that JSON does not have as a string."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_table(rows: list[dict[str, Any]], by: list[str] | None = None) -> None:
    """Rows under their column names, columns aligned; `by` puts a heading above each run of equal groups."""
    from lengthlens.analyses.tables import aligned

    cells = [[cell(value) for value in row.values()] for row in rows]
    names = list(rows[0])
    head, *lines = aligned([names, *cells], [all(isinstance(row[name], int | float) for row in rows) for name in names])
    click.echo(click.style(head, bold=True))
    for k, line in enumerate(lines):
        if by and (k == 0 or by[k] != by[k - 1]):
            click.echo(click.style(f"\n{by[k]}", underline=True))
        click.echo(line)


def cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if value == math.inf:
        return "∞"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def counted(statuses: list[str]) -> str:
    """How many of each, in the order of first appearance: "3 converged, 1 failed"."""
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


@contextmanager
def leaving_out(what: str) -> "Iterator[Callable[[str, str], None]]":
    """A function that reports a damaged run, which is left out; after one or more of them the exit code is 1."""
    damaged: list[str] = []

    def tell(run: str, reason: str) -> None:
        damaged.append(run)
        click.echo(f"left out: {reason if run in reason else f'{run}: {reason}'}", err=True)

    yield tell
    if damaged:
        click.echo(f"{len(damaged)} damaged run{'s are' if len(damaged) > 1 else ' is'} not in {what}", err=True)
        sys.exit(1)


def say_unkept(error: UserError) -> None:
    click.echo(f"not kept with the run: {error}", err=True)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure, and say where."""
    from lengthlens.analyses.canvas import save

    save(figure, path)
    click.echo(f"drawn: {path}", err=True)
