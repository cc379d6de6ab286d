"""Does ι predict extrapolation: known answers, baselines, and tables with little in them."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
import pytest

from lengthlens.analyses.outcome import outcome
from lengthlens.analyses.prediction import Prediction, others_mean, scores
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import MissingError, as_study, default_index, exact_at, indices, of_runs, per_run
from lengthlens.errors import UserError
from lengthlens.probes.schema import BAR, FIDELITY, INFLUENCE
from lengthlens.tests.synthetic import synthetic_study

TASKS, SCHEMES = ("copy", "parity-cot", "addition", "parity"), ("ideal", "lbpe", "relative", "rope", "none")


@cache
def table() -> pd.DataFrame:
    return synthetic_study(TASKS, SCHEMES, pola_targets=[])


@cache
def finding() -> Prediction:
    return prediction(table(), held_out=("addition",))


def prediction(rows: pd.DataFrame, held_out: Sequence[str] = ()) -> Prediction:
    return Prediction(Study(rows, held_out=held_out))


def by_hand(*runs: tuple[str, str, int, float, float]) -> pd.DataFrame:
    """A study from (task, scheme, seed, ι, exact match at twice the range) alone, all accurate."""
    rows = []
    for task, scheme, seed, iota, exact in runs:
        about = {"task": task, "scheme": scheme, "seed": seed, "train_max": 10, "accurate": True}
        rows.append({**about, "measure": "iota_src", "value": iota})
        rows.append({**about, "measure": "exact_match", "scale": 20, "value": exact})
    return as_study(pd.DataFrame(rows))


def predictor(found: Prediction, name: str, factor: int = 2) -> "pd.Series":
    rows = found.predictors
    return rows[(rows["predictor"] == name) & (rows["factor"] == factor)].iloc[0]


def test_one_row_for_each_run():
    runs = per_run(table())
    assert len(runs) == runs["run"].nunique() == len(TASKS) * len(SCHEMES) * 3
    assert not runs["verdict"].eq("").any()
    one = runs.iloc[0]
    rows = table()[(table()["run"] == one["run"]) & (table()["measure"] == "exact_match")].set_index("scale")
    assert one["exact_2"] == rows.loc[20, "value"] and one["exact_10"] == rows.loc[100, "value"]
    assert one["extrapolates_2"] == (one["exact_2"] >= 0.9)


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("iota_src", {"influence": INFLUENCE.default, "fidelity": FIDELITY.default}),
        ("iota_cover", {"bar": BAR.default, "readout": "sequential", "layer": 0}),  # one layer before the last
    ],
)
def test_the_index_is_that_of_the_default_thresholds(name, at):
    rows = of_runs(table())
    default = rows[(rows["measure"] == name) & (rows[list(at)] == pd.Series(at)).all(axis=1)]
    found = default_index(rows, next(each for each in indices() if each.index == name))
    pd.testing.assert_series_equal(found, default.set_index("run")["value"].sort_index())


def test_a_length_that_cannot_be_processed_is_not_matched_and_one_not_evaluated_is_missing():
    rows = by_hand(("copy", "learned", 0, 0.0, np.nan), ("copy", "rope", 0, 0.0, 1.0))
    assert exact_at(of_runs(rows), 2).isna().any()
    rows.loc[rows["scheme"] == "learned", "reason"] = "has 16 positions"
    assert exact_at(of_runs(rows), 2).tolist() == [0.0, 1.0]
    assert per_run(rows)["exact_10"].isna().all()


def test_a_perfect_index_has_auc_one_and_a_random_one_about_a_half():
    cells = [(f"t{k % 6}", f"s{k // 6}", seed, k % 2, 1.0 - k % 2) for k in range(36) for seed in (0, 1)]
    found = prediction(by_hand(*cells))
    src = predictor(found, "iota_src")
    assert (src["auc"], src["spearman"], src["runs"], src["groups"]) == (1, pytest.approx(1), 72, 36)
    assert "says nothing about cells not tried" in src["note"]
    noise = np.random.default_rng(0).permutation(36)
    blind = prediction(by_hand(*((t, s, seed, noise[k // 2], e) for k, (t, s, seed, _, e) in enumerate(cells))))
    row = predictor(blind, "iota_src")
    assert row["auc_low"] < 0.5 < row["auc_high"]


def test_on_a_plausible_study_the_measures_beat_the_baselines():
    src = predictor(finding(), "iota_src")
    assert src["auc"] > 0.95 and src["auc_low"] <= src["auc"] <= src["auc_high"]
    for baseline in ("train_loss", "in_range_exact_match", "margin", "family"):
        assert predictor(finding(), baseline)["auc"] < src["auc"]
    versus = finding().versus.query("measure == 'iota_src' and baseline == 'train_loss'").iloc[0]
    assert versus["difference_low"] > 0
    assert f"{src['auc']:.3f}" in finding().headline and "best baseline" in finding().headline


def test_only_runs_that_are_accurate_in_range_count():
    runs = per_run(table())
    assert len(finding().runs) == runs["accurate"].sum() < len(runs)
    assert f"{(~runs['accurate']).sum()} are not accurate in range" in finding().notes[0]


def test_base_rates_leave_out_the_run_itself():
    found = others_mean(pd.Series([1.0, 0.0, 0.5, 1.0]), pd.Series(["a", "a", "b", "b"]))
    assert found.tolist() == [0.0, 1.0, 1.0, 0.5]
    alone = others_mean(pd.Series([1.0, 0.0, 0.5]), pd.Series(["a", "b", "b"]))
    assert alone.tolist() == [0.25, 0.5, 0.0]


def test_a_verdict_takes_no_side_on_content():
    runs = pd.DataFrame({"verdict": ["possible", "impossible", "task-limited", "content-addressed", ""]})
    assert scores(runs, "verdict", 2).tolist()[:3] == [1, 0, 0]
    assert scores(runs, "verdict", 2)[3:].isna().all()


def test_a_task_effect_is_no_law_within_tasks():
    """ι knows the task alone: perfect over all, worthless within, and the numbers say both."""
    easy = [("easy", f"s{k}", seed, 0.0, float(k != 0)) for k in range(6) for seed in (0, 1)]
    hard = [("hard", f"s{k}", seed, 1.0, float(k == 0)) for k in range(6) for seed in (0, 1)]
    found = prediction(by_hand(*easy, *hard))
    assert predictor(found, "iota_src")["auc"] > 0.8
    within = found.within.set_index(["predictor", "within"])["auc"]
    assert within["iota_src", "task"] == 0.5
    assert within["family", "family"] == 0.5
    assert found.ranks.query("by == 'task'")["spearman"].isna().all()


def test_the_threshold_is_chosen_on_the_other_tasks():
    cells = [(task, f"s{k}", 0, k / 10, float(k < 5)) for task in ("a", "b") for k in range(10)]
    odd = [("c", f"s{k}", 0, k / 10, float(k < 2)) for k in range(10)]
    left = prediction(by_hand(*cells, *odd)).left_out.query("predictor == 'iota_src'").set_index("task")
    assert left.loc["c", "threshold"] == pytest.approx(0.45)
    assert left.loc["c", "balanced_accuracy"] == pytest.approx((2 / 2 + 5 / 8) / 2)
    assert left.loc["all", "runs"] == 30


def test_what_is_added_to_a_verdict_that_is_right_half_of_the_time():
    cells = [
        (f"t{t}", f"s{k}", seed, (k + seed) % 2, 1.0 - (k + seed) % 2)
        for t in range(4)
        for k in range(4)
        for seed in (0, 1)
    ]
    rows = by_hand(*cells)
    verdict = [
        {"task": f"t{t}", "scheme": f"s{k}", "train_max": 10, "measure": "verdict"}
        | {"verdict": "possible" if k < 2 else "impossible"}
        for t in range(4)
        for k in range(4)
    ]
    found = prediction(as_study(pd.concat([rows, pd.DataFrame(verdict)])))
    added = found.added.query("predictor == 'iota_src'").set_index("what")["value"]
    assert added["AUC among the same verdict"] == 1
    assert added["gain in AUC over the verdict"] == pytest.approx(0.5)
    assert 0.2 < added["gain in log loss over the verdict"] < np.log(2)
    assert len(found.both_ways) == 16 and (found.both_ways["iota_src_yes"] < found.both_ways["iota_src_no"]).all()


@pytest.mark.slow
def test_held_out_tasks_stand_apart():
    held = finding().held_out
    assert set(held["tasks"]) == {"held out", "others"}
    count = held.query("predictor == 'iota_src'").set_index("tasks")["runs"]
    assert count["held out"] == (finding().runs["task"] == "addition").sum()
    assert prediction(table()).held_out.empty and "no task was held out" in prediction(table()).notes
    with pytest.raises(UserError, match="did you mean 'addition'"):
        prediction(table(), ["adition"])


def test_each_stored_threshold_has_its_auc():
    found = finding().sensitivity.set_index(["measure", "threshold"])
    assert len(found) == 9 and found["default"].sum() == 3
    assert found.loc[("iota_src", "influence=0.25 fidelity=0.9"), "auc"] == predictor(finding(), "iota_src")["auc"]


@pytest.mark.parametrize(
    ("lacking", "sentence"),
    [
        (lambda rows: rows.assign(accurate=False), "none of the 60 runs is accurate in range"),
        (lambda rows: rows[~rows["measure"].str.startswith("iota_")], "was probed"),
        (lambda rows: rows[rows["scale"].fillna(0) <= 10], "was evaluated at 2 times"),
        (lambda rows: as_study(pd.DataFrame()), "no run in the table"),
    ],
)
def test_what_is_missing_is_a_sentence(lacking, sentence):
    with pytest.raises(MissingError, match=sentence):
        prediction(lacking(table()))


@pytest.mark.parametrize(("exact", "says"), [(1.0, "all 4 runs extrapolate"), (0.0, "none of 4 runs extrapolates")])
def test_one_class_is_undefined_with_a_sentence(exact, says):
    found = prediction(by_hand(*((t, s, 0, 0.1, exact) for t in "ab" for s in "xy")))
    src = predictor(found, "iota_src")
    assert np.isnan(src["auc"]) and says in src["note"] and says in found.headline
    assert any(says in note for note in found.notes)
    assert found.added["value"].isna().all()


def test_one_scheme_and_one_task():
    found = prediction(by_hand(("copy", "rope", 0, 0.0, 1.0), ("copy", "rope", 1, 1.0, 0.0)))
    src = predictor(found, "iota_src")
    assert np.isnan(src["auc"]) and src["note"]
    assert "there is one scheme only, rope" in found.notes
    assert found.left_out.empty
    assert "cannot be said from 2 runs" in found.headline


def test_missing_numbers_are_left_out_and_counted():
    rows = by_hand(*((t, s, 0, i, 1.0 - i) for t in "abc" for s, i in (("x", 0.0), ("y", 1.0))))
    rows.loc[(rows["task"] == "a") & (rows["measure"] == "iota_src"), "value"] = np.nan
    found = prediction(rows)
    assert predictor(found, "iota_src")["runs"] == 4
    assert any("2 of the 6 runs have no ι of measured SRC" in note for note in found.notes)
    assert "no run has 'margin'" in predictor(found, "margin")["note"]


def test_verdicts_against_outcomes_count_every_run_and_name_every_contradiction():
    found = outcome(Study(table()))
    assert found.confusion.to_numpy().sum() == len(per_run(table()))
    assert found.confusion.loc["task-limited", "extrapolates"] == 0
    named = set(zip(found.disagreements["task"], found.disagreements["scheme"]))
    assert named == {("parity-cot", "ideal"), ("addition", "lbpe")}
    row = found.disagreements.set_index("task").loc["addition"]
    assert row["seeds"] == "0, 1" and row["of"] == 3 and row["outcome"] == "does not extrapolate"
    wrong = found.judged - found.agreeing
    assert wrong == 3 and f"{found.agreeing} (" in found.sentence


def test_without_verdicts_there_is_nothing_to_confront():
    with pytest.raises(MissingError, match="no verdicts"):
        outcome(Study(table()[table()["measure"] != "verdict"]))
