"""Options of a scheme: the fields of a frozen dataclass, read from JSON values or from ``name=value`` texts."""

import dataclasses
import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lengthlens.errors import UserError, unknown

LARGEST = 1_000_000  # of any option that sizes a table: more is a slip of the hand, or a hostile file
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", NoneType: "none"}


def option(default: Any, at_least: float | None = None, at_most: float | None = None, later: bool = False) -> Any:
    """A field of an `Options` dataclass whose numbers are bounded (bounds included).

    One that was added `later`, when runs had been stored without it, has a default that means what they did: at that
    value it is no part of a run's name, so that they are still found.
    """
    bounds = {"at_least": at_least, "at_most": at_most}
    return dataclasses.field(default=default, metadata={**bounds, "later": later})


def later_options(kind: type) -> dict[str, Any]:
    """The options of an `Options` dataclass that were added later, with their defaults."""
    return {field.name: field.default for field in dataclasses.fields(kind) if field.metadata.get("later")}


def option_names(kind: type) -> list[str]:
    """The names of all options of an `Options` dataclass."""
    return [field.name for field in dataclasses.fields(kind)]


def read_options(scheme: str, kind: type, given: Mapping[str, Any]) -> Any:
    """An `Options` dataclass filled from values by name.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Options:
    ...     max_distance: int = option(128, at_least=1)
    >>> read_options("relative", Options, {"max_distance": "3"})
    Options(max_distance=3)
    """
    types = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {}
    for name, value in given.items():
        if name not in fields:
            raise unknown(f"option of scheme '{scheme}'", name, fields)
        values[name] = _read(f"option '{name}' of scheme '{scheme}'", types[name], fields[name].metadata, value)
    return kind(**values)


def _read(what: str, kind: Any, bounds: Mapping[str, float | None], value: Any) -> Any:
    """The value as one of the types that `kind` allows, within its bounds; else a sentence that says what it may be."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise unknown(what, str(value), get_args(kind))
    allowed = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    for one in allowed:
        found, read = _as(one, value)
        if found and _within(read, bounds):
            return read
    raise UserError(f"{what} must be {_in_words(allowed, bounds)}, not {value!r}")


def _as(kind: type, value: Any) -> tuple[bool, Any]:
    """Whether the value can be read as this type, and what it then is."""
    text = value.strip() if isinstance(value, str) else None
    if kind is str:
        return text is not None, value
    if kind is NoneType:
        return value is None or (text is not None and text.lower() == "none"), None
    if kind is bool:
        if text is not None:
            return text.lower() in TRUTH, TRUTH.get(text.lower())
        return isinstance(value, bool), value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False, None
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        return False, None
    exact = text is not None or number == value  # 3.5 is no whole number, 3.0 is one
    return exact and math.isfinite(number), number


def _within(value: Any, bounds: Mapping[str, float | None]) -> bool:
    low, high = bounds.get("at_least"), bounds.get("at_most")
    if not isinstance(value, (int, float)):
        return True
    return (low is None or value >= low) and (high is None or value <= high)


def _in_words(allowed: tuple[type, ...], bounds: Mapping[str, float | None]) -> str:
    words = " or ".join(KINDS[one] for one in allowed)
    low, high = bounds.get("at_least"), bounds.get("at_most")
    if low is not None and high is not None:
        return f"{words} from {low} to {high}"
    if low is not None:
        return f"{words} of at least {low}"
    return words if high is None else f"{words} of at most {high}"
