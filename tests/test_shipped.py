"""The trained models of the package: there without training, small, and as good as is said of them."""

from pathlib import Path

import pytest
import torch

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.runs.run import best_rows
from lengthlens.runs.store import SHIPPED, shipped

BYTES = 2_000_000  # of all models together


def test_they_are_small_sound_and_say_nothing_of_a_machine() -> None:
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) < BYTES
    assert {path.name for path in files} == {
        *("config.json", "status.json", "evaluation.json", "manifest.json", "model.safetensors")
    }
    assert {
        "copy/lbpe/forms=nine/other=each",
        "copy/rope",
        "copy/learned",
        "copy/ideal",
        "parity-cot/lbpe/forms=nine/other=each",
        "addition/lbpe/forms=nine/other=one",
    } <= set(shipped())
    for run in shipped().values():
        assert run.problems() == [] and run.config.train_max == 10


@pytest.mark.parametrize("name", shipped())
def test_exact_match_is_what_is_said(name: str) -> None:
    """Measured again on the same instances; another processor may round another way, and flip one of them."""
    run = shipped()[name]
    said = {row["length"]: row for row in best_rows(run.evaluation())}
    model = ll.load(name)
    assert said[20]["samples"] >= 200
    found = ll.exact_match(
        model, ll.TASKS[run.config.task], [10, 20], samples=said[20]["samples"], seed=said[20]["seed"]
    )
    for score in found:
        assert score.exact_match == pytest.approx(said[score.length]["exact_match"], abs=0.01)


def test_a_name_without_a_store_or_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ll.load("copy/lbpe").predict("^ 7 3 5 =") == "7 3 5 $"
    assert list(tmp_path.iterdir()) == []  # opening one leaves nothing behind
    with pytest.raises(UserError, match="no checkpoint of step 5"):
        ll.load("copy/lbpe", step=5)


def test_a_store_takes_a_copy(tmp_path: Path) -> None:
    store = ll.RunStore(tmp_path / "runs")
    run = store.find("copy/lbpe")
    assert run.path.parent == store.path and store.check() == [] and store.find("copy/lbpe").id == run.id
    weights = run.model().state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in ll.load("copy/lbpe").state_dict().items())
    run.add_evaluation([])  # it is the store's own, and can be written


def test_names_that_mean_nothing_or_several() -> None:
    with pytest.raises(UserError, match=r"unknown trained model 'copy/nothing': .* copy/lbpe"):
        ll.load("copy/nothing")
    with pytest.raises(UserError, match="'copy/hinted:relative' may mean any of 2 trained models"):
        ll.load("copy/hinted:relative")
    with pytest.raises(UserError, match="is no directory of a run or a saved model"):
        ll.load("nothing/there")
