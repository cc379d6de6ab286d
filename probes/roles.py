"""Which codes a position relation gives to the keys that a circuit reads, and whether they can be told apart.

Everything here is exhaustive and exact up to the largest scale: every step of the circuit, every key that its query
sees. What makes a scale of a thousand quick: codes are compared by a hash (a hit is confirmed on the codes
themselves), a relation that does not look at the scale is evaluated once for all scales, one that gives a single
code to all but a few listed pairs is evaluated on those, and a property that has its counterexample is not looked at
any further.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lengthlens.models.codes import Ints, numbered
from lengthlens.registry import UserError
from lengthlens.tasks import Task

Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[Any]  # integers of 64 or 32 bits
Phi: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]  # (query, key, scale) to codes [*, component]
Listing: TypeAlias = Callable[[int], tuple[Ints, Ints]]  # scale to the queries and keys of the pairs listed

BLOCK = 1 << 16  # pairs looked at together: few enough to stay in the processor's cache
MOST_ROWS = 1 << 12
MOST_NARROW = 1 << 12  # codes that can be told apart by hashes of 32 bits, which are quicker
MOST_SOURCES = 1_000_000  # beyond the first new operator, circuits are read until this many sources: seconds


# -- the steps of a task ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """All steps of one operator, in the order of scale and query."""

    operator: str
    scale: Ints  # [step]
    query: Ints  # [step]
    sources: Ints  # [step, slot]
    slot_names: tuple[int, ...]  # counted from 1, as they are printed

    @property
    def arity(self) -> int:
        return int(self.sources.shape[1])

    def only(self, slot: int) -> "Steps":
        """The same steps as if they read one slot alone."""
        return replace(self, sources=self.sources[:, [slot]], slot_names=(self.slot_names[slot],))

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True)
class Program:
    """The circuits of a task at all scales up to `counted_to`, by operator.

    `counted_to` is the largest scale asked for, unless operators are still growing in number there and the circuits
    are too large to be read to the end.
    """

    operators: tuple[Steps, ...]
    declared_train: int
    declared_test: int
    counted_to: int

    @property
    def grows(self) -> bool:
        return self.declared_test > self.declared_train


def program_of(task: Task, train_max: int, test_max: int) -> Program:
    """Read the circuits of a task whose sources follow from positions."""
    parts: dict[str, list[tuple[int, Ints, Ints]]] = {}
    declared, work, scale = 0, 0, task.min_scale
    for scale in range(task.min_scale, test_max + 1):
        circuit = task.circuit(scale)
        for k, operator in enumerate(circuit.operators):
            mine = circuit.operator == k
            if mine.any():
                found = scale, circuit.query[mine], circuit.sources[mine, : operator.arity]
                parts.setdefault(operator.name, []).append(found)
        work += circuit.sources.size
        if scale <= train_max:
            declared = len(parts)
        elif len(parts) > declared and work > MOST_SOURCES:
            break
    steps = tuple(merged(name, found) for name, found in parts.items())
    return Program(steps, declared, len(parts), scale)


def merged(operator: str, parts: Sequence[tuple[int, Ints, Ints]]) -> Steps:
    sources = np.concatenate([part[2] for part in parts])
    return Steps(
        operator,
        np.repeat([part[0] for part in parts], [len(part[1]) for part in parts]),
        np.concatenate([part[1] for part in parts]),
        sources,
        tuple(range(1, sources.shape[1] + 1)),
    )


# -- what a relation makes of them ------------------------------------------------------------------------------


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
        return numbered(self.same_key.reshape(-1, self.steps.arity).astype(np.int64))[1].reshape(
            self.code.shape
        )

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
    def hash(self) -> "Hash":
        return Hash(self.codes)

    @cached_property
    def narrow_hash(self) -> "Hash":
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


class Hash:
    """Codes as single numbers, different for all the codes given: what differs in hash is a different code."""

    def __init__(self, codes: Codes) -> None:
        """`codes` [code, component], all different; the numbers are as wide as their components."""
        self.codes = codes
        self.factors: Codes | None = None
        rng, half = np.random.default_rng(0), 2 ** (8 * codes.itemsize - 2)
        of_codes = self(codes)
        while codes.shape[1] > 1 and (self.factors is None or len(np.unique(of_codes)) < len(codes)):
            self.factors = (rng.integers(-half, half, codes.shape[1]) | 1).astype(codes.dtype)
            of_codes = self(codes)
        self.of_codes = of_codes  # [code]
        self.order = np.argsort(of_codes)
        self.sorted = of_codes[self.order]

    def __call__(self, codes: Codes) -> Codes:
        """[*, component] to [*]"""
        if self.factors is None:  # one component: the codes are numbers already
            return codes[..., 0]
        total = codes[..., 0] * self.factors[0]  # wraps around, and may
        for k in range(1, codes.shape[-1]):
            total += codes[..., k] * self.factors[k]
        return np.asarray(total)

    @cached_property
    def table(self) -> Bools:
        """Which buckets hold a code, at least sixteen times as many as codes: a sieve in front of the search."""
        table = np.zeros(1 << max(16, (16 * len(self.sorted)).bit_length()), dtype=np.bool_)
        table[bucket(self.sorted, len(table))] = True
        return table

    def known(self, hashes: Codes) -> Bools:
        """Which hashes are those of the codes."""
        if len(self.sorted) <= 6:
            found = np.zeros(hashes.shape, dtype=np.bool_)
            for one in self.sorted:
                found |= hashes == one
            return found
        found = self.table[bucket(hashes, len(self.table))]
        rest = hashes[found]
        found[found] = self.sorted[self.place(rest)] == rest
        return found

    def place(self, hashes: Codes) -> Ints:
        return np.minimum(np.searchsorted(self.sorted, hashes), len(self.sorted) - 1)

    def index(self, codes: Codes) -> Ints:
        """Which of the codes each row of `codes` [row, component] is, or −1."""
        index = self.order[self.place(self(codes))]
        return np.where((self.codes[index] == codes).all(1), index, -1)


def bucket(hashes: Codes, buckets: int) -> Codes:
    """The upper bits of a product with an odd number, for hashes of 32 or 64 bits and a power of two of buckets."""
    shift = 8 * hashes.itemsize - (buckets.bit_length() - 1)
    if hashes.itemsize == 4:
        return np.asarray((hashes.view(np.uint32) * np.uint32(2654435769)) >> np.uint32(shift))
    return np.asarray((hashes.view(np.uint64) * np.uint64(11400714819323198485)) >> np.uint64(shift))


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


# -- what the other keys show -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relation:
    """A relation, and what is known about it that saves work."""

    phi: Phi
    by_scale: bool = True  # whether the scale makes a difference to it
    listed: Listing | None = None  # all pairs of an instance, but these, have the code `background`
    background: tuple[int, ...] | None = None
    describe: Callable[[tuple[int, ...]], str] = str  # a code in words
    component: int | None = None


class Rows:
    """Queries with all the keys they see: one row for each query of each scale, or of all scales together."""

    def __init__(self, relation: Relation, ledgers: Sequence[Ledger]) -> None:
        self.relation = relation
        self.ledgers = [ledger for ledger in ledgers if ledger.steps.arity]
        scale = np.concatenate([ledger.steps.scale for ledger in self.ledgers])
        query = np.concatenate([ledger.steps.query for ledger in self.ledgers])
        at = np.stack([scale if relation.by_scale else np.zeros_like(scale), query], 1)
        width = int(query.max()) + 1
        number, row = np.unique(at[:, 0] * width + at[:, 1], return_inverse=True)
        self.scale, self.query = number // width, number % width
        if not relation.by_scale:
            self.scale = np.full_like(self.query, scale[0])  # any will do
        ends = np.cumsum([len(ledger.steps) for ledger in self.ledgers])
        self.row = np.split(row, ends[:-1])  # for each ledger, the row of each step
        self.order = [np.argsort(rows, kind="stable") for rows in self.row]
        self.ordered = [rows[order] for rows, order in zip(self.row, self.order)]
        self.narrow = self._fit_into_32_bits()

    def _fit_into_32_bits(self) -> bool:
        """Whether the relation can be asked in 32 bits, which is quicker: tried on the first and the last rows."""
        if any(len(own.codes) > MOST_NARROW or (np.abs(own.codes) >= 2**31).any() for own in self.ledgers):
            return False
        size = len(self.query)
        for start, stop in {(0, min(4, size)), (max(0, size - 4), size)}:
            block = Block(self, start, stop)
            try:
                codes = block.evaluate(narrow=True)
            except (RuntimeError, IndexError):  # not every operation takes such integers
                return False
            if codes.dtype != np.int32 or not np.array_equal(codes, block.evaluate(narrow=False)):
                return False
        return True

    def hash_of(self, ledger: Ledger) -> Hash:
        return ledger.narrow_hash if self.narrow else ledger.hash

    def blocks(self) -> Iterator["Block"]:
        """A few rows at a time, in order."""
        start = 0
        while start < len(self.query):
            ahead = np.maximum.accumulate(self.query[start : start + MOST_ROWS]) + 1
            size = max(1, int(np.searchsorted(ahead * np.arange(1, len(ahead) + 1), BLOCK)))
            yield Block(self, start, min(start + size, len(self.query)))
            start += size

    def steps_in(self, which: int, start: int, stop: int) -> Ints:
        """The steps of one ledger that belong to some rows, in the order of scale and query."""
        a, b = np.searchsorted(self.ordered[which], [start, stop])
        return np.sort(self.order[which][a:b])


class Block:
    """Some rows, and the codes of all their keys."""

    def __init__(self, rows: Rows, start: int, stop: int) -> None:
        self.rows, self.start, self.stop = rows, start, stop
        self.query = rows.query[start:stop]
        self.scale = rows.scale[start:stop]
        self.keys = np.arange(int(self.query.max()) + 1)

    @cached_property
    def codes(self) -> Codes:
        """[row, key, component]; those of keys that are still to come mean nothing."""
        return self.evaluate(self.rows.narrow)

    def evaluate(self, narrow: bool) -> Codes:
        one_scale = bool((self.scale == self.scale[0]).all())
        scale = self.scale[0] if one_scale else self.scale[:, None]
        return evaluate(self.rows.relation.phi, self.query[:, None], self.keys, scale, narrow)

    def seen(self, found: Bools) -> Bools:
        """Of a table [row, key], in place, what the queries can see."""
        edge = int(self.query.min()) + 1
        found[:, edge:] &= self.keys[edge:] <= self.query[:, None]
        return found

    def unread_marked(self, ledger: Ledger, steps: Ints, row: Ints) -> tuple[Counterexample | None, bool]:
        """A step at which a code of the ledger marks a key that is not read, though at another step it is read.

        And whether all is well in this block: no code of a source is on any other key.
        """
        hash_ = self.rows.hash_of(ledger)
        hot = self.seen(hash_.known(hash_(self.codes)))
        suspects = hot.sum(1)[row] != ledger.keys_read[steps]
        for step, here in zip(steps[suspects], row[suspects]):
            keys = np.setdiff1d(np.flatnonzero(hot[here]), ledger.steps.sources[step])
            found = hash_.index(self.codes[here, keys])
            example = unread_at(ledger, int(step), keys, found)
            if example:
                return example, False
        return None, not suspects.any()

    def unread_alike(self, ledger: Ledger, steps: Ints, row: Ints) -> Counterexample | None:
        """A step at which some other key has the code of a source."""
        hash_ = self.rows.hash_of(ledger)
        hashes = hash_(self.codes)
        if not self.rows.relation.by_scale:
            suspects = self._repeated(hashes)[row[:, None], ledger.steps.sources[steps]].any(1)
        else:
            suspects = np.zeros(len(steps), dtype=np.bool_)
            for slot in range(ledger.steps.arity):
                wanted = hash_.of_codes[ledger.code[steps, slot]]
                same = np.zeros(hashes.shape, dtype=np.bool_)
                same[row] = hashes[row] == wanted[:, None]  # a query of one scale has one step
                suspects |= self.seen(same).sum(1)[row] > 1
        for step, here in zip(steps[suspects], row[suspects]):
            example = alike_at(ledger, int(step), self.codes[here, : self.query[here] + 1])
            if example:
                return example
        return None

    def _repeated(self, hashes: Ints) -> Bools:
        """Which keys share their hash with another key of the row. [row, key]"""
        repeated = np.zeros(hashes.shape, dtype=np.bool_)
        for k, query in enumerate(self.query):
            _, which, counts = np.unique(hashes[k, : query + 1], return_inverse=True, return_counts=True)
            repeated[k, : query + 1] = (counts > 1)[which]
        return repeated


def unread_at(ledger: Ledger, step: int, keys: Ints, found: Ints) -> Counterexample | None:
    """The first of the unread `keys` of a step whose code `found` marks a source at some other step."""
    first, last = ledger.marked_by
    wrong = (found >= 0) & ((first[found] != step) | (last[found] != step))
    if not wrong.any():
        return None
    code, key = int(found[wrong][0]), int(keys[wrong][0])
    marking = np.flatnonzero((ledger.code == code).any(1))
    other = int(marking[marking != step][0])
    marks = (ledger.mark(other, ledger.source_with(other, code)), ledger.mark(step, key))
    return Counterexample(ledger.steps.operator, (ledger.words_of(code),), marks)


def alike_at(ledger: Ledger, step: int, codes: Ints) -> Counterexample | None:
    """Another key of a step, whose keys have `codes` [key, component], with the code of a source."""
    for slot, key in enumerate(ledger.steps.sources[step]):
        same = (codes == codes[key]).all(1)
        same[key] = False
        if same.any():
            marks = ledger.mark(step, int(key)), ledger.mark(step, int(same.argmax()))
            code = ledger.words_of(int(ledger.code[step, slot]))
            return Counterexample(ledger.steps.operator, (code,), marks)
    return None


def examine_rows(
    relation: Relation,
    ledgers: Sequence[Ledger],
    isolated: Counterexample | None,
    stable: Counterexample | None,
) -> tuple[Counterexample | None, Counterexample | None]:
    """Look at every key of every step, until neither property is in doubt."""
    rows = Rows(relation, ledgers)
    for block in rows.blocks():
        if isolated and stable:
            break
        for which, ledger in enumerate(rows.ledgers):
            steps = rows.steps_in(which, block.start, block.stop)
            row = rows.row[which][steps] - block.start
            all_well = False
            if stable is None:
                stable, all_well = block.unread_marked(ledger, steps, row)
            if isolated is None and not all_well:
                isolated = block.unread_alike(ledger, steps, row)
    return isolated, stable


def examine_listed(
    relation: Relation,
    ledgers: Sequence[Ledger],
    isolated: Counterexample | None,
    stable: Counterexample | None,
) -> tuple[Counterexample | None, Counterexample | None]:
    """The same for a relation that lists the pairs worth a look: no source has the code of all others."""
    assert relation.listed is not None
    for scale in np.unique(np.concatenate([ledger.steps.scale for ledger in ledgers])):
        query, key = relation.listed(int(scale))
        codes = evaluate(relation.phi, query, key, scale)
        for ledger in ledgers:
            a, b = np.searchsorted(ledger.steps.scale, [scale, scale + 1])
            if a < b and ledger.steps.arity:
                isolated, stable = _listed_at(ledger, np.arange(a, b), query, key, codes, isolated, stable)
    return isolated, stable


def _listed_at(
    ledger: Ledger,
    steps: Ints,
    query: Ints,
    key: Ints,
    codes: Ints,
    isolated: Counterexample | None,
    stable: Counterexample | None,
) -> tuple[Counterexample | None, Counterexample | None]:
    """The listed pairs of one scale against the steps of one operator there."""
    found = ledger.hash.index(codes)
    size = int(query.max()) + 1
    hits = np.bincount(query[found >= 0], minlength=size)
    at = ledger.steps.query[steps]
    for step in steps[hits[np.minimum(at, size - 1)] != ledger.keys_read[steps]]:
        mine = np.flatnonzero((query == ledger.steps.query[step]) & (found >= 0))
        unread = mine[~np.isin(key[mine], ledger.steps.sources[step])]
        stable = stable or unread_at(ledger, int(step), key[unread], found[unread])
        for slot, source in enumerate(ledger.steps.sources[step]):
            same = mine[(found[mine] == ledger.code[step, slot]) & (key[mine] != source)]
            if len(same) and isolated is None:
                marks = ledger.mark(int(step), int(source)), ledger.mark(int(step), int(key[same[0]]))
                code = ledger.words_of(int(ledger.code[step, slot]))
                isolated = Counterexample(ledger.steps.operator, (code,), marks)
    return isolated, stable


# -- all together -----------------------------------------------------------------------------------------------


def ledgers_of(relation: Relation, operators: Sequence[Steps]) -> list[Ledger]:
    return [Ledger(steps, codes) for steps, codes in zip(operators, source_codes(relation.phi, operators))]


def examine(relation: Relation, operators: Sequence[Steps], train_max: int) -> Findings:
    """Everything that the definitions ask about a relation, with a counterexample for what does not hold."""
    ledgers = ledgers_of(relation, operators)
    covered = first_of(ledger.uncovered(train_max) for ledger in ledgers)
    isolated = first_of(ledger.sources_alike() for ledger in ledgers)
    stable = first_of(ledger.sources_swapped() for ledger in ledgers)
    if any(ledger.steps.arity for ledger in ledgers):
        sparse = relation.listed is not None and not any(
            (ledger.codes == np.array(relation.background)).all(1).any() for ledger in ledgers
        )
        look = examine_listed if sparse else examine_rows
        isolated, stable = look(relation, ledgers, isolated, stable)
    isolated, stable, covered = (worded(example, relation) for example in (isolated, stable, covered))
    train, test = counts([ledger.signature for ledger in ledgers], operators, train_max)
    return Findings(isolated, stable, covered, train, test)


def worded(example: Counterexample | None, relation: Relation) -> Counterexample | None:
    if example is None:
        return None
    return replace(example, words=tuple(map(relation.describe, example.codes)), component=relation.component)


def counts(signatures: Sequence[Ints], operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of distinct signatures up to `train_max`, and of all."""
    train = [len(np.unique(own[steps.scale <= train_max])) for own, steps in zip(signatures, operators)]
    return sum(train), sum(len(np.unique(own)) for own in signatures)


