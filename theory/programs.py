"""The verdict by programs: whether some program of a task is right, and made of slots that a scheme has at hand.

The programs are those that the task declares, or else what a search finds for its true answers, with the slots that the
scheme does not tell left out (`theory/search.py`, `theory/at_hand.py`). A program that is found is tried on other
instances, up to the largest n that is asked about.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from lengthlens.tasks import Task
from lengthlens.tasks.complexity import Labelled, steps_of
from lengthlens.tasks.program import Ordinal, Pick, Place, Program, ProgramRule, Slot
from lengthlens.theory.at_hand import FAR, AtHand, Reach, weakest
from lengthlens.theory.search import ProgramSearch, wrong_on

LARGEST = 64  # n at which programs are sought and tried; what is right up to here is taken to be right beyond
FEW = 20  # below so many sizes a network may learn places size by size (copying distinct symbols: 10 did, 50 did not)
TIES = 0.6  # share of steps at which a vote may be a tie
OTHERS = 3  # sizes beyond the training range among those that a search looks at


@dataclass(frozen=True)
class Judged:
    """What programs say: the best one, up to which n it carries, and the slot that ends it or is not told.

    `up_to` is 0 if none is at hand. `open` is set where training decides, against `rival` if that is another program.
    """

    program: Program | None
    up_to: float = 0
    open: bool = False
    reason: str = ""
    rival: Program | None = None


class Programs:
    """The programs of a task, for any number of schemes. What does not depend on the scheme is computed once."""

    def __init__(self, task: Task, train_max: int, test_max: int) -> None:
        self.task, self.train_max, self.test_max = task, train_max, test_max
        self.largest = max(min(test_max, LARGEST, task.max_scale or LARGEST), train_max)
        self._found: dict[tuple[bool, ...], Program | None] = {}
        self._closest: dict[tuple[bool, ...], tuple[ProgramRule, int] | None] = {}

    @cached_property
    def declared(self) -> list[Program]:
        return [Program.parse(text) for text in self.task.programs or ()]

    @cached_property
    def search(self) -> ProgramSearch:
        """With the true answers as labels, from the training range and beyond."""
        within = range(self.task.min_scale, self.train_max + 1)
        beyond = torch.linspace(self.train_max, self.largest, OTHERS + 1).long().tolist()[1:]
        return ProgramSearch.of(self.task, [*within, *beyond])

    @cached_property
    def fresh(self) -> Labelled:
        """Other instances, to try what was found on."""
        return steps_of(self.task, sorted({self.train_max, self.largest}), seed=1)

    def several(self, slot: Slot) -> bool:
        """Whether a first or last key is ever one of several, and whether a vote is mostly a tie."""
        if not isinstance(slot, Pick) or slot.aggregate in ("any", "least", "greatest"):
            return False
        if slot.aggregate in ("first", "last"):
            return bool((slot.picked(self.search.steps).sum(1) > 1).any())
        both = [replace(slot, aggregate=name).values(self.search.steps) for name in ("mode", "mode>")]
        return float((both[0] != both[1]).double().mean()) > TIES

    @cached_property
    def by_place(self) -> Program | None:
        """A program of places alone: what training may learn instead, size by size, where few sizes are trained."""
        if self.task.programs:
            return next((each for each in self.declared if of_places(each)), None)
        return self.found(lambda slot: isinstance(slot, Place | Ordinal))

    def found(self, told: Callable[[Slot], bool]) -> Program | None:
        """The first program of slots that are told and that is right on fresh instances, too."""
        allowed = tuple(map(told, self.search.dictionary[0]))
        if allowed not in self._found:
            known = dict(zip(map(str, self.search.dictionary[0]), allowed))
            program = self.search.program(lambda slot: known[str(slot)]) if any(allowed) else None
            right = program is not None and not wrong_on(program, self.fresh)
            self._found[allowed] = program if right else None
        return self._found[allowed]

    @cached_property
    def any(self) -> Program | None:
        """A program of the task whatever the scheme tells."""
        if self.task.programs is not None:
            return next(iter(self.declared), None)
        return self.found(lambda slot: True)

    def judged(self, at_hand: AtHand) -> Judged:
        """The best program for a scheme."""
        told: dict[str, Reach] = {}

        def answer(slot: Slot) -> Reach:
            if str(slot) not in told:
                told[str(slot)] = at_hand(slot, self.several(slot))
            return told[str(slot)]

        candidates = [self._judged(program, answer) for program in self.declared]
        if self.task.programs is None:
            for enough in (FAR, self.test_max, self.train_max + 1) if self.any else ():
                candidates += self._sought(lambda slot: answer(slot).up_to >= enough, answer)  # noqa: B023
                if candidates:
                    break
            else:
                if self.any:
                    candidates = [*self._sought(lambda slot: answer(slot).up_to > 0 or answer(slot).open, answer)]
        best = max(candidates, key=lambda one: (one.up_to, one.open), default=None)
        if best is not None and (best.up_to or best.open):
            if (
                (best.program and of_places(best.program))
                or self.train_max >= FEW
                or at_hand.scheme.family == "none"
                or not self.by_place
            ):
                return best
            return replace(best, open=True, rival=self.by_place, reason=f"training on n ≤ {self.train_max} decides")
        if self.any is None:
            return Judged(None, reason="no program within the bounds of the search writes the answers")
        return self._judged(self.any, answer)

    def failure(self, at_hand: AtHand) -> str:
        """The smallest instance found on which the best single slot that a scheme tells is wrong, in words."""
        slots = self.search.dictionary[0]
        plain = (isinstance(slot, Pick) or (isinstance(slot, Place) and not slot.by_k) for slot in slots)
        allowed = tuple(one and at_hand(slot, True).up_to > self.train_max for one, slot in zip(plain, slots))
        if allowed not in self._closest:
            known = dict(zip(map(str, slots), allowed))
            self._closest[allowed] = self.search.closest(lambda slot: known[str(slot)])
        closest, steps, vocab = self._closest[allowed], self.search.steps, self.task.vocab
        if closest is None:
            return ""
        rule, step = closest
        row, query = int(steps.row[step]), int(steps.query[step])
        before = " ".join(vocab[token] for token in steps.strings.tokens[row, : query + 1].tolist())
        right = self.search.words[int(self.search.labels[step])]
        return f"the best single slot at hand, '{rule}', is wrong after '{before}', where '{right}' is right"

    def _sought(self, told: Callable[[Slot], bool], answer: Callable[[Slot], Reach]) -> Iterator[Judged]:
        program = self.found(told)
        if program is not None:
            yield self._judged(program, answer)

    def _judged(self, program: Program, answer: Callable[[Slot], Reach]) -> Judged:
        slots = list(program.slots)
        weak = min(slots, key=lambda slot: (answer(slot).up_to, answer(slot).open), default=None)
        least = weakest(map(answer, slots))
        needs = f"{weak} needs {least.needs}" if weak is not None and least.needs else ""
        return Judged(program, least.up_to, least.open, needs)


def of_places(program: Program) -> bool:
    """Whether all its slots are places, or count them."""
    return all(isinstance(slot, Place | Ordinal) for slot in program.slots)
