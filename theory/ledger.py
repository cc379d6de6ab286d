"""The codes that a relation gives to the sources of an operator's steps, and what these alone show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.codes import Ints, numbered
from lengthlens.theory.hashing import Bools, Codes, Hash
from lengthlens.theory.program import Steps

Phi: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]  # (query, key, scale) to codes [*, component]

BLOCK = 1 << 16  # pairs looked at together: few enough to stay in the processor's cache


class Mark(NamedTuple):
    """Key `key` seen from query `query` at scale `scale`, and the slots it fills there: none if it is not read."""

    scale: int
    query: int
    key: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Counterexample:
    """Why a property does not hold.

    isolated: two marks of one step with the same code, the first of which is read.
    stable: two marks of two steps with the same code, which fill different slots.
    covered: the sources of one step beyond the training range, whose codes do not occur together within it; `codes`
    has one code for each, and `fresh` says which of them (counted from 0) do not occur there in their slot at all.

    `component` is set where the relation looked at is one component of a scheme's codes.
    """

    operator: str
    codes: tuple[tuple[int, ...], ...]
    marks: tuple[Mark, ...]
    fresh: tuple[int, ...] = ()
    words: tuple[str, ...] = ()  # the codes as the scheme describes them
    component: int | None = None


@dataclass(frozen=True)
class Findings:
    """What a relation makes of a program: None stands for a property that holds."""

    isolated: Counterexample | None
    stable: Counterexample | None
    covered: Counterexample | None
    src_train: int
    src_test: int

    @property
    def failures(self) -> int:
        """How many of the three properties do not hold."""
        return sum(example is not None for example in (self.isolated, self.stable, self.covered))

    @property
    def possible(self) -> bool:
        return self.failures == 0


class Ledger:
    """The codes of the sources of one operator under a relation."""

    def __init__(self, steps: Steps, codes: Ints) -> None:
        """`codes` [step, slot, component]"""
        self.steps = steps
        self.codes, which = numbered(codes.reshape(-1, codes.shape[-1]))  # [code, component]
        self.code = which.reshape(steps.sources.shape)  # [step, slot], an index into `codes`
        self.signature = numbered(self.code)[1]  # [step]

    @cached_property
    def same_key(self) -> Bools:
        """Which slots a source fills, its own included. [step, slot, slot]"""
        return np.asarray(self.steps.sources[:, :, None] == self.steps.sources[:, None, :])

    @cached_property
    def role(self) -> Ints:
        """The set of slots that a source fills, as a number. [step, slot]"""
        return numbered(self.same_key.reshape(-1, self.steps.arity).astype(np.int64))[1].reshape(self.code.shape)

    @cached_property
    def keys_read(self) -> Ints:
        """The number of different keys that each step reads. [step]"""
        again = np.tril(self.same_key, -1).any(2)
        return np.asarray(self.steps.arity - again.sum(1))

    @cached_property
    def marked_by(self) -> tuple[Ints, Ints]:
        """The first and the last step at which each code marks a source. [code] each"""
        step = np.repeat(np.arange(len(self.steps)), self.steps.arity)
        first, last = np.full(len(self.codes), len(self.steps)), np.full(len(self.codes), -1)
        np.minimum.at(first, self.code.ravel(), step)
        np.maximum.at(last, self.code.ravel(), step)
        return first, last

    @cached_property
    def hash(self) -> Hash:
        return Hash(self.codes)

    @cached_property
    def narrow_hash(self) -> Hash:
        """The same for codes of 32 bits."""
        return Hash(self.codes.astype(np.int32))

    def mark(self, step: int, key: int) -> Mark:
        steps = self.steps
        filled = np.flatnonzero(steps.sources[step] == key)
        slots = tuple(steps.slot_names[k] for k in filled)
        return Mark(int(steps.scale[step]), int(steps.query[step]), int(key), slots)

    def source_with(self, step: int, code: int) -> int:
        """The key that a code marks at a step."""
        return int(self.steps.sources[step, int((self.code[step] == code).argmax())])

    def words_of(self, code: int) -> tuple[int, ...]:
        return tuple(map(int, self.codes[code]))

    # -- what the sources alone show --

    def uncovered(self, train_max: int) -> Counterexample | None:
        """The first step whose signature does not occur in the training range."""
        seen = self.steps.scale <= train_max
        new = ~np.isin(self.signature, self.signature[seen])
        if not new.any():
            return None
        step = int(new.argmax())
        known = [np.isin(self.code[step, k], self.code[seen, k]) for k in range(self.steps.arity)]
        return Counterexample(
            self.steps.operator,
            tuple(map(self.words_of, self.code[step])),
            tuple(self.mark(step, key) for key in self.steps.sources[step]),
            tuple(k for k, is_known in enumerate(known) if not is_known),
        )

    def sources_alike(self) -> Counterexample | None:
        """Two sources of one step with the same code."""
        alike = (self.code[:, :, None] == self.code[:, None, :]) & ~self.same_key
        steps = alike.any((1, 2))
        if not steps.any():
            return None
        step = int(steps.argmax())
        one, other = (int(k) for k in np.argwhere(alike[step])[0])
        marks = tuple(self.mark(step, self.steps.sources[step, k]) for k in (one, other))
        return Counterexample(self.steps.operator, (self.words_of(self.code[step, one]),), marks)

    def sources_swapped(self) -> Counterexample | None:
        """A code that marks different slots at two steps."""
        code, role = self.code.ravel(), self.role.ravel()
        entry = np.unique(code, return_index=True)[1]  # the first entry of each code
        first, last = self.marked_by
        swapped = (role != role[entry][code]) & (first != last)[code]
        if not swapped.any():
            return None
        at = int(swapped.argmax())
        mine = np.flatnonzero(code == code[at])
        step = mine // self.steps.arity
        # Any entry of another step differs in role from the one found or from the first.
        for here in (at, int(mine[0])):
            differs = (role[mine] != role[here]) & (step != here // self.steps.arity)
            if differs.any():
                there = int(mine[differs.argmax()])
                return self._two(int(code[at]), *sorted((here, there)))
        return None

    def _two(self, code: int, one: int, other: int) -> Counterexample:
        """Two entries, counted through steps and slots, as a counterexample."""
        places = [divmod(entry, self.steps.arity) for entry in (one, other)]
        marks = tuple(self.mark(step, self.steps.sources[step, slot]) for step, slot in places)
        return Counterexample(self.steps.operator, (self.words_of(code),), marks)


def evaluate(phi: Phi, query: Ints, key: Ints, scale: Ints, narrow: bool = False) -> Codes:
    """The codes at positions that broadcast together, [*, component]; `narrow` asks for them in 32 bits."""
    kind = torch.int32 if narrow else torch.int64
    with torch.no_grad():
        codes = phi(*(torch.from_numpy(np.asarray(x)).to(kind) for x in (query, key, scale)))
    if codes.is_floating_point():
        raise UserError("a relation gives integer codes, and this one gives decimal numbers")
    return np.asarray((codes if narrow else codes.long()).numpy())


def source_codes(phi: Phi, operators: Sequence[Steps]) -> list[Ints]:
    """The codes of all sources of each operator, [step, slot, component], asked for by scale, or all at once if few."""
    scale = np.concatenate([np.repeat(steps.scale, steps.arity) for steps in operators])
    query = np.concatenate([np.repeat(steps.query, steps.arity) for steps in operators])
    key = np.concatenate([steps.sources.ravel() for steps in operators])
    if not len(key):
        return [np.zeros((len(steps), 0, 1), dtype=np.int64) for steps in operators]
    order = np.argsort(scale, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scale[order]) != 0, True)) + 1
    if len(key) <= BLOCK:
        found = [evaluate(phi, query[order], key[order], scale[order])]
    else:
        parts = [order[a:b] for a, b in zip(np.append(0, ends[:-1]), ends)]
        found = [evaluate(phi, query[part], key[part], scale[part[0]]) for part in parts]
    codes = np.empty((len(key), found[0].shape[-1]), dtype=np.int64)
    codes[order] = np.concatenate(found)
    each = np.split(codes, np.cumsum([steps.sources.size for steps in operators])[:-1])
    return [own.reshape(*steps.sources.shape, -1) for own, steps in zip(each, operators)]
