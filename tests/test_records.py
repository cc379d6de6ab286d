"""The plug-in of the records: statistics over seeds by hand, choice of scaling, goals, texts, figure, preset."""

import doctest
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lengthlens.analyses.findings import FINDINGS
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import MissingError, as_study, read_study
from lengthlens.plugins.registry import forget, load_plugin
from lengthlens.runs.config import RunConfig
from lengthlens.runs.sweep import Planned
from lengthlens.studies.presets import PRESETS, preset_of, read_preset
from lengthlens.tests.test_own_studies import assert_as_before

ROOT = Path(__file__).resolve().parent.parent
FIGURES, EXAMPLES = ROOT / "figures", ROOT / "examples/learned_relations"
PLUGIN = str(EXAMPLES / "records.py")
GOAL_SCHEME = "lbpe"
analysis: Any = None  # the plug-in, once it is loaded


@pytest.fixture(autouse=True, scope="module")
def the_plugin() -> Iterator[None]:
    """Loaded while this file is tested, and not for other files."""
    global analysis
    load_plugin(PLUGIN)
    analysis = sys.modules[type(FINDINGS["records"]).__module__]
    yield
    FINDINGS.remove("records")
    forget([PLUGIN])


@pytest.fixture
def drawn_tasks() -> Iterator[None]:
    """The tasks of the other plug-in are known, in their order, while a test runs."""
    load_plugin(str(EXAMPLES / "tasks.py"))
    yield
    forget([str(EXAMPLES / "tasks.py")])


def rows(scores: dict[int, list[float | str | None]], **about: Any) -> list[dict[str, Any]]:
    """Rows of one cell of a study: for each length a score a seed, None if missing, else an outcome."""
    cell = {"task": "copy", "scheme": GOAL_SCHEME, "train_max": 1, "recipe": "", "accurate": True, **about}
    found = []
    for seed in range(max(map(len, scores.values()))):
        own = [values[seed] for values in scores.values() if seed < len(values)]
        run = {**cell, "run": "_".join(map(str, [*cell.values(), seed])), "seed": seed}
        status = "diverged" if "diverged" in own else "converged"
        numbers = {"steps": 100 * (seed + 1), "seconds": 10 * (seed + 1), "in_range_exact_match": 1.0 - seed / 100}
        found += [{**run, "measure": name, "value": value} for name, value in numbers.items()]
        found += [{**run, "measure": "converged", "value": 1.0, "status": status}]
        at = zip(scores, own)
        found += [
            {**run, "measure": "exact_match", "scale": n, **scored(v)} for n, v in at if v not in (None, "diverged")
        ]
    return found


def scored(value: float | str | None) -> dict[str, Any]:
    if isinstance(value, str):
        return {"value": None, "samples": 200, "reason": "it has 16 positions"}
    return {"value": value, "low": value, "high": value, "samples": 200}


def table(*groups: list[dict[str, Any]]) -> Study:
    return Study(as_study(pd.DataFrame([row for group in groups for row in group])))


def scaled(scheme: str = GOAL_SCHEME) -> str:
    return f"{scheme}/score_scaling=log"


def test_ten_seeds_are_the_runs_that_were_promised() -> None:
    plans = read_preset(EXAMPLES / "seeds.toml").plans()
    assert len(plans) == 80
    at_10000 = [plan for plan in plans if 10_000 in plan.samples]
    assert len(at_10000) == 24 and {plan.samples[10_000] for plan in at_10000} == {10}


@pytest.mark.parametrize("name", ["records", "unforeseen"])
def test_examples_in_the_plugins(name: str) -> None:
    module = analysis if name == "records" else import_module(f"lengthlens.examples.learned_relations.{name}")
    assert doctest.testmod(module).attempted and not doctest.testmod(module).failed


