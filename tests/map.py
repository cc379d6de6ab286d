"""The map of rooms in CONTRIBUTING.md, drawn from the imports as they are.

``python tests/map.py`` prints it, ``python tests/map.py --write`` puts it into CONTRIBUTING.md. ``python tests/map.py
--functions 10 --seed 3`` prints ten functions of the package, drawn at random, each with nothing but its file's name.
"""

import ast
import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lengthlens import HOMES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- map: python tests/map.py --write -->", "<!-- end of map -->"
# In the order in which one may import another; single files of the root are rooms too.
ROOMS = (
    *("errors", "values", "files", "notebook", "plugins", "tasks", "models", "parallel", "theory"),
    *("runs", "probes", "inside", "analyses", "studies", "commands", "cli"),
)


@cache
def modules() -> dict[str, Path]:
    """The file of each module of the rooms: tasks.task is tasks/task.py, tasks is tasks/__init__.py."""
    files = [file for room in ROOMS for file in (*ROOT.glob(f"{room}.py"), *sorted((ROOT / room).rglob("*.py")))]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(source: ast.AST) -> Iterator[str]:
    """The modules of the rooms that a source imports from, wherever the import stands."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".", 1)[1] for alias in node.names if alias.name.startswith("lengthlens."))
        elif isinstance(node, ast.ImportFrom) and node.module == "lengthlens":
            yield from (HOMES.get(alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lengthlens."):
            module = str(node.module).split(".", 1)[1]
            for alias in node.names:
                yield f"{module}.{alias.name}" if f"{module}.{alias.name}" in modules() else module


def graph() -> dict[str, set[str]]:
    """For each room the other rooms that it imports."""
    edges: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, file in modules().items():
        room = name.split(".")[0]
        edges[room] |= {other.split(".")[0] for other in imported(tree(file))} & set(ROOMS) - {room}
    return edges


def direct(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The edges that do not follow from others: a room that is reached through another one is left out.

    >>> direct({"a": set(), "b": {"a"}, "c": {"a", "b"}})
    {'a': set(), 'b': {'a'}, 'c': {'b'}}
    """

    def reach(room: str) -> set[str]:
        return edges[room].union(*(reach(other) for other in edges[room]))

    return {room: others - set().union(*(reach(other) for other in others)) for room, others in edges.items()}


def drawn() -> str:
    """The map: a diagram of the direct imports, and a table of all of them with what is in each room."""
    edges = graph()
    arrows = [f"  {room} --> {other}" for room, others in direct(edges).items() for other in ROOMS if other in others]
    lines = ["```mermaid", "flowchart RL", *arrows, "```", "", "| room | what is in it | imports |", "|---|---|---|"]
    for room, others in edges.items():
        purpose = (ast.get_docstring(tree(modules()[room])) or "").split("\n\n")[0].replace("\n", " ").rstrip(".")
        place = f"{room}{'.py' if modules()[room].parent == ROOT else '/'}"
        lines.append(f"| {place} | {purpose} | {', '.join(other for other in ROOMS if other in others)} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the map as it is now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{drawn()}\n{END}{rest.partition(END)[2]}"


def drawn_functions(number: int, seed: int) -> str:
    """Functions of modules and methods, drawn at random: the name of the file alone, and the text."""
    every = [
        f"# {file.name}\n{ast.get_source_segment(file.read_text('utf-8'), node, padded=True)}\n"
        for file in modules().values()
        for part in tree(file).body
        for node in (part.body if isinstance(part, ast.ClassDef) else [part])
        if isinstance(node, ast.FunctionDef)
    ]
    return "\n".join(random.Random(seed).sample(every, number))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--functions"]:
        print(drawn_functions(int(sys.argv[2]), int(sys.argv[4])))
    elif "--write" in sys.argv[1:]:
        PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
    else:
        print(drawn())
