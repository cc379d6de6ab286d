"""Sweeps: what dies is taken up again, what is finished is never trained twice, the table does not know of it."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from lengthlens.commands.options import read_numbers
from lengthlens.errors import UserError
from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Grid, RunOutcome, estimate, pending, read_grid, sweep
from lengthlens.runs.trainer import Trainer
from lengthlens.tests.test_faults import fork, same_table, went_back

TINY = {"n_heads": 2, "d_model": 8, "batch": 2, "train_max": 2, "warmup": 1, "cooldown": 0.3}
KILLS = 5  # tests/test_faults.py has a hundred


def grid(seeds: int, steps: int = 40, check_every: int = 4, **changes: object) -> Grid:
    settings = {**TINY, "steps": steps, "check_every": check_every, **changes}
    return Grid(["copy", "parity-cot"], ["relative"], range(seeds), [2, 4], 10, settings)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, float]:
    """An undisturbed sweep in this process, and how long it took."""
    store, start = RunStore(tmp_path_factory.mktemp("reference")), time.monotonic()
    sweep(grid(2), store, workers=1, checkpoint_seconds=0)
    return store, time.monotonic() - start


def test_kills_leave_no_trace(reference: tuple[RunStore, float], tmp_path: Path) -> None:
    undisturbed, duration = reference
    store, chance, kills = RunStore(tmp_path / "runs"), random.Random(0), 0
    for _ in range(KILLS):
        child = fork(lambda: sweep(grid(2), store, workers=1, checkpoint_seconds=0))
        time.sleep(chance.uniform(0, duration / 15))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert store.check() == [], "sound after every single kill"
    assert kills == KILLS, "each one hit a sweep at work"
    outcomes = sweep(grid(2), store, workers=1)
    assert all(outcome.status == "not-converged" for outcome in outcomes)
    assert store.check() == []
    assert same_table(store, undisturbed, tmp_path)
    assert not any(went_back(run) for run in store.runs())
    assert sum(len(run.events()) for run in store.runs()) > 2 * len(outcomes), "some runs were interrupted"
    assert not list(store.path.rglob("*.partial"))


def kill_a_worker_at_work(store: RunStore, killed: list[int]) -> None:
    """Wait for a first run to have a checkpoint, and kill the process that trains it."""
    while True:
        for run in store.runs():
            if run.has("checkpoint.safetensors") and run.events():
                killed.append(run.events()[-1]["pid"])
                os.kill(killed[0], signal.SIGKILL)
                return
        time.sleep(0.01)


@pytest.mark.slow  # tests/test_faults.py has clusters
def test_local_workers_may_die(reference: tuple[RunStore, float], tmp_path: Path) -> None:
    store, killed = RunStore(tmp_path / "runs"), list[int]()
    killer = threading.Thread(target=kill_a_worker_at_work, args=(store, killed), daemon=True)
    killer.start()
    outcomes = sweep(grid(2), store, checkpoint_seconds=0, workers=2)
    assert killed and killed[0] != os.getpid()
    assert [outcome.status for outcome in outcomes] == ["not-converged"] * 4
    assert same_table(store, reference[0], tmp_path)
    assert store.check() == []
    assert not any(went_back(run) for run in store.runs())
    assert any([event["event"] for event in run.events()].count("start") > 1 for run in store.runs())


def test_finished_runs_are_skipped_and_new_lengths_are_evaluated(
    reference: tuple[RunStore, float], tmp_path: Path
) -> None:
    store = reference[0]
    events = [run.events() for run in store.runs()]
    assert pending(grid(2), store) == []
    assert not any(outcome.trained for outcome in sweep(grid(2), store, workers=1))
    assert len(pending(grid(3), store)) == 2
    assert [run.events() for run in store.runs()] == events


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    told = []
    cells = Grid(["induction", "copy"], ["ideal"], [0], [2], 5, {**TINY, "steps": 2, "train_max": 4})
    failed, done = sweep(cells, RunStore(tmp_path), workers=1, report=told.append)
    assert failed.failed and failed.reason is not None and "content-addressed" in failed.reason
    assert done.status == "not-converged"
    assert told == [failed, done]
    assert RunStore(tmp_path).listing(status="failed")[0]["reason"] == failed.reason


def test_a_broken_gpu_stops_a_sweep_and_fails_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After such an error everything that a process asks of its GPU fails; a new process goes on."""
    store, cells = RunStore(tmp_path), Grid(["copy"], ["rope"], [0, 1], [2], 5, {**TINY, "steps": 2, "train_max": 4})
    with monkeypatch.context() as broken:
        broken.setattr(torch.cuda, "is_initialized", lambda: True)
        broken.setattr(torch.cuda, "synchronize", Mock(side_effect=RuntimeError("CUDA error: an assert")))
        broken.setattr(Trainer, "advance", Mock(side_effect=RuntimeError("CUDA error: an assert\nmore of it")))
        with pytest.raises(UserError, match=r"^the GPU failed \(CUDA error: an assert\): the same command goes on"):
            sweep(cells, store, workers=1)
    assert len(store.listing()) == 1
    told: list[RunOutcome] = []
    assert {outcome.status for outcome in sweep(cells, store, workers=1, report=told.append)} == {"not-converged"}
    assert [outcome.run for outcome in told] == [config.id for config in reversed(cells.configs())]  # it is last


def test_a_grid_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(
        'tasks = ["copy"]\nschemes = ["rope", {name = "relative", max_distance = 3}, "t5/num_buckets=8"]\n'
        "seeds = [0, 1]\nlengths = [20]\n[settings]\nsteps = 7\n"
    )
    configs = read_grid(path).configs()
    assert [config.scheme for config in configs] == ["rope"] * 2 + ["relative"] * 2 + ["t5"] * 2
    assert configs[2].scheme_options == {"max_distance": 3}
    assert configs[4].scheme_options["num_buckets"] == 8
    assert {config.steps for config in configs} == {7}
    assert read_grid(path).lengths == [20]
    with pytest.raises(UserError, match="cannot read"):
        read_grid(tmp_path / "none.toml")


def test_words_that_mean_nothing_are_refused() -> None:
    for text in ("", "a", "1,,2", "3-", "-3", "1.5"):
        with pytest.raises(UserError):
            read_numbers(text)
    with pytest.raises(UserError, match="option=value"):
        Grid(["copy"], ["rope/base"]).configs()
    with pytest.raises(UserError, match="at least one"):
        Grid([], []).configs()


ADDRESSES = {"address": "tcp://127.0.0.1:1"}, {"engine": "dask", "address": "nonsense://x"}


@pytest.mark.parametrize("engine", [{"engine": "slurm"}, {"engine": "dask"}, {"workers": 0}, *ADDRESSES])
def test_an_engine_that_cannot_be_had_is_a_sentence(tmp_path: Path, engine: dict[str, object]) -> None:
    with pytest.raises(UserError):
        sweep(grid(1), RunStore(tmp_path), **engine)
    assert not list(tmp_path.iterdir())


def test_an_estimate_needs_no_store() -> None:
    assert estimate(grid(2).configs(), 4) > 0 == estimate([], 4)
