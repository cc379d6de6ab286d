"""The notebooks run, and what they claim holds; that of the causal claim has at most twelve cells, one call each."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import lengthlens as ll
from lengthlens.tests.parameters import NINE, few

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOK = FOLDER / "causal_claim.py"


def cells() -> list[str]:
    """The code of each cell, as tools that read scripts as notebooks split them."""
    parts = re.split(r"^# %%", NOTEBOOK.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return [part for part in parts if not part.startswith(" [markdown]")]


def test_there_are_at_most_twelve_cells_with_one_call_each() -> None:
    assert 0 < len(cells()) <= 12
    called = re.findall(r"\bll\.(\w+)\(", "".join(cells()))
    methods = {"attention_by_role", "patch_by_role", "attribution_patching", "least_heads", "ablate", "relevance"}
    assert methods | {"judge_relevance", "surgery", "healing", "train"} <= set(called) <= set(ll.__all__)
    assert len(called) == len(set(called))


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


def causal_claim(names: dict[str, Any], text: str) -> None:
    assert names["scores"][0].exact_match > 0.9  # it has learned to copy
    heads = names["patched"].query("component == 'attention'").groupby("layer")["effect"].mean()
    assert heads.max() > 0.9  # one layer carries the digit
    assert names["owed"].conservation < 1e-4
    source = int(names["owed"].tokens[0].argmax())
    assert source == 2  # the second digit, n back
    assert names["model"].task.vocab[int(names["told"])] == "5"  # 3 back from =
    assert names["knocked"]["exact_match"].min() < 0.5
    match = names["healed"].set_index(["surgery", "scale"])["exact_match"]
    assert match["displaced", 10] < 0.1 and match["ideal", 10] > 0.9


CLAIMS = [first_run, why_does_it_fail, own_scheme, own_task, look_inside, a_study, causal_claim]


def test_there_are_claims_about_each() -> None:
    tutorials = [f"0{k}_{claims.__name__}" for k, claims in enumerate(CLAIMS[:-1], 1)]
    assert [path.stem for path in sorted(FOLDER.glob("*.py"))] == [*tutorials, NOTEBOOK.stem]


@pytest.mark.parametrize("claims", few(CLAIMS, own_scheme, look_inside))
def test_a_notebook_runs_and_its_claims_hold(claims: Any, monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    (path,) = FOLDER.glob(f"*{claims.__name__}.py")
    names = runpy.run_path(str(path))
    assert list(tmp_path.iterdir()) == []  # nothing is left where it is run
    claims(names, capsys.readouterr().out)
