"""Where the steps of a task stand and what they read, at every scale at once: linear functions of query and scale.

A circuit says it for one scale. A *layout* says it for all of them, so that statements about every length can follow
from it instead of from the lengths that were looked at.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Line(NamedTuple):
    """The position query·i + scale·n + constant.

    >>> Line(1, -1).at(9, 4), Line(scale=2, constant=1).at(9, 4)
    (5, 9)
    """

    query: int = 0
    scale: int = 0
    constant: int = 0

    def at(self, query: Any, scale: Any) -> Any:
        """Numbers, arrays or tensors."""
        return self.query * query + self.scale * scale + self.constant

    def after(self, first: "Line") -> "Line":
        """This line, as seen from the position that `first` gives as its query."""
        return Line(self.query * first.query, self.query * first.scale + self.scale, self.at(first.constant, 0))


class Stretch(NamedTuple):
    """Steps of one operator at all queries from `first` to `last`, both included; none where `last` is before it."""

    operator: str
    first: Line
    last: Line
    sources: tuple[Line, ...]


@dataclass(frozen=True)
class Layout:
    """Marks, answer and steps of all instances of scale `since` or more. All tokens but marks and ``$`` are symbols.

    Example: ``^ 7 3 = 7 3 $`` has its marks at 0 and n+1, and the step at i reads i−n.

    >>> copy = Layout((("^", Line()), ("=", Line(0, 1, 1))), Line(0, 1, 2), Line(0, 2, 3),
    ...     (Stretch("copy", Line(0, 1, 1), Line(0, 2, 1), (Line(1, -1),)),))
    >>> copy.reads(np.array([3, 5]), np.array([2, 2]))[1].tolist()
    [[1], [3]]
    """

    marks: tuple[tuple[str, Line], ...]  # of the prompt, each with its position
    answer: Line  # the position of the first answer token
    length: Line  # the number of tokens
    steps: tuple[Stretch, ...]  # one for each answer query
    since: int = 1  # the least scale of which all this is true

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
        sources = np.full((len(query), max(len(stretch.sources) for stretch in self.steps)), -1)
        for number, stretch in enumerate(self.steps):
            inside = (query >= stretch.first.at(query, scale)) & (query <= stretch.last.at(query, scale))
            which[inside] = number
            for slot, source in enumerate(stretch.sources):
                sources[inside, slot] = source.at(query, scale)[inside]
        return which, sources


def along(*marks: str, gap: int | None = None) -> tuple[tuple[str, Line], ...]:
    """``^`` at 0, the first mark behind n symbols, and a second one behind `gap` more, or n more if that is None.

    >>> [line.at(0, 5) for _, line in along("+", "=")], [line.at(0, 5) for _, line in along("*", "=", gap=1)]
    ([0, 6, 12], [0, 6, 8])
    """
    second = Line(0, 2, 2) if gap is None else Line(0, 1, 2 + gap)
    return (("^", Line()), *zip(marks, (Line(0, 1, 1), second)))
