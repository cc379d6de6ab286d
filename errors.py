"""Names that a user types, looked up with the nearest name as a hint, and the one exception for bad requests."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

Value = TypeVar("Value")
LONGEST = 200  # characters of a name in a message
MOST_LISTED = 40  # choices that a sentence names
MOST = 2000  # characters of a message, whatever value it names


# What makes a terminal do more than show: control characters but for new lines, tabs and the few styles that we
# write; separators of lines; and what turns the direction of a text.
CONTROL = re.compile("(?!\x1b\\[[014]m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    """A text as a terminal can show it on one line.

    >>> one_line("a\\nb\\x1b[2Jc\\ud800")
    'a b\\\\u001b[2Jc\\\\ud800'
    """
    text = " ".join(text.splitlines()).encode("utf-8", "backslashreplace").decode()
    return re.sub(f"{CONTROL.pattern}|\x1b", lambda found: f"\\u{ord(found[0]):04x}", text)


class UserError(ValueError):
    """What was asked for cannot be done; the message is one sentence that names the value and the choices.

    Whatever value it names, it is one line that can be printed, and not endless.
    """

    def __init__(self, message: str = "") -> None:
        message = one_line(message)
        super().__init__(message if len(message) <= MOST else f"{message[: MOST - 1]}…")


class ContractError(ValueError):
    """What a user's class, or a network from elsewhere, gives can be no result. Unlike the refusal of one thing that
    was asked for (`UserError`), this is passed over nowhere."""

    def __init__(self, message: str = "") -> None:
        super().__init__(str(UserError(message)))


class UnknownNameError(UserError, KeyError):
    """A name that is not registered. Also a KeyError, so that `Mapping.get` keeps its meaning."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class TooLongError(UserError):
    """A scheme cannot process a sequence of this length; the one failure that counts as a result of an evaluation."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among the choices.

    >>> print(unknown("task", "coppy", ["copy", "sort"]))
    unknown task 'coppy': did you mean 'copy'? The choices are: copy, sort
    """
    choices, name = list(choices), name if len(name) <= LONGEST else f"{name[:LONGEST]}…"
    nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f" did you mean '{nearest[0]}'?" if nearest else ""
    listed = f"The choices are: {', '.join(choices)}"
    if len(choices) > MOST_LISTED:
        near = difflib.get_close_matches(name, choices, n=8, cutoff=0.0)
        listed = f"The nearest of {len(choices)} choices are: {', '.join(near)}"
    return UnknownNameError(f"unknown {kind} '{name}':{hint} {listed}")


class Registry(Mapping[str, Value]):
    """A mapping from public names to values; a wrong key raises `UserError` with the nearest name.

    >>> fruits = Registry("fruit", {"apple": 1})
    >>> fruits.add("pear", 2)
    >>> list(fruits)
    ['apple', 'pear']
    """

    def __init__(self, kind: str, entries: Mapping[str, Value]) -> None:
        self._kind = kind
        self._entries = dict(entries)

    def add(self, name: str, value: Value) -> None:
        """Add an entry; a name that is taken is refused."""
        if name in self._entries:
            raise UserError(f"there is a {self._kind} '{name}' already")
        self._entries[name] = value

    def remove(self, name: str) -> None:
        """Take an entry out again."""
        self[name]  # refuses a name that is not there
        del self._entries[name]

    def __getitem__(self, name: str) -> Value:
        try:
            return self._entries[name]
        except KeyError:
            raise unknown(self._kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
