"""What `inspect` shows, its figures, and the command."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from lengthlens.analyses import inside, theme
from lengthlens.analyses.page.inspection import of_script
from lengthlens.errors import UserError
from lengthlens.inside.attribution import relevance
from lengthlens.inside.look import Inspection, inspect, look_at
from lengthlens.inside.patching import patch_by_role
from lengthlens.models.by_hand import copy_by_hand, induction_by_hand
from lengthlens.runs.config import RunConfig
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import train
from lengthlens.tests.parameters import command


@pytest.fixture(scope="module")
def seen() -> Inspection:
    return inspect(induction_by_hand(), train_max=6, scales=[4, 8], text="^ c a b d = a")


def test_the_summary_says_what_each_head_does_and_what_becomes_of_answers_without_it(seen: Inspection) -> None:
    rows = {row["head"]: row for row in seen.summary()}
    assert [row["kind"] for row in rows.values()] == ["elsewhere", "positional", "symbolic", "even"]
    # What is 2 back matters for being "=" or not, which follows from the position: its mean there does as well.
    previous, two_back, induction, idle = (row["without_8"] for row in rows.values())
    assert previous < 0.8 and induction < 0.3 and two_back == idle == 1.0
    assert set(seen.ablation["whole"]) == {1.0}


def test_the_logit_lens_reads_the_answer_where_it_is_written() -> None:
    """Behind the only layer of the copier, not before it."""
    seen = look_at(copy_by_hand(), "^ 7 3 9 =")
    for query, answer in zip(range(4, 8), "7 3 9 $".split()):
        assert seen.lens[1][query][0].token == answer and seen.lens[1][query][0].probability > 0.99
        assert seen.lens[0][query][0].probability < 0.1
        assert seen.right(query)
    assert seen.right(8) is None


def test_what_the_page_is_given_of_patterns_is_what_they_are() -> None:
    seen = look_at(induction_by_hand(), "^ c a b d = a")
    given = of_script(seen, 0)
    for which, text in enumerate(given["patterns"]):
        flat = np.frombuffer(base64.b64decode(text), dtype=np.uint8) / 255 * given["peak"]
        for i in range(len(seen.words)):
            given_row = flat[i * (i + 1) // 2 : (i + 1) * (i + 2) // 2]
            wrong = np.abs(given_row - seen.patterns.flatten(0, 1)[which, i, : i + 1].numpy()).max()
            assert wrong <= 0.5 / 255 * given["peak"] + 1e-6


@pytest.mark.slow
def test_every_figure_fits_a_column_without_cut_text_and_draws_on_axes(seen: Inspection) -> None:
    text = "^ 7 3 5 1 ="
    patched = patch_by_role(induction_by_hand(), scale=4, pairs=2, steps=1)
    for plot, data, panel in (  # and the name of one of its panels
        (inside.plot_patterns, (seen.statistics, 6), "L1H0, n = 8"),
        (inside.plot_roles, (seen.roles, 6), "L0H1"),
        (inside.plot_measures, (seen.measures, 6), "first_key"),
        (inside.plot_plane, (seen.plane, 6), "figure"),
        (inside.plot_scores, (seen.scores, 6), "figure"),
        (inside.plot_residual, (seen.residual, 6), "after layer 1, continued"),
        (inside.plot_patching, (patched,), "token: head at query"),
        (inside.plot_relevance, (relevance(copy_by_hand("lbpe"), text), text.split()), "figure"),
    ):
        figure = plot(*data, width=3.3)
        figure.draw_without_rendering()
        (wide, high), box = figure.get_size_inches(), figure.get_tightbbox()
        assert wide == pytest.approx(3.3) and high <= theme.PAGE_HEIGHT, plot.__name__
        assert min(box.x0, box.y0) > -0.01 and box.x1 < wide + 0.01 and box.y1 < high + 0.01, plot.__name__
        axes = Figure(figsize=(7, 3)).subplots(1, 2)
        assert plot(*data, ax={panel: axes[1]}, legend=False) is axes[0].figure
        assert axes[1].has_data() and not axes[0].has_data(), plot.__name__
    with pytest.raises(UserError, match="unknown panel 'L0H9'"):
        inside.plot_roles(seen.roles, ax={"L0H9": axes[0]})


@pytest.mark.slow
def test_inspect_writes_a_page_and_prints_a_summary(tmp_path: Path) -> None:
    small = {"n_heads": 2, "d_model": 16, "steps": 3, "train_max": 3}
    run = train(RunConfig(task="copy", scheme="rope", **small), RunStore(tmp_path / "runs")).run
    call = ["inspect", run.id[:8], "--store", str(tmp_path / "runs")]
    where = tmp_path / "pages" / "page.html"
    done = command(*call, "--input", "^ 7 3 =", "--lengths", "2,4", "--out", str(where))
    assert done.exit_code == 0, done.output
    assert where.read_text().startswith("<!doctype html>")
    assert "exact match: 0.00 at n = 2, 0.00 at n = 4" in done.output and "L1H1" in done.output
    for wrong, message in {
        ("--input", "^ 7 x ="): "'x' is not a token of task 'copy'",
        ("--lengths", "0,4"): "task 'copy' has no instances of n = 0: the nearest is n = 1",
        ("--length", "500"): "sequence of 1003 tokens is too long to be shown: take up to 256 (n up to 126)",
        ("--length", "4", "--input", "^ 7 ="): "not both",
    }.items():
        done = command(*call, *wrong)
        assert done.exit_code == 2 and message in " ".join(done.output.split()) and "Traceback" not in done.output
    done = command(*call, "--lengths", "3", "--out", str(where), "--json")
    assert {row["head"] for row in json.loads(done.stdout)["heads"]} == {"L0H0", "L0H1", "L1H0", "L1H1"}
