"""Steps of a circuit: what they read, instances in which they read given tokens, and where they stand in longer ones.

A *step* writes one token of an answer: an operator, applied to the tokens at certain earlier positions, its *sources*,
one for each *slot* of the operator. Its *query* is the position before the token that it writes.

- Two steps are *twins* on two instances if the circuit applies the same operator to the same tokens there, and the
  token at the query is the same. Then the same answer is due, and only n and positions differ.
- The *roles* of a step are its sources as a readout by codes tells them apart: by the code of a key under a relation.
  Tokens may be put into the roles of a step (`fill_roles`), wherever a key has the code.
- The tokens of a short instance may be put at positions of a long one (`place_tokens`). Every other position of the
  long one then has a *stand-in*: a token of a short instance whose content it has.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import Code, Ints
from lengthlens.tasks import Batch, Circuit, Task
from lengthlens.tasks.circuit import UNUSED

Support: TypeAlias = tuple[int, ...]  # the tokens that occur at a position in real instances
Key: TypeAlias = tuple[tuple[int, ...], ...]  # for each code of a signature, the tokens there, in order of id
Signature: TypeAlias = tuple[Code, ...]

DRAWS = 12  # instances among which a twin is looked for; one in ten has the wanted digit at the query
ASSIGNMENTS = 64  # of tokens to the roles of a signature; all of them where there are no more
EDGE = 2  # symbols next to a mark that stay there: networks know first and last ones by their neighbours
SHARES = (0.0, 0.5, 1.0)  # of the free places, how many come before the symbols between
LIKENESS = (4, 2, 1)  # what it counts to share the step that wrote a token, the step after it, the token before it


class StepAt(NamedTuple):
    """A step of the circuit at n: the one that writes answer token number `place`."""

    n: int
    place: int


# -- twins ------------------------------------------------------------------------------------------------------------


def twins(task: Task, donor: StepAt, wanted: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """For each row an instance in which the donor step reads the wanted tokens, if one is drawn.

    `wanted` [row, 1 + sources]: the tokens at the query and at the sources. Sources in the prompt get their tokens.
    What the answer wrote before, the token at the query included, has to come out right in one of several draws.
    Out: tokens [row, pos], and whether each row is a twin.
    """
    n, rows = donor.n, len(wanted)
    circuit = task.circuit(n)
    inputs = task.draw(task.checked_scale(n), rows * DRAWS, generator, torch.device("cpu"))
    goal, form = wanted.repeat_interleave(DRAWS, 0), task.prompt_form(n).tolist()
    for slot, source in enumerate(sources_of(circuit, donor.place)):
        if source < len(form) and form[source] < 0:  # a symbol, input number −1 − form
            inputs[:, -1 - form[source]] = goal[:, 1 + slot]
    valid = task.valid(inputs, n)
    tokens = task.assemble(torch.where(valid[:, None], inputs, 0), n).tokens
    fits = (valid & (tokens_read(circuit, donor.place, tokens) == goal).all(1)).view(rows, DRAWS)
    best = fits.to(torch.int8).argmax(1) + DRAWS * torch.arange(rows)
    return tokens[best], fits.any(1)


def tokens_read(circuit: Circuit, place: int, tokens: Tensor) -> Tensor:
    """The tokens at the query of a step and at its sources. [row, pos] to [row, 1 + sources]"""
    return tokens[:, [int(circuit.query[place]), *sources_of(circuit, place)]]


def sources_of(circuit: Circuit, place: int) -> list[int]:
    """The sources of a step."""
    return [int(source) for source in circuit.sources[place] if source != UNUSED]


# -- roles by code ----------------------------------------------------------------------------------------------------


class CodeRole(NamedTuple):
    """Sources that a readout by codes cannot tell apart, and all keys that it could take for them."""

    code: Code
    support: Support
    sources: int  # how many of the keys are sources
    keys: tuple[int, ...]  # all keys with the code and the support


@dataclass(frozen=True)
class Roles:
    """The sources of one step, by role."""

    sources: tuple[int, ...]
    roles: tuple[CodeRole, ...]

    @classmethod
    def of(cls, codes: Ints, occurring: Sequence[Support], query: int, sources: Sequence[int]) -> "Roles":
        """From the codes [key, component] and supports of the keys that the query sees.

        The token at the query has a code of its own. Sources with one token in all instances count where all are so.
        """
        own = (1, *(0 for _ in codes[query]))
        names = [((0, *map(int, codes[key])), occurring[key]) for key in range(query)] + [(own, occurring[query])]
        sources = [source for source in sources if len(occurring[source]) > 1] or sources
        roles = [
            CodeRole(*name, sum(names[s] == name for s in sources), tuple(k for k, n in enumerate(names) if n == name))
            for name in sorted({names[source] for source in sources})
        ]
        return cls(tuple(sources), tuple(roles))

    @property
    def signature(self) -> tuple[Code, ...]:
        """The codes of the sources, in order, each as often as it occurs."""
        return tuple(role.code for role in self.roles for _ in range(role.sources))


def assignments(roles: Roles) -> Tensor:
    """Tokens for the sources, in the order of roles. [assignment, source]

    Steps with the same codes and supports get the same assignments, so that they can be compared. If there are too
    many, each support is thinned to a few of its tokens, whose combinations are given. If these are still too many,
    random ones are.
    """
    named = [(role.code, role.support, role.sources) for role in roles.roles]
    rng = np.random.default_rng(int.from_bytes(hashlib.blake2b(repr(named).encode(), digest_size=8).digest()))
    alphabets = [role.support for role in roles.roles for _ in range(role.sources)]
    if math.prod(map(len, alphabets)) > ASSIGNMENTS:
        size = max(2, int(ASSIGNMENTS ** (1 / sum(len(a) > 1 for a in alphabets)) + 1e-9))
        few: dict[Support, Support] = {}
        for role in roles.roles:
            drawn = rng.choice(role.support, min(size, len(role.support)), replace=False)
            few.setdefault(role.support, tuple(sorted(drawn.tolist())))
        alphabets = [few[support] for support in alphabets]
    if math.prod(map(len, alphabets)) > ASSIGNMENTS:
        return torch.from_numpy(np.stack([rng.choice(a, ASSIGNMENTS) for a in alphabets], 1))
    rows = list(itertools.product(*alphabets))  # one empty row where there are no sources
    return torch.tensor(rows, dtype=torch.long).view(len(rows), len(alphabets))


def fill_roles(roles: Roles, given: Tensor, base: Tensor, generator: Generator | None) -> Tensor:
    """Every assignment inside every base instance, each role's tokens at random among its keys.

    `given` [assignment, source] and `base` [base, pos] to [assignment·base, pos].
    """
    tokens = base.repeat(len(given), 1, 1)  # [assignment, base, pos]
    for role, what in zip(roles.roles, given.split([role.sources for role in roles.roles], 1)):
        order = torch.rand(*tokens.shape[:2], len(role.keys), generator=generator).argsort(-1)
        where = torch.tensor(role.keys)[order[..., : role.sources]]
        tokens.scatter_(2, where, what[:, None].expand(where.shape))
    return tokens.flatten(0, 1)


def keys_of(roles: Roles, given: Tensor) -> list[Key]:
    """What a readout by codes sees of each assignment: for each code the tokens there, as a bag."""
    signature = roles.signature
    columns = [[k for k, own in enumerate(signature) if own == code] for code in dict.fromkeys(signature)]
    return [tuple(tuple(sorted(row[k] for k in group)) for group in columns) for row in given.tolist()]


# -- short instances inside long ones ---------------------------------------------------------------------------------


def place_tokens(task: Task, short: int, long: int) -> Iterator[Tensor]:
    """Positions of the long instance for the tokens of a short one, [pos], in several ways.

    The first and the last symbols of a run keep their place next to the marks. The symbols between them stand together:
    first, in the middle, or last among the free places. Prompt and answer may differ in that, which a mirrored answer
    needs.

    >>> from lengthlens.tasks import TASKS
    >>> next(place_tokens(TASKS["copy"], 5, 8)).tolist()  # ^ 1 2 3 . . . 4 5 = 1 2 3 . . . 4 5 $
    [0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 16, 17, 18]
    """
    (few, few_marks), (_, many_marks) = (_marks(task, n) for n in (short, long))
    if len(few_marks) != len(many_marks):
        raise UserError(f"'{task.name}' has more marks at n={long} than at n={short}: its inputs cannot be stretched")
    end_of_prompt = task.prompt_length(short) - 1
    seen = set()
    for of_prompt, of_answer in itertools.product(SHARES, SHARES):
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
    """How many symbols at either end of a run keep their place."""
    return min(EDGE, (size - 1) // 2)


def _spread(size: int, room: int, share: float) -> Tensor:
    """The places of a run's symbols among `room`: its ends at the ends, the others after a share of what is free."""
    ends, place = edge(size), torch.arange(size)
    free = room - size
    return place + torch.where(place < ends, 0, torch.where(place >= size - ends, free, int(share * free)))


