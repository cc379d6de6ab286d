"""Seeded mutations of bytes, of JSON, and of words on a command line."""

import json
import random
import re
from typing import Any

INTERESTING = [b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"{}", b"[]", b"null", b"NaN", b"-1", b"1e999", b"9" * 5000]
INTERESTING += [b"[" * 3000, b'{"a":' * 2000, b"true", b'""', b"\r\n", b"../../x", b"/dev/zero", b"=1+1", b"PAR1"]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.5, 1e308, float("inf"), float("nan"), "", "x",
    "\0", "é" * 300, "../../etc/passwd", "=cmd()", [], {}, [[]], {"a": {}}, [1, "2", None], "a" * 5000, "\ud800",
]  # fmt: skip


def mutate(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """The data with one to four changes of all sorts."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = chance.choice(MUTATIONS)(data, chance, others)
    return data


def flip(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    if not data:
        return b"\1"
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 20))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def lose(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.choice((1, 4, 64, 1000)) :]


def insert(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    start, own = chance.randrange(len(data) + 1), chance.choice(INTERESTING) or chance.randbytes(8)
    return data[:start] + own + data[start + chance.choice((0, len(own))) :]


def repeat(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    start = chance.randrange(len(data) + 1)
    part = data[start : start + chance.choice((1, 16, 200))]
    return data[:start] + part * chance.choice((2, 3, 50)) + data[start:]


def number(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Another number in the place of one."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data[:100_000]))
    if not found:
        return flip(data, chance, others)
    at, own = (
        chance.choice(found),
        chance.choice((b"-1", b"0", b"1.5", b"9" * 30, b"1e400", b"NaN", b'"x"', b"2147483648")),
    )
    return data[: at.start()] + own + data[at.end() :]


def other(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """The content of another file, or nothing."""
    return chance.choice([*others, b""])


def structure(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """JSON with another value, or another name, in one place."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return lines(data, chance, others)
    return json.dumps(replaced(value, chance), indent=chance.choice((None, 1))).encode("utf-8", "surrogatepass")


def lines(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Lines of a text in another order, or one of them changed."""
    found = data.split(b"\n")
    if len(found) < 2:
        return flip(data, chance, others)
    k = chance.randrange(len(found))
    if chance.random() < 0.5:
        found[k] = structure(found[k], chance, others) if found[k][:1] == b"{" else flip(found[k], chance, others)
    else:
        found.insert(chance.randrange(len(found)), found.pop(k))
    return b"\n".join(found)


def replaced(value: Any, chance: random.Random) -> Any:
    """The value with one part replaced, at whatever depth."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(list(value))
        if chance.random() < 0.15:
            return {(f"{key}x" if key == name else key): own for key, own in value.items()}
        if chance.random() < 0.1:
            return {key: own for key, own in value.items() if key != name}
        return {**value, name: replaced(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        k = chance.randrange(len(value))
        return [*value[:k], replaced(value[k], chance), *value[k + 1 :]]
    return chance.choice(VALUES)


MUTATIONS = (flip, cut, lose, insert, repeat, number, other, structure, structure, lines)
