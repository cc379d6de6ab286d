"""`lengthlens figures`: from a study to files, the same bytes every time."""

import json
import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from lengthlens.analyses.findings import FINDINGS
from lengthlens.analyses.table import write_study
from lengthlens.tests.parameters import command
from lengthlens.tests.synthetic import synthetic_provenance, synthetic_study

SOME = ("front", "outcome", "tables")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> str:
    table = synthetic_study(
        ["copy", "parity-cot", "parity"], ["ideal", "lbpe", "relative", "rope"], 2, pola_targets=["prefix-sum"]
    )
    path = tmp_path_factory.mktemp("study") / "study.parquet"
    write_study(table, synthetic_provenance(table), path)
    return str(path)


figures = partial(command, "figures")


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_all_figures_and_tables_are_written(study: str, tmp_path: Path) -> None:
    result = figures("--table", study, "--out", str(tmp_path), "--formats", "png")
    assert result.exit_code == 0, result.output
    written = content(tmp_path)
    drawn = {f"{name}.png" for name in FINDINGS if name != "forecast"}  # of this it has nothing
    assert drawn | {"tables/cells.md", "tables/cells.tex"} <= set(written) and "forecast.png" not in written
    assert f"{len(written)} files in" in result.stdout


@pytest.mark.slow
def test_the_same_study_is_the_same_bytes(study: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        result = figures(*SOME, "--table", study, "--held-out", "parity-cot", "--out", str(tmp_path / name))
        assert result.exit_code == 0, result.output
    one, two = content(tmp_path / "one"), content(tmp_path / "two")
    assert one == two
    assert {"outcome.pdf", "outcome.png", "tables/held-out.md", "tables/held-out.tex"} <= set(one)
    assert one["front.pdf"].startswith(b"%PDF") and one["front.png"].startswith(b"\x89PNG")


def test_named_ones_only_and_json(study: str, tmp_path: Path) -> None:
    result = figures("outcome", "--table", study, "--out", str(tmp_path), "--formats", "svg", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["missing"] == {} and said["written"][0] == str(tmp_path / "outcome.svg")
    assert {path.name for path in tmp_path.iterdir()} == {"outcome.svg", "tables"}, "a figure, and its tables"
    assert "outcome.md" in {path.name for path in (tmp_path / "tables").iterdir()}
    assert not (tmp_path / "tables" / "cells.md").exists()
    result = figures("tables", "--table", study, "--out", str(tmp_path))
    assert (tmp_path / "tables" / "cells.md").read_text().count("| copy |") == 4


def test_pgf_is_set_by_latex_and_refused_without(study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("outcome", "--table", study, "--out", str(tmp_path), "--formats", "pgf")
    if shutil.which("pdflatex"):
        assert figures(*words).exit_code == 0
        pgf = (tmp_path / "outcome.pgf").read_text()
        assert pgf.isascii() and r"\begin{pgfpicture}" in pgf
    monkeypatch.setattr("shutil.which", lambda name: None)
    result = figures(*words)
    assert result.exit_code == 2 and "PGF needs pdflatex, which is not installed" in result.stderr


def test_what_is_missing_is_left_out_and_printed_and_a_sentence_if_asked_for_by_name(
    study: str, tmp_path: Path
) -> None:
    table = pd.read_parquet(study)
    table[table["measure"] == "exact_match"].to_csv(tmp_path / "few.csv", index=False)
    result = figures("--table", str(tmp_path / "few.csv"), "--out", str(tmp_path / "out"), "--formats", "png", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert "was probed" in said["missing"]["front"] and "extrapolation" not in said["missing"]
    assert "transfer: no run in the table has 'transfer'" in result.stderr
    assert (tmp_path / "out" / "extrapolation.png").exists() and not (tmp_path / "out" / "front.png").exists()
    figures("front", "--table", str(tmp_path / "few.csv"), "--out", str(tmp_path / "out"), "--formats", "png")
    assert (tmp_path / "out" / "front.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fron"], "unknown figure 'fron': did you mean 'front'?"),
        (["--formats", "gif"], "unknown format 'gif'"),
        (["--formats", ""], "at least one format"),
        (["front", "--held-out", "revers"], "unknown task in the table 'revers'"),
        (["--table", "none.parquet"], "cannot read 'none.parquet'"),
        (["--table", "tests/fixtures/verdicts.csv"], "no column measure, value"),
    ],
)
def test_refusals_in_a_sentence(study: str, tmp_path: Path, words: list[str], sentence: str) -> None:
    table = () if "--table" in words else ("--table", study)
    result = figures(*words, *table, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert sentence in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_tasks_held_out_are_known_from_the_study_itself(tmp_path):
    table = synthetic_study(["copy", "parity-cot"], ["ideal", "relative"], seeds=1, pola_targets=[])
    write_study(table, {**synthetic_provenance(table), "held_out": ["copy"]}, tmp_path / "study.parquet")
    found = figures("tables", "--table", str(tmp_path / "study.parquet"), "--out", str(tmp_path / "drawn"))
    assert found.exit_code == 0, found.output
    assert (tmp_path / "drawn" / "tables" / "held-out.md").exists()
