"""The steps of a task's circuits at all sizes, by operator, and the codes that a relation gives their sources."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lengthlens.models.schemes.relation import Ints, Relation, numbered
from lengthlens.tasks import Task
from lengthlens.tasks.scale import size_of
from lengthlens.tasks.task import circuit_of
from lengthlens.values import within_memory

Bools: TypeAlias = NDArray[np.bool_]

TUPLES = 12  # random tuples of each size whose circuits are read, where sizes are tuples
MOST_SOURCES = 1_000_000  # beyond the first new operator, circuits with so many sources are read: seconds
SOURCE = 170  # bytes that each takes while codes are compared, as measured
MEMORY = 1 << 31  # bytes that all may take
MOST_ROWS = 1 << 12  # queries of a block


@dataclass(frozen=True)
class Steps:
    """All steps of one operator, in the order of size and query."""

    operator: str
    scale: Ints  # [step], the number of a tuple where the task has tuples
    query: Ints  # [step]
    sources: Ints  # [step, slot]
    slot_names: tuple[str, ...]  # as they are printed

    @property
    def size(self) -> Ints:
        """n, or the largest length of a tuple. [step], in order"""
        return np.asarray(size_of(self.scale))

    @property
    def arity(self) -> int:
        return int(self.sources.shape[1])

    @cached_property
    def same_key(self) -> Bools:
        """Which slots the source of a slot fills, that slot included. [step, slot, slot]"""
        return np.asarray(self.sources[:, :, None] == self.sources[:, None, :])

    @cached_property
    def role(self) -> Ints:
        """The set of slots that a source fills, as a number. [step, slot]"""
        return numbered(self.same_key.reshape(-1, self.arity).astype(np.int64))[1].reshape(self.sources.shape)

    @cached_property
    def keys_read(self) -> Ints:
        """The number of different keys that each step reads. [step]"""
        again = np.tril(self.same_key, -1).any(2)
        return np.asarray(self.arity - again.sum(1))

    def only(self, *slots: int) -> "Steps":
        """The same steps as if they read these slots alone."""
        return replace(self, sources=self.sources[:, slots], slot_names=tuple(self.slot_names[k] for k in slots))

    def __len__(self) -> int:
        return len(self.query)

    def __getitem__(self, some: "slice | Bools") -> "Steps":
        return replace(self, scale=self.scale[some], query=self.query[some], sources=self.sources[some])


@dataclass(frozen=True)
class Program:
    """The circuits of a task at all sizes up to `counted_to`, by operator.

    `counted_to` is `test_max`, unless the number of operators still grows there and the circuits are too large to be
    read to the end.
    """

    operators: tuple[Steps, ...]
    declared_train: int
    declared_test: int
    counted_to: int

    @property
    def grows(self) -> bool:
        return self.declared_test > self.declared_train


def program_of(task: Task, train_max: int, test_max: int) -> Program:
    """Read the circuits of a task whose sources follow from positions."""
    parts: dict[str, list[Steps]] = {}
    declared, work, scale = 0, 0, task.min_scale
    for number in task.scales_up_to(test_max, TUPLES, torch.Generator().manual_seed(0)):
        circuit, scale = circuit_of(task, number), size_of(number)
        for k, operator in enumerate(circuit.operators):
            mine = circuit.operator == k
            if mine.any():
                query, sources = circuit.query[mine], circuit.sources[mine, : operator.arity]
                words = () if operator.name in parts else operator.slot_words  # the first part has them
                found = Steps(operator.name, np.full(len(query), number), query, sources, words)
                parts.setdefault(operator.name, []).append(found)
        work += circuit.sources.size
        if scale <= train_max:
            declared = len(parts)
        elif len(parts) > declared and work > MOST_SOURCES:
            break
        if work > MOST_SOURCES:  # circuits grow with n, so that all of them grow with its square
            total = work * (test_max / scale) ** 2
            within_memory(total * SOURCE, f"the circuits of '{task.name}' up to n = {test_max}", MEMORY)
    steps = tuple(
        replace(
            own[0],
            scale=np.concatenate([part.scale for part in own]),
            query=np.concatenate([part.query for part in own]),
            sources=np.concatenate([part.sources for part in own]),
        )
        for own in parts.values()
    )
    return Program(steps, declared, len(parts), scale)


def up_to(steps: Steps, scale: int) -> Steps:
    """The steps of sizes up to `scale`."""
    return steps[: int(np.searchsorted(steps.size, scale, side="right"))]


def block_bounds(query: Ints, pairs: int) -> Iterator[tuple[int, int]]:
    """Blocks of queries with so many pairs of query and key, or of one query: the first, and the one after the last."""
    start = 0
    while start < len(query):
        widest = np.maximum.accumulate(query[start : start + MOST_ROWS]) + 1
        size = max(1, int(np.searchsorted(widest * np.arange(1, len(widest) + 1), pairs)))
        yield start, min(start + size, len(query))
        start += size


def hashed(codes: Ints, factors: Ints) -> Ints:
    """[*, component] to [*], by a factor for each component; sums wrap around, and may."""
    total = codes[..., 0] * factors[0]
    for k in range(1, codes.shape[-1]):
        total += codes[..., k] * factors[k]
    return np.asarray(total)


class Hash:
    """Codes as single numbers, different for all codes given: what differs in hash is a different code."""

    def __init__(self, codes: Ints) -> None:
        """`codes` [code, component], all different."""
        self.codes = codes
        rng = np.random.default_rng(0)
        self.factors: Ints = rng.integers(-(2**62), 2**62, size=(codes.shape[1],)) | 1
        while len(np.unique(self(codes))) < len(codes):
            self.factors = rng.integers(-(2**62), 2**62, size=(codes.shape[1],)) | 1
        self.of_codes = self(codes)  # [code]
        self.order = np.argsort(self.of_codes)
        self.sorted = self.of_codes[self.order]

    def __call__(self, codes: Ints) -> Ints:
        return hashed(codes, self.factors)

    def known(self, hashes: Ints) -> Bools:
        """Which hashes belong to the codes."""
        return np.asarray(self.sorted[self.place(hashes)] == hashes)

    def place(self, hashes: Ints) -> Ints:
        return np.minimum(np.searchsorted(self.sorted, hashes), len(self.sorted) - 1)

    def index(self, codes: Ints) -> Ints:
        """Which of the codes each row of `codes` [row, component] is, or −1."""
        index = self.order[self.place(self(codes))]
        return np.where((self.codes[index] == codes).all(1), index, -1)


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

    @cached_property
    def hash(self) -> Hash:
        return Hash(self.codes)

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


def source_codes(relation: Relation, operators: Sequence[Steps]) -> list[SourceCodes]:
    """The codes of all sources of each operator."""
    each = np.split(codes_of(relation, operators), np.cumsum([steps.sources.size for steps in operators])[:-1])
    return [SourceCodes(steps, own.reshape(*steps.sources.shape, -1)) for own, steps in zip(each, operators)]


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
    found = [relation.codes(query[part], key[part], scale[part[0]]) for part in np.split(order, ends[:-1])]
    codes = np.empty((len(key), found[0].shape[-1]), dtype=np.int64)
    codes[order] = np.concatenate(found)
    return codes
