"""`lengthlens probe`: the table of a run, kept with it, and what is refused."""

import json
import shutil

import pandas as pd
import pytest

from lengthlens.files import StorageError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import build
from lengthlens.probes.probe import PROBES, invariance_index
from lengthlens.probes.schema import PROBE_COLUMNS, at_defaults
from lengthlens.probes.table import FILE, is_probed, probe_model, probe_run, stored
from lengthlens.runs.config import RunConfig
from lengthlens.runs.run import Run
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import train
from lengthlens.tests.parameters import command

SMALL = {"d_model": 32, "n_heads": 2, "batch": 32, "train_max": 4, "lr": 3e-3, "patience": 1, "cooldown": 0.3}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One run that is accurate, and one that has learnt nothing."""
    store = RunStore(tmp_path_factory.mktemp("runs"))
    train(RunConfig(task="copy", scheme="ideal", steps=300, **SMALL), store)
    train(RunConfig(task="copy", scheme="learned", steps=2, seed=1, **{**SMALL, "n_ctx": 16}), store)
    return store


def probe(store, *arguments):
    return command("probe", "--store", str(store.path), *arguments)


@pytest.mark.slow
def test_json_has_a_row_for_each_measurement(store):
    result = probe(store, "copy_ideal", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {"run", "task", "scheme", "seed", "measure", "scale", "value"} <= set(rows[0])
    found = {row["measure"] for row in rows}
    for each in PROBES.values():
        assert found & set(each.measures) or each.name == "relation"  # which `ideal` does not learn
    assert found <= {"exact_match", *(name for each in PROBES.values() for name in each.measures)}
    assert {row["scale"] for row in rows if row["measure"] == "src"} == {1, 2, 3, 4}
    assert {row["scale"] for row in rows if row["measure"] == "transfer"} == {1, 2, 3, 4, 8}
    assert all(row["accurate"] for row in rows)
    assert len({(row["influence"], row["fidelity"]) for row in rows if row["measure"] == "iota_src"}) == 9


def test_what_is_kept_is_not_measured_again(store, monkeypatch):
    run = store.find("copy_ideal")
    first = probe(store, "copy_ideal", "--measure", "src")
    assert run.has(FILE) and not store.check()
    monkeypatch.setattr("lengthlens.probes.table.Context", lambda *a, **k: pytest.fail("measured again"))
    second = probe(store, "copy_ideal", "--measure", "src")
    assert second.exit_code == 0 and second.stdout == first.stdout
    assert isinstance(stored(run), pd.DataFrame)


def test_a_probe_that_finds_nothing_is_not_tried_again(store, monkeypatch):
    assert probe(store, "copy_ideal", "--measure", "relation").exit_code == 0
    monkeypatch.setattr(PROBES["relation"], "rows", lambda context: pytest.fail("measured again"), raising=False)
    assert probe(store, "copy_ideal", "--measure", "relation").exit_code == 0


def test_text_shows_growth_curves_and_measuring_one_again_keeps_the_others(store):
    run = store.find("copy_ideal")
    shown = probe(store, "copy_ideal", "--measure", "src,lrc").stdout
    assert "codes: the slot that key j fills" in shown and "n=4" in shown and "ι" in shown
    before = stored(run)
    assert probe(store, "copy_ideal", "--measure", "lrc", "--again").exit_code == 0
    by = ["measure", "layer", "head", "scale", "tolerance", "influence", "fidelity"]
    same = [table.sort_values(by, ignore_index=True) for table in (before, stored(run))]
    pd.testing.assert_frame_equal(*same)


def test_a_run_that_is_not_accurate_needs_force_and_is_flagged(store):
    refused = probe(store, "copy_learned", "--measure", "src")
    assert refused.exit_code == 2
    assert "is not accurate in range" in refused.stderr and "--force" in refused.stderr
    forced = probe(store, "copy_learned", "--measure", "src", "--force", "--json")
    assert forced.exit_code == 0, forced.output
    assert not any(row["accurate"] for row in json.loads(forced.stdout))


def test_all_leaves_out_what_cannot_be_probed(store):
    result = probe(store, "--all", "--measure", "src", "--json")
    assert result.exit_code == 0
    assert {row["scheme"] for row in json.loads(result.stdout)} == {"ideal"}
    assert "left out: run 'copy_learned" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name the runs to probe, or say --all"),
        (["copy_ideal", "--measure", "scr"], "did you mean 'src'"),
        (["copy_ideal", "--layers", "7", "--measure", "lrc"], "there is no layer 7"),
        (["copy_learned", "--beyond", "20", "--force", "--measure", "transfer"], "16 positions and cannot process"),
        (["copy_idael"], "did you mean 'copy_ideal"),
    ],
)
def test_refusals_in_a_sentence(store, arguments, sentence):
    result = probe(store, *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr and result.stderr.count("\n") == 1


def test_a_model_in_memory_gives_the_same_kind_of_table():
    table = probe_model(copy_by_hand(), train_max=4, measures=["src", "lrc"])
    index = table[table["measure"].str.startswith("iota_")]
    assert (index["value"] == 0).all() and len(index) == 12


@pytest.mark.parametrize(
    ("name", "curve", "column"),
    [
        ("src", "src", "influence"),
        ("src", "src", "fidelity"),
        ("lrc", "lrc", "tolerance"),
        ("transfer", "cover", "bar"),
    ],
)
def test_with_another_default_the_rows_and_what_they_say_change_together(name, curve, column, monkeypatch):
    """ι is counted at every threshold: that of the curve is the one stored beside the threshold that the curve says."""
    model, values = build(ModelConfig(task="copy", scheme="relative", d_model=16, n_heads=2)), set()
    probe, thresholds = PROBES[name], PROBES[name].thresholds
    for default in next(each.tried for each in thresholds if each.column == column):
        changed = tuple(each._replace(default=default) if each.column == column else each for each in thresholds)
        monkeypatch.setattr(type(probe), "thresholds", changed)
        table = probe_model(model, train_max=5, measures=[name])
        first = (table["layer"].fillna(0) == 0) & (table["readout"].fillna("linear") == "linear")
        table = table[first & table["head"].isna()]
        rows, index = table[table["measure"] == curve], table[table["measure"] == probe.index]
        assert set(rows[column]) == {default} and set(index[column]) > {default}
        iota = invariance_index(dict(zip(rows["scale"], rows["value"])))
        assert at_defaults(index, probe.defaults)["value"].tolist() == [iota]
        values.add(tuple(rows["value"]))
    assert len(values) > 1


def test_a_learned_relation_is_a_row_for_each_form_and_value():
    table = probe_model(copy_by_hand("lbpe"), train_max=4, measures=["relation"])
    (row,) = table[table["measure"] == "relation"].to_dict("records")
    assert (row["layer"], row["head"], row["form"], row["form_value"]) == (0, 0, "i−j−n", 0)
    assert row["value"] > 0 and "i−j−n: 0" in row["relation"]


def test_a_table_of_an_earlier_version_is_measured_again(store, tmp_path):
    run = Run(shutil.copytree(store.find("copy_ideal").path, tmp_path / "copy_ideal"))
    rows = [{"measure": "iota_src", "scale": 4, "value": 0.5, "threshold": "influence=0.25 fidelity=0.9"}]
    with run.locked():
        run.write(FILE, pd.DataFrame(rows).to_parquet(None, index=False))
    with pytest.raises(StorageError, match="of this version"):
        stored(run)
    assert not is_probed(run)
    probe_run(run, ["src"], force=True, again=True)
    assert list(stored(run)) == ["run", "task", "scheme", "seed", *PROBE_COLUMNS]
