"""The house: imports go one way, one name means one thing, what is public is documented, and the wheel holds it all."""

import ast
import inspect
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import lengthlens as ll
from lengthlens import HOMES
from lengthlens.cli import main
from lengthlens.models.schemes import SCHEMES
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.tests.map import ROOMS, imported

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = ("tests", "benchmarks", "figures", "build", "out", "docs", "examples", "notebooks")
CONSTANTS = ("TASKS", "SCHEMES")  # public names that are no functions or classes: documented where they are defined
MAX_MODULES, MAX_LINES = 146, 32_800  # 16,918 lines when the house was rebuilt; raised knowingly, with what is added


@cache
def modules() -> list[Path]:
    """Every module outside tests, relative to the root. Without a look into environments, which have many thousands."""
    rooms = [path for path in ROOT.iterdir() if path.name not in OUTSIDE and not path.name.startswith(".")]
    found = (file for path in rooms for file in (path.rglob("*.py") if path.is_dir() else [path]))
    return sorted(path.relative_to(ROOT) for path in found if path.suffix == ".py")


@cache
def package_modules() -> list[Path]:
    return [path for path in modules() if path.parts[0].removesuffix(".py") in ROOMS]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


# -- the order of rooms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "import lengthlens.studies.presets",
        "import os, lengthlens.studies as s",
        "from lengthlens import studies",
        "from lengthlens import study",
        "from lengthlens.studies import presets",
        "from lengthlens.studies.presets import PRESETS",
        "def f():\n    from lengthlens.studies.presets import PRESETS",
        "if TYPE_CHECKING:\n    import lengthlens.studies",
    ],
)
def test_every_form_of_import_is_seen(source: str) -> None:
    assert set(imported(ast.parse(source))) == {"studies"}


@pytest.mark.parametrize("path", package_modules(), ids=str)
def test_imports_go_one_way(path: Path) -> None:
    room = ROOMS.index(path.parts[0].removesuffix(".py"))
    found = set(imported(tree(path)))
    assert found <= set(ROOMS[: room + 1]), f"{path} imports from {found - set(ROOMS[: room + 1])}"


# -- names -------------------------------------------------------------------------------------------------------


def defined(path: Path) -> Iterator[str]:
    """Names of functions, classes and constants that a module defines."""
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id


def classes(path: Path) -> Iterator[str]:
    return (node.name for node in tree(path).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))


def test_no_public_class_has_the_name_of_another() -> None:
    found = Counter(name for path in package_modules() for name in classes(path))
    assert [name for name, number in found.items() if number > 1] == []


def test_a_public_name_is_defined_once() -> None:
    places = defaultdict(list)
    for path in package_modules():
        for name in set(defined(path)) & set(HOMES):
            places[name].append(str(path))
    for name, home in HOMES.items():
        module = home.replace(".", "/")
        assert [place.removesuffix(".py").removesuffix("/__init__") for place in places[name]] == [module], name


def test_nothing_hides_a_module() -> None:
    """What a package exports has not the name of one of its modules, so that both can be imported."""
    for init in (path for path in modules() if path.name == "__init__.py"):
        folder = ROOT / init.parent
        inside = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/__init__.py")
        }
        exports = set(HOMES) if init.parent == Path() else set(defined(init)) | set(bound(init))
        assert exports.isdisjoint(inside), f"{init} hides {exports & inside}"


def bound(path: Path) -> Iterator[str]:
    """Names that a module imports out of modules; a module that is itself imported hides nothing."""
    for node in tree(path).body:
        if isinstance(node, ast.ImportFrom) and node.module != "lengthlens":
            yield from (alias.asname or alias.name for alias in node.names)


# -- what is public ----------------------------------------------------------------------------------------------


def test_every_public_name_has_a_home() -> None:
    assert set(ll.__all__) == {*HOMES, "__version__"}
    assert set(ll.__all__) <= set(dir(ll))
    assert ll.__version__[0].isdigit()


@pytest.mark.parametrize("name", HOMES)
def test_public_names_are_documented_with_an_example(name: str) -> None:
    if name in CONSTANTS:
        text = inspect.getdoc(import_module(f"lengthlens.{HOMES[name]}")) or ""
        assert name in text and len(text.splitlines()) >= 3
    else:
        text = inspect.getdoc(getattr(ll, name)) or ""
        lines = text.splitlines()
        assert len(lines) >= 3 and any(line.startswith((">>>", "    ")) for line in lines), text


@pytest.mark.parametrize("command", main.commands.values(), ids=lambda command: command.name)
def test_every_command_says_what_it_does(command: object) -> None:
    assert len(getattr(command, "help", "") or "") > 20


# -- schemes are asked, not known ----------------------------------------------------------------------------------


def scheme_classes(base: type = PositionScheme) -> Iterator[str]:
    for each in base.__subclasses__():
        yield each.__name__
        yield from scheme_classes(each)


def outside(*rooms: str) -> Iterator[tuple[str, ast.AST]]:
    """Every piece of code that is not in these rooms, and where it stands."""
    for path in package_modules():
        if path.parts[0] not in rooms and path.parts[:2] != ("models", "schemes"):
            yield from ((f"{path}:{getattr(node, 'lineno', 0)}", node) for node in ast.walk(tree(path)))


def test_no_scheme_class_decides_outside_of_schemes() -> None:
    known = set(scheme_classes())
    assert len(known) > 10
    for place, node in outside():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            names = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node.args[1])}
            assert names.isdisjoint(known), f"{place} asks for {names & known}"


def test_no_scheme_name_decides_outside_of_schemes() -> None:
    known = set(SCHEMES) - {"none", "learned"}  # words of other meanings, too
    for place, node in outside("models"):
        if isinstance(node, ast.Compare):
            texts = {getattr(each, "value", None) for each in (node.left, *node.comparators)}
            assert texts.isdisjoint(known), f"{place} compares with {texts & known}"


# -- size and packaging --------------------------------------------------------------------------------------------


def test_every_package_is_listed_for_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = (path.parent for path in modules() if path.name == "__init__.py")
    assert sorted(listed) == sorted(".".join(["lengthlens", *path.parts]) for path in packages)


def sizes() -> dict[Path, int]:
    return {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in modules()}


def test_few_modules() -> None:
    assert len(sizes()) <= MAX_MODULES


def test_few_lines() -> None:
    assert sum(sizes().values()) <= MAX_LINES
