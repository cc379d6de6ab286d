"""The one gate for values from outside: arguments, TOML and JSON, stored files, configs of others.

A `Rule` says in words what a value must be, and checks it: ``whole(1, 9)(given, "--samples")`` gives the value back or
raises a `UserError` such as "--samples must be a whole number from 1 to 9, not 0". Rules nest (`list_of`, `map_of`,
`record`), and the sentence names the place. Bytes become values by `parse_json`, `parse_toml` and `parsed` alone, which
bound size and depth, and turn whatever goes wrong in a parser into a sentence.
"""

import io
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lengthlens.errors import UserError, one_line, unknown

LARGEST = 2**31 - 1  # of a whole number where no bound is given: as large as counts here ever get
MOST_TEXT = 4096  # characters of a text: the longest path of the system
MOST_ITEMS = 100_000  # of a list or a range
MOST_DEPTH = 32  # of lists in lists; what this project writes has five levels
MOST_BYTES = 1 << 26  # of a text that is parsed; ours take kilobytes
MOST_TOML, MOST_DOTS = 1 << 22, 1 << 24  # bytes; the squares of the dots in each line: a key of k parts takes k² room
MOST_HEADER = 1 << 23  # bytes of the header of a safetensors file: 60,000 tensors
MOST_CELLS = 50_000_000  # of a table; the largest study here has two millions

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Rule:
    """What a value from outside must be, and what its parts must be.

    >>> whole(1, 9)(3, "--samples")
    3
    >>> list_of(whole(1, 9))([3, "x"], "lengths")
    Traceback (most recent call last):
    lengthlens.errors.UserError: item 1 of lengths must be a whole number from 1 to 9, not 'x'
    """

    words: str
    holds: Callable[[Any], bool]
    parts: Callable[[Any], Iterable[tuple[str, Any, "Rule"]]] = lambda value: ()

    def __call__(self, value: Any, what: str) -> Any:
        """The value itself, if it is what it must be; `what` names it in the sentence that says otherwise."""
        if not self.holds(value):
            raise UserError(f"{what} must be {self.words}, not {shown(value)}")
        for place, part, rule in self.parts(value):
            rule(part, f"{place} of {what}")
        return value


def shown(value: object, most: int = 60) -> str:
    """A value as a message shows it: short, on one line, in characters that can be printed.

    >>> shown("a" * 100, 10), shown("caf\\udce9")
    ("'aaaaaaaa…", "'caf\\\\udce9'")
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer with too many digits to be written
        text = f"a {type(value).__name__}"
    text = one_line(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that spreadsheets run


def harmless_cell(value: Any) -> Any:
    """A cell of a csv file, with an apostrophe in front of a text that a spreadsheet would take for a formula.

    >>> harmless_cell("=1+1"), harmless_cell("fine"), harmless_cell(-1.0)
    ("'=1+1", 'fine', -1.0)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


# -- rules -------------------------------------------------------------------------------------------------------


def whole(low: int = 0, high: int = LARGEST) -> Rule:
    """A whole number; neither true nor 3.0 is one."""
    words = f"a whole number of at least {low}" if high >= LARGEST else f"a whole number from {low} to {high}"
    return Rule(words, lambda value: type(value) is int and low <= value <= high)


def real(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf, below: float = math.inf) -> Rule:
    """A finite number from `low` to `high`, more than `above` and less than `below`.

    >>> real(0, below=1)(1, "beta2")
    Traceback (most recent call last):
    lengthlens.errors.UserError: beta2 must be a number of at least 0 and below 1, not 1
    """
    bounds = {"of at least": low, "of at most": high, "above": above, "below": below}
    words = " and ".join(f"{name} {value:g}" for name, value in bounds.items() if math.isfinite(value))

    def holds(value: Any) -> bool:
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:  # neither NaN nor 10**400
            return False
        return bool(low <= value <= high and above < value < below)

    return Rule(f"a number {words}" if words else "a finite number", holds)


