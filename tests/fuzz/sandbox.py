"""A process that can do no harm: without root's rights, and able to write in one directory only.

Whoever is root becomes `nobody`. Landlock (Linux 5.13 and newer) then lets the process, and all that it starts, write,
make, rename and remove files beneath its own directory alone, signal nobody outside, and connect to nothing, whatever
path or address a mutated argument names. Where neither can be had, `enter` refuses, and nothing is attacked.
"""

import ctypes
import os
import resource
import signal
import struct
import tempfile
from pathlib import Path

NOBODY = 65534
NO_NEW_PRIVS, CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 38, 444, 445, 446
WRITE_FILE, TRUNCATE, IOCTL = 1 << 1, 1 << 14, 1 << 15
CHANGES = sum(1 << bit for bit in range(4, 13))  # remove, and make files of every kind
REFER, TCP, SCOPES = 1 << 13, 0b11, 0b11
MEMORY = 2 << 30  # bytes


class CannotDropError(Exception):
    """This machine offers no way to make sure that nothing is harmed."""


def make_directory() -> Path:
    """A directory that the sandboxed process owns."""
    memory = Path("/dev/shm")  # where there is one, nothing waits for a disk
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="lengthlens-fuzz-", dir=where))
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    return path


def give(folder: Path) -> None:
    """Let the sandboxed process own all that is in a directory."""
    if os.getuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def enter(folder: Path, memory: int = MEMORY, semaphores: bool = False) -> None:
    """Become harmless, for good. To be called in a child process, before anything else is done.

    With `semaphores`, which a pool of processes needs, files of its own can be made in /dev/shm, too.
    """
    os.chdir(folder)
    os.umask(0o022)
    tempfile.tempdir = str(folder)
    was_root = os.getuid() == 0
    if was_root:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    locked = _landlock(folder, *([Path("/dev/shm")] if semaphores else []))
    if not (was_root or locked):
        raise CannotDropError("neither Landlock nor another user can be had, so that a path could harm your files")
    assert os.getuid() != 0 and os.geteuid() != 0
    for elsewhere in (Path.home() / ".lengthlens-fuzz", Path("/lengthlens-fuzz"), Path(__file__).with_suffix(".fuzz")):
        try:
            elsewhere.touch()
        except OSError:
            continue
        elsewhere.unlink()
        raise CannotDropError(f"could write {elsewhere}")
    grown = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (grown + memory, grown + memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, 1 << 26))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (512, 512))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _landlock(*folders: Path) -> bool:
    """Writing only beneath these folders from now on; False where the system has no Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    handled = WRITE_FILE | CHANGES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    words = [handled, *([TCP] if version >= 4 else []), *([SCOPES] if version >= 6 else [])]
    ruleset = libc.syscall(CREATE_RULESET, struct.pack(f"={len(words)}Q", *words), 8 * len(words), 0)
    if ruleset < 0:
        return False
    for path in (*folders, Path("/dev/null")):
        place = os.open(path, os.O_PATH)
        allowed = handled if path.is_dir() else handled & (WRITE_FILE | TRUNCATE)
        if libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, place), 0) != 0:
            return False
        os.close(place)
    if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.syscall(RESTRICT_SELF, ruleset, 0) != 0:
        return False
    os.close(ruleset)
    return True
