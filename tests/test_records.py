"""Records: the table's statistics by hand, the choice of scaling, what is missing, and the command from end to end."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from lengthlens.analyses import records as analysis
from lengthlens.analyses import records_figure, records_text
from lengthlens.cli import main
from lengthlens.errors import UserError
from lengthlens.runs.config import RunConfig
from lengthlens.runs.record_grid import GOAL_SCHEME, GOALS, RECORD_SCHEMES, RECORD_TASKS, RecordGrid
from lengthlens.runs.store import RunStore
from lengthlens.runs.sweep import Planned
from lengthlens.studies.record_rows import COLUMNS, merged, record_table

TINY = ("--set", "steps=2", "--set", "train_max=2", "--set", "batch=2", "--set", "d_model=8", "--set", "n_heads=2")
GRID = ("--tasks", "copy", "--schemes", "lbpe,ideal", "--seeds", "0-1", "--lengths", "2,4",
        "--samples", "8,4=6", "--workers", "1")  # fmt: skip


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["records", *words])


def rows(scores: dict[int, list[float | str | None]], **about: Any) -> list[dict[str, Any]]:
    """Rows of one task, scheme and scaling: for each length a score a seed, None if missing, else an outcome."""
    cell = {"task": "copy", "scheme": GOAL_SCHEME, "score_scaling": "log", "train_max": 10, "note": "", **about}
    name = "_".join(map(str, cell.values()))
    return [
        {**cell, **trained(name, seed), "length": length, **scored(value)}
        for length, values in scores.items()
        for seed, value in enumerate(values)
    ]


def trained(name: str, seed: int) -> dict[str, Any]:
    cost = {"steps": 100 * (seed + 1), "seconds": 10.0 * (seed + 1)}
    ended = {"status": "converged", "accurate": True, "in_range_exact_match": 1.0 - seed / 100}
    return {"run": f"{name}_s{seed}", "seed": seed, **cost, **ended}


def scored(value: float | str | None) -> dict[str, Any]:
    if not isinstance(value, float):
        return {"outcome": value or "missing"}
    interval = {"exact_match_low": value, "exact_match_high": value}
    return {"outcome": "scored", "samples": 200, "exact_match": value, **interval}


def table(*groups: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame([row for group in groups for row in group], columns=list(COLUMNS)).astype(COLUMNS)


# -- the grid ----------------------------------------------------------------------------------------------------


def test_the_grid_is_every_cell_under_the_default_recipe() -> None:
    configs = RecordGrid().configs()
    assert len(configs) == len({c.id for c in configs}) == 8 * 5 * 2 * 3
    assert RunConfig("addition", "lbpe", seed=2).id in {c.id for c in configs}
    assert {c.train_max for c in configs} == {10}
    assert list(GOALS) == list(RECORD_TASKS)
    assert set(GOALS["copy"]) <= set(RecordGrid().samples("copy"))


def test_the_grid_of_one_scaling_is_half_of_it() -> None:
    scaled = RecordGrid(scalings=("log",)).configs()
    assert len(scaled) == len(RecordGrid().configs()) / 2
    assert {config.score_scaling for config in scaled} == {"log"}


def test_samples_of_single_lengths_and_a_most() -> None:
    grid = RecordGrid(tasks=["copy"], most=50, exactly={10_000: 70})
    assert grid.samples("copy")[10] == 50 and grid.samples("copy")[10_000] == 70
    assert RecordGrid(lengths=[30, 20_000]).samples("addition") == {30: 1000, 20_000: 20}


def test_a_hopeless_run_is_given_fewer_instances_and_none_twice() -> None:
    plan = Planned(RunConfig("copy", "rope"), {20: 100, 50: 30, 100: 30}, hopeless=0.1)

    def row(length: int, samples: int, exact_match: float | None, **more: Any) -> dict[str, Any]:
        return {"length": length, "samples": samples, "seed": 0, "exact_match": exact_match, **more}

    assert plan.next_look([row(20, 99, 1.0)]) == (20, 100), "too few instances"
    assert plan.next_look([row(20, 200, 1.0)]) == (50, 30), "more than enough"
    assert plan.next_look([row(20, 100, 0.0)]) == (50, 3)
    assert plan.next_look([row(20, 100, 0.0), row(50, 3, 0.0), row(100, 3, 0.0)]) is None
    assert plan.next_look([row(20, 100, 1.0), row(50, 3, 0.0)]) == (50, 30)
    assert plan.next_look([row(20, 100, None, reason="refused")]) == (50, 3)


# -- statistics --------------------------------------------------------------------------------------------------


def test_statistics_by_hand() -> None:
    found = analysis.statistics(
        table(rows({20: [1.0, 0.98, 0.995], 100: [0.5, 0.1, None], 1000: [0.4, "diverged", "refused"]}))
    )
    at = found.set_index("length").to_dict("index")
    assert (at[20]["median"], at[20]["worst"], at[20]["exact"], at[20]["seeds"]) == (0.995, 0.98, 2, 3)
    assert (at[20]["low"], at[20]["high"]) == (0.98, 0.98), "the interval is that of the worst seed"
    assert (at[100]["median"], at[100]["worst"], at[100]["seeds"]) == (0.3, 0.1, 2), "a missing seed does not count"
    assert (at[1000]["median"], at[1000]["worst"], at[1000]["seeds"]) == (0.0, 0.0, 3), "a failed seed counts as 0"
    assert list(found["planned"]) == [3, 3, 3]


def test_training_is_counted_once_a_run() -> None:
    (row,) = analysis.training(table(rows({20: [1.0] * 3, 50: [1.0] * 3}))).to_dict("records")
    assert (row["in_range_median"], row["in_range_worst"]) == (0.99, 0.98)
    assert (row["steps"], row["seconds"], row["trained"], row["accurate"]) == (200, 20.0, 3, 3)


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
    both = table(rows(log), rows(none, score_scaling="none"))
    assert analysis.best_scaling(analysis.statistics(both)) == best
    assert set(analysis.records(both)["score_scaling"]) == {best}


def test_goals_want_every_seed() -> None:
    def state(*scores: float | None) -> str:
        (row,) = analysis.goals(analysis.records(table(rows({1000: list(scores)})))).to_dict("records")
        return str(row["state"])

    assert state(1.0, 0.99, 0.99) == "reached"
    assert state(1.0, 1.0, 0.98) == "not reached"
    assert state(1.0, 1.0, None) == "open"
    assert state(0.5, None, None) == "not reached"
    assert state(1.0) == "open", "one seed is not three"
    assert analysis.goals(analysis.records(table(rows({1000: [1.0]}, scheme="ideal")))).empty


def test_order_is_that_of_the_record() -> None:
    found = analysis.records(
        table(
            *(
                rows({20: [1.0]}, task=t, scheme=s)
                for s in ("none", *RECORD_SCHEMES[::-1])
                for t in ("addition", "copy")
            )
        )
    )
    assert list(found["task"].unique()) == ["copy", "addition"]
    assert list(found["scheme"].unique())[:2] == [GOAL_SCHEME, "ideal"] and list(found["scheme"])[-1] == "none"


# -- texts and figure --------------------------------------------------------------------------------------------


def example() -> pd.DataFrame:
    bad = rows({20: ["refused"] * 3, 1000: ["refused"] * 3}, scheme="learned")
    inaccurate = [{**row, "accurate": False} for row in rows({20: [0.0] * 3, 1000: [0.0] * 3}, scheme="rope")]
    return table(
        rows({20: [1.0] * 3, 1000: [1.0, 0.97, 1.0]}),
        rows({20: [0.9] * 3, 1000: [0.0] * 3}, score_scaling="none"),
        rows({20: [None] * 3, 1000: [None] * 3}, scheme="ideal"),
        bad,
        inaccurate,
    )


def test_cells_say_what_is_missing_refused_or_not_accurate() -> None:
    chosen = analysis.records(example())
    chosen.loc[chosen["scheme"] == "ideal", "trained"] = 0
    cells = {row["scheme"]: row for row in records_text.cells(chosen)}
    goal = cells[GOAL_SCHEME]
    assert goal["n = 1000"] == "1.000 (0.970)" and goal["scores"] == "log"
    assert goal["seeds ≥ 0.99 at 1000"] == "2/3" and goal["training"] == "200 steps, 20 s"
    assert (cells["ideal"]["in range"], cells["ideal"]["n = 20"]) == ("not trained", "–")
    assert cells["learned"]["n = 20"] == "refused" and cells["learned"]["scores"] == "(log)"
    assert "accurate 0/3" in cells["rope"]["in range"] and cells["rope"]["n = 20"] == "0.000"


def test_texts_carry_goals_samples_and_published_figures_apart() -> None:
    chosen = analysis.records(example())
    page = records_text.markdown(chosen, 10, "2 CPU cores, no GPU")
    assert "copy not reached (2 of 3 seeds)" in page
    assert "200 at n = 20, 200 at n = 1000" in page
    assert "not run by us" in page and "2405.17399" in page
    widths = {line.count("|") for line in page.splitlines() if line.startswith(("| copy", "| task | scheme"))}
    assert len(widths) == 2, "rows of two tables, each as wide as its head"
    paper = records_text.latex(chosen, 10, "2 CPU cores, no GPU")
    body = paper[paper.index(r"\begin{tabular}") :]
    assert body.isascii() and r"\toprule" in body


def test_the_figure_has_a_panel_a_task_and_a_line_a_scheme() -> None:
    figure = records_figure.plot(analysis.records(pd.concat([example(), table(rows({20: [1.0]}, task="shift"))])), 10)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["copy", "shift"]
    assert panels[0].get_xscale() == "log"
    styles = records_figure.scheme_styles(pd.DataFrame({"scheme": RECORD_SCHEMES}))
    looks = [(style["color"], style["linestyle"], style["marker"]) for style in styles.values()]
    assert len(set(looks)) == len(RECORD_SCHEMES)


# -- the command -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small grid worked off by the command: its store, and what it wrote."""
    store, out = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("out")
    result = run(*GRID, *TINY, "--store", str(store), "--out", str(out))
    assert result.exit_code == 0, result.output
    return store, out


