"""Registries that users' classes may join, and how such classes are loaded.

A plug-in is a file (``mine.py``) or a module (``package.module``) that registers classes when it is imported. It is
loaded by name (`load_plugin`, the option ``--plugin``). The plug-ins in the variable LENGTHLENS_PLUGINS, and those that
installed packages offer as entry points ``lengthlens.plugins``, are loaded once a name is unknown or all names are
listed. Code is run because the user named it or installed it, never because a stored run asks for it.
"""

import hashlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lengthlens.errors import Registry, UnknownNameError, UserError
from lengthlens.plugins.fingerprint import fingerprint

Value = TypeVar("Value")
Thing = TypeVar("Thing")
VARIABLE, GROUP = "LENGTHLENS_PLUGINS", "lengthlens.plugins"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # such that it can be part of a directory's name

# For each base class, by where it is defined, the module and the name of its registry. Texts, since these modules
# import this one.
CONTRACTS = {
    "lengthlens.tasks.task.Task": ("lengthlens.tasks", "TASKS"),
    "lengthlens.models.schemes.scheme.PositionScheme": ("lengthlens.models.schemes.spec", "SCHEMES"),
    "lengthlens.probes.probe.Probe": ("lengthlens.probes.probe", "PROBES"),
    "lengthlens.analyses.study.Finding": ("lengthlens.analyses.findings", "FINDINGS"),
}


class Origin(NamedTuple):
    """Where a user's class comes from, and what its definition is."""

    plugin: str  # what to load; "" where it was defined by hand, in a notebook or at a prompt
    fingerprint: str


class PluginError(UserError):
    """A stored run needs a user's class that is not loaded, or that has changed."""


class Extensible(Registry[Value]):
    """A registry that users' classes may join; it knows where each of them comes from.

    Arguments: as those of a `Registry`; `classes` says that the entries are classes, not objects of them.
    """

    def __init__(self, kind: str, entries: Mapping[str, Value], classes: bool = False) -> None:
        super().__init__(kind, entries)
        self.kind, self.classes = kind, classes
        self._origins: dict[str, Origin] = {}

    def put(self, name: str, value: Value, origin: Origin) -> None:
        """Add a user's entry. It replaces what the same plug-in had under this name, and no other.

        So a cell of a notebook may be run again, and a worker may get a class that has changed.
        """
        known, before = self._origins.get(name), self._entries.get(name)
        if before is not None and (known is None or (known.plugin, called(before)) != (origin.plugin, called(value))):
            owner = "lengthlens" if known is None else f"{called(before)} in '{known.plugin}'"
            raise UserError(f"there is a {self.kind} '{name}' already, from {owner}: use another name")
        self._entries[name], self._origins[name] = value, origin

    def remove(self, name: str) -> None:
        super().remove(name)
        self._origins.pop(name, None)

    def origin(self, name: str) -> Origin | None:
        """Where a user's entry comes from; None for an entry of this project, and for an unknown name."""
        return self._origins.get(name) if name in self else None

    def same(self, name: str, stored: Origin) -> None:
        """Refuse an entry that is not the one that was stored; the sentence says what to load."""
        what, load_it = f"{self.kind} '{name}'", f"load it with --plugin {stored.plugin}, or name it in {VARIABLE}"
        now = self.origin(name)
        if name not in self and not stored.plugin:
            raise PluginError(f"{what} was defined in a session, not in a file: define and register it again first")
        if name not in self:
            raise PluginError(f"{what} comes from plug-in '{stored.plugin}', which is not loaded: {load_it}")
        if now is None or now.fingerprint != stored.fingerprint:
            home = "lengthlens" if now is None else f"'{now.plugin}'" if now.plugin else "this session"
            raise PluginError(
                f"{what} has changed: this was made with definition {stored.fingerprint}, and {home} has "
                f"{now.fingerprint if now else 'another'} now: restore the earlier definition to use it"
            )

    def outside(self) -> dict[str, Origin]:
        """The origins of the users' entries, by name."""
        return dict(self._origins)

    def __getitem__(self, name: str) -> Value:
        if name not in self._entries:
            load_named()
        try:
            return super().__getitem__(name)
        except UnknownNameError as error:
            raise UnknownNameError(f"{error}; load a plug-in with --plugin FILE.py") from None

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            load_named()
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        load_named()
        return super().__iter__()

    def __len__(self) -> int:
        load_named()
        return super().__len__()


# -- registering -----------------------------------------------------------------------------------------------------


