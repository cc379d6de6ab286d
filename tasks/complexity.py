"""Sequential Representation Complexity (SRC) of a task: how many operators its answers take, up to a size n.

The paper (arXiv 2510.04130) conjectures that length generalization is possible exactly when SRC does not grow with
n. Its formal definition was not at hand; the two counts here are this project's operational versions: *declared*, the
operators of the circuits that the task gives, and *searched*, the fewest lookup tables that write every answer token.

The search: a *step* must produce one column of the instances from earlier columns. A *candidate* is an ordered choice
of `arity` earlier columns (repeats allowed) that determines it: a partial table from tokens to a token. Two candidates
may share an operator if their tables agree wherever both are defined, and since tables are functions, pairwise
agreement is agreement of all. So: choose one candidate for each step and pack them into the fewest tables.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.tasks.program import Program, Queries, Strings
from lengthlens.tasks.scale import Ints
from lengthlens.tasks.task import Task

UNSET = -1
ROWS, MOST_STEPS = 300, 1500  # strings, and steps of them, that a search looks at: a second
RULE_ROWS = 32  # strings of each size on which the rules of a program are counted
MAX_TABLE = 20_000_000  # entries of one dense operator table: beyond this the search would not end anyway
MAX_CANDIDATES = 20_000  # per step; leaving more out can only make the result too large

Row = dict[str, Any]


def src_declared(task: Task, n: int) -> int:
    """The number of distinct operators in the task's circuits at all sizes up to n: an upper bound on SRC.

    Of a task whose sources depend on tokens: of rules in its best program.

    >>> from lengthlens.tasks import TASKS
    >>> [src_declared(TASKS[name], 4) for name in ("parity-cot", "parity", "sort")]
    [1, 4, 2]
    """
    return src_curve(task, n)[-1]


def src_curve(task: Task, n: int) -> list[int]:
    """`src_declared` at the task's smallest size, the next one, … and n, in one pass.

    >>> from lengthlens.tasks import TASKS
    >>> src_curve(TASKS["parity"], 4)
    [1, 2, 3, 4]
    """
    used: set[Any] = set()
    curve, sizes = [], range(task.min_scale, task.checked_scale(n) + 1)
    programs = [Program.parse(text) for text in task.programs or ()] if task.family == "content-addressed" else []
    for scale in sizes:
        if programs:
            used |= set(programs[0].which(steps_of(task, [scale], rows=RULE_ROWS).steps).tolist())
        else:
            used |= task.circuit(scale).used
        curve.append(len(used))
    return curve


class Labelled(NamedTuple):
    """Queries, what is right at each, as a number, and what the numbers are: tokens, or sets of them."""

    steps: Queries
    labels: Tensor  # [step]
    words: tuple[str, ...]


def steps_of(task: Task, sizes: Iterable[int], rows: int = ROWS, most: int = MOST_STEPS, seed: int = 0) -> Labelled:
    """Queries of random instances of these sizes, each equally often, the first step of an instance more often.

    >>> from lengthlens.tasks import TASKS
    >>> steps_of(TASKS["tomita-1"], [3]).words
    ('1|$',)
    """
    generator, listed = torch.Generator().manual_seed(seed), list(sizes)
    drawn = [task.drawn_scale(listed[k % len(listed)], generator) for k in range(rows)]
    batch = task.sample(drawn, generator=generator)
    strings = Strings(batch.tokens, task.vocab, batch.answer_mask.to(torch.uint8).argmax(1) - 1, len(task.symbols))
    row, query = batch.query_mask.nonzero().T
    if len(row) > most:
        weight = torch.where(query == strings.start[row], 3.0, 1.0)
        kept = torch.multinomial(weight, most, generator=generator).sort().values
        row, query = row[kept], query[kept]
    if batch.targets is None:
        return Labelled(Queries(strings, row, query), strings.tokens[row, query + 1], task.vocab)
    sets, labels = torch.unique(batch.targets[row, query], dim=0, return_inverse=True)
    words = ("|".join(word for word, inside in zip(task.vocab, each) if inside) for each in sets.tolist())
    return Labelled(Queries(strings, row, query), labels, tuple(words))


class Search(NamedTuple):
    """The result of a search: `value` operators suffice, fewer than `at_least` do not.

    `exact` when the two meet and every instance was looked at; `note` says why not otherwise.
    """

    value: float
    at_least: float
    exact: bool
    note: str


def src_searched(task: Task, n: int, arity: int) -> int | float:
    """The least number of operators of at most this arity that compute the task up to size n; no circuit is used.

    Sources are the same positions for every instance of a size. Infinite where no `arity` positions determine some
    answer token. See `search_src` for whether the number is exact.

    >>> from lengthlens.tasks import TASKS
    >>> src_searched(TASKS["parity-cot"], 3, arity=2), src_searched(TASKS["parity"], 3, arity=2)
    (1, inf)
    """
    value = search_src(task, n, arity).value
    return value if math.isinf(value) else int(value)


def search_src(task: Task, n: int, arity: int, max_instances: int = 20_000, max_nodes: int = 2_000) -> Search:
    """`src_searched` with its certainty.

    Every instance of a size is looked at where there are at most `max_instances`, else a sample of a tenth of that.
    A sample can prove that positions do *not* determine a token, so "infinite" is exact even then. `max_nodes` bounds
    the search for each number of operators.
    """
    sampled = []
    problem = Problem(arity, len(task.vocab))
    for scale in range(task.min_scale, task.checked_scale(n) + 1):
        batch = task.every_instance(scale, max_instances)
        if batch is None:
            sampled.append(str(scale))
            batch = task.sample(scale, max_instances // 10, torch.Generator().manual_seed(scale))
        if not problem.add(batch.tokens.numpy(), task.prompt_length(scale) - 1):
            note = f"no choice of {arity} sources determines every answer token at n = {scale}"
            return Search(math.inf, math.inf, True, note)
    result = cover(problem, max_nodes)
    if not sampled:
        return result
    note = f"sampled at n = {', '.join(sampled)}"
    return result._replace(exact=False, note=f"{note}; {result.note}" if result.note else note)


class Candidates(NamedTuple):
    """The possible tables of one step: the distinct inputs of each candidate, as one number each, and its outputs."""

    codes: Ints  # [candidate, row]; rows are padded by repeating the last
    outputs: Ints  # [candidate, row]


class Problem:
    """The steps at all sizes, each with its candidates."""

    def __init__(self, arity: int, vocab: int) -> None:
        if arity < 1:
            raise UserError(f"the arity of an operator is at least 1, not {arity}")
        if vocab**arity > MAX_TABLE:
            raise UserError(f"operators of arity {arity} over {vocab} tokens are too large to search; lower the arity")
        self.arity, self.vocab = arity, vocab
        self.scratch = np.empty(vocab**arity, dtype=np.int64)
        self.steps: list[Candidates] = []
        self.cut = False

    def add(self, tokens: Ints, first_query: int) -> bool:
        """Add every step of instances [row, pos] of one size; False if some step has no candidate at all.

        The first step is at `first_query` and writes the first token of the answer.
        """
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
                if not any(frozenset(columns) - {c} in known for c in columns):
                    # Do equal codes always come with equal targets? Write all, see whether all are still there.
                    code = self._code(seen, columns)
                    self.scratch[code] = target
                    if (self.scratch[code] != target).any():
                        continue
                known.add(frozenset(columns))
                yield columns

    def _code(self, seen: Ints, columns: tuple[int, ...]) -> Ints:
        """The tokens in these columns as one number per row."""
        code = np.zeros(len(seen), dtype=np.int64)
        for column in columns:
            code = code * self.vocab + seen[:, column]
        return code


def stacked(tables: list[tuple[Ints, Ints]]) -> Candidates:
    """Tables of different lengths as one array, equal ones kept once."""
    tables = list({codes.tobytes() + outputs.tobytes(): (codes, outputs) for codes, outputs in tables}.values())
    places = np.arange(max(len(codes) for codes, _ in tables))
    rows = [np.minimum(places, len(codes) - 1) for codes, _ in tables]
    return Candidates(*(np.stack([table[side][row] for table, row in zip(tables, rows)]) for side in (0, 1)))


def cover(problem: Problem, max_nodes: int) -> Search:
    """The fewest operators that serve all steps: try one, then two, … each by depth-first search."""
    at_least = 1
    for operators in range(1, len(problem.steps) + 1):
        search = _DepthFirst(problem, operators, max_nodes)
        if search.solve(problem.steps):
            break
        if search.nodes > 0 and not problem.cut and at_least == operators:
            at_least = operators + 1
    exact = at_least >= operators
    note = "" if exact else f"between {at_least} and {operators}: the search was cut short"
    return Search(operators, min(at_least, operators), exact, note)


class _DepthFirst:
    """Packs candidates into a given number of operator tables, most constrained step first."""

    def __init__(self, problem: Problem, operators: int, max_nodes: int) -> None:
        self.tables = np.full((operators, problem.vocab**problem.arity), UNSET, dtype=np.int16)
        self.used = 0
        self.nodes = max_nodes

    def solve(self, steps: list[Candidates]) -> bool:
        """Whether all `steps` can be served; on success the tables stay filled."""
        if not steps:
            return True
        self.nodes -= 1
        if self.nodes <= 0:
            return False
        fits = [self._fits(step) for step in steps]  # each [operator, candidate]
        hardest = min(range(len(steps)), key=lambda k: int(fits[k].sum()))
        step, rest = steps[hardest], steps[:hardest] + steps[hardest + 1 :]
        for operator, candidate in zip(*fits[hardest].nonzero()):
            codes, used = step.codes[candidate], self.used
            before = self.tables[operator, codes].copy()
            self.tables[operator, codes], self.used = step.outputs[candidate], max(used, int(operator) + 1)
            if self.solve(rest):
                return True
            self.tables[operator, codes], self.used = before, used
        return False

    def _fits(self, step: Candidates) -> NDArray[np.bool_]:
        """Which candidates agree with which tables, of which the first empty one stands for all empty ones."""
        entries = self.tables[: self.used + 1, step.codes]  # [operator, candidate, row]
        return np.asarray(((entries == UNSET) | (entries == step.outputs)).all(-1))


def task_rows(tasks: Iterable[Task]) -> list[Row]:
    """One row for each task: example at n = 4, vocabulary size, length as a formula, declared SRC at 4, 8 and 16.

    >>> from lengthlens.tasks import TASKS
    >>> task_rows([TASKS["addition"]])[0]["length"]
    '3n+5'
    """
    return [
        {
            "name": task.name,
            "family": task.family,
            "summary": task.summary,
            "example": task.render(task.sample(4, 1, torch.Generator().manual_seed(1)).tokens[0]),
            "vocabulary": len(task.vocab),
            "length": f"{slope if slope > 1 else ''}n+{task.length(4) - 4 * slope}",
            "src": {n: src_declared(task, n) for n in (4, 8, 16) if task.declares_circuit or task.programs},
        }
        for task in tasks
        for slope in [task.length(5) - task.length(4)]  # prompt and answer grow evenly, whatever the task
    ]


def src_rows(
    task: Task, max_scale: int, arity: int | None, report: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """One row for each size: declared SRC and, if an arity is given, searched SRC and how sure it is."""
    rows: list[Row] = []
    for scale, count in enumerate(src_curve(task, max_scale), task.min_scale):
        row: Row = {"task": task.name, "scale": scale, "declared": count}
        if arity is not None:
            report(f"n = {scale} of {max_scale}")
            search = search_src(task, scale, arity)
            row |= {"arity": arity, "searched": search.value, "exact": search.exact, "note": search.note}
        rows.append(row)
    return rows
