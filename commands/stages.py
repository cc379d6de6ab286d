"""Progress over several stages of work: which one, how far, and how long it may still take."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lengthlens.studies.reproduce import Progress


class Stages:
    """One live line on a terminal, and a plain line for each step elsewhere. The time left is by the pace so far."""

    def __init__(self, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.quiet, self.clock = quiet, clock
        self.live = sys.stderr.isatty()
        self.start = clock()
        self.last = ("", -1)

    def __call__(self, progress: "Progress") -> None:
        """Show how far it is; what is going on within a step is for a terminal only."""
        new, self.last = self.last != progress[:2], (progress.stage, progress.done)
        if self.quiet or not (new or self.live):
            return
        line = f"{progress}{self.left(progress.share)}"
        click.echo(f"\r\033[K{line}" if self.live else line, err=True, nl=not self.live or progress.failed)

    def left(self, share: float) -> str:
        """The time left in words; nothing before there is a pace."""
        if share <= 0:
            return ""
        return f", about {minutes((self.clock() - self.start) * (1 - share) / share)} left"

    def __enter__(self) -> "Stages":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live and not self.quiet:
            click.echo("\r\033[K", err=True, nl=False)


def minutes(seconds: float) -> str:
    """
    >>> minutes(125.4)
    '2:05'
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02d}"
