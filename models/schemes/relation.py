"""Position relations φ(i, j; n): codes of pairs of positions. Pairs with the same code are treated alike.

A relation is any function from query position i, key position j and scale n to whole numbers. Two kinds of relation
have more to them: *linear forms* of i, j and n, of which each small value points at one key, and relations of schemes
that have learned a *table* with one bias for each value of a component.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.devices import sent
from lengthlens.tasks.scale import size_of

Ints: TypeAlias = NDArray[np.int64]
Code: TypeAlias = tuple[int, ...]
Head: TypeAlias = tuple[int, int]  # (layer, head)
Phi: TypeAlias = Callable[[Tensor, Tensor, Tensor], Any]  # (i, j, n) that broadcast to codes [*] or [*, component]

FOLDED = 1 << 62  # rows of codes are folded into numbers below this
# What an entry must add to a score to count, from hardly felt to what only a strong head adds.
THRESHOLDS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)


def code_in_words(code: Code) -> str:
    """A code in words, where its scheme has none.

    >>> code_in_words((5,)), code_in_words((5, 0))
    ('code 5', 'code (5, 0)')
    """
    return f"code {code[0] if len(code) == 1 else code}"


@dataclass(frozen=True)
class Relation:
    """A position relation, how to say it, and what is known about it that saves work.

    >>> distance = Relation(lambda i, j, n: i - j, "i−j", uses_scale=False)
    >>> distance.table([5, 6], [0, 4], scale=3)[..., 0].tolist()
    [[5, 1], [6, 2]]
    """

    phi: Phi
    words: str = "a function"
    describe: Callable[[Code], str] = code_in_words  # a code in words: "distance 5"
    uses_scale: bool = True  # False promises that the scale makes no difference; True promises nothing
    whole_scale: bool = False  # whether φ takes the numbers of tuples, and not their largest lengths (tasks/fields.py)
    of_head: Callable[[int, int], Phi] | None = None  # φ of a (layer, head), where heads differ in it
    background: Code | None = None  # the code of all pairs but few …
    listed: Callable[[Ints, Ints], Ints] | None = None  # … whose keys these are, of queries and sizes: [query, key]
    component: int | None = None  # which component of a scheme's code this relation is, where it is only one
    kind: Hashable = None  # for one task, relations of one kind promise to have the same codes; None promises nothing

    def codes(self, query: ArrayLike, key: ArrayLike, scale: ArrayLike, head: Head | None = None) -> Ints:
        """φ at positions that broadcast together, [*, component]."""
        i, j, n = (torch.from_numpy(np.asarray(x, dtype=np.int64)) for x in (query, key, scale))
        n = n if self.whole_scale else size_of(n)
        phi = self.phi if head is None or self.of_head is None else self.of_head(*head)
        with torch.no_grad():
            codes = np.asarray(phi(i, j, n))
        if not np.issubdtype(codes.dtype, np.integer) and codes.dtype != np.bool_:
            raise UserError(f"a relation gives integer codes, not {codes.dtype} numbers")
        shape = np.broadcast_shapes(i.shape, j.shape, n.shape)
        if codes.ndim <= len(shape):
            codes = np.broadcast_to(codes, shape)[..., None]
        return np.broadcast_to(codes, (*shape, codes.shape[-1])).astype(np.int64, copy=False)

    def table(self, queries: Sequence[int], keys: Sequence[int], scale: int, head: Head | None = None) -> Ints:
        """φ at every query and key, [query, key, component]."""
        return self.codes(np.array(queries, dtype=np.int64)[:, None], np.array(keys, dtype=np.int64), scale, head)


BACK, BOTH = "i−j", "(i, j)"  # kinds of relations
DISTANCE = Relation(lambda i, j, n: i - j, "i−j", lambda code: f"distance {code[0]}", uses_scale=False, kind=BACK)


def numbered(codes: Ints) -> tuple[Ints, Ints]:
    """The distinct rows of `codes` [row, component], and for each row which of them it is.

    Exact, and faster than sorting whole rows: columns are folded into one number, by their ranks where it would be too
    large. Rows are in the order of their columns.

    >>> distinct, which = numbered(np.array([[5, 0], [7, 1], [5, 0]]))
    >>> distinct.tolist(), which.tolist()
    ([[5, 0], [7, 1]], [0, 1, 0])
    """
    number, span = np.zeros(len(codes), dtype=np.int64), 1  # of each row so far; all are below `span`
    for column in codes.T if len(codes) else ():
        low, high = int(column.min()), int(column.max())
        if span * (high - low + 1) > FOLDED:
            number, column = (np.unique(each, return_inverse=True)[1] for each in (number, column))
            span, low, high = int(number.max()) + 1, 0, int(column.max())
        number = number * (high - low + 1) + (column - low)
        span *= high - low + 1
    first, which = np.unique(number, return_index=True, return_inverse=True)[1:]
    return codes[first], which


def by_value(numbers: Ints) -> Iterator[tuple[int, Ints]]:
    """Each number that occurs, in order, and where.

    >>> [(n, where.tolist()) for n, where in by_value(np.array([7, 3, 7]))]
    [(3, [1]), (7, [0, 2])]
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(numbers) else order
    yield from zip(ordered[first].tolist(), np.split(order, first[1:]))


