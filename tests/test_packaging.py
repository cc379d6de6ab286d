"""What would be published: a source distribution and a wheel, which install and run."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import lengthlens as ll

ROOT = Path(__file__).resolve().parent.parent


def test_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert ll.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_workflow_runs_what_everybody_runs() -> None:
    workflow = (ROOT / ".github/workflows/test.yml").read_text("utf-8")
    assert "run: make test\n" in workflow


@pytest.mark.long
def test_source_distribution_and_wheel_install_and_run(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    make = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)]
    subprocess.run(make, check=True, capture_output=True)  # the wheel is made from the source distribution
    archive, wheel = (next((tmp_path / "dist").glob(end)) for end in ("*.tar.gz", "*.whl"))
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "py.typed", "studies/quick.toml"} <= names
    with zipfile.ZipFile(wheel) as opened:
        inside = opened.namelist()
        opened.extractall(tmp_path / "site")
    assert "lengthlens/py.typed" in inside and not [name for name in inside if name.startswith(("tests/", "docs/"))]
    code = 'import lengthlens as ll; print(ll.__file__, ll.load("copy/lbpe").predict("^ 7 3 ="))'
    place = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for words in (["-c", code], ["-m", "lengthlens.cli", "tasks"]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=place, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "copy" in done.stdout or (str(tmp_path / "site") in done.stdout and "7 3 $" in done.stdout)
