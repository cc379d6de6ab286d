"""The one gate for files: regular, bounded, there whole or not at all, and a sentence when that cannot be had.

What is read is a regular file of bounded size, never a device, a pipe or a directory. What is written replaces a
regular file or nothing; a link is refused rather than followed or replaced. Files of a store are asked for by plain
names (`plain_name`) and are read, too, without following links.
"""

import errno
import hashlib
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lengthlens.errors import UserError
from lengthlens.values import is_clean, shown

PARTIAL = ".partial"  # how the name of a file ends while it is being written
LARGEST_FILE = 1 << 32  # bytes; no file of this project comes near it
LONGEST_NAME = 255  # bytes, on all usual file systems
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
SAFE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # a pipe never blocks
KINDS = {
    stat.S_IFDIR: "a directory", stat.S_IFLNK: "a link", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


class StorageError(UserError):
    """A file could not be read or written; what was there before is still there."""


@contextmanager
def attempt(what: str, path: Path) -> Iterator[None]:
    """A file operation whose failure is a sentence: "cannot write 'runs/a': No space left on device"."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {what} '{printable(path)}': {error.strerror or error}") from None
    except (ValueError, MemoryError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise StorageError(f"cannot {what} '{printable(path)}': {str(error) or 'it takes too much memory'}") from None


def printable(path: Path | str) -> str:
    """A path as a message shows it.

    >>> printable("caf\\udce9")
    'caf\\\\udce9'
    """
    return shown(str(path), 1000)[1:-1]


# -- what may be read and written --------------------------------------------------------------------------------


def plain_name(name: object) -> str:
    """The name of a file in a directory: no path, no hidden meaning, and of a length that file systems take.

    >>> plain_name("model.safetensors")
    'model.safetensors'

    Anything else, such as "../../etc/passwd", is a `StorageError`.
    """
    good = isinstance(name, str) and name not in ("", ".", "..") and is_clean(name) and not {"/", "\\"} & set(name)
    if not good or len(str(name).encode()) > LONGEST_NAME:
        raise StorageError(f"{shown(name)} is no plain name of a file")
    return str(name)


def kind_of(path: Path) -> str | None:
    """What is at a path, if it is no regular file: "a link", "a device"; None for a regular file or nothing.

    >>> kind_of(Path("/dev/null")), kind_of(Path("/nowhere"))
    ('a device', None)
    """
    with attempt("look at", path):
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
    return None if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "no regular file")


def replaceable(path: Path) -> Path:
    """The path itself, if it may be written: a regular file is there, or nothing.

    What is anything else is neither followed nor replaced, since whoever made it meant it to stay.
    """
    if str(path) in ("", ".") or not path.name:
        raise StorageError(f"'{printable(path)}' is no name of a file to write")
    if kind := kind_of(path):
        hint = f" to '{printable(path.readlink())}': name its target" if kind == "a link" else ""
        raise StorageError(f"cannot write '{printable(path)}': it is {kind}{hint or ', and only files are replaced'}")
    above = next((each for each in path.parents if os.path.lexists(each)), path)
    if above != path and not above.is_dir():
        raise StorageError(f"cannot write '{printable(path)}': '{printable(above)}' is no directory")
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whatever happens meanwhile, it has its old content or its new one.

    The bytes go to a new file beside it, onto the disk, and only then to the name.
    """
    replaceable(path)
    partial = path.with_name(f".{path.name[:64]}.{os.getpid()}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with attempt("write", path):
            with os.fdopen(
                os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | SAFE, 0o666), "wb"
            ) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync_directory(path.parent)
    except StorageError:
        remove_quietly(partial)
        raise


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, onto the disk, without following a link. One that was cut off before is ended first."""
    replaceable(path)
    with attempt("write", path):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_FOLLOW | SAFE, 0o666)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            whole = (b"\n" if torn else b"") + line + b"\n"
            written = file.write(whole)
            if written != len(whole):  # a disk that is nearly full: as if nothing had been written
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)


def read_whole(path: Path, most: int = LARGEST_FILE, follow: bool = True) -> bytes:
    """The bytes of a regular file that has at most so many; a link is followed only where the user named it."""
    with (
        attempt("read", path),
        os.fdopen(os.open(path, os.O_RDONLY | SAFE | (0 if follow else NO_FOLLOW)), "rb") as file,
    ):
        about = os.fstat(file.fileno())
        refuse_special(about.st_mode, path)
        if about.st_size > most:
            raise StorageError(f"cannot read '{printable(path)}': it has {about.st_size} bytes, more than {most}")
        return file.read(about.st_size)  # not `most`: room for so much would be asked for


def regular(path: Path) -> Path:
    """The path itself, if a regular file is there, links followed: for libraries that open files themselves."""
    with attempt("read", path):
        refuse_special(path.stat().st_mode, path)
    return path


def refuse_special(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        raise StorageError(f"cannot read '{printable(path)}': it is {KINDS.get(stat.S_IFMT(mode))}")


def set_aside(path: Path, folder: Path) -> Path:
    """Move whatever is at a path (a file, a link, a directory) into a folder, under a name that is free there."""
    make_directory(folder)
    target, k = folder / path.name, 1
    while kind_of(target) or target.exists():
        target, k = folder / f"{path.name}.{k}", k + 1
    with attempt("set aside", path):
        path.rename(target)
        sync_directory(path.parent)
    return target


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


def remove_quietly(path: Path) -> None:
    """Remove a file if it can be: a file system that lets nothing be written lets nothing be removed."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def cache_directory() -> Path:
    """Where the system keeps what can be made again."""
    usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or usual) / "lengthlens"


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock at `path`. Nothing is written, not even to the lock."""
    if os.name == "nt":  # pragma: no cover
        return False  # there only taking a lock would tell
    import fcntl

    try:
        with os.fdopen(os.open(path, os.O_RDONLY | NO_FOLLOW | SAFE), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False  # no one has ever locked it, or the file system has no locks


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
