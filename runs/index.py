"""What was last read from the runs of a store, kept in the user's cache, so that thousands of them are listed at once.

It is never trusted over the files: what is kept of a run counts only while all files that it follows from are the very
ones it was read from (by number, size and times), and is read anew otherwise. A cache that is missing, damaged or of
another version is made again. Nothing is written to the store itself.
"""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lengthlens.errors import UserError
from lengthlens.files import cache_directory, make_directory, sha256, write_whole

FORMAT = 1
FILES = ("manifest.json", "config.json", "status.json", "evaluation.json")  # what the facts follow from
MARKS = ("manifest.json", "config.json", "log.jsonl")  # one of them is in every run
TIME_RESOLUTION = 2.0  # seconds after which a file that is written again has another time, whatever the file system
ENDED = ("converged", "not-converged", "diverged", "failed")  # of any other run the state may change without a file

State = list[list[int] | None]
Facts = dict[str, Any]  # row: that of a listing; scores: [length, samples, seed, exact match] of each evaluation


class RunIndex:
    """The facts about the runs of one store that are still true."""

    def __init__(self, store: Path) -> None:
        self.store, place = store, str(store.absolute())
        self.about = {"format": FORMAT, "version": version("lengthlens"), "store": place}
        self.path = cache_directory() / f"runs-{sha256(os.fsencode(place))[:16]}.json"
        self.changed = False

    @cached_property
    def kept(self) -> dict[str, list[Any]]:
        """By run, the state of its files and the facts."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(self.path.read_bytes())
            if {name: found[name] for name in self.about} == self.about:
                return {name: [state, dict(facts)] for name, (state, facts) in found["runs"].items()}
        return {}

    def facts(self, run: str) -> Facts | None:
        """What is known of a run, if all its files are as they were."""
        known = self.kept.get(run)
        return known[1] if known and known[0] == state_of(self.store, run) else None

    def note(self, run: str, state: State, facts: Facts) -> None:
        """Keep facts that were read when, or after, the files were in this state."""
        newest = max((file[-1] for file in state if file), default=0)
        if facts["row"]["status"] in ENDED and newest < (time.time() - TIME_RESOLUTION) * 1e9:
            self.kept[run] = [state, facts]
            self.changed = True

    def save(self, there: Iterable[str]) -> None:
        """Write what is kept of the runs that are there, where that can be done, if anything is new."""
        there = set(there)
        if self.changed or not self.kept.keys() <= there:
            runs = {name: entry for name, entry in self.kept.items() if name in there}
            with suppress(UserError, OSError):
                make_directory(self.path.parent)
                write_whole(self.path, json.dumps({**self.about, "runs": runs}).encode())


def state_of(store: Path, run: str) -> State:
    """Number, size and times of each file of a run that facts follow from; None for one that is not there."""
    found: State = []
    for name in FILES:
        try:
            about = os.lstat(f"{store}/{run}/{name}")
            found.append([about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns])
        except OSError:
            found.append(None)
    return found


def names_of_runs(store: Path) -> list[str]:
    """The directories in a store that are runs, by name."""
    with os.scandir(store) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir())
    return [name for name in folders if any(os.path.lexists(f"{store}/{name}/{mark}") for mark in MARKS)]


def listed_at_once(store: Path) -> list[dict[str, Any]] | None:
    """The rows of a listing of all runs, if every one of them is known."""
    index, rows = RunIndex(store), []
    with suppress(OSError):
        for name in names_of_runs(store):
            facts = index.facts(name)
            if facts is None:
                return None
            rows.append(facts["row"])
        return rows
    return None
