"""LRC and errors at every scale, as a table."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from lengthlens.errors import UserError
from lengthlens.models.codes import Ints, numbered
from lengthlens.theory.pola.closed_form import Limit, pola_limit
from lengthlens.theory.pola.pairs import (
    Floats,
    Relation,
    Target,
    checked_scale,
    codes_of,
    look_at_scale,
    pairs_seen,
    resolved,
    values,
)
from lengthlens.theory.pola.training import pola_train


def pola_table(
    target: Target,
    scheme: Relation,
    train_max: int,
    test_max: int,
    train: bool = False,
    options: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """A row per scale up to `test_max`: LRC, LRC under the scheme, and errors after training to `train_max`.

    `target_energy`, the sum of A*², is the error of a model that knows nothing; `trained_error` is there only
    after real training (`train`).
    """
    checked_scale(train_max)
    if test_max < train_max:
        raise UserError(f"test_max {test_max} is below train_max {train_max}: it must be at least as large")
    relation = resolved(scheme, target, options)
    limit = pola_limit(relation, target, train_max)
    table = complexity_table(relation, target, limit, test_max)
    if train:
        model = pola_train(relation, target, train_max, test_max, generator)
        table["trained_error"] = [model.error(target, n) for n in table["scale"]]
    table.insert(0, "target", label_of(target))
    table.insert(1, "scheme", label_of(scheme))
    table.insert(2, "train_max", train_max)
    return table


def label_of(thing: Target | Relation) -> str:
    if isinstance(thing, str):
        return thing
    return str(getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__)


def complexity_table(relation: Relation, target: Target, limit: Limit, largest: int) -> pd.DataFrame:
    """The predicted part of the table, from one pass over all pairs.

    A pair belongs to every scale from its own on: its n if something looks at the scale, else i+1.
    """
    by_scale = look_at_scale(relation, target)
    pairs = pairs_seen(largest, by_scale)
    found, codes = values(target, pairs), codes_of(relation, target, pairs)
    since = pairs.n if by_scale else pairs.i + 1
    missed = np.bincount(since, ((found - limit.at(codes)) ** 2).sum(1), largest + 1)[1:]
    energy = np.bincount(since, (found**2).sum(1), largest + 1)[1:]
    under = counted(since, numbered(codes)[1], found, largest)
    broken = first_broken(since, numbered(codes)[1], found)
    scales = np.arange(1, largest + 1)
    return pd.DataFrame(
        {
            "scale": scales,
            "lrc": counted(since, numbered(found.view(np.int64))[1], found, largest),
            "lrc_under": np.where(scales < broken, under, np.inf),
            "target_energy": energy if by_scale else energy.cumsum(),
            "predicted_error": missed if by_scale else missed.cumsum(),
        }
    )


def counted(since: Ints, which: Ints, found: Floats, largest: int) -> Ints:
    """How many classes have a pair that is not zero, at each scale from 1 to `largest`."""
    mine = found.any(1)
    born = np.full(int(which.max()) + 1, largest + 1)
    np.minimum.at(born, which[mine], since[mine])
    return np.bincount(born, minlength=largest + 2)[1 : largest + 1].cumsum()


def first_broken(since: Ints, which: Ints, found: Floats) -> float:
    """The first scale at which some class has two different values; infinite if there is none."""
    order = np.lexsort((since, which))
    first = order[np.unique(which[order], return_index=True)[1]]  # the earliest pair of each class
    differs = (found != found[first][which]).any(1)
    return float(since[differs].min()) if differs.any() else math.inf
