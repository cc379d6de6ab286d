"""TransformerLens, as little of it as is needed: its packages are there at once, what they collect when asked for.

TransformerLens' packages import all that is in them, and with it `transformers` and `datasets`, which takes longer than
everything else here together. `import_lightly` puts a package in the place of each that looks a name up in the
submodule that it would come from; for any other name, and for whoever wants it whole, it runs the package as it is.
"""

import ast
import importlib.util
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = (
    *("transformer_lens", "transformer_lens.utilities", "transformer_lens.conversion_utils"),
    "transformer_lens.conversion_utils.conversion_steps",
)
WHOLE = ("__all__", "__version__")  # of the names that Python itself looks for, those that a package may define
LOCK = threading.RLock()


class LightPackage(ModuleType):
    """A package whose own code has not run yet."""

    homes: dict[str, str]  # by name, the submodule that the package's code would import it from

    def __setattr__(self, name: str, value: Any) -> None:
        """A submodule that has been imported does not hide what the package has under its name."""
        hidden = isinstance(value, ModuleType) and self.homes.get(name) == value.__name__
        super().__setattr__(name, getattr(value, name) if hidden else value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in WHOLE:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        if name in self.homes:
            value = getattr(import_module(self.homes[name]), name)
            setattr(self, name, value)
            return value
        with LOCK:
            if type(self) is LightPackage:
                self.run()
        return getattr(self, name)

    def run(self) -> None:
        """Become the package that it stands for."""
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        try:
            self.__spec__.loader.exec_module(self)
        except BaseException:
            self.__class__ = LightPackage
            raise


def import_lightly() -> None:
    """Put light packages in place; one that is imported already stays as it is, and so do all inside it."""
    for name in PACKAGES:
        if name in sys.modules:
            if not isinstance(sys.modules[name], LightPackage):
                return
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return
        package = importlib.util.module_from_spec(spec)
        package.__dict__["homes"] = homes(name, Path(spec.origin).read_text("utf-8"))
        package.__class__ = LightPackage
        sys.modules[name] = package
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, package)


def homes(package: str, code: str) -> dict[str, str]:
    """Where a package's code imports each name from, among its own submodules.

    >>> homes("a", "from .b.c import d, e as f\\nfrom . import g")
    {'d': 'a.b.c'}
    """
    found: dict[str, str] = {}
    for node in ast.parse(code).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            found |= {each.name: f"{package}.{node.module}" for each in node.names if each.asname is None}
    return found
