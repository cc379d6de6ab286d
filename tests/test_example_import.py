"""The example of an imported checkpoint, run as a user would: from an installed wheel, in another directory."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lengthlens as ll

pytestmark = pytest.mark.slow  # a wheel, and a process that imports everything, trains and probes
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_an_imported_checkpoint(installed: Path, tmp_path: Path) -> None:
    """Accurate where it was trained, wrong beyond, with measured SRC that grows."""
    shutil.copy(EXAMPLES / "imported_checkpoint.py", tmp_path)
    where = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "imported_checkpoint.py", "out"]
    done = subprocess.run(words, cwd=tmp_path, env=where, check=True, stdout=subprocess.PIPE, text=True)
    verdict = ll.verdict("parity-cot", "rope", 4, 20).verdict
    assert verdict in done.stdout and "exact match 1.000 up to n = 4" in done.stdout
    (run,) = ll.RunStore(tmp_path / "out" / "runs").runs()
    scores = {row["length"]: row["exact_match"] for row in run.evaluation()}
    assert min(scores[n] for n in (1, 2, 3, 4)) > 0.99 and scores[20] < 0.1
    assert (tmp_path / "out" / "figures" / "extrapolation.png").stat().st_size > 1000
    listed = json.loads((tmp_path / "out" / "to-share" / "lengthlens.json").read_bytes())
    assert listed["kind"] == "run" and listed["name"] == run.id
    whose = subprocess.run(
        [sys.executable, "-c", "import lengthlens; print(*lengthlens.__path__)"], cwd=tmp_path, env=where, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert Path(whose.stdout.strip()) == installed / "lengthlens"
