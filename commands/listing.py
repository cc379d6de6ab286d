"""What a listing, or verdicts on all, show is kept between calls: it follows from the code alone and takes seconds."""

import hashlib
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lengthlens.errors import UserError
from lengthlens.files import cache_directory, make_directory, write_whole
from lengthlens.plugins.registry import named_anywhere

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("tasks", "models", "plugins", "theory")  # the code that listings follow from
Rows = list[dict[str, Any]]


def listed(kind: str, make: Callable[[], Rows]) -> Rows:
    """The rows of a listing, made anew if the code has changed since they were kept, or if there are plug-ins."""
    if named_anywhere():
        return make()
    path = cache_directory() / f"{kind}-{state_of_code()}.json"
    with suppress(OSError, ValueError):
        rows: Rows = json.loads(path.read_bytes())
        return rows
    made = make()
    with suppress(UserError, OSError):  # where nothing can be kept, a listing takes its time
        make_directory(path.parent)
        for old in path.parent.glob(f"{kind}-*.json"):
            old.unlink()
        write_whole(path, json.dumps(made).encode())
    return made


def state_of_code() -> str:
    """Changes with every file that a listing could follow from: its place, its size, and when it was written."""
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    state = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr([sys.version, state]).encode()).hexdigest()[:16]
