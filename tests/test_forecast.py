"""What was predicted from the training range, and what came of it: on tables whose answers are known."""

import pandas as pd
import pytest

from lengthlens.analyses.forecast import FLAT, ForecastOfRuns, forecast
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import MissingError, as_study


def run(number: int, task: str, scheme: str, predicted: float, iota: float, exact: float, fails: int | None = None):
    """The rows of one run trained on n ≤ 10, exact in range; `exact` at n = 20, and half of it at 40."""
    about = {"run": f"r{number}", "task": task, "scheme": scheme, "seed": number, "train_max": 10, "accurate": True}
    found = [{"measure": "exact_match", "scale": n, "value": 1.0} for n in range(1, 11)]
    found += [{"measure": "exact_match", "scale": 20, "value": exact}]
    found += [{"measure": "exact_match", "scale": 40, "value": exact / 2}]
    found += [{"measure": "predicted_exact_match", "scale": 20, "value": predicted}]
    found += [{"measure": "predicted_loss", "scale": 20, "value": 1 - predicted}]
    found += [{"measure": "iota_interchange", "scale": 10, "value": iota, "fidelity": 0.9}]
    found += [{"measure": "interchange_src", "scale": n, "value": 3, "fidelity": 0.9} for n in range(1, 11)]
    if fails is not None:
        found += [{"measure": "predicted_failure", "scale": 20, "value": fails, "reason": "codes never trained"}]
    return [{**about, **row} for row in found]


def study(*runs) -> Study:
    return Study(as_study(pd.DataFrame([row for own in runs for row in own])))


RUNS = (
    run(0, "copy", "hinted:alibi", 1.0, 0.0, 1.0, 40),  # right: flat, carries
    run(1, "copy", "relative", 0.0, 1.2, 0.0, 20),  # right: neither
    run(2, "shift", "hinted:t5", 0.95, FLAT + 0.1, 1.0, 40),  # wrong: not flat, and extrapolates
    run(3, "shift", "hinted:t5", 0.4, 0.0, 0.5, 20),  # right: flat, does not carry
    run(4, "reverse", "rope", 0.95, 0.0, 0.2),  # wrong, and no failure was predicted
)


def test_a_run_is_called_by_both_measures_together() -> None:
    found = forecast(study(*RUNS)).runs.set_index("run")
    assert found["called"].to_dict() == {"r0": True, "r1": False, "r2": False, "r3": False, "r4": True}
    assert found["right"].to_dict() == {"r0": True, "r1": True, "r2": False, "r3": True, "r4": False}


def test_calls_are_counted_apart_from_the_tasks_they_were_chosen_on() -> None:
    groups = forecast(study(*RUNS)).groups.set_index("runs")
    assert groups.loc["all", "right"] == "3 of 5"
    assert groups.loc["other tasks", "right"] == "1 of 3" and groups.loc["copy", "right"] == "2 of 2"
    assert "1 of 3 runs" in forecast(study(*RUNS)).sentence


def test_a_length_is_right_within_a_factor_of_two() -> None:
    """All five fail; of one that was not predicted."""
    found = forecast(study(*RUNS))
    assert found.runs.set_index("run")["failed_at"].to_dict() == {"r0": 40, "r1": 20, "r2": 40, "r3": 20, "r4": 20}
    assert found.groups.set_index("runs").loc["all", "length within a factor of 2"] == "4 of 5"


def test_seeds_of_a_cell_that_go_both_ways_are_listed_and_told_apart() -> None:
    found = forecast(study(*RUNS))
    (row,) = found.both_ways.to_dict("records")
    assert (row["task"], row["scheme"], row["seeds"], row["right"]) == ("shift", "hinted:t5", 2, 1)
    among = found.scores.set_index("predictor")["AUC among seeds of one cell"]
    assert among["predicted exact match"].startswith("1.000")


def test_what_cannot_be_said_is_a_dash() -> None:
    """Two runs of one task that the call was chosen on: there are no other tasks, and no seeds of one cell."""
    scores = forecast(study(*RUNS[:2])).scores
    assert (scores[["AUC, other tasks", "AUC among seeds of one cell"]] == "–").all(axis=None)
    assert not scores.astype(str).apply(lambda column: column.str.contains("nan")).any(axis=None)


def test_being_told_the_scale_is_a_baseline() -> None:
    found = forecast(study(*RUNS)).runs.set_index("run")["knows_scale"]
    assert found.to_dict() == {"r0": 1, "r1": 0, "r2": 1, "r3": 1, "r4": 0}


def test_tables_and_figure() -> None:
    own, finding = study(*RUNS), ForecastOfRuns()
    tables = finding.tables(own)
    assert len(tables["forecast-wrong"].rows) == 2 and len(tables["forecast-causes"].rows) == 1
    assert len(own.drawing(finding).figure.axes) == 2


def test_without_these_probes_a_sentence_says_what_is_missing() -> None:
    rows = [row for row in RUNS[0] if row["measure"] == "exact_match"]
    with pytest.raises(MissingError, match="lengthlens probe --measure interchange,stretch"):
        forecast(study(rows))
