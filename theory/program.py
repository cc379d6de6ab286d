"""The circuits of a task at all scales, sorted by operator: what the verdict looks at."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lengthlens.models.codes import Ints
from lengthlens.tasks import Task

MOST_SOURCES = 1_000_000  # beyond the first new operator, circuits are read until this many sources: seconds


@dataclass(frozen=True)
class Steps:
    """All steps of one operator, in the order of scale and query."""

    operator: str
    scale: Ints  # [step]
    query: Ints  # [step]
    sources: Ints  # [step, slot]
    slot_names: tuple[int, ...]  # counted from 1, as they are printed

    @property
    def arity(self) -> int:
        return int(self.sources.shape[1])

    def only(self, slot: int) -> "Steps":
        """The same steps as if they read one slot alone."""
        return replace(self, sources=self.sources[:, [slot]], slot_names=(self.slot_names[slot],))

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True)
class Program:
    """The circuits of a task at all scales up to `counted_to`, by operator.

    `counted_to` is the largest scale asked for, unless operators are still growing in number there and the circuits
    are too large to be read to the end.
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
    parts: dict[str, list[tuple[int, Ints, Ints]]] = {}
    declared, work, scale = 0, 0, task.min_scale
    for scale in range(task.min_scale, test_max + 1):
        circuit = task.circuit(scale)
        for k, operator in enumerate(circuit.operators):
            mine = circuit.operator == k
            if mine.any():
                found = scale, circuit.query[mine], circuit.sources[mine, : operator.arity]
                parts.setdefault(operator.name, []).append(found)
        work += circuit.sources.size
        if scale <= train_max:
            declared = len(parts)
        elif len(parts) > declared and work > MOST_SOURCES:
            break
    steps = tuple(merged(name, found) for name, found in parts.items())
    return Program(steps, declared, len(parts), scale)


def merged(operator: str, parts: Sequence[tuple[int, Ints, Ints]]) -> Steps:
    sources = np.concatenate([part[2] for part in parts])
    return Steps(
        operator,
        np.repeat([part[0] for part in parts], [len(part[1]) for part in parts]),
        np.concatenate([part[1] for part in parts]),
        sources,
        tuple(range(1, sources.shape[1] + 1)),
    )


def up_to(steps: Steps, scale: int) -> Steps:
    """The steps of scales up to `scale`."""
    last = int(np.searchsorted(steps.scale, scale, side="right"))
    return replace(steps, scale=steps.scale[:last], query=steps.query[:last], sources=steps.sources[:last])
