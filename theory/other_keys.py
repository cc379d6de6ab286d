"""Whether keys that are not read bear the codes of those that are: every key of every step, block by block."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from lengthlens.models.codes import Ints
from lengthlens.theory.hashing import Bools, Codes, Hash
from lengthlens.theory.ledger import BLOCK, Counterexample, Ledger, Phi, evaluate

Listing: TypeAlias = Callable[[int], tuple[Ints, Ints]]  # scale to the queries and keys of the pairs listed

MOST_ROWS = 1 << 12
MOST_NARROW = 1 << 12  # codes that can be told apart by hashes of 32 bits, which are quicker


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
    relation: Relation, ledgers: Sequence[Ledger], isolated: Counterexample | None, stable: Counterexample | None
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
    relation: Relation, ledgers: Sequence[Ledger], isolated: Counterexample | None, stable: Counterexample | None
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
