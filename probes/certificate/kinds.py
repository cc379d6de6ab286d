"""Which kinds of steps there are at all scales, computed from linear forms; nothing is concluded from scales looked at.

The keys that a query i names at scale n, what those name in turn, marks, sources and borders all stand on *lines*
α·i + γ·n + δ. What a network of one or two layers can tell of positions at a query is how its lines lie: which are
where keys exist, and which coincide. That is the sign of every difference of two of them, again a line (`Cuts`). Two
steps with the same signs are of the same *kind*.

At one scale the cuts are points r = −(γ·n+δ)/α on the axis of queries; one with α = 0 is a *wall* at a scale. As n
grows they move with speeds −γ/α. Let A, the *period*, be the least number that makes A·γ/α whole for all of them. Then:

    A kind of step that occurs at scale n occurs at n−A, too, and at n+A, unless in between a wall is passed, or at n
    the cut just below (or at) the step has another of another speed within 1 + A·|difference of speeds|.

For if there is none, moving the step along with that cut to n±A meets no other: those of the same speed move along,
all others are too far away, and their sides stay. The cut moves by a whole number, so the step stays at a whole
position, as near above the cut as before. So what is new, or ends, at a scale shows right beside cuts that are about to
meet. There are finitely many of such meetings, all below the *settled* scale; `Cuts.witnesses` lists them. The least
and the greatest position of a kind are among them: behind one of a cut, before the next, or moving along.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lengthlens.errors import UserError
from lengthlens.tasks.circuit import Layout, Line
from lengthlens.tasks.scale import Ints

MOST_PERIOD = 1000  # of scales after which kinds of steps repeat; forms with factors of 1 to 4 have 12 or less
MOST_WITNESSES = 3_000_000  # positions to look at: some seconds
BESIDE = np.array([-1, 0, 1])  # a cut itself if it is whole, and the whole positions next to it, seen from its floor


class Witnesses(NamedTuple):
    """Steps among which is every kind that there is at a scale up to `limit`, at its least and its last position."""

    query: Ints  # [step]
    scale: Ints  # [step]
    top: int  # kinds found at this scale or above are found at all larger ones; all others end where they end here


class Cuts:
    """Where, along queries from `first` to `last` and along scales, one kind of step may give way to another."""

    def __init__(self, places: Iterable[Line], first: Line, last: Line) -> None:
        """`places` are all lines on which something stands: keys, marks, borders. Scales count from 1."""
        if not 0 <= first.scale <= last.scale:
            raise UserError("queries must move on with the scale for kinds of steps to settle")
        self.first, self.last = first, last
        own = Line(1)
        distinct = np.array(sorted({*places, own, first, last}))  # [place, 3]
        differences = (distinct[:, None] - distinct).reshape(-1, 3)
        lines = _normal(differences)
        self.lines: Ints = lines[lines[:, 0] > 0]  # [cut, 3]
        self.walls: Ints = lines[(lines[:, 0] == 0) & (lines[:, 1] > 0)]  # [wall, 3]
        self.period = math.lcm(*(int(a // math.gcd(a, c)) for a, c, _ in self.lines.tolist()))
        if self.period > MOST_PERIOD:
            raise UserError(
                f"kinds of steps repeat only every {self.period} scales, for the factors of i in the forms: "
                f"where that is more than {MOST_PERIOD} nothing is said about long instances"
            )

    def meetings(self, start: int, limit: int | None = None) -> tuple[Ints, Ints]:
        """Cuts, by number, and scales from `start` on at which another cut is about to meet them. [meeting] each"""
        cuts, scales, total = [], [], 0
        for number in range(len(self.lines)):
            low, high = self._near(number)
            low, high = np.maximum(low, start), high if limit is None else np.minimum(high, limit)
            found = _members(low[low <= high], high[low <= high])
            total += len(found)
            if total * len(BESIDE) > MOST_WITNESSES:
                raise UserError(f"kinds of steps change at more than {MOST_WITNESSES} places: too many to look at")
            cuts.append(np.full(len(found), number))
            scales.append(found)
        return np.concatenate(cuts), np.concatenate(scales)

    def _near(self, number: int) -> tuple[Ints, Ints]:
        """Of each cut that may meet this one among the queries, the first and last scale where it is near. [other]"""
        a, c, d = self.lines[number]
        others = self.lines
        # r − r' = (speed·n + offset) / (a·a'), to be compared with 1 + period·|speed| / (a·a')
        speed, offset = others[:, 1] * a - c * others[:, 0], others[:, 2] * a - d * others[:, 0]
        others, offset, speed = others[speed != 0], offset[speed != 0], speed[speed != 0]
        reach = a * others[:, 0] + np.abs(speed) * self.period
        offset, speed = offset * np.sign(speed), np.abs(speed)
        low, high = -((offset + reach) // speed), (reach - offset) // speed
        here = self._among(self.lines[number : number + 1], low, high, slack=2)
        there = self._among(others, low - self.period, high + self.period, slack=0)
        return low[here & there], high[here & there]

    def _among(self, lines: Ints, low: Ints, high: Ints, slack: int) -> Ints:
        """Whether cuts are among the queries, or not farther than `slack`, at some scale from `low` to `high`."""
        below, above = [], []
        for n in (low, high):  # both are linear in n: if they hold at both ends they hold between
            at = -(lines[:, 1] * n + lines[:, 2])  # a·r
            below.append(at < lines[:, 0] * (self.first.at(0, n) - slack))
            above.append(at > lines[:, 0] * (self.last.at(0, n) + slack))
        found: Ints = ~((below[0] & below[1]) | (above[0] & above[1]))
        return found

    def wall_scales(self, start: int, limit: int | None = None) -> Ints:
        """Scales from `start` on that a step may not move to, or from, without passing a wall."""
        _, c, d = self.walls.T
        low, high = -(d // c) - self.period, -(d // c) + self.period  # the wall is at −d/c, rounded up here
        low, high = np.maximum(low - 1, start), high if limit is None else np.minimum(high, limit)
        return _members(low[low <= high], high[low <= high])

    def changes(self, start: int) -> Ints:
        """All scales from `start` on at which there may be kinds of steps that are not there a period before, or after.

        At any n from `start` + period on that is not among them, the kinds of steps are those of n − period.
        """
        found: Ints = np.union1d(self.meetings(start)[1], self.wall_scales(start))
        return found

    def beside(self, cut: Ints, scale: Ints) -> tuple[Ints, Ints]:
        """The whole positions at and beside cuts at scales, [n] both: queries and scales, each once. [step] both"""
        a, c, d = self.lines[cut].T
        query = (-(c * scale + d)) // a
        query, scale = (query[:, None] + BESIDE).ravel(), np.repeat(scale, len(BESIDE))
        inside = (query >= self.first.at(0, scale)) & (query <= self.last.at(0, scale))
        query, scale = query[inside], scale[inside]
        order = np.lexsort((query, scale))
        query, scale = query[order], scale[order]
        new = np.append(True, (np.diff(query) != 0) | (np.diff(scale) != 0))[: len(query)]
        return query[new], scale[new]

    def slices(self, scales: Ints) -> tuple[Ints, Ints]:
        """Steps among which all kinds are that there are at these scales. [step] both"""
        cut = np.tile(np.arange(len(self.lines)), len(scales))
        return self.beside(cut, np.repeat(scales, len(self.lines)))

    def witnesses(self, start: int, limit: int) -> Witnesses:
        """Steps of scales from `start` to `limit` among which every kind is, where it begins and where it ends."""
        cut, scale = self.meetings(start, limit)
        walls = self.wall_scales(start, limit)
        settled = 1 + max(scale.max(initial=start), walls.max(initial=start))
        end = limit - self.period + 1
        top = int(max(start, min(settled, end)))
        ends = np.add.outer([start, top, end], np.arange(self.period))
        whole = np.union1d(walls, ends[(ends >= start) & (ends <= limit)])
        parts = self.beside(cut, scale), self.slices(whole)
        query, scale = (np.concatenate(each) for each in zip(*parts))
        return Witnesses(query, scale, top)


def named_places(layout: Layout, named: Sequence[Line], layers: int) -> set[Line]:
    """All lines that decide what `layers` of attention see of positions from a query: keys, keys of keys, borders."""
    marks = {line for _, line in layout.marks}
    seen = {Line(1), Line()}  # the query, and the first key: none is before it
    for _ in range(layers):
        seen |= marks | {line.after(place) for line, place in itertools.product(named, seen)}
    borders = {layout.answer, *(line for stretch in layout.steps for line in (stretch.first, stretch.last))}
    return seen | borders | {source for stretch in layout.steps for source in stretch.sources}


def _normal(lines: Ints) -> Ints:
    """Lines by their sign alone: without a common factor, the first factor positive, each once. [line, 3]"""
    lines = lines[lines[:, :2].any(1)]
    lines = lines // np.gcd.reduce(lines, axis=1)[:, None]
    leading = np.where(lines[:, 0] != 0, lines[:, 0], lines[:, 1])
    return np.unique(lines * np.sign(leading)[:, None], axis=0)


def _members(low: Ints, high: Ints) -> Ints:
    """All whole numbers in at least one of the ranges from `low` to `high`, both included, in order.

    >>> _members(np.array([4, 1, 9]), np.array([6, 4, 9])).tolist()
    [1, 2, 3, 4, 5, 6, 9]
    """
    order = np.argsort(low)
    low, high = low[order], np.maximum.accumulate(high[order])
    low = np.maximum(low, np.append(low[:1], high[:-1] + 1))  # without what ranges before have already
    size = np.maximum(high - low + 1, 0)
    offset = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    members: Ints = np.repeat(low, size) + offset
    return members
