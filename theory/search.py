"""Search for the program of a task, or of a network: the same engine, with other labels.

Queries of varied strings are given, each with the *label* that its program has to write: the true next token, or what a
network writes. A dictionary of slots is enumerated once, and each is one column: its value at every step. All steps
together, or else each kind of step (the first one, those whose query is a mark, all others) are explained by the first
of these that explains every label:

1. one slot, whose token is written as it is, moved by one in the order of symbols, or through a table;
2. rules of one slot, each under a guard, and one for the rest: of places alone;
3. a table of two places;
4. the same two with all slots, and a table of three.

What it finds is right on the steps that it was shown; `wrong_on` tries it on others.

>>> from lengthlens.tasks import TASKS
>>> print(ProgramSearch.of(TASKS["sort"], range(1, 9)).program())
least(prompt, x[j] new) or $
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations, islice

import torch
from torch import Tensor

from lengthlens.tasks import Task
from lengthlens.tasks.complexity import Labelled, steps_of
from lengthlens.tasks.program import (
    NONE,
    Compare,
    Condition,
    Guard,
    Ordinal,
    Pick,
    Place,
    Program,
    ProgramRule,
    Queries,
    Slot,
    Strings,
    aggregated,
    word_of,
)

MOST_VALUES = 16  # of a slot in a table: with more, most pairs of values are never seen
GUARD_VALUES = 6  # of a slot that is a guard
FEW_SYMBOLS = 12  # up to so many symbols are tried one by one in conditions
BEST = 24  # slots that are tried in pairs: those that alone tell most
BEST_PAIRS = 6  # pairs that are extended to triples
FEW_ROWS = 40  # of a table of two places that is taken before rules under guards
SEEN = 3  # how often each row of a table has to be seen, on average
MOST_CLASSED = 12  # symbols in sets that conditions name
MOST_GUARDS = 4  # rules of one kind of step beside the last
MOVES = {"same": 0, "next": 1, "previous": -1}

Allowed = Callable[[Slot], bool]


# -- the dictionary ----------------------------------------------------------------------------------------------------


def places(strings: Strings) -> Iterator[Place]:
    """Places counted from the query, from marks, and from marks and k; plain ones first."""
    yield from (Place("i", -c) for c in range(4))
    for by_k in (0, 1, -1):
        for mark in strings.marks:
            yield from (Place(mark, c, by_k) for c in (0, 1, -1, 2, -2))
    yield from (Place("n", c) for c in (0, 1, -1))


def classes(steps: Queries, labels: Tensor) -> Iterator[Condition]:
    """Sets of symbols: those that are written at first, those below each, every second one, and the rest of each."""
    strings = steps.strings
    words, written = strings.vocab[: strings.symbols], set(labels[steps.k == 0].tolist())
    sets = [written, *(set(range(c)) for c in range(2, len(words) - 1)), set(range(0, len(words), 2))]
    for some in sets if len(words) <= MOST_CLASSED else sets[:1]:
        for chosen in ([k for k in range(len(words)) if (k in some) == inside] for inside in (True, False)):
            if 1 < len(chosen) < len(words) and len(chosen) <= MOST_CLASSED:
                yield Condition("in", token=" ".join(words[k] for k in chosen))


def selectors(steps: Queries, labels: Tensor) -> Iterator[Pick]:
    """Keys by what they are: every region with every condition."""
    strings = steps.strings
    words = strings.vocab[: strings.symbols] if strings.symbols <= FEW_SYMBOLS else ()
    marks = list(strings.marks)
    inner = [mark for mark in marks if bool((strings.marks[mark] < strings.start).all()) and mark != strings.vocab[0]]
    regions = ["prompt", *(f"before {mark}" for mark in inner if int(strings.marks[mark].max()) > 1), "all"]
    equal = [Condition("=", left, Place("i", -back)) for left in (0, 1, 2) for back in (0, 1)]
    asked = [Condition("=", left, Place(mark, side)) for mark in marks for left in (0, 1) for side in (-1, 1)]
    ordered = [Condition(kind, 0, Place("i", -back)) for kind in "><" for back in (0, 1)]
    told = [Condition("is", left, token=word) for word in (*words, *inner) for left in (0, 1)]
    asked += [Condition("=", left, Place(mark, 1, by_k=1)) for mark in inner for left in (0, 1)]
    residues = [Condition("%", m, token=str(r)) for m in (2, 3) for r in range(m)]
    new = Condition("new")
    two = [(equal[2], Condition("=", 2, Place("i", -1))), (new, ordered[0]), (new, ordered[2])]
    for region in regions:
        yield Pick("any", region)
        for condition in (*equal, *asked, *ordered, new, *told, *residues, *classes(steps, labels)):
            yield Pick("any", region, (condition,))
        for both in two:
            yield Pick("any", region, both)


def columns(steps: Queries, labels: Tensor) -> Iterator[tuple[Slot, Tensor]]:
    """Every slot of the dictionary that is not the same at all steps, with its values. [step]"""
    plain: list[Slot] = [Ordinal(), Ordinal(2), Ordinal(3), *places(steps.strings)]
    yield from ((slot, slot.values(steps)) for slot in plain)
    for pick in selectors(steps, labels):
        mask = pick.picked(steps)
        if not bool(mask.any()):
            continue
        moved = [("first", 1), ("last", 1)] if pick.conditions and pick.conditions[0].kind in ("=", "is") else []
        if pick.conditions[:1] and pick.conditions[0].right.origin != "i":
            compare = Compare(pick, Pick("any", "answer"))
            yield compare, compare.values(steps)
        names = ["first", "last", "least", "greatest", "mode", "mode>", "any"]
        for name, left in [*((name, 0) for name in names), *moved]:
            yield Pick(name, pick.region, pick.conditions, left), aggregated(name, mask, steps, left)


class ProgramSearch:
    """Explains labels by slots.

    Arguments:
        steps: queries of strings.
        labels: what has to be written at each, as numbers. [step]
        words: what each number is, if not the vocabulary.
    """

    def __init__(self, steps: Queries, labels: Tensor, words: Sequence[str] | None = None) -> None:
        self.steps, self.labels, self.words = steps, labels, tuple(words or steps.strings.vocab)

    @classmethod
    def of(cls, task: Task, sizes: Iterable[int], seed: int = 0) -> "ProgramSearch":
        """With the true answers as labels, from instances of these sizes."""
        return cls(*steps_of(task, sizes, seed=seed))

    @cached_property
    def dictionary(self) -> tuple[list[Slot], Tensor]:
        """Every slot, and its values. [slot, step]"""
        slots, values = zip(*columns(self.steps, self.labels))
        return list(slots), torch.stack(values)

    def program(self, allowed: Allowed = lambda slot: True) -> Program | None:
        """The first program whose slots are all allowed; None if there is none within the bounds."""
        slots, values = self.dictionary
        chosen = [k for k, slot in enumerate(slots) if allowed(slot)]
        part = _Part(self, [slots[k] for k in chosen], values[chosen])
        every = torch.ones_like(self.labels, dtype=torch.bool)
        rules = part.explained(every)
        if rules is None:
            rules = []
            for guard, mask in self.kinds():
                found = part.explained(mask)
                if found is None:
                    return None
                rules += [replace_guards(rule, guard) for rule in found]
        return Program(tuple(rules))

    def closest(self, allowed: Allowed) -> tuple[ProgramRule, int] | None:
        """The rule of one slot that writes most labels, and the earliest step at which it is wrong."""
        slots, values = self.dictionary
        chosen = [k for k, slot in enumerate(slots) if allowed(slot) and writes_tokens(slot)]
        if not chosen:
            return None
        part = _Part(self, [slots[k] for k in chosen], values[chosen])
        best = int(part.wrong.sum(1).argmin())
        move, slot = divmod(best, len(chosen))
        rule = ProgramRule(
            operator=list(MOVES)[move], slots=(part.slots[slot],), default=self.words[int(part.default[slot])]
        )
        wrong = part.wrong[best].nonzero()[:, 0]
        if not len(wrong):
            return None
        length = self.steps.strings.start[self.steps.row[wrong]] * self.steps.strings.tokens.shape[1]
        return rule, int(wrong[(length + self.steps.query[wrong]).argmin()])

    def kinds(self) -> Iterator[tuple[tuple[Guard, ...], Tensor]]:
        """The first step, steps whose query is a mark, and all others: their guard, and which they are. [step]"""
        strings, token, first = self.steps.strings, Place("i").values(self.steps), self.steps.k == 0
        yield (Guard(Ordinal(), "0"),), first
        marks = ~first & (token >= strings.symbols)
        for mark in torch.unique(token[marks]).tolist():
            yield (Guard(Place("i"), strings.vocab[mark]),), marks & (token == mark)
        yield (), ~first & ~marks


def replace_guards(rule: ProgramRule, guards: tuple[Guard, ...]) -> ProgramRule:
    return ProgramRule((*guards, *rule.guards), rule.operator, rule.slots, rule.table, rule.default)


class _Part:
    """The slots that are allowed, and how well each explains the labels alone."""

    def __init__(self, search: ProgramSearch, slots: list[Slot], values: Tensor) -> None:
        self.search, self.slots, self.values = search, slots, values
        self.labels, self.words, symbols = search.labels, search.words, search.steps.strings.symbols
        token = torch.tensor([writes_tokens(slot) for slot in slots])[:, None]
        tokens = self.words == search.steps.strings.vocab  # else sets are written, and no slot has one
        symbol = (values >= 0) & (values < symbols) & token & tokens
        self.symbol, self.other = symbol.float(), ~symbol  # elsewhere a rule of one slot writes its default
        count = torch.zeros(len(slots), len(self.words)).scatter_add_(
            1, self.labels.expand_as(values), (~symbol).float()
        )
        self.default = count.argmax(1)  # [slot]
        by_default = ~symbol & (self.labels != self.default[:, None])
        moved = torch.stack([values + by for by in MOVES.values()])
        right = (moved == self.labels) & (moved >= 0) & (moved < symbols)  # [move, slot, step]
        self.wrong = ((symbol & ~right) | by_default).float().flatten(0, 1)  # [move·slot, step]

    def explained(self, mask: Tensor) -> list[ProgramRule] | None:
        """Rules for the steps of a mask; None if nothing within the bounds explains them."""
        if not bool(mask.any()):
            return []
        single = self.single(mask, self.explains(mask[None])[:, 0])
        if single is not None:
            return [single]
        plain = [k for k, slot in enumerate(self.slots) if isinstance(slot, Place | Ordinal)]
        by_place = _Part(self.search, [self.slots[k] for k in plain], self.values[plain])
        pairs = combinations(by_place.small(mask), 2)
        tables = [one for both in pairs if (one := by_place.table(both, mask))]
        small = next(([one] for one in tables if len(one.table) <= FEW_ROWS), None)
        return by_place.guarded(mask) or small or self.guarded(mask) or tables[:1] or self.tabled(mask)

    def explains(self, masks: Tensor) -> Tensor:
        """Which moves of which slots write what they should at all steps of masks [mask, step]. [move·slot, mask]"""
        weight = masks.float().T
        return (self.wrong @ weight == 0) & (self.symbol @ weight > 0).repeat(len(MOVES), 1)

    def single(self, mask: Tensor, explains: Tensor, tables: bool = True) -> ProgramRule | None:
        """The first rule of at most one slot that explains the steps of a mask; `explains` [move·slot] of that mask."""
        labels = self.labels[mask]
        if bool((labels == labels[0]).all()):
            return ProgramRule(operator="write", default=self.words[int(labels[0])])
        if bool(explains.any()):
            move, slot = divmod(int(explains.to(torch.uint8).argmax()), len(self.slots))
            default = self.words[int(self.default[slot])] if bool((mask & self.other[slot]).any()) else ""
            return ProgramRule(operator=list(MOVES)[move], slots=(self.slots[slot],), default=default)
        found = (self.table((k,), mask) for k in self.small(mask)) if tables else iter(())
        return next(filter(None, found), None)

    def small(self, mask: Tensor, most: int = MOST_VALUES) -> list[int]:
        """Slots with few values at the steps of a mask, but more than one."""
        values = self.values[:, mask].sort(1).values
        number = 1 + (values.diff(dim=1) != 0).sum(1)
        return ((number > 1) & (number <= most)).nonzero()[:, 0].tolist()

    def table(self, slots: tuple[int, ...], mask: Tensor) -> ProgramRule | None:
        """A table of slots, if the labels are a function of their values, each of which was seen often enough."""
        rows, which = torch.unique(self.values[list(slots)][:, mask], dim=1, return_inverse=True)
        labels = self.labels[mask]
        if rows.shape[1] * SEEN > len(labels) or rows.shape[1] < 2:
            return None
        first = torch.full((rows.shape[1],), NONE).scatter_(0, which, labels)
        if bool((first[which] != labels).any()):
            return None
        named, vocab = [self.slots[k] for k in slots], self.search.steps.strings.vocab
        keys = ([word_of(slot, value, vocab) for slot, value in zip(named, row)] for row in rows.T.tolist())
        written = (self.words[label] for label in first.tolist())
        return ProgramRule(operator="table", slots=tuple(named), table=tuple(zip(map(tuple, keys), written)))

    def guarded(self, mask: Tensor) -> list[ProgramRule] | None:
        """Rules under guards, one after the other, until what is left is explained by one rule.

        A guard is a slot of few values with one of them, or any slot where it has no symbol. At each turn that one is
        taken after which one rule explains the rest; else the one that covers most steps.
        """
        guards, left, rules = self.guards(mask), mask, list[ProgramRule]()
        every = torch.stack([where for _, _, where in guards]) if guards else mask[None][:0]
        for _ in range(MOST_GUARDS):
            masks, rests = left & every, left & ~every
            number, explains, explains_rest = masks.sum(1), self.explains(masks), self.explains(rests)
            useful = (number >= SEEN) & (number < left.sum())
            for k in (useful & explains_rest.any(0)).nonzero()[:, 0].tolist():
                rule = self.single(masks[k], explains[:, k], False)
                last = rule and self.single(rests[k], explains_rest[:, k], False)
                if rule and last:
                    return [*rules, self.under(guards[k], rule), last]
            ruled = ((k, self.single(masks[k], explains[:, k], False)) for k in largest(number, useful))
            k, rule = next(((k, rule) for k, rule in ruled if rule is not None), (0, None))
            if rule is None:
                return None
            rules.append(self.under(guards[k], rule))
            left = rests[k]
        return None

    def guards(self, mask: Tensor) -> list[tuple[int, int, Tensor]]:
        """Slots with a value, and the steps that have it."""
        few, guards = set(self.small(mask, GUARD_VALUES)), []
        for k in range(len(self.slots)):
            here = self.values[k, mask]
            if k not in few:
                here = here[self.other[k, mask]] if writes_tokens(self.slots[k]) else here[:0]
            for value in here.unique().tolist() if k in few or 0 < len(here) < int(mask.sum()) else ():
                guards.append((k, value, self.values[k] == value))
        return guards

    def under(self, guard: tuple[int, int, Tensor], rule: ProgramRule) -> ProgramRule:
        slot = self.slots[guard[0]]
        return replace_guards(rule, (Guard(slot, word_of(slot, guard[1], self.search.steps.strings.vocab)),))

    def tabled(self, mask: Tensor) -> list[ProgramRule] | None:
        """A table of two slots, or of three."""
        some = sorted(self.small(mask), key=lambda k: self.left_open((k,), mask))[:BEST]
        pairs = sorted(combinations(some, 2), key=lambda pair: self.left_open(pair, mask))
        triples = ((*pair, k) for pair in islice(pairs, BEST_PAIRS) for k in some if k not in pair)
        for chosen in (*pairs[:BEST], *triples):
            found = self.table(tuple(chosen), mask)
            if found is not None:
                return [found]
        return None

    def left_open(self, slots: tuple[int, ...], mask: Tensor) -> float:
        """How many labels the best table of these slots gets wrong, and a little for each of its rows."""
        values = self.values[list(slots)][:, mask] + 1
        code = values[0]
        for value in values[1:]:
            code = code * (int(value.max()) + 1) + value
        _, code = torch.unique(code, return_inverse=True)
        number = int(code.max()) + 1
        counts = torch.zeros(number * len(self.words), dtype=torch.long)
        counts.scatter_add_(0, code * len(self.words) + self.labels[mask], torch.ones_like(code))
        return float(mask.sum() - counts.view(number, -1).amax(1).sum()) + 1e-3 * number


def largest(number: Tensor, useful: Tensor) -> list[int]:
    """Where `useful`, those of the largest number first. Both [mask]"""
    return [k for k in number.argsort(descending=True, stable=True).tolist() if bool(useful[k])]


def writes_tokens(slot: Slot) -> bool:
    """Whether its values are tokens, which a rule can write."""
    return isinstance(slot, Place) or (isinstance(slot, Pick) and slot.aggregate != "any")


def wrong_on(program: Program, tried: Labelled) -> list[int]:
    """The steps at which the program writes something else."""
    numbers = {word: number for number, word in enumerate(tried.words)}
    return (program.writes(tried.steps, numbers) != tried.labels).nonzero()[:, 0].tolist()
