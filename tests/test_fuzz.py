"""A sample of the fuzzer (`make fuzz` runs all of it), and that its sandbox holds."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lengthlens.tests.parameters import few

FUZZ = Path(__file__).parent / "fuzz"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FUZZ / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is made of what Linux offers")
@pytest.mark.parametrize("cases", few([100, 500], 100))
def test_cases_end_in_a_result_or_a_sentence(cases: int) -> None:
    files, arguments = cases * 4 // 5, cases // 5
    asked = {"files": files, "arguments": arguments, "bundles": cases, "plugins": cases // 20}
    found = load("fuzzer").fuzz({kind: range(number) for kind, number in asked.items()})
    assert found["failures"] == []
    assert all(sum(found[kind].values()) == 2 * number for kind, number in asked.items())
    assert found["files"]["refused"] > 0.75 * files and found["arguments"]["exit 2"] > 0.4 * arguments
    assert found["largest_resident_MiB"] < found["limit_MiB"]


HARM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import sandbox
from pathlib import Path
own = sandbox.make_directory()
sandbox.enter(own)
assert os.getuid() != 0
(own / "mine").write_text("x")
for path in sys.argv[2:]:
    for harm in (lambda: Path(path).write_text("x"), Path(path).unlink, lambda: Path(path).rename(own / "x")):
        try:
            harm()
        except OSError:
            continue
        sys.exit(f"harmed {path}")
try:
    os.kill(os.getppid(), 0)
except OSError:
    sys.exit(0)
sys.exit("could signal")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is made of what Linux offers")
def test_the_sandbox_can_harm_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o666)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and os.getuid() == 0 and "pytest" in folder.name:
            folder.chmod(0o777)  # only the sandbox itself is in the way
    done = subprocess.run([sys.executable, "-c", HARM, str(FUZZ), str(victim)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert victim.read_text() == "mine"
