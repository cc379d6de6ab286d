"""The three properties that the verdict rests on: isolated, stable, covered.

Everything here is exhaustive and exact up to the largest n: every step of the circuit, every key that its query sees.
What makes n = 1,000 quick: codes are compared by a hash (a hit is confirmed on the codes themselves); a relation that
does not depend on n is evaluated once for all n; a relation that gives a single code to all but a few listed pairs is
evaluated on those; and a property is left alone once it has its counterexample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from lengthlens.models.schemes.relation import Ints, Relation, by_value, numbered
from lengthlens.tasks.scale import by_size
from lengthlens.theory.steps import Bools, Counterexample, SourceCodes, Steps, block_bounds, codes_of, source_codes

Found: TypeAlias = tuple[int, Counterexample | None] | None  # at a place among all steps
BLOCK = 1 << 16  # pairs compared together: few enough to stay in the processor's cache
FIRST_STEPS = 1 << 9  # steps that are tried first: most relations fail there


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

    def worded(self, relation: Relation) -> "Findings":
        """The same with its counterexamples in the words of a relation, which has these codes."""

        def said(example: Counterexample | None) -> Counterexample | None:
            if example is None:
                return None
            words = tuple(map(relation.describe, example.codes))
            return replace(example, words=words, component=relation.component)

        return replace(self, isolated=said(self.isolated), stable=said(self.stable), covered=said(self.covered))


def examine(relation: Relation, operators: Sequence[Steps], train_max: int) -> Findings:
    """What the definitions say of a relation, with a counterexample for each property that does not hold."""
    sources = source_codes(relation, operators)
    covered = next(filter(None, (each.uncovered(train_max) for each in sources)), None)
    isolated = next(filter(None, (each.sources_alike() for each in sources)), None)
    stable = next(filter(None, (each.sources_swapped() for each in sources)), None)
    if any(each.steps.arity for each in sources):
        sparse = relation.listed is not None and not any(
            (each.codes == np.array(relation.background)).all(1).any() for each in sources
        )
        examine_keys = examine_listed if sparse else examine_rows
        isolated, stable = examine_keys(relation, sources, isolated, stable)

    src = counts([each.signature for each in sources], operators, train_max)
    return Findings(isolated, stable, covered, *src).worded(relation)


def counts(signatures: Sequence[Ints], operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of distinct signatures up to `train_max`, and of all."""
    train = [len(np.unique(own[steps.size <= train_max])) for own, steps in zip(signatures, operators)]
    return sum(train), sum(len(np.unique(own)) for own in signatures)


