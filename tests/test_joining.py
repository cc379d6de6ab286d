"""Several studies as one: nothing lost, nothing twice, and no contradictions."""

from typing import Any

import pandas as pd
import pytest

from lengthlens.analyses.table import CELL, joined, per_run
from lengthlens.errors import UserError
from lengthlens.tests.synthetic import synthetic_provenance, synthetic_study


@pytest.fixture(scope="module")
def whole() -> pd.DataFrame:
    return synthetic_study(["copy", "reverse"], ["ideal", "relative"], 2)


def part(whole: pd.DataFrame, seed: int, **about: object) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The runs of one seed, and what belongs to no run."""
    table = whole[whole["seed"].isna() | (whole["seed"] == seed)].reset_index(drop=True)
    return table, {**synthetic_provenance(table), **about}


def test_the_parts_of_a_study_are_the_study(whole: pd.DataFrame) -> None:
    table, about = joined({"s0": part(whole, 0), "s1": part(whole, 1)})
    by = list(whole.columns)
    assert table.sort_values(by, ignore_index=True).equals(whole.drop_duplicates().sort_values(by, ignore_index=True))
    sorted_alike = (each.sort_values(by, ignore_index=True) for each in (table, whole))
    one, other = (per_run(each) for each in sorted_alike)
    assert one.equals(other)
    assert set(about["configs"]) == set(whole["run"]) - {""}
    assert about["machine"] == "2 CPU cores, no GPU"


def test_one_study_is_itself(whole: pd.DataFrame) -> None:
    own = synthetic_provenance(whole)
    table, about = joined({"all": (whole, own)})
    assert table.equals(whole) and about == own


def test_a_task_is_held_out_if_all_that_have_it_say_so(whole: pd.DataFrame) -> None:
    first = part(whole, 0, held_out=["copy", "reverse"])
    second = part(whole, 1, held_out=["copy"], made="2030-02-01")
    _, about = joined({"s0": first, "s1": second})
    assert about["held_out"] == ["copy"] and about["made"] == "2030-01-31; 2030-02-01"
    without = second[0][second[0]["task"] != "reverse"], second[1]
    assert joined({"s0": first, "s1": without})[1]["held_out"] == ["copy", "reverse"]


def test_a_run_that_is_told_in_two_ways_is_refused(whole: pd.DataFrame) -> None:
    table, about = part(whole, 0)
    changed = table.copy()
    changed.loc[changed.index[changed["measure"] == "exact_match"][0], "value"] = 0.123
    with pytest.raises(UserError, match=r"is in 's0' and in 'other', with different measurements"):
        joined({"s0": (table, about), "other": (changed, about)})
    assert len(joined({"s0": (table, about), "again": (table, about)})[0]) == len(table.drop_duplicates())


def test_two_verdicts_on_one_cell_are_refused(whole: pd.DataFrame) -> None:
    one, (other, about) = part(whole, 0), part(whole, 1)
    judged = other["measure"].eq("verdict") & other["scheme"].eq("ideal")
    changed = other.assign(verdict=other["verdict"].mask(judged, "impossible"))
    with pytest.raises(UserError, match=r"copy under ideal is possible in 's0' and impossible in 's1'"):
        joined({"s0": one, "s1": (changed, about)})


def test_a_run_has_the_verdict_of_its_own_training_range() -> None:
    """Up to n=5 the verdict on one and the same scheme may be another than up to n=10."""
    short, long = (synthetic_study(["copy"], ["relative"], 1, train_max=most, pola_targets=()) for most in (5, 10))
    short = short.assign(verdict=short["verdict"].replace("impossible", "possible"), run=short["run"] + "_short")
    table, _ = joined({"short": (short, {}), "long": (long, {})})
    assert per_run(table).set_index("train_max")["verdict"].to_dict() == {5: "possible", 10: "impossible"}


def test_runs_of_two_recipes_are_two_cells(whole: pd.DataFrame) -> None:
    deep = whole.assign(recipe="n_layers=4", run=whole["run"].where(whole["run"] == "", whole["run"] + "_deep"))
    table, _ = joined({"usual": (whole, {}), "deep": (deep, {})})
    runs = per_run(table)
    assert runs.groupby(CELL).size().tolist() == [2] * 8
