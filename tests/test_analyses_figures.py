"""Figures: what they show, in the order and colours of the theme, and what they say when there is nothing to show."""

import warnings
from functools import cache
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from lengthlens.analyses import curves, learned, pola, theme
from lengthlens.analyses.findings import findings
from lengthlens.analyses.prediction import Prediction
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import MissingError, as_study, indices, joined
from lengthlens.analyses.tables import Table
from lengthlens.errors import UserError
from lengthlens.tests.parameters import few
from lengthlens.tests.synthetic import all_tables, synthetic_study

SCHEMES = ("ideal", "lbpe", "hinted:relative/max_distance=3", "hinted:relative/max_distance=12", "rope")
TASKS = ("copy", "parity-cot", "addition", "parity")


@cache
def table() -> pd.DataFrame:
    return synthetic_study(TASKS, SCHEMES, seeds=2, pola_targets=["prefix-sum"])


@cache
def study() -> Study:
    return Study(table(), held_out=["addition"])


@cache
def complete() -> Study:
    """All that any finding is made of."""
    index = table()[table()["measure"] == "iota_src"].drop_duplicates("run")
    index = index.assign(influence=float("nan"))
    predicted = [index.assign(measure=name) for name in ("iota_interchange", "predicted_loss", "predicted_failure")]
    curve = table()[table()["measure"] == "src"].assign(measure="interchange_src", influence=float("nan"))
    predicted.append(curve.drop_duplicates(["run", "scale"]))
    return Study(pd.concat([table(), *predicted], ignore_index=True), held_out=["addition"])


def drawn(study: Study, name: str) -> Figure:
    return study.drawing(findings()[name]).figure