def test_the_command_writes_everything(made: tuple[Path, Path]) -> None:
    store, out = made
    names = {f"records.{suffix}" for suffix in ("csv", "md", "tex", "json", "png", "pdf")}
    assert {path.name for path in out.iterdir()} == names
    written = pd.read_csv(out / "records.csv")
    assert len(written) == 2 * 2 * 2 * 2, "schemes, scalings, seeds, lengths"
    assert set(written["outcome"]) == {"scored"}
    assert list(written.loc[written["length"] == 2, "samples"].unique()) == [200], "known from training"
    assert set(written.loc[written["length"] == 4, "samples"]) <= {6, 1}
    facts = json.loads((out / "records.json").read_text())
    assert set(facts["configs"]) == {r.id for r in RunStore(store).runs()} == set(written["run"])
    for name, cell in facts["configs"].items():
        assert RunConfig.from_dict({**facts["recipe"], **cell}).id == name, "enough to make it again"
    assert facts["recipe"]["steps"] == 2 and "torch" in facts["versions"] and facts["trained_with"]


def test_a_second_call_trains_nothing_and_writes_the_same(made: tuple[Path, Path], tmp_path: Path) -> None:
    store, out = made
    before = [r.events() for r in RunStore(store).runs()]
    assert json.loads(run(*GRID, *TINY, "--store", str(store), "--dry-run", "--json").stdout)["to_do"] == 0
    assert run(*GRID, *TINY, "--store", str(store), "--out", str(tmp_path)).exit_code == 0
    assert [r.events() for r in RunStore(store).runs()] == before
    for path in out.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_part_that_is_not_there_is_shown_and_planned(made: tuple[Path, Path], tmp_path: Path) -> None:
    words = (*GRID, "--seeds", "0-2", *TINY, "--store", str(made[0]))
    assert json.loads(run(*words, "--dry-run", "--json").stdout)["to_train"] == 4
    result = run(*words, "--as-is", "--json", "--out", str(tmp_path))
    facts = json.loads(result.stdout)
    assert {row["seeds"] for row in facts["records"]} == {2} and {row["planned"] for row in facts["records"]} == {3}
    assert (pd.read_csv(tmp_path / "records.csv")["outcome"] == "missing").sum() == 8
    assert "2 seeds" in (tmp_path / "records.md").read_text()


