"""Programs: rules that say, for each kind of step, what writes the next token of an answer.

A *rule* has guards, slots and an operator. A *slot* is one number for each step: the token at a place, or what a set of
keys has in common. A *guard* is a slot with a value; a rule holds where all its guards do. The *operator* turns the
values of the rule's slots into the next token: the token itself, the next or the one before it in the order of symbols,
or a table. The first rule whose guards hold writes.

Slots, as they are written, with i the query, j a key, and k how many tokens after the prompt the query is:

- ``x[i]``, ``x[i-2]``: the token there; ``x[^+1]``, ``x[=-1]``: counted from a mark; ``x[^+k+1]``, ``x[=-k-1]``: and
  from k; ``x[i-n]``: as far back as the first part of the prompt is long;
- ``first(prompt, x[j-1] = x[i])``: of the keys of the prompt whose left neighbour is the query's token, the first;
  ``first(prompt, x[j] = x[i])[-1]``: the token left of the first key that equals the query's token. Also ``last``,
  ``least``, ``greatest``, ``mode`` (the most frequent; ``mode>``: the greatest of the most frequent) and ``any``. The
  keys are those of the ``prompt``, of the ``answer``, ``all``, or those ``before`` a mark, under conditions: ``x[j-1] =
  x[i-1]``, ``x[j] > x[=-1]``, ``x[j-1] = 'w'``, ``x[j] in {'a' 'b'}``, ``j % 3 = 1`` (counted from the start of the
  prompt), ``x[j] new`` (not yet in the answer);
- ``count(…) - count(…)``: whether there are ``more``, ``equal`` or ``less`` keys of the first kind than of the second;
- ``k``: 0, 1, 2 or ``3+``; ``k % 2``.

A slot may have no value (nothing is picked, or the place does not exist): ``none``. ``or $`` writes ``$`` where the
value is none or a mark.

Worked example: sorting distinct symbols is one rule for the first symbol, and one for all others.

>>> sort = Program.parse("if k = 0: least(prompt); least(prompt, x[j] > x[i]) or $")
>>> sort.run("^ 3 1 2 =".split(), symbols="123")
['1', '2', '3', '$']
>>> print(sort)
if k = 0: least(prompt)
least(prompt, x[j] > x[i]) or $

The SRC of a program up to n is the number of its rules that write at some size up to n.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lengthlens.errors import UserError

NONE = -1  # the value of a slot that has none
BEGIN, END = "^", "$"
LONGEST = 10_000  # tokens that `Program.run` writes at most
AGGREGATES = ("first", "last", "least", "greatest", "mode", "mode>", "any")
REGIONS = ("prompt", "answer", "all")
OPERATORS = ("same", "next", "previous")
NO, YES = 0, 1
LESS, EQUAL, MORE = 0, 1, 2
NAMED_VALUES = {"no": NO, "yes": YES, "less": LESS, "equal": EQUAL, "more": MORE}
FAR = 3  # k is told up to here


class Strings:
    """Inputs as programs see them: tokens, where the prompt ends, where its marks stand, and the order of symbols.

    Arguments:
        tokens: ids [row, pos], padded at the end.
        vocab: the word of each id.
        start: the position of the last token of the prompt, [row].
        symbols: how many ids, from 0 on, are symbols in their order; all others are marks.
    """

    def __init__(self, tokens: Tensor, vocab: Sequence[str], start: Tensor, symbols: int) -> None:
        self.tokens, self.vocab, self.start, self.symbols = tokens.long(), tuple(vocab), start.long(), symbols
        self.ids = {word: k for k, word in enumerate(vocab)}
        self.place = torch.arange(tokens.shape[1], device=tokens.device)

    @cached_property
    def marks(self) -> dict[str, Tensor]:
        """Where each mark first stands in the prompt, [row]; NONE in rows without it."""
        inside = self.place <= self.start[:, None]
        found = {}
        for word in self.vocab[self.symbols :]:
            here = (self.tokens == self.ids[word]) & inside
            if bool(here.any()):
                found[word] = torch.where(here.any(1), here.to(torch.uint8).argmax(1), NONE)
        return found

    @cached_property
    def first_part(self) -> Tensor:
        """How many tokens the prompt has between its first token and the next mark. [row]"""
        later = (self.tokens >= self.symbols) & (self.place > 0) & (self.place <= self.start[:, None])
        return torch.where(later.any(1), later.to(torch.uint8).argmax(1), self.start + 1) - 1


class Queries(NamedTuple):
    """Queries of some strings, at which slots have values."""

    strings: Strings
    row: Tensor  # [step]
    query: Tensor  # [step]

    @property
    def k(self) -> Tensor:
        """How many tokens after the prompt each query is. [step]"""
        return self.query - self.strings.start[self.row]

    def at(self, place: Tensor) -> Tensor:
        """The tokens at places [step, *] of each step's row; NONE before the start and after the query."""
        row, query = (part.view(-1, *[1] * (place.ndim - 1)) for part in (self.row, self.query))
        there = (place >= 0) & (place <= query)
        return torch.where(there, self.strings.tokens[row, place.clamp(0, self.strings.tokens.shape[1] - 1)], NONE)


