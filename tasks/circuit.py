"""A *circuit* says which operator writes each answer token, and from which earlier positions it reads."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lengthlens.errors import UserError
from lengthlens.tasks.layout import Ints

UNUSED = -1  # fills the sources of a step whose operator has fewer arguments than the widest one


class Operator(NamedTuple):
    """A fixed finite function from `arity` tokens to one token. The name is its identity across scales."""

    name: str
    arity: int
    function: Callable[..., str]

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of its arguments, as its function has them; those that are treated alike have one name.

        >>> Operator("add", 2, lambda symbol, so_far: symbol).slots, Operator("sum", 2, lambda *xs: xs[0]).slots
        (('symbol', 'so_far'), ('argument', 'argument'))
        """
        try:
            named = list(inspect.signature(self.function).parameters.values())
        except ValueError:  # one of Python's own functions
            named = []
        alike = len(named) != self.arity or any(each.kind is each.VAR_POSITIONAL for each in named)
        return ("argument",) * self.arity if alike else tuple(each.name for each in named)

    @property
    def slot_words(self) -> tuple[str, ...]:
        """How messages call its slots: by name, or, where they have none of their own, by number.

        >>> Operator("add", 2, lambda symbol, so_far: symbol).slot_words, Operator("sum", 2, max).slot_words
        (("'symbol'", "'so far'"), ('1', '2'))
        """
        names = [name.replace("_", " ") for name in self.slots]
        return tuple(f"'{name}'" if names.count(name) == 1 else str(k) for k, name in enumerate(names, 1))


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
    def of(cls, operator: Operator, query: Ints | Sequence[int], *sources: Ints | Sequence[int] | int) -> "Circuit":
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
        query = np.concatenate([part.query for part in parts])
        operator = np.concatenate([np.array([index[o.name] for o in part.operators])[part.operator] for part in parts])
        sources = np.full((len(query), max(part.sources.shape[1] for part in parts)), UNUSED)
        for part, end in zip(parts, np.cumsum([len(part) for part in parts])):
            sources[end - len(part) : end, : part.sources.shape[1]] = part.sources
        order = np.argsort(query, kind="stable")
        return cls(tuple(operators.values()), operator[order], query[order], sources[order])

    def __len__(self) -> int:
        return len(self.query)

    def __iter__(self) -> Iterator[Step]:
        for query, index, sources in zip(self.query, self.operator, self.sources):
            operator = self.operators[index]
            yield Step(int(query), operator.name, tuple(map(int, sources[: operator.arity])))

    @property
    def used(self) -> frozenset[str]:
        """The names of the operators that at least one step uses."""
        return frozenset(self.operators[k].name for k in np.unique(self.operator))

    @property
    def functions(self) -> dict[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    def run(self, tokens: list[str]) -> list[str]:
        """The answer that the circuit writes behind the prompt in `tokens`; it reads back what it wrote itself."""
        start, functions = int(self.query[0]) + 1, self.functions
        written = tokens[:start]
        for step in self:
            written.append(functions[step.operator].function(*(written[s] for s in step.sources)))
        return written[start:]
