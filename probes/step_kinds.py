"""Which keys a query can tell apart by position, and from which n on the steps of an instance are of no new kind.

**Named keys.** A position embedding that adds a bias for a finite number of codes *names* a bounded number of keys at
each query. All other keys, the *rest*, have no bias: a head sees of them only what their tokens are. Here a key is
named if its code has a bias in any head, if it is the query itself, or if it holds a mark such as ``=`` (of which an
instance has a fixed number). Where all keys without a value weigh together as one (``other=one``), a key is named if
any head has a value for it, even if that is 0. The rest is then pooled in every head; a named key is pooled where a
head has no value for it. The first key never is.

**Kinds of steps.** A *step* writes one answer token, at one query. The keys that a query i names at input size n, and
marks, sources and borders, all stand on *lines* α·i + γ·n + δ. What a layer of attention can tell of positions at a
query is how its lines lie: on which keys exist, and which coincide. That is the sign of every difference of two of
them, which again is such a form. Two steps with the same signs are of the same *kind*.

At one n the form α·i + γ·n + δ changes its sign at a *cut*, the point r = −(γ·n+δ)/α on the axis of queries; a form
with α = 0 is a *wall* at one n. As n grows, cuts move with speeds −γ/α. Let A, the *period*, be the least number that
makes A·γ/α whole for all of them. Then:

    A kind of step that occurs at n occurs at n−A, too, and at n+A, unless in between a wall is passed, or at n the cut
    just below (or at) the step has another of another speed within 1 + A·|difference of speeds|.

For if there is none, moving the step along with that cut to n±A meets no other: those of the same speed move along,
all others are too far away, and their sides stay. The cut moves by a whole number, so the step stays at a whole
position, as near above the cut as before. Two cuts of different speeds are that near at finitely many n. So from some n
on, the *settled* one, every kind is one of those of A sizes in a row (`settling`), and it moves to larger positions
only: a cut slower than the first query would have met it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes import PositionScheme
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import Layout, Line, StepRange
from lengthlens.tasks.scale import Ints

NONE = -1  # no such key; of tokens, any symbol
GRAIN = 2.0**30  # biases are taken as multiples of its inverse
LARGEST_BIAS = 2.0**22  # of the sum over all names, so that they are exact; e to that power is beyond any number
# Sizes n at which a task's layout is compared with its circuit: all small ones, and some that are not.
COMPARED = (*range(1, 65), 100, 128, 333, 1000, 1001, 4096)
MOST_PERIOD = 1000  # of sizes after which kinds of steps repeat; forms with factors of 1 to 4 have 12 or less


# -- named keys -------------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    """The keys that queries name, each once."""

    key: Tensor  # [query, name], NONE where a query names fewer than the widest one
    bias: Tensor  # [layer, head, query, name], what the scheme adds there
    pooled: Tensor  # [layer, head, query, name], whether it is one of those that weigh together as one key
    size: Tensor  # [layer, head], the sum of all biases without their signs, at the query where that is the largest

    @property
    def exists(self) -> Tensor:
        return self.key != NONE


def named_at(scheme: PositionScheme, query: Tensor, scale: int | Tensor, marks: Tensor) -> Named:
    """What queries [query] name at a scale or at their own, [query]; the marks of each, [query, mark], among it."""
    found = scheme.named_keys(query, scale)
    assert found is not None  # other schemes are refused before
    key, bias, valued = found
    size = bias.abs().sum(3).amax(2)
    if not bool((size < LARGEST_BIAS).all()):
        raise UserError(f"biases of scheme '{scheme.name}' add up to {float(size.max()):g}: too much to be certified")
    key = torch.cat([key, marks, query[:, None]], 1)
    more = (0, key.shape[1] - bias.shape[3])
    bias, valued = (torch.nn.functional.pad(part, more) for part in (bias, valued))
    valued = valued | (not scheme.pools_others)
    key = torch.where((key >= 0) & (key <= query[:, None]), key, NONE)
    same = (key[:, :, None] == key[:, None, :]) & (key != NONE)[:, None, :]  # [query, name, name]
    again = same.tril(-1).any(2)
    # Whole numbers, which float64 adds without rounding: the same keys have the same sum wherever they are met.
    parts = bias.double().mul(GRAIN).round(), valued.double()
    total, values = (torch.einsum("qmk,lhqk->lhqm", same.double(), part) for part in parts)
    total = (total / GRAIN).to(bias.dtype)
    key, order = torch.where(again, NONE, key).sort(dim=1, descending=True)
    width = int((key != NONE).sum(1).max())
    key, order = key[:, :width], order.expand_as(total)[..., :width]
    return Named(key, total.gather(3, order), (values.gather(3, order) == 0) & (key > 0), size)


@dataclass(frozen=True, eq=False)
class NamedSteps:
    """Answer queries at any scales: what each names, what is known of the tokens there, and what its step reads."""

    query: Tensor  # [step]
    scale: Tensor  # [step]
    named: Named
    token: Tensor  # [step, name], the mark that a named key holds, NONE for any symbol
    own: Tensor  # [step], the same for the query itself
    layout: Layout
    which: Ints  # [step], which of the layout's steps it is
    sources: Tensor  # [step, slot], NONE where it has fewer
    held: Tensor  # [step, slot], the mark there, NONE for any symbol

    @classmethod
    def at(cls, scheme: PositionScheme, task: Task, layout: Layout, query: Ints, scale: Ints) -> "NamedSteps":
        i, n = torch.from_numpy(query), torch.from_numpy(scale)
        marks = torch.stack([line.at(torch.zeros_like(n), n) for _, line in layout.marks], 1)  # [step, mark]
        ids = torch.tensor([task.ids[name] for name, _ in layout.marks])

        def mark_at(position: Tensor) -> Tensor:
            there = position[..., None] == marks.view(len(n), *[1] * (position.dim() - 1), -1)
            return torch.where(there, ids, NONE).amax(-1)

        which, sources = layout.reads(query, scale)
        if (which < 0).any():
            raise UserError(f"the layout of task '{task.name}' has no step for some query of its answer")
        read, named = torch.from_numpy(sources), named_at(scheme, i, n, marks)
        return cls(i, n, named, mark_at(named.key), mark_at(i), layout, which, read, mark_at(read))

    @classmethod
    def of_size(cls, scheme: PositionScheme, task: Task, n: int, layout: Layout | None = None) -> "NamedSteps":
        """All steps of one n, by the task's layout if that is given and says something about n, else by its circuit."""
        if layout is None or n < layout.since:
            layout = layout_of_size(task, n)
        query = np.arange(layout.first.at(0, n), layout.last.at(0, n) + 1)
        return cls.at(scheme, task, layout, query, np.full(len(query), n))

    def only(self, k: int) -> "NamedSteps":
        """One of them."""
        row = slice(k, k + 1)
        key, bias, pooled, size = self.named
        named = Named(key[row], bias[:, :, row], pooled[:, :, row], size)
        parts = self.token[row], self.own[row], self.layout, self.which[row], self.sources[row], self.held[row]
        return NamedSteps(self.query[row], self.scale[row], named, *parts)

    def kinds(self) -> tuple[list[bytes], Ints]:
        """The distinct kinds of steps, spelled out: all that decides what one layer does; and which is whose. [step]"""
        named, slots = self.named, self.sources.shape[1]
        exists = named.exists.numpy()
        role = (named.key[:, :, None] == self.sources[:, None]) & (self.sources >= 0)[:, None]  # [step, name, slot]
        of_key = [self.token, named.key == self.query[:, None], role.long() @ 2 ** torch.arange(slots)]
        of_head = [named.bias.double().flatten(0, 1).view(torch.long), named.pooled.flatten(0, 1).long()]
        parts = [*(part.long()[None] for part in of_key), *of_head]
        facts = torch.cat(parts).permute(1, 2, 0).contiguous().numpy()  # [step, name, fact]
        facts[~exists] = -1  # as bytes, behind all others
        # The order of keys makes no difference, and neither does how many there are at other steps.
        keys = np.sort(facts.view(np.dtype((np.void, facts.itemsize * facts.shape[2])))[..., 0], axis=1)
        read = torch.cat([self.sources, self.query[:, None]], 1)
        first = (read[:, :, None] == read[:, None]).long().argmax(2)  # the first slot with the same source
        last = self.query == self.layout.last.at(self.query, self.scale)
        facts = torch.cat([first, self.held, self.own[:, None], last[:, None]], 1).numpy()
        operators = np.array([operator.encode() for operator, *_ in self.layout.steps])[self.which]
        number = exists.sum(1).tolist()
        rows = [
            b"|".join([name, bytes(fact), bytes(key[:m])]) for name, fact, key, m in zip(operators, facts, keys, number)
        ]
        numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        return list(numbers), np.array([numbers[row] for row in rows])


