"""What the engine of a sweep costs beside the runs themselves: `python benchmarks/engine.py [--runs 2000]`.

A sweep of runs of one step each, on two local workers and on two workers of a Dask cluster on this machine. Shown for
each run: the seconds from the end of one run to the beginning of the next in the same worker (waiting, sending,
receiving; they cannot be negative, and starting workers does not count), the seconds of CPU of the process that hands
out the work, and, for scale, what a run itself takes in its worker.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from common import options

from lengthlens.parallel import in_parallel
from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Grid, Planned, train_and_evaluate

TINY = {"steps": 1, "batch": 1, "train_max": 2, "d_model": 8, "n_heads": 1, "check_every": 1, "threads": 1}
WORKERS = 2


def timed(plan: Planned, store: RunStore) -> tuple[int, float, float, str]:
    """One run: its worker, when it began and ended by the clock that all processes share, and how."""
    start = time.monotonic()
    outcome = train_and_evaluate(plan, store, checkpoint_seconds=60.0, wait=True)
    return os.getpid(), start, time.monotonic(), outcome.status


@contextmanager
def cluster(engine: str) -> Iterator[dict[str, Any]]:
    """Where the work is done."""
    if engine == "local":
        yield {"engine": engine, "workers": WORKERS}
        return
    from distributed import LocalCluster

    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as made:
        yield {"engine": engine, "address": made.scheduler_address}


def measure(engine: str, runs: int) -> None:
    grid = Grid(["copy"], ["rope"], range(runs), settings=TINY)
    with tempfile.TemporaryDirectory() as temporary, cluster(engine) as where:
        plans = {plan.config.id: plan for plan in grid.planned()}
        found, start = list[tuple[int, float, float]](), 0.0
        for _, (*span, status) in in_parallel(partial(timed, store=RunStore(Path(temporary))), plans, **where):
            assert status == "not-converged", status
            found.append(tuple(span))
            start = start or time.process_time()
        cpu = (time.process_time() - start) / max(1, runs - 1)
    found.sort()  # by worker, and in each by time
    between = [after[1] - before[2] for before, after in pairwise(found) if before[0] == after[0]]
    inside = [end - begin for _, begin, end in found]
    figures = ((mean(between), "between runs"), (cpu, "of CPU to hand it out"), (mean(inside), "in the run"))
    told = ", ".join(f"{1000 * seconds:.1f} ms {what}" for seconds, what in figures)
    print(f"{engine:<6} {runs} runs, {WORKERS} workers, each: {told}")


def main() -> None:
    given = options(__doc__, runs=2000)
    os.environ["OMP_NUM_THREADS"] = "1"
    for engine in ("local", "dask"):
        measure(engine, given.runs)


if __name__ == "__main__":
    main()
