"""The notebook: at most twelve cells, one call of each method, and what it claims holds."""

import ast
import re
import runpy
from pathlib import Path

import lengthlens as ll

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "causal_claim.py"


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
