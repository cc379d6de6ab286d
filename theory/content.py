"""Sources that a step reaches by one code and, where that fails, by content.

The three properties (`theory/properties.py`) demand that the codes alone single out every source. Networks need less:
they know a mark (``=``, ``^``, ``+``) by its token, and the symbols right after it by a look at their neighbour.

We define the *label* of a key: the last mark before it and the distance d from it, if d ≤ 2 (0 for the mark itself);
`INSIDE` for all others. A slot is *served by one code κ* if, at every step, the key that has the code κ is the source,
or its label (or that there is no such key) says which label the source has instead:

- at no step do two keys have the code κ;
- steps are sorted by the label of the key at κ and that of the query; within each sort either that key is the source
  of all, or one and the same label is that of the source of all, and of no other key;
- each sort already occurs in the training range.

The query itself does not count as a key: its token is known without attention. Slots in which the operator's arguments
may be exchanged (both digits of a column that is added) may share a code: then the keys at κ together have to be the
sources of these slots. Steps at which a slot makes no difference do not count for it: once a sum has ended, the digits
that would come next do not matter.

Worked example: ``shift``, ``^ 7 3 5 = 3 5 7 $``, under clip(i−j−n, ±12). κ = −1 is the source until the key there is
``=``; then the source is the key right after ``^``. When κ = −1 is the first key after ``=``, the source is ``=``.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from lengthlens.models.schemes.relation import Code, Ints, Relation, by_value, numbered
from lengthlens.tasks import Operator, Task
from lengthlens.tasks.circuit import remembered
from lengthlens.tasks.task import example_of
from lengthlens.theory.steps import Steps, block_bounds

AFTER = 2  # how far after a mark a symbol is still known by it
INSIDE, NOWHERE = -1, -2  # labels of a key with no mark near, and of a key that does not exist
OWN: Code = ()  # stands for a source that is the query itself, for which no code is needed
LABELS = 1 << 20  # more than there are
TRIALS = 200  # random arguments on which slots must be alike
FEW_WAYS = 3  # of reaching a source in two layers, each with its codes
MOST_CODES = 6  # that are tried, the most frequent first
MOST_PAIRS = 1 << 20  # pairs of query and key that are compared together


def labels(task: Task, scale: int) -> Ints:
    """The label of each position, as a number. [pos]

    >>> from lengthlens.tasks import TASKS
    >>> labels(TASKS["copy"], 4).tolist()  # ^ 1 2 3 4 = 1 2 3 4 $
    [33, 34, 35, -1, -1, 30, 31, 32, -1, -1, 36]
    """
    marks = _marks(task, scale)
    place = np.arange(len(marks))
    last = np.maximum.accumulate(np.where(marks == INSIDE, 0, place))
    after = place - last
    return np.where(after <= AFTER, (1 + AFTER) * marks[last] + after, INSIDE)


def alike_slots(operator: Operator, symbols: Sequence[str]) -> list[list[int]]:
    """The slots of an operator, in groups whose arguments may be exchanged.

    >>> from lengthlens.tasks.arithmetic import ADD
    >>> alike_slots(ADD, "0123456789")
    [[0, 1], [2, 3], [4]]
    """
    rng, groups = np.random.default_rng(0), [[0]] if operator.arity else []
    drawn = [list(row) for row in rng.choice(list(symbols), size=(TRIALS, operator.arity))]

    def exchanged(row: list[str], a: int, b: int) -> list[str]:
        return [row[{a: b, b: a}.get(k, k)] for k in range(len(row))]

    for slot in range(1, operator.arity):
        first = groups[-1][0]
        if all(operator.function(*row) == operator.function(*exchanged(row, first, slot)) for row in drawn):
            groups[-1].append(slot)
        else:
            groups.append([slot])
    return groups


def where_needed(steps: Steps, slots: Sequence[int], operator: Operator, task: Task) -> Steps:
    """The steps at which the tokens in these slots make a difference, by trying, with marks where they are."""
    marks = np.empty_like(steps.sources)
    for n, here in by_value(steps.scale):
        marks[here] = _marks(task, n)[steps.sources[here]]
    patterns, which = np.unique(marks, axis=0, return_inverse=True)  # [pattern, slot]
    differs = np.array([_differs(row, slots, operator, task) for row in patterns.tolist()])
    return steps[differs[which.ravel()]].only(*slots)


@remembered
def _marks(task: Task, scale: int) -> Ints:
    """The id of each token that is a mark, `INSIDE` for symbols. [pos]"""
    tokens = example_of(task, scale).numpy()
    return np.where(tokens >= len(task.symbols), tokens, INSIDE)


def _differs(pattern: list[int], slots: Sequence[int], operator: Operator, task: Task) -> bool:
    rng = np.random.default_rng(0)
    for drawn in rng.choice(list(task.symbols), size=(TRIALS, operator.arity)).tolist():
        one = [symbol if mark == INSIDE else task.vocab[mark] for symbol, mark in zip(drawn, pattern)]
        other = [str(rng.choice(list(task.symbols))) if k in slots else token for k, token in enumerate(one)]
        if operator.function(*one) != operator.function(*other):
            return True
    return False


class SlotSteps:
    """The steps of some slots of an operator with every key they see, in blocks, those of training first.

    Nothing here depends on the relation, so that it serves all of them. `counting` gives the steps that count.
    """

    def __init__(
        self, steps: Steps, task: Task, train_max: int, counting: Callable[[Steps], Steps] = lambda steps: steps
    ) -> None:
        beyond = int(np.searchsorted(steps.size, train_max, side="right"))
        self._within, self._beyond, self._task, self._counting = steps[:beyond], steps[beyond:], task, counting

    @cached_property
    def trained(self) -> list["Keys"]:
        return self._keys(self._within)

    @cached_property
    def others(self) -> list["Keys"]:
        """The steps beyond the training range; most codes fail within it."""
        return self._keys(self._beyond)

    @cached_property
    def own(self) -> bool:
        """Whether every source is the query itself."""
        return all(each.own for each in self.trained) and all(each.own for each in self.others)

    def _keys(self, steps: Steps) -> list["Keys"]:
        counting = self._counting(steps) if len(steps) else steps
        return [Keys(counting[start:stop], self._task) for start, stop in block_bounds(counting.query, MOST_PAIRS)]


def serving_code(relation: Relation, places: SlotSteps) -> Code | None:
    """A code by which the slots are served together, or `OWN`; None if none of the most frequent ones does it.

    >>> from lengthlens.tasks import TASKS
    >>> from lengthlens.theory.steps import circuits_of
    >>> anchored = Relation(lambda i, j, n: (i - j - n).clamp(-12, 12), "clip(i−j−n, ±12)")
    >>> steps, = circuits_of(TASKS["shift"], 10, 20).operators
    >>> serving_code(anchored, SlotSteps(steps, TASKS["shift"], 10))
    (-1,)
    """
    if places.own or not places.trained:
        return OWN if places.own else None
    trained = [Coded(relation, keys) for keys in places.trained]
    codes, which = numbered(np.concatenate([one.of_source for one in trained]))
    often = codes[np.argsort(-np.bincount(which), kind="stable")[:MOST_CODES]].tolist()
    within = [tuple(code) for code in often if _serves(code, trained, [])]  # the training range
    others = [Coded(relation, keys) for keys in places.others] if within else []
    return next((code for code in within if _serves(code, trained, others)), None)


def read_in_two_layers(relations: Sequence[Relation], steps: Steps, task: Task, train_max: int) -> bool:
    """Whether each source is known by its label, or reached by codes in at most two layers, by few that are trained.

    A layer may bring a token to another key, from which the next layer takes it: with i−j = n twice, the token 2n back.
    """
    trained: set[tuple[Code, ...]] = set()
    ways: list[set[tuple[Code, ...]]] = []  # of each step whose source is not known by its label
    for n, here in by_value(steps.size):
        known, marked = labels(task, n), [single_codes(one, task.longest(n), n) for one in relations]
        for query, source in zip(steps.query[here].tolist(), steps.sources[here, 0].tolist()):
            if source == query or (known[source] != INSIDE and (known[: query + 1] == known[source]).sum() == 1):
                continue
            hops: set[tuple[Code, ...]] = set()
            for last in marked:
                for key, code in last[query].items():
                    rest = [(code, first[key][source]) for first in marked if source in first[key]]
                    hops.update([(code,)] if key == source else rest)
            trained |= hops if n <= train_max else set()
            ways.append(hops & trained)
    for _ in range(FEW_WAYS):
        often = Counter(way for step in ways for way in step)
        ways = [step for step in ways if often and often.most_common(1)[0][0] not in step]
    return not ways


def single_codes(relation: Relation, length: int, n: int) -> list[dict[int, Code]]:
    """For each query the keys before it whose code no other key has there, and that code with the relation's name."""
    table = relation.table(range(length), range(length), n)
    found = []
    for query in range(length):
        codes = list(map(tuple, table[query, :query].tolist()))
        number = Counter(codes)
        found.append({key: (*code, len(relation.words)) for key, code in enumerate(codes) if number[code] == 1})
    return found


