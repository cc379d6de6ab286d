"""Worker processes that end when the process that they work for is gone, however it went."""

import os
import threading
import time

LOOK_SECONDS = 0.5  # between looks; what a worker does after its parent's death is lost or done again anyway


def end_with(parent: int) -> None:
    """From now on, end this process at once when `parent`, which started it, is no longer its parent.

    To be called first thing in a worker, as the initializer of its pool, with the process id of the parent. Nothing is
    cleaned up: files are whole at any moment, and the system gives locks back.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="end-with-parent").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
