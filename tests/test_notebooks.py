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


def first_run(names: dict[str, Any], text: str) -> None:
    match = {score.length: score.exact_match for score in names["scores"]}
    assert match[4] > 0.9 and match[8] > 0.5  # it has learned its range, and continues beyond it


def why_does_it_fail(names: dict[str, Any], text: str) -> None:
    assert "lbpe: possible" in text and "learned: impossible" in text
    assert re.search(r"^lbpe +predicted at n = 20: 1\.00", text, re.MULTILINE)
    assert re.search(r"^learned +predicted at n = 20: 0\.\d\d +cause: codes never trained", text, re.MULTILINE)


def own_scheme(names: dict[str, Any], text: str) -> None:
    assert "scheme 'fraction': sound" in text and "impossible" in text
    assert names["scores"][-1].exact_match < 0.5


def own_task(names: dict[str, Any], text: str) -> None:
    assert "task 'neighbours': sound" in text and re.search(r"^ideal +possible", text, re.MULTILINE)
    assert "3 2 3 $ should be 3 2 3 $" in text


def look_inside(names: dict[str, Any], text: str) -> None:
    assert "attends to i−j = n" in text and "told that n is 2:  1" in text


def a_study(names: dict[str, Any], text: str) -> None:
    beyond = names["beyond"].set_index("scheme")["value"]
    assert beyond[NINE] > 0.9 > beyond["learned"]
    assert "extrapolation.png" in [path.name for path in names["drawn"].files] and not names["drawn"].missing


CLAIMS = [first_run, why_does_it_fail, own_scheme, own_task, look_inside, a_study]
QUICK = (own_scheme, look_inside)


def test_there_are_claims_about_each() -> None:
    names = [f"0{k}_{claims.__name__}" for k, claims in enumerate(CLAIMS, 1)]
    assert [path.stem for path in sorted(FOLDER.glob("0*.py"))] == names


@pytest.mark.parametrize(
    "claims", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in CLAIMS]
)
def test_a_tutorial_runs_and_its_claims_hold(claims: Any, monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    (path,) = FOLDER.glob(f"0*_{claims.__name__}.py")
    names = runpy.run_path(str(path))
    assert list(tmp_path.iterdir()) == []  # nothing is left where it is run
    claims(names, capsys.readouterr().out)