class Keys:
    """Some steps, and for each the keys up to the last that any of them sees: labels, and which are sources."""

    def __init__(self, steps: Steps, task: Task) -> None:
        """For the verdict (`serving_code`): at least one step, and few enough that [step, key] fits into memory."""
        self.steps, key = steps, np.arange(int(steps.query.max()) + 1)
        self.own = bool((steps.sources == steps.query[:, None]).all())  # every source is the query itself
        query = steps.query[:, None]
        scales, at = np.unique(steps.scale, return_inverse=True)
        by_scale = np.full((len(scales), len(key)), INSIDE, dtype=np.int32)
        for row, scale in zip(by_scale, scales):
            known = labels(task, int(scale))[: len(key)]
            row[: len(known)] = known
        label = by_scale[at]  # [step, key]
        self.seen = key < query  # and are not the query
        sources = np.zeros(label.shape, dtype=np.bool_)
        np.put_along_axis(sources, steps.sources, True, 1)
        self.sources, self.label = sources & self.seen, label
        of_sources = np.take_along_axis(label, steps.sources, 1)
        alone = [((label == one[:, None]) & (key <= query)).sum(1) == 1 for one in of_sources.T]
        self.of_sources = np.where(np.array(alone).T, of_sources, INSIDE)  # so where another key has the same label
        self.of_query = label[np.arange(len(label)), steps.query]


