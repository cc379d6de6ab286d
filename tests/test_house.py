"""The house: every package is in the wheel, and imports go one way."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "tasks",
    "models",
    "theory",
    "runs",
    "probes",
    "analyses",
    "studies",
    "commands",
)  # each may import from those before it


def test_every_package_is_listed_for_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(["lengthlens", *path.parent.relative_to(ROOT).parts])
        for room in ROOMS
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert set(listed) == {"lengthlens", *found}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room):
    later = ROOMS[ROOMS.index(room) + 1 :]
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = node.module.split(".")
                assert not (parts[0] == "lengthlens" and len(parts) > 1 and parts[1] in later), (
                    f"{path.relative_to(ROOT)} imports {node.module}"
                )