# -- slots -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The token at one place: of the query, of a mark, or n back, moved by `offset` and by `by_k` times k.

    >>> str(Place("^", 1, by_k=1)), str(Place("i", -2)), str(Place("n", 0))
    ('x[^+k+1]', 'x[i-2]', 'x[i-n]')
    """

    origin: str  # "i", "n" for i−n, or a mark
    offset: int = 0
    by_k: int = 0

    def __str__(self) -> str:
        origin = "i-n" if self.origin == "n" else self.origin
        k = {0: "", 1: "+k", -1: "-k"}[self.by_k]
        return f"x[{origin}{k}{f'{self.offset:+d}' if self.offset else ''}]"

    def where(self, steps: Queries) -> Tensor:
        """The place, which need not exist. [step]"""
        strings = steps.strings
        if self.origin in ("i", "n"):
            base = steps.query if self.origin == "i" else steps.query - strings.first_part[steps.row]
            exists: Tensor = torch.ones_like(base, dtype=torch.bool)
        elif self.origin in strings.marks:
            base = strings.marks[self.origin][steps.row]
            exists = base != NONE
        else:
            return torch.full_like(steps.query, NONE)
        return torch.where(exists, base + self.offset + self.by_k * steps.k, NONE)

    def values(self, steps: Queries) -> Tensor:
        return steps.at(self.where(steps))


@dataclass(frozen=True)
class Condition:
    """What keys have to be: x[j−left] compared with the token at a place or with given ones, or a residue of j.

    >>> str(Condition("=", 1)), str(Condition(">", 0, Place("=", -1))), str(Condition("in", 1, token="a b"))
    ('x[j-1] = x[i]', 'x[j] > x[=-1]', "x[j-1] in {'a' 'b'}")
    """

    kind: str  # "=", "<", ">", "is", "in", "%" or "new"
    left: int = 0  # of a residue, the modulus
    right: Place = Place("i")
    token: str = ""  # or several with spaces between them; of a residue, the residue

    def __str__(self) -> str:
        if self.kind == "%":
            return f"j % {self.left} = {self.token}"
        left = f"x[j{f'{-self.left:+d}' if self.left else ''}]"
        if self.kind == "is":
            return f"{left} = '{self.token}'"
        if self.kind == "in":
            words = " ".join(f"'{word}'" for word in self.token.split())
            return f"{left} in {{{words}}}"
        return f"{left} new" if self.kind == "new" else f"{left} {self.kind} {self.right}"

    def holds(self, steps: Queries, key: Tensor) -> Tensor:
        """Of which keys it is true. [step, key]"""
        if self.kind == "%":
            return (key - 1) % self.left == int(self.token)
        left = steps.at(key - self.left)
        if self.kind == "is":
            return left == steps.strings.ids.get(self.token, NONE - 1)
        if self.kind == "in":
            ids = [steps.strings.ids[word] for word in self.token.split() if word in steps.strings.ids]
            return torch.isin(left, torch.tensor(ids, device=left.device))
        if self.kind == "new":
            start = steps.strings.start[steps.row, None]
            written = torch.where((key > start) & (key <= steps.query[:, None]), steps.at(key), NONE)
            seen = torch.zeros(len(left), len(steps.strings.vocab) + 1, dtype=torch.bool, device=left.device)
            seen.scatter_(1, written % seen.shape[1], True)
            return ~seen.gather(1, left % seen.shape[1])
        right = self.right.values(steps)[:, None]
        if self.kind == "=":
            return (left == right) & (left != NONE)
        ordered = (left < steps.strings.symbols) & (right < steps.strings.symbols) & (left != NONE) & (right != NONE)
        return ordered & (left > right if self.kind == ">" else left < right)


@dataclass(frozen=True)
class Pick:
    """What the keys have in common that a selector picks.

    >>> str(Pick("last", "prompt", (Condition("=", 1),)))
    'last(prompt, x[j-1] = x[i])'
    """

    aggregate: str
    region: str
    conditions: tuple[Condition, ...] = ()
    left: int = 0  # of first and last: hands on the token so far left of the picked one

    @property
    def keys(self) -> str:
        return ", ".join([self.region, *map(str, self.conditions)])

    def __str__(self) -> str:
        return f"{self.aggregate}({self.keys}){f'[-{self.left}]' if self.left else ''}"

    def picked(self, steps: Queries) -> Tensor:
        """Which keys it picks, [step, key]. Of the prompt, symbols only."""
        strings, key = steps.strings, steps.strings.place.expand(len(steps.query), -1)
        written, symbol = key > strings.start[steps.row, None], strings.tokens[steps.row] < strings.symbols
        mask = key <= steps.query[:, None]
        if self.region.startswith("before "):
            end = strings.marks.get(self.region.removeprefix("before "))
            mask &= symbol & (key < (0 if end is None else end[steps.row, None]))
        else:
            mask &= {"prompt": ~written & symbol, "answer": written, "all": symbol}[self.region]
        for condition in self.conditions:
            mask &= condition.holds(steps, key)
        return mask

    def values(self, steps: Queries) -> Tensor:
        return aggregated(self.aggregate, self.picked(steps), steps, self.left)


def aggregated(name: str, mask: Tensor, steps: Queries, left: int = 0) -> Tensor:
    """What the keys of a mask [step, key] have in common. [step]"""
    strings = steps.strings
    if name == "any":
        return mask.any(1).long()
    tokens, number = strings.tokens[steps.row], strings.symbols
    if name in ("first", "last"):
        place = torch.where(mask, strings.place, NONE if name == "last" else mask.shape[1])
        place = place.amax(1) if name == "last" else place.amin(1)
        return steps.at(torch.where(mask.any(1), place - left, NONE))
    if name in ("least", "greatest"):
        token = torch.where(mask, tokens, NONE if name == "greatest" else number)
        extreme = token.amax(1) if name == "greatest" else token.amin(1)
        return torch.where(mask.any(1), extreme, NONE)
    counts = torch.zeros(len(mask), number, dtype=torch.long, device=mask.device)
    counts.scatter_add_(1, tokens.clamp(0, number - 1), mask.long())
    order = torch.arange(number, device=mask.device)
    best = (counts * number + (order if name == "mode>" else -order)).argmax(1)
    return torch.where(mask.any(1), best, NONE)


@dataclass(frozen=True)
class Compare:
    """Whether more keys are picked in one way than in another.

    >>> str(Compare(Pick("any", "prompt", (Condition("is", token="1"),)), Pick("any", "answer")))
    "count(prompt, x[j] = '1') - count(answer)"
    """

    one: Pick
    other: Pick

    def __str__(self) -> str:
        return f"count({self.one.keys}) - count({self.other.keys})"

    def values(self, steps: Queries) -> Tensor:
        return (self.one.picked(steps).sum(1) - self.other.picked(steps).sum(1)).sign() + EQUAL


@dataclass(frozen=True)
class Ordinal:
    """k itself, as far as 0, 1, 2 and more are told apart, or a residue of k."""

    modulus: int = 0

    def __str__(self) -> str:
        return f"k % {self.modulus}" if self.modulus else "k"

    def values(self, steps: Queries) -> Tensor:
        return steps.k % self.modulus if self.modulus else steps.k.clamp(max=FAR)


Slot: TypeAlias = Place | Pick | Compare | Ordinal


# -- rules and programs ------------------------------------------------------------------------------------------------


class Guard(NamedTuple):
    """A slot with one of its values, as words: a token, none, yes, no, more, equal, less, or a number."""

    slot: Slot
    value: str

    def __str__(self) -> str:
        return f"{self.slot} = {shown(self.slot, self.value)}"

    def holds(self, steps: Queries) -> Tensor:
        return self.slot.values(steps) == number_of(self.slot, self.value, steps.strings.ids)


def number_of(slot: Slot, word: str, ids: Mapping[str, int]) -> int:
    """A value as a number; one that nothing has for a token that the vocabulary lacks."""
    if word == "none":
        return NONE
    if isinstance(slot, Ordinal):
        return int(word.rstrip("+"))
    if isinstance(slot, Compare) or (isinstance(slot, Pick) and slot.aggregate == "any"):
        return NAMED_VALUES[word]
    return ids.get(word, NONE - 1)


def word_of(slot: Slot, number: int, vocab: Sequence[str]) -> str:
    """A value as a word."""
    if number == NONE:
        return "none"
    if isinstance(slot, Ordinal):
        return f"{number}+" if not slot.modulus and number == FAR else str(number)
    if isinstance(slot, Compare):
        return ("less", "equal", "more")[number]
    if isinstance(slot, Pick) and slot.aggregate == "any":
        return ("no", "yes")[number]
    return vocab[number]


def shown(slot: Slot, word: str) -> str:
    """A value as it is printed: tokens between quotes."""
    plain = (
        word == "none" or isinstance(slot, Ordinal | Compare) or (isinstance(slot, Pick) and slot.aggregate == "any")
    )
    return word if plain else f"'{word}'"


@dataclass(frozen=True)
class ProgramRule:
    """What is written where all guards hold: `operator` of `slots`.

    The operator is "same", "next" or "previous" of one slot's token, or "table"; "write" has no slots, and writes
    `default`. Where a slot's token is none or a mark, or the table has no entry, `default` is written, if there is one.
    """

    guards: tuple[Guard, ...] = ()
    operator: str = "same"
    slots: tuple[Slot, ...] = ()
    table: tuple[tuple[tuple[str, ...], str], ...] = ()  # from the slots' values to what is written
    default: str = ""

    def __str__(self) -> str:
        inside = ", ".join(map(str, self.slots))
        text = inside if self.operator == "same" else f"{self.operator}({inside})"
        if self.operator == "write":
            text = f"write '{self.default}'"
        elif self.operator == "table":
            rows = (f"{' '.join(shown(s, v) for s, v in zip(self.slots, key))} → {out}" for key, out in self.table)
            text = f"table({inside}) {{{', '.join(rows)}}}"
        if self.default and self.operator != "write":
            text += f" or {self.default}"
        guards = " and ".join(map(str, self.guards))
        return f"if {guards}: {text}" if guards else text

    def holds(self, steps: Queries) -> Tensor:
        """Where all guards hold. [step]"""
        held = torch.ones_like(steps.query, dtype=torch.bool)
        for guard in self.guards:
            held &= guard.holds(steps)
        return held

    def writes(self, steps: Queries, labels: Mapping[str, int]) -> Tensor:
        """The label of what it writes, NONE where it writes nothing. [step]"""
        default = labels.get(self.default, NONE)
        if self.operator == "write":
            return torch.full_like(steps.query, default)
        values = [slot.values(steps) for slot in self.slots]
        if self.operator != "table":
            (token,) = values
            moved = token + {"same": 0, "next": 1, "previous": -1}[self.operator]
            is_symbol = (token >= 0) & (token < steps.strings.symbols) & (moved >= 0) & (moved < steps.strings.symbols)
            return torch.where(is_symbol if self.default else token >= 0, moved, default)
        written = torch.full_like(steps.query, default)
        for words, out in self.table:
            here = torch.ones_like(steps.query, dtype=torch.bool)
            for slot, word, value in zip(self.slots, words, values):
                here &= value == number_of(slot, word, steps.strings.ids)
            written = torch.where(here, labels.get(out, NONE), written)
        return written


@dataclass(frozen=True)
class Program:
    """Rules, of which at each step the first whose guards hold writes the next token."""

    rules: tuple[ProgramRule, ...]

    @classmethod
    def parse(cls, text: str) -> "Program":
        """The program that a text spells: a rule a line, or with semicolons between them.

        >>> str(Program.parse("if x[i] = '=': x[^+1] ; first(prompt, x[j-1]=x[i]) or $").rules[1])
        'first(prompt, x[j-1] = x[i]) or $'
        """
        rules = tuple(_Reader(line).rule() for line in re.split(r"[;\n]", text) if line.strip())
        if not rules:
            raise UserError("a program needs at least one rule, such as 'x[i-n] or $'")
        return cls(rules)

    def __str__(self) -> str:
        return "\n".join(map(str, self.rules))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: each rule as text, and its number of slots."""
        return {"rules": [str(rule) for rule in self.rules]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Program":
        return cls.parse("\n".join(values["rules"]))

    @property
    def slots(self) -> Iterator[Slot]:
        """Every slot, those of guards, too."""
        for rule in self.rules:
            yield from (guard.slot for guard in rule.guards)
            yield from rule.slots

    def which(self, steps: Queries) -> Tensor:
        """The rule that writes at each step, NONE where none does. [step]"""
        chosen = torch.full_like(steps.query, NONE)
        for number, rule in enumerate(self.rules):
            chosen = torch.where((chosen == NONE) & rule.holds(steps), number, chosen)
        return chosen

    def writes(self, steps: Queries, labels: Mapping[str, int] | None = None) -> Tensor:
        """The id of the token that is written at each step; NONE where nothing is. [step]

        `labels` numbers what may be written, where that is not the vocabulary.
        """
        labels, chosen = labels or steps.strings.ids, self.which(steps)
        written = torch.full_like(steps.query, NONE)
        for number, rule in enumerate(self.rules):
            here = (chosen == number).nonzero()[:, 0]
            if len(here):
                part = Queries(steps.strings, steps.row[here], steps.query[here])
                written[here] = rule.writes(part, labels)
        return written

    def run(self, tokens: Sequence[str], symbols: Iterable[str], most: int = LONGEST) -> list[str]:
        """What it writes after a prompt, until it writes ``$`` or nothing. `symbols` in their order.

        >>> Program.parse("x[^+k+1] or $").run("^ b a =".split(), "ab")
        ['b', 'a', '$']
        """
        ordered = list(symbols)
        vocab = [*ordered, *dict.fromkeys(word for word in (*tokens, END) if word not in ordered)]
        ids, start, written = {word: k for k, word in enumerate(vocab)}, len(tokens) - 1, list[str]()
        while len(written) < most and written[-1:] != [END]:
            row = torch.tensor([[ids[word] for word in (*tokens, *written)]])
            strings = Strings(row, vocab, torch.tensor([start]), len(ordered))
            (out,) = self.writes(Queries(strings, torch.tensor([0]), torch.tensor([row.shape[1] - 1]))).tolist()
            if out == NONE:
                break
            written.append(vocab[out])
        return written


# -- reading -----------------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"\s*('(?:[^']|'')*'|→|->|x\[|[A-Za-z_]+>?|\d+\+?|[^\s])")


class _Reader:
    """Reads one rule from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text.strip(), 0
        self.parts = [match[1] for match in TOKEN.finditer(self.text)]

    def fail(self, wanted: str) -> UserError:
        here = self.parts[self.at] if self.at < len(self.parts) else "the end"
        return UserError(f"the rule '{self.text}' needs {wanted}, not {here}")

    def peek(self, *words: str) -> bool:
        return self.at < len(self.parts) and self.parts[self.at] in words

    def take(self, *words: str) -> str:
        if self.at >= len(self.parts) or (words and self.parts[self.at] not in words):
            raise self.fail(" or ".join(words) or "one thing more")
        self.at += 1
        return self.parts[self.at - 1]

    def number(self) -> int:
        sign = -1 if self.take("+", "-") == "-" else 1
        word = self.take()
        if not word.isdecimal():
            raise self.fail("a whole number")
        return sign * int(word)

    def rule(self) -> ProgramRule:
        guards = []
        if self.peek("if"):
            self.take("if")
            guards.append(self.guard())
            while self.peek("and"):
                self.take("and")
                guards.append(self.guard())
            self.take(":")
        operator, slots, table, default = self.written()
        if self.peek("or"):
            self.take("or")
            default = self.unquoted()
        if self.at < len(self.parts):
            raise self.fail("nothing more")
        return ProgramRule(tuple(guards), operator, slots, table, default)

    def written(self) -> tuple[str, tuple[Slot, ...], tuple[tuple[tuple[str, ...], str], ...], str]:
        if self.peek("write"):
            self.take()
            return "write", (), (), self.unquoted()
        if not self.peek("next", "previous", "table"):
            return "same", (self.slot(),), (), ""
        operator = self.take()
        self.take("(")
        slots = [self.slot()]
        while self.peek(","):
            self.take(",")
            slots.append(self.slot())
        self.take(")")
        rows = []
        if operator == "table":
            self.take("{")
            while not self.peek("}"):
                key = tuple(self.unquoted() for _ in slots)
                self.take("→", "->")
                rows.append((key, self.until(",", "}")))
                if self.peek(","):
                    self.take(",")
            self.take("}")
        elif len(slots) != 1:
            raise UserError(f"the rule '{self.text}' gives '{operator}' {len(slots)} slots: it takes one")
        return operator, tuple(slots), tuple(rows), ""

    def unquoted(self) -> str:
        word = self.take()
        return word[1:-1] if word.startswith("'") and len(word) > 1 else word

    def until(self, *ends: str) -> str:
        """A label, which may be a set of tokens and so have several parts."""
        words = [self.unquoted()]
        while not self.peek(*ends) and self.at < len(self.parts):
            words.append(self.unquoted())
        return "".join(words)

    def guard(self) -> Guard:
        slot = self.slot()
        self.take("=")
        return Guard(slot, self.unquoted())

    def slot(self) -> Slot:
        if self.peek("x["):
            return self.place()
        if self.peek("k"):
            self.take()
            if self.peek("%"):
                self.take()
                return Ordinal(self.bare())
            return Ordinal()
        if self.peek("count"):
            one = self.keys(self.take())
            self.take("-")
            return Compare(one, self.keys(self.take("count")))
        if not self.peek(*AGGREGATES):
            raise self.fail(f"a slot, which begins with x[, k, count or {', '.join(AGGREGATES)}")
        pick = self.keys(self.take())
        if self.peek("["):
            self.take("[")
            pick = replace(pick, left=-self.number())
            self.take("]")
        return pick

    def bare(self) -> int:
        word = self.take()
        if not word.isdecimal() or int(word) < 1:
            raise self.fail("a whole number of at least 1")
        return int(word)

    def place(self) -> Place:
        self.take("x[")
        origin, by_k, offset = self.unquoted(), 0, 0
        if origin == "i" and self.parts[self.at : self.at + 2] == ["-", "n"]:
            origin, self.at = "n", self.at + 2
        if self.parts[self.at + 1 : self.at + 2] == ["k"] and self.peek("+", "-"):
            by_k = 1 if self.take() == "+" else -1
            self.take("k")
        if self.peek("+", "-"):
            offset = self.number()
        self.take("]")
        return Place(origin, offset, by_k)

    def keys(self, aggregate: str) -> Pick:
        self.take("(")
        region, conditions = self.take(*REGIONS, "before"), []
        if region == "before":
            region += f" {self.unquoted()}"
        while self.peek(","):
            self.take(",")
            conditions.append(self.condition())
        self.take(")")
        return Pick("any" if aggregate == "count" else aggregate, region, tuple(conditions))

    def condition(self) -> Condition:
        if self.peek("j"):
            self.take()
            self.take("%")
            modulus = self.bare()
            self.take("=")
            return Condition("%", modulus, token=self.take())
        left = self.moved()
        if self.peek("new"):
            self.take()
            return Condition("new", left)
        if self.peek("in"):
            self.take("in")
            self.take("{")
            words = []
            while not self.peek("}"):
                words.append(self.unquoted())
            self.take("}")
            return Condition("in", left, token=" ".join(words))
        kind = self.take("=", "<", ">")
        if self.peek("x["):
            return Condition(kind, left, self.place())
        if kind != "=":
            raise self.fail("x[i]")
        return Condition("is", left, token=self.unquoted())

    def moved(self) -> int:
        """By how much a place is left of j."""
        self.take("x[")
        self.take("j")
        by = -self.number() if self.peek("+", "-") else 0
        self.take("]")
        return by
