"""A study: the one table that analyses, figures and the page are made from."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lengthlens.analyses.table import as_study, read_study, write_study
from lengthlens.errors import UserError
from lengthlens.models.schemes import SchemeSpec
from lengthlens.probes.schema import STUDY_COLUMNS
from lengthlens.probes.table import probe_run
from lengthlens.runs.config import RunConfig
from lengthlens.runs.evaluation import evaluate
from lengthlens.runs.run import Status
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import train
from lengthlens.studies import build
from lengthlens.studies.build import POLA_TRAIN_MAX, cell_rows, ended, machine_class, provenance, scheme_label, study
from lengthlens.tests.test_runs import snapshot

SMALL = {"d_model": 8, "n_heads": 2, "batch": 2, "train_max": 4, "steps": 2, "check_every": 2, "n_ctx": 16}
CONFIGS = (
    RunConfig(task="copy", scheme="lbpe", **SMALL),
    RunConfig(task="copy", scheme="hinted:relative", scheme_options={"max_distance": 3}, **SMALL),
    RunConfig(task="copy", scheme="learned", score_scaling="none", **SMALL),
    RunConfig(task="parity", scheme="ideal", **SMALL),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Runs of two steps, evaluated, one of them probed; and one that only just began."""
    store = RunStore(tmp_path_factory.mktemp("runs"))
    for config in CONFIGS:
        evaluate(train(config, store).run, [8], samples=20)
    probe_run(store.run(CONFIGS[1]), ["src"], force=True)
    store.create(RunConfig(task="copy", scheme="rope", **SMALL))
    return store


@pytest.fixture(scope="module")
def table(store: RunStore) -> pd.DataFrame:
    return study(store, pola_targets=["prefix-sum"])


def of(table: pd.DataFrame, measure: str, scheme: str = "", task: str = "") -> pd.DataFrame:
    rows = table[table["measure"] == measure]
    rows = rows[rows["scheme"] == scheme] if scheme else rows
    return rows[rows["task"] == task] if task else rows


def test_columns_are_those_of_the_contract(table: pd.DataFrame) -> None:
    assert list(table) == list(STUDY_COLUMNS)
    assert {c: str(t) for c, t in table.dtypes.items() if STUDY_COLUMNS[c] != "str"} == {
        c: kind for c, kind in STUDY_COLUMNS.items() if kind != "str"
    }
    assert not table[[c for c, kind in STUDY_COLUMNS.items() if kind == "str"]].isna().any().any()


def test_labels_name_what_is_not_the_default(table: pd.DataFrame) -> None:
    assert set(of(table, "steps")["scheme"]) == {
        "lbpe", "hinted:relative/max_distance=3", "learned/score_scaling=none", "ideal"}  # fmt: skip
    spec = SchemeSpec.parse(scheme_label(CONFIGS[1]))
    assert RunConfig(task="copy", **spec.to_dict(), **SMALL) == CONFIGS[1]


def test_each_run_says_how_it_was_trained_and_scored(store: RunStore, table: pd.DataFrame) -> None:
    run = store.run(CONFIGS[0])
    rows = table[table["run"] == run.id].set_index("measure")
    last = run.metrics()[-1]
    assert rows.loc["train_loss", "value"] == last["loss"]
    assert rows.loc["margin", "value"] == last["margin"]
    assert rows.loc["converged", "value"] == 0 and rows.loc["converged", "status"] == "not-converged"
    assert not rows["accurate"].any()
    exact = rows.loc[["exact_match"]].set_index("scale")
    assert set(exact.index) == {1, 2, 3, 4, 8}
    assert exact.loc[8, "samples"] == 20 and exact.loc[8, "low"] <= exact.loc[8, "value"] <= exact.loc[8, "high"]


def test_a_length_that_the_scheme_cannot_process_is_missing_with_its_reason(table: pd.DataFrame) -> None:
    (row,) = of(table, "exact_match", "learned/score_scaling=none").query("scale == 8").to_dict("records")
    assert np.isnan(row["value"]) and "16 positions" in row["reason"]


def test_what_the_probes_kept_is_there_under_its_own_name(table: pd.DataFrame) -> None:
    probed = table[table["run"].str.startswith("copy_hinted")]
    assert set(of(probed, "src")["scale"]) == {1, 2, 3, 4}
    assert len(of(probed, "probe_exact_match")) == 4
    assert of(probed, "iota_src").groupby(["influence", "fidelity"]).ngroups == 9
    assert (probed["scheme"] == "hinted:relative/max_distance=3").all()
    assert of(table, "iota_src", "lbpe").empty


def test_cells_have_a_verdict_that_looks_at_the_options(table: pd.DataFrame) -> None:
    verdict = of(table, "verdict").set_index(["task", "scheme"])
    assert verdict["verdict"].to_dict() == {
        ("copy", "lbpe"): "possible",
        ("copy", "hinted:relative/max_distance=3"): "possible",
        ("copy", "learned/score_scaling=none"): "impossible",
        ("parity", "ideal"): "task-limited",
    }
    assert (verdict["run"] == "").all() and verdict["seed"].isna().all() and (verdict["scale"] == 16).all()
    (found, *_) = cell_rows(RunConfig(task="copy", scheme="hinted:relative", **SMALL), 16)
    assert found["verdict"] == "open" and "first appears" in found["reason"]


