"""Targets by name: the attention A*(i, j) that POLA is to learn."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lengthlens.errors import Registry
from lengthlens.models.codes import Ints


def shift_by_one(i: Ints, j: Ints) -> Any:
    """y_i = x_{i−1}"""
    return i - j == 1


def prefix_sum(i: Ints, j: Ints) -> Any:
    """y_i = x_0 + … + x_i"""
    return np.ones_like(i)


def alternating_sign(i: Ints, j: Ints) -> Any:
    """y_i = x_i − x_{i−1} + x_{i−2} − …"""
    return 1 - 2 * ((i - j) % 2)


def running_mean(i: Ints, j: Ints) -> Any:
    """y_i = (x_0 + … + x_i) / (i+1): a new value for every i, so no position embedding can extrapolate it."""
    return 1 / (i + 1)


def first_token(i: Ints, j: Ints) -> Any:
    """y_i = x_0"""
    return j == 0


def window_mean(i: Ints, j: Ints) -> Any:
    """y_i = mean of the last four inputs, or of as many as there are."""
    return (i - j < 4) / np.minimum(i + 1, 4)


def decay(i: Ints, j: Ints) -> Any:
    """y_i = x_i + 0.9 x_{i−1} + 0.81 x_{i−2} + …"""
    return 0.9 ** (i - j)


def reversal(i: Ints, j: Ints, n: Ints) -> Any:
    """y_i = x_{n−1−i}, once that has been seen: where to read depends on the scale."""
    return i + j == n - 1


def several_heads(i: Ints, j: Ints) -> Any:
    """Three outputs at once: the previous input, the first one, and the prefix sum."""
    return np.stack([shift_by_one(i, j), first_token(i, j), prefix_sum(i, j)], -1)


TARGETS: Registry[Callable[..., Any]] = Registry(
    "target",
    {
        "shift-by-one": shift_by_one,
        "prefix-sum": prefix_sum,
        "alternating-sign": alternating_sign,
        "running-mean": running_mean,
        "first-token": first_token,
        "window-mean": window_mean,
        "decay": decay,
        "reversal": reversal,
        "several-heads": several_heads,
    },
)
