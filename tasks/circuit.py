"""What writes an answer: the *circuit* of one size n, and the *layout*, which says the same of all sizes at once.

A circuit is a list of *steps*. Each step writes one token of the answer: its *operator*, a fixed finite function, is
applied to the tokens at earlier positions, its *sources*, one for each *slot* (argument) of the operator. In a layout
the positions are linear functions of query and n, so that statements about every length can follow from it instead of
from the lengths that were looked at.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from lengthlens.errors import UserError
from lengthlens.tasks.scale import Ints

Made = TypeVar("Made")
Arguments = ParamSpec("Arguments")
UNUSED = -1  # fills the sources of a step whose operator has fewer arguments than the widest one
REMEMBERED = 1024  # results of a function of a task, such as circuits; that of n = 10,000 has a megabyte


class Operator(NamedTuple):
    """A fixed finite function from `arity` tokens to one token. The name is its identity at all sizes."""

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
        except ValueError:  # a built-in function
            named = []
        alike = len(named) != self.arity or any(each.kind is each.VAR_POSITIONAL for each in named)
        return ("argument",) * self.arity if alike else tuple(each.name for each in named)

    @property
    def slot_words(self) -> tuple[str, ...]:
        """How messages call its slots: by name, or by number where names do not tell them apart.

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
    """All steps at one size, as arrays, so that n = 10,000 is as easy as n = 4.

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
        """The answer that the circuit writes after the prompt in `tokens`; later steps read what earlier ones wrote."""
        start, functions = int(self.query[0]) + 1, self.functions
        written = tokens[:start]
        for step in self:
            written.append(functions[step.operator].function(*(written[s] for s in step.sources)))
        return written[start:]


# -- what follows from a task, remembered with it ----------------------------------------------------------------------


class Memo(dict[Any, Callable[..., Any]]):
    """Functions of one task, each with the results that it gave last. A copy of the task has none yet."""

    def __reduce__(self) -> tuple[type["Memo"], tuple[()]]:
        return Memo, ()


def remembered(make: Callable[Concatenate[Any, Arguments], Made]) -> Callable[Concatenate[Any, Arguments], Made]:
    """A function of a task, and perhaps of a size, whose last `REMEMBERED` results are kept with the task."""

    @wraps(make)
    def known(task: Any, /, *size: Arguments.args, **named: Arguments.kwargs) -> Made:
        memo: Memo = task.memo
        if make not in memo:
            memo[make] = lru_cache(REMEMBERED)(partial(make, task))
        result: Made = memo[make](*size, **named)
        return result

    return known


# -- layouts -----------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """The position query·i + scale·n + constant, for a query at i and size n.

    >>> Line(1, -1).at(9, 4), Line(scale=2, constant=1).at(9, 4)
    (5, 9)
    """

    query: int = 0
    scale: int = 0
    constant: int = 0

    def at(self, query: Any, scale: Any) -> Any:
        """Numbers, arrays or tensors."""
        return self.query * query + self.scale * scale + self.constant


class StepRange(NamedTuple):
    """Steps of one operator at all queries from `first` to `last`, both included; none where `last` is before it."""

    operator: str
    first: Line
    last: Line
    sources: tuple[Line, ...]


@dataclass(frozen=True)
class Layout:
    """Marks, answer and steps of all instances of size `since` or more. All tokens but marks and ``$`` are symbols.

    Example: ``^ 7 3 = 7 3 $`` has its marks at 0 and n+1, and the step at i reads i−n.

    >>> copy = Layout((("^", Line()), ("=", Line(0, 1, 1))), Line(0, 1, 2), Line(0, 2, 3),
    ...     (StepRange("copy", Line(0, 1, 1), Line(0, 2, 1), (Line(1, -1),)),))
    >>> copy.reads(np.array([3, 5]), np.array([2, 2]))[1].tolist()
    [[1], [3]]
    """

    marks: tuple[tuple[str, Line], ...]  # of the prompt, each with its position
    answer: Line  # the position of the first answer token
    length: Line  # the number of tokens
    steps: tuple[StepRange, ...]  # one for each answer query
    since: int = 1  # the least n of which all this is true

    @property
    def first(self) -> Line:
        """The first answer query."""
        return self.answer._replace(constant=self.answer.constant - 1)

    @property
    def last(self) -> Line:
        """The last answer query."""
        return self.length._replace(constant=self.length.constant - 2)

    def reads(self, query: Ints, scale: Ints) -> tuple[Ints, Ints]:
        """Of steps [step]: which of `steps` each belongs to, −1 if to none; and its sources, −1 where it has fewer.

        [step] and [step, slot].
        """
        which = np.full(len(query), -1)
        sources = np.full((len(query), max(len(steps.sources) for steps in self.steps)), -1)
        for number, steps in enumerate(self.steps):
            inside = (query >= steps.first.at(query, scale)) & (query <= steps.last.at(query, scale))
            which[inside] = number
            for slot, source in enumerate(steps.sources):
                sources[inside, slot] = source.at(query, scale)[inside]
        return which, sources


def along(*marks: str, gap: int | None = None) -> tuple[tuple[str, Line], ...]:
    """``^`` at 0, the first mark after n symbols, and a second one after `gap` more, or n more if that is None.

    >>> [line.at(0, 5) for _, line in along("+", "=")], [line.at(0, 5) for _, line in along("*", "=", gap=1)]
    ([0, 6, 12], [0, 6, 8])
    """
    second = Line(0, 2, 2) if gap is None else Line(0, 1, 2 + gap)
    return (("^", Line()), *zip(marks, (Line(0, 1, 1), second)))
