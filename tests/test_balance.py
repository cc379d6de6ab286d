"""Several marks together: the inequalities against plain loops, the weights in a head built by hand, and what fails."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthlens.models.schemes import make_scheme
from lengthlens.models.schemes.forms import read_form, read_forms
from lengthlens.probes.activations import exact_by_scale
from lengthlens.probes.balance import Mark, balance, comparisons, distinct, lightest, marks_of
from lengthlens.probes.controls import SHARP, copy_by_hand
from lengthlens.probes.program import Steps, program_of
from lengthlens.tasks import TASKS
from lengthlens.tests.test_verdict import steps_of

MARKS = [Mark(form, value) for form in read_forms("i-j, i-j-n, j-n, i+j-2n") for value in (-2, -1, 0, 1, 2)]


def steps_by_hand(parts: list[tuple[int, int, int]]) -> Steps:
    """From (scale, query, source)."""
    scale, query, source = np.array(parts).T
    return Steps("copy", scale, query, source[:, None], (1,))


def slow_comparisons(task, scale):
    """Every difference between the marks at the source and at another key, key by key."""
    found = set()
    for n, _, query, (source,) in steps_of(task, scale):
        at = [
            tuple(
                int(m.form.query * query + m.form.key * key + m.form.scale * n + m.form.constant == m.value)
                for m in MARKS
            )
            for key in range(query + 1)
        ]
        found |= {
            tuple(a - b for a, b in zip(at[source], other)) for k, other in enumerate(at) if k != source
        }
    return found


@pytest.mark.parametrize("name", ["copy", "shift", "duplicate"])
def test_comparisons_are_those_of_plain_loops(name):
    steps = program_of(TASKS[name], 6, 6).operators[0].only(0)
    found = comparisons(MARKS, steps)
    assert len({tuple(row) for row in found.tolist()}) == len(found)
    assert {tuple(row) for row in found.tolist()} == slow_comparisons(TASKS[name], 6)


@given(st.integers(1, 90), st.integers(1, 40), st.integers(0, 2**32))
def test_distinct_rows(columns, rows, seed):
    given = np.random.default_rng(seed).integers(-1, 2, (rows, columns))
    doubled = np.concatenate([given, given])
    assert np.array_equal(np.unique(distinct(doubled), axis=0), np.unique(given, axis=0))
    assert len(distinct(doubled)) == len(np.unique(given, axis=0))


def test_the_lightest_weights():
    assert lightest(np.array([[1, 1, 0], [0, 1, 0]])).tolist() == [0, 1, 0]
    assert lightest(np.array([[0, 0], [1, 0]])) is None  # a source that looks like another key


@pytest.mark.parametrize("name", ["shift", "duplicate"])
def test_a_head_with_these_weights_reads_right_at_every_scale(name):
    task = TASKS[name]
    scheme = make_scheme("lbpe", {}, task)
    found = balance(marks_of(scheme), program_of(task, 10, 40).operators[0].only(0), 10)
    model = copy_by_hand("lbpe")  # what is written is the same: the token that is read, and $ for =
    with torch.no_grad():
        model.pos_embed.bias.zero_()
        model.pos_embed.gate_logits.zero_()  # gates alike: a weight is its bias
        for mark, weight in zip(found.marks, found.weights):
            form = model.pos_embed.forms.index(mark.form)
            model.pos_embed.bias[0, 0, form, mark.value + 3] = SHARP * weight
    assert list(exact_by_scale(model, task, [1, 2, 10, 40, 150]).values()) == [1.0] * 5


def test_what_training_does_not_show_is_not_learned():
    # The last key but one; from scale 6 on the key n−6, whose mark points nowhere before, and has to overrule.
    steps = steps_by_hand([(n, n + 2, n - 6 if n >= 6 else n + 1) for n in range(1, 13)])
    marks = [Mark(read_form("j-n"), 1), Mark(read_form("j-n"), -6)]
    assert balance(marks, steps, 5) is None
    assert str(balance(marks, steps, 6)) == "j = n+1 (+1) with j = n−6 (+2)"


def test_marks_that_contradict_each_other_serve_nothing():
    steps = steps_by_hand([(n, n + 2, n % 2) for n in range(1, 9)])  # the first key, the second, the first, …
    assert balance([Mark(read_form("j"), 0), Mark(read_form("j"), 1)], steps, 4) is None


def test_only_marks_that_are_alive_count():
    scheme = make_scheme("lbpe", {"forms": "i-j, i-j-n", "window": 1}, TASKS["copy"])
    scheme.alive[:, :, 0] = False
    scheme.alive[:, :, 1, 0] = False
    assert [(str(mark.form), mark.value) for mark in marks_of(scheme)] == [("i−j−n", 0), ("i−j−n", 1)]
