"""Parameters of tests: a scheme, and which values `make test` tries, where `.ci/run` tries all."""

from collections.abc import Iterable
from typing import Any

import pytest

NINE = "lbpe/forms=nine/other=each"  # the learned relation with few forms, which trains in few steps


def few(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values for `parametrize`: the `quick` ones as they are, all others marked slow.

    >>> [each.values if hasattr(each, "values") else each for each in few("abc", "b")]
    [('a',), 'b', ('c',)]
    """
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]
