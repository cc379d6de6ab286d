"""The map of rooms in CONTRIBUTING.md, drawn from the imports as they are.

``python tests/map.py`` prints it, ``python tests/map.py --write`` puts it into CONTRIBUTING.md.
"""

import ast
import sys
from collections.abc import Iterator
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


def modules(room: str) -> list[Path]:
    """The files of a room: one, or all of a package."""
    alone = ROOT / f"{room}.py"
    return [alone] if alone.exists() else sorted((ROOT / room).rglob("*.py"))


def imported(source: ast.AST) -> Iterator[str]:
    """The rooms that a source imports from, wherever the import stands."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("lengthlens."))
        elif isinstance(node, ast.ImportFrom) and node.module == "lengthlens":
            yield from (HOMES.get(alias.name, alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lengthlens."):
            yield str(node.module).split(".")[1]


def graph() -> dict[str, set[str]]:
    """For each room the other rooms that it imports."""
    found: dict[str, set[str]] = {}
    for room in ROOMS:
        trees = [ast.parse(path.read_text(encoding="utf-8")) for path in modules(room)]
        found[room] = {name for tree in trees for name in imported(tree)} & set(ROOMS) - {room}
    return found


def direct(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The edges that do not follow from others: a room that is reached through another one is left out.

    >>> direct({"a": set(), "b": {"a"}, "c": {"a", "b"}})
    {'a': set(), 'b': {'a'}, 'c': {'b'}}
    """

    def reach(room: str) -> set[str]:
        return edges[room].union(*(reach(other) for other in edges[room]))

    return {room: others - set().union(*(reach(other) for other in others)) for room, others in edges.items()}


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    path = ROOT / f"{room}.py"
    text = ast.get_docstring(ast.parse((path if path.exists() else ROOT / room / "__init__.py").read_text("utf-8")))
    return (text or "").split("\n\n")[0].replace("\n", " ").rstrip(".")


def drawn() -> str:
    """The map: a diagram of the direct imports, and a table of all of them."""
    edges = graph()
    lines = [f"  {room} --> {other}" for room, others in direct(edges).items() for other in ROOMS if other in others]
    diagram = ["```mermaid", "flowchart RL", *lines, "```"]
    rows = [
        f"| {room}{'.py' if (ROOT / f'{room}.py').exists() else '/'} | {purpose(room)} "
        f"| {', '.join(other for other in ROOMS if other in others)} |"
        for room, others in edges.items()
    ]
    return "\n".join([*diagram, "", "| room | what is in it | imports |", "|---|---|---|", *rows])


def written(page: str) -> str:
    """The page with the map as it is now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{drawn()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
    else:
        print(drawn())
