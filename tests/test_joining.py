"""Several studies as one: nothing lost, nothing twice, and no contradictions."""

import pandas as pd
import pytest

from lengthlens.analyses.joining import Study, joined
from lengthlens.analyses.per_run import per_run
from lengthlens.errors import UserError
from lengthlens.tests.synthetic import synthetic_provenance, synthetic_study


@pytest.fixture(scope="module")
def whole() -> pd.DataFrame:
    return synthetic_study(["copy", "reverse"], ["ideal", "relative"], 2)


def part(whole: pd.DataFrame, seed: int, **about: object) -> Study:
    """The runs of one seed, and what belongs to no run."""
    table = whole[whole["seed"].isna() | (whole["seed"] == seed)].reset_index(drop=True)
    return Study(f"s{seed}", table, {**synthetic_provenance(table), **about})


def test_the_parts_of_a_study_are_the_study(whole: pd.DataFrame) -> None:
    table, about = joined([part(whole, 0), part(whole, 1)])
    by = list(whole.columns)
    assert table.sort_values(by, ignore_index=True).equals(whole.drop_duplicates().sort_values(by, ignore_index=True))
    sorted_alike = (each.sort_values(by, ignore_index=True) for each in (table, whole))
    one, other = (per_run(each) for each in sorted_alike)
    assert one.equals(other)
    assert set(about["configs"]) == set(whole["run"]) - {""}
    assert about["machine"] == "2 CPU cores, no GPU"


def test_one_study_is_itself(whole: pd.DataFrame) -> None:
    only = Study("all", whole, synthetic_provenance(whole))
    table, about = joined([only])
    assert table.equals(whole) and about == only.about


def test_a_task_is_held_out_if_all_that_have_it_say_so(whole: pd.DataFrame) -> None:
    first = part(whole, 0, held_out=["copy", "reverse"])
    second = part(whole, 1, held_out=["copy"], made="2030-02-01")
    _, about = joined([first, second])
    assert about["held_out"] == ["copy"] and about["made"] == "2030-01-31; 2030-02-01"
    without = second._replace(table=second.table[second.table["task"] != "reverse"])
    assert joined([first, without])[1]["held_out"] == ["copy", "reverse"]


def test_a_run_that_is_told_in_two_ways_is_refused(whole: pd.DataFrame) -> None:
    one = part(whole, 0)
    changed = one.table.copy()
    changed.loc[changed.index[changed["measure"] == "exact_match"][0], "value"] = 0.123
    with pytest.raises(UserError, match=r"is in 's0' and in 'other', with different measurements"):
        joined([one, one._replace(name="other", table=changed)])
    assert len(joined([one, one])[0]) == len(one.table.drop_duplicates())


def test_two_verdicts_on_one_cell_are_refused(whole: pd.DataFrame) -> None:
    one, other = part(whole, 0), part(whole, 1)
    judged = other.table["measure"].eq("verdict") & other.table["scheme"].eq("ideal")
    changed = other.table.assign(text=other.table["text"].mask(judged, "pe-limited"))
    with pytest.raises(UserError, match=r"copy under ideal is possible in 's0' and pe-limited in 's1'"):
        joined([one, other._replace(table=changed)])
