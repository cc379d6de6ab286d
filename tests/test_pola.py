"""POLA: the worked table, and that prediction, training and representability agree for any target and relation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthlens.analyses import pola as figures
from lengthlens.errors import UserError
from lengthlens.models.schemes import make_scheme
from lengthlens.theory.pola import TARGETS, lrc, lrc_under, pola_limit, pola_table, pola_train

SCHEMES = {
    "none": "none",
    "learned": "learned",
    "relative": "relative",
    "relative 4": make_scheme("relative", {"max_distance": 4}),
    "ideal": "ideal",
}
# Error at 8 and at 16 after training at 8, and LRC at both: the table of the theory.
WORKED = {
    "shift-by-one": ((1, 1), (5.639, 14.309), (0, 8), (0, 0), (0, 0), (0, 0)),
    "prefix-sum": ((1, 1), (0, 0), (0, 100), (0, 36), (0, 0), (0, 0)),
    "alternating-sign": ((2, 2), (35.556, 135.901), (0, 100), (0, 36), (9.6, 78.72), (0, 0)),
    "running-mean": ((8, 16), (0.940, 2.986), (0, 0.663), (0.754, 2.015), (0.756, 2.014), (0, 0.663)),
    "first-token": ((1, 1), (6.222, 15.605), (0, 8), (5.282, 25.502), (5.765, 19.076), (0, 0)),
}


@pytest.mark.parametrize("target", WORKED)
def test_the_worked_table_from_closed_form_and_from_gradient_descent(target):
    assert (lrc(target, 8), lrc(target, 16)) == WORKED[target][0]
    for relation, expected in zip(SCHEMES.values(), WORKED[target][1:]):
        limit = pola_limit(relation, target, 8)
        trained = pola_train(relation, target, 8, 16, torch.Generator().manual_seed(0))
        assert (limit.error(8), limit.error(16)) == pytest.approx(expected, abs=6e-4)
        assert (trained.error(target, 8), trained.error(target, 16)) == pytest.approx(expected, abs=6e-4)


def table_of(numbers, size, by_scale):
    """Numbers as a function of (i, j) or (i, j, n)."""
    grid = np.array(numbers).reshape((size,) * (2 + by_scale))
    return (lambda i, j, n: grid[i, j, n - 1]) if by_scale else (lambda i, j: grid[i, j])


def representable_and_covered(relation, target, train_max, test_max, by_scale):
    """The criterion by plain loops: one value per code, and each code with a value other than zero seen in training."""
    values, seen = {}, set()
    for n in range(1, test_max + 1) if by_scale else [test_max]:
        for i in range(n):
            for j in range(i + 1):
                at = (i, j, n) if by_scale else (i, j)
                values.setdefault(int(relation(*at)), set()).add(float(target(*at)))
                if (n if by_scale else i + 1) <= train_max:
                    seen.add(int(relation(*at)))
    return all(len(own) == 1 for own in values.values()) and all(
        code in seen or own == {0.0} for code, own in values.items()
    )


@st.composite
def cases(draw):
    """A small target, and a relation that half of the time is finer than its level sets, so that both answers occur."""
    test_max, by_scale = draw(st.integers(2, 5)), draw(st.booleans())
    train_max, count = draw(st.integers(1, test_max)), test_max ** (3 if by_scale else 2)
    numbers = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, -0.3]), min_size=count, max_size=count))
    codes = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    if draw(st.booleans()):
        level = {value: 3 * k for k, value in enumerate(sorted(set(numbers)))}
        codes = [level[value] + (code if draw(st.booleans()) else 0) for value, code in zip(numbers, codes)]
    target, relation = (table_of(each, test_max, by_scale) for each in (numbers, codes))
    return target, relation, train_max, test_max, by_scale


@given(cases())
@settings(max_examples=120, deadline=None)
def test_no_error_where_representable_and_covered_and_under_ideal_where_lrc_does_not_grow(case):
    target, relation, train_max, test_max, by_scale = case
    scales = range(1, test_max + 1) if by_scale else [test_max]
    error, ideal = (sum(pola_limit(each, target, train_max).error(n) for n in scales) for each in (relation, "ideal"))
    assert (error == 0) == representable_and_covered(relation, target, train_max, test_max, by_scale)
    assert (ideal == 0) == (lrc(target, train_max) == lrc(target, test_max))


@given(cases())
@settings(max_examples=40, deadline=None)
def test_trained_error_equals_predicted_error(case):
    target, relation, train_max, test_max, _ = case
    limit = pola_limit(relation, target, train_max)
    model = pola_train(relation, target, train_max, test_max, torch.Generator().manual_seed(0))
    for scale in range(1, test_max + 1):
        assert model.error(target, scale) == pytest.approx(limit.error(scale), abs=1e-6)


def test_complexity_under_a_relation():
    assert lrc_under("relative", "prefix-sum", 8) == 8
    assert lrc_under("none", "prefix-sum", 8) == 1
    assert lrc_under("learned", "first-token", 8) == 8
    assert lrc_under("none", "first-token", 8) == math.inf
    assert all(lrc_under("ideal", target, 12) == lrc(target, 12) for target in TARGETS)


def half_back(i, j, n):
    return 2 * (i - j) == n


@pytest.mark.parametrize(
    ("target", "relation", "carries"),
    [
        ("reversal", "ideal", True),
        ("reversal", lambda i, j, n: i + j - n, True),
        ("reversal", "relative", False),
        ("reversal", "hinted:relative", False),  # i+j is not among its codes
        (half_back, lambda i, j, n: np.clip(2 * (i - j) - n, -1, 1), True),
        (half_back, "relative", False),
    ],
)
def test_a_target_that_depends_on_n_needs_a_relation_that_does(target, relation, carries):
    error = pola_limit(relation, target, 8).error(16)
    assert error == 0 if carries else error > 1


@pytest.mark.parametrize("target", TARGETS)
def test_the_table_agrees_with_the_functions(target):
    for scheme in ("none", "relative", "ideal", "hinted:relative"):
        table = pola_table(target, scheme, 4, 9)
        assert table["lrc"].tolist() == [lrc(target, n) for n in range(1, 10)]
        assert table["lrc_under"].tolist() == [lrc_under(scheme, target, n) for n in range(1, 10)]
        errors = [pola_limit(scheme, target, 4).error(n) for n in range(1, 10)]
        assert table["predicted_error"].tolist() == pytest.approx(errors)


def test_the_model_computes_what_its_weights_say():
    model = pola_train("relative", "decay", 6)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    expected = [[sum(0.9 ** (i - j) * row[j] for j in range(i + 1)) for i in range(6)] for row in x.tolist()]
    assert torch.allclose(model(x)[..., 0], torch.tensor(expected, dtype=torch.float64), atol=1e-6)


def test_a_function_that_was_not_written_for_arrays_will_do():
    assert lrc(lambda i, j: 2.0 if i == j else 0.0, 8) == lrc(lambda i, j: 3.5, 8) == 1


def test_figure_from_a_table():
    table = pola_table("first-token", "relative", 4, 12, train=True)
    assert table["trained_error"].tolist() == pytest.approx(table["predicted_error"].tolist(), abs=1e-6)
    assert len(figures.plot_pola(table).axes) == 2


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: lrc(lambda i, j: np.nan * i, 4), "not a finite number at i=0, j=0, n=4"),
        (lambda: lrc("shift", 4), "unknown target 'shift'.*shift-by-one"),
        (lambda: lrc("decay", 0), "at least 1, not 0"),
        (lambda: lrc(lambda i: i, 4), r"function of \(i, j\) or \(i, j, n\)"),
        (lambda: pola_limit("relativ", "decay", 4).error(8), "unknown scheme 'relativ'"),
        (lambda: pola_limit(lambda i, j: 0.5 * i, "decay", 4).error(8), "integer codes"),
        (lambda: pola_table("decay", "relative", 8, 4), "test_max 4 is below train_max 8"),
        (lambda: pola_table("decay", "relative", 4, 8, options={"clip": 3}), "unknown option .*'clip'"),
        (lambda: pola_table("reversal", "ideal", 4, 8, options={"clip": 3}), "no options"),
        (lambda: pola_limit("relative", "decay", 4).error(100_000), "pairs of positions"),
    ],
)
def test_impossible_requests_get_one_sentence(ask, sentence):
    with pytest.raises(UserError, match=sentence) as refusal:
        ask()
    assert "\n" not in str(refusal.value)
