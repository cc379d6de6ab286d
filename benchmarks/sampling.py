"""How many tokens a second each task draws, on one core, at n = 100: `python benchmarks/sampling.py [--scale N]`.

Peak memory is measured too: how much the process grew for each byte of the batch that it returned.
"""

import os
import statistics

os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler's own chatter

import torch
from common import options, timed

from lengthlens.tasks import TASKS, Task

ROWS = 20_000
REPEATS = 5


def tokens_per_second(task: Task, scale: int) -> float:
    """The median over repeats, after one warm-up."""
    generator = torch.Generator().manual_seed(0)
    drawn = [timed(lambda: task.sample(scale, ROWS, generator).tokens) for _ in range(REPEATS + 1)]
    return statistics.median(tokens.numel() / seconds for seconds, tokens in drawn[1:])


def peak_per_byte(task: Task, scale: int, rows: int) -> float:
    """Peak bytes that torch allocated while sampling, for each byte of the returned tokens."""
    with torch.profiler.profile(profile_memory=True) as profile:
        tokens = task.sample(scale, rows, torch.Generator().manual_seed(0)).tokens
    live = peak = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak / (tokens.numel() * tokens.element_size())


def main() -> None:
    scale = options(__doc__, scale=100).scale
    torch.set_num_threads(1)
    print(f"n = {scale}, {ROWS} rows a batch, one thread")
    print(f"{'task':<25}{'million tokens/s':>18}{'peak memory / batch, at 2000 and 20000 rows':>48}")
    for task in TASKS.values():
        small, large = (peak_per_byte(task, scale, rows) for rows in (2_000, 20_000))
        print(f"{task.name:<25}{tokens_per_second(task, scale) / 1e6:>18.1f}{small:>40.2f}{large:>8.2f}")


if __name__ == "__main__":
    main()
