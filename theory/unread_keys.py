"""Whether keys that are no sources bear the codes of those that are: every key of every step, block by block."""

from collections.abc import Iterator, Sequence

import numpy as np

from lengthlens.models.schemes.relation import Ints, Relation
from lengthlens.theory.steps import BLOCK, Bools, Counterexample, SourceCodes

MOST_ROWS = 1 << 12


class Rows:
    """Queries with all the keys they see: one row for each query of each scale, or of all scales together."""

    def __init__(self, relation: Relation, operators: Sequence[SourceCodes]) -> None:
        self.relation = relation
        self.operators = [operator for operator in operators if operator.steps.arity]
        scale = np.concatenate([operator.steps.scale for operator in self.operators])
        query = np.concatenate([operator.steps.query for operator in self.operators])
        if not relation.uses_scale:
            scale = np.full_like(scale, scale[0])  # any will do
        width = int(query.max()) + 1
        number, row = np.unique(scale * width + query, return_inverse=True)
        self.scale, self.query = number // width, number % width
        ends = np.cumsum([len(operator.steps) for operator in self.operators])
        self.row = np.split(row, ends[:-1])  # for each operator, the row of each step
        self.order = [np.argsort(rows, kind="stable") for rows in self.row]

    def blocks(self) -> Iterator["RowBlock"]:
        """A few rows at a time, in order."""
        start = 0
        while start < len(self.query):
            ahead = np.maximum.accumulate(self.query[start : start + MOST_ROWS]) + 1
            size = max(1, int(np.searchsorted(ahead * np.arange(1, len(ahead) + 1), BLOCK)))
            yield RowBlock(self, start, min(start + size, len(self.query)))
            start += size


class RowBlock:
    """Some rows, and the codes of all their keys."""

    def __init__(self, rows: Rows, start: int, stop: int) -> None:
        self.rows, self.start, self.stop = rows, start, stop
        self.query, self.scale = rows.query[start:stop], rows.scale[start:stop]
        self.keys = np.arange(int(self.query.max()) + 1)
        one_scale = (self.scale == self.scale[0]).all()
        # [row, key, component]; those of keys that are still to come mean nothing
        self.codes = rows.relation.codes(
            self.query[:, None], self.keys, self.scale[0] if one_scale else self.scale[:, None]
        )

    def seen(self, found: Bools) -> Bools:
        """Of a table [row, key], in place, what the queries can see."""
        edge = int(self.query.min()) + 1
        found[:, edge:] &= self.keys[edge:] <= self.query[:, None]
        return found

    def unread_marked(self, operator: SourceCodes, steps: Ints, row: Ints) -> tuple[Counterexample | None, bool]:
        """A step at which a code of a source marks a key that is not read, though at another step it is read.

        And whether all is well in this block: no code of a source is on any other key.
        """
        hot = self.seen(operator.hash.known(operator.hash(self.codes)))
        suspects = hot.sum(1)[row] != operator.keys_read[steps]
        for step, here in zip(steps[suspects], row[suspects]):
            keys = np.setdiff1d(np.flatnonzero(hot[here]), operator.steps.sources[step])
            example = unread_at(operator, step, keys, operator.hash.index(self.codes[here, keys]))
            if example:
                return example, False
        return None, not suspects.any()

    def unread_alike(self, operator: SourceCodes, steps: Ints, row: Ints) -> Counterexample | None:
        """A step at which some other key has the code of a source."""
        hashes = operator.hash(self.codes)
        if not self.rows.relation.uses_scale:
            repeated = np.zeros(hashes.shape, dtype=np.bool_)  # which keys share their hash with another of the row
            for k, query in enumerate(self.query):
                _, which, counts = np.unique(hashes[k, : query + 1], return_inverse=True, return_counts=True)
                repeated[k, : query + 1] = (counts > 1)[which]
            suspects = repeated[row[:, None], operator.steps.sources[steps]].any(1)
        else:
            suspects = np.zeros(len(steps), dtype=np.bool_)
            for slot in range(operator.steps.arity):
                wanted = operator.hash.of_codes[operator.code[steps, slot]]
                same = np.zeros(hashes.shape, dtype=np.bool_)
                same[row] = hashes[row] == wanted[:, None]  # a query of one scale has one step
                suspects |= self.seen(same).sum(1)[row] > 1
        for step, here in zip(steps[suspects], row[suspects]):
            keys = self.keys[: self.query[here] + 1]
            example = alike_at(operator, step, keys, operator.hash.index(self.codes[here, keys]))
            if example:
                return example
        return None


def unread_at(operator: SourceCodes, step: int, keys: Ints, found: Ints) -> Counterexample | None:
    """The first of the unread `keys` of a step whose code `found` marks a source at some other step."""
    first, last = operator.marked_by
    wrong = (found >= 0) & ((first[found] != step) | (last[found] != step))
    if not wrong.any():
        return None
    code = found[wrong][0]
    marking = np.flatnonzero((operator.code == code).any(1))
    other = marking[marking != step][0]
    source = operator.steps.sources[other, (operator.code[other] == code).argmax()]
    return operator.example(code, (other, source), (step, keys[wrong][0]))


def alike_at(operator: SourceCodes, step: int, keys: Ints, found: Ints) -> Counterexample | None:
    """The first of the `keys` of a step whose code `found` is that of a source, and which is not that source."""
    for code, source in zip(operator.code[step], operator.steps.sources[step]):
        same = keys[(found == code) & (keys != source)]
        if len(same):
            return operator.example(code, (step, source), (step, same[0]))
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
            order, of_step = rows.order[which], rows.row[which]
            a, b = np.searchsorted(of_step, [block.start, block.stop], sorter=order)
            steps = np.sort(order[a:b])  # those of this block, in the order of scale and query
            row = of_step[steps] - block.start
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
        for operator in (operator for operator in operators if operator.steps.arity):
            a, b = np.searchsorted(operator.steps.scale, [scale, scale + 1])
            found = operator.hash.index(codes)
            hits = np.bincount(query[found >= 0], minlength=int(query.max()) + 1)
            at = np.minimum(operator.steps.query[a:b], len(hits) - 1)
            for step in a + np.flatnonzero(hits[at] != operator.keys_read[a:b]):
                mine = np.flatnonzero((query == operator.steps.query[step]) & (found >= 0))
                unread = mine[~np.isin(key[mine], operator.steps.sources[step])]
                stable = stable or unread_at(operator, step, key[unread], found[unread])
                isolated = isolated or alike_at(operator, step, key[mine], found[mine])
    return isolated, stable
