"""Several pointers together: inequalities against plain loops, weights in a head built by hand, and what fails."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthlens.models.by_hand import SHARP, copy_by_hand
from lengthlens.models.schemes import make_scheme
from lengthlens.models.schemes.relation import Pointer, read_form, read_forms
from lengthlens.probes.network import exact_by_scale
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import NINE
from lengthlens.tests.test_verdict import steps_of
from lengthlens.theory import learnable as module
from lengthlens.theory.learnable import comparisons, distinct, lightest, weighted_pointers
from lengthlens.theory.steps import Steps, circuits_of
from lengthlens.theory.verdict import verdict

POINTERS = [Pointer(form, value) for form in read_forms("i-j, i-j-n, j-n, i+j-2n") for value in (-2, -1, 0, 1, 2)]


def steps_by_hand(parts: list[tuple[int, int, int]]) -> Steps:
    """From (scale, query, source)."""
    scale, query, source = np.array(parts).T
    return Steps("copy", scale, query, source[:, None], (1,))


def slow_comparisons(task, scale):
    """Every difference between what points at the source and at another key, key by key."""
    found = set()
    for n, _, query, (source,) in steps_of(task, scale):
        at = [
            tuple(
                int(m.form.query * query + m.form.key * key + m.form.scale * n + m.form.constant == m.value)
                for m in POINTERS
            )
            for key in range(query + 1)
        ]
        found |= {tuple(a - b for a, b in zip(at[source], other)) for k, other in enumerate(at) if k != source}
    return found


@pytest.mark.parametrize("name", ["copy", "shift", "duplicate"])
def test_comparisons_are_those_of_plain_loops(name, monkeypatch):
    monkeypatch.setattr(module, "STEPS_TOGETHER", 7)
    steps = circuits_of(TASKS[name], 6, 6).operators[0].only(0)
    found = comparisons(POINTERS, steps)
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
    scheme = make_scheme(NINE, {}, task)
    (pointers,) = scheme.pointers()
    found = weighted_pointers(pointers, circuits_of(task, 10, 40).operators[0].only(0), 10)
    model = copy_by_hand("lbpe")  # what is written is the same: the token that is read, and $ for =
    with torch.no_grad():
        model.pos_embed.bias.zero_()
        model.pos_embed.gate_logits.zero_()  # gates alike: a weight is its bias
        for one, weight in zip(found.pointers, found.weights):
            form = model.pos_embed.forms.index(one.form)
            model.pos_embed.bias[0, 0, form, one.value + 3] = SHARP * weight
    assert list(exact_by_scale(model, task, [1, 2, 10, 40, 150]).values()) == [1.0] * 5


def test_what_training_does_not_show_is_not_learned():
    # The last key but one; from scale 6 on the key n−6, at which nothing points before, and has to overrule.
    steps = steps_by_hand([(n, n + 2, n - 6 if n >= 6 else n + 1) for n in range(1, 13)])
    pointers = [Pointer(read_form("j-n"), 1), Pointer(read_form("j-n"), -6)]
    assert weighted_pointers(pointers, steps, 5) is None
    assert str(weighted_pointers(pointers, steps, 6)) == "j = n+1 (+1) with j = n−6 (+2)"


def test_pointers_that_contradict_each_other_serve_nothing():
    steps = steps_by_hand([(n, n + 2, n % 2) for n in range(1, 9)])  # the first key, the second, the first, …
    assert weighted_pointers([Pointer(read_form("j"), 0), Pointer(read_form("j"), 1)], steps, 4) is None


def test_only_what_is_alive_counts_and_heads_do_not_pool_it():
    scheme = make_scheme("lbpe", {"forms": "i-j, i-j-n", "window": 1}, TASKS["copy"])
    scheme.alive[:, :, 0] = False
    scheme.alive[:, :, 1, 0] = False
    (pointers,) = scheme.pointers()
    assert [(str(one.form), one.value) for one in pointers] == [("i−j−n", 0), ("i−j−n", 1)]
    scheme.alive[0, 1, 1, 2] = False
    assert sorted(map(len, scheme.pointers())) == [1, 2]


def test_what_one_head_can_do_several_cannot_do_apart():
    scheme = make_scheme("lbpe", {"forms": "i-j-n, i-j-2n, j", "window": 0}, TASKS["duplicate"])
    assert verdict("duplicate", scheme, 10, 20).verdict == "possible"
    scheme.alive[:] = False
    for form in range(3):
        scheme.alive[:, form, form] = True  # a head for each
    assert verdict("duplicate", scheme, 10, 20).verdict == "impossible"


@pytest.mark.parametrize("train_max", [3, 4, 10])
def test_more_to_choose_from_never_does_harm(train_max):
    found = [verdict("shift", NINE, train_max, 30, {"window": w}, helps=False).verdict for w in (0, 1, 2, 3)]
    assert found == ["impossible", "possible", "possible", "possible"]


def test_few_pointers_serve_shift():
    (pointers,) = make_scheme(NINE, {}, TASKS["shift"]).pointers()
    found = weighted_pointers(pointers, circuits_of(TASKS["shift"], 10, 30).operators[0].only(0), 10)
    assert len(found.pointers) == 5  # a solver for whole numbers finds no fewer
