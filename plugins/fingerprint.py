"""What a class from outside is, as a short text that changes when its definition does; and the same of this package.

The fingerprint of a class follows from the syntax of the class, of the classes it inherits from, and of the functions
and constants of its module that they use: not from comments, docstrings, layout or the place of the file. Classes of
this project, of Python and of the libraries below are not part of it.
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
    """The syntax of a class with all that it uses of its module; where there is no source, what it was compiled to."""
    source = source_of(kind)
    if source is not None:
        return [shape(each) for each in used(*source, vars(sys.modules[kind.__module__]))]
    entries = [(name, unwrapped(each)) for name, each in sorted(vars(kind).items())]
    counted = [(name, each) for name, each in entries if name[:2] != "__" or isinstance(each, FunctionType)]
    return [kind.__qualname__, [[name, plain(each)] for name, each in counted]]


def unwrapped(value: Any) -> Any:
    """The function inside a property, a class method or a static method."""
    for name in ("fget", "__func__", "func"):
        value = getattr(value, name, value) if not isinstance(value, FunctionType) else value
    return value


def source_of(kind: type) -> tuple[ast.AST, ast.Module] | None:
    """The statement that defines a class, and the file (or the cell of a notebook) that it stands in."""
    try:
        file = inspect.getsourcefile(kind)
        first = inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):  # a notebook keeps the source of functions only
        codes = [each.__code__ for each in map(unwrapped, vars(kind).values()) if isinstance(each, FunctionType)]
        file, first = next(((code.co_filename, code.co_firstlineno) for code in codes), (None, 0))
    tree = parsed(file)
    if tree is None:
        return None
    named = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__]
    starts = [min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in named]
    around = [node for node, start in zip(named, starts) if start <= max(1, first) <= (node.end_lineno or 0)]
    return (around[-1], tree) if around else None


def parsed(file: str | None) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file))) if file and linecache.getlines(file) else None
    except SyntaxError:  # a cell with shell commands in it
        return None


def used(node: ast.AST, tree: ast.Module, known: Mapping[str, Any]) -> Iterator[ast.AST]:
    """The statement, and those at the top of its file, or of other files of the user, that define what it uses."""
    homes = {name: each for each in tree.body for name in defined(each)}
    needed, left = [node], [node]
    while left:
        names = {each.id: None for each in ast.walk(left.pop()) if isinstance(each, ast.Name)}
        new = [homes[name] for name in names if name in homes and homes[name] not in needed]
        needed, left = [*needed, *new], [*left, *new]
    yield from needed
    for name in dict.fromkeys(each.id for one in needed for each in ast.walk(one) if isinstance(each, ast.Name)):
        function = known.get(name)
        if name not in homes and isinstance(function, FunctionType) and is_outside(function.__module__):
            yield from ast.parse(textwrap.dedent(inspect.getsource(function))).body


def defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement defines; an import defines nothing."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


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