def _marks(task: Task, n: int) -> tuple[int, list[int]]:
    """The length of an instance, and the positions of all tokens that are no symbols."""
    tokens = task.sample(n, 1, Generator().manual_seed(0)).tokens[0]
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
    task: Task, batch: Batch, short: int, long: int, places: Tensor, generator: Generator
) -> tuple[Tensor, Tensor]:
    """For each row and position of the long instance, the row and position of the short ones whose content it has.

    A position with a token of the short instance has that one. Any other gets a token from inside the same run of some
    row, so that the whole is as much like a long instance as it can be: the sources of an answer token hold what those
    of its stand-in hold, so do the sources of the step after it, and the tokens before both are the same. Among equally
    good ones the choice is random. [row, pos] each
    """
    rows, (length, marks), (_, few_marks) = len(batch), _marks(task, long), _marks(task, short)
    here, given = set(places.tolist()), batch.tokens.numpy()
    of_row, of_pos = (each.numpy() for each in own_places(rows, length, places))
    tokens = np.full((rows, length), UNUSED)
    roles, few_roles = (_Surroundings(task.circuit(n), len(task.vocab)) for n in (long, short))
    for mark, following, few, few_following in zip(marks, [*marks[1:], length], few_marks, [*few_marks[1:], 0]):
        ends = edge(few_following - few - 1)
        inside = range(few + 1 + ends, few_following - ends)
        known = [np.stack(part, 1).ravel() for part in zip(*(few_roles.at(k, given) for k in inside))]
        for place in range(mark, following):
            if place not in here:
                likeness = torch.rand(rows, rows * len(inside), generator=generator).double().numpy()
                for weight, wanted, there in zip(LIKENESS, roles.at(place, tokens), known):
                    likeness += weight * (wanted[:, None] == there)
                best = likeness.argmax(1)
                of_row[:, place], of_pos[:, place] = best // len(inside), inside.start + best % len(inside)
            tokens[:, place] = given[of_row[:, place], of_pos[:, place]]
    return torch.from_numpy(of_row), torch.from_numpy(of_pos)


