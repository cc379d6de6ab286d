"""The search behind `src_searched`: the fewest lookup tables that write every answer token.

A *step* must produce one column of the instances from earlier columns. A *candidate* is an ordered choice of `arity`
earlier columns (repeats allowed) that determines it: a partial table from tokens to a token. Two candidates may share
an operator if their tables agree wherever both are defined, and since tables are functions, pairwise agreement is
agreement of all. So: choose one candidate for each step and pack them into the fewest tables.
"""

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lengthlens.errors import UserError

Ints = NDArray[np.int64]
UNSET = -1
MAX_TABLE = 20_000_000  # entries of one dense operator table: beyond this the search would not end anyway
MAX_CANDIDATES = 20_000  # per step; more are cut, which can only make the found number too large


class Candidates(NamedTuple):
    """The possible tables of one step: for each candidate its distinct inputs, as one number each, and outputs."""

    codes: Ints  # [candidate, row]; rows are padded by repeating the last
    outputs: Ints  # [candidate, row]


class Found(NamedTuple):
    value: int
    at_least: int


class Problem:
    """The steps of all scales, each with its candidates."""

    def __init__(self, arity: int, vocab: int) -> None:
        if arity < 1:
            raise UserError(f"the arity of an operator is at least 1, not {arity}")
        if vocab**arity > MAX_TABLE:
            raise UserError(f"operators of arity {arity} over {vocab} tokens are too large to search; lower the arity")
        self.arity, self.vocab = arity, vocab
        self.scratch = np.empty(vocab**arity, dtype=np.int64)
        self.steps: list[Candidates] = []
        self.cut = False

    def add(self, instances: tuple[Tensor, int]) -> bool:
        """Add every answer step of one scale; False if some step has no candidate at all."""
        tokens, first_query = instances[0].numpy(), instances[1]
        for query in range(first_query, tokens.shape[1] - 1):
            candidates = self._candidates(tokens[:, : query + 1], tokens[:, query + 1])
            if candidates is None:
                return False
            self.steps.append(candidates)
        return True

    def _candidates(self, seen: Ints, target: Ints) -> Candidates | None:
        """All ordered choices of columns that determine the target, as tables without repeated rows."""
        tables: list[tuple[Ints, Ints]] = []
        for columns in self._determining(seen, target):
            _, distinct = np.unique(self._code(seen, columns), return_index=True)
            rows, outputs = seen[distinct], target[distinct]
            orders = [c for c in product(columns, repeat=self.arity) if len(set(c)) == len(columns)]
            tables += [(self._code(rows, order), outputs) for order in orders]
            if len(tables) > MAX_CANDIDATES:
                self.cut = True
                break
        return stacked(tables[:MAX_CANDIDATES]) if tables else None

    def _determining(self, seen: Ints, target: Ints) -> Iterator[tuple[int, ...]]:
        """The sets of at most `arity` columns that determine the target, small ones first."""
        known: set[frozenset[int]] = set()
        for size in range(1, min(self.arity, seen.shape[1]) + 1):
            for columns in combinations(range(seen.shape[1]), size):
                smaller = any(frozenset(columns) - {c} in known for c in columns)
                if smaller or self._determines(self._code(seen, columns), target):
                    known.add(frozenset(columns))
                    yield columns

    def _determines(self, code: Ints, target: Ints) -> bool:
        """Whether equal codes always come with equal targets: write all, see whether all are still there."""
        self.scratch[code] = target
        return bool((self.scratch[code] == target).all())

    def _code(self, seen: Ints, columns: tuple[int, ...]) -> Ints:
        """The tokens in these columns as one number per row."""
        code = np.zeros(len(seen), dtype=np.int64)
        for column in columns:
            code = code * self.vocab + seen[:, column]
        return code


def stacked(tables: list[tuple[Ints, Ints]]) -> Candidates:
    """Tables of different lengths as one array, equal ones kept once."""
    tables = list({codes.tobytes() + outputs.tobytes(): (codes, outputs) for codes, outputs in tables}.values())
    shape = (len(tables), max(len(codes) for codes, _ in tables))
    codes, outputs = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    for row, (code, output) in enumerate(tables):
        codes[row, : len(code)], outputs[row, : len(code)] = code, output
        codes[row, len(code) :], outputs[row, len(code) :] = code[-1], output[-1]
    return Candidates(codes, outputs)


def cover(problem: Problem, max_nodes: int) -> Found:
    """The fewest operators that serve all steps: try one, then two, … each by depth-first search."""
    at_least = 1
    for operators in range(1, len(problem.steps) + 1):
        search = _DepthFirst(problem, operators, max_nodes)
        if search.solve(problem.steps):
            return Found(operators, min(at_least, operators))
        if not search.out_of_nodes and not problem.cut and at_least == operators:
            at_least = operators + 1
    return Found(len(problem.steps), at_least)


class _DepthFirst:
    """Packs candidates into a given number of operator tables, most constrained step first."""

    def __init__(self, problem: Problem, operators: int, max_nodes: int) -> None:
        self.tables = np.full((operators, problem.vocab**problem.arity), UNSET, dtype=np.int16)
        self.used = 0
        self.nodes = max_nodes

    @property
    def out_of_nodes(self) -> bool:
        return self.nodes <= 0

    def solve(self, steps: list[Candidates]) -> bool:
        """Whether all `steps` can be served; on success the tables stay filled."""
        if not steps:
            return True
        self.nodes -= 1
        if self.out_of_nodes:
            return False
        fits = [self._fits(step) for step in steps]  # each [operator, candidate]
        hardest = min(range(len(steps)), key=lambda k: int(fits[k].sum()))
        rest = steps[:hardest] + steps[hardest + 1 :]
        step = steps[hardest]
        return any(
            self._place(int(operator), step.codes[candidate], step.outputs[candidate], rest)
            for operator, candidate in zip(*fits[hardest].nonzero())
        )

    def _fits(self, step: Candidates) -> NDArray[np.bool_]:
        """Which candidates agree with which tables; of the empty tables, all alike, only the first counts."""
        open_tables = self.tables[: self.used + 1]
        held = open_tables[:, step.codes]  # [operator, candidate, row]
        return np.asarray(((held == UNSET) | (held == step.outputs)).all(-1))

    def _place(self, operator: int, codes: Ints, outputs: Ints, rest: list[Candidates]) -> bool:
        before, used = self.tables[operator, codes].copy(), self.used
        self.tables[operator, codes] = outputs
        self.used = max(self.used, operator + 1)
        if self.solve(rest):
            return True
        self.tables[operator, codes] = before
        self.used = used
        return False