def test_a_run_without_any_right_is_given_fewer_instances_and_none_twice() -> None:
    plan = Planned(RunConfig("copy", "rope"), {20: 100, 50: 30, 100: 30}, share_after_none_right=0.1)

    def row(length: int, samples: int, exact_match: float | None, **more: Any) -> dict[str, Any]:
        return {"length": length, "samples": samples, "seed": 0, "exact_match": exact_match, **more}

    assert plan.next_evaluation([row(20, 99, 1.0)]) == (20, 100), "too few instances"
    assert plan.next_evaluation([row(20, 200, 1.0)]) == (50, 30), "more than enough"
    assert plan.next_evaluation([row(20, 100, 0.0)]) == (50, 3)
    assert plan.next_evaluation([row(20, 100, 0.0), row(50, 3, 0.0), row(100, 3, 0.0)]) is None
    assert plan.next_evaluation([row(20, 100, 1.0), row(50, 3, 0.0)]) == (50, 30)
    assert plan.next_evaluation([row(20, 100, None, reason="refused")]) == (50, 3)


def test_statistics_by_hand() -> None:
    scores = {20: [1.0, 0.98, 0.995], 100: [0.5, 0.1, None], 1000: [0.4, "diverged", "refused"]}
    found = analysis.statistics(analysis.outcomes(table(rows(scores))))
    at = found.set_index("length").to_dict("index")
    assert (at[20]["median"], at[20]["worst"], at[20]["reaching"], at[20]["seeds"]) == (0.995, 0.98, 2, 3)
    assert (at[20]["low"], at[20]["high"]) == (0.98, 0.98), "the interval is that of the worst seed"
    assert (at[100]["median"], at[100]["worst"], at[100]["seeds"]) == (0.3, 0.1, 2), "a missing seed does not count"
    assert (at[1000]["median"], at[1000]["worst"], at[1000]["seeds"]) == (0.0, 0.0, 3), "a failed seed counts as 0"


def test_a_run_that_failed_counts_as_planned_and_not_as_trained() -> None:
    failed = [{**row, "status": "failed"} if row["measure"] == "converged" else row for row in rows({100: [None]})]
    other = [{**row, "seed": 1, "run": "other"} for row in rows({100: [1.0]})]
    (row,) = analysis.best(table(failed, other)).to_dict("records")
    assert (row["trained"], row["planned"], row["seeds"]) == (1, 2, 1)
    assert analysis.in_range_text(row) == "1.000, 1 seed"


def test_in_range_lengths_are_no_records() -> None:
    found = analysis.outcomes(table(rows({5: [1.0], 10: [1.0], 1000: [1.0]}, train_max=10)))
    assert sorted(found["length"]) == [10, 1000]
    with pytest.raises(MissingError, match="100 times its training range"):
        analysis.outcomes(table(rows({20: [1.0], 100: [1.0]}, train_max=10)))


@pytest.mark.parametrize(
    ("log", "none", "best"),
    [
        ({20: [0.5] * 3, 100: [0.9, 0.9, 0.0]}, {20: [1.0] * 3, 100: [0.8] * 3}, "log"),  # the median, farthest out
        ({20: [0.5] * 3, 100: [0.9, 0.9, 0.0]}, {20: [0.1] * 3, 100: [0.9] * 3}, "none"),  # then the worst
        ({20: [0.5] * 3, 100: [0.0] * 3}, {20: [0.6] * 3, 100: [0.0] * 3}, "none"),  # then the next shorter length
        ({20: [0.5] * 3, 100: [0.0] * 3}, {20: [0.5] * 3, 100: [0.0] * 3}, "log"),  # then the default
        ({20: [0.5] * 3, 100: [None] * 3}, {20: [0.4] * 3, 100: [1.0] * 3}, "log"),  # at lengths that both have
        ({20: [None] * 3, 100: [None] * 3}, {20: [0.1] * 3, 100: [0.0] * 3}, "none"),  # of those that were run
    ],
)
def test_the_better_scaling_is_shown(log: Any, none: Any, best: str) -> None:
    both = table(rows(log, scheme=scaled()), rows(none))
    assert analysis.best_scaling(analysis.statistics(analysis.outcomes(both))) == best
    assert set(analysis.best(both)["score_scaling"]) == {best}
    assert set(analysis.best(both)["scheme"]) == {GOAL_SCHEME}


