"""The notebooks run, and what they claim holds; that of the causal claim has at most twelve cells, one call each."""

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import lengthlens as ll
from lengthlens.tests.parameters import NINE

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOK = FOLDER / "causal_claim.py"


def cells() -> list[str]:
    """The code of each cell, as tools that read scripts as notebooks split them."""
    parts = re.split(r"^# %%", NOTEBOOK.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return [part for part in parts if not part.startswith(" [markdown]")]


def test_there_are_at_most_twelve_cells_with_one_call_each() -> None:
    assert 0 < len(cells()) <= 12
    called = [
        node.func.attr
        for node in ast.walk(ast.parse(NOTEBOOK.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name) and node.func.value.id == "ll"
    ]  # fmt: skip
    methods = {"attention_by_role", "patch_by_role", "attribution_patching", "least_heads", "ablate", "relevance"}
    assert methods | {"judge_relevance", "surgery", "healing", "train"} <= set(called) <= set(ll.__all__)
    assert len(called) == len(set(called))


@pytest.mark.slow
def test_it_runs_and_its_claims_hold() -> None:
    found = runpy.run_path(str(NOTEBOOK))
    assert found["scores"][0].exact_match > 0.9  # it has learned to copy
    heads = found["patched"].query("component == 'attention'").groupby("layer")["effect"].mean()
    assert heads.max() > 0.9  # one layer carries the digit
    assert found["owed"].conservation < 1e-4
    source = int(found["owed"].tokens[0].argmax())
    assert source == 2  # the second digit, n back
    assert found["model"].task.vocab[int(found["told"])] == "5"  # 3 back from =
    assert found["knocked"]["exact_match"].min() < 0.5
    match = found["healed"].set_index(["surgery", "scale"])["exact_match"]
    assert match["displaced", 10] < 0.1 and match["ideal", 10] > 0.9


def run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(FOLDER / f"{name}.py"))
    assert list(tmp_path.iterdir()) == []  # nothing is left where it is run
    return found


def test_there_are_six_of_them() -> None:
    names = ["first_run", "why_does_it_fail", "own_scheme", "own_task", "look_inside", "a_study"]
    assert [path.stem for path in sorted(FOLDER.glob("0*.py"))] == [f"0{k}_{name}" for k, name in enumerate(names, 1)]


@pytest.mark.slow
def test_01_a_first_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = run("01_first_run", monkeypatch, tmp_path)
    match = {score.length: score.exact_match for score in found["scores"]}
    assert match[4] > 0.9 and match[8] > 0.5  # it has learned its range, and goes on


@pytest.mark.slow
def test_02_why_does_it_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("02_why_does_it_fail", monkeypatch, tmp_path)
    said = capsys.readouterr().out
    assert "lbpe: possible" in said and "learned: impossible" in said
    assert re.search(r"^lbpe +predicted at n = 20: 1\.00", said, re.MULTILINE)
    assert re.search(r"^learned +predicted at n = 20: 0\.\d\d +cause: codes never trained", said, re.MULTILINE)


def test_03_a_scheme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("03_own_scheme", monkeypatch, tmp_path)
    said = capsys.readouterr().out
    assert "scheme 'fraction': sound" in said and "impossible" in said
    assert found["scores"][-1].exact_match < 0.5


@pytest.mark.slow
def test_04_a_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("04_own_task", monkeypatch, tmp_path)
    said = capsys.readouterr().out
    assert "task 'neighbours': sound" in said and re.search(r"^ideal +possible", said, re.MULTILINE)
    assert "3 2 3 $ should be 3 2 3 $" in said


def test_05_look_inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("05_look_inside", monkeypatch, tmp_path)
    said = capsys.readouterr().out
    assert "attends to i−j = n" in said and "told that n is 2:  1" in said


@pytest.mark.slow
def test_06_a_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("06_a_study", monkeypatch, tmp_path)
    beyond = found["beyond"].set_index("scheme")["value"]
    assert beyond[NINE] > 0.9 > beyond["learned"]
    assert "extrapolation.png" in [path.name for path in found["drawn"].files] and not found["drawn"].missing
