"""The page as text: what it says, that names stay names, and that nothing a table lacks can break it."""

import html
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lengthlens.analyses.page import BEYOND, IN_RANGE, TERMS, all_cells, page
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import as_study, write_study
from lengthlens.tests.parameters import command, few
from lengthlens.tests.synthetic import synthetic_provenance, synthetic_study

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return synthetic_study(["copy", "parity"], ["ideal", "lbpe", "rope"], 2, pola_targets=())


@pytest.fixture(scope="module")
def text(table: pd.DataFrame) -> str:
    return page(Study(table, synthetic_provenance(table)))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time, and these tests are not about it."""
    monkeypatch.setattr("lengthlens.analyses.page.embedded", lambda figure: "data:,")
    nothing = SimpleNamespace(figure=Figure())
    monkeypatch.setattr("lengthlens.analyses.study.Study.drawing", lambda study, finding: nothing)


def embedded(text: str) -> dict[str, Any]:
    """The data that the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def plain(text: str) -> str:
    """The text of a piece of the page, without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def test_the_finding_is_a_sentence_with_its_interval_and_size(text: str) -> None:
    found = re.search(r'id="finding">(.*?)</p>', text)
    assert found
    size = r"\d+ (of the \d+ )?runs that are accurate in range, in \d+ cells"
    few = rf"Whether .* cannot be said from {size}"  # as few as here make no AUC
    assert re.search(rf"Over {size} .* AUC [\d.]+ \(|{few}", plain(found[1]))


def test_the_lead_and_the_facts_count_the_same(text: str) -> None:
    lead = re.search(r'class="lead">(.*?)</p>', text)
    facts = dict(re.findall(r"<dt>([^<]+)</dt><dd>(\d+)</dd>", text))
    assert lead
    numbers = re.findall(r"\d+", plain(lead[1]))
    assert numbers == [facts[words] for words in ("runs", "tasks", "position embeddings", IN_RANGE, BEYOND)]


def test_terms_open_onto_what_they_mean(text: str) -> None:
    used = set(re.findall(r'data-term="([^"]+)"', text))
    assert {"exact match", "accurate in range"} <= used <= set(TERMS)
    assert re.findall(r'<dd data-meaning="([^"]+)"', text) == list(TERMS)  # which the script and paper show


def test_cells_hold_the_numbers_of_the_table(table: pd.DataFrame) -> None:
    found = {(cell["task"], cell["scheme"]): cell for cell in all_cells(Study(table))}
    assert list(found) == [(task, scheme) for task in ("copy", "parity") for scheme in ("ideal", "lbpe", "rope")]
    own = table[(table["task"] == "copy") & (table["scheme"] == "rope") & (table["measure"] == "exact_match")]
    cell = found["copy", "rope"]
    assert cell["at"]["2"] == pytest.approx(own.loc[own["scale"] == 20, "value"].mean())
    assert [run["seed"] for run in cell["runs"]] == [0, 1]
    assert [point[0] for point in cell["runs"][0]["exact"]] == [*range(1, 11), 20, 50, 100]
    assert cell["verdict"] == "impossible" and "n=" in cell["reasons"]
    learned = [f"layer 0 head {head} attends to i−j = n" for head in (1, 3)]
    assert found["copy", "lbpe"]["runs"][0]["learned"] == learned


@pytest.mark.usefixtures("no_figures")
def test_configs_say_once_what_all_share(table: pd.DataFrame) -> None:
    about = {"configs": {"a": {"steps": 5, "lr": 0.1}, "b": {"steps": 5, "lr": 0.2}}}
    text = page(Study(table, about))
    assert "<pre>steps = 5</pre>" in text
    assert "lr = 0.1" in text and "lr = 0.2" in text


@pytest.mark.usefixtures("no_figures")
def test_names_are_escaped(table: pd.DataFrame) -> None:
    hostile = table.assign(task=table["task"].replace("copy", HOSTILE), reason="</script><b>", status=HOSTILE)
    about = {"made": HOSTILE, "command": "</style>", "configs": {HOSTILE: {"a": HOSTILE}, "b": {}}}
    text = page(Study(hostile, about))
    assert HOSTILE not in text and "</script><b>" not in text
    assert text.count("</script>") == 2  # the data's, and the page's own
    assert text.count("</style>") == 1
    assert {cell["task"] for cell in embedded(text)["cells"]} == {HOSTILE, "parity"}


def test_nothing_is_fetched(text: str) -> None:
    body = re.sub(r'(src="data:[^"]*"|<script.*?</script>)', "", text, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!#|data:)', body)
    assert "url(" not in text and "@import" not in text
    assert "default-src 'none'" in text


LACKS = {
    "empty": lambda table: as_study(pd.DataFrame()),
    "no values": lambda table: table.assign(value=np.nan, low=np.nan, high=np.nan),
    "none accurate": lambda table: table.assign(accurate=False),
    "one scheme": lambda table: table[table["scheme"] == "rope"],
    "no verdicts": lambda table: table[table["measure"] != "verdict"],
    "only verdicts": lambda table: table[table["measure"] == "verdict"],
    "no probes": lambda table: table[~table["measure"].str.contains("iota|src|lrc|cover|transfer")],
    "four columns": lambda table: as_study(table[["task", "scheme", "measure", "value"]]),
}


@pytest.mark.parametrize("how", few(LACKS, "empty", "only verdicts", "four columns"))
def test_what_is_missing_is_a_sentence(table: pd.DataFrame, how: str) -> None:
    text = page(Study(LACKS[how](table)))
    found = re.search(r'id="finding">(.*?)</p>', text)
    assert found and found[1].endswith(".")
    embedded(text)
    assert not re.search(r">\s*[-−]?(nan|NaN|inf|None|&lt;NA&gt;)\s*<", text)  # "none" is a surgery


@pytest.mark.usefixtures("no_figures")
def test_the_command_writes_the_page(table: pd.DataFrame, tmp_path: Path) -> None:
    study, out = tmp_path / "study.parquet", tmp_path / "deep" / "index.html"
    write_study(table, synthetic_provenance(table), study)
    result = command("report", "--table", str(study), "--out", str(out), "--held-out", "parity")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert "On the tasks held out" in out.read_text(encoding="utf-8")
