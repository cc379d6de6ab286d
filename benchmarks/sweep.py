"""How much sooner two local workers finish a sweep than one, and twenty kills of whole process groups:
`python benchmarks/sweep.py [--workers 2] [--runs 8] [--steps 2400] [--kills 20]`.

Both sweeps start from the command line in fresh processes, so that starting workers counts: some seven seconds of
imports each, which is why the runs are of full length. With `--kills`, a sweep
with workers is killed (SIGKILL, sweep and workers alike) at random moments and started again each time; then every run
must be complete and sound, none trained twice after it was finished, and the table that of the undisturbed sweep.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from common import options, show, timed

from lengthlens.runs.store import RunStore


def command(store: Path, workers: int, given: Namespace) -> list[str]:
    return [
        *(sys.executable, "-m", "lengthlens.cli", "sweep"),
        *("--tasks", "copy,parity-cot", "--schemes", "relative", "--seeds", f"0-{given.runs // 2 - 1}"),
        *("--lengths", "20", "--samples", "200", "--steps", str(given.steps), "--set", "patience=1000"),
        *("--store", str(store), "--workers", str(workers), "--quiet"),
    ]


def finish(store: Path, workers: int, given: Namespace) -> float:
    """The seconds that the sweep takes to its end."""
    words = command(store, workers, given)
    return timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))[0]


def torture(store: Path, duration: float, given: Namespace) -> int:
    """Kill and restart; the number of kills that hit a sweep at work."""
    chance, hits = random.Random(0), 0
    for _ in range(given.kills):
        words = command(store, given.workers, given)
        sweep = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)
        try:
            sweep.wait(chance.uniform(0, max(60.0, duration / 4)))
        except subprocess.TimeoutExpired:
            hits += 1
            os.killpg(sweep.pid, signal.SIGKILL)
            sweep.wait()
        assert RunStore(store).check() == []
    return hits


def main() -> None:
    given = options(__doc__, workers=2, runs=8, steps=2400, kills=0)
    with tempfile.TemporaryDirectory() as temporary:
        one, several, killed = (Path(temporary) / name for name in ("one", "several", "killed"))
        seconds = finish(several, given.workers, given)
        show(f"{given.runs} runs, {given.workers} workers", seconds, seconds)
        show(f"{given.runs} runs, one worker", finish(one, 1, given), seconds)
        table = RunStore(one).table()
        assert table.equals(RunStore(several).table()), "the number of workers must not show in the table"
        if given.kills:
            hits, store = torture(killed, seconds, given), RunStore(killed)
            finish(killed, given.workers, given)
            assert store.check() == [] and store.table().equals(table)
            for run in store.runs():
                events = [event["event"] for event in run.events()]
                assert events.count("finish") == 1 and events[-1] == "finish"
            print(f"{hits} kills of a sweep at work: same table, all sound, nothing trained twice")


if __name__ == "__main__":
    main()
