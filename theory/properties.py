"""The three properties that the verdict rests on: isolated, stable, covered.

Everything here is exhaustive and exact up to the largest n: every step of the circuit, every key that its query sees.
Steps are looked at in the order of size and query, and a property is left alone once it has its counterexample, so that
it is a small one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lengthlens.models.schemes.relation import Ints, Relation, numbered
from lengthlens.theory.steps import MOST_SOURCES, Bools, Steps, block_bounds

BLOCK = 1 << 16  # pairs of query and key compared together: few enough to stay in the processor's cache


class Mark(NamedTuple):
    """Key `key` seen from query `query` at size `scale`, and the slots it fills there: none if it is not read."""

    scale: int
    query: int
    key: int
    slots: tuple[str, ...]


@dataclass(frozen=True)
class Counterexample:
    """Why a property does not hold.

    isolated: two marks of one step with the same code, the first of which is read.
    stable: two marks of two steps with the same code, which fill different slots.
    covered: the sources of one step beyond the training range, whose codes do not occur together within it; `codes`
    has one code for each, and `fresh` says which of them (counted from 0) do not occur there in their slot at all.

    `component` is set where the relation is one component of a scheme's codes.
    """

    operator: str
    codes: tuple[tuple[int, ...], ...]
    marks: tuple[Mark, ...]
    fresh: tuple[int, ...] = ()
    words: tuple[str, ...] = ()  # the codes as the scheme describes them
    component: int | None = None


@dataclass(frozen=True)
class Findings:
    """What a relation makes of a program: None stands for a property that holds."""

    isolated: Counterexample | None
    stable: Counterexample | None
    covered: Counterexample | None
    src_train: int
    src_test: int

    @property
    def failures(self) -> int:
        """How many of the three properties do not hold."""
        return sum(example is not None for example in (self.isolated, self.stable, self.covered))

    @property
    def possible(self) -> bool:
        return self.failures == 0

    def worded(self, relation: Relation) -> "Findings":
        """The same with its counterexamples in the words of a relation, which has these codes."""

        def in_words(example: Counterexample | None) -> Counterexample | None:
            if example is None:
                return None
            words = tuple(map(relation.describe, example.codes))
            return replace(example, words=words, component=relation.component)

        isolated, stable, covered = map(in_words, (self.isolated, self.stable, self.covered))
        return replace(self, isolated=isolated, stable=stable, covered=covered)


def examine(relation: Relation, operators: Sequence[Steps], train_max: int) -> Findings:
    """What the definitions say of a relation, with a counterexample for each property that does not hold."""
    sources = source_codes(relation, operators)

    def first(example: Callable[[SourceCodes], Counterexample | None]) -> Counterexample | None:
        return next(filter(None, map(example, sources)), None)

    covered = first(lambda each: each.uncovered(train_max))
    isolated, stable = first(SourceCodes.sources_alike), first(SourceCodes.sources_swapped)
    for each in sources:
        few = each.names_few(relation)
        pairs = np.zeros_like(each.steps.query) if few else each.steps.query
        for start, stop in block_bounds(pairs, BLOCK) if each.steps.arity else ():
            if isolated and stable:
                break
            alike, unread = each.among_keys(relation, start, stop, few)
            isolated, stable = isolated or alike, stable or unread
    src = counts([each.signature for each in sources], operators, train_max)
    return Findings(isolated, stable, covered, *src).worded(relation)


def counts(signatures: Sequence[Ints], operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of distinct signatures up to `train_max`, and of all."""
    train = [len(np.unique(each[steps.size <= train_max])) for each, steps in zip(signatures, operators)]
    return sum(train), sum(len(np.unique(each)) for each in signatures)