def layout_of_size(task: Task, n: int) -> Layout:
    """What a task's circuit says at one n, as a layout of that n alone."""
    any_row = torch.zeros(1, task.input_length(n), dtype=torch.long)
    tokens = task.assemble(any_row, n).tokens[0]
    marks = (tokens[:-1] >= len(task.symbols)).nonzero()[:, 0].tolist()

    def at(position: int) -> Line:
        return Line(constant=position)

    steps = [StepRange(s.operator, at(s.query), at(s.query), tuple(map(at, s.sources))) for s in task.circuit(n)]
    named = tuple((task.vocab[int(tokens[mark])], at(mark)) for mark in marks)
    return Layout(named, at(task.prompt_length(n)), at(len(tokens)), tuple(steps), n)


def checked_layout(task: Task) -> Layout:
    """The layout of a task, if it has one and its circuit, marks and lengths agree with it."""
    layout = task.layout()
    if layout is None:
        raise UserError(f"task '{task.name}' does not say where its steps are at every n (`Task.layout`)")
    largest = math.inf if task.max_scale is None else task.max_scale
    for n in COMPARED:
        if max(layout.since, task.min_scale) <= n <= largest and not _agrees(task, layout, n):
            raise UserError(f"the layout of task '{task.name}' is not that of its circuit at n = {n}")
    return layout


