"""The examples, run as a user would: in a copy of an installed wheel, from another directory."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a wheel, and processes that import everything and train
ROOT = Path(__file__).resolve().parent.parent
NOT_BUILT = (".*", "build", "out", "tests", "figures", "docs", "*.egg-info")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel's content: first on the path, it is what gets imported."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*NOT_BUILT))
    build = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "source")]
    subprocess.run([sys.executable, *build], check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, here: Path, *words: str) -> str:
    place = {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(here / "cache")}
    done = subprocess.run(
        [sys.executable, *words], cwd=here, env={**os.environ, **place}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_an_own_task(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples/own_task.py", tmp_path)
    text = run(installed, tmp_path, "own_task.py")
    assert "task 'pair-sums': sound" in text and "4 3 $ should be 4 3 $" in text and "20 1.0" in text
    listed = run(installed, tmp_path, "-m", "lengthlens.cli", "runs", "--plugin", "own_task.py")
    assert "pair-sums_ideal" in listed and "converged" in listed and "--plugin" not in listed
    assert "load it with --plugin own_task.py" in run(installed, tmp_path, "-m", "lengthlens.cli", "runs")


def test_an_own_scheme(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples/own_scheme.py", tmp_path)
    text = run(installed, tmp_path, "own_scheme.py")
    assert "scheme 'half-distance': sound" in text and "not isolated: half distance 0" in text
    assert text.splitlines()[-1] == "half-distance"


def test_listings_need_no_torch_once_they_are_warm(installed: Path, tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['torch'] = None\nfrom lengthlens.cli import main; main()"
    for kind in ("tasks", "schemes"):
        first = run(installed, tmp_path, "-m", "lengthlens.cli", kind)
        assert run(installed, tmp_path, "-c", blocked, kind) == first != ""
