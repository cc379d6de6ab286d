"""How much sooner two local workers finish a sweep than one, and twenty kills of whole process groups:
`python benchmarks/sweep.py [--workers 2] [--runs 8] [--steps 2400] [--kills 20]`.

Both sweeps start from the command line in fresh processes, so that starting workers counts: some seven seconds of
imports each, which is why the runs are of full length. With `--kills`, a sweep
with workers is killed (SIGKILL, sweep and workers alike) at random moments and started again each time; then every run
must be complete and sound, none trained twice after it was finished, and the table that of the undisturbed sweep.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lengthlens.runs.store import RunStore


def command(store: Path, workers: int, runs: int, steps: int) -> list[str]:
    return [
        *(sys.executable, "-m", "lengthlens.cli", "sweep"),
        *("--tasks", "copy,parity-cot", "--schemes", "relative", "--seeds", f"0-{runs // 2 - 1}"),
        *("--lengths", "20", "--samples", "200", "--steps", str(steps), "--set", "patience=1000"),
        *("--store", str(store), "--workers", str(workers), "--quiet"),
    ]


def timed(store: Path, workers: int, runs: int, steps: int) -> float:
    start = time.perf_counter()
    subprocess.run(command(store, workers, runs, steps), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def torture(store: Path, kills: int, duration: float, workers: int, runs: int, steps: int) -> int:
    """Kill and restart; the number of kills that hit a sweep at work."""
    chance, hits = random.Random(0), 0
    for _ in range(kills):
        sweep = subprocess.Popen(
            command(store, workers, runs, steps), start_new_session=True, stdout=subprocess.DEVNULL
        )
        try:
            sweep.wait(chance.uniform(0, max(60.0, duration / 4)))
        except subprocess.TimeoutExpired:
            hits += 1
        if sweep.poll() is None:
            os.killpg(sweep.pid, signal.SIGKILL)
            sweep.wait()
        assert RunStore(store).check() == []
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--kills", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        one = timed(place / "one", 1, options.runs, options.steps)
        many = timed(place / "many", options.workers, options.runs, options.steps)
        print(f"{options.runs} runs: one worker {one:.1f} s, {options.workers} workers {many:.1f} s")
        print(f"{one / many:.2f} times as fast")
        tables = [RunStore(place / name).table() for name in ("one", "many")]
        assert tables[0].equals(tables[1]), "the number of workers must not show in the table"
        if options.kills:
            hits = torture(place / "killed", options.kills, many, options.workers, options.runs, options.steps)
            timed(place / "killed", options.workers, options.runs, options.steps)
            store = RunStore(place / "killed")
            assert store.check() == [] and store.table().equals(tables[0])
            for run in store.runs():
                events = [event["event"] for event in run.events()]
                assert events.count("finish") == 1 and events[-1] == "finish"
            print(f"{hits} kills of a sweep at work: same table, all sound, nothing trained twice")


if __name__ == "__main__":
    main()
