"""Every position embedding, by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lengthlens.models.schemes.absolute import Learned, NoPosition
from lengthlens.models.schemes.relative import Relative
from lengthlens.models.schemes.scheme import Frame, PositionScheme, Sizes
from lengthlens.registry import Registry, unknown
from lengthlens.tasks import Task

SCHEMES: Registry[type[PositionScheme]] = Registry(
    "scheme", {scheme.name: scheme for scheme in (NoPosition, Learned, Relative)}
)


def make_scheme(
    name: str, options: Mapping[str, Any] | None = None, task: Task | None = None, sizes: Sizes | None = None
) -> PositionScheme:
    """The scheme of this name, with options by name, for a network of these sizes.

    >>> make_scheme("relative", {"max_distance": 3}).relation(torch.tensor(9), torch.tensor(2), torch.tensor(1))
    tensor([3])
    """
    scheme = SCHEMES[name]
    fields = [field.name for field in dataclasses.fields(scheme.Options)]
    for option in options or {}:
        if option not in fields:
            raise unknown(f"option of scheme '{name}'", option, fields)
    return scheme(sizes or Sizes(), scheme.Options(**(options or {})), task)


__all__ = ["SCHEMES", "Frame", "PositionScheme", "Sizes", "make_scheme"]
