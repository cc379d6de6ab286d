"""Sources that a step finds by one code and, where that fails, by content.

The three properties (`theory/properties.py`) ask of the codes alone that they single out every source. Networks need
less: they know a mark (``=``, ``^``, ``+``) by its token, and the symbols right behind it by a look at their neighbour.

We define the *label* of a key: the last mark before it and the distance d from it, if d ≤ 2 (0 for the mark itself);
`INSIDE` for all others. A slot is *served by one code κ* if, at every step, the key that has the code κ is the source,
or its label (or that there is no such key) says which label the source has instead:

- at no step do two keys have the code κ;
- steps are sorted by the label of the key at κ and that of the query; within each sort either that key is the source
  of all, or one and the same label is that of the source of all, and of no other key;
- each sort already comes up in the training range.

The query itself does not count as a key: its token is known without attention. Slots in which the operator's arguments
may be exchanged (both digits of a column that is added) may share a code: then the keys at κ together have to be the
sources of these slots. Steps at which a slot makes no difference do not count for it: where a sum has come to its
end, which digits would be next is all the same.

Worked example: ``shift``, ``^ 7 3 5 = 3 5 7 $``, under clip(i−j−n, ±12). κ = −1 is the source until the key there is
``=``, and then the source is the one right behind ``^``; and when it is the first behind ``=``, the source is ``=``.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from lengthlens.models.schemes.relation import Code, Ints, Relation
from lengthlens.tasks import Operator, Task
from lengthlens.theory.steps import Bools, Steps

BEHIND = 2  # how far behind a mark a symbol is still known by it
INSIDE, NOWHERE = -1, -2  # labels of a key with no mark near, and of a key that is not there
OWN: Code = ()  # stands for a source that is the query itself, for which no code is needed
LABELS = 1 << 20  # more than there are
TRIALS = 200  # random arguments on which slots must be alike
MOST_CODES = 6  # that are tried, the most frequent first


def labels(task: Task, scale: int) -> Ints:
    """The label of each position, as a number. [pos]

    >>> from lengthlens.tasks import TASKS
    >>> labels(TASKS["copy"], 4).tolist()  # ^ 1 2 3 4 = 1 2 3 4 $
    [33, 34, 35, -1, -1, 30, 31, 32, -1, -1, 36]
    """
    marks = _marks(task, scale)
    place = np.arange(len(marks))
    last = np.maximum.accumulate(np.where(marks == INSIDE, 0, place))
    behind = place - last
    return np.where(behind <= BEHIND, (1 + BEHIND) * marks[last] + behind, INSIDE)


def alike_slots(operator: Operator, symbols: Sequence[str]) -> list[list[int]]:
    """The slots of an operator, those that may be exchanged together.

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


def needed(steps: Steps, slots: Sequence[int], operator: Operator, task: Task) -> Bools:
    """At which steps the tokens in these slots make a difference, by trying, with marks where they are. [step]"""
    marks = np.concatenate([_marks(task, int(n))[steps.sources[steps.scale == n]] for n in np.unique(steps.scale)])
    patterns, which = np.unique(marks, axis=0, return_inverse=True)  # [pattern, slot]
    return np.array([_differs(row, slots, operator, task) for row in patterns.tolist()])[which.ravel()]


def _marks(task: Task, scale: int) -> Ints:
    """The id of each token that is a mark, `INSIDE` for symbols. [pos]"""
    tokens = task.sample(scale, 1, torch.Generator().manual_seed(0)).tokens[0].numpy()
    return np.where(tokens >= len(task.symbols), tokens, INSIDE)


def _differs(pattern: list[int], slots: Sequence[int], operator: Operator, task: Task) -> bool:
    rng = np.random.default_rng(0)
    for drawn in rng.choice(list(task.symbols), size=(TRIALS, operator.arity)).tolist():
        one = [symbol if mark == INSIDE else task.vocab[mark] for symbol, mark in zip(drawn, pattern)]
        other = [str(rng.choice(list(task.symbols))) if k in slots else token for k, token in enumerate(one)]
        if operator.function(*one) != operator.function(*other):
            return True
    return False


