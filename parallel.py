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
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch

from lengthlens.errors import UserError, unknown
from lengthlens.models.devices import gpus_for, take_gpu
from lengthlens.plugins.registry import WorkerPlugins, load_in_worker, plugins_for_workers
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
        workers: how many processes; one is this process itself. If not said, as many as there are cores or, if they
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
    check_engine(engine, workers, address, resources)
    gpus = gpus_for(device) if engine == "local" else 0
    number = workers or gpus or cpu_count()
    if engine == "local" and number == 1:
        yield from ((key, function(item)) for key, item in items.items())
        return
    left, deaths, plugins = dict(items), 0, plugins_for_workers()

    def pool_of_workers() -> AbstractContextManager[Executor]:
        if address is not None:
            return _cluster(address, dict(resources or {}))
        return _processes(min(number, len(left)), fork)

    with TemporaryDirectory() as places:
        spread = places if gpus > 1 else None
        while left:
            with pool_of_workers() as pool:
                try:
                    with no_interrupts():  # workers inherit that: Ctrl-C is this process's to answer
                        waiting = {pool.submit(_call, function, plugins, spread, left[key]): key for key in left}
                    for future in as_completed(waiting):
                        key, result = waiting.pop(future), future.result()
                        del left[key]
                        deaths = 0
                        yield key, result
                except Exception as error:
                    if isinstance(error, UserError) or (engine == "local" and not was_killed(error)):
                        raise
                    if engine == "dask":  # what the function raises is no result there: its scheduler is gone
                        lost = f"the Dask scheduler at '{address}' was lost ({type(error).__name__})"
                        raise UserError(f"{lost}: once it answers, the same command goes on where it was") from None
                    deaths += 1  # the death of one worker takes the pool with it: go on with a new one
                    if deaths == DEATHS:
                        why = "perhaps for want of memory: use fewer with --workers"
                        raise UserError(f"{DEATHS} workers in a row were killed, {why}") from None


def check_engine(engine: str, workers: int | None, address: str | None, resources: Mapping[str, float] | None) -> None:
    """Refuse what does not go together, before any work."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    optional(whole(1))(workers, "workers")
    if engine == "local" and (address or resources):
        raise UserError("--address and --resources are for --engine dask")
    if engine == "dask" and address is None:
        raise UserError("--engine dask needs the scheduler's --address, such as tcp://10.0.0.1:8786")


def cpu_count() -> int:
    """How many cores this process may use, by its affinity and by the limits of its container."""
    from joblib import cpu_count

    return int(cpu_count())


# -- the two engines ---------------------------------------------------------------------------------------------------


@contextmanager
def _processes(workers: int, fork: bool) -> Iterator[Executor]:
    """A pool of processes here, none of which is left when the block ends."""
    from joblib.externals.loky import ProcessPoolExecutor  # here, since it takes a while and most commands need none

    # A fork need not import everything again; threads do not survive it, so that it takes a process without any.
    forks = fork and sys.platform == "linux" and threading.active_count() == 1 and not torch.cuda.is_initialized()
    how = get_context("fork") if forks else None  # None is loky's own: a fresh process that does not run `__main__`
    pool = ProcessPoolExecutor(workers, context=how, initializer=_begin, initargs=(os.getpid(),), env=ONE_THREAD)
    try:
        yield pool
    finally:
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


def was_killed(error: Exception) -> bool:
    """Whether an error says that a worker process died."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    return isinstance(error, TerminatedWorkerError)


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


def _begin(parent: int) -> None:
    """The first thing that a local worker does."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="end-with-parent").start()
    torch.set_num_threads(1)  # the other workers have their own
    gc.freeze()  # what is imported stays, and need not be looked through again and again


def _end_with(parent: int) -> None:
    """Ends this process once `parent`, which started it, is no longer its parent."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def _call(function: Callable[[Item], Result], plugins: WorkerPlugins, places: str | None, item: Item) -> Result:
    try:
        load_in_worker(plugins)
    except Exception as error:  # one sentence, since what is raised here and is none is taken for a lost cluster
        raise UserError(f"a worker cannot load the plug-ins of this process: {error}") from None
    if places is not None:
        take_gpu(worker_place(Path(places)))
    return function(item)


def worker_place(places: Path) -> int:
    """The number of this process among the workers: the least that no other took, or that a dead one left behind."""
    mine, place = str(os.getpid()), 0
    while True:
        path = places / str(place)
        try:
            path.symlink_to(mine)  # at once or not at all
            return place
        except FileExistsError:
            holder = str(path.readlink())
            if holder == mine:
                return place
            if is_alive(int(holder)):
                place += 1
            else:
                path.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
