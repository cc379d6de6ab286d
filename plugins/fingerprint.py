"""What a class from outside is, as a short text that changes when its definition does; and the same of this package.

The fingerprint of a class follows from the syntax of the class, of the classes it inherits from, of the functions and
constants of its file that they use, and of the whole of every other file of the user that this file imports, directly
or through others: those below its directory, or in its package. Comments, docstrings, layout and the place of files do
not count. This project, Python, installed libraries, data files and what is imported by a name that is computed are not
part of it.
"""

import ast
import hashlib
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

# Their classes are known by name; with their source, every update would make all runs new ones.
LIBRARIES = {"lengthlens", "torch", "numpy", "pandas", "matplotlib", "scipy", "sklearn", "transformer_lens"}
TESTS = "lengthlens.tests"  # stands for a user's code
DIGITS = 12  # of 16 values each: no two definitions of one user meet


def fingerprint(value: Any) -> str:
    """Of a class, or of an object of it: then what it was made with counts, too.

    >>> class Mine:
    ...     def answer(self):
    ...         return 1
    >>> len(fingerprint(Mine)), fingerprint(Mine) == fingerprint(Mine())
    (12, True)
    """
    kind = value if isinstance(value, type) else type(value)
    made_with = [] if kind is value else state(kind, value)
    text = repr([*(definition(each) for each in kind.__mro__ if is_outside(each.__module__)), *made_with])
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def code_version() -> str:
    """Changes with every line of this package's code: the one key of every cache of what follows from code.

    It is read from the files as they are, so that it is right in a checkout that is being edited, too. 150 files take
    about 10 ms. Library versions, plug-ins and data are not part of it.

    >>> len(code_version()), code_version() == code_version()
    (16, True)
    """
    root = Path(__file__).resolve().parent.parent
    rooms = [path.parent for path in root.glob("*/__init__.py")]  # tests, docs and an environment are no rooms
    kinds = (".py", ".html", ".css", ".js")  # a page follows from its templates, too
    paths = sorted(
        p for p in [*root.glob("*.py"), *(p for room in rooms for p in room.rglob("*"))] if p.suffix in kinds
    )
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def is_outside(module: str) -> bool:
    """Whether a module is a user's."""
    if module == "__main__" or module.startswith(TESTS):
        return True
    top = module.partition(".")[0]
    return top not in LIBRARIES and top not in sys.stdlib_module_names


def state(kind: type, value: Any) -> list[Any]:
    """What an object was made with; what it has computed and remembered since does not count."""
    entries = [entry for each in kind.__mro__ for entry in vars(each).items()]
    computed = {name for name, entry in entries if isinstance(entry, cached_property)}
    return [[name, plain(entry)] for name, entry in sorted(vars(value).items()) if name not in computed]


def plain(value: Any) -> Any:
    """A value as a text or a list that does not depend on where it lies in memory."""
    if isinstance(value, str | bytes | int | float | complex | bool | None):
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset):
        parts = [plain(each) for each in value]
        return sorted(parts, key=repr) if isinstance(value, set | frozenset) else parts
    if isinstance(value, dict):
        return [[plain(key), plain(each)] for key, each in value.items()]
    if isinstance(value, FunctionType):
        return compiled(value.__code__)
    if hasattr(value, "tolist"):  # an array, a tensor
        return plain(value.tolist())
    return type(value).__qualname__


def definition(kind: type) -> Any:
    """The syntax of a class with all that it uses of its module, and the files that this imports; where there is no
    source, what it was compiled to."""
    source = source_of(kind)
    if source is not None:
        file, statement, tree = source
        others = [[name, shape(other)] for name, other in sorted(imports(file, kind.__module__).items())]
        return [*(shape(each) for each in used(statement, tree, vars(sys.modules[kind.__module__]))), *others]
    entries = [(name, unwrapped(each)) for name, each in sorted(vars(kind).items())]
    counted = [(name, each) for name, each in entries if name[:2] != "__" or isinstance(each, FunctionType)]
    return [kind.__qualname__, [[name, plain(each)] for name, each in counted]]


def unwrapped(value: Any) -> Any:
    """The function inside a property, a class method or a static method."""
    for name in ("fget", "__func__", "func"):
        value = getattr(value, name, value) if not isinstance(value, FunctionType) else value
    return value


def source_of(kind: type) -> tuple[str, ast.AST, ast.Module] | None:
    """The name of the file (or of the cell of a notebook) that a class stands in, its statement, and the whole file."""
    try:
        file = inspect.getsourcefile(kind)
        first = inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):  # a notebook keeps the source of functions only
        codes = [each.__code__ for each in map(unwrapped, vars(kind).values()) if isinstance(each, FunctionType)]
        file, first = next(((code.co_filename, code.co_firstlineno) for code in codes), (None, 0))
    tree = parsed(file)
    if tree is None or file is None:
        return None
    named = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__]
    starts = [min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in named]
    around = [node for node, start in zip(named, starts) if start <= max(1, first) <= (node.end_lineno or 0)]
    return (file, around[-1], tree) if around else None


def parsed(file: str | None) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file))) if file and linecache.getlines(file) else None
    except SyntaxError:  # a cell with shell commands in it
        return None


