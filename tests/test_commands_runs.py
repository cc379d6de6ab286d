"""The commands that make and keep runs, as a user meets them."""

import io
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from lengthlens.cli import main
from lengthlens.commands.probes import curve_cells, show
from lengthlens.commands.terminal import live_line, progress, training_progress
from lengthlens.probes.schema import THRESHOLDS
from lengthlens.probes.table import plain_rows, probe_model
from lengthlens.runs.store import RunStore
from lengthlens.runs.trainer import Metrics
from lengthlens.runs.training import TrainingProgress
from lengthlens.tests.parameters import command as run
from lengthlens.tests.parameters import trained

QUICK = ("--train-max", "2", "--set", "batch=2", "--set", "d_model=8", "--set", "check_every=2")
TRAIN = ("train", *"--task copy --scheme relative --scheme-option max_distance=3 --steps 4".split(), *QUICK)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with one small run, made by the command itself."""
    path = str(tmp_path_factory.mktemp("store"))
    result = run(*TRAIN, "--store", path, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert {"run", "status", "steps", "in_range_exact_match"} <= set(facts)
    assert facts["status"] == "not-converged"
    return path


def test_training_again_changes_nothing_and_says_the_same(store: str) -> None:
    (name,) = [r.id for r in RunStore(store).runs()]
    again = run(*TRAIN, "--store", store)
    assert f"{name}: not-converged after 4 steps" in again.stdout
    assert [event["event"] for event in RunStore(store).find(name).events()] == ["start", "finish"]


def test_evaluate_prints_a_table_or_json_and_draws(store: str, tmp_path: Path) -> None:
    words = ("evaluate", "copy", "--lengths", "2,6", "--samples", "10", "--store", store)
    rows = json.loads(run(*words, "--json").stdout)
    assert [row["length"] for row in rows] == [2, 6]
    assert {"length", "exact_match", "exact_match_no_end", "token_accuracy", "samples"} <= set(rows[0])
    assert "95 % interval" in run(*words).stdout
    figure = tmp_path / "figure.png"
    assert run(*words, "--plot", str(figure)).exit_code == 0
    assert figure.stat().st_size > 1000


def test_runs_lists_shows_checks_and_tabulates(store: str, tmp_path: Path) -> None:
    (row,) = json.loads(run("runs", "--store", store, "--json").stdout)
    assert row["task"] == "copy" and row["status"] == "not-converged"
    assert "no such runs" in run("runs", "--store", store, "--task", "sort").stdout
    shown = json.loads(run("runs", "show", row["run"], "--store", store, "--json").stdout)
    assert shown["config"]["scheme_options"] == {"max_distance": 3}
    assert "torch" in run("runs", "--store", store, "show", "copy").stdout
    assert "all as they were written" in run("runs", "check", "--store", store).stdout
    result = run("runs", "table", str(tmp_path / "all"), "--store", store)
    assert [Path(line).suffix for line in result.stdout.split()] == [".parquet", ".csv"]
    assert len(pd.read_parquet(tmp_path / "all.parquet")) >= 2


def test_check_reports_damage_and_fails(store: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    next(copy.rglob("model.safetensors")).write_bytes(b"")
    result = run("runs", "check", "--store", str(copy), "--json")
    assert result.exit_code == 1
    assert "model.safetensors" in json.loads(result.stdout)["problems"][0]
    assert "damaged" in run("evaluate", "copy", "--lengths", "9", "--store", str(copy)).stderr


def test_a_sweep_by_options_plans_and_runs(tmp_path: Path) -> None:
    store = str(tmp_path / "runs")
    words = ("sweep", "--tasks", "copy", "--schemes", "rope,relative/max_distance=3", "--seeds", "0-1",
             "--lengths", "3", "--samples", "5", "--steps", "2", *QUICK,
             "--store", store, "--workers", "1")  # fmt: skip
    plan = json.loads(run(*words, "--dry-run", "--json").stdout)
    assert plan["to_do"] == len(plan["runs"]) == 4
    assert plan["seconds_at_most"] > 0
    assert not Path(store).exists()
    assert "4 not-converged" in run(*words).stdout
    assert run(*words).stdout.count("finished before") == 4
    assert json.loads(run(*words, "--dry-run", "--json").stdout)["to_do"] == 0


def test_a_sweep_with_a_failure_says_why_and_exits_with_one(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text('tasks = ["induction"]\nschemes = ["ideal"]\nlengths = [6]\n')
    result = run("sweep", str(grid), "--store", str(tmp_path / "runs"), "--workers", "1")
    assert result.exit_code == 1
    assert "content-addressed" in result.stdout and "1 failed" in result.stdout


def test_a_terminated_run_says_how_to_continue(tmp_path: Path) -> None:
    """The signal of a batch system: the run is interrupted, not broken, and the same command goes on."""
    words = ["train", "--task", "copy", "--scheme", "rope", "--steps", "100000", *QUICK, "--store", str(tmp_path)]
    said = tmp_path / "said"
    child = os.fork()  # warm at once: a fresh interpreter would spend seconds on imports
    if child == 0:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = os.fdopen(2, "w")
        try:
            main(words)
        except SystemExit as leaving:
            sys.stderr.flush()
            os._exit(leaving.code if isinstance(leaving.code, int) else 1)
    while not any(r.events() for r in RunStore(tmp_path).runs()):
        time.sleep(0.02)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert "the same command continues run 'copy_rope" in said.read_text()
    assert RunStore(tmp_path).listing()[0]["status"] == "interrupted"
    assert RunStore(tmp_path).check() == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_live_line_and_a_file_has_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    now = TrainingProgress("copy", Metrics(100, 0.25, 1e-3, 0.5, 1.0, 20_000), 400, 10_000.0)
    monkeypatch.setenv("TERM", "xterm")
    for kind, quiet in [(Terminal, False), (Terminal, True), (io.StringIO, False), (io.StringIO, True)]:
        stderr = kind()
        monkeypatch.setattr("sys.stderr", stderr)
        with progress("searching [n]") as report:
            report("n = 3")
        with training_progress(quiet) as train_report:
            train_report(now)
            train_report(now)  # too soon for another plain line
        with live_line(quiet) as show:
            assert (show is None) == (quiet or kind is io.StringIO)
        said = stderr.getvalue()
        assert ("searching [n]: n = 3" in said) == (kind is Terminal)
        assert ("step 100/400" in said) == (not quiet)
        if kind is io.StringIO:
            line = "step 100/400  loss 0.2500  in-range 0.500  10,000 tokens/s  0:06 left\n"
            assert said == ("" if quiet else line)


def test_all_measures_of_a_run_are_printed(capsys) -> None:
    """Curves over the training range and predictions beyond it stand in one output."""
    measures = ["src", "interchange", "stretch", "marks"]
    table = probe_model(trained("copy_lbpe"), train_max=3, measures=measures)
    show(plain_rows(table.assign(run="a run")))
    shown = capsys.readouterr().out
    assert "predicted exact match: 1.00 at n = 6" in shown and "marks are recognised by position in" in shown


def test_a_curve_that_could_not_be_measured_is_left_out() -> None:
    """Of a task without positions to exchange, a probe stores a reason and no value."""
    about = {"measure": "interchange_src", "head": None, "layer": None, "readout": None, **dict.fromkeys(THRESHOLDS)}
    rows = [{**about, "scale": 2, "value": None}, {**about, "scale": 3, "value": 4.0}]
    index = {**about, "measure": "iota_interchange", "scale": 3, "value": 0.5}
    assert curve_cells(rows[:1]) == [] and curve_cells([*rows, index])[0]["n=3"] == 4