class SourceCodes:
    """The codes of the sources of one operator under a relation."""

    def __init__(self, steps: Steps, codes: Ints) -> None:
        """`codes` [step, slot, component]"""
        self.steps = steps
        self.codes, which = numbered(codes.reshape(-1, codes.shape[-1]))  # [code, component]
        self.code = which.reshape(steps.sources.shape)  # [step, slot], an index into `codes`
        self.signature = numbered(self.code)[1]  # [step]

    @cached_property
    def marked_by(self) -> tuple[Ints, Ints]:
        """The first and the last step at which each code marks a source. [code] each"""
        step = np.repeat(np.arange(len(self.steps)), self.steps.arity)
        first, last = np.full(len(self.codes), len(self.steps)), np.full(len(self.codes), -1)
        np.minimum.at(first, self.code.ravel(), step)
        np.maximum.at(last, self.code.ravel(), step)
        return first, last

    def mark(self, step: int, key: int) -> Mark:
        steps = self.steps
        slots = tuple(steps.slot_names[k] for k in np.flatnonzero(steps.sources[step] == key))
        return Mark(int(steps.scale[step]), int(steps.query[step]), int(key), slots)

    def example(self, code: int, *places: tuple[int, int]) -> Counterexample:
        """A code, as an index into `codes`, at each (step, key)."""
        marks = tuple(self.mark(*place) for place in places)
        return Counterexample(self.steps.operator, (tuple(self.codes[code].tolist()),), marks)

    def uncovered(self, train_max: int) -> Counterexample | None:
        """The first step whose signature does not occur in the training range."""
        seen = self.steps.size <= train_max
        new = ~np.isin(self.signature, self.signature[seen])
        if not new.any():
            return None
        step = int(new.argmax())
        codes = tuple(map(tuple, self.codes[self.code[step]].tolist()))
        marks = tuple(self.mark(step, key) for key in self.steps.sources[step])
        fresh = tuple(k for k, code in enumerate(self.code[step]) if code not in self.code[seen, k])
        return Counterexample(self.steps.operator, codes, marks, fresh)

    def sources_alike(self) -> Counterexample | None:
        """Two sources of one step with the same code."""
        alike = (self.code[:, :, None] == self.code[:, None, :]) & ~self.steps.same_key
        steps = alike.any((1, 2))
        if not steps.any():
            return None
        step = int(steps.argmax())
        slots = np.argwhere(alike[step])[0]
        return self.example(self.code[step, slots[0]], *((step, self.steps.sources[step, k]) for k in slots))

    def sources_swapped(self) -> Counterexample | None:
        """A code that marks different slots at two steps."""
        code, role = self.code.ravel(), self.steps.role.ravel()
        entry = np.unique(code, return_index=True)[1]  # the first entry of each code
        first, last = self.marked_by
        swapped = (role != role[entry][code]) & (first != last)[code]
        if not swapped.any():
            return None
        at = int(swapped.argmax())
        mine = np.flatnonzero(code == code[at])  # entries are counted through steps and slots
        step, key = np.arange(len(code)) // self.steps.arity, self.steps.sources.ravel()
        # Any entry of another step differs in role from this one or from the first.
        for here in (at, int(mine[0])):
            differs = (role[mine] != role[here]) & (step[mine] != step[here])
            if differs.any():
                there = int(mine[differs.argmax()])
                return self.example(code[at], *((step[k], key[k]) for k in sorted((here, there))))
        return None

    def names_few(self, relation: Relation) -> bool:
        """Whether only keys that the relation lists can have the code of a source: no source has the background's."""
        return relation.listed is not None and not (self.codes == relation.background).all(1).any()

    def among_keys(
        self, relation: Relation, start: int, stop: int, few: bool
    ) -> tuple[Counterexample | None, Counterexample | None]:
        """At steps from `start` to before `stop`: the first key with the code of a source of that step, and the first
        key that is not read and has the code of a source of another step. With `few`, of keys that are listed alone."""
        steps = self.steps[start:stop]
        keys = np.arange(int(steps.query.max()) + 1)[None]  # [1 or step, key]
        if few and relation.listed is not None:
            keys = np.sort(relation.listed(steps.query, steps.scale), axis=1)
        row, column = np.nonzero((keys >= 0) & (keys <= steps.query[:, None]))
        key = np.broadcast_to(keys, (len(steps), keys.shape[1]))[row, column]
        codes = relation.codes(steps.query[row], key, steps.scale[row])  # [pair, component]
        known = len(self.codes)
        class_of = numbered(np.concatenate([self.codes, codes]))[1]
        code_of = np.full(class_of.max() + 1, -1)
        code_of[class_of[:known]] = np.arange(known)
        code = code_of[class_of[known:]]
        step, key, code = row[code >= 0] + start, key[code >= 0], code[code >= 0]  # [pair]
        other: Bools = self.steps.sources[step] != key[:, None]  # [pair, slot]
        alike = ((self.code[step] == code[:, None]) & other).any(1)
        first, last = self.marked_by
        unread = other.all(1) & ((first[code] != step) | (last[code] != step))
        examples: list[Counterexample | None] = []
        for wrong, same_step in ((alike, True), (unread, False)):
            k = int(wrong.argmax()) if wrong.any() else None
            if k is None:
                examples.append(None)
                continue
            slots = (self.code == code[k]) & ((np.arange(len(self.steps)) == step[k]) == same_step)[:, None]
            read, slot = np.argwhere(slots)[0]  # the first source with that code, of this step or of another one
            examples.append(self.example(code[k], (read, self.steps.sources[read, slot]), (step[k], key[k])))
        return examples[0], examples[1]


def source_codes(relation: Relation, operators: Sequence[Steps]) -> list[SourceCodes]:
    """The codes of all sources of each operator."""
    parts = np.split(codes_of(relation, operators), np.cumsum([steps.sources.size for steps in operators])[:-1])
    return [SourceCodes(steps, part.reshape(*steps.sources.shape, -1)) for part, steps in zip(parts, operators)]


def codes_of(relation: Relation, operators: Sequence[Steps]) -> Ints:
    """The codes of all sources, operator by operator; computed for each size, or all at once if few.

    [source, component]
    """
    scale = np.concatenate([np.repeat(steps.scale, steps.arity) for steps in operators])
    query = np.concatenate([np.repeat(steps.query, steps.arity) for steps in operators])
    key = np.concatenate([steps.sources.ravel() for steps in operators])
    if not len(key):
        return np.zeros((0, 1), dtype=np.int64)
    if len(key) <= MOST_SOURCES:
        return relation.codes(query, key, scale)
    order = np.argsort(scale, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scale[order]) != 0, True)) + 1
    parts = [relation.codes(query[part], key[part], scale[part[0]]) for part in np.split(order, ends[:-1])]
    return np.concatenate(parts)[np.argsort(order)]
