"""Public names that are imported when first asked for, so that what needs no network does not wait for one."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module-level ``__getattr__`` for `package` that finds each public name in its home module.

    >>> find = lazily("collections", {"Mapping": "abc"})
    >>> find("Mapping").__name__
    'Mapping'
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find