def used(node: ast.AST, tree: ast.Module, known: Mapping[str, Any]) -> Iterator[ast.AST]:
    """The statement, those at the top of its file that define or change what it uses, and libraries' functions."""
    homes = dict[str, list[ast.stmt]]()
    for each in tree.body:
        for name in touched(each):
            homes.setdefault(name, []).append(each)
    needed, left = [node], [node]
    while left:
        at = left.pop()
        names = {each.id: None for each in ast.walk(at) if isinstance(each, ast.Name)}
        if isinstance(at, ast.stmt) and at is not node:  # what changes a name it defines, such as NAME.update(…)
            names |= dict.fromkeys(touched(at))
        new = [each for name in names for each in homes.get(name, ()) if each not in needed]
        needed, left = [*needed, *new], [*left, *new]
    yield from needed
    for name in dict.fromkeys(each.id for one in needed for each in ast.walk(one) if isinstance(each, ast.Name)):
        function = known.get(name)
        if name in homes or not isinstance(function, FunctionType) or not is_outside(function.__module__):
            continue
        if is_installed(inspect.getsourcefile(function)):  # of a file of the user all is counted
            yield from ast.parse(textwrap.dedent(inspect.getsource(function))).body


def touched(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a file defines or may change; an import defines nothing.

    >>> source = "A = B, C = 1, 2\\nif A:\\n    D = 3\\nTABLE.update(x=1)\\ndef f():\\n    global E\\n    g()"
    >>> [list(touched(each)) for each in ast.parse(source).body]
    [['A', 'B', 'C'], ['A', 'D'], ['TABLE'], ['f', 'E']]
    """
    inside = list(ast.walk(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        yield from (name for each in inside if isinstance(each, ast.Global) for name in each.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and is_no_definition(node.value.func):
        return  # it registers
    elif not (isinstance(node, ast.If) and "__main__" in ast.dump(node.test)):
        names = [getattr(each, "id", getattr(each, "name", None)) for each in inside if not isinstance(each, ast.alias)]
        yield from dict.fromkeys(name for name in names if isinstance(name, str))


def imports(file: str, module: str) -> dict[str, ast.Module]:
    """What is in the user's other files that a file imports, directly or through others, by path or name."""
    path = Path(file).resolve()
    root, only = path.parent, module.partition(".")[0] if is_installed(file) else ""
    for _ in module.split(".")[:-1] if (root / "__init__.py").exists() else ():
        root = root.parent
    found, left = dict[Path, str](), [path] if path.is_file() else []
    while left:
        tree = parsed(str(here := left.pop()))
        for name, wanted in imported(tree, here.parent, root) if tree else ():
            top = name.partition(".")[0]
            own = top == only if only else is_outside(name) and not is_installed(str(wanted))
            if own and wanted not in (path, *found) and wanted.is_file():
                inside = wanted.is_relative_to(root)
                found[wanted] = wanted.relative_to(root).as_posix() if inside else wanted.name
                left.append(wanted)
    return {name: parsed(str(each)) or ast.Module([], []) for each, name in found.items()}


def imported(tree: ast.Module, folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """The modules that a file in a folder may import, and the files that they may be: below `root`, or loaded."""
    for node in ast.walk(tree):
        names, base = list[str](), root
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (folder, *folder.parents)[node.level - 1] if node.level else root
            start = f"{node.module}." if node.module else ""
            names = [f"{start}{alias.name}" for alias in node.names]
        for parts in (name.split(".") for name in names):
            for end in range(1, len(parts) + 1):
                place, name = base.joinpath(*parts[:end]), ".".join(parts[:end])
                within = place.relative_to(root).parts if place.is_relative_to(root) else (name,)
                yield from ((".".join(within), each) for each in (place.with_suffix(".py"), place / "__init__.py"))
                loaded = getattr(sys.modules.get(name), "__file__", None)
                if base == root and loaded is not None:
                    yield name, Path(loaded).resolve()


def is_installed(file: str | None) -> bool:
    """Whether a file belongs to an installed package, and not to a user's own code."""
    return bool({"site-packages", "dist-packages"}.intersection(Path(file or "").parts))


def shape(node: Any) -> Any:
    """Syntax as nested lists, without docstrings, places and what differs between versions of Python.

    >>> shape(ast.parse("x = 1  # one")) == shape(ast.parse("x  =  1")) != shape(ast.parse("x = 2"))
    True
    """
    if isinstance(node, list):
        return [shape(each) for each in node if not is_no_definition(each)]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [[name, shape(each)] for name, each in ast.iter_fields(node) if each not in (None, [])]
    return [type(node).__name__, *(field for field in fields if field[1] != [])]


def is_no_definition(node: Any) -> bool:
    """Whether it is a docstring, or the decorator `register`, which do not change what a class is."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Attribute | ast.Name) and getattr(node, "attr", getattr(node, "id", "")) == "register"


def compiled(code: CodeType) -> list[Any]:
    """What a function was compiled to, without its docstring."""
    constants = [compiled(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts[1:]]
    return [code.co_code.hex(), code.co_names, constants]
