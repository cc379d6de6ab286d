"""Studies of one's own: a TOML file or runs there are, in; a table, figures and a page that say what they are, out."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

import lengthlens as ll
from lengthlens.analyses import theme
from lengthlens.analyses.findings import findings
from lengthlens.analyses.page import page
from lengthlens.analyses.prediction import LEAST_CELLS, LEAST_RUNS, Prediction
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import read_study, write_study
from lengthlens.errors import UserError
from lengthlens.studies.presets import PRESETS, preset_of
from lengthlens.tests.parameters import command as lengthlens
from lengthlens.tests.parameters import few
from lengthlens.tests.synthetic import synthetic_study

PLANS = Path(__file__).resolve().parent / "fixtures/plans.json"
TINY = {"d_model": 8, "n_heads": 2, "batch": 2, "steps": 2, "check_every": 2, "n_ctx": 64}
SCHEMES = ("ideal", "lbpe", "relative", "rope")
DRAWN = sorted(findings().keys() - {"forecast", "growth-interchange_src"})  # of which the study has nothing


@cache
def table() -> pd.DataFrame:
    return synthetic_study(["copy", "parity-cot", "parity"], SCHEMES, 2, pola_targets=["prefix-sum"])


AXES = Figure().add_subplot()
LISTED = ("pola_targets", "held_out", "figures")


# -- presets and files -------------------------------------------------------------------------------------------


def assert_as_before(name: str) -> None:
    """The plans are those that they were before presets were files, and so is what is made of the runs."""
    kept, preset = json.loads(PLANS.read_text())[name], PRESETS[name]
    plans = [
        [plan.config.id, {str(n): number for n, number in plan.samples.items()}, plan.share_after_none_right]
        for plan in preset.plans()
    ]
    assert len(plans) == kept["runs"]
    assert hashlib.sha256(json.dumps(plans, sort_keys=True).encode()).hexdigest() == kept["sha256"]
    assert {entry: list(getattr(preset, entry)) for entry in LISTED} == {entry: kept[entry] for entry in LISTED}
    assert preset.probed == kept["probed"] and preset.checked() is preset


@pytest.mark.parametrize("name", ["smoke", "quick", "paper", "unscaled"])
def test_a_preset_is_what_it_was(name: str) -> None:
    assert_as_before(name)


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_parts_of_a_file_inherit_what_is_said_above(tmp_path: Path) -> None:
    file = written(
        tmp_path / "mine.toml",
        """
