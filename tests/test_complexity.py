"""Sequential representation complexity: declared counts, the search, and where the two must or need not agree."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthlens.errors import UserError
from lengthlens.tasks import TASKS, search_src, src_curve, src_declared, src_searched
from lengthlens.tasks.complexity import Problem, cover


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.declares_circuit])
def test_what_is_declared_grows_in_the_family_growing_alone(name: str) -> None:
    task = TASKS[name]
    curve = src_curve(task, 16)
    assert curve[4 - task.min_scale] == src_declared(task, 4)
    growing = [a < b for a, b in pairwise(curve)]
    assert all(growing) if task.family == "growing" else not any(growing[3:])


def cases(text: str) -> list[tuple[str, int, int]]:
    """Tasks, each with the largest n and the arity of a search."""
    words = text.split()
    return list(zip(words[::3], map(int, words[1::3]), map(int, words[2::3])))


AS_DECLARED = cases(
    "copy 4 1  copy 3 2  reverse 4 1  shift 4 1  duplicate 4 1  parity-cot 6 2  modular-sum-cot 4 2 "
    "multiplication-by-digit 2 4  addition 1 5 "
    "parity 1 1  modular-sum 1 1  addition-msb 1 2  multiplication 1 2"  # which grow, but not yet at n = 1
)
TOO_SMALL = cases(
    "parity-cot 2 1  modular-sum-cot 2 1  addition 1 1  addition 3 3  multiplication-by-digit 2 2  parity 3 2 "
    "parity 4 3  modular-sum 3 2  addition-msb 2 3  multiplication 2 3  majority 3 2"
)


@pytest.mark.parametrize(("name", "n", "arity"), [*AS_DECLARED, pytest.param("addition", 2, 4, marks=pytest.mark.slow)])
def test_searched_equals_declared(name: str, n: int, arity: int) -> None:
    found = search_src(TASKS[name], n, arity)
    assert found.exact
    assert found.value == found.at_least == src_declared(TASKS[name], n)


@pytest.mark.parametrize(("name", "n", "arity"), TOO_SMALL)
def test_too_small_an_arity_is_infinite(name: str, n: int, arity: int) -> None:
    found = search_src(TASKS[name], n, arity)
    assert math.isinf(found.value) and found.exact
    assert str(arity) in found.note and src_searched(TASKS[name], n, arity) == math.inf


@pytest.mark.parametrize(("name", "n", "arity"), [("parity", 3, 3), ("modular-sum", 3, 3)])
def test_where_the_two_may_differ(name: str, n: int, arity: int) -> None:
    """Up to n = arity one table can serve all scales of a growing task (marks in the unused arguments count as zero),
    so the search finds fewer operators than the declaration, which has one for each arity. It does not contradict the
    growth: at every fixed arity the search turns infinite as soon as n exceeds it, where the declaration goes on."""
    assert search_src(TASKS[name], n, arity).value == 1 < src_declared(TASKS[name], n)
    assert math.isinf(search_src(TASKS[name], n + 1, arity).value)


def test_samples_are_said_to_be_samples() -> None:
    found = search_src(TASKS["copy"], 3, 1, max_instances=200)
    assert found.value == 1 and not found.exact and "sampled at n = 3" in found.note


def test_a_search_cut_short_says_so() -> None:
    found = search_src(TASKS["multiplication"], 1, 2, max_nodes=1)
    assert not found.exact and found.at_least <= 2 <= found.value and "cut short" in found.note


def brute_force(steps: list[list[dict[int, int]]]) -> int:
    """The fewest tables by trying every choice and every assignment: an independent, exponential reference."""
    best = len(steps)

    def place(k: int, tables: list[dict[int, int]]) -> None:
        nonlocal best
        if len(tables) >= best:
            return
        if k == len(steps):
            best = len(tables)
            return
        for candidate in steps[k]:
            for index, table in enumerate(tables):
                if all(table.get(code, out) == out for code, out in candidate.items()):
                    place(k + 1, [*tables[:index], table | candidate, *tables[index + 1 :]])
            place(k + 1, [*tables, candidate])

    place(0, [])
    return best


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 2), st.integers(2, 3))
def test_the_search_is_exact_on_random_problems(seed: int, arity: int, vocab: int) -> None:
    """Random columns, of which the last four are functions of one or two earlier ones."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(vocab, size=(12, 3))
    for _ in range(4):
        sources = rng.integers(tokens.shape[1], size=arity)
        table = rng.integers(vocab, size=(vocab,) * arity)
        tokens = np.column_stack([tokens, table[tuple(tokens[:, s] for s in sources)]])
    problem = Problem(arity, vocab)
    assert problem.add(tokens, 2)
    found = cover(problem, max_nodes=100_000)
    reference = brute_force([[dict(zip(c, o)) for c, o in zip(*step)] for step in problem.steps])
    assert found.value == found.at_least == reference


def test_bad_requests_are_named() -> None:
    with pytest.raises(UserError, match="at least 1, not 0"):
        src_searched(TASKS["copy"], 2, 0)
    with pytest.raises(UserError, match="too large to search"):
        src_searched(TASKS["sort"], 2, 6)
    with pytest.raises(UserError, match="no size n = 0"):
        src_declared(TASKS["copy"], 0)
