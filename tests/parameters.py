"""Parameters of tests: a scheme, and which values `make test` tries, where `.ci/run` tries all."""

from collections.abc import Iterable
from typing import Any

import pytest

import lengthlens as ll

NINE = "lbpe/forms=nine/other=each"  # the learned relation with few forms, which trains in few steps

TINY = {"train_max": 3, "batch": 4, "d_model": 16, "n_heads": 2, "check_every": 3, "steps": 40}


def small(scheme: str, **changes: object) -> ll.RunConfig:
    """A run that takes no time, of a task that the scheme can serve."""
    task = "addition" if scheme in ("coupled", "abacus") else "copy"
    return ll.RunConfig.from_dict({"task": task, "scheme": scheme, **TINY, **changes})


def few(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values for `parametrize`: the `quick` ones as they are, all others marked slow.

    >>> [each.values if hasattr(each, "values") else each for each in few("abc", "b")]
    [('a',), 'b', ('c',)]
    """
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]
