"""Peak memory of one forward pass without hooks, by length: it grows linearly, and 20,000 tokens take less than 2 GiB.

``python benchmarks/memory.py`` runs each measurement in a process of its own, since a peak cannot be taken back.
What torch and the interpreter take by themselves is measured too and shown as length 0.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

SCHEMES = ("rope", "alibi", "ideal", "lbpe")
LENGTHS = (0, 5000, 10000, 20000)
LIMIT = 2048  # MiB


def measure(scheme: str, length: int) -> dict[str, float]:
    """Peak resident memory in MiB and seconds, of this process."""
    import torch

    from lengthlens.models.config import ModelConfig
    from lengthlens.models.transformer import build

    model = build(ModelConfig(task="copy", scheme=scheme)).eval()
    task = model.task
    assert task is not None
    seconds = 0.0
    if length:
        scale = (length - 3) // 2
        tokens = task.sample(scale, 1, torch.Generator().manual_seed(0)).tokens
        started = time.perf_counter()
        with torch.no_grad():
            logits = model(tokens)
        seconds = time.perf_counter() - started
        assert logits.isfinite().all()
    return {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "seconds": seconds}


def in_a_process(scheme: str, length: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--scheme", scheme, "--length", str(length)]
    result: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheme", help="measure only this one, in this process (needs --length)")
    parser.add_argument("--length", type=int)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    arguments = parser.parse_args()
    if arguments.scheme:
        print(json.dumps(measure(arguments.scheme, arguments.length)))
        return
    print(f"{'scheme':<16}" + "".join(f"{f'{n} tokens':>22}" for n in LENGTHS) + f"{'growth':>10}{'limit':>8}")
    for scheme in arguments.schemes:
        found = [in_a_process(scheme, length) for length in LENGTHS]
        cells = [f"{f['mib']:8.0f} MiB {f['seconds']:6.1f} s" for f in found]
        mib = [f["mib"] for f in found]
        # What 20,000 tokens add to the bare process, in units of what 5,000 add: 4 if linear, 16 if quadratic.
        growth = (mib[3] - mib[0]) / max(1.0, mib[1] - mib[0])
        print(
            f"{scheme:<16}"
            + "".join(f"{c:>22}" for c in cells)
            + f"{growth:>10.2f}{'met' if mib[3] < LIMIT else 'MISSED':>8}"
        )


if __name__ == "__main__":
    main()
