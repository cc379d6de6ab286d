"""What a listing, or verdicts on all, show follows from the code alone and takes seconds.

So it is kept between calls, and what is shown by default comes with the package (``make listings``).
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lengthlens.errors import UserError
from lengthlens.files import cache_directory, make_directory, write_whole
from lengthlens.plugins.registry import named_anywhere

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = Path(__file__).with_name("listed")
ROOMS = ("tasks", "models", "plugins", "theory")  # the code that listings follow from
Rows = list[dict[str, Any]]


def listed(kind: str, make: Callable[[], Rows]) -> Rows:
    """The rows of a listing, made anew if the code has changed since they were kept, or if there are plug-ins."""
    if named_anywhere():
        return make()
    name, kept = f"{kind}-{state_of_code()}.json.gz", cache_directory()
    for folder in (SHIPPED, kept):
        with suppress(OSError, ValueError, EOFError, zlib.error):
            rows: Rows = json.loads(gzip.decompress((folder / name).read_bytes()))
            return rows
    made = make()
    with suppress(UserError, OSError):  # where nothing can be kept, a listing takes its time
        make_directory(kept)
        for old in kept.glob(f"{kind}-*.json*"):
            old.unlink()
        write_whole(kept / name, gzip.compress(json.dumps(made).encode(), mtime=0))
    return made


def state_of_code() -> str:
    """Changes with every file that a listing could follow from: its place and its text, whatever ends its lines."""
    found = hashlib.sha256()
    for path in sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        found.update(path.as_posix().encode() + (ROOT / path).read_bytes().replace(b"\r\n", b"\n"))
    return found.hexdigest()[:16]