LARGEST_FACTOR = 1000  # factor of a form
MOST_FORMS = 96  # room for the wide family
WIDE = "wide"  # stands for the whole family of `wide_forms` where forms are listed
NOWHERE = -1  # in place of a key that is not there
TERM = re.compile(r"([+\-−]?)(\d*)([ijn]?)")


def summed(*terms: tuple[int, str]) -> str:
    """A sum in words.

    >>> summed((1, "f"), (-1, "P"), (2, "")), summed((0, "f"), (0, ""))
    ('f−P+2', '0')
    """
    text = ""
    for factor, letter in terms:
        if factor:
            sign = "−" if factor < 0 else "+" if text else ""
            text += f"{sign}{letter if abs(factor) == 1 and letter else f'{abs(factor)}{letter}'}"
    return text or "0"


class Form(NamedTuple):
    """u = query·i + key·j + scale·n + constant, with key ±1 or ±2, so that each value of u marks one key at a query.

    With ±2 it marks one at queries and scales of one residue only: i−2j = 0 is about even i.
    """

    query: int
    key: int
    scale: int
    constant: int = 0

    def __str__(self) -> str:
        """As it is written.

        >>> str(Form(1, 1, -2))
        'i+j−2n'
        """
        return summed(*zip(self, ("i", "j", "n", "")))

    def says(self, value: int) -> str:
        """That the form has a value, as an equation with i and j on the left.

        >>> Form(1, -1, -1).says(0), Form(1, -1, -1).says(2), Form(0, 1, 0).says(0)
        ('i−j = n', 'i−j = n+2', 'j = 0')
        """
        right = Form(0, 0, -self.scale, value - self.constant)
        return f"{Form(self.query, self.key, 0)} = {right}"


def key_with(form: tuple[Any, Any, Any, Any], value: Any, query: Any, scale: Any) -> Any:
    """The key at which a form has a value, seen from a query; it need not exist. Numbers, arrays or tensors.

    >>> key_with(Form(1, -1, -1), value=0, query=9, scale=4), key_with(Form(1, -2, 0), 0, 8, 4)
    (5, 4)
    >>> key_with(Form(1, -2, 0), value=0, query=9, scale=4) == NOWHERE
    True
    """
    a, b, c, d = form
    times_b = value - a * query - c * scale - d
    key = times_b // b
    return (key + 1) * (key * b == times_b) - 1


def marked_keys(forms: Sequence[Form], window: int, query: Tensor, scale: Tensor) -> Tensor:
    """The key at which each form has each value from −window to window, at each query; it need not exist.

    `query` [query], `scale` [row]; out [row, query, form, value].
    """
    value = torch.arange(-window, window + 1, device=query.device)
    a, b, c, d = sent(torch.tensor(forms, device="cpu"), query.device)[..., None].unbind(1)  # [form, 1] each
    keys: Tensor = key_with((a, b, c, d), value, query[:, None, None], scale[:, None, None, None])
    return keys


