"""What the benchmarks share: their options, a stopwatch, and lines with ratios. It needs the standard library only."""

import argparse
import time
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def options(about: str | None, **defaults: Any) -> argparse.Namespace:
    """The command line: an option for each name, of its default's type.

    A tuple is a choice of which the first is the default, a list may be given several values, False is a flag.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        how: dict[str, Any] = {"default": default, "type": type(default)}
        if isinstance(default, tuple):
            how = {"default": default[0], "choices": default}
        elif isinstance(default, list):
            how |= {"nargs": "+", "type": type(default[0])}
        elif default is False:
            how = {"action": "store_true"}
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser.parse_args()


def timed(work: Callable[[], Result], clock: Callable[[], float] = time.perf_counter) -> tuple[float, Result]:
    """The seconds that something takes, and what it gives."""
    start = clock()
    result = work()
    return clock() - start, result


def show(title: str, seconds: float, base: float, note: str = "") -> None:
    """A line about one side: its time, and how many times that of the side to compare with it is."""
    print(f"{title:<42}{seconds:>10.2f} s{seconds / base:>8.2f} times as long   {note}".rstrip())
