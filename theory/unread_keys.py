"""Whether keys that are no sources bear the codes of those that are: every key of every step, block by block."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from lengthlens.models.schemes.relation import Codes, Ints, Relation
from lengthlens.theory.steps import BLOCK, Bools, Counterexample, Hash, SourceCodes

MOST_ROWS = 1 << 12
MOST_NARROW = 1 << 12  # codes that can be told apart by hashes of 32 bits, which are quicker


class Rows:
    """Queries with all the keys they see: one row for each query of each scale, or of all scales together."""

    def __init__(self, relation: Relation, operators: Sequence[SourceCodes]) -> None:
        self.relation = relation
        self.operators = [operator for operator in operators if operator.steps.arity]
        scale = np.concatenate([operator.steps.scale for operator in self.operators])
        query = np.concatenate([operator.steps.query for operator in self.operators])
        at = np.stack([scale if relation.uses_scale else np.zeros_like(scale), query], 1)
        width = int(query.max()) + 1
        number, row = np.unique(at[:, 0] * width + at[:, 1], return_inverse=True)
        self.scale, self.query = number // width, number % width
        if not relation.uses_scale:
            self.scale = np.full_like(self.query, scale[0])  # any will do
        ends = np.cumsum([len(operator.steps) for operator in self.operators])
        self.row = np.split(row, ends[:-1])  # for each operator, the row of each step
        self.order = [np.argsort(rows, kind="stable") for rows in self.row]
        self.ordered = [rows[order] for rows, order in zip(self.row, self.order)]
        self.narrow = self._fit_into_32_bits()

    def _fit_into_32_bits(self) -> bool:
        """Whether the relation can be asked in 32 bits, which is quicker: tried on the first and the last rows."""
        if any(len(own.codes) > MOST_NARROW or (np.abs(own.codes) >= 2**31).any() for own in self.operators):
            return False
        size = len(self.query)
        for start, stop in {(0, min(4, size)), (max(0, size - 4), size)}:
            block = RowBlock(self, start, stop)
            try:
                codes = block.evaluate(narrow=True)
            except (RuntimeError, IndexError):  # not every operation takes such integers
                return False
            if codes.dtype != np.int32 or not np.array_equal(codes, block.evaluate(narrow=False)):
                return False
        return True

    def hash_of(self, operator: SourceCodes) -> Hash:
        return operator.narrow_hash if self.narrow else operator.hash

    def blocks(self) -> Iterator["RowBlock"]:
        """A few rows at a time, in order."""
        start = 0
        while start < len(self.query):
            ahead = np.maximum.accumulate(self.query[start : start + MOST_ROWS]) + 1
            size = max(1, int(np.searchsorted(ahead * np.arange(1, len(ahead) + 1), BLOCK)))
            yield RowBlock(self, start, min(start + size, len(self.query)))
            start += size

    def steps_in(self, which: int, start: int, stop: int) -> Ints:
        """The steps of one operator that belong to some rows, in the order of scale and query."""
        a, b = np.searchsorted(self.ordered[which], [start, stop])
        return np.sort(self.order[which][a:b])


class RowBlock:
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
        return self.rows.relation.codes(self.query[:, None], self.keys, scale, narrow=narrow)

    def seen(self, found: Bools) -> Bools:
        """Of a table [row, key], in place, what the queries can see."""
        edge = int(self.query.min()) + 1
        found[:, edge:] &= self.keys[edge:] <= self.query[:, None]
        return found

    def unread_marked(self, operator: SourceCodes, steps: Ints, row: Ints) -> tuple[Counterexample | None, bool]:
        """A step at which a code of a source marks a key that is not read, though at another step it is read.

        And whether all is well in this block: no code of a source is on any other key.
        """
        hash_ = self.rows.hash_of(operator)
        hot = self.seen(hash_.known(hash_(self.codes)))
        suspects = hot.sum(1)[row] != operator.keys_read[steps]
        for step, here in zip(steps[suspects], row[suspects]):
            keys = np.setdiff1d(np.flatnonzero(hot[here]), operator.steps.sources[step])
            found = hash_.index(self.codes[here, keys])
            example = unread_at(operator, int(step), keys, found)
            if example:
                return example, False
        return None, not suspects.any()

    def unread_alike(self, operator: SourceCodes, steps: Ints, row: Ints) -> Counterexample | None:
        """A step at which some other key has the code of a source."""
        hash_ = self.rows.hash_of(operator)
        hashes = hash_(self.codes)
        if not self.rows.relation.uses_scale:
            suspects = self._repeated(hashes)[row[:, None], operator.steps.sources[steps]].any(1)
        else:
            suspects = np.zeros(len(steps), dtype=np.bool_)
            for slot in range(operator.steps.arity):
                wanted = hash_.of_codes[operator.code[steps, slot]]
                same = np.zeros(hashes.shape, dtype=np.bool_)
                same[row] = hashes[row] == wanted[:, None]  # a query of one scale has one step
                suspects |= self.seen(same).sum(1)[row] > 1
        for step, here in zip(steps[suspects], row[suspects]):
            example = alike_at(operator, int(step), self.codes[here, : self.query[here] + 1])
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


def unread_at(operator: SourceCodes, step: int, keys: Ints, found: Ints) -> Counterexample | None:
    """The first of the unread `keys` of a step whose code `found` marks a source at some other step."""
    first, last = operator.marked_by
    wrong = (found >= 0) & ((first[found] != step) | (last[found] != step))
    if not wrong.any():
        return None
    code, key = int(found[wrong][0]), int(keys[wrong][0])
    marking = np.flatnonzero((operator.code == code).any(1))
    other = int(marking[marking != step][0])
    marks = (operator.mark(other, operator.source_with(other, code)), operator.mark(step, key))
    return Counterexample(operator.steps.operator, (operator.words_of(code),), marks)


def alike_at(operator: SourceCodes, step: int, codes: Ints) -> Counterexample | None:
    """Another key of a step, whose keys have `codes` [key, component], with the code of a source."""
    for slot, key in enumerate(operator.steps.sources[step]):
        same = (codes == codes[key]).all(1)
        same[key] = False
        if same.any():
            marks = operator.mark(step, int(key)), operator.mark(step, int(same.argmax()))
            code = operator.words_of(int(operator.code[step, slot]))
            return Counterexample(operator.steps.operator, (code,), marks)
    return None


def examine_rows(
    relation: Relation, operators: Sequence[SourceCodes], isolated: Counterexample | None, stable: Counterexample | None
) -> tuple[Counterexample | None, Counterexample | None]:
    """Look at every key of every step, until neither property is in doubt."""
    rows = Rows(relation, operators)
    for block in rows.blocks():
        if isolated and stable:
            break
        for which, operator in enumerate(rows.operators):
            steps = rows.steps_in(which, block.start, block.stop)
            row = rows.row[which][steps] - block.start
            all_well = False
            if stable is None:
                stable, all_well = block.unread_marked(operator, steps, row)
            if isolated is None and not all_well:
                isolated = block.unread_alike(operator, steps, row)
    return isolated, stable


def examine_listed(
    relation: Relation, operators: Sequence[SourceCodes], isolated: Counterexample | None, stable: Counterexample | None
) -> tuple[Counterexample | None, Counterexample | None]:
    """The same for a relation that lists the pairs worth a look: no source has the code of all others."""
    assert relation.listed is not None
    for scale in np.unique(np.concatenate([operator.steps.scale for operator in operators])):
        query, key = relation.listed(int(scale))
        codes = relation.codes(query, key, scale)
        for operator in operators:
            a, b = np.searchsorted(operator.steps.scale, [scale, scale + 1])
            if a < b and operator.steps.arity:
                isolated, stable = _listed_at(operator, np.arange(a, b), query, key, codes, isolated, stable)
    return isolated, stable


def _listed_at(
    operator: SourceCodes,
    steps: Ints,
    query: Ints,
    key: Ints,
    codes: Ints,
    isolated: Counterexample | None,
    stable: Counterexample | None,
) -> tuple[Counterexample | None, Counterexample | None]:
    """The listed pairs of one scale against the steps of one operator there."""
    found = operator.hash.index(codes)
    size = int(query.max()) + 1
    hits = np.bincount(query[found >= 0], minlength=size)
    at = operator.steps.query[steps]
    for step in steps[hits[np.minimum(at, size - 1)] != operator.keys_read[steps]]:
        mine = np.flatnonzero((query == operator.steps.query[step]) & (found >= 0))
        unread = mine[~np.isin(key[mine], operator.steps.sources[step])]
        stable = stable or unread_at(operator, int(step), key[unread], found[unread])
        for slot, source in enumerate(operator.steps.sources[step]):
            same = mine[(found[mine] == operator.code[step, slot]) & (key[mine] != source)]
            if len(same) and isolated is None:
                marks = operator.mark(int(step), int(source)), operator.mark(int(step), int(key[same[0]]))
                code = operator.words_of(int(operator.code[step, slot]))
                isolated = Counterexample(operator.steps.operator, (code,), marks)
    return isolated, stable