def own_places(rows: int, length: int, places: Tensor) -> tuple[Tensor, Tensor]:
    """As `stand_ins`, with every token at its place and an arbitrary one elsewhere."""
    of_pos = torch.zeros(rows, length, dtype=torch.long, device=places.device)
    of_pos[:, places] = torch.arange(len(places), device=places.device)
    return torch.arange(rows, device=places.device)[:, None].repeat(1, length), of_pos


class _Surroundings:
    """What surrounds the tokens of one n: the step that wrote each, the step after it, the token before it."""

    def __init__(self, circuit: Circuit, vocabulary: int) -> None:
        self.names, self.vocabulary = sorted(circuit.functions), vocabulary
        self.steps = {step.query: step for step in circuit}

    def at(self, place: int, tokens: Ints) -> tuple[Ints, Ints, Ints]:
        """A number for each of the three, equal where they are equal. [row] each, of tokens [row, pos]"""
        return self._step(place - 1, place, tokens), self._step(place, place, tokens), tokens[:, place - 1]

    def _step(self, query: int, place: int, tokens: Ints) -> Ints:
        """A number for an operator and the tokens in its sources. A source at `place` is not known yet and left out."""
        step = self.steps.get(query)
        number = np.full(len(tokens), 0 if step is None else 1 + self.names.index(step.operator))
        for source in step.sources if step else ():
            if source != place:
                number = number * (2 * self.vocabulary + 1) + tokens[:, source] + 1  # odd, so that none is lost
        return number