def text(most: int = MOST_TEXT) -> Rule:
    """A text of Unicode characters, without the one that ends texts in C."""
    return Rule(f"a text of at most {most} characters", lambda value: isinstance(value, str) and is_clean(value, most))


def is_clean(value: str, most: int = MOST_TEXT) -> bool:
    odd = not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)
    return len(value) <= most and "\0" not in value and not odd


def one_of(*choices: Any) -> Rule:
    """One of these values; true is not 1."""
    words = f"one of {', '.join(map(str, choices))}"
    return Rule(words, lambda value: any(type(value) is type(each) and value == each for each in choices))


def truth() -> Rule:
    return Rule("true or false", lambda value: type(value) is bool)


def anything() -> Rule:
    return ANYTHING


ANYTHING = Rule("anything", lambda value: True)


def optional(rule: Rule) -> Rule:
    """The same, or None."""
    return Rule(
        f"{rule.words}, or none",
        lambda value: value is None or rule.holds(value),
        lambda value: () if value is None else rule.parts(value),
    )


def list_of(rule: Rule, most: int = MOST_ITEMS) -> Rule:
    """A list of at most so many values that follow a rule."""
    return Rule(
        f"a list of at most {most} items",
        lambda value: isinstance(value, list | tuple | range) and len(value) <= most,
        lambda value: ((f"item {k}", item, rule) for k, item in enumerate(value)),
    )


def map_of(rule: Rule, most: int = MOST_ITEMS) -> Rule:
    """Values by name that all follow one rule."""
    return Rule(
        f"at most {most} values by name",
        lambda value: isinstance(value, Mapping) and len(value) <= most and all(map(text().holds, value)),
        lambda value: () if rule is ANYTHING else ((shown(name), item, rule) for name, item in value.items()),
    )


def record(
    kind: str, needed: Mapping[str, Rule], further: Mapping[str, Rule] | None = None, loose: bool = False
) -> Rule:
    """Values by name, each with its rule; those `needed` must be there, and others only if `loose`.

    >>> record("score", {"length": whole()})({"lenght": 3}, "a row")
    Traceback (most recent call last):
    lengthlens.errors.UnknownNameError: unknown entry of score 'lenght': did you mean 'length'? The choices are: length
    """
    known = {**needed, **(further or {})}

    def parts(value: Mapping[str, Any]) -> Iterable[tuple[str, Any, Rule]]:
        for name in value:
            if name not in known and not loose:
                raise unknown(f"entry of {kind}", name, known)
        for name in needed:
            if name not in value:
                raise UserError(f"a {kind} needs a {name}")
        return ((name, value[name], rule) for name, rule in known.items() if name in value)

    return Rule(f"a {kind}: values by name", lambda value: map_of(anything()).holds(value), parts)


# -- sizes -------------------------------------------------------------------------------------------------------


def within_memory(needed: float, what: str, allowed: int | None = None) -> None:
    """Refuse what takes more bytes than are `allowed`, or, without `allowed`, than this machine has.

    >>> within_memory(1.5e12, "a million steps", 1 << 30)
    Traceback (most recent call last):
    lengthlens.errors.UserError: a million steps would take 1397 GiB of memory, and 1 GiB may be used: ask for less
    """
    allowed = machine_memory() if allowed is None else allowed
    if needed > allowed:
        needed, most = (size / (1 << 30) for size in (needed, allowed))
        raise UserError(f"{what} would take {needed:.0f} GiB of memory, and {most:.0f} GiB may be used: ask for less")


