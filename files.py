"""Files that are there whole or not at all, and a sentence when they cannot be written."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lengthlens.errors import UserError

PARTIAL = ".partial"  # how the name of a file ends while it is being written


class StorageError(UserError):
    """A file could not be read or written; what was there before is still there."""


@contextmanager
def attempt(what: str, path: Path) -> Iterator[None]:
    """A file operation whose failure is a sentence: "cannot write 'runs/a': No space left on device"."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {what} '{path}': {error.strerror or error}") from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whatever happens meanwhile, it has its old content or its new one.

    The bytes go to a file beside it, onto the disk, and only then to the name.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with attempt("write", path):
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync_directory(path.parent)
    except StorageError:
        remove_quietly(partial)
        raise


def sync_directory(path: Path) -> None:
    """Make a new name in a directory survive a power cut, where the system can."""
    if os.name == "nt":  # pragma: no cover
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    with attempt("make the directory", path):
        path.mkdir(parents=True, exist_ok=True)


def read_whole(path: Path) -> bytes:
    with attempt("read", path):
        return path.read_bytes()


def remove_quietly(path: Path) -> None:
    """Remove a file if it can be: a file system that lets nothing be written lets nothing be removed."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock at `path`. Nothing is written, not even to the lock."""
    if os.name == "nt":  # pragma: no cover
        return False  # there only taking a lock would tell
    import fcntl

    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False  # no one has ever locked it, or the file system has no locks


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
