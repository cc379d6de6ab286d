"""What is committed under figures/ follows from the code: tables of studies cell by cell, and names of runs."""

import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from lengthlens.analyses.study import Study
from lengthlens.analyses.table import read_study
from lengthlens.models.schemes import scheme_names
from lengthlens.probes.schema import STUDY_COLUMNS
from lengthlens.runs.config import RunConfig
from lengthlens.tests.parameters import NINE, few
from lengthlens.tests.synthetic import all_tables
from lengthlens.theory.verdict import verdict_grid

FIGURES = Path(__file__).resolve().parent.parent / "figures"
FIXTURES = Path(__file__).resolve().parent / "fixtures"
STUDIES = ("study", "unscaled", "schemes")


@pytest.mark.parametrize("name", few(STUDIES, "unscaled"))
def test_tables_of_a_committed_study(name: str) -> None:
    assert list(pd.read_parquet(FIGURES / name / "study.parquet")) == list(STUDY_COLUMNS)
    made = all_tables(Study(*read_study(FIGURES / name / "study.parquet")))
    kept = {path.stem: path.read_text() for path in (FIGURES / name / "tables").glob("*.md")}
    assert {key: each.markdown() for key, each in made.items()} == kept


@pytest.mark.parametrize("name", STUDIES)
def test_a_committed_config_still_names_its_run(name: str) -> None:
    configs = json.loads((FIGURES / name / "provenance.json").read_text())["configs"]
    assert len(configs) >= 100
    assert {RunConfig.from_dict(config).id for config in configs.values()} == set(configs)


def test_names_of_runs_are_a_contract() -> None:
    """The same choices gave these names when the stored runs were made."""
    ids = json.loads((FIXTURES / "run_ids.json").read_text())
    for key in ("copy", "addition"):
        for scheme in scheme_names():
            if f"{key} {scheme}" in ids:  # a scheme that is newer has no stored runs
                then = NINE if scheme == "lbpe" else scheme  # its defaults were others
                assert RunConfig(key, then, seed=3, steps=77).id == ids[f"{key} {scheme}"]
    assert RunConfig("copy", "lbpe").id == "copy_lbpe_s0_24421b8e", "wide, and the others as one mean, by default"
    pooled = RunConfig("copy", "lbpe", {"forms": "nine", "other": "one"}, score_scaling="none")
    assert pooled.id == ids["copy lbpe one"]
    sizes = {"n_layers": 4, "n_heads": 2, "d_model": 128, "d_mlp": 99, "n_ctx": 512, "initializer_range": 0.03}
    wide = {"task": "copy", "scheme": "hinted:relative", "scheme_options": {"max_distance": 3}, "train_max": 6}
    assert RunConfig.from_dict({**wide, **sizes, "precision": "bfloat16", "device": "cpu"}).id == ids["copy wide"]


@pytest.mark.slow
def test_every_verdict_is_as_it_was() -> None:
    made = verdict_grid()
    kept = pd.read_csv(FIXTURES / "verdicts.csv").set_index(["task", "scheme"])
    again = pd.read_csv(StringIO(made.to_csv(index=False))).set_index(["task", "scheme"])
    pd.testing.assert_frame_equal(again.loc[kept.index, kept.columns], kept)