def test_recipes_are_not_pooled() -> None:
    chosen = analysis.best(table(rows({100: [1.0]}), rows({100: [0.0]}, recipe="n_layers=4")))
    assert chosen["median"].tolist() == [1.0, 0.0]
    assert [line["recipe"] for line in analysis.lines(chosen)] == ["", "n_layers=4"]


def test_goals_want_every_seed() -> None:
    def state(*scores: float | None) -> str:
        (row,) = analysis.goals(analysis.best(table(rows({100: [1.0] * 3, 1000: list(scores)})))).to_dict("records")
        return str(row["state"])

    assert state(1.0, 0.99, 0.99) == "reached"
    assert state(1.0, 1.0, 0.98) == "not reached"
    assert state(1.0, 1.0, None) == "open"
    assert state(0.5, None, None) == "not reached"
    (row,) = analysis.goals(analysis.best(table(rows({1000: [1.0]})))).to_dict("records")
    assert row["state"] == "open", "one seed is not three"
    assert set(analysis.goals(analysis.best(example()))["scheme"]) == {GOAL_SCHEME}, "no goal for others"


def example() -> Study:
    return table(
        rows({20: [1.0] * 3, 1000: [1.0, 0.97, 1.0]}, train_max=10),
        rows({20: [0.9] * 3, 1000: [0.0] * 3}, train_max=10, scheme=scaled()),
        rows({20: [1.0] * 3, 1000: [None] * 3}, train_max=10, scheme="ideal"),
        rows({20: ["refused"] * 3, 1000: ["refused"] * 3}, train_max=10, scheme="learned"),
        rows({20: [0.0] * 3, 1000: [0.0] * 3}, train_max=10, scheme="rope", accurate=False),
    )


def test_cells_say_what_is_missing_refused_or_not_accurate() -> None:
    cells = {line["scheme"]: line for line in analysis.lines(analysis.best(example()))}
    goal = cells[GOAL_SCHEME]
    assert goal["n = 1000"] == "1.000 (0.970)" and goal["scores"] == "none"
    assert goal["seeds ≥ 0.99 at 1000"] == "2/3" and goal["training"] == "200 steps, 20 s"
    assert (cells["ideal"]["n = 1000"], cells["ideal"]["seeds ≥ 0.99 at 1000"]) == ("–", "–")
    assert cells["learned"]["n = 20"] == "refused" and cells["learned"]["scores"] == "(log)"
    assert "accurate 0/3" in cells["rope"]["in range"] and cells["rope"]["n = 20"] == "0.000"


def test_the_figure_has_a_panel_a_task_and_a_star_a_goal() -> None:
    shift = table(rows({1000: [1.0]}, task="shift", train_max=10))
    both = Study(pd.concat([example().table, shift.table]))
    figure = both.drawing(analysis.Records()).figure
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["copy", "shift"]
    assert panels[0].get_xscale() == "log"
    stars = [line for line in panels[0].get_lines() if line.get_marker() == "*"]
    assert [line.get_markerfacecolor() for line in stars] == ["white"], "a goal that is not reached"


@pytest.mark.parametrize("name", ["records", "drawn", "unforeseen"])
@pytest.mark.usefixtures("drawn_tasks")
def test_committed_tables_are_what_the_plugin_makes(name: str) -> None:
    """And every goal is reached: eight tasks at a hundred times the training length, and at a thousand times."""
    chosen = analysis.best(Study(*read_study(FIGURES / name / "study.parquet")))
    assert name != "records" or analysis.goals(chosen)["state"].tolist() == ["reached"] * 16
    for table, made in analysis.tables(chosen).items():
        kept = FIGURES / name / "tables" / f"{table}.md"
        assert not kept.exists() or kept.read_text() == made.markdown(), table
        assert kept.exists() or name != "records", table


def test_a_preset_whose_figures_are_in_a_plugin_is_still_found_by_its_name() -> None:
    """Its runs are those that they were when the finding was part of the package."""
    FINDINGS.remove("records")
    forget([PLUGIN])
    preset = PRESETS["records"]
    assert "records" not in FINDINGS
    assert preset_of("records") is preset and "records" in FINDINGS
    assert_as_before("records")
