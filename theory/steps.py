"""The steps of a task's circuits at all sizes, by operator.

A *step* writes one token of an answer: its operator is applied to the tokens at its *sources*, one for each *slot*
(argument) of the operator (`lengthlens.tasks.circuit`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lengthlens.models.schemes.relation import Ints, numbered
from lengthlens.tasks import Task
from lengthlens.tasks.scale import size_of
from lengthlens.tasks.task import circuit_of
from lengthlens.values import within_memory

Bools: TypeAlias = NDArray[np.bool_]

TUPLES = 12  # random tuples of each size whose circuits are read, where sizes are tuples
MOST_SOURCES = 1_000_000  # beyond the first new operator, circuits with so many sources are read: seconds
SOURCE = 170  # bytes that each takes while codes are compared, as measured
MEMORY = 1 << 31  # bytes that all may take
FIRST_STEPS = 1 << 9  # steps of the first block, since most relations fail there; later blocks have up to …
MOST_STEPS = 1 << 12  # … so many


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

    def only(self, *slots: int) -> "Steps":
        """The same steps as if they read these slots alone."""
        return replace(self, sources=self.sources[:, slots], slot_names=tuple(self.slot_names[k] for k in slots))

    def __len__(self) -> int:
        return len(self.query)

    def __getitem__(self, some: "slice | Bools") -> "Steps":
        return replace(self, scale=self.scale[some], query=self.query[some], sources=self.sources[some])


@dataclass(frozen=True)
class Circuits:
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


def circuits_of(task: Task, train_max: int, test_max: int) -> Circuits:
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
                part = Steps(operator.name, np.full(len(query), number), query, sources, words)
                parts.setdefault(operator.name, []).append(part)
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
            some[0],
            scale=np.concatenate([part.scale for part in some]),
            query=np.concatenate([part.query for part in some]),
            sources=np.concatenate([part.sources for part in some]),
        )
        for some in parts.values()
    )
    return Circuits(steps, declared, len(parts), scale)


def up_to(steps: Steps, scale: int) -> Steps:
    """The steps of sizes up to `scale`."""
    return steps[: int(np.searchsorted(steps.size, scale, side="right"))]


def block_bounds(query: Ints, pairs: int) -> Iterator[tuple[int, int]]:
    """Blocks of queries with so many pairs of query and key, or of one query: the first, and the one after the last."""
    start, most = 0, FIRST_STEPS
    while start < len(query):
        widest = np.maximum.accumulate(query[start : start + most]) + 1
        size = max(1, int(np.searchsorted(widest * np.arange(1, len(widest) + 1), pairs)))
        yield start, min(start + size, len(query))
        start, most = start + size, min(2 * most, MOST_STEPS)