def texts(figure: Figure) -> list[str]:
    """Everything that is written in a figure, once it is drawn."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]  # type: ignore[attr-defined]


def without(*measures: str) -> pd.DataFrame:
    return table()[~table()["measure"].isin(measures)]


def test_labels_with_options_have_the_family_and_colour_of_their_scheme():
    assert theme.family("hinted:relative/max_distance=3") == "hinted"
    assert (
        theme.lines(["lbpe/score_scaling=none"])["lbpe/score_scaling=none"]["color"]
        == theme.lines(["lbpe"])["lbpe"]["color"]
    )
    looks = theme.lines(SCHEMES)
    assert len({(look["color"], str(look["linestyle"]), look["marker"]) for look in looks.values()}) == len(SCHEMES)
    assert looks["rope"] == theme.lines(["rope"])["rope"]
    many = [f"relative/max_distance={k}" for k in range(1, 12)]
    assert list(theme.lines(many)) == many


@pytest.mark.parametrize("width", [None, 3.3])
@pytest.mark.parametrize("name", few(findings(), "growth-src", "learned"))
def test_every_figure_fits_a_page_and_a_column_without_cut_text(name, width):
    canvas = complete().drawing(findings()[name], width)
    figure = canvas.figure
    assert complete().drawing(findings()[name], width) is canvas and name not in complete().missing  # drawn once
    assert texts(figure)
    (wide, high), box = figure.get_size_inches(), figure.get_tightbbox()
    assert wide <= (width or theme.PAGE) + 1e-9 and high <= theme.PAGE_HEIGHT
    assert min(box.x0, box.y0) > -0.01 and box.x1 < wide + 0.01 and box.y1 < high + 0.01, box.bounds


@pytest.mark.parametrize("name", list(findings()))
def test_nothing_to_show_is_said_in_the_figure(name):
    empty = Study(as_study(pd.DataFrame()))
    said = " ".join(texts(drawn(empty, name))).replace("\n", " ")
    assert empty.missing[name] in said


@pytest.mark.parametrize("name", few(["front", "extrapolation", "transfer", "learned"], "learned"))
def test_names_from_the_data_are_shown_as_they_are(name):
    """A dollar would start a formula, and a broken formula stops a drawing."""
    task, scheme = r"<b>$\frac$", "$x_{$ & co"
    of_lbpe = {"scheme": {"lbpe": scheme}} if name == "learned" else {"scheme": {"rope": scheme}}
    hostile = table().replace({"task": {"copy": task}, **of_lbpe})
    said = [text.replace(r"\$", "$") for text in texts(drawn(Study(hostile), name))]
    if name == "front":  # names no task, and of schemes those that are not of this package
        assert scheme in said
    else:
        assert any(task in text for text in said)
    if name in ("extrapolation", "transfer"):
        assert scheme in said


@pytest.mark.slow
def test_the_front_figure_names_every_predictor_with_its_numbers():
    said = texts(drawn(study(), "front"))
    for row in study().once(Prediction).predictors.query("factor == 2").itertuples():
        assert row.label in said
        assert any(text.startswith(f"{row.auc:.3f} [") for text in said)
    assert any("held-out" in text for text in said)
    fails = (table()["measure"] == "exact_match") & (table()["scale"] > 10)
    flat = table().assign(value=table()["value"].mask(fails, 0.0))
    said = " ".join(texts(drawn(Study(flat), "front"))).replace("\n", " ")
    assert "AUC is not stated: none of" in said and "all accurate in range" in said


def test_each_run_is_a_mark_near_its_place_in_the_colour_of_its_family():
    axes = Figure().add_subplot()
    axes.set(xlim=(0, 2), ylim=(0, 1))
    runs = pd.DataFrame({"task": ["copy"] * 9 + ["mine"], "label": ["rope", "lbpe"] * 5, "x": 2.0, "y": 0.5})
    theme.points(axes, runs, "x", "y")
    position, other = axes.collections
    places = np.concatenate([position.get_offsets(), other.get_offsets()])
    assert len(position.get_offsets()) == 9 and len({tuple(place) for place in places.round(6)}) == 10
    assert np.hypot((places[:, 0] - 2) / 2, places[:, 1] - 0.5).max() <= theme.JITTER
    assert {tuple(colour) for colour in position.get_facecolors()} == {
        to_rgba(theme.lines([scheme])[scheme]["color"]) for scheme in ("rope", "lbpe")
    }


def test_extrapolation_takes_mean_and_range_over_seeds():
    exact = study().rows.query("measure == 'exact_match'")
    found = curves.mean_curves(exact).set_index(["row", "label", "scale"]).loc[("copy", "ideal", 100)]
    rows = table().query("task == 'copy' and scheme == 'ideal' and measure == 'exact_match' and scale == 100")["value"]
    assert (found["mean"], found["low"], found["high"], found["seeds"]) == (
        pytest.approx(rows.mean()), rows.min(), rows.max(), 2)  # fmt: skip


def test_a_run_alone_is_drawn_with_its_training_range():
    rows = [
        {"length": n, "exact_match": 1.0, "exact_match_low": 0.9, "exact_match_high": 1.0, "exact_match_no_end": 1.0}
        for n in (5, 20)
    ]
    rows.append({"length": 40, "reason": "too long"})
    figure = curves.plot_exact_match(rows, 10, "a run of $5")
    assert r"a run of \$5" in texts(figure)
    assert [list(line.get_xdata()) for line in figure.axes[0].get_lines()] == [[5, 20], [5, 20]]


def test_sizes_that_are_tuples_are_two_axes_of_a_heat_map():
    """Operands by their digits, or two lengths: each cell is where its size says; a line bounds the training range."""
    cases: dict[tuple[str, str], list[tuple[int, ...]]] = {
        ("number of fields", "length of each"): [(2, 2), (4, 4), (2, 2, 2), (4, 4, 4)],
        ("length of the second", "length of the first"): [(2, 3), (2, 9), (5, 3), (5, 9)],
    }
    for about, shapes in cases.items():
        shares = [0.9, 0.25, 0.5, 0.0]
        rows = [{"length": max(s), "shape": list(s), "exact_match": x} for s, x in zip(shapes, shares)]
        axes = curves.plot_exact_match(rows, 3, "a run").axes[0]
        assert (axes.get_ylabel(), axes.get_xlabel()) == about
        drawn = axes.collections[0].get_array().reshape(2, 2).tolist()  # highest row first
        order = [[1, 3], [0, 2]] if about[0].startswith("length") else [[2, 3], [0, 1]]
        assert drawn == [[shares[k] for k in row] for row in order]
        assert next(list(line.get_xdata()) for line in axes.get_lines()) == [1, 1]
    with pytest.raises(UserError, match="two fields"):
        curves.plot_exact_match([{"length": 3, "shape": [1, 2, 3], "exact_match": 1.0}], 3, "a run")


def test_growth_is_of_whole_models_and_declared_src_stays_in_range():
    assert curves.growth_curves(study(), "lrc")["seeds"].max() == 2
    src, lrc, *_ = indices()
    assert curves.declared_curves(study(), src)["scale"].max() == 10 and curves.declared_curves(study(), lrc).empty
    with pytest.raises(MissingError, match="lengthlens probe"):
        curves.growth_curves(Study(without("src")), "src")


def test_transfer_has_room_for_labels_that_name_their_recipe():
    """Labels of one line left no room for the maps, and Matplotlib warned that the axes had collapsed."""
    rows = table().query("task == 'copy' and scheme == 'rope' and run != ''")
    recipe = "n_heads={0}, d_model={0}, check_every={0}, warmup={0}, steps={0}"
    several = [rows.assign(recipe=recipe.format(steps), run=rows["run"] + str(steps)) for steps in (400, 4000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = Study(pd.concat(several, ignore_index=True)).drawing(findings()["transfer"]).figure
    width, height = figure.axes[0].get_position().size * figure.get_size_inches()
    assert min(width, height / 2) > 0.3  # inches of a map


def test_transfer_is_of_one_readout_and_has_its_control():
    found = learned.accuracies(study()).set_index(["row", "label", "fit_scale", "scale"])
    rows = table().query(
        "task == 'copy' and scheme == 'rope' and measure == 'transfer' and layer == 0 and readout == 'sequential'"
    )
    rows = rows[(rows["fit_scale"] == 3) & (rows["scale"] == 20)]
    assert found.loc[("copy", "rope", 3, 20), "accuracy"] == pytest.approx(rows["value"].mean())
    summary = learned.summary(learned.accuracies(study())).set_index(["row", "label"])
    assert np.allclose(summary["shuffled labels"], 0.2)
    assert summary.loc[("copy", "ideal"), "beyond the range"] > summary.loc[("copy", "rope"), "beyond the range"]


@pytest.mark.parametrize(
    ("task", "equations"),
    [
        ("copy", ["i−j = n"]),
        ("reverse", ["i+j = 2n+1"]),
        ("addition", ["i−j = 2n+1", "i−j = n", "i−j = 2n+2", "i−j = n+1", "i−j = 0"]),
        ("parity", []),
        ("sort", []),
        ("my own", []),
    ],
)
def test_the_circuit_in_words(task, equations):
    assert learned.circuit_equations(task) == equations


def test_what_lbpe_learned_stands_beside_the_circuit():
    found = learned.learned(study())
    row = found.cells.set_index("task").loc["copy"]
    assert row["circuit"] == "i−j = n" and row["attends to"] == "i−j = n (2 of 2)" and row["found"] == 2
    assert found.cells.set_index("task").loc["addition", "found"] == 0  # one of five equations is not all
    assert (found.equations["heads"] == 2).all()


def test_pola_comes_back_as_the_theory_has_it():
    found = pola.finding(pola.from_study(study())).set_index("scheme")
    assert found.loc["relative", "LRC under the scheme"] == "8 → 64"
    assert found.loc["none", "predicted"] == found.loc["ideal", "predicted"] == 0
    assert found.loc["learned", "trained"] == pytest.approx(found.loc["learned", "predicted"], abs=1e-4)
    with pytest.raises(MissingError, match="without pola_lrc"):
        pola.from_study(Study(without("pola_lrc")))


def test_cells_have_an_interval_over_seeds():
    found = curves.cell_table(study()).set_index(["task", "scheme"])
    assert len(found) == len(TASKS) * len(SCHEMES)
    assert (found["iota_src_low"] <= found["iota_src"]).all()
    assert list(found.index) == [(task, scheme) for task in TASKS for scheme in theme.schemes_in_order(SCHEMES)]


@cache
def mixed() -> Study:
    """Two recipes, and two training ranges of one of them."""
    usual = synthetic_study(["copy"], ["ideal", "relative"], 2, pola_targets=())
    deep = usual.assign(recipe="n_layers=4, steps=10", run=usual["run"].replace(r"(.+)", r"\1_deep", regex=True))
    short = synthetic_study(["copy"], ["ideal", "relative"], 2, train_max=5, pola_targets=())
    short = short.assign(run=short["run"].replace(r"(.+)", r"\1_short", regex=True))
    return Study(*joined({"usual": (usual, {}), "deep": (deep, {}), "short": (short, {})}))


def test_recipes_and_training_ranges_are_named_where_they_differ_and_only_there():
    cells = curves.cell_table(mixed())
    deep = [f"{scheme}/n_layers=4/steps=10" for scheme in ("ideal", "relative")]
    assert cells.loc[cells["task"] == "copy (n ≤ 5)", "scheme"].tolist() == ["ideal", "relative"]
    assert set(cells.loc[cells["task"] == "copy (n ≤ 10)", "scheme"]) == {"ideal", "relative", *deep}
    assert (cells["runs"] == 2).all() and len(cells) == 6
    assert mixed().once(Prediction).runs["cell"].nunique() == 6  # which the bootstrap draws one by one
    assert (study().runs["label"] == study().runs["scheme"]).all()
    assert (study().runs["row"] == study().runs["task"]).all()
    copying, summing = (synthetic_study([task], ["ideal"], 1, pola_targets=()) for task in ("copy", "parity-cot"))
    of_tasks = Study(pd.concat([copying, summing.assign(recipe="steps=10")], ignore_index=True))
    assert set(of_tasks.runs["label"]) == {"ideal"}, "each task has its own recipe, and only one"
    alike = [copying.assign(recipe=f"d_model=8, steps={n}", run=copying["run"] + str(n)) for n in (10, 20)]
    assert set(Study(pd.concat(alike, ignore_index=True)).runs["label"]) == {"ideal/steps=10", "ideal/steps=20"}


@pytest.mark.parametrize("name", ["extrapolation", "growth-src", "transfer"])
def test_figures_tell_such_cells_apart(name):
    """Runs of two ranges stood in one panel, of which only the smaller was shaded."""
    figure = drawn(mixed(), name)
    said = [" ".join(text.split()) for text in texts(figure)]  # long labels take several lines
    assert {"copy (n ≤ 5)", "copy (n ≤ 10)", "ideal", "ideal, n_layers=4, steps=10"} <= set(said)
    if name == "extrapolation":
        panels = [axes for axes in figure.axes if axes.get_title()]
        shaded = {each.get_title(): max(patch.get_x() + patch.get_width() for patch in each.patches) for each in panels}
        assert shaded == {"copy (n ≤ 5)": 5, "copy (n ≤ 10)": 10}


def test_all_tables_are_there_in_markdown_and_latex():
    found = all_tables(study())
    names = "added both-ways cells disagreements healing healing-runs held-out learned left-out notes outcome pola"
    names += " predictors-10x predictors-2x pruning ranks sensitivity transfer versus within"
    assert sorted(found) == names.split()
    for each in found.values():
        assert not each.rows or len(pd.read_csv(StringIO(each.csv()))) == len(each.rows)
        head = each.markdown().splitlines()[2]
        assert all(line.count(" | ") == head.count(" | ") for line in each.markdown().splitlines()[4:])
        assert each.latex().count(r"\\") == len(each.rows) + 1
        assert each.csv().count("\n") >= len(each.rows) + 1 and len(each.text().splitlines()) >= len(each.rows) + 1


def test_latex_has_no_letter_that_it_would_misread():
    text = Table("100 % of a_b", [{"x": "{x} ≤ 3"}], {"x": "ι & φ"}).latex()
    assert r"100 \% of a\_b" in text and r"$\iota$ \& $\varphi$" in text and r"\{x\} $\le$ 3" in text


def test_html_escapes_what_it_shows_and_sorts_by_value():
    rows = [{"name": "<b>", "auc": 0.5, "auc_low": None, "auc_high": None, "ours": True}, {"name": None, "auc": None}]
    text = Table("a & b", rows, {"name": "name", "auc": "AUC"}, title="<i>", strong="ours").html('x"y')
    assert "<b>" not in text and "&lt;b&gt;" in text and "a &amp; b" in text and 'id="x&#34;y"' in text
    assert '<td class="number" data-key="0.5">0.500</td>' in text and '<td data-key="">–</td>' in text
    assert "<tr class=main>" in text
