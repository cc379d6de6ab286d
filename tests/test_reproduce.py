"""reproduce: from nothing to the page, killed and taken up again, done once, and not stopped by a run that fails."""

import html
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from lengthlens.analyses.findings import Drawn
from lengthlens.analyses.table import read_study, write_study
from lengthlens.commands.terminal import study_progress
from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Grid
from lengthlens.studies.build import study
from lengthlens.studies.presets import PRESETS, Preset
from lengthlens.studies.reproduce import Work
from lengthlens.tests.parameters import command


def reproduce(out: Path, *options: str) -> Result:
    """The command in this process, on one worker: processes cost more than these runs."""
    result = command("reproduce", "--out", str(out), "--workers", "1", *options)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def copied(smoke: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """The finished study, to be changed."""
    return Path(shutil.copytree(smoke[0], tmp_path / "smoke"))


def starts(out: Path) -> list[int]:
    """How often training was begun, for each run."""
    runs = RunStore(out / "runs").runs()
    return [sum(event["event"] == "start" for event in run.events()) for run in runs]


@pytest.mark.slow
def test_it_ends_with_study_figures_and_page(smoke: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Which another process makes of the same store with the same bytes."""
    out, summary = smoke
    status = {run["run"].partition("_s0")[0]: run["status"] for run in summary["probed"]}
    assert status == {"copy_ideal": "probed", "copy_relative": "probed", "parity_ideal": "left out"}
    assert min(starts(out)) == 1, "the run that had ended before the kill"
    table, about = read_study(summary["study"])
    assert {"exact_match", "iota_src", "verdict", "pola_lrc"} <= set(table["measure"])
    assert about["command"] == "lengthlens reproduce --preset smoke" and len(about["configs"]) == 3
    assert {path.suffix for path in (out / "figures").iterdir() if path.is_file()} == {".pdf", ".png"}
    assert "<!doctype html>" in Path(summary["page"]).read_text(encoding="utf-8")
    again = study(RunStore(out / "runs"), pola_targets=PRESETS["smoke"].pola_targets)
    write_study(again, about, tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (out / "study.parquet").read_bytes()


@pytest.mark.slow
def test_a_second_call_does_nothing_but_make_outputs_that_were_spoilt(copied: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in copied.rglob("*") if path.is_file() and path.name != ".lock"}

    before, begun = times(), starts(copied)
    result = reproduce(copied, "--preset", "smoke")
    assert times() == before and starts(copied) == begun
    assert result.stdout.splitlines()[-1] == str(copied / "index.html")
    figure, page = copied / "figures" / "front.png", copied / "index.html"
    made = figure.read_bytes(), page.read_bytes()
    figure.unlink()
    page.write_bytes(page.read_bytes()[:1000])
    reproduce(copied, "--preset", "smoke")
    assert (figure.read_bytes(), page.read_bytes()) == made


def test_a_failed_run_is_shown_and_not_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"train_max": 2, "n_heads": 2, "d_model": 8, "batch": 2, "steps": 4, "check_every": 4}
    preset = Preset(
        "one that works and one that cannot", (Grid(["parity"], ["none", "coupled"], [0], (4,), 10, tiny),), ()
    )
    monkeypatch.setattr("lengthlens.studies.presets.PRESETS", {"mine": preset})
    monkeypatch.setattr("lengthlens.analyses.page.embedded", lambda figure: "data:,")
    monkeypatch.setattr("lengthlens.studies.reproduce.draw", lambda *given, **options: Drawn([], {}))
    result = reproduce(tmp_path, "--preset", "mine")
    (failed,) = [line for line in result.stdout.splitlines() if line.startswith("failed:")]
    assert "parity_coupled" in failed and "couples no positions" in failed
    page = html.unescape((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert "failed: task 'parity' couples no positions" in page and "Nothing can be said yet" in page
    assert "2 of 2 runs: 1 failed, 2 not accurate in range, 1 did not converge" in page


def test_the_time_left_follows_from_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 5.0, 10.0, 10.0])
    with study_progress(clock=lambda: next(times)) as show:
        work = Work({"training": 20.0, "page": 20.0}, show)
        work.begin("training", 3, free=1)
        work.step("finished before")
        work.step("trained")  # half of the training, a quarter of all, in 5 seconds
        work.step("trained")
        work.begin("page")
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "training 1 of 3: finished before"
    assert lines[2].endswith("about 0:15 left") and lines[3].endswith("about 0:10 left")
