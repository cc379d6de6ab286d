"""The one pool: a function of many items, on processes of this machine or on the workers of a Dask cluster.

A worker process loads the plug-ins of the process that it works for, computes on one thread, is replaced when it dies,
and ends when the process that it works for is gone, however it went. Whoever stops listening (by Ctrl-C, say) cancels
what waits and ends the workers at once: what they write is whole at any moment, and the system gives locks back.
"""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from filelock import BaseFileLock, FileLock, Timeout

from lengthlens.errors import UserError, unknown
from lengthlens.models.devices import gpus_for, take_gpu
from lengthlens.plugins.registry import WorkerPlugins, as_sentences, load_in_worker, plugins_for_workers
from lengthlens.values import optional, whole

ENGINES = ("local", "dask")
DEATHS = 5  # workers that may die without any item being done in between, before the work is given up
LOOK_SECONDS = 0.5  # between a worker's looks at whether its parent lives
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)  # in the environment of workers, whose linear algebra reads it when it is imported

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(
    function: Callable[[Item], Result],
    items: Mapping[Key, Item],
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    device: str = "cpu",
    fork: bool = False,
) -> Iterator[tuple[Key, Result]]:
    """`function` of every item, on several processes: (key of the item, result), as they come.

    Arguments:
        function, items: what is computed. Both are pickled; items are begun in their order.
        engine: "local" takes processes of this machine, "dask" the workers of a Dask scheduler.
        workers: how many processes; one is this process itself. If None, as many as there are cores or, if they
            compute on GPUs, GPUs.
        address, resources: of the Dask scheduler, and what each of its workers must have, such as {"GPU": 1}.
        device: where the function computes. Local workers spread over all GPUs if it is "cuda" or "auto".
        fork: whether workers may begin as copies of this process, which takes no time. It is for functions that
            compute on one thread, and is done only where it is safe.

    A worker that dies is replaced, and its item is begun again.

    Errors: what the function raises; UserError for an engine that cannot be had, if worker after worker dies, and if
    the scheduler is lost.

    >>> sorted(in_parallel(len, {"a": [1, 2], "b": []}, workers=1))
    [('a', 2), ('b', 0)]
    """
    if not items:
        return
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    optional(whole(1))(workers, "workers")
    if engine == "local" and (address or resources):
        raise UserError("--address and --resources are for --engine dask")
    if engine == "dask" and address is None:
        raise UserError("--engine dask needs the scheduler's --address, such as tcp://10.0.0.1:8786")
    gpus = gpus_for(device) if engine == "local" else 0
    number = workers or gpus or cpu_count()
    if engine == "local" and number == 1:
        yield from ((key, function(item)) for key, item in items.items())
        return

    from joblib.externals.loky.process_executor import TerminatedWorkerError  # here: most commands need no pool

    left, deaths, plugins = dict(items), 0, plugins_for_workers()
    with TemporaryDirectory() as places:
        while left:
            here = _processes(min(number, len(left)), fork, places if gpus > 1 else None)
            with here if address is None else _cluster(address, dict(resources or {})) as pool:
                try:
                    with no_interrupts():  # workers inherit that: Ctrl-C is this process's to answer
                        waiting = {pool.submit(_call, function, plugins, left[key]): key for key in left}
                    for future in as_completed(waiting):
                        key, result = waiting.pop(future), future.result()
                        del left[key]
                        deaths = 0
                        yield key, result
                except TerminatedWorkerError:  # the death of one worker takes the pool with it: go on with a new one
                    deaths += 1
                    if deaths == DEATHS:
                        why = "perhaps for want of memory: use fewer with --workers"
                        raise UserError(f"{DEATHS} workers in a row were killed, {why}") from None
                except Exception as error:
                    if engine == "local" or isinstance(error, UserError):
                        raise
                    # What the function raises is a result or a UserError: the scheduler of the cluster is gone.
                    lost = f"the Dask scheduler at '{address}' was lost ({type(error).__name__})"
                    raise UserError(f"{lost}: once it answers, the same command goes on where it was") from None


def cpu_count() -> int:
    """How many cores this process may use, by its affinity and by the limits of its container."""
    from joblib import cpu_count

    return int(cpu_count())


# -- the two engines ---------------------------------------------------------------------------------------------------


@contextmanager
def _processes(workers: int, fork: bool, places: str | None) -> Iterator[Executor]:
    """A pool of processes here, none of which is left when the block ends. With `places` each has another GPU."""
    from joblib.externals.loky import ProcessPoolExecutor

    # A fork need not import everything again; threads do not survive it, so that it takes a process without any.
    forks = fork and sys.platform == "linux" and threading.active_count() == 1 and not torch.cuda.is_initialized()
    how = get_context("fork") if forks else None  # None is loky's default: a fresh process that does not run `__main__`
    first = {"initializer": _begin, "initargs": (os.getpid(), places)}
    pool = ProcessPoolExecutor(workers, context=how, env=ONE_THREAD, **first)
    try:
        yield pool
    except BaseException:  # Ctrl-C, or whoever listened has stopped
        # The pool's own way of killing loses count of what it has cancelled, and then leaves workers at work.
        started = list(pool._processes.values())
        for worker in started:
            with suppress(ProcessLookupError):  # by its number, since a fresh one has no `kill` of its own
                os.kill(worker.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        for worker in started:
            worker.join()
        pool.shutdown(wait=False)
        raise
    pool.shutdown(wait=True, kill_workers=True)


@contextmanager
def _cluster(address: str, resources: dict[str, float]) -> Iterator[Executor]:
    """The workers of a Dask scheduler; what still waits when the block ends is cancelled."""
    try:
        from distributed import Client
    except ImportError:
        raise UserError("--engine dask needs Dask: pip install 'lengthlens[cluster]'") from None
    try:
        client = Client(address, timeout=20)
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"no Dask scheduler answers at '{address}': {error}") from None
    with client:
        yield client.get_executor(resources=resources, pure=False)


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and never reaches the processes that begin in it."""
    if not hasattr(signal, "pthread_sigmask"):  # pragma: no cover (Windows)
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in a worker -------------------------------------------------------------------------------------------------------


def _begin(parent: int, places: str | None) -> None:
    """What a local worker does first."""
    locks = list[BaseFileLock]()
    while places:  # the lowest of 0, 1, 2, … that no other worker holds; the system frees it when this process ends
        locks.append(FileLock(Path(places, str(len(locks)))))
        with suppress(Timeout):
            locks[-1].acquire(timeout=0)
            take_gpu(len(locks) - 1)
            break
    threading.Thread(target=_end_with, args=(parent, locks), daemon=True, name="end-with-parent").start()
    sys.stdout = sys.stderr  # what a plug-in prints; results go to the parent
    torch.set_num_threads(1)  # the other workers have theirs
    gc.freeze()  # what is imported stays, and need not be looked through again and again


def _end_with(parent: int, held: object) -> None:
    """Ends this process once `parent`, which started it, is no longer its parent; until then, what is `held` stays."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def _call(function: Callable[[Item], Result], plugins: WorkerPlugins, item: Item) -> Result:
    try:
        load_in_worker(plugins)
    except Exception as error:  # one sentence, since what is raised here and is none is taken for a lost cluster
        raise UserError(f"a worker cannot load the plug-ins of this process: {error}") from None
    with as_sentences():
        return function(item)
