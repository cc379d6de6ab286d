"""TransformerLens in a process of the command line: its packages are there at once, their contents when asked for.

A package of TransformerLens imports everything in it, and with it `transformers` and `datasets`: on one core 2 s and
135 MiB for each command and each of its workers, more than all else that a command imports. Only cli.py imports this
module. In the process of somebody else, `transformer_lens` is what Python imports.
"""

import ast
import sys
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = (
    *("transformer_lens", "transformer_lens.utilities", "transformer_lens.conversion_utils"),
    "transformer_lens.conversion_utils.conversion_steps",
)


class LightPackage(ModuleType):
    """A package whose own code has not run yet. A name that it takes from one of its submodules is looked up there;
    for any other name its code runs, and it is an ordinary package from then on."""

    @cached_property
    def homes(self) -> dict[str, str]:
        """From which submodule the package's code imports each name."""
        assert self.__file__ is not None
        return homes(self.__name__, Path(self.__file__).read_text("utf-8"))

    def __setattr__(self, name: str, value: Any) -> None:
        """A submodule that has been imported does not hide what the package has under its name."""
        if not (isinstance(value, ModuleType) and self.homes.get(name) == value.__name__):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):  # Python asks for many that no module has
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        if name in self.homes:
            return getattr(import_module(self.homes[name]), name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def import_lightly() -> None:
    """Put light packages in place, unless TransformerLens has been imported already."""
    for name in PACKAGES if PACKAGES[0] not in sys.modules else ():
        spec = find_spec(name)
        if spec is None:
            return
        package = module_from_spec(spec)
        package.__class__ = LightPackage
        sys.modules[name] = package
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, package)


def homes(package: str, code: str) -> dict[str, str]:
    """Where a package's code imports each name from, among its submodules.

    >>> homes("a", "from .b.c import d, e as f\\nfrom . import g")
    {'d': 'a.b.c'}
    """
    found: dict[str, str] = {}
    for node in ast.parse(code).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            found |= {each.name: f"{package}.{node.module}" for each in node.names if each.asname is None}
    return found
