"""Where the tokens of a short instance stand in a long one, and what stands at the other places."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import Ints
from lengthlens.tasks import Batch, Circuit, Task
from lengthlens.tasks.circuit import UNUSED

EDGE = 2  # symbols next to a mark that stay there: networks know first and last ones by their neighbours
SHARES = (0.0, 0.5, 1.0)  # of the free places, how many come before the symbols between
LIKENESS = (4, 2, 1)  # what it counts to have in common the step that wrote a token, that behind it, the token before


def placements(task: Task, short: int, long: int) -> Iterator[Tensor]:
    """Positions of the long instance for the tokens of a short one, [pos], in several ways.

    The first and the last symbols of a run stay there, next to the marks; those between stand together at the first of
    the places left, in the middle, or at the last. Prompt and answer may differ in that, as a mirrored answer needs.

    >>> from lengthlens.tasks import TASKS
    >>> next(placements(TASKS["copy"], 5, 8)).tolist()  # ^ 1 2 3 . . . 4 5 = 1 2 3 . . . 4 5 $
    [0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 16, 17, 18]
    """
    (few, few_marks), (_, many_marks) = (_marks(task, scale) for scale in (short, long))
    if len(few_marks) != len(many_marks):
        raise UserError(f"'{task.name}' has more marks at n={long} than at n={short}: its inputs cannot be stretched")
    end_of_prompt = task.prompt_length(short) - 1
    seen = set()
    for of_prompt, of_answer in product(SHARES, SHARES):
        places = torch.zeros(few, dtype=torch.long)
        for k, (mark, place) in enumerate(zip(few_marks, many_marks)):
            places[mark] = place
            if k + 1 < len(few_marks):
                size, room = few_marks[k + 1] - mark - 1, many_marks[k + 1] - place - 1
                share = of_answer if mark >= end_of_prompt else of_prompt
                places[mark + 1 : few_marks[k + 1]] = place + 1 + _spread(size, room, share)
        if tuple(places.tolist()) not in seen:
            seen.add(tuple(places.tolist()))
            yield places


def edge(size: int) -> int:
    """How many symbols at either end of a run stay there."""
    return min(EDGE, (size - 1) // 2)


def _spread(size: int, room: int, share: float) -> Tensor:
    """The places of a run's symbols among `room`: its ends at the ends, the others behind a share of what is free."""
    ends, place = edge(size), torch.arange(size)
    free = room - size
    return place + torch.where(place < ends, 0, torch.where(place >= size - ends, free, int(share * free)))


def _marks(task: Task, scale: int) -> tuple[int, list[int]]:
    """The length of an instance, and the positions of all tokens that are no symbols."""
    tokens = task.sample(scale, 1, torch.Generator().manual_seed(0)).tokens[0]
    return len(tokens), (tokens >= len(task.symbols)).nonzero()[:, 0].tolist()


def kept_steps(short: Circuit, long: Circuit, places: Tensor) -> Tensor:
    """Which steps of a short circuit have, at their places, the operator and the sources of a step of the long one."""
    known = {step.query: (step.operator, step.sources) for step in long}
    return torch.tensor(
        [
            known.get(int(places[step.query])) == (step.operator, tuple(places[list(step.sources)].tolist()))
            for step in short
        ]
    )


def stand_ins(
    task: Task, batch: Batch, short: int, long: int, places: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """For each row and position of the long instance, the row and position of the short ones whose content it has.

    Tokens that stand there are their own. Any other position gets a token from inside the same run of some row, so
    chosen that the whole is as much like a long instance as it can be: an answer token has in its sources the tokens
    that are in the stand-in's, the step that follows it, too, and the token before it is the one before the stand-in.
    Of equally good ones a random one is taken. [row, pos] each
    """
    rows, (length, marks), (_, few_marks) = len(batch), _marks(task, long), _marks(task, short)
    here, given = set(places.tolist()), batch.tokens.numpy()
    of_row, of_pos = (each.numpy() for each in own_places(rows, length, places))
    tokens = np.full((rows, length), UNUSED)
    roles, few_roles = (_Roles(task.circuit(scale), len(task.vocab)) for scale in (long, short))
    for mark, following, few, few_following in zip(marks, [*marks[1:], length], few_marks, [*few_marks[1:], 0]):
        ends = edge(few_following - few - 1)
        inside = range(few + 1 + ends, few_following - ends)
        known = [np.stack(part, 1).ravel() for part in zip(*(few_roles.at(k, given) for k in inside))]
        for place in range(mark, following):
            if place not in here:
                likeness = torch.rand(rows, rows * len(inside), generator=generator).double().numpy()
                for weight, wanted, found in zip(LIKENESS, roles.at(place, tokens), known):
                    likeness += weight * (wanted[:, None] == found)
                best = likeness.argmax(1)
                of_row[:, place], of_pos[:, place] = best // len(inside), inside.start + best % len(inside)
            tokens[:, place] = given[of_row[:, place], of_pos[:, place]]
    return torch.from_numpy(of_row), torch.from_numpy(of_pos)


def own_places(rows: int, length: int, places: Tensor) -> tuple[Tensor, Tensor]:
    """As `stand_ins`, with every token at its own place and nothing to speak of elsewhere."""
    of_pos = torch.zeros(rows, length, dtype=torch.long, device=places.device)
    of_pos[:, places] = torch.arange(len(places), device=places.device)
    return torch.arange(rows, device=places.device)[:, None].repeat(1, length), of_pos


class _Roles:
    """What surrounds the tokens of one scale: the step that wrote each, the step behind it, the token before it."""

    def __init__(self, circuit: Circuit, vocabulary: int) -> None:
        self.names, self.vocabulary = sorted(circuit.functions), vocabulary
        self.steps = {step.query: step for step in circuit}

    def at(self, place: int, tokens: Ints) -> tuple[Ints, Ints, Ints]:
        """A number for each of the three, the same where they are. [row] each, of tokens [row, pos]"""
        return self._step(place - 1, place, tokens), self._step(place, place, tokens), tokens[:, place - 1]

    def _step(self, query: int, place: int, tokens: Ints) -> Ints:
        """Of an operator and the tokens in its sources; one at the place itself, not known yet, does not count."""
        step = self.steps.get(query)
        number = np.full(len(tokens), 0 if step is None else 1 + self.names.index(step.operator))
        for source in step.sources if step else ():
            if source != place:
                number = number * (2 * self.vocabulary + 1) + tokens[:, source] + 1  # odd, so that none is lost
        return number