def test_declared_src_at_every_scale_and_at_the_end(table: pd.DataFrame) -> None:
    grows = of(table, "declared_src", task="parity").set_index("scale")["value"]
    assert grows.to_dict() == {1: 1, 2: 2, 3: 3, 4: 4, 16: 16}
    assert set(of(table, "declared_src", task="copy")["value"]) == {1}


def test_pola_rows_are_those_of_the_theory(table: pd.DataFrame) -> None:
    error = of(table, "pola_predicted_error").set_index(["scheme", "scale"])["value"]
    assert error["relative", 8] == 0 and error["relative", 16] == 36 and error["learned", 16] == 100
    assert error["relative/max_distance=4", 16] == error["none", 16] == error["ideal", 16] == 0
    trained = of(table, "pola_trained_error")["value"].to_numpy()
    assert np.allclose(trained, of(table, "pola_predicted_error")["value"], atol=1e-4)
    assert (of(table, "pola_lrc")["train_max"] == POLA_TRAIN_MAX).all()


def test_the_same_store_is_the_same_bytes(store: RunStore, table: pd.DataFrame, tmp_path: Path) -> None:
    about, before = provenance(store, None, "2030-01-31", "lengthlens reproduce"), snapshot(store.path)
    write_study(table, about, tmp_path / "a.parquet")
    write_study(study(store, pola_targets=["prefix-sum"]), about, tmp_path / "deep" / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "deep" / "b.parquet").read_bytes()
    assert snapshot(store.path) == before, "no file of the store is changed"


def test_reading_gives_back_what_was_written(store: RunStore, table: pd.DataFrame, tmp_path: Path) -> None:
    about = provenance(store, None, "2030-01-31", "lengthlens reproduce")
    assert about["configs"].keys() == {config.id for config in CONFIGS}
    assert about["machine"] == machine_class() and "CPU core" in about["machine"]
    write_study(table, about, tmp_path / "study.parquet")
    again, found = read_study(tmp_path / "study.parquet")
    pd.testing.assert_frame_equal(again, table)
    assert found == about
    table.to_csv(tmp_path / "study.csv", index=False)
    csv, nothing = read_study(tmp_path / "study.csv")
    pd.testing.assert_frame_equal(csv, table)
    assert nothing == {}


def test_some_runs_only_and_none_that_are_under_way(store: RunStore) -> None:
    assert len(ended(store)) == len(CONFIGS)
    chosen = study(store, ["parity", store.run(CONFIGS[0])], pola_targets=[])
    assert set(chosen["task"]) == {"parity", "copy"}
    with pytest.raises(UserError, match="has ended yet"):
        study(store, ["copy_rope"])


def test_a_table_by_hand_needs_little(tmp_path: Path) -> None:
    hand = pd.DataFrame({"task": ["copy"], "scheme": ["rope"], "measure": ["exact_match"], "value": [1], "scale": [20]})
    hand.to_csv(tmp_path / "hand.csv")
    found, about = read_study(tmp_path / "hand.csv")
    assert found.loc[0, "scale"] == 20 and found.loc[0, "run"] == "" and about == {}
    pd.testing.assert_frame_equal(as_study(found), found)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "task,value\ncopy,1\n", "no column scheme, measure"),
        ("a.csv", "task,scheme,measure,value\ncopy,rope,src,many\n", "'value' of .* has the value 'many'"),
        ("a.csv", "task,scheme,measure,value,scale\ncopy,rope,src,1,1.5\n", "'scale' of .* has the value 1.5"),
        ("a.parquet", "no parquet", "is not a table in parquet"),
        ("a.csv", "", "is not a table in csv"),
        ("b.csv", None, "cannot read"),
    ],
)
def test_what_is_no_study_is_refused_in_a_sentence(
    tmp_path: Path, name: str, content: str | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=sentence) as refusal:
        read_study(tmp_path / name)
    assert "\n" not in str(refusal.value)


def test_a_study_is_updated_by_what_is_new_alone(tmp_path, monkeypatch):
    store = RunStore(tmp_path / "runs")
    for seed in range(3):
        run = store.create(RunConfig(task="copy", scheme="rope" if seed else "ideal", seed=seed))
        with run.locked():
            run.set_status(Status("diverged", seed))
    few = {"test_max": 12, "pola_targets": ()}
    first = study(store, **few)
    about = provenance(store, None, "2030-01-31", "")
    read, judged = [], []
    monkeypatch.setattr(build, "run_rows", lambda run, real=build.run_rows: read.append(run.id) or real(run))
    monkeypatch.setattr(build, "cell_rows", lambda c, *more, real=build.cell_rows: judged.append(c) or real(c, *more))
    assert study(store, earlier=(first, about), **few).equals(first) and not read and not judged
    with run.locked():
        run.set_status(Status("failed", 9, reason="why"))
    second = study(store, earlier=(first, about), **few)
    assert read == [run.id] and not judged and second.equals(study(store, **few)) and not second.equals(first)
    of_run = second[second["run"] == run.id].set_index("measure")
    assert (of_run.loc["converged", "status"], of_run.loc["converged", "reason"]) == ("failed", "why")
    assert "exact_match" not in of_run.index
    read.clear()
    assert study(store, earlier=(first, {**about, "code": "another"}), **few).equals(second) and len(read) == 3
    (run.path / "status.json").write_bytes(b"{}")
    with pytest.raises(UserError, match="damaged"):  # the files count, whatever an earlier study says
        study(store, earlier=(second, provenance(store, [each.id for each in store.runs()][:2], "", "")), **few)