class Pointer(NamedTuple):
    """A form and one of its values: from a query it points at one key, or at none."""

    form: Form
    value: int

    def __str__(self) -> str:
        return self.form.says(self.value)

    @staticmethod
    def keys(pointers: "Sequence[Pointer]", query: Ints, scale: Ints) -> Ints:
        """The keys that pointers of one scheme point at from queries at scales; they need not exist. [step, pointer]"""
        form, value = np.array([one.form for one in pointers]).T, np.array([one.value for one in pointers])
        return np.asarray(key_with(tuple(form), value, query[:, None], size_of(scale)[:, None]))


@dataclass(eq=False)
class CodedForm:
    """A form coded by its small values: u where u counts, and OTHER elsewhere, which is window + 1."""

    form: Form
    counts: Tensor  # [value] from −window to window: which values have a code other than OTHER

    def __post_init__(self) -> None:
        self.window = len(self.counts) // 2
        self.other = self.window + 1

    def says(self, code: int) -> str | None:
        """That the form has a value, None for OTHER."""
        return self.form.says(code) if code <= self.window else None

    def relation(self, component: int) -> Relation:
        """This form alone, as one component of a relation."""

        def describe(code: Code) -> str:
            return self.says(code[0]) or f"a value of {self.form} outside its window"

        def phi(i: Tensor, j: Tensor, n: Tensor) -> Tensor:
            return codes_of_forms([self], i, j, n)

        pointers = [Pointer(self.form, value) for value in range(-self.window, self.window + 1)]
        about, listed = (phi, str(self.form), describe), partial(Pointer.keys, pointers)
        return Relation(*about, background=(self.other,), listed=listed, component=component)