def register(thing: Thing) -> Thing:
    """Make a task, a scheme, a probe or a figure that you wrote known by its `name`, everywhere a name is asked for.

    Arguments:
        thing: a subclass of `Task`, `PositionScheme`, `Probe` or `Finding`; also, but for schemes, an object of one.

    Returns what it was given, so that it can be a decorator. The same class registered again, as when a cell of a
    notebook is run twice, replaces the earlier one.

    Errors: UserError for what is none of these, for a name that is taken or cannot be one, and for a class that lacks
    a method.

    >>> from lengthlens.tasks import TASKS
    >>> from lengthlens.tasks.copying import Copy
    >>> @register
    ... class Echo(Copy):
    ...     name = "echo"
    >>> TASKS["echo"].render(TASKS["echo"].parse("^ 7 3 =").tokens[0])
    '^ 7 3 = 7 3 $'
    >>> TASKS.remove("echo")
    """
    kind: Any = thing if isinstance(thing, type) else type(thing)
    name, homes = getattr(thing, "name", None), [f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__]
    if (contract := next((home for home in homes if home in CONTRACTS), None)) is None:
        bases = ", ".join(home.rpartition(".")[2] for home in CONTRACTS)
        raise UserError(f"{kind.__name__} cannot be registered: it must be a subclass of one of {bases}")
    registry = named_registry(CONTRACTS[contract][1])
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UserError(f"{kind.__name__} needs a name of letters, digits, '-', '_' and '.', not {name!r}")
    if registry.classes and kind is not thing:
        raise UserError(f"register the class of {registry.kind} '{name}', not an object of it")
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise UserError(f"{registry.kind} '{name}' lacks the method{'s' * (len(missing) > 1)} {', '.join(missing)}")
    value: Any = thing
    if isinstance(thing, type) and not registry.classes:
        value = thing()
    registry.put(name, value, Origin(place_of(value), fingerprint(value)))
    return thing


def called(value: Any) -> str:
    """The name of a class, or of the class of an object."""
    return (value if isinstance(value, type) else type(value)).__qualname__


def registries() -> dict[str, Extensible[Any]]:
    """The registries that have been imported so far, by name."""
    homes = [(sys.modules.get(module), name) for module, name in CONTRACTS.values()]
    return {name: getattr(module, name) for module, name in homes if hasattr(module, name)}


def named_registry(kind: str) -> Extensible[Any]:
    """One of them by name, imported if it is not yet."""
    module = next(module for module, name in CONTRACTS.values() if name == kind)
    registry: Extensible[Any] = getattr(importlib.import_module(module), kind)
    return registry


def place_of(value: Any) -> str:
    """What to load to get a class: the plug-in that is being loaded now, or the file or module that defines it."""
    if _state.loading:
        return _state.loading[-1]
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ != "__main__":
        return kind.__module__
    file = getattr(sys.modules["__main__"], "__file__", None)
    return spelt(Path(file)) if file and Path(file).exists() else ""


def spelt(path: Path) -> str:
    """A path as one would type it here."""
    whole, here = path.resolve(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


# -- loading -----------------------------------------------------------------------------------------------------------


class _State:
    """What this process has loaded."""

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}  # plug-ins, by file or module: what they are called
        self.loading: list[str] = []  # plug-ins that are being loaded, outermost first
        self.named: str | None = None  # the value of LENGTHLENS_PLUGINS whose plug-ins are loaded


_state = _State()


def load_plugin(plugin: str) -> str:
    """Load a plug-in, a file or a module, unless it is loaded already. Returns its name, which is stored with runs.

    Errors: UserError, in one sentence with file and line, if there is none or its code fails.
    """
    path = Path(plugin).expanduser()
    is_file = path.suffix == ".py" or len(path.parts) > 1
    key = str(path.resolve()) if is_file else plugin
    if key not in _state.loaded:
        if is_file and not path.is_file():
            raise UserError(f"there is no plug-in '{plugin}': no such file")
        name = spelt(path) if is_file else plugin
        with _as_plugin(name):
            _run_file(path.resolve()) if is_file else _import(plugin)
        _state.loaded[key] = name
    return _state.loaded[key]


@contextmanager
def _as_plugin(name: str) -> Iterator[None]:
    """All that is registered meanwhile belongs to this plug-in; if its code fails, nothing of it stays."""
    before = {kind: set(registry.outside()) for kind, registry in registries().items()}
    _state.loading.append(name)
    try:
        yield
    except BaseException as error:
        for kind, registry in registries().items():
            for new in set(registry.outside()) - before.get(kind, set()):
                registry.remove(new)
        if isinstance(error, UserError) or not isinstance(error, Exception | SystemExit):
            raise
        frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
        theirs = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
        where = f"{Path(theirs[-1].filename).name}, line {theirs[-1].lineno}: " if theirs else ""
        what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise UserError(f"plug-in '{name}' cannot be loaded: {where}{what}") from error
    finally:
        _state.loading.pop()