def serving_code(relation: Relation, steps: Steps, task: Task, train_max: int) -> Code | None:
    """A code by which these slots are served together, or `OWN`; None if none of the most frequent ones does it.

    >>> from lengthlens.tasks import TASKS
    >>> from lengthlens.theory.steps import program_of
    >>> anchored = Relation(lambda i, j, n: (i - j - n).clamp(-12, 12), "clip(i−j−n, ±12)")
    >>> steps, = program_of(TASKS["shift"], 10, 20).operators
    >>> serving_code(anchored, steps, TASKS["shift"], 10)
    (-1,)
    """
    if (steps.sources == steps.query[:, None]).all():
        return OWN
    ends = [*np.flatnonzero(np.diff(steps.scale)) + 1, len(steps)]
    scales = [_Scale(relation, steps[a:b], task) for a, b in zip([0, *ends], ends)]
    trained = [one for one in scales if one.scale <= train_max]
    codes, number = np.unique(np.concatenate([one.of_source for one in trained]), axis=0, return_counts=True)
    for code in codes[np.argsort(-number, kind="stable")][:MOST_CODES]:
        if _serves(code, trained, trained) and _serves(code, scales, trained):  # most fail within the range
            return tuple(map(int, code))
    return None


class _Scale:
    """The steps of one scale, with the codes and labels of all keys."""

    def __init__(self, relation: Relation, steps: Steps, task: Task) -> None:
        self.relation, self.steps, self.task, self.scale = relation, steps, task, int(steps.scale[0])

    @cached_property
    def codes(self) -> Ints:
        """[step, key, component]"""
        key = np.arange(int(self.steps.query.max()) + 1)
        return self.relation.codes(self.steps.query[:, None], key, self.scale)

    @property
    def of_source(self) -> Ints:
        """[source, component]"""
        found = np.take_along_axis(self.codes, self.steps.sources[..., None], 1)
        return found.reshape(-1, found.shape[-1])

    @cached_property
    def wanted(self) -> tuple[Bools, Bools, Ints, Ints]:
        """Which keys are seen and are not the query, which are sources; labels of all keys, and those of the sources.

        The last are `INSIDE` where another key has the same label. [step, key], [step, key], [key], [step, slot]
        """
        query, key = self.steps.query[:, None], np.arange(self.codes.shape[1])
        sources = np.zeros(self.codes.shape[:2], dtype=np.bool_)
        np.put_along_axis(sources, self.steps.sources, True, 1)
        label = labels(self.task, self.scale)[: len(key)]
        of_sources = label[self.steps.sources]
        alone = ((label == of_sources[..., None]) & (key <= query)[:, None]).sum(2) == 1
        return key < query, sources & (key < query), label, np.where(alone, of_sources, INSIDE)

    def sorts(self, code: Ints) -> Ints | None:
        """For each step the labels of the query and of a key at the code, whether those keys are its sources, and the
        sources' labels. None if more keys have the code than there are slots. [step, 3 + slot]
        """
        seen, sources, label, of_sources = self.wanted
        marked = (self.codes == code).all(2) & seen
        if (marked.sum(1) > self.steps.arity).any():
            return None
        there = np.where(marked.any(1), label[marked.argmax(1)], NOWHERE)
        return np.column_stack([label[self.steps.query], there, (marked == sources).all(1), of_sources])


def _serves(code: Ints, scales: list[_Scale], trained: list[_Scale]) -> bool:
    """Whether a code serves the steps of these scales, by sorts that all come up at those of training."""
    every = [one.sorts(code) for one in scales]
    if any(sorts is None for sorts in every):
        return False
    rows = np.concatenate([sorts for sorts in every if sorts is not None])
    sort = rows[:, 0] * LABELS + rows[:, 1]
    known = sort[: sum(len(one.steps) for one in trained)]  # scales come in order
    for one in np.unique(sort):
        mine = rows[sort == one]
        by_label = (mine[:, 3:] == mine[0, 3:]).all() and (mine[0, 3:] != INSIDE).all()
        if one not in known or not (mine[:, 2].all() or by_label):
            return False
    return True