def test_records_that_were_written_before_stand_beside(made: tuple[Path, Path], tmp_path: Path) -> None:
    store, out = made
    words = (*GRID, *TINY, "--as-is", "--store", str(tmp_path / "empty"), "--out", str(tmp_path / "again"))
    assert (run(*words).exit_code, run(*words, "--beside", str(out)).exit_code) == (0, 0)
    for name in ("records.csv", "records.md", "records.png"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes(), name
    facts = [json.loads((folder / "records.json").read_text()) for folder in (out, tmp_path / "again")]
    assert facts[0]["configs"] == facts[1]["configs"] and facts[0]["trained_with"] == facts[1]["trained_with"]
    refused = run(*GRID, *TINY, "--set", "steps=3", "--as-is", "--store", str(store), "--beside", str(out))
    assert refused.exit_code == 2 and "were made with another recipe" in refused.stderr


def test_of_several_scores_the_one_on_most_instances_counts() -> None:
    few = table(rows({20: [0.5], 100: [0.4]}))
    many = few.assign(samples=few["samples"] * 2, exact_match=0.6, seconds=99.0)[few["length"] == 20]
    untrained = few.assign(outcome="missing", samples=pd.NA, steps=pd.NA, status="absent")
    found = merged([untrained, few, many])
    assert len(found) == len(few) and list(found["length"]) == list(few["length"])
    assert list(found["exact_match"]) == [0.6, 0.4]
    assert list(found["seconds"]) == list(few["seconds"]) and set(found["status"]) == {"converged"}


def test_other_schemes_of_the_same_recipe_stand_beside(made: tuple[Path, Path], tmp_path: Path) -> None:
    store, other = made[0], str(tmp_path / "other")
    settings = [word for word in TINY if word != "--set"]
    for scheme, steps in (("rope", 2), ("alibi", 3)):
        changed = [f"steps={steps}", *settings[1:]]
        words = ["train", "--task", "copy", "--scheme", scheme, "--quiet", "--store", other]
        assert CliRunner().invoke(main, [*words, *(w for s in changed for w in ("--set", s))]).exit_code == 0
    result = run(*GRID, *TINY, "--store", str(store), "--beside", other, "--json", "--out", str(tmp_path / "out"))
    facts = json.loads(result.stdout)
    assert {row["scheme"] for row in facts["records"]} == {"lbpe", "ideal", "rope"}, "alibi had more steps"
    words = ("--tasks", "copy", "--schemes", "rope,all", "--seeds", "0", "--lengths", "4", "--samples", "5")
    plan = json.loads(run(*words, *TINY, "--store", str(store), "--dry-run", "--json").stdout)
    assert plan["to_train"] == 2, "rope; the others are only evaluated"


def test_a_damaged_run_is_missing_and_says_so(tmp_path: Path) -> None:
    store, config = RunStore(tmp_path), RunConfig("copy", "rope")
    with store.create(config).locked():
        (store.run(config).path / "status.json").write_text("nonsense")
    found = record_table([Planned(config, {20: 5})], store)
    assert found["outcome"].item() == "missing" and "damaged" in found["note"].item()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--tasks", "coppy"), "did you mean 'copy'?"),
        (("--schemes", "lbpf"), "did you mean 'lbpe'?"),
        (("--schemes", "lbpe/windo=3"), "window"),
        (("--samples", "many"), "LENGTH=N"),
        (("--samples", "30=5"), "unknown length to take samples of '30'"),
        (("--lengths", "0"), "no scale 0"),
        (("--set", "seed=3"), "cannot be set for all"),
        (("--beside", "nowhere", "--as-is"), "no runs in 'nowhere'"),
        (("--engine", "ray"), "local, dask"),
    ],
)
def test_bad_requests_are_one_sentence(words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    result = run(*words, "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert named in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_empty_grid_is_refused() -> None:
    with pytest.raises(UserError, match="at least one"):
        RecordGrid(tasks=[])