def machine_memory() -> int:
    """Bytes of memory that this machine has; where the system does not say, more than any has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 50


# -- from text and bytes -----------------------------------------------------------------------------------------


def read_whole_number(given: str, what: str, low: int = 0, high: int = LARGEST) -> int:
    """A whole number from how it is written: digits 0 to 9, a sign, and no more than the number can have.

    >>> read_whole_number("-3", "--seed", -5)
    -3
    >>> read_whole_number("²", "--seed")
    Traceback (most recent call last):
    lengthlens.errors.UserError: --seed must be a whole number of at least 0, not '²'
    """
    plain = given.strip()
    digits = plain[1:] if plain[:1] in ("-", "+") else plain
    written = digits.isascii() and digits.isdigit() and len(digits) <= 20
    return int(whole(low, high)(int(plain) if written else given, what))


def parsed(parse: Callable[[], Parsed], what: str, kind: str) -> Parsed:
    """What a parser makes of data from outside. Whatever it raises says that the data are not of this kind.

    Parsers of other projects, given damaged bytes, raise errors of all kinds, so that every kind is caught.

    >>> parsed(lambda: [][0], "'a.csv'", "a table")
    Traceback (most recent call last):
    lengthlens.errors.UserError: 'a.csv' is not a table: list index out of range
    """
    try:
        return parse()
    except RecursionError:
        reason = "it is nested too deeply"
    except MemoryError:
        reason = "it does not fit into memory"
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    reason = reason.encode("utf-8", "backslashreplace").decode()
    raise UserError(f"{what} is not {kind}: {reason[:200]}")


def parse_json(data: bytes | str, what: str, rule: Rule | None = None) -> Any:
    """JSON of bounded size and depth, in UTF-8, that follows a rule.

    >>> parse_json(b'{"length": 3}', "the file", map_of(whole()))
    {'length': 3}
    >>> parse_json(b"[" * 99 + b"]" * 99, "the file")
    Traceback (most recent call last):
    lengthlens.errors.UserError: the file is nested too deeply: at most 32 levels can be read
    """
    return _plain(lambda: json.loads(_decoded(data)), data, what, "JSON", rule)


def parse_toml(data: bytes | str, what: str, rule: Rule | None = None) -> dict[str, Any]:
    """TOML of bounded size and depth, in UTF-8, that follows a rule."""
    lines = (data.encode("utf-8", "replace") if isinstance(data, str) else data).splitlines()
    if sum(each.count(b".") ** 2 for each in lines) > MOST_DOTS:
        raise UserError(f"{what} has more dots in a line than names and numbers need")
    read: dict[str, Any] = _plain(lambda: tomllib.loads(_decoded(data)), data, what, "TOML", rule, MOST_TOML)
    return read


def header_within(data: bytes, what: str) -> bytes:
    """The data of a safetensors file, if its header is not longer than any network's: it is parsed as a whole."""
    if (size := int.from_bytes(data[:8], "little")) > MOST_HEADER:
        raise UserError(f"{what} is not a safetensors file: it says that its header has {size} bytes")
    return data


def parse_parquet(data: bytes, what: str) -> Any:
    """A parquet file as an arrow table of bounded size: a few bytes can say that there are billions of rows."""

    def parse() -> Any:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # here, so that commands start quickly

        about = pq.ParquetFile(io.BytesIO(data)).metadata
        if about.num_rows * max(1, about.num_columns) > MOST_CELLS:
            raise UserError(f"it says that it has {about.num_rows} rows")
        return pq.read_table(io.BytesIO(data))

    return parsed(parse, what, "a table in parquet")


def _plain(
    parse: Callable[[], Any], data: bytes | str, what: str, kind: str, rule: Rule | None, most: int = MOST_BYTES
) -> Any:
    if len(data) > most:
        raise UserError(f"{what} has {len(data)} bytes, and at most {most} can be read as {kind}")
    value = parsed(parse, what, kind)
    if is_deeper(value, MOST_DEPTH):
        raise UserError(f"{what} is nested too deeply: at most {MOST_DEPTH} levels can be read")
    return rule(value, what) if rule else value


def _decoded(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8")


def is_deeper(value: Any, most: int) -> bool:
    """Whether lists and tables stand inside each other in more than so many levels.

    >>> is_deeper([[1]], 2), is_deeper([[1]], 1)
    (False, True)
    """
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return bool(parts) and (most == 0 or any(is_deeper(part, most - 1) for part in parts))


def split_list(text: str, mark: str = ",") -> list[str]:
    """The parts of a list between commas, those in parentheses apart.

    >>> split_list("layers(rope,none),alibi")
    ['layers(rope,none)', 'alibi']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == mark and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
