"""The invariance index ι: how fast a measured complexity grows with scale, inside the training range.

We define: ι is the slope of log complexity against log n, by least squares, on the upper half of the training range (n
from train_max / 2, rounded up). 0 is invariant, 1 grows linearly. A complexity of 0 counts as 1. The conjecture (the
paper's, for SRC) is that length generalization is possible if and only if complexity does not grow.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from lengthlens.errors import UserError

LEVEL = 0.95
THRESHOLD_COLUMNS = ("tolerance", "influence", "fidelity", "bar")  # what a count of complexity may depend on


class Interval(NamedTuple):
    """A mean over seeds with its 95 % t-interval; without one (NaN) for a single seed."""

    mean: float
    low: float
    high: float
    seeds: int


def invariance_index(curve: Mapping[int, float]) -> float:
    """The invariance index ι: the slope of log complexity against log n on the upper half of the training range.

    Arguments:
        curve: a complexity for each scale n up to the largest in training, such as `MeasuredSrc.curve`.

    Result: ι; 0 for a complexity that does not grow, 1 for one that grows linearly.

    Errors: UserError if fewer than two scales are in the upper half.

    >>> invariance_index({n: 4 for n in range(1, 11)})
    0.0
    >>> round(invariance_index({n: 3 * n for n in range(1, 11)}), 6)
    1.0
    """
    if not curve:
        raise UserError("the invariance index needs a complexity at two scales at least, and none is given")
    used = [n for n in sorted(curve) if 2 * n >= max(curve)]
    if len(used) < 2:
        raise UserError(f"the invariance index needs two scales at least, and there is only n = {used[0]}")
    logs = np.log([max(1.0, float(curve[n])) for n in used])
    slope = np.polyfit(np.log(used), logs, 1)[0]
    return 0.0 if np.ptp(logs) == 0 else float(slope)


def over_seeds(values: Iterable[float]) -> Interval:
    """The mean of an index over seeds, with Student's 95 % interval (three seeds are too few for a bootstrap).

    >>> mean, low, high, seeds = over_seeds([0.9, 1.0, 1.1])
    >>> round(low, 3), round(high, 3), seeds
    (0.752, 1.248, 3)
    """
    found = np.array([value for value in values if not np.isnan(value)])
    mean, half = float(found.mean()) if len(found) else float("nan"), float("nan")
    if len(found) > 1:
        half = float(stdtrit(len(found) - 1, (1 + LEVEL) / 2) * found.std(ddof=1) / np.sqrt(len(found)))
    return Interval(mean, mean - half, mean + half, len(found))
