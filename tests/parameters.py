"""Parameters of a test of which `make test` tries a few, and `.ci/run` all."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values for `parametrize`: the `quick` ones as they are, all others marked slow.

    >>> [each.values if hasattr(each, "values") else each for each in few("abc", "b")]
    [('a',), 'b', ('c',)]
    """
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]
