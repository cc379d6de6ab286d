"""Faults: kills at random moments, full and slow disks, clocks set back, many writers, workers and schedulers that die.

Afterwards the same bytes as without, nothing lost, nothing trained twice from its start, and no process left. Slow:
`make faults`. FAULT_KILLS is the number of kills (100), half of them inside training, a fifth of them twice in a row.
"""

import contextlib
import itertools
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lengthlens.errors import UserError
from lengthlens.models.saved import save
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.table import FILE, probe_run
from lengthlens.runs.run import Run
from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Grid, sweep
from lengthlens.runs.training import train
from lengthlens.studies.presets import PRESETS, Preset
from lengthlens.studies.reproduce import reproduce

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("FAULT_KILLS", 100))
TINY = {"n_heads": 2, "d_model": 8, "batch": 2, "train_max": 2, "warmup": 1, "cooldown": 0.3}
TINY |= {"steps": 60, "check_every": 3}
GRID = Grid(["copy", "parity-cot"], ["relative"], range(2), [2, 4], 10, TINY)
PATIENCE = 600.0  # seconds for a machine that is busy with other things


def fork(body: Callable[[], object]) -> int:
    """A child process, warm at once, in a group of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            body()
            code = 0
        os._exit(code)
    return child


def kill_at(child: int, ready: Callable[[], bool], seconds: float) -> bool:
    """Kill a child so long after it is ready; whether it was still at work."""
    start = time.monotonic()
    while not ready() and time.monotonic() - start < PATIENCE:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    time.sleep(seconds)
    if os.waitpid(child, os.WNOHANG)[0]:
        return False
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def same_table(store: RunStore, other: RunStore, where: Path) -> bool:
    pairs = zip(store.write_table(where / "one"), other.write_table(where / "other"))
    return all(one.read_bytes() == two.read_bytes() for one, two in pairs)


def went_back(run: Run) -> bool:
    """Whether training began anew after it had got somewhere, or after it was finished."""
    steps = [event["step"] for event in run.events() if event["event"] == "start"]
    events = [event["event"] for event in run.events()]
    return steps != sorted(steps) or events.count("finish") != 1 or events[-1] != "finish"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    torch.set_num_threads(1)
    store = RunStore(tmp_path_factory.mktemp("reference") / "runs")
    sweep(GRID, store, workers=1, checkpoint_seconds=0)
    return store


def test_kills_inside_training(reference: RunStore, tmp_path: Path) -> None:
    """Half of all kills: each hits a run between its first checkpoint and its end; a fifth of all are the second of two
    in a row, and hit the process that takes up what the first left."""
    store, chance, kills, twice = RunStore(tmp_path / "runs"), random.Random(0), 0, 0
    configs = itertools.cycle(GRID.configs())
    for attempt in range(4 * KILLS):
        if kills >= KILLS // 2 and twice >= KILLS // 5:
            break
        config, hits = next(configs), 0
        if store.run(config).status().finished:
            store = RunStore(tmp_path / f"runs{attempt}")
        for _ in range(2 if attempt % 3 else 1):
            run = store.run(config)
            child = fork(lambda run=run, config=config: train(config, RunStore(run.path.parent), checkpoint_seconds=0))
            hits += kill_at(child, lambda run=run: run.has("checkpoint.safetensors"), chance.uniform(0, 0.03))
            assert store.check() == [], "sound after every kill"
        kills, twice = kills + hits, twice + (hits == 2)
    assert kills >= KILLS // 2 and twice >= KILLS // 5
    print(f"{kills} kills inside training, {twice} times twice in a row")
    for place in sorted(tmp_path.glob("runs*")):
        each = RunStore(place)
        sweep(GRID, each, workers=1)
        assert each.check() == [] and same_table(each, reference, tmp_path)
        assert not any(went_back(run) for run in each.runs())
        assert not list(place.rglob("*.partial"))


def test_kills_of_sweeps_probes_and_studies(reference: RunStore, tmp_path: Path) -> None:
    """Three tenths, at any moment of any command; a third of them twice in a row."""
    store, chance, kills, k = RunStore(tmp_path / "runs"), random.Random(1), 0, 0
    probed = next(iter(reference.runs()))
    PRESETS.add("faults", Preset("for tests", (GRID,), probes=(), figures=("tables",)))
    work: list[Callable[[], object]] = [
        lambda: sweep(GRID, store, workers=1, checkpoint_seconds=0),
        lambda: probe_run(probed, ["lrc"], force=True, again=True),
        lambda: reproduce("faults", tmp_path / "out", workers=1),
    ]
    while kills < KILLS * 3 // 10:
        body, k = work[k % 3], k + 1
        for _ in range(2 if k % 3 == 0 else 1):
            kills += kill_at(fork(body), lambda: True, chance.uniform(0, 0.5))
            assert store.check() == [] and reference.check() == [] and RunStore(tmp_path / "out/runs").check() == []
    sweep(GRID, store, workers=1)
    assert same_table(store, reference, tmp_path) and not any(went_back(run) for run in store.runs())
    whole = probe_run(probed, ["lrc"], force=True, again=True)
    assert probed.has(FILE) and len(whole) and reference.check() == []
    first, second = (reproduce("faults", tmp_path / "out", workers=1) for _ in range(2))
    assert first.page.stat().st_size > 10_000 and not second.made


def test_kills_while_a_model_is_saved(reference: RunStore, tmp_path: Path) -> None:
    """The last fifth: over a model that is there, one or the other is loaded."""
    models, chance, kills = [run.model() for run in reference.runs()][:2], random.Random(3), 0
    save(models[0], tmp_path / "saved")
    while kills < KILLS // 5:
        child = fork(lambda: [save(models[n % 2], tmp_path / "saved") for n in range(1000)])
        kills += kill_at(child, lambda: True, chance.uniform(0, 0.1))
        there = HookedModel.from_pretrained(tmp_path / "saved").state_dict()
        assert any(all(torch.equal(there[name], x) for name, x in model.state_dict().items()) for model in models)


@pytest.mark.parametrize("room", [0, 100, 700, 2000, 5000, 9000, 20_000])
def test_a_disk_that_fills_up(reference: RunStore, tmp_path: Path, room: int) -> None:
    """Files may have so many bytes: the write that crosses the limit is a short one, and then nothing more is taken."""
    store = RunStore(tmp_path / "runs")

    def with_little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        with contextlib.suppress(UserError):
            sweep(GRID, store, workers=1, checkpoint_seconds=0)

    os.waitpid(fork(with_little_room), 0)
    assert store.check() == []
    sweep(GRID, store, workers=1)
    assert same_table(store, reference, tmp_path) and store.check() == []


@pytest.mark.parametrize("fault", ["no space", "slow"])
def test_a_disk_that_fails_or_is_slow(
    reference: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    store, chance, original = RunStore(tmp_path / "runs"), random.Random(2), os.fsync

    def fsync(descriptor: int) -> None:
        if fault == "no space" and chance.random() < 0.02:
            raise OSError(28, os.strerror(28))
        time.sleep(0.001 if fault == "slow" else 0)
        original(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        for _ in range(10):
            sweep(GRID, store, workers=1, checkpoint_seconds=0)
            assert store.check() == []
    sweep(GRID, store, workers=1)
    assert same_table(store, reference, tmp_path) and not list(store.path.rglob("*.partial"))


def test_a_clock_that_is_set_back(reference: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = RunStore(tmp_path / "runs"), itertools.count(2_000_000_000, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    monkeypatch.setattr(time, "gmtime", lambda *_: time.localtime(next(now)))
    sweep(GRID, store, workers=1, checkpoint_seconds=0)
    assert same_table(store, reference, tmp_path) and store.check() == []


@pytest.mark.parametrize("writers", [2, 8])
def test_many_writers_share_the_work(reference: RunStore, tmp_path: Path, writers: int) -> None:
    store = RunStore(tmp_path / "runs")
    children = [fork(lambda: sweep(GRID, store, workers=1, checkpoint_seconds=0)) for _ in range(writers)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * writers
    assert same_table(store, reference, tmp_path) and store.check() == []
    assert all([event["event"] for event in run.events()] == ["start", "finish"] for run in store.runs())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, subprocess.Popen[bytes]]]]:
    """A Dask scheduler and two workers, each a process of its own; the address, and the processes by name."""
    pytest.importorskip("distributed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    words = {
        "scheduler": ["scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"],
        **{f"worker {k}": ["worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"] for k in range(2)},
    }
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "dask"]
    started = {name: subprocess.Popen([*dask, *own], cwd=tmp_path, **quiet) for name, own in words.items()}
    try:
        yield address, started
    finally:
        for process in started.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("victim", ["worker 0", "scheduler"])
def test_what_dies_of_a_cluster_is_survived(
    reference: RunStore, tmp_path: Path, cluster: tuple[str, dict[str, subprocess.Popen[bytes]]], victim: str
) -> None:
    address, started = cluster
    store = RunStore(tmp_path / "runs")
    (tmp_path / "asked").mkdir()

    def ask() -> None:
        try:
            sweep(GRID, store, engine="dask", address=address, checkpoint_seconds=0)
        except UserError as error:
            (tmp_path / "asked" / "said").write_text(str(error))

    start = time.monotonic()
    while subprocess.run([sys.executable, "-c", WAIT, address], stderr=subprocess.DEVNULL).returncode:
        assert time.monotonic() - start < PATIENCE
    child = fork(ask)
    while not any(run.has("checkpoint.safetensors") for run in store.runs()):
        assert time.monotonic() - start < PATIENCE
        time.sleep(0.01)
    started[victim].kill()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if victim == "scheduler":
        assert "the same command goes on" in (tmp_path / "asked" / "said").read_text()
    for process in started.values():
        process.kill()
        process.wait()
    sweep(GRID, store, workers=1)
    assert same_table(store, reference, tmp_path) and store.check() == []
    assert not any(went_back(run) for run in store.runs())


WAIT = "import sys, distributed; distributed.Client(sys.argv[1], timeout=30).wait_for_workers(2, timeout=60)"