def _run_file(path: Path) -> None:
    """Import a file under a name made from its path. It can import modules beside it, as a program can."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"lengthlens_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"plug-in '{path}' is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _import(module: str) -> None:
    """Import a module by name, also from the current directory."""
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109 (a text is compared)
        sys.path.append(os.getcwd())  # noqa: PTH109
    importlib.invalidate_caches()
    if getattr(importlib.import_module(module).__spec__, "origin", None) is None:
        raise UserError(f"plug-in '{module}' is a directory without code")


def load_named() -> None:
    """Load what LENGTHLENS_PLUGINS names (with commas), and once what installed packages offer."""
    wanted = os.environ.get(VARIABLE, "")
    if _state.named == wanted:
        return
    first, _state.named = _state.named is None, wanted  # before the work: what is loaded looks up names itself
    try:
        for name in filter(None, map(str.strip, wanted.split(","))):
            load_plugin(name)
    except UserError:
        _state.named = None
        raise
    for entry in entry_points(group=GROUP) if first else ():
        try:
            with _as_plugin(entry.module):
                thing = entry.load()
                if isinstance(thing, type):
                    register(thing)
            _state.loaded[entry.module] = entry.module
        except UserError as error:  # someone else's package must not stop everything
            warnings.warn(f"entry point '{entry.name}' is left out: {error}", stacklevel=2)


def named_anywhere() -> bool:
    """Whether any plug-in is loaded or could be, without loading one."""
    return bool(_state.loaded or os.environ.get(VARIABLE) or entry_points(group=GROUP))


# -- other processes ---------------------------------------------------------------------------------------------------


class WorkerPlugins(NamedTuple):
    """What a worker needs to know the names that this process knows."""

    plugins: tuple[str, ...]  # files and modules to load
    folders: tuple[str, ...]  # from which this process imports the user's modules; a worker may run elsewhere
    origins: tuple[tuple[str, str, Origin], ...]  # registry, name and definition of all that the plug-ins registered
    objects: bytes  # what was registered otherwise, pickled; by value if no module has it, as in a notebook


def plugins_for_workers() -> WorkerPlugins:
    """The plug-ins of this process, for `load_in_worker` in another one."""
    known = [
        (kind, name, origin) for kind, registry in registries().items() for name, origin in registry.outside().items()
    ]
    if not known:
        return WorkerPlugins((), (), (), b"")
    import cloudpickle  # slow to import, and only for work on several processes

    from_plugins = tuple(each for each in known if each[2].plugin in _state.loaded.values())
    objects = [(*each, registries()[each[0]][each[1]]) for each in known if each not in from_plugins]
    used = {origin.plugin for *_, origin in from_plugins}
    plugins = tuple(key for key, name in _state.loaded.items() if name in used)
    folders = [str(Path(folder).resolve()) for folder in sys.path]
    theirs = tuple(folder for folder in folders if not folder.startswith((sys.prefix, sys.base_prefix)))
    return WorkerPlugins(plugins, theirs, from_plugins, cloudpickle.dumps(objects) if objects else b"")


def load_in_worker(wanted: WorkerPlugins) -> None:
    """Load in a worker what the process that sent it work has loaded, with the same definitions.

    A worker of a cluster outlives the tasks it is sent: a plug-in that has changed meanwhile is loaded again.
    """
    sys.path += [folder for folder in wanted.folders if folder not in sys.path]
    here = [(named_registry(kind).outside().get(name), origin) for kind, name, origin in wanted.origins]
    if any(known is not None and known.fingerprint != origin.fingerprint for known, origin in here):
        forget(wanted.plugins)
    for plugin in wanted.plugins:
        load_plugin(plugin)
    for kind, name, origin in wanted.origins:
        named_registry(kind).same(name, origin)
    if wanted.objects:
        import cloudpickle

        for kind, name, origin, value in cloudpickle.loads(wanted.objects):  # from the parent process
            if named_registry(kind).outside().get(name) != origin:
                named_registry(kind).put(name, value, origin)


def forget(plugins: Iterable[str]) -> None:
    """Let plug-ins be loaded anew, as they are now."""
    linecache.checkcache()
    for plugin in plugins:
        _state.loaded.pop(plugin, None)
        sys.modules.pop(plugin, None)
