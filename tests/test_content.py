"""The verdict where codes alone do not decide: sources found by one code and by content, parts that must be ignored."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthlens.models.schemes.relation import Relation
from lengthlens.tasks import TASKS, Operator
from lengthlens.tasks.arithmetic import ADD, MULTIPLY
from lengthlens.theory.content import AFTER, OWN, SlotSteps, alike_slots, serving_code, where_needed
from lengthlens.theory.steps import Steps, circuits_of
from lengthlens.theory.verdict import verdict

POSITIONS = [name for name, task in TASKS.items() if task.family == "position-addressed"]


def served_slowly(task, relation, steps, slot, code, train_max):
    """The definition, step by step, on the tokens of an instance."""
    sorts = {}
    for scale, query, sources in zip(steps.scale.tolist(), steps.query.tolist(), steps.sources.tolist()):
        words = task.words(task.sample(scale, 1, torch.Generator().manual_seed(1)).tokens[0])
        source = sources[slot]

        def label(key, words=words):
            marks = [k for k in range(key + 1) if words[k] not in task.symbols]
            return (words[marks[-1]], key - marks[-1]) if key - marks[-1] <= AFTER else None

        at = [j for j in range(query) if tuple(relation.codes(query, j, scale).tolist()) == code]
        if len(at) > 1:
            return False
        own = label(source)
        alone = own is not None and sum(label(j) == own for j in range(query + 1)) == 1
        found = at == [source] if source != query else not at
        sort = (label(query), label(at[0]) if at else "nowhere")
        sorts.setdefault(sort, []).append((found, own if alone else None, scale))
    return all(
        min(scale for *_, scale in rows) <= train_max
        and (all(found for found, *_ in rows) or (len({own for _, own, _ in rows}) == 1 and rows[0][1] is not None))
        for rows in sorts.values()
    )


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["copy", "reverse", "shift", "duplicate", "parity-cot"]),
    st.tuples(st.integers(-1, 1), st.integers(-2, 2), st.integers(0, 6)),
)
def test_a_serving_code_is_one_by_the_definition_and_none_is_overlooked(name, form):
    a, c, clip = form
    task = TASKS[name]

    def phi(i, j, n):
        value = a * i - j + c * n
        return value.clamp(-clip, clip) if clip else value.abs()

    relation = Relation(phi)
    for steps, slot in ((s, k) for s in circuits_of(task, 4, 7).operators for k in range(s.arity)):
        own = steps.only(slot)
        code = serving_code(relation, SlotSteps(own, task, 4))
        if code == OWN:
            assert (own.sources[:, 0] == own.query).all()
        elif code is not None:
            assert served_slowly(task, relation, steps, slot, code, 4)
        else:
            within = own[own.scale <= 4]
            tried = set(map(tuple, relation.codes(within.query, within.sources[:, 0], within.scale).tolist()))
            serving = [code for code in tried if served_slowly(task, relation, steps, slot, code, 4)]
            assert not serving or len(tried) > 6  # only the most frequent codes are tried


def test_arguments_that_may_be_exchanged():
    assert alike_slots(ADD, "0123456789") == [[0, 1], [2, 3], [4]]
    assert alike_slots(MULTIPLY, "0123456789") == [[0], [1], [2], [3]]
    majority = Operator("majority", 3, lambda *xs: "1" if xs.count("1") > 1 else "0")
    assert alike_slots(majority, "01") == [[0, 1, 2]]


def test_a_slot_that_makes_no_difference_is_not_needed():
    """Behind the last column of a sum comes ``$``, whatever the digits would be."""
    (steps,) = circuits_of(TASKS["addition"], 3, 3).operators
    last = np.append(np.diff(steps.scale) != 0, True)
    assert np.array_equal(where_needed(steps, [0, 1], ADD, TASKS["addition"]).sources, steps[~last].sources[:, :2])
    assert len(where_needed(steps, [2, 3], ADD, TASKS["addition"])) == len(steps)


def test_a_code_of_two_keys_serves_no_single_slot_and_the_query_needs_none():
    (steps,) = circuits_of(TASKS["shift"], 6, 8).operators
    place = SlotSteps(steps, TASKS["shift"], 6)
    assert serving_code(Relation(lambda i, j, n: (i - j - n).abs()), place) is None
    assert serving_code(Relation(lambda i, j, n: i - j - n), place) == (-1,)
    same = Steps("same", np.array([1, 2]), np.array([3, 5]), np.array([[3], [5]]), (1,))
    assert serving_code(Relation(lambda i, j, n: 0 * (i + j)), SlotSteps(same, TASKS["copy"], 1)) == OWN


# -- verdicts --------------------------------------------------------------------------------------------------------


LEFT = "it depends on whether training leaves"
JUDGED = [
    *(("possible", task, "hinted:alibi", "found by") for task in ("copy", "parity-cot")),
    ("possible", "copy", "hinted:fire", "found by"),
    ("open", "copy", "hinted:xl", "codes that training never met"),
    *(("possible", task, "ideal", "") for task in POSITIONS),
    # Tables that must be ignored, random starts that may teach it, and what content decides.
    *(("open", "copy", f"hinted:{inner}", LEFT) for inner in ("relative", "t5", "shaw")),
    *(("open", "addition", ids, "difference of the position ids") for ids in ("coupled", "abacus")),
    *(("open", task, scheme, "") for task, scheme in (("copy", "cope"), ("unique-copy", "relative"))),
    # Relations that reverse cannot be computed with, and vectors at positions never trained.
    *(("impossible", "reverse", scheme, "not ") for scheme in ("relative", "hinted:relative", "none")),
    ("impossible", "copy", "hinted:learned", "first appears"),
]


@pytest.mark.parametrize(("answer", "task", "scheme", "reason"), JUDGED)
def test_the_verdict_and_its_first_reason(answer, task, scheme, reason):
    found = verdict(task, scheme, 10, 40, helps=False)
    assert found.verdict == answer and reason in found.reasons[0]