title = "Mine"
schemes = ["rope", { name = "relative", max_distance = 3 }]
lengths = [20]
samples = 10
probes = []
[settings]
steps = 7
train_max = 5
[more_lengths]
reverse = [40]
[instances]
40 = 3
[[grids]]
tasks = ["copy"]
seeds = [4, 9]
[[grids]]
tasks = ["reverse"]
settings = { steps = 9 }
""",
    )
    found = preset_of(file)
    plans = {(plan.config.task, plan.config.spec.label, plan.config.seed): plan for plan in found.plans()}
    assert set(plans) == {
        *((("copy", label, seed)) for label in ("rope", "relative/max_distance=3") for seed in (4, 9)),
        ("reverse", "rope", 0),
        ("reverse", "relative/max_distance=3", 0),
    }
    assert plans["copy", "rope", 4].samples == {20: 10} and plans["reverse", "rope", 0].samples == {20: 10, 40: 3}
    assert (plans["copy", "rope", 4].config.steps, plans["reverse", "rope", 0].config.steps) == (7, 9)
    assert plans["reverse", "rope", 0].config.train_max == 5 and not found.probed and found.title == "Mine"
    assert next(iter(found.plans())).config.steps == 9, "the longest first"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('task = ["copy"]', "unknown entry of study 'task': did you mean 'tasks'?"),
        ('tasks = ["copy"]', "has no schemes"),
        ('tasks = ["copi"]\nschemes = ["rope"]', "unknown task 'copi': did you mean 'copy'?"),
        ('tasks = ["copy"]\nschemes = ["rop"]', "unknown scheme 'rop': did you mean 'rope'?"),
        ('tasks = ["copy"]\nschemes = ["rope"]\nprobes = ["srk"]', "unknown probe 'srk': did you mean 'src'?"),
        ('tasks = ["copy"]\nschemes = ["rope"]\nfigures = ["fron"]', "unknown figure 'fron': did you mean 'front'?"),
        ('tasks = ["copy"]\nschemes = ["rope"]\nheld_out = ["sort"]', "unknown held-out task of the study 'sort'"),
        ('tasks = ["copy"]\nschemes = ["rope"]\n[instances]\nten = 3', "'ten' under instances"),
        ('tasks = ["copy"]\nschemes = ["rope"]\nseeds = -1', "seeds"),
        ('tasks = ["copy"]\nschemes = ["rope"]\n[settings]\nstep = 3', "step"),
        ("tasks = ", "TOML"),
    ],
)
def test_a_wrong_file_is_one_sentence_before_any_work(tmp_path: Path, text: str, sentence: str) -> None:
    file = written(tmp_path / "mine.toml", text)
    result = lengthlens("reproduce", file, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2 and sentence in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_two_studies_at_once_and_a_file_that_is_not_there_are_sentences(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.toml", 'tasks = ["copy"]\nschemes = ["rope"]')
    assert "are two studies" in lengthlens("reproduce", file, "--preset", "smoke").stderr
    assert "cannot read" in lengthlens("reproduce", str(tmp_path / "none.toml")).stderr


def test_a_dry_run_shows_every_run_and_does_nothing(tmp_path: Path) -> None:
    result = lengthlens("reproduce", "--preset", "smoke", "--dry-run", "--json", "--out", str(tmp_path / "out"))
    said = json.loads(result.stdout)
    assert said["to_do"] == 3 and [row["lengths"] for row in said["runs"]] == ["6,30"] * 3
    assert not (tmp_path / "out").exists()


# -- a study of runs there are -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("store")
    for task, train_max in (("copy", 2), ("copy", 3), ("reverse", 2)):
        ll.train(ll.RunConfig(task, "ideal", train_max=train_max, **TINY), ll.RunStore(place))
    return place


def test_runs_become_a_study_by_a_command(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "study.parquet"
    words = ["study", "--store", str(store), "--out", str(out), "--title", "My runs", "--held-out", "copy"]
    result = lengthlens(*words, "--where", "task=copy,train_max=2|3", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["runs"] == 2
    found, about = read_study(out)
    assert set(found["task"]) == {"copy"} and set(found["train_max"]) == {2, 3}
    assert about["title"] == "My runs" and about["held_out"] == ["copy"] and len(about["configs"]) == 2
    assert set(Study(found, about).runs["row"]) == {"copy (n ≤ 2)", "copy (n ≤ 3)"}
    assert found.equals(ll.study(ll.RunStore(store), list(about["configs"]), pola_targets=[]))
    text = page(Study(found, about))
    assert "<h1>My runs</h1>" in text and "copy (n ≤ 3)" in text


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("tsk=copy", "unknown field of a run's config 'tsk': did you mean 'task'?"),
        ("task=sort", "has task=sort"),
        ("task", "is no FIELD=VALUE"),
    ],
)
def test_a_wrong_condition_is_one_sentence(store: Path, tmp_path: Path, where: str, sentence: str) -> None:
    result = lengthlens("study", "--store", str(store), "--out", str(tmp_path / "s.parquet"), "--where", where)
    assert result.exit_code == 2 and sentence in result.stderr and not (tmp_path / "s.parquet").exists()


def test_a_table_of_runs_is_told_from_a_study(store: Path, tmp_path: Path) -> None:
    assert lengthlens("runs", "--store", str(store), "table", str(tmp_path / "runs.parquet")).exit_code == 0
    for name in ("runs.parquet", "runs.csv"):
        result = lengthlens("figures", "--table", str(tmp_path / name), "--out", str(tmp_path / "out"))
        assert result.exit_code == 2 and "`lengthlens study --store RUNS" in result.stderr, result.stderr


@pytest.mark.slow
def test_an_auc_needs_enough_runs_and_cells() -> None:
    """Two runs, one of which extrapolates, were an AUC of 1.000 (1.000 to 1.000)."""
    few = Study(synthetic_study(["copy"], ["ideal", "relative"], 1, pola_targets=()))
    found = few.once(Prediction)
    assert found.predictors["auc"].isna().all() and found.versus["difference"].isna().all()
    assert f"from {LEAST_RUNS} runs and {LEAST_CELLS} cells of each kind" in found.headline
    text = page(few)
    assert "are too few" in text and "1.000 (1.000 to 1.000)" not in text
    cells = Study(synthetic_study(["copy"], ["ideal", "relative"], 8, pola_targets=()))
    assert "1 cell with some that extrapolate" in cells.once(Prediction).headline, "16 runs, and still two cells"
    assert not Study(table()).once(Prediction).predictors["auc"].isna().all()


# -- figures as parts --------------------------------------------------------------------------------------------


def test_a_figure_on_axes_of_ones_own() -> None:
    mine = Figure()
    left, right = mine.subplots(1, 2)
    found = ll.plot("extrapolation", table(), {"parity": left, "copy": right}, schemes=["rope", "lbpe"])
    assert found is mine and (left.get_title(), right.get_title()) == ("parity", "copy")
    colours = {line.get_color() for line in right.get_lines()}
    assert colours == {theme.lines(["rope"])["rope"]["color"], theme.lines(["lbpe"])["lbpe"]["color"]}
    assert left.get_legend() is not None and right.get_legend() is None
    alone = Figure().add_subplot()
    ll.plot("extrapolation", table(), alone, tasks=["copy"], legend=False)
    assert alone.get_title() == "copy" and alone.get_legend() is None


@pytest.mark.parametrize("name", few(DRAWN, "growth-src", "pruning"))
def test_every_figure_takes_axes(name: str) -> None:
    study, mine = Study(table()), Figure(figsize=(7, 7))
    whole = study.drawing(findings()[name])
    panels = {each: mine.add_subplot(4, 4, k + 1) for k, each in enumerate(whole._axes)}
    assert ll.plot(name, study, panels) is mine
    assert all(axes.has_data() or axes.texts for axes in panels.values())


@pytest.mark.parametrize(
    ("name", "how", "sentence"),
    [
        ("extrapolation", {"ax": AXES}, "has the panels copy, parity-cot, parity"),
        ("extrapolation", {"ax": {"sort": AXES}}, "unknown panel 'sort'"),
        ("extra", {}, "unknown figure 'extra'"),
        ("front", {"tasks": ["sort"]}, "unknown task in the study 'sort'"),
        ("front", {"width": 0.01}, "no size in inches"),
        ("forecast", {}, "no run was stretched"),
    ],
)
def test_wrong_axes_names_and_sizes_are_sentences(name: str, how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ll.plot(name, table(), **how)


def test_a_part_of_a_study_is_the_study_of_that_part() -> None:
    whole = Study(table(), held_out=["copy", "parity"])
    part = whole.select(["copy", "parity-cot"], ["rope", "lbpe"], [1])
    assert set(part.runs["task"]) == {"copy", "parity-cot"} and set(part.runs["scheme"]) == {"rope", "lbpe"}
    assert set(part.runs["seed"]) == {1} and part.held_out == ("copy",)
    assert set(part.table.loc[part.table["measure"] == "verdict", "scheme"]) == {"rope", "lbpe"}
    options = Study(table().assign(scheme=table()["scheme"].replace("rope", "rope/base=5.0")))
    assert set(options.select(schemes=["rope"]).runs["scheme"]) == {"rope/base=5.0"}, "all options of a scheme"


def test_the_command_draws_what_is_asked_for(tmp_path: Path) -> None:
    write_study(table(), {}, tmp_path / "study.parquet")
    out = tmp_path / "out"
    words = ["figures", "outcome", "extrapolation", "--table", str(tmp_path / "study.parquet"), "--out", str(out)]
    result = lengthlens(
        *words, "--width", "3.3", "--tasks", "copy", "--schemes", "rope,ideal", "--csv", "--formats", "svg"
    )
    assert result.exit_code == 0, result.output
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {"extrapolation.svg", "extrapolation.csv", "outcome.csv"} <= names
    assert {"tables/cells.csv", "tables/cells.md", "tables/cells.tex"} <= names
    assert 'width="237.6pt"' in (out / "extrapolation.svg").read_text(), "3.3 inches"
    numbers = pd.read_csv(out / "extrapolation.csv")
    assert set(numbers["task"]) == {"copy"} and set(numbers["scheme"]) == {"rope", "ideal"}
    assert len(pd.read_csv(out / "tables/cells.csv")) == 2


def test_schemes_of_ones_own_have_colours_of_their_own() -> None:
    labels = ["rope", "none", "mine", "mine/k=3", "theirs"]
    looks = theme.lines(labels)
    assert looks["mine"]["color"] == looks["mine/k=3"]["color"] != looks["theirs"]["color"]
    assert looks["mine"]["color"] not in theme.FAMILY_COLOURS.values()
    assert looks["mine"]["marker"] != looks["mine/k=3"]["marker"]
    assert list(looks)[-3:] == ["mine", "mine/k=3", "theirs"], "after those of this package"
