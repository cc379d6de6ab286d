"""This version against the commit before, in one run: import, listings, verdicts, figures and page, probes, growth.

`python benchmarks/before.py [--commit 5a1f19e …] [--parts import listing verdict figures probes growth]
[--runs PATH …] [--size 10000]`: each part is done by either side in processes of their own, one after the other, and is
shown in seconds of CPU (and, where it uses several processes, of the clock) with the ratio to this version. What both
sides give is compared, too: verdicts row by row, figures and page byte by byte, probes number by number. `probes` needs
directories of trained runs, `--runs`; `growth` makes a store of so many runs, `--size`, of which nothing was trained.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from common import options, show

ROOT = Path(__file__).resolve().parent.parent
STUDY = ROOT / "figures" / "study" / "study.parquet"
PARTS = ["import", "listing", "verdict", "figures", "probes", "growth"]

PROBES = """
import importlib, json, pkgutil, sys, time, torch
import lengthlens.probes
from pathlib import Path
torch.set_num_threads(1)
[importlib.import_module(each.name) for each in pkgutil.iter_modules(lengthlens.probes.__path__, "lengthlens.probes.")]
from lengthlens.probes.probe import PROBES
try:
    from lengthlens.probes.network import Network
except ImportError:  # before it was called so
    from lengthlens.probes.subject import Subject as Network
from lengthlens.probes.table import Context
from lengthlens.runs.run import Run
run = Run(Path(sys.argv[1]))
context = Context(Network(run.model()), run.config.task_object, run.config.train_max, torch.Generator().manual_seed(0),
                  None, [2 * run.config.train_max])
seconds, rows = {}, {}
def timed(name, work):
    start = time.process_time()
    found = work()
    seconds[name] = time.process_time() - start
    return found
timed("exact match", lambda: context.exact)
for name, probe in PROBES.items():
    rows[name] = [{key: str(value) for key, value in row.items()} for row in timed(name, lambda: probe.rows(context))]
print(json.dumps({"seconds": seconds, "rows": rows}))
"""

VERDICTS = """
import sys
try:
    from lengthlens.theory.verdict import verdict_grid
except ImportError:  # of versions in which it had a file of its own
    from lengthlens.theory.grid import verdict_grid
