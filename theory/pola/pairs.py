"""Targets and relations on pairs of positions: values, codes, and which pairs an instance has."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lengthlens.errors import UserError
from lengthlens.models.codes import Ints
from lengthlens.models.schemes import PositionScheme, make_scheme
from lengthlens.theory.pola.targets import TARGETS

Floats: TypeAlias = NDArray[np.float64]
Target: TypeAlias = str | Callable[..., Any]  # a name, or a function of (i, j) or (i, j, n)
Relation: TypeAlias = str | PositionScheme | Callable[..., Any]  # likewise, or a scheme

# Values that agree to so many significant digits are the same value; below 10**-12 a value is zero.
DIGITS = 12
MOST_PAIRS = 20_000_000  # a few hundred MB; beyond that a table would not fit into memory
IDEAL = "ideal"  # under POLA: the relation whose classes are the level sets of the target


class Pairs(NamedTuple):
    """Pairs j ≤ i < n of instances of scale n, each [pair]."""

    i: Ints
    j: Ints
    n: Ints


def pairs_at(scale: int) -> Pairs:
    """All pairs of one instance."""
    i, j = np.tril_indices(scale)
    return Pairs(i.astype(np.int64), j.astype(np.int64), np.full(len(i), scale, dtype=np.int64))


def pairs_seen(scale: int, looks_at_scale: bool) -> Pairs:
    """All pairs of the instances up to a scale: of that scale alone, unless something looks at the scale."""
    checked_scale(scale)
    count = scale * (scale + 1) * (scale + 2) // 6 if looks_at_scale else scale * (scale + 1) // 2
    if count > MOST_PAIRS:
        raise UserError(f"scale {scale} has {count:,} pairs of positions, more than the {MOST_PAIRS:,} this can hold")
    if not looks_at_scale:
        return pairs_at(scale)
    return Pairs(*(np.concatenate(part) for part in zip(*map(pairs_at, range(1, scale + 1)))))


def checked_scale(scale: int) -> int:
    if scale < 1:
        raise UserError(f"a scale is at least 1, not {scale}")
    return scale


def takes_scale(function: Callable[..., Any]) -> bool:
    """Whether a function of positions asks for the scale as its third argument."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.kind in kinds and p.default is p.empty]
    if len(required) not in (2, 3):
        raise UserError(
            f"a target or relation is a function of (i, j) or (i, j, n), "
            f"and {named(function)} takes {len(required)} arguments"
        )
    return len(required) == 3


def named(function: Target) -> str:
    return repr(function if isinstance(function, str) else getattr(function, "__name__", "the user's own"))


def call(function: Callable[..., Any], pairs: Pairs) -> NDArray[Any]:
    """The function at all pairs at once, or one by one if it was not written for arrays."""
    arguments = pairs if takes_scale(function) else pairs[:2]
    try:
        return np.asarray(function(*arguments))
    except (ValueError, TypeError):
        return np.asarray([function(*map(int, one)) for one in zip(*arguments)])


def values(target: Target, pairs: Pairs) -> Floats:
    """A*(i, j; n) at each pair, [pair, head], rounded so that equal values compare as equal."""
    function = TARGETS[target] if isinstance(target, str) else target
    raw = np.asarray(call(function, pairs), dtype=np.float64)
    found = np.broadcast_to(raw, (len(pairs.i), *raw.shape[1:])).reshape(len(pairs.i), -1)
    wrong = ~np.isfinite(found).all(1)
    if wrong.any():
        k = int(wrong.argmax())
        raise UserError(
            f"target {named(target)} is not a finite number at i={pairs.i[k]}, j={pairs.j[k]}, n={pairs.n[k]}"
        )
    return rounded(found)


def rounded(x: Floats) -> Floats:
    """Rounded to `DIGITS` significant digits, and to zero below 10**-DIGITS.

    >>> rounded(np.array([0.1 + 0.2, 1e-17])).tolist()
    [0.3, 0.0]
    """
    size = np.floor(np.log10(np.maximum(np.abs(x), 10.0**-DIGITS)))
    scaled_by = 10.0 ** (DIGITS - 1 - size)
    return np.where(np.abs(x) < 10.0**-DIGITS, 0.0, np.round(x * scaled_by) / scaled_by) + 0.0  # no negative zero


@dataclass(frozen=True)
class LevelSets:
    """`ideal` for POLA: two pairs have the same code exactly when the target has the same value there.

    Derived from the target, never written by hand: the code is the value's own bits, read as an integer.
    """

    target: Target

    def __call__(self, i: Ints, j: Ints, n: Ints) -> Ints:
        return np.ascontiguousarray(values(self.target, Pairs(i, j, n))).view(np.int64)


def resolved(
    relation: Relation, target: Target, options: Mapping[str, Any] | None = None
) -> PositionScheme | Callable[..., Any]:
    """The scheme or function that a relation's name stands for."""
    if not isinstance(relation, str):
        if options:
            raise UserError("options go with the name of a scheme, not with a scheme or function of your own")
        return relation
    if relation != IDEAL:
        return make_scheme(relation, options)
    if options:
        raise UserError(f"scheme 'ideal' has no options under POLA, and was given {', '.join(options)}")
    return LevelSets(target)


def codes_of(relation: Relation, target: Target, pairs: Pairs) -> Ints:
    """φ(i, j; n) at each pair, [pair, component]."""
    relation = resolved(relation, target)
    if isinstance(relation, PositionScheme):
        with torch.no_grad():
            found = relation.relation(*map(torch.from_numpy, pairs)).numpy()
    else:
        found = np.asarray(call(relation, pairs))
    if not np.issubdtype(found.dtype, np.integer) and found.dtype != np.bool_:
        raise UserError(f"a relation gives integer codes, not {found.dtype} numbers")
    codes = np.broadcast_to(found, (len(pairs.i), *found.shape[1:])).reshape(len(pairs.i), -1)
    return codes.astype(np.int64)


def look_at_scale(relation: Relation, target: Target) -> bool:
    """Whether relation or target may differ, at one pair of positions, between instances of two scales."""
    function = TARGETS[target] if isinstance(target, str) else target
    relation = resolved(relation, target)
    if isinstance(relation, LevelSets):
        return takes_scale(function)
    hinted = relation.uses_scale if isinstance(relation, PositionScheme) else takes_scale(relation)
    return hinted or takes_scale(function)
