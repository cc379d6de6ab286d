"""Statistics with weights against the libraries that have them without, and the bootstrap over groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from lengthlens.analyses.statistics import (
    auc,
    balanced_accuracy,
    difference,
    estimate,
    group_weights,
    kendall,
    mean,
    over_seeds,
    spearman,
    why_undefined,
)

TIED = arrays(np.float64, 12, elements=st.integers(0, 4).map(float))
ONES = np.ones((1, 12))


@settings(deadline=None, max_examples=50)
@given(TIED, TIED)
def test_without_weights_they_are_those_of_the_libraries(x, y):
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert spearman(x, y)(ONES)[0] == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
        assert kendall(x, y)(ONES)[0] == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)
    positive = y >= 2
    if 0 < positive.sum() < 12:
        assert auc(x, positive)(ONES)[0] == pytest.approx(roc_auc_score(positive, x))
        called = balanced_accuracy(x > 1, positive)(ONES)[0]
        assert called == pytest.approx(balanced_accuracy_score(positive, x > 1))


@settings(deadline=None, max_examples=30)
@given(TIED, TIED, arrays(np.int64, 12, elements=st.integers(0, 3)))
def test_a_weight_is_a_repetition(x, y, counts):
    weights, again = counts[None].astype(float), np.repeat(np.arange(12), counts)
    for statistic in (spearman, kendall, lambda a, b: auc(a, b >= 2)):
        weighted = statistic(x, y)(weights)
        repeated = statistic(x[again], y[again])(np.ones((1, len(again)))) if len(again) else [np.nan]
        assert weighted[0] == pytest.approx(repeated[0], nan_ok=True, abs=1e-9)


def test_one_class_or_one_value_has_no_answer():
    same, x = np.ones(12), np.arange(12.0)
    assert np.isnan(auc(x, same)(ONES)[0])
    assert np.isnan(spearman(x, same)(ONES)[0]) and np.isnan(kendall(same, x)(ONES)[0])
    assert "all 12 runs extrapolate" in why_undefined(same)
    assert "none of 12" in why_undefined(0 * same)
    assert "no run" in why_undefined([]) and why_undefined([True, False]) == ""
    assert np.isnan(estimate(auc(x, same), np.arange(12)).value)


def test_within_strata_a_difference_between_them_is_no_help():
    """The score knows the stratum and nothing else; all positives are in one stratum but for two."""
    stratum = np.repeat(["a", "b"], 6)
    positive = np.array([1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0])
    score = np.repeat([1.0, 0.0], 6)
    assert auc(score, positive)(ONES)[0] > 0.8
    assert auc(score, positive, stratum)(ONES)[0] == 0.5


def test_groups_are_drawn_whole_and_intervals_widen_with_fewer_of_them():
    generator = np.random.default_rng(1)
    groups = np.repeat(np.arange(10), 12)
    weights = group_weights(groups)
    assert (weights.reshape(len(weights), 10, 12).std(2) == 0).all()
    assert np.allclose(weights.sum(1), 120)
    effect = np.repeat(generator.normal(size=10), 12)
    score = effect + generator.normal(size=120) * 0.1
    whole = estimate(mean(score), groups)
    single = estimate(mean(score), np.arange(120))
    assert whole.value == pytest.approx(score.mean()) == single.value
    assert whole.high - whole.low > 2 * (single.high - single.low)


def test_the_interval_of_a_mean_covers_as_often_as_it_says():
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(60):
        values = np.repeat(generator.normal(size=40), 3)
        found = estimate(mean(values), np.repeat(np.arange(40), 3))
        hits += found.low <= 0 <= found.high
    assert hits >= 51


def test_a_difference_is_taken_on_the_same_resamples():
    x, positive, groups = np.arange(12.0), np.arange(12) % 3 > 0, np.arange(12)
    found = estimate(difference(auc(x, positive), auc(x, positive)), groups)
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_few_groups_have_no_interval_and_say_so():
    for groups in ("aa", "abcd"):
        found = estimate(mean([1.0, 2.0] * (len(groups) // 2)), list(groups))
        assert found.value == 1.5 and np.isnan(found.low) and "too few for an interval" in found.note
    assert over_seeds([0.5]).value == 0.5 and np.isnan(over_seeds([0.5]).low)
    enough = estimate(mean([1.0, 2.0, 3.0, 4.0, 5.0]), list("abcde"))
    assert enough.low < enough.value < enough.high