def sources_only(relation: Relation, operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of signatures up to `train_max`, and of all; no other key is looked at."""
    once = [int(steps.size[0]) for steps in operators if len(steps) == 1]  # one step has one signature
    often = [steps for steps in operators if len(steps) > 1]
    if not often:
        return sum(scale <= train_max for scale in once), len(once)
    sizes, wide = [len(steps) for steps in often], max(steps.arity for steps in often)
    rows = np.full((sum(sizes), 1 + wide), -1)  # the number of the operator, and those of the codes. [step, 1 + slot]
    rows[:, 0] = np.repeat(np.arange(len(often)), sizes)
    rows[:, 1:][np.arange(wide) < np.repeat([steps.arity for steps in often], sizes)[:, None]] = numbered(
        codes_of(relation, often)
    )[1]
    trained = np.concatenate([steps.size for steps in often]) <= train_max
    train, test = (len({row.tobytes() for row in part}) for part in (rows[trained], rows))
    return train + sum(scale <= train_max for scale in once), test + len(once)


# -- every key of every step, block by block: does one that is no source have the code of a source? ------------------


class RowBlock:
    """Some queries and the codes of all keys that they see, a row for each query."""

    def __init__(self, relation: Relation, query: Ints, scale: Ints) -> None:
        self.relation, self.query = relation, query
        self.keys = np.arange(int(query.max()) + 1)
        one_scale = (scale == scale[0]).all()
        # [row, key, component]; codes of keys after the query mean nothing
        self.codes = relation.codes(query[:, None], self.keys, scale[0] if one_scale else scale[:, None])

    def seen(self, found: Bools) -> Bools:
        """A table [row, key] that is false, in place, where the query cannot see the key."""
        edge = int(self.query.min()) + 1
        found[:, edge:] &= self.keys[edge:] <= self.query[:, None]
        return found

    def unread_marked(self, operator: SourceCodes, steps: Ints, row: Ints) -> tuple[Counterexample | None, bool]:
        """A step at which the code of a source of another step marks a key that is not read; None if there is none.

        And whether no code of a source is on any other key in this block.
        """
        hot = self.seen(operator.hash.known(operator.hash(self.codes)))
        suspects = hot.sum(1)[row] != operator.steps.keys_read[steps]
        for step, here in zip(steps[suspects], row[suspects]):
            keys = np.setdiff1d(np.flatnonzero(hot[here]), operator.steps.sources[step])
            example = unread_at(operator, step, keys, operator.hash.index(self.codes[here, keys]))
            if example:
                return example, False
        return None, not suspects.any()

    def unread_alike(self, operator: SourceCodes, steps: Ints, row: Ints) -> Counterexample | None:
        """A step at which another key has the code of a source."""
        hashes = operator.hash(self.codes)
        if not self.relation.uses_scale:
            repeated = np.zeros(hashes.shape, dtype=np.bool_)  # which keys share their hash with another of the row
            alone = np.where(self.keys <= self.query[:, None], hashes, self.keys)  # keys after the query differ
            order = np.argsort(alone, 1)
            same = np.diff(np.take_along_axis(alone, order, 1)) == 0
            np.put_along_axis(repeated, order, np.pad(same, ((0, 0), (1, 0))) | np.pad(same, ((0, 0), (0, 1))), 1)
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
    operators = [operator for operator in operators if operator.steps.arity]
    scale = np.concatenate([operator.steps.scale for operator in operators])
    query = np.concatenate([operator.steps.query for operator in operators])
    if not relation.uses_scale:
        scale = np.full_like(scale, scale[0])  # any will do, and steps of all sizes share a row
    width = int(query.max()) + 1
    scales, scale = by_size(scale)
    number, row = np.unique(scale * width + query, return_inverse=True)
    scale, query = scales[number // width], number % width  # [row]
    row_of = np.split(row, np.cumsum([len(operator.steps) for operator in operators])[:-1])
    orders = [np.argsort(rows, kind="stable") for rows in row_of]
    for start, stop in block_bounds(query, BLOCK):
        if isolated and stable:
            break
        block = RowBlock(relation, query[start:stop], scale[start:stop])
        for operator, rows, order in zip(operators, row_of, orders):
            a, b = np.searchsorted(rows, [start, stop], sorter=order)
            steps = np.sort(order[a:b])  # of this block, in the order of size and query
            all_well = False
            if stable is None:
                stable, all_well = block.unread_marked(operator, steps, rows[steps] - start)
            if isolated is None and not all_well:
                isolated = block.unread_alike(operator, steps, rows[steps] - start)
    return isolated, stable


def examine_listed(
    relation: Relation, operators: Sequence[SourceCodes], isolated: Counterexample | None, stable: Counterexample | None
) -> tuple[Counterexample | None, Counterexample | None]:
    """As `examine_rows`, for a relation that lists all pairs but those with a background code no source has."""
    operators = [operator for operator in operators if operator.steps.arity]
    scale = np.concatenate([operator.steps.scale for operator in operators])
    number = np.repeat(np.arange(len(operators)), [len(operator.steps) for operator in operators])
    first = np.cumsum([0, *(len(operator.steps) for operator in operators)])
    order, start, size = np.lexsort((number, by_size(scale)[1])), 0, FIRST_STEPS
    while start < len(order) and not (isolated and stable):
        block = order[start : start + size]
        start, size = start + size, min(2 * size, BLOCK)
        parts = [in_list(relation, operators[k], block[own] - first[k], own) for k, own in by_value(number[block])]
        isolated = isolated or min(filter(None, (one for one, _ in parts)), key=itemgetter(0), default=(0, None))[1]
        stable = stable or min(filter(None, (one for _, one in parts)), key=itemgetter(0), default=(0, None))[1]
    return isolated, stable


def in_list(relation: Relation, operator: SourceCodes, steps: Ints, place: Ints) -> tuple[Found, Found]:
    """The first step at which another key has the code of a source, and the first at which the code of a source of
    another step marks a key that is not read; among some steps of an operator, at their `place` [step] in all."""
    assert relation.listed is not None
    about = operator.steps
    row, key = relation.listed(about.query[steps], about.scale[steps])
    code = operator.hash.index(relation.codes(about.query[steps[row]], key, about.scale[steps[row]]))
    row, key, code = row[code >= 0], key[code >= 0], code[code >= 0]  # [pair]
    step, sources = steps[row], about.sources[steps[row]]
    unread, (first, last) = (key[:, None] != sources).all(1), operator.marked_by
    alike = ((operator.code[step] == code[:, None]) & (sources != key[:, None])).any(1)

    def found(wrong: Bools, among: Bools, example: Callable[..., Counterexample | None]) -> Found:
        if not wrong.any():
            return None
        mine = among & (step == step[wrong.argmax()])
        return int(place[row[wrong.argmax()]]), example(operator, step[wrong.argmax()], key[mine], code[mine])

    marked = unread & ((first[code] != step) | (last[code] != step))
    return found(alike, code >= 0, alike_at), found(marked, unread, unread_at)
