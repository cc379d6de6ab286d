"""The study of surgery: its committed table, what is drawn from it, what the pages say of it, and its commands."""

import json
from pathlib import Path

import pytest

import lengthlens as ll
from lengthlens.analyses.inside import plot_patching, plot_relevance
from lengthlens.analyses.interventions import operated_runs
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import read_study
from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_content, copy_by_hand, induction_by_hand
from lengthlens.probes.table import probe_model
from lengthlens.tests.parameters import NINE
from lengthlens.tests.parameters import command as run

ROOT = Path(__file__).resolve().parent.parent
SURGERY = ROOT / "figures" / "surgery"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("runs"))
    ll.train(ll.RunConfig("copy", NINE, train_max=3, steps=150, n_heads=2, d_model=32), ll.RunStore(path))
    return path


def test_committed_tables_follow_from_the_committed_study(tmp_path: Path) -> None:
    drawn = ll.draw(SURGERY / "surgery.csv", ["healing"], tmp_path, formats=["png"])
    tables = [path for path in drawn.files if path.parent.name == "tables"]
    assert len(tables) == 6 and not drawn.missing
    for path in tables:
        assert path.read_bytes() == (SURGERY / path.relative_to(tmp_path)).read_bytes()


def test_numbers_on_the_page_are_those_of_the_study() -> None:
    runs = operated_runs(Study.of(SURGERY / "surgery.csv"))
    failing = runs[runs["own"] < 0.9].assign(healed=runs["ideal"] >= 0.9)
    unharmed = failing[failing["in_range"] >= 0.9]
    codes = failing[failing["cause"] != "attention spreads"]
    said = " ".join((ROOT / "docs/findings.md").read_text("utf-8").split("## 10.")[1].split())
    assert f"Each of {len(failing)} runs" in said and f"repairs {failing['healed'].sum()} of them" in said
    assert f"blames codes in {len(codes)} of the {len(failing)}, and {codes['healed'].sum()} of those" in said
    assert f"Of the {len(unharmed)} that it does not harm {unharmed['healed'].sum()} are repaired" in said
    assert f"({(unharmed['ideal_one'] >= 0.9).sum()} if other keys" in said
    harmed = failing[failing["in_range"] < 0.9]
    assert f"of the {len(harmed)} that it harms, {harmed['healed'].sum()}." in said
    assert not (failing["displaced"] >= 0.9).any()


def test_a_copier_needs_its_codes_and_no_others() -> None:
    table = ll.healing(copy_by_hand("lbpe"), scales=[9], train_max=5, rows=16)
    match = table.set_index("surgery")["exact_match"].to_dict()
    assert match["own"] == match["ideal"] == match["ideal, others as one"] == match["borrowed in range"] == 1
    assert match["displaced"] == match["none"] == 0


def test_the_probe_is_the_measurement_and_says_why_the_run_fails() -> None:
    probed = probe_model(copy_by_hand("lbpe"), train_max=5, measures=["surgery"])
    rows = probed[probed["measure"] == "surgery_exact_match"]
    said = ll.healing(copy_by_hand("lbpe"), scales=[10, 20], train_max=5)
    assert rows["value"].tolist() == said["exact_match"].tolist()
    assert rows["relation"].tolist() == said["surgery"].tolist() and rows["reason"].isna().all()
    (refused,) = probe_model(copy_by_content(), train_max=5, measures=["surgery"]).query("reason.notna()").itertuples()
    assert "contributes nothing" in refused.reason


@pytest.mark.slow
def test_commands_print_and_draw(store: str, tmp_path: Path) -> None:
    (found,) = ll.RunStore(store).runs()
    picture = tmp_path / "a.png"
    patched = run("patch", found.id, "--store", store, "--length", "3", "--onto", "5", "--json", "--plot", str(picture))
    assert {row["role"] for row in json.loads(patched.stdout)} == {"token"} and picture.exists()
    said = run("attribute", found.id, "--store", store, "--input", "^ 7 3 =", "--json", "--plot", str(picture))
    assert [row["token"] for row in json.loads(said.stdout)] == ["^", "7", "3", "="]
    operated = run("surgery", found.id, "--store", store, "--lengths", "5", "--json")
    assert {row["surgery"] for row in json.loads(operated.stdout)} >= {"own", "ideal", "displaced"}
    table = tmp_path / "out" / "surgery.csv"
    whole = run("surgery", "--all", "--store", store, "--out", str(table.parent), "--lengths", "5")
    assert whole.exit_code == 0 and read_study(table)[0]["run"].unique().tolist() == [found.id]
    drawn = run("surgery", "--table", str(table), "--out", str(tmp_path / "again"))
    assert drawn.exit_code == 0 and (tmp_path / "again" / "healing.png").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["surgery"], "name a RUN, or say --all"),
        (["surgery", "--all"], "need --out"),
        (["attribute", "RUN", "--input", "^ 7 =", "--method", "lpr"], "unknown method 'lpr'"),
        (["patch", "RUN", "--roles", "tokn"], "unknown role 'tokn': did you mean 'token'"),
    ],
)
def test_wrong_words_get_one_sentence(words: list[str], says: str, store: str) -> None:
    (found,) = ll.RunStore(store).runs()
    result = run(*[found.id if word == "RUN" else word for word in words], "--store", store)
    assert result.exit_code != 0 and says in result.output and "Traceback" not in result.output


def test_pictures_say_what_the_tables_say() -> None:
    figure = plot_patching(ll.patch_by_role(induction_by_hand(), scale=6, pairs=4))
    heads = figure.axes[0]
    assert [text.get_text() for text in heads.texts] == ["0.00", "0.00", "1.00", "0.00"]  # L0H0, L0H1, L1H0, L1H1
    found = ll.relevance(copy_by_hand("lbpe"), "^ 7 3 =")
    image = plot_relevance(found, "^ 7 3 =".split()).axes[0].images[0]
    assert image.get_array()[:, 1].tolist() == pytest.approx([float(found.tokens[0, 1]), float(found.positions[0, 1])])
    with pytest.raises(UserError, match="1 words were given for 4 tokens"):
        plot_relevance(found, ["^"])