class Coded:
    """The same with the codes of a relation."""

    def __init__(self, relation: Relation, keys: Keys) -> None:
        self.keys, steps = keys, keys.steps
        # [step, key, component]
        self.codes = relation.codes(steps.query[:, None], np.arange(keys.label.shape[1]), steps.scale[:, None])

    @property
    def of_source(self) -> Ints:
        """[source, component]"""
        codes = np.take_along_axis(self.codes, self.keys.steps.sources[..., None], 1)
        return codes.reshape(-1, codes.shape[-1])

    def sorts(self, code: Sequence[int]) -> Ints | None:
        """For each step the labels of the query and of a key at the code, whether those keys are its sources, and the
        sources' labels. None if more keys have the code than there are slots. [step, 3 + slot]
        """
        keys, marked = self.keys, self.keys.seen & (self.codes == code).all(-1)
        number = marked.sum(1)
        if (number > keys.steps.arity).any():
            return None
        there = np.where(number > 0, keys.label[np.arange(len(marked)), marked.argmax(1)], NOWHERE)
        return np.column_stack([keys.of_query, there, (marked == keys.sources).all(1), keys.of_sources])


def _serves(code: Sequence[int], trained: list[Coded], others: list[Coded]) -> bool:
    """Whether a code serves these steps, by sorts that all occur at the steps of training."""
    every = []
    for one in (*trained, *others):
        sorts = one.sorts(code)
        if sorts is None:
            return False
        every.append(sorts)
    rows = np.concatenate(every)
    sort = rows[:, 0].astype(np.int64) * LABELS + rows[:, 1]
    known = sort[: sum(len(one.keys.steps) for one in trained)]
    for one in np.unique(sort):
        mine = rows[sort == one]
        by_label = (mine[:, 3:] == mine[0, 3:]).all() and (mine[0, 3:] != INSIDE).all()
        if one not in known or not (mine[:, 2].all() or by_label):
            return False
    return True