def _agrees(task: Task, layout: Layout, n: int) -> bool:
    circuit, told = task.circuit(n), layout_of_size(task, n)
    which, sources = layout.reads(circuit.query, np.full(len(circuit), n))
    marks, marks_told = (sorted((name, line.at(0, n)) for name, line in each.marks) for each in (layout, told))
    return (
        marks == marks_told
        and (layout.answer.at(0, n), layout.length.at(0, n)) == (told.answer.constant, told.length.constant)
        and bool((which >= 0).all())
        and np.array_equal(sources, circuit.sources)
        and [layout.steps[k].operator for k in which] == [circuit.operators[k].name for k in circuit.operator]
    )


# -- kinds ------------------------------------------------------------------------------------------------------------


class Settling(NamedTuple):
    """Every kind of step at any n from `since` on is one of the sizes `since` to `since` + `period` − 1."""

    since: int
    period: int

    def alike(self, n: int) -> int:
        """A size whose kinds of steps are those of n.

        >>> Settling(7, 2).alike(5), Settling(7, 2).alike(10)
        (5, 8)
        """
        return min(n, self.since + (n - self.since) % self.period)


def settling(places: Iterable[Line], first: Line, last: Line, start: int = 1) -> Settling:
    """From which n on no kind of step is new, where steps are at the queries from `first` to `last`.

    `places` are all lines on which something stands: keys, marks, borders; `start` is the least n of which that is so.

    Example: queries n+1 … 2n+1 that name the key n back, beside ``^`` at 0 and ``=`` at n+1. At n = 3 the second query
    is neither the first nor the last for the first time, nor is the third of four at n = 4; nothing is new after that.

    >>> settling([Line(1, -1), Line(), Line(0, 1, 1)], Line(0, 1, 1), Line(0, 2, 1))
    Settling(since=4, period=1)
    """
    if not 0 <= first.scale <= last.scale:
        raise UserError("queries must move on with n for kinds of steps to settle")
    distinct = np.array(sorted({*places, Line(1), first, last}))  # [place, 3]
    forms = _normal((distinct[:, None] - distinct).reshape(-1, 3))
    cuts = forms[forms[:, 0] > 0]  # [cut, 3]: α, γ, δ
    period = math.lcm(*(int(a // math.gcd(a, c)) for a, c, _ in cuts.tolist()))
    if period > MOST_PERIOD:
        raise UserError(
            f"kinds of steps repeat only every {period} sizes, for the factors of i in the forms: where that is more "
            f"than {MOST_PERIOD} nothing is proven about long instances"
        )
    ends = [start - 1, *(period - d // c for a, c, d in forms.tolist() if a == 0 and c > 0)]  # a wall is at n = −d/c
    for a, c, d in cuts:
        # r − r' = (speed·n + offset) / (a·a'), to be compared with 1 + period·|speed| / (a·a')
        speed, offset = cuts[:, 1] * a - c * cuts[:, 0], cuts[:, 2] * a - d * cuts[:, 0]
        meets = speed != 0
        reach = a * cuts[:, 0] + np.abs(speed) * period
        ends += ((reach - offset * np.sign(speed))[meets] // np.abs(speed[meets])).tolist()
    return Settling(max(ends) + 1, period)


def settling_of(scheme: PositionScheme, task: Task, layout: Layout) -> Settling:
    """Of a layer of attention: it sees keys that the query names, marks, sources, and borders of operators."""
    named = scheme.named_lines(layout)
    assert named is not None  # other schemes are refused before
    lines = {Line(), layout.answer, *named, *(line for _, line in layout.marks)}
    for steps in layout.steps:
        lines |= {steps.first, steps.last, *steps.sources}
    return settling(lines, layout.first, layout.last, max(layout.since, task.min_scale))


def _normal(forms: Ints) -> Ints:
    """Forms by their sign alone: without a common factor, the first factor positive, each once. [form, 3]"""
    forms = forms[forms[:, :2].any(1)]
    forms = forms // np.gcd.reduce(forms, axis=1)[:, None]
    leading = np.where(forms[:, 0] != 0, forms[:, 0], forms[:, 1])
    return np.unique(forms * np.sign(leading)[:, None], axis=0)