def sources_only(relation: Relation, operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of signatures up to `train_max`, and of all, without a look at any other key."""
    return counts([ledger.signature for ledger in ledgers_of(relation, operators)], operators, train_max)


# -- a relation that is still to be learned ---------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The relation that serves one slot of one operator best, out of a family of them."""

    operator: str
    slot: int
    name: str
    findings: Findings


def examine_family(
    family: Mapping[str, Relation], operators: Sequence[Steps], train_max: int
) -> tuple[Findings, list[Choice]]:
    """What the best choice within a family of relations makes of a program: one relation for each slot.

    A slot is served if its source is isolated, stable and covered under the relation chosen for it (a head can go by
    that relation alone). Findings are those of the first slot that nothing in the family serves.
    """
    choices, signatures = [], []
    for steps in operators:
        codes = [np.zeros(len(steps), dtype=np.int64)]
        for slot in range(steps.arity):
            own = steps.only(slot)
            best = best_of(family, own, train_max)
            choices.append(best)
            codes.append(ledgers_of(family[best.name], [own])[0].signature)
        signatures.append(numbered(np.stack(codes, 1))[1])
    unserved = [choice.findings for choice in choices if not choice.findings.possible]
    worst = unserved[0] if unserved else Findings(None, None, None, 0, 0)
    train, test = counts(signatures, operators, train_max)
    return replace(worst, src_train=train, src_test=test), choices


def best_of(family: Mapping[str, Relation], steps: Steps, train_max: int) -> Choice:
    """The first relation that serves a slot, or else the one that comes nearest; small scales decide on most."""
    few = up_to(steps, 2 * train_max)
    tried = {name: examine(relation, [few], train_max) for name, relation in family.items()}
    for name, findings in tried.items():
        if findings.possible:
            full = examine(family[name], [steps], train_max)
            tried[name] = full
            if full.possible:
                break
    name = min(tried, key=lambda name: tried[name].failures)
    return Choice(steps.operator, steps.slot_names[0], name, tried[name])


def up_to(steps: Steps, scale: int) -> Steps:
    last = int(np.searchsorted(steps.scale, scale, side="right"))
    return replace(steps, scale=steps.scale[:last], query=steps.query[:last], sources=steps.sources[:last])


def first_of(found: Iterator[Counterexample | None]) -> Counterexample | None:
    return next((one for one in found if one is not None), None)
