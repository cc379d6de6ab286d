"""Files that are there whole or not at all, and a sentence when they cannot be written."""

import hashlib
import os
from pathlib import Path

from lengthlens.errors import UserError

PARTIAL = ".partial"  # how the name of a file ends while it is being written


class StorageError(UserError):
    """A file could not be read or written; what was there before is still there."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whatever happens meanwhile, it has its old content or its new one.

    The bytes go to a file beside it, onto the disk, and only then to the name.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        remove_quietly(partial)
        raise cannot("write", path, error) from None


def append_line(path: Path, line: str) -> None:
    """Add one line to a file, in a single write, so that lines of several processes never mix."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot("write", path, error) from None


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot("make the directory", path, error) from None


def read_whole(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot("read", path, error) from None


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot("remove", path, error) from None


def remove_partial(directory: Path) -> None:
    """Remove what a killed process left half-written."""
    for partial in directory.glob(f".*{PARTIAL}"):
        remove_quietly(partial)


def remove_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # a file system that lets nothing be written lets nothing be removed


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock at `path`. Nothing is written, not even to the lock."""
    if os.name == "nt":  # pragma: no cover
        return False  # there only taking a lock would tell
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False  # no one has ever locked it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks has no one who holds one
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make a new name in a directory survive a power cut, where the system can."""
    if os.name == "nt":  # pragma: no cover
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def cannot(what: str, path: Path, error: OSError) -> StorageError:
    """The sentence for a failed file operation.

    >>> print(cannot("write", Path("runs/a"), OSError(28, "No space left on device")))
    cannot write 'runs/a': No space left on device
    """
    return StorageError(f"cannot {what} '{path}': {error.strerror or error}")
