"""The invariance index and its interval over seeds."""

import math

import pytest

from lengthlens.analyses.statistics import over_seeds
from lengthlens.errors import UserError
from lengthlens.probes.probe import invariance_index


def test_powers_of_n_have_their_exponent_and_constants_zero():
    for power in (0, 0.5, 1, 2):
        assert invariance_index({n: 7 * n**power for n in range(1, 11)}) == pytest.approx(power, abs=1e-9)


def test_only_the_upper_half_counts():
    early = {n: n for n in range(1, 5)}
    assert invariance_index({**early, **dict.fromkeys(range(5, 11), 4)}) == 0


def test_nothing_measured_is_flat_and_too_little_is_refused():
    assert invariance_index(dict.fromkeys(range(1, 11), 0)) == 0
    with pytest.raises(UserError, match="only n = 1"):
        invariance_index({1: 5})
    with pytest.raises(UserError, match="none is given"):
        invariance_index({})


def test_one_seed_has_no_interval():
    found = over_seeds([0.5])
    assert found.mean == 0.5 and math.isnan(found.low) and found.seeds == 1
