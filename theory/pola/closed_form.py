"""What can be said without training: LRC, and the limit of gradient descent."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthlens.models.codes import Ints, numbered
from lengthlens.theory.pola.pairs import (
    IDEAL,
    Floats,
    Relation,
    Target,
    codes_of,
    look_at_scale,
    pairs_seen,
    resolved,
    values,
)


def lrc(target: Target, scale: int) -> int:
    """Linear Representation Complexity: the number of distinct non-zero values of the target up to a scale.

    >>> lrc("alternating-sign", 8), lrc("running-mean", 8), lrc(lambda i, j: i == j, 8)
    (2, 8, 1)
    """
    found = values(target, pairs_seen(scale, look_at_scale(IDEAL, target)))
    return len(np.unique(found[found.any(1)], axis=0))


def lrc_under(relation: Relation, target: Target, scale: int) -> float:
    """The number of classes of a relation on which the target is not zero; infinite if it varies within one.

    >>> lrc_under("relative", "shift-by-one", 8), lrc_under("learned", "shift-by-one", 8)
    (1, 7)
    >>> lrc_under("none", "shift-by-one", 8)
    inf
    """
    pairs = pairs_seen(scale, look_at_scale(relation, target))
    found = values(target, pairs)
    _, which = numbered(codes_of(relation, target, pairs))
    if not constant_on(which, found).all():
        return math.inf
    return len(np.unique(which[found.any(1)]))


def constant_on(which: Ints, found: Floats) -> NDArray[np.bool_]:
    """For each class whether all its pairs have one value. [class]"""
    first = np.unique(which, return_index=True)[1]
    same = (found == found[first][which]).all(1)
    return np.asarray(np.bincount(which, weights=~same) == 0)


# -- the limit of gradient descent ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """What training converges to: a weight for each code that was seen, and zero for every other."""

    relation: Relation
    target: Target
    codes: Ints  # [class, component]
    weights: Floats  # [class, head]

    def at(self, codes: Ints) -> Floats:
        """The weights of codes [pair, component], [pair, head]."""
        _, which = numbered(np.concatenate([self.codes, codes]))
        table = np.zeros((which.max() + 1, self.weights.shape[1]))
        table[which[: len(self.codes)]] = self.weights
        return table[which[len(self.codes) :]]

    def error(self, scale: int) -> float:
        """The squared error at a scale, summed over pairs and heads."""
        pairs = pairs_seen(scale, looks_at_scale=False)  # those of this scale
        found = self.at(codes_of(self.relation, self.target, pairs))
        return float(((values(self.target, pairs) - found) ** 2).sum())


def pola_limit(relation: Relation, target: Target, train_max: int) -> Limit:
    """The limit of gradient descent from zero: the mean of the target over each class seen up to `train_max`.

    >>> limit = pola_limit("none", "shift-by-one", 8)  # 7 of 36 pairs are one apart
    >>> limit.weights.tolist() == [[7 / 36]]
    True
    """
    relation = resolved(relation, target)
    pairs = pairs_seen(train_max, look_at_scale(relation, target))
    codes, which = numbered(codes_of(relation, target, pairs))
    return Limit(relation, target, codes, class_means(which, values(target, pairs)))


def class_means(which: Ints, found: Floats) -> Floats:
    """The mean over each class, [class, head]; exact on a class with one value, where summing would round."""
    counts = np.bincount(which)
    means = np.stack([np.bincount(which, weights=head) / counts for head in found.T], 1)
    first = np.unique(which, return_index=True)[1]
    return np.where(constant_on(which, found)[:, None], found[first], means)


def pola_error(relation: Relation, target: Target, train_max: int, scale: int) -> float:
    """The squared error at a scale after training up to `train_max`.

    >>> round(pola_error("none", "shift-by-one", train_max=8, scale=16), 3)
    14.309
    """
    return pola_limit(relation, target, train_max).error(scale)
