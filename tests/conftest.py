"""Shared by tests: what a test registers is forgotten, trained networks, and one finished study."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from filelock import FileLock
from jaxtyping import install_import_hook

# Shapes and types of what these modules are given and give are checked, in tests only. Before they are imported.
install_import_hook(
    ["lengthlens.tasks.task", "lengthlens.runs.evaluation", "lengthlens.probes.network"], "beartype.beartype"
)

from lengthlens.models.transformer import HookedModel  # noqa: E402
from lengthlens.plugins.registry import registries  # noqa: E402
from lengthlens.runs.store import RunStore  # noqa: E402
from lengthlens.tests.parameters import small_model  # noqa: E402
from lengthlens.tests.pretended import prepare  # noqa: E402

torch.set_num_threads(1)  # tensors here are so small that threads cost more than they give


def pytest_configure(config: pytest.Config) -> None:
    """Pretended GPUs are known before any gradient, since torch counts its devices at the first; and only where nothing
    else is tested, since a process with devices cannot be forked after its first gradient. Beside a real GPU there are
    none: torch would take theirs for the memory from which it copies."""
    alone = all(Path(each.split("::")[0]).name == "test_devices.py" for each in config.args)
    if alone and not torch.cuda.is_available():
        prepare()


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    """What a test registers is gone after it."""
    kept = [(registry, dict(registry._entries), dict(registry._origins)) for registry in registries().values()]
    yield
    for registry, entries, origins in kept:
        registry._entries, registry._origins = entries, origins


@pytest.fixture
def model() -> HookedModel:
    """A small model for tests that are about the model rather than about a scheme."""
    return small_model("relative")


# -- one finished study ------------------------------------------------------------------------------------------

PATIENCE = 300  # seconds for a machine that is busy with other things


class Smoke(NamedTuple):
    """What `lengthlens reproduce --preset smoke` made and printed. To be read; whoever changes it copies it."""

    out: Path
    summary: dict[str, Any]


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Smoke:
    """The smoke preset, killed once and called again; made once for all processes of a test session."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    out, printed = shared / "smoke", shared / "smoke.json"
    with FileLock(shared / "smoke.lock"):
        if not printed.exists():
            kill_after_one_run(out)
            printed.write_bytes(subprocess.run(reproduce_smoke(out), check=True, stdout=subprocess.PIPE).stdout)
    return Smoke(out, json.loads(printed.read_bytes()))


def reproduce_smoke(out: Path) -> list[str]:
    """The command in a process of its own, on one worker: processes cost more than these runs."""
    code = "from lengthlens.cli import main; main()"
    words = ["reproduce", "--preset", "smoke", "--workers", "1", "--quiet", "--json", "--out", str(out)]
    return [sys.executable, "-c", code, *words]


def kill_after_one_run(out: Path) -> None:
    """Start in a process group of its own, and kill all of it once the first run has ended."""
    process = subprocess.Popen(reproduce_smoke(out), start_new_session=True, stderr=subprocess.DEVNULL)
    start = time.monotonic()
    while not any(run.status().finished for run in RunStore(out / "runs").runs()):
        assert process.poll() is None and time.monotonic() - start < PATIENCE
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# -- the package as a wheel installs it ------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parent.parent
NOT_PACKAGED = (".*", "__pycache__", "build", "out", "figures", "tests", "docs", "examples", "*.egg-info")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package, installed from a wheel; to be put on PYTHONPATH. Made once for a test session."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    site, source = shared / "site", shared / "source"
    with FileLock(shared / "site.lock"):
        if not site.exists():
            shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_PACKAGED))
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
            subprocess.run([*pip, "--target", str(site), str(source)], check=True, stderr=subprocess.DEVNULL)
    return site
