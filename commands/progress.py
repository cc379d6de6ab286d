"""Progress of long work: one live line on a terminal; elsewhere plain lines, or nothing."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lengthlens.runs.training import Report, TrainingProgress
    from lengthlens.studies.reproduce import Progress

PLAIN_SECONDS = 5.0  # between plain lines about one run


@contextmanager
def live_line(quiet: bool = False) -> Iterator[Callable[[str], None] | None]:
    """What shows a text on the live line; None if nothing is wanted or stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(text, no_wrap=True, overflow="ellipsis"))


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """On a terminal only: ``with progress("searching") as report: report("n = 3")``."""
    with live_line() as show:
        yield (lambda text: show(f"{what}: {text}")) if show else (lambda _: None)


@contextmanager
def training_progress(quiet: bool) -> "Iterator[Report]":
    """How one run is doing; where there is no terminal, a plain line now and then."""
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
    """How a whole study is doing, with the time left by the pace so far; a plain line for each step and failure."""
    start, last = clock(), ("", -1)
    with live_line(quiet) as show:

        def report(now: "Progress") -> None:
            nonlocal last
            new, last = last != now[:2], now[:2]
            left = minutes((clock() - start) * (1 - now.share) / now.share) if now.share > 0 else ""
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
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02d}"
