"""The house: imports go one way, one name means one thing, what is public is documented, and nothing grows."""

import ast
import builtins
import doctest
import graphlib
import inspect
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest

import lengthlens as ll
from lengthlens import HOMES
from lengthlens.analyses.findings import findings
from lengthlens.cli import main
from lengthlens.models.schemes import SCHEMES
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.probes.probe import PROBES
from lengthlens.probes.schema import COLUMNS
from lengthlens.runs.store import shipped
from lengthlens.studies.presets import PRESETS
from lengthlens.tests.map import ROOMS, ROOT, imported, modules, tree

OUTSIDE = ("tests", "benchmarks", "figures", "build", "out", "docs", "examples", "notebooks")
# Only ever lowered: who adds a module or a line takes another away.
MAX_MODULES, MAX_LINES, MAX_TEST_LINES = 124, 32_875, 17_197


@cache
def package_files() -> list[Path]:
    """Every file of the package. Without a look into environments, which have many thousands."""
    places = [path for path in ROOT.iterdir() if path.name not in OUTSIDE and not path.name.startswith(".")]
    return sorted(file for path in places for file in ([path] if path.suffix == ".py" else path.rglob("*.py")))


every_module = pytest.mark.parametrize("module", modules())

# -- the order of rooms and modules ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import lengthlens.studies.presets", "studies.presets"),
        ("import os, lengthlens.studies as s", "studies"),
        ("from lengthlens import studies", "studies"),
        ("from lengthlens import study", "studies.build"),
        ("from lengthlens.studies import presets", "studies.presets"),
        ("from lengthlens.studies.presets import PRESETS", "studies.presets"),
        ("def f():\n    from lengthlens.studies.presets import PRESETS", "studies.presets"),
        ("if TYPE_CHECKING:\n    import lengthlens.studies", "studies"),
    ],
)
def test_every_form_of_import_is_seen(source: str, module: str) -> None:
    assert list(imported(ast.parse(source))) == [module]


@every_module
def test_imports_go_one_way(module: str) -> None:
    rooms = {other.split(".")[0] for other in imported(tree(modules()[module]))}
    assert rooms <= set(ROOMS[: ROOMS.index(module.split(".")[0]) + 1])


def test_no_module_is_in_a_cycle_of_imports() -> None:
    """Inside rooms, too; imports in functions and for types count."""
    edges = {module: set(imported(tree(file))) - {module} for module, file in modules().items()}
    graphlib.TopologicalSorter(edges).prepare()  # names the cycle


# -- names -------------------------------------------------------------------------------------------------------


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names of functions, classes, constants and fields that a module or class defines."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_no_public_class_has_the_name_of_another() -> None:
    classes = (node.name for file in modules().values() for node in tree(file).body if isinstance(node, ast.ClassDef))
    counts = Counter(name for name in classes if not name.startswith("_"))
    assert [name for name, number in counts.items() if number > 1] == []


def test_a_public_name_is_defined_once() -> None:
    places = defaultdict(list)
    for module, file in modules().items():
        for name in set(defined(tree(file).body)) & set(HOMES):
            places[name].append(module)
    assert places == {name: [home] for name, home in HOMES.items()}


def test_nothing_hides_a_module() -> None:
    """What a package exports has not the name of one of its modules, so that both can be imported."""
    for init in (path for path in package_files() if path.name == "__init__.py"):
        inside = {path.stem for path in init.parent.glob("*.py")} | {p.parent.name for p in init.parent.glob("*/*.py")}
        froms = (node for node in tree(init).body if isinstance(node, ast.ImportFrom) and node.module != "lengthlens")
        exports = {alias.asname or alias.name for node in froms for alias in node.names} | set(defined(tree(init).body))
        exports = set(HOMES) if init.parent == ROOT else exports
        assert exports.isdisjoint(inside), f"{init} hides {exports & inside}"


# -- docstrings --------------------------------------------------------------------------------------------------

# Names of others, and those that an example makes up.
THEIRS = {
    *("transformer_lens", "transformers", "datasets", "booktabs", "Figure.subplots", "Mapping.get", "state_dict"),
    *("RidgeClassifier", "LogisticRegression", "run_with_hooks", "patching.generic_activation_patch", "RMSPre"),
    *("tl_parameters", "mine.py", "package.module", "owner/name", "ShiftByTwo", "x_low", "x_high", "a_before"),
    *("cuda", "half", "old", "L0H0", "L0H1", "L0H3"),
}


def words(node: ast.AST) -> Iterator[str]:
    """Every identifier in a piece of code, and the parts of every text without a space, such as a hook's name."""
    for each in ast.walk(node):
        for field in ("id", "attr", "arg", "name", "asname", "value"):
            word = getattr(each, field, None)
            if isinstance(word, str) and len(word.split()) == 1:
                yield from re.split(r"[.,={}:/]|--", word)


