"""The examples, run as a user would: in a copy of an installed wheel, from another directory."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lengthlens as ll

pytestmark = pytest.mark.slow  # a wheel, and processes that import everything and train
ROOT = Path(__file__).resolve().parent.parent
CODE = "from lengthlens.cli import main; main()"


def place(installed: Path | str, here: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(here / "cache")}
    return {**os.environ, **own}


def run(installed: Path | str, here: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=here, env=place(installed, here), capture_output=True, text=True, timeout=3000
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


def test_an_imported_checkpoint(installed: Path, tmp_path: Path) -> None:
    """Accurate where it was trained, and wrong beyond."""
    shutil.copy(ROOT / "examples/imported_checkpoint.py", tmp_path)
    text = run(installed, tmp_path, "imported_checkpoint.py", "out")
    assert ll.verdict("parity-cot", "rope", 4, 20).verdict in text and "exact match 1.000 up to n = 4" in text
    (made,) = ll.RunStore(tmp_path / "out/runs").runs()
    scores = {row["length"]: row["exact_match"] for row in made.evaluation()}
    assert min(scores[n] for n in (1, 2, 3, 4)) > 0.99 and scores[20] < 0.1
    assert (tmp_path / "out/figures/extrapolation.png").stat().st_size > 1000
    listed = json.loads((tmp_path / "out/to-share/lengthlens.json").read_bytes())
    assert listed["kind"] == "run" and listed["name"] == made.id


PACKAGE = """
import lengthlens as ll
from lengthlens.tasks.copying import Copy

@ll.register
class Mine(Copy):
    name, summary = "{name}", "copying, by another name"
"""
CLUSTER = """
import os, sys
from distributed import LocalCluster

if __name__ == "__main__":
    os.chdir(sys.argv[1])  # its worker stands elsewhere
    with LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def cluster(here: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a Dask scheduler with a worker, in processes that end with the block."""
    (here / "cluster.py").write_text(CLUSTER)
    (here / "elsewhere").mkdir()
    words = [sys.executable, "cluster.py", str(here / "elsewhere")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, cwd=here, env=environment, text=True, **pipes) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def test_an_own_study_through_dask_with_plugins_of_every_kind(installed: Path, tmp_path: Path) -> None:
    """A file, a module beside the user, and an entry point of an installed package; then the example itself, up to its
    page and figures."""
    pytest.importorskip("distributed")
    (tmp_path / "from_file.py").write_text(PACKAGE.format(name="by-file"))
    (tmp_path / "from_module.py").write_text(PACKAGE.format(name="by-module"))
    packages = tmp_path / "packages"
    (packages / "theirs-1.0.dist-info").mkdir(parents=True)
    (packages / "theirs.py").write_text(PACKAGE.format(name="by-entry"))
    (packages / "theirs-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (packages / "theirs-1.0.dist-info/entry_points.txt").write_text("[lengthlens.plugins]\nmine = theirs\n")
    paths = f"{installed}{os.pathsep}{packages}"
    shutil.copytree(ROOT / "examples/own_study", tmp_path / "own_study")
    small = ["steps=2", "batch=2", "train_max=2", "d_model=8", "n_heads=2"]
    tasks = ["--tasks", "by-file,by-module,by-entry", "--schemes", "rope", *(f"--set={each}" for each in small)]
    plugins = ["--plugin", "from_file.py", "--plugin", "from_module"]
    with cluster(tmp_path, place(paths, tmp_path)) as address:
        dask = ["--engine", "dask", "--address", address, "--json", "--quiet"]
        calls = [["sweep", *plugins, *tasks, *dask], ["reproduce", "own_study/study.toml", *dask]]
        swept, made = (json.loads(run(paths, tmp_path, "-c", CODE, *words)) for words in calls)
    assert {each["run"].split("_")[0] for each in swept} == {"by-file", "by-module", "by-entry"}
    assert {each["status"] for each in swept} == {"not-converged"}
    assert [each["status"] for each in made["runs"]] == ["converged"] * 2
    drawn = {path.name for path in (tmp_path / "out/figures").iterdir()}
    assert {"extrapolation.png", "growth-src.pdf", "outcome.png", "tables"} <= drawn
    assert "Does a clip decide whether copying extrapolates?" in (tmp_path / "out/index.html").read_text()