print(verdict_grid(jobs=int(sys.argv[1])).to_json(orient="records"))
"""

GROWTH = """
import json, sys, time
from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Grid, pending
start, store = time.process_time(), RunStore(sys.argv[1])
grid = Grid(["copy"], ["rope", "hinted:relative"], range(int(sys.argv[2]) // 2), [20], settings=json.loads(sys.argv[3]))
assert pending(grid, store) == []
print(json.dumps(time.process_time() - start))
"""
TINY = {"steps": 1, "batch": 1, "train_max": 4, "d_model": 8, "n_heads": 1}


class Side(NamedTuple):
    """A version of the code, in a directory of its own."""

    name: str
    home: Path
    cache: Path

    def run(self, *words: str, code: str = "") -> tuple[float, float, str]:
        """The seconds of CPU and of the clock that a command (or Python code with arguments) takes; what it prints."""
        start = [["-c", code] if code else ["-m", "lengthlens.cli"], resource.getrusage(resource.RUSAGE_CHILDREN)]
        paths = {"PYTHONPATH": str(self.home / ".typing"), "XDG_CACHE_HOME": str(self.cache), "OMP_NUM_THREADS": "1"}
        clock = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *start[0], *words], env=os.environ | paths, cwd=self.cache, check=True, capture_output=True
        )
        used, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - clock
        return used.ru_utime + used.ru_stime - start[1].ru_utime - start[1].ru_stime, clock, done.stdout.decode()


@contextmanager
def sides(commits: list[str]) -> Iterator[list[Side]]:
    """This version as it stands, and each of the commits in a working tree that is removed afterwards."""
    with tempfile.TemporaryDirectory() as temporary:
        made = [Side("now", ROOT, Path(temporary) / "cache-now")]
        try:
            for commit in commits:
                home = Path(temporary) / commit
                subprocess.run(["git", "-C", ROOT, "worktree", "add", "-q", "--detach", home, commit], check=True)
                made.append(Side(commit, home, Path(temporary) / f"cache-{commit}"))
            for side in made:
                side.cache.mkdir()
            yield made
        finally:
            for side in made[1:]:
                subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", side.home], check=True)


def compare(title: str, sides: list[Side], words: list[str], code: str = "", clock: bool = False) -> dict[str, str]:
    """One command on every side; what each prints."""
    found, base = {}, 0.0
    for side in sides:
        cpu, seconds, found[side.name] = side.run(*words, code=code)
        base = base or cpu
        show(f"{title}, {side.name}", cpu, base, f"{seconds:.1f} s by the clock" if clock else "")
    return found


def imports(sides: list[Side]) -> None:
    for module in ("lengthlens", "torch", "lengthlens.models.transformer", "lengthlens.probes.table"):
        compare(f"import {module}", sides, [], code=f"import {module}")


def listings(sides: list[Side]) -> None:
    for command in ("tasks", "schemes", "verdict --all"):
        for which in ("first", "again"):
            compare(f"lengthlens {command}, {which}", sides, command.split(), clock=True)


def verdicts(sides: list[Side]) -> None:
    """Computed anew: `verdict --all` by itself shows what is in the cache."""
    for jobs in ("1", "2"):
        found = compare(f"all verdicts, {jobs} jobs", sides, [jobs], VERDICTS, clock=True)
        rows = {name: json.loads(text) for name, text in found.items()}
        for name, before in rows.items():
            differing = sum(a != b for a, b in zip(rows["now"], before)) + abs(len(rows["now"]) - len(before))
            print(f"  {differing} of {len(rows['now'])} rows differ from {name}'s" if name != "now" else "", end="\n")


def figures(sides: list[Side]) -> None:
    for words in (
        ["figures", "--table", STUDY, "--out", "figures"],
        ["report", "--table", STUDY, "--figures", "with-page", "--out", "with-page/index.html"],
    ):
        compare(f"lengthlens {words[0]}", sides, list(map(str, words)))
    files = {side.name: digests(side.cache) for side in sides}
    for side in sides[1:]:
        differing = [name for name, digest in files["now"].items() if files[side.name].get(name) != digest]
        print(f"  {len(differing)} of {len(files['now'])} files differ from {side.name}'s {' '.join(differing[:6])}")


def digests(folder: Path) -> dict[str, str]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and "lengthlens" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def probes(sides: list[Side], runs: list[str]) -> None:
    for run in filter(None, runs):
        found = {side.name: json.loads(side.run(str(Path(run).resolve()), code=PROBES)[2]) for side in sides}
        names = list(found["now"]["seconds"])
        for name in [*names, "all"]:
            seconds = {side: of(each["seconds"], name) for side, each in found.items()}
            for side, own in seconds.items():
                show(f"{Path(run).name} {name}, {side}"[-42:], own, seconds["now"] or 1e-9)
        for side in sides[1:]:
            for name, rows in found["now"]["rows"].items():
                same = [a == b for a, b in zip(rows, found[side.name]["rows"].get(name, []))]
                print(f"  {name}: {sum(same)} of {len(rows)} rows are {side.name}'s")


def of(seconds: dict[str, float], name: str) -> float:
    return sum(seconds.values()) if name == "all" else seconds.get(name, 0.0)


def growth(sides: list[Side], size: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        store = make_store(Path(temporary) / "runs", size)
        for which in ("first", "again"):
            compare(f"list {size} runs, {which}", sides, ["runs", "--store", str(store), "--json"], clock=True)
        compare(f"find {size} runs finished", sides, [str(store), str(size), json.dumps(TINY)], code=GROWTH, clock=True)


def make_store(store: Path, size: int) -> Path:
    """A store of runs that ended and were evaluated, as far as their files say."""
    from lengthlens.runs.sweep import Grid

    score = {"samples": 1000, "seed": 0, "exact_match": 0.0, "token_accuracy": 0.1}
    status = {"status": "not-converged", "steps": 1, "in_range_exact_match": 0.0, "seconds": 0.1, "reason": "made up"}
    common: dict[str, Any] = {
        "status.json": status,
        "evaluation.json": [{"length": n, **score} for n in (1, 2, 3, 4, 20)],
    }
    for config in Grid(["copy"], ["rope", "hinted:relative"], range(size // 2), [20], settings=TINY).configs():
        files = {
            name: json.dumps(value).encode() for name, value in {"config.json": config.to_dict(), **common}.items()
        }
        listed = {name: {"sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
        folder = store / config.id
        folder.mkdir(parents=True)
        for name, data in {**files, "manifest.json": json.dumps({"format": 1, "files": listed}).encode()}.items():
            (folder / name).write_bytes(data)
            os.utime(folder / name, (1e9, 1e9))
    time.sleep(3)  # what is only just written is not kept
    return store


def main() -> None:
    given = options(__doc__, commit=["5a1f19e"], parts=PARTS, runs=[""], size=10_000)
    with sides(given.commit) as there:
        work = {
            "import": lambda: imports(there),
            "listing": lambda: listings(there),
            "verdict": lambda: verdicts(there),
            "figures": lambda: figures(there),
            "probes": lambda: probes(there, given.runs),
            "growth": lambda: growth(there, given.size),
        }
        for part in given.parts:
            work[part]()


if __name__ == "__main__":
    main()