def docstrings(source: ast.Module) -> Iterator[str]:
    for node in ast.walk(source):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


@cache
def known_everywhere() -> set[str]:
    """What any module or class defines, and the names that registries and tables use."""
    names = {*ll.TASKS, *SCHEMES, *COLUMNS, *PROBES, *PRESETS, *findings(), *main.commands, *dir(builtins)}
    names |= {measure for probe in PROBES.values() for measure in probe.measures}
    for module, file in modules().items():
        names |= {*module.split("."), *defined(tree(file).body)}
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                names |= {*defined(node.body)}
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return names


def exists(name: str, here: set[str], file: Path) -> bool:
    """Whether a name stands for something: a file, a trained model, a module, or what this module or any defines."""
    if "/" in name:
        trained = any(each.startswith(name) for each in shipped())
        return trained or name in ll.TASKS or (ROOT / name).exists() or (file.parent / name).exists()
    if name.startswith(("lengthlens.", "ll.")):
        home, _, last = re.sub("^ll", "lengthlens", name).rpartition(".")
        return name.split(".", 1)[1] in modules() or last in HOMES or hasattr(import_module(home), last)
    parts = re.sub(r"^blocks\.\w\.", "", name).split(".")  # the layer of a hook
    return all(part in here or part in known_everywhere() for part in parts)


@every_module
def test_names_in_docstrings_exist(module: str) -> None:
    """What stands in backticks and looks like a name, a path, a hook or a command of ours."""
    file = modules()[module]
    here, wrong = set(words(tree(file))), []
    for span in re.findall(r"(?<!`)``?([^`\n]+)``?(?!`)", "\n".join(docstrings(tree(file)))):
        if span.startswith("lengthlens "):
            wrong += [span] if span.split()[1] not in main.commands else []
        elif re.fullmatch(r"[A-Za-z_][\w./]*\w(\(.*\))?", span) and (name := span.partition("(")[0]) not in THEIRS:
            wrong += [] if exists(name, here, file) else [span]
    assert wrong == []


@pytest.mark.parametrize("name", HOMES)
def test_public_names_have_an_example_that_runs(name: str) -> None:
    value = getattr(ll, name)
    text = inspect.getdoc(value if callable(value) else import_module(f"lengthlens.{HOMES[name]}")) or ""
    examples = [each for each in doctest.DocTestParser().get_examples(text) if doctest.SKIP not in each.options]
    assert any(each.want for each in examples)
    assert any({"HookedModel": "build"}.get(name, name) in each.source for each in examples)


def commands(group: click.Group = main) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield command
        yield from commands(command) if isinstance(command, click.Group) else ()


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_every_command_says_what_it_does_to_what(command: click.Command) -> None:
    first = (command.help or "").split("\n\n")[0]
    assert re.match(r"[A-Z].{20,}[.?]$", first.replace("\n", " ")), first
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            names = re.findall(r"[A-Z]{3,}", parameter.make_metavar(click.Context(command)))
            assert any(name in (command.help or "") for name in names), f"its help does not say what {names} is"
        else:
            assert getattr(parameter, "help", ""), f"{parameter.name} has no help"


# -- schemes are asked, not known ----------------------------------------------------------------------------------


def scheme_classes(base: type = PositionScheme) -> Iterator[str]:
    for each in base.__subclasses__():
        yield from [each.__name__] if each.__module__.startswith("lengthlens.models.schemes") else []
        yield from scheme_classes(each)


def outside(*rooms: str) -> Iterator[tuple[str, ast.AST]]:
    """Every piece of code that is not in these rooms, and where it stands."""
    for module, file in modules().items():
        if module.split(".")[0] not in rooms and not module.startswith("models.schemes"):
            yield from ((f"{module}:{getattr(node, 'lineno', 0)}", node) for node in ast.walk(tree(file)))


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


def test_every_public_name_has_a_home_and_every_package_is_listed_for_the_wheel() -> None:
    assert set(ll.__all__) == {*HOMES, "__version__"} <= set(dir(ll))
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = (path.relative_to(ROOT).parent for path in package_files() if path.name == "__init__.py")
    assert sorted(listed) == sorted(".".join(["lengthlens", *path.parts]) for path in packages)


def lines(files: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def test_the_house_does_not_grow() -> None:
    assert len(package_files()) <= MAX_MODULES
    assert lines(package_files()) <= MAX_LINES
    assert lines(list((ROOT / "tests").rglob("*.py"))) <= MAX_TEST_LINES
