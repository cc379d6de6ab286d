"""A probe and a finding from outside, each one class and one line, appear everywhere."""

from pathlib import Path

import pandas as pd
import pytest

from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.findings import FINDINGS, draw, findings
from lengthlens.analyses.page import page
from lengthlens.analyses.prediction import Prediction
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import as_study
from lengthlens.analyses.tables import Table, of_frame
from lengthlens.probes.probe import PROBES, Probe, Row, by_scale, index_row
from lengthlens.probes.table import Context, probe_run
from lengthlens.runs.config import RunConfig
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import train
from lengthlens.studies.build import study as study_of
from lengthlens.tests.synthetic import all_tables, synthetic_study

SMALL = {"d_model": 8, "n_heads": 2, "batch": 2, "train_max": 4, "steps": 2, "check_every": 2, "n_ctx": 16}


class Tokens(Probe):
    """A complexity that grows as the number of tokens does, whatever the network."""

    name, measures, index, curves = "tokens", ("tokens", "iota_tokens"), "iota_tokens", {"tokens": "iota_tokens"}
    label, short, growth = "ι of tokens seen", "ι of tokens", "tokens seen"
    words = "how many tokens it sees"

    def rows(self, context: Context) -> list[Row]:
        curve = {n: context.task.length(n) for n in context.exact}
        return [*by_scale("tokens", curve, {}), index_row("iota_tokens", curve, {})]


class Steps(Finding):
    """How long training took."""

    name, title, shows = "my-steps", "How long did training take?", "Steps of every run."

    def draw(self, study: Study, canvas: Canvas) -> None:
        canvas.panel(3.4, 2.2).plot(study.runs["steps"], study.runs["label"], "o")

    def tables(self, study: Study) -> dict[str, Table]:
        return {"my-steps": Table("Steps of every run.", **of_frame(study.runs, ["run", "steps"]), title="All steps")}


@pytest.fixture(autouse=True)
def added() -> None:
    PROBES.add("tokens", Tokens())
    FINDINGS.add("my-steps", Steps())


@pytest.fixture
def study() -> Study:
    """Made up, with what the probe would give: flat where the run extrapolates."""
    table = synthetic_study(["copy", "parity-cot"], ["ideal", "relative", "rope"], 2, pola_targets=())
    runs = table[table["measure"] == "steps"]
    rows = [
        {**{name: row[name] for name in ("run", "task", "scheme", "seed", "train_max", "accurate")}, **each}
        for row in runs.to_dict("records")
        for curve in [{n: 2.0 if row["scheme"] == "ideal" else 2.0 * n for n in range(1, 11)}]
        for each in [*by_scale("tokens", curve, {}), index_row("iota_tokens", curve, {})]
    ]
    return Study(as_study(pd.concat([table, as_study(pd.DataFrame(rows))], ignore_index=True)))


def test_a_probe_is_in_the_table_of_a_run_and_in_the_study(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = train(RunConfig(task="copy", scheme="ideal", **SMALL), store).run
    assert run is not None
    probed = probe_run(run, ["tokens"], force=True).set_index("measure")
    lengths = [run.config.task_object.length(n) for n in range(1, 5)]
    assert probed.loc["tokens", "value"].tolist() == lengths and probed.loc["iota_tokens", "value"] > 0.5
    found = study_of(store, pola_targets=[])
    assert found.loc[found["measure"] == "tokens", "value"].tolist() == lengths


def test_a_probe_is_a_predictor_a_column_and_a_growth_figure(study: Study) -> None:
    found = study.once(Prediction)
    row = found.predictors.query("predictor == 'iota_tokens' and factor == 2").iloc[0]
    assert row["label"] == "ι of tokens seen" and row["kind"] == "measure" and row["runs"] > 0
    assert "ι of tokens" in all_tables(study)["cells"].markdown().splitlines()[2]
    assert set(found.sensitivity["measure"]) >= {"iota_tokens"}
    figure = study.drawing(findings()["growth-tokens"]).figure
    assert "growth-tokens" not in study.missing
    assert "tokens seen" in [axes.get_ylabel() for axes in figure.axes]


@pytest.mark.slow
def test_both_are_drawn_written_and_on_the_page(study: Study, tmp_path: Path) -> None:
    drawn = draw(study, ["my-steps", "growth-tokens", "tables"], tmp_path, ["png"])
    assert not {"my-steps", "growth-tokens"} & set(drawn.missing)
    files = {str(path.relative_to(tmp_path)) for path in drawn.files}
    assert {"my-steps.png", "growth-tokens.png", "tables/my-steps.md", "tables/my-steps.tex"} <= files
    text = page(study)
    for expected in ('id="my-steps"', "How long did training take?", 'id="table-my-steps"', 'id="growth-tokens"'):
        assert expected in text
    assert '{"curve": "tokens", "index": "iota_tokens", "title": "tokens seen"}' in text
    assert "ι of tokens" in text


@pytest.mark.slow
def test_a_probe_that_a_study_has_nothing_of_leaves_its_tables_and_page_alone(tmp_path: Path) -> None:
    """Each new probe with an index put an empty column, row or figure into every earlier study."""
    study = Study(synthetic_study(["copy", "parity-cot"], ["ideal", "relative"], 2, pola_targets=()))
    tables = {name: table.markdown() for name, table in all_tables(study).items()}
    assert not [name for name, text in tables.items() if "tokens" in text]
    assert "iota_tokens" not in study.runs and "growth-tokens" not in page(study)
    assert (
        "no run in the table has 'tokens'" in draw(study, ["growth-tokens"], tmp_path, ["png"]).missing["growth-tokens"]
    )
