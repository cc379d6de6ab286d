"""Peak memory of one forward pass without hooks, by length: it grows linearly, and 20,000 tokens take less than 2 GiB.

``python benchmarks/memory.py [--schemes rope ...]`` runs each measurement in a process of its own, since a peak cannot
be taken back. What torch and the interpreter take by themselves is measured too and shown as length 0.
"""

import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from common import options, timed

LENGTHS = (0, 5000, 10000, 20000)
LIMIT = 2048  # MiB


def measure(scheme: str, length: int) -> tuple[float, float]:
    """Peak resident memory of this process in MiB, and seconds."""
    import torch

    from lengthlens.models.config import ModelConfig
    from lengthlens.models.transformer import build
    from lengthlens.tasks import TASKS

    model, seconds = build(ModelConfig(task="copy", scheme=scheme)).eval(), 0.0
    if length:
        tokens = TASKS["copy"].sample((length - 3) // 2, 1, torch.Generator().manual_seed(0)).tokens
        with torch.no_grad():
            seconds, logits = timed(lambda: model(tokens))
        assert logits.isfinite().all()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, seconds


def main() -> None:
    given = options(__doc__, schemes=["rope", "alibi", "ideal", "lbpe"])
    print(f"{'scheme':<16}" + "".join(f"{f'{n} tokens':>22}" for n in LENGTHS) + f"{'growth':>10}{'limit':>8}")
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for scheme in given.schemes:
            found = list(pool.map(measure, [scheme] * len(LENGTHS), LENGTHS))
            cells = "".join(f"{f'{mib:8.0f} MiB {seconds:6.1f} s':>22}" for mib, seconds in found)
            bare, least, *_, most = (mib for mib, _ in found)
            # What 20,000 tokens add to the bare process, in units of what 5,000 add: 4 if linear, 16 if quadratic.
            growth = (most - bare) / max(1.0, least - bare)
            print(f"{scheme:<16}{cells}{growth:>10.2f}{'met' if most < LIMIT else 'MISSED':>8}")


if __name__ == "__main__":
    main()
