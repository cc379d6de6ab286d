"""What the engine of a sweep costs beside the runs themselves: `python benchmarks/engine.py [--runs 2000]`.

A sweep of runs of one step each, on two local workers and on two workers of a Dask cluster on this machine. Shown for
each run: the seconds of a worker that are not spent in the run (waiting, sending, receiving; from the first result on,
so that starting workers does not count), the seconds of CPU of the process that hands out the work, and, for scale,
what a run itself takes in its worker.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from common import options

from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Grid, Planned, in_parallel, train_and_evaluate

TINY = {"steps": 1, "batch": 1, "train_max": 2, "d_model": 8, "n_heads": 1, "check_every": 1, "threads": 1}
WORKERS = 2


def timed(plan: Planned, store: RunStore) -> tuple[float, str]:
    """One run in its worker: how long it took, and how it ended."""
    start = time.perf_counter()
    outcome = train_and_evaluate(plan, store, checkpoint_seconds=60.0, wait=True)
    return time.perf_counter() - start, outcome.status


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
        inside, start = list[float](), [0.0, 0.0]
        for _, (seconds, status) in in_parallel(partial(timed, store=RunStore(Path(temporary))), plans, **where):
            assert status == "not-converged", status
            if start[0]:
                inside.append(seconds)
            else:
                start = [time.perf_counter(), time.process_time()]
        clock, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    others = max(0.0, WORKERS * clock - sum(inside)) / len(inside)
    each = (
        f"{1000 * cpu / len(inside):.1f} ms of CPU to hand it out, {1000 * sum(inside) / len(inside):.0f} ms in the run"
    )
    print(f"{engine:<6} {runs} runs, {WORKERS} workers: {1000 * others:.1f} ms of a worker beside each run, {each}")


def main() -> None:
    given = options(__doc__, runs=2000)
    os.environ["OMP_NUM_THREADS"] = "1"
    for engine in ("local", "dask"):
        measure(engine, given.runs)


if __name__ == "__main__":
    main()