def codes_of_forms(forms: Sequence[CodedForm], query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
    """The codes of forms with one window. [*broadcast, form]"""
    window, other, device = forms[0].window, forms[0].other, query_pos.device
    counts = sent(torch.stack([form.counts for form in forms]), device)
    values = torch.arange(-window, window + 1, device=device)
    # Beyond the window, at either end, is OTHER too.
    coded = nn.functional.pad(torch.where(counts, values, other), (1, 1), value=other)  # [form, value]
    a, b, c, d = sent(torch.tensor([form.form for form in forms], device="cpu"), device).unbind(1)
    value = d.addcmul(a, query_pos[..., None]).addcmul(b, key_pos[..., None]).addcmul(c, scale[..., None])
    first = torch.arange(len(forms), device=device) * coded.shape[1] + other  # the place of value 0 of each form
    return coded.flatten()[value.clamp_(-other, other).add_(first)]


class LearnedEntry(NamedTuple):
    """One (form, value) that a head attends to or avoids, and what it adds to the score there."""

    layer: int
    head: int
    form: Form
    value: int
    gate: float
    bias: float


def read_form(text: str) -> Form:
    """The form that a text spells.

    >>> read_form("i+j-2n-1")
    Form(query=1, key=1, scale=-2, constant=-1)
    """
    squeezed, factors, at = text.replace(" ", ""), Counter[str](), 0
    while at < len(squeezed):
        term = TERM.match(squeezed, at)
        if term is None or not (term[2] or term[3]) or (at and not term[1]):
            raise UserError(f"'{text}' is no linear form of i, j and n, such as 'i-j-2n+1'")
        size = int(term[2] or 1)
        factors[term[3]] += -size if term[1] in ("-", "−") else size
        at = term.end()
    if max(map(abs, factors.values()), default=0) > LARGEST_FACTOR:
        raise UserError(f"the form '{text}' has a factor of more than {LARGEST_FACTOR}")
    form = Form(factors["i"], factors["j"], factors["n"], factors[""])
    if abs(form.key) not in (1, 2):
        raise UserError(f"the form '{text}' must contain j or 2j, so that each of its values marks one key")
    return form


@cache
def wide_forms() -> tuple[Form, ...]:
    """Every form with factors of i and j up to 2 and of n up to 4 in size, each once, plain ones first.

    A form and its negative mark the same keys, and so do a form with even factors only and its half: one of them is
    there. Constants are left to the window of values.

    >>> len(wide_forms()), [str(form) for form in wide_forms()[:6]]
    (75, ['j', 'j−n', 'j+n', 'i+j', 'i−j', 'i+j−n'])
    """
    factors = itertools.product(range(3), (1, -1, 2, -2), range(-4, 5))
    forms = [Form(a, b, c) for a, b, c in factors if (a or b > 0) and any(x % 2 for x in (a, b, c))]
    return tuple(sorted(forms, key=lambda form: (sum(map(abs, form)), max(map(abs, form)), form.query, form.scale)))


def read_forms(text: str) -> tuple[Form, ...]:
    """The forms of a list with commas, each once; all of `wide_forms` for ``wide``.

    >>> [str(form) for form in read_forms("i-j, i-j-n")]
    ['i−j', 'i−j−n']
    """
    if text.strip() == WIDE:
        return wide_forms()
    parts = text.split(",")
    if len(parts) > MOST_FORMS:
        raise UserError(f"at most {MOST_FORMS} forms can be learned from, and {len(parts)} were given")
    return tuple(dict.fromkeys(read_form(part) for part in parts))


class CodeTable(NamedTuple):
    """What a scheme has learned for each value of one component of its code, as numbers that it adds to scores."""

    values: nn.Parameter  # [layer, head, entry], or [head, entry] where all layers share it
    first: int  # the value of the component at the first entry; the next entry belongs to the next value
    words: str  # the component: "min(i−j, max_distance)"


class LevelledTable:
    """A table of which some entries are made alike: in each head, they all get the table's median.

    Softmax does not feel what all entries have in common, so that it is the distance to the median that counts.
    """

    def __init__(self, table: CodeTable) -> None:
        self.table = table
        self.before = table.values.detach().clone()
        self.median = self.before.median(-1, keepdim=True).values
        self.distance = (self.before - self.median).abs()
        self.level = torch.zeros_like(self.before, dtype=torch.bool)  # which entries are alike, by head

    def where(self, level: Tensor) -> None:
        """Make these entries alike, and leave all others as they were trained."""
        with torch.no_grad():
            self.table.values.copy_(torch.where(level, self.median, self.before))
        self.level = level

    def alike(self, head: Head | None) -> Tensor:
        """Which entries are alike, in a (layer, head) or in all heads. [entry]"""
        if head is None:
            return self.level.flatten(0, -2).all(0)
        return (self.level if self.level.ndim == 2 else self.level[head[0]])[head[1]]

    def codes(self, code: Tensor, level: Tensor) -> Tensor:
        """The component's value where an entry stands out, and one value for all that are alike. `level` [entry]"""
        place = (code - self.table.first).clamp(0, len(level) - 1)
        alike = level[place] & (code >= self.table.first)
        return torch.where(alike, self.table.first + len(level), code)

    def in_words(self) -> str:
        stays = (~self.alike(None)).nonzero()[:, 0] + self.table.first
        return f"{self.table.words}: {' '.join(map(str, stays.tolist())) or 'none'}"


def pruned(phi: Phi, given: Sequence[CodeTable], unchanged: Callable[[], bool]) -> Relation:
    """Make entries alike, in place, that need not differ for `unchanged()` to stay true; the relation that is left.

    `phi` has one component for each table. First the largest threshold on the distance to the table's median, then
    whole tables, the weakest first.
    """
    tables = [LevelledTable(table) for table in given]
    for threshold in (*sorted(THRESHOLDS, reverse=True), None):
        for table in tables:
            table.where(torch.zeros_like(table.level) if threshold is None else table.distance <= threshold)
        if threshold is None or unchanged():
            break
    for table in sorted(tables, key=lambda table: float(table.distance.max())):
        level = table.level
        table.where(torch.ones_like(level))
        if not unchanged():
            table.where(level)

    def of(head: Head | None) -> Phi:
        def left(i: Tensor, j: Tensor, n: Tensor) -> Tensor:
            parts = phi(i, j, n).unbind(-1)
            return torch.stack([table.codes(part, table.alike(head).cpu()) for table, part in zip(tables, parts)], -1)

        return left

    words = f"what stands out by more than {threshold or 0:g} in {'; '.join(table.in_words() for table in tables)}"
    return Relation(of(None), words, of_head=lambda layer, head: of((layer, head)))
