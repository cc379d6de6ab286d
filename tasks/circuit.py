"""Circuits: which operator writes each answer token, and from which earlier positions it reads."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthlens.errors import UserError

Ints = NDArray[np.int64]
UNUSED = -1  # fills the sources of a step whose operator has fewer arguments than the widest one


class Operator(NamedTuple):
    """A fixed finite function from `arity` tokens to one token. The name is its identity across scales."""

    name: str
    arity: int
    function: Callable[..., str]


class Step(NamedTuple):
    """The token after position `query` is `operator` of the tokens at `sources`."""

    query: int
    operator: str
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Circuit:
    """All steps at one scale, kept as arrays so that a scale of ten thousand is as easy as one of four.

    Example: copying ``^ 7 3 = 7 3 $`` takes three steps of one operator.

    >>> copy = Operator("copy", 1, lambda x: "$" if x == "=" else x)
    >>> circuit = Circuit.of(copy, [3, 4, 5], [1, 2, 3])
    >>> list(circuit)[2]
    Step(query=5, operator='copy', sources=(3,))
    >>> circuit.run("^ 7 3 = 7 3 $".split())
    ['7', '3', '$']
    """

    operators: tuple[Operator, ...]
    operator: Ints  # [step], an index into `operators`
    query: Ints  # [step]
    sources: Ints  # [step, slot]

    @classmethod
    def of(cls, operator: Operator, query: ArrayLike, *sources: ArrayLike) -> "Circuit":
        """Steps of one operator: `query` [step] and one array [step] (or one number) for each of its slots."""
        if len(sources) != operator.arity:
            raise UserError(f"operator '{operator.name}' takes {operator.arity} sources, not {len(sources)}")
        query = np.asarray(query, dtype=np.int64)
        columns = np.empty((len(query), operator.arity), dtype=np.int64)
        for slot, source in enumerate(sources):
            columns[:, slot] = source
        if (columns < 0).any() or (columns > query[:, None]).any():
            raise UserError(f"operator '{operator.name}' reads outside the positions that its query can see")
        return cls((operator,), np.zeros_like(query), query, columns)

    @classmethod
    def join(cls, *parts: "Circuit") -> "Circuit":
        """One circuit with the steps of all parts, in the order of their queries."""
        operators = {operator.name: operator for part in parts for operator in part.operators}
        index = {name: k for k, name in enumerate(operators)}
        width = max(part.sources.shape[1] for part in parts)
        query = np.concatenate([part.query for part in parts])
        operator = np.concatenate(
            [np.array([index[o.name] for o in part.operators], dtype=np.int64)[part.operator] for part in parts]
        )
        sources = np.concatenate(
            [
                np.pad(part.sources, ((0, 0), (0, width - part.sources.shape[1])), constant_values=UNUSED)
                for part in parts
            ]
        )
        order = np.argsort(query, kind="stable")
        return cls(tuple(operators.values()), operator[order], query[order], sources[order])

    @cached_property
    def arity(self) -> Ints:
        """The number of sources of each step, [step]."""
        return np.array([o.arity for o in self.operators], dtype=np.int64)[self.operator]

    def __len__(self) -> int:
        return len(self.query)

    def __iter__(self) -> Iterator[Step]:
        for query, operator, sources, arity in zip(self.query, self.operator, self.sources, self.arity):
            yield Step(int(query), self.operators[operator].name, tuple(map(int, sources[:arity])))

    @property
    def used(self) -> frozenset[str]:
        """The names of the operators that at least one step uses."""
        return frozenset(self.operators[k].name for k in np.unique(self.operator))

    @property
    def functions(self) -> Mapping[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    def run(self, tokens: list[str]) -> list[str]:
        """The answer that the circuit writes behind the prompt in `tokens`; it reads back what it wrote itself."""
        written = list(tokens[: int(self.query[0]) + 1])
        for step in self:
            written.append(self.functions[step.operator].function(*(written[s] for s in step.sources)))
        return written[int(self.query[0]) + 1 :]
