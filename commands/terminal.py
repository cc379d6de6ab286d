"""What all commands share: errors as one line, interruption, progress, tables, JSON, figures."""

import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.options import common_options
from lengthlens.errors import CONTROL, UserError, one_line, unknown
from lengthlens.plugins.registry import in_a_sentence, runs_users_code
from lengthlens.values import text, within_memory

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
        """Every command takes ``--plugin`` and ``--debug``."""
        if not any(parameter.name == "plugins" for parameter in cmd.params):
            cmd.params += common_options()
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
        if not options.get("standalone_mode", True):
            return super().main(args, *rest, **options)
        options["standalone_mode"] = False  # click is not to print errors, nor to end the process
        with Stopping(ends=args is None) as stopping, Printed():
            try:
                sys.exit(self.answered(words, partial(super().main, args, *rest, **options)))
            except BaseException as error:
                if not (stopping.begun or isinstance(error, click.Abort)):
                    raise
                stopping.say(error)
                if not stopping.ends:
                    sys.exit(INTERRUPTED)
                for each in (error, error.__cause__):  # pools that were left in the middle end their workers
                    traceback.clear_frames(each.__traceback__ if each else None)
                os._exit(INTERRUPTED)  # taking torch apart would take a second

    def answered(self, words: Sequence[str], command: Callable[[], Any]) -> int:
        """The exit code of a command, once whatever went wrong is said."""
        try:
            for word in words:  # bytes that are not UTF-8, and a zero byte, before anything looks at them
                text(MOST_WORD)(word, "an argument")
            code = command()
            return code if isinstance(code, int) else 0
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            raise
        except BaseException as error:
            sentence = in_a_sentence(error)
            if isinstance(error, OSError) and not sentence:
                sentence = f"{error.strerror or error}" + (f": '{error.filename}'" if error.filename else "")
            elif isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error)):
                sentence = "there is not enough memory for this"
            if sentence is None or ("--debug" in words and not isinstance(error, UserError)):
                raise
            click.echo(f"Error: {UserError(sentence)}", err=True)
            return 2


# -- Ctrl-C --------------------------------------------------------------------------------------------------------

INTERRUPTED = 130  # the exit code of what Ctrl-C has ended
GRACE_SECONDS = 0.4  # for cleaning up; what is on disk is whole at any moment


class Stopping:
    """Ctrl-C, and the terminate signal of a batch system, end the block; if it `ends` the process, in bounded time."""

    def __init__(self, ends: bool) -> None:
        self.ends, self.begun, self.said = ends, False, False

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():
            self.hooks = sys.unraisablehook, threading.excepthook
            self.before = {number: signal.signal(number, self.stop) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ends and hasattr(self, "before"):
            sys.unraisablehook, threading.excepthook = self.hooks
            for number, handler in self.before.items():
                signal.signal(number, handler)

    def stop(self, number: int, frame: object) -> None:
        # Threads and finalizers that stumble over the end say nothing, and what swallows it ends all the same.
        sys.unraisablehook, threading.excepthook = (lambda _: None), (lambda _: None)
        if self.ends and self.begun:
            self.end_at_once()
        elif self.ends:
            late = threading.Timer(GRACE_SECONDS, self.end_at_once)
            late.daemon = True
            late.start()
        self.begun = True
        raise KeyboardInterrupt

    def say(self, error: BaseException | None = None) -> None:
        """One sentence: what the interruption says itself (`stoppable`), or what holds of any command."""
        cause = error.__cause__ if isinstance(error, click.Abort) else error
        what = str(cause) if isinstance(cause, KeyboardInterrupt) else ""
        if not self.said:
            self.said = True
            click.echo(f"interrupted: {what or 'no file is half-written, and the same command begins again'}", err=True)

    def end_at_once(self) -> None:
        self.say()
        os._exit(INTERRUPTED)


@contextmanager
def stoppable(what: str, kept: bool = True) -> Iterator[None]:
    """After Ctrl-C a sentence says whether work so far is `kept`."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command {'continues' if kept else 'begins again with'} {what}") from None


class Printed:
    """The standard output of a command: of ours alone, and without characters that control the terminal.

    What a plug-in prints goes to stderr, so that JSON stays JSON.
    """

    def __init__(self) -> None:
        self.real: Any = sys.stdout

    def __enter__(self) -> None:
        sys.stdout = self

    def __exit__(self, *_: object) -> None:
        sys.stdout = self.real if sys.stdout is self else sys.stdout

    def write(self, text: str) -> int:
        target = sys.stderr if runs_users_code(sys._getframe(1)) else self.real
        target.write(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) if isinstance(text, str) else text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


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


PAIR_SECONDS, PAIR_BYTES = 4e-5, 350  # for each pair of positions, of what looks at all of them: as it was measured


def foresee(what: str, seconds: float, memory: float = 0) -> None:
    """Before long work: a sentence on how long it takes about; what does not fit into memory is refused."""
    within_memory(memory, what)
    if seconds > 30:
        click.echo(f"{what} may take about {minutes(seconds)} minutes and {memory / (1 << 30):.1f} GiB", err=True)


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
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))


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
