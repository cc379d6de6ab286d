"""Progress over several stages of work: which one, how far, and how long it may still take."""

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType

import click


class Stages:
    """One live line on a terminal, and a plain line for each step elsewhere.

    `costs` says what each stage is thought to cost, in any unit: the time left is what has been taken so far, by the
    share of the whole that is done.

    >>> stages = Stages({"train": 30.0, "draw": 10.0}, clock=iter([0.0, 10.0]).__next__, quiet=True)
    >>> stages.begin("train", 3)
    >>> stages.step("copy_rope converged")
    'train 1 of 3: copy_rope converged, about 0:30 left'
    """

    def __init__(
        self, costs: Mapping[str, float], quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.costs, self.quiet, self.clock = dict(costs), quiet, clock
        self.live = sys.stderr.isatty()
        self.start = clock()
        self.stage, self.steps, self.of, self.free, self.before = "", 0, 0, 0, 0.0

    def begin(self, stage: str, of: int = 1, free: int = 0, permanent: bool = False) -> None:
        """Enter a stage of so many steps, of which the first `free` cost nothing; the stage before it is done."""
        self.before += self.costs.get(self.stage, 0.0)
        self.stage, self.steps, self.of, self.free = stage, 0, of, free
        self._say(self._line("starting"), always=True, permanent=permanent)

    def step(self, text: str, permanent: bool = False) -> str:
        """One step of the stage is done; a `permanent` line stays on the terminal."""
        self.steps += 1
        line = self._line(text)
        self._say(line, always=True, permanent=permanent)
        return line

    def tell(self, text: str) -> None:
        """What is going on within a step, for a terminal only."""
        self._say(self._line(text), always=False)

    def _line(self, text: str) -> str:
        return f"{self.stage} {self.steps} of {self.of}: {text}{self.left()}"

    def _say(self, line: str, always: bool, permanent: bool = False) -> None:
        if self.live and not self.quiet:
            click.echo(f"\r\033[K{line}", err=True, nl=permanent)
        elif always and not self.quiet:
            click.echo(line, err=True)

    def left(self) -> str:
        """The time left by the pace so far, in words; nothing before there is a pace."""
        share = max(0, self.steps - self.free) / max(1, self.of - self.free)
        now = self.before + self.costs.get(self.stage, 0.0) * share
        if now <= 0:
            return ""
        seconds = (self.clock() - self.start) * (sum(self.costs.values()) - now) / now
        return f", about {minutes(seconds)} left"

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
