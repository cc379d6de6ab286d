"""How well one number tells another, with intervals that resample whole groups of runs.

Runs of one task and scheme differ by their seed alone, so they are not independent evidence: the bootstrap draws whole
(task, scheme) groups with replacement. A resample gives each run a weight, how often its group was drawn, and every
statistic here is computed from weights, for all resamples in one go.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Floats], Floats]  # weights [resample, run] to values [resample]

RESAMPLES = 1000
LEVEL = 0.95
LEAST_GROUPS = 5  # of fewer, resamples are so alike that an interval would say more than there is to know
NAN = float("nan")


class Estimate(NamedTuple):
    """A statistic with its 95 % interval, and a sentence where there is something to know about it."""

    value: float
    low: float = NAN
    high: float = NAN
    note: str = ""

    def columns(self, name: str) -> dict[str, float]:
        """As columns of a table: name, name_low, name_high."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def over_seeds(values: Iterable[float]) -> Estimate:
    """The mean of an index over seeds, with Student's 95 % interval (three seeds are too few for a bootstrap).

    >>> mean, low, high, _ = over_seeds([0.9, 1.0, 1.1])
    >>> round(low, 3), round(high, 3)
    (0.752, 1.248)
    """
    known = np.array([value for value in values if not np.isnan(value)])
    if len(known) < 2:
        return Estimate(float(known[0]) if len(known) else NAN)
    mean = float(known.mean())
    half = float(stdtrit(len(known) - 1, (1 + LEVEL) / 2) * known.std(ddof=1) / np.sqrt(len(known)))
    return Estimate(mean, mean - half, mean + half)


def group_weights(groups: ArrayLike, resamples: int = RESAMPLES) -> Floats:
    """How often each run's group is drawn in each resample, [resample, run].

    >>> group_weights(["a", "a", "b"], resamples=1).tolist() in ([[2, 2, 0]], [[1, 1, 1]], [[0, 0, 2]])
    True
    """
    which, names = pd.factorize(np.asarray(groups))
    return _draws(len(names), resamples)[:, which]


@cache
def _draws(groups: int, resamples: int) -> Floats:
    """How often each group is drawn, [resample, group]: hundreds of estimates in a study ask for the same."""
    return np.random.default_rng(0).multinomial(groups, [1 / groups] * groups, resamples).astype(float)


def estimate(statistic: Statistic, groups: ArrayLike) -> Estimate:
    """The statistic of all runs, with the interval of resampled groups; of no runs there is none."""
    groups = np.asarray(groups)
    value = float(statistic(np.ones((1, len(groups))))[0]) if len(groups) else NAN
    if np.isnan(value):
        return Estimate(value)
    if (number := len(set(groups.tolist()))) < LEAST_GROUPS:
        return Estimate(value, note=f"{number} cell{'s' * (number != 1)} of task and scheme: too few for an interval")
    values = statistic(group_weights(groups))
    known = values[~np.isnan(values)]
    if len(known) < len(values) / 2:
        return Estimate(value, note="too few groups for an interval")
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    note = "all resamples agree, so the interval says nothing about cells not tried" if low == high else ""
    return Estimate(value, float(low), float(high), note)


def _pairs(weights: Floats, matrix: Floats, other: Floats) -> Floats:
    """Σ over pairs of w_i · matrix_ij · w_j, for each resample."""
    total: Floats = np.einsum("bj,bj->b", weights @ matrix, other)
    return total


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.full_like(above, NAN), where=below > 0)


def auc(score: ArrayLike, positive: ArrayLike, stratum: ArrayLike | None = None) -> Statistic:
    """The chance that a positive run scores above a negative one, ties half; NaN where one class is missing.

    With `stratum` only pairs of the same stratum are compared: what differs between strata cannot help then.

    >>> float(auc([3, 2, 1, 2], [1, 1, 0, 0])(np.ones((1, 4)))[0])
    0.875
    """
    score, yes = np.asarray(score, dtype=float), np.asarray(positive, dtype=bool)
    high, low = score[yes, None], score[~yes]
    comparable = np.ones((yes.sum(), (~yes).sum()))
    if stratum is not None:
        which = pd.factorize(np.asarray(stratum))[0]
        comparable = (which[yes, None] == which[~yes]).astype(float)
    ahead = comparable * ((high > low) + 0.5 * (high == low))

    def statistic(weights: Floats) -> Floats:
        mine, others = weights[:, yes], weights[:, ~yes]
        return _ratio(_pairs(mine, ahead, others), _pairs(mine, comparable, others))

    return statistic


def spearman(x: ArrayLike, y: ArrayLike) -> Statistic:
    """The correlation of ranks, ties sharing their mean rank; NaN where all values of one are the same."""
    both = [np.asarray(values, dtype=float) for values in (x, y)]
    below = [(v[:, None] < v) + 0.5 * (v[:, None] == v) for v in both]  # (j, i): its sum over j is the rank of i

    def statistic(weights: Floats) -> Floats:
        total = np.maximum(weights.sum(1, keepdims=True), 1)  # a resample may miss every run
        ranks = [weights @ each for each in below]  # [resample, run], up to a constant
        one, two = (rank - (weights * rank).sum(1, keepdims=True) / total for rank in ranks)
        spread = np.sqrt((weights * one**2).sum(1) * (weights * two**2).sum(1))
        return _ratio((weights * one * two).sum(1), np.where(spread > 1e-9, spread, 0))

    return statistic


def kendall(x: ArrayLike, y: ArrayLike) -> Statistic:
    """Kendall's τ_b: pairs that agree minus pairs that disagree, over pairs that are not tied."""
    one, two = (np.sign(v[:, None] - v) for v in (np.asarray(x, dtype=float), np.asarray(y, dtype=float)))

    def statistic(weights: Floats) -> Floats:
        untied = _pairs(weights, np.abs(one), weights) * _pairs(weights, np.abs(two), weights)
        return _ratio(_pairs(weights, one * two, weights), np.sqrt(untied))

    return statistic


def balanced_accuracy(predicted: ArrayLike, positive: ArrayLike) -> Statistic:
    """The mean of the shares of positive and of negative runs that are called right; of one class if there is one."""
    right = (np.asarray(predicted, dtype=bool) == np.asarray(positive, dtype=bool)).astype(float)
    yes = np.asarray(positive, dtype=bool)

    def statistic(weights: Floats) -> Floats:
        shares = [_ratio((weights * right)[:, mine].sum(1), weights[:, mine].sum(1)) for mine in (yes, ~yes)]
        known = [~np.isnan(share) for share in shares]
        return _ratio(np.nansum(shares, axis=0), np.sum(known, axis=0).astype(float))

    return statistic


def difference(one: Statistic, other: Statistic) -> Statistic:
    """One statistic minus another, on the same resamples."""
    return lambda weights: one(weights) - other(weights)


def mean(values: ArrayLike) -> Statistic:
    """The mean over runs."""
    numbers = np.asarray(values, dtype=float)
    return lambda weights: _ratio(weights @ numbers, weights.sum(1))


def why_undefined(positive: ArrayLike) -> str:
    """Why there are no two classes to tell apart; empty if there are."""
    yes = np.asarray(positive, dtype=bool)
    if len(yes) < 2:
        return "there is one run only, so there is nothing to tell apart" if len(yes) else "no run has both numbers"
    if yes.all():
        return f"all {len(yes)} runs extrapolate, so there is nothing to tell apart"
    return "" if yes.any() else f"none of {len(yes)} runs extrapolates, so there is nothing to tell apart"
