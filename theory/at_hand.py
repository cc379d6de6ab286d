"""Which slots of programs a position embedding tells, and up to which n training prepares it for them.

A slot is *at hand* if a network with this scheme can compute its value, and *trained* if all that it takes beyond the
training range occurred within it. We define, for each kind of slot, what it needs of a scheme:

- *content*: the token at the query, marks, keys by their tokens. Every scheme leaves content alone, except one that
  gives all keys but a few the same weight.
- *near*: the key one place back, and so neighbours of keys. The distance 1 must be isolated, stable and covered
  (theory/properties.py) under some part of the scheme, and what the scheme gives to other keys at new distances must be
  bounded by what it gave in training (`beyond` of the scheme), for they come in between otherwise.
- *order*: the first or the last of several keys. Only schemes whose bias falls with distance, by a formula, order far
  keys. Without any positions, how many keys each key sees tells it in part: training decides.
- *places* counted from k or n: the steps that read them are examined as those of a circuit are.
- *fixed places*: residues, and the like. Positions must be told apart one by one, and all of them trained, as with
  offsets drawn at random.

The first two symbols after ``^`` are known under any scheme, by how few keys they see.

Some slots stay right only up to some n: the least or greatest of many is a comparison of scores that grow no further,
and the share that decides a vote has a margin of 1/n. How far these carry is a number that we measured, not a theorem:
`REACH` times the training range.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.tasks import Task
from lengthlens.tasks import program as slots
from lengthlens.tasks.program import Compare, Ordinal, Pick, Place, Slot
from lengthlens.theory.learnable import Family
from lengthlens.theory.properties import examine
from lengthlens.theory.steps import Steps

# Up to how many times the training range a kind of slot stays right, as seen in trained networks. Chosen on: sort,
# mode, majority, letter-majority, last, last-of-class under six schemes.
REACH = {"least": 2.0, "greatest": 2.0, "drawn": 2.0}
VOTES = ((2, 10.0), (10, 5.0))  # of a vote, by how many symbols there are at most; with more, REACH["least"]
FAR = float("inf")
AFTER_BEGIN = 2  # places after ^ that are known by how few keys are seen there


class Reach(NamedTuple):
    """Up to which n a slot is right: 0 if the scheme does not tell it; and what it needs, in words.

    `open` is set where training decides.
    """

    up_to: float
    needs: str = ""
    open: bool = False


YES = Reach(FAR)


@dataclass(frozen=True)
class AtHand:
    """What a scheme tells on a task, trained on n up to `train_max` and asked about n up to `test_max`."""

    scheme: PositionScheme
    task: Task
    train_max: int
    test_max: int
    places: Callable[[Place], bool]  # whether the steps that read a place counted from k or n are served

    @property
    def content(self) -> bool:
        return not self.scheme.means_others

    @property
    def drawn(self) -> bool:
        """Whether positions are drawn at random in training, so that far ones are trained, too."""
        return self.scheme.widens

    @property
    def bounded(self) -> bool:
        return self.scheme.beyond == "bounded"

    @property
    def intruders(self) -> Reach:
        """Where a place is told, and keys at codes never trained may outweigh it."""
        return Reach(0, "that keys at distances never trained stay below it", open=self.scheme.beyond == "unknown")

    @cached_property
    def near(self) -> Reach:
        """The key one place back."""
        needs = "a scheme that tells distance 1 from others"
        if self.drawn:
            return Reach(REACH["drawn"] * self.train_max, needs)
        steps = back_one(self.task, few_sizes(self.task, self.train_max, self.test_max))
        if self.scheme.candidates():
            told = Family(self.scheme, [steps], self.train_max).possible
        else:
            told = any(examine(part.relation(), [steps], self.train_max).possible for part in self.scheme.parts)
        if told and not self.bounded:
            return self.intruders
        return Reach(FAR if told else 0, needs)

    @cached_property
    def order(self) -> Reach:
        """The first or last of several keys."""
        needs = "a scheme that orders keys by their distance"
        if self.drawn:
            return Reach(REACH["drawn"] * self.train_max, needs)
        ordered = self.bounded and any(part.by_formula for part in self.scheme.parts)
        return Reach(FAR if ordered else 0, needs, open=not ordered and self.scheme.beyond != "unbounded")

    def __call__(self, slot: Slot, several: bool = True) -> Reach:
        """What holds of a slot; `several`: whether a first or last key is one of several, or a vote mostly a tie."""
        if isinstance(slot, Compare) or (isinstance(slot, Ordinal) and slot.modulus):
            return Reach(0, "an exact count" if isinstance(slot, Compare) else "residues of positions")
        if isinstance(slot, Ordinal):
            return YES
        if isinstance(slot, Place):
            return self.place(slot)
        return self.pick(slot, several)

    def place(self, slot: Place) -> Reach:
        if slot.origin == "n" or slot.by_k:
            if not self.places(slot):
                return Reach(0, f"a scheme that tells the place of {slot}")
            return YES if self.bounded else self.intruders
        known = slot.offset == 0 or (slot.origin == slots.BEGIN and 0 <= slot.offset <= AFTER_BEGIN)
        return YES if known else self.near

    def pick(self, slot: Pick, several: bool) -> Reach:
        if not self.content and (slot.conditions or not slot.aggregate.startswith("mode")):
            near = slot.aggregate in ("first", "last") and several  # few named keys have it in most instances
            return Reach(0, "single keys picked by content, which this scheme averages", open=near)
        if any(each.kind in ("new",) for each in slot.conditions):
            return Reach(0, "to know what is written already")
        answers = [YES if each.kind != "%" else self.residue for each in slot.conditions]
        beside = [each.right for each in slot.conditions if each.kind in ("=", "<", ">")]
        answers += [self.place(place) for place in beside]
        if slot.left or any(each.kind != "%" and each.left for each in slot.conditions):
            answers.append(self.near)
        if slot.aggregate in ("first", "last") and several:
            answers.append(self.order)
        if slot.aggregate in ("least", "greatest") and self.scheme.beyond != "bounded":
            answers.append(Reach(0, "that scores by content keep their order at distances never trained"))
        if slot.aggregate.startswith("mode") and several:
            answers.append(Reach(0, "that votes are not decided by the order of symbols"))
        reach = REACH.get(slot.aggregate)
        if slot.aggregate.startswith("mode"):
            reach = next((times for most, times in VOTES if len(self.task.symbols) <= most), REACH["least"])
        if reach is not None:
            answers.append(Reach(reach * self.train_max, "finer scores than were trained"))
        return weakest(answers)

    @cached_property
    def residue(self) -> Reach:
        """Every second or third position."""
        absolute = self.drawn and self.scheme.family == "absolute"
        return Reach(REACH["drawn"] * self.train_max if absolute else 0, "positions told apart one by one")


def weakest(answers: Iterable[Reach]) -> Reach:
    """Of several that are all needed: the one that ends first, and one that training leaves open last.

    >>> weakest([YES, Reach(20, "order")])
    Reach(up_to=20, needs='order', open=False)
    """
    return min((YES, *answers), key=lambda answer: (answer.up_to, answer.open))


def few_sizes(task: Task, train_max: int, test_max: int) -> list[int]:
    """The sizes of training, and some beyond: the next one, and the largest.

    >>> from lengthlens.tasks import TASKS
    >>> few_sizes(TASKS["copy"], 3, 40)
    [1, 2, 3, 4, 40]
    """
    sizes = {*range(task.min_scale, train_max + 1), train_max + 1, test_max}
    return sorted(n for n in sizes if n <= test_max)


def back_one(task: Task, sizes: Iterable[int]) -> Steps:
    """Steps that read the key before each query, of all positions."""
    lengths = [(n, task.longest(n)) for n in sizes]
    query = np.concatenate([np.arange(1, length) for _, length in lengths])
    scale = np.repeat([n for n, _ in lengths], [length - 1 for _, length in lengths])
    return Steps("look back", scale, query, (query - 1)[:, None], ("left neighbour",))


def reading(task: Task, place: Place, sizes: Iterable[int]) -> Steps:
    """The steps of answers that read a place counted from k or n, where it is a key."""
    parts = []
    for n in sizes:
        start, length = task.prompt_length(n) - 1, task.length(n)
        query = np.arange(start, length - 1)
        form = task.prompt_form(n).tolist()
        mark = {word: form.index(task.ids[word]) for word in (*task.marks, slots.BEGIN) if task.ids[word] in form}
        first = next((k for k, token in enumerate(form) if k and token >= 0), start + 1) - 1
        base = (
            query - first if place.origin == "n" else query if place.origin == "i" else mark.get(place.origin, -length)
        )
        source = base + place.offset + place.by_k * (query - start)
        there = (source >= 0) & (source <= query)
        parts.append((np.full(there.sum(), n), query[there], source[there]))
    scale, query, source = (np.concatenate(column) for column in zip(*parts))
    return Steps("read", scale, query, source[:, None], (str(place),))
