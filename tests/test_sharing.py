"""What is handed on is read back elsewhere, whole: in a directory, and through the Hugging Face Hub."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import huggingface_hub
import pandas as pd
import pytest
import torch
from httpx import Request, Response
from huggingface_hub.errors import RepositoryNotFoundError

import lengthlens as ll
from lengthlens.analyses.table import read_study, write_study
from lengthlens.errors import CONTROL, UserError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.saved import weights_of
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.table import probe_run, stored
from lengthlens.runs.evaluation import score_of
from lengthlens.runs.run import LOG, MODEL, Status
from lengthlens.studies.sharing import read_certificate
from lengthlens.tests.parameters import command


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A finished run with scores and probes, written by hand."""
    store = ll.RunStore(tmp_path / "here")
    run = store.create(ll.RunConfig("copy", "ideal", train_max=2, n_layers=1, n_heads=2, d_model=16, n_ctx=64))
    with run.locked():
        run.write(MODEL, weights_of(ll.build(run.config.model)))
        right = torch.tensor([[True, True]] * 5 + [[True, False]] * 5)
        run.add_evaluation([asdict(score_of(2, right))])
        run.set_status(Status("not-converged", 7, 0.5))
        run.log("start", host="my-machine")
    probe_run(run, ["relation"], force=True)
    return run


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_is_the_same_elsewhere(run: Any, tmp_path: Path) -> None:
    folder = ll.export(run, tmp_path / "shared")
    assert {"README.md", "lengthlens.json", "config.json", "model.safetensors"} <= files_of(folder).keys()
    assert not any(b"my-machine" in data for data in files_of(folder).values()) and not (folder / f"run.{LOG}").exists()
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: lengthlens\n") and f"# {run.id}" in card
    assert "task `copy` with the position embedding `ideal`" in card
    assert "| 2 | 10 | 0.500 [0.237, 0.763] | 0.750 |" in card
    assert "n ≤ 2" in card and "| `steps` | `4000` |" in card
    there = ll.RunStore(tmp_path / "there")
    found = ll.fetch(folder, there)
    assert found.kind == "run" and found.run is not None and found.run.id == run.id
    assert found.run.facts() == {**run.facts(), "log": found.run.events()} and there.check() == []
    pd.testing.assert_frame_equal(stored(found.run), stored(run))
    tokens = run.config.task_object.sample(2, 4, torch.Generator().manual_seed(0)).tokens
    expected = run.model()(tokens)
    assert torch.equal(found.run.model()(tokens), expected)
    assert torch.equal(ll.load(folder).eval()(tokens), expected)  # the directory is a saved model, too
    assert ll.fetch(folder, there).run is not None  # a second time changes nothing


def test_a_study_is_the_same_elsewhere(run: Any, tmp_path: Path) -> None:
    table = ll.study(ll.RunStore(run.path.parent), pola_targets=[])
    write_study(table, {"made": "2030-01-31", "versions": {"torch": "9"}}, tmp_path / "mine.parquet")
    folder = ll.export(tmp_path / "mine.parquet", tmp_path / "shared")
    assert "| made | 2030-01-31 |" in (folder / "README.md").read_text()
    found = ll.fetch(folder, into=tmp_path / "there" / "study.parquet")
    assert (tmp_path / "there" / "study.parquet").read_bytes() == (tmp_path / "mine.parquet").read_bytes()
    pd.testing.assert_frame_equal(found.table, table)
    assert found.provenance["made"] == "2030-01-31"
    table.to_csv(tmp_path / "mine.csv", index=False)
    again = ll.fetch(ll.export(tmp_path / "mine.csv", tmp_path / "from csv"))
    pd.testing.assert_frame_equal(again.table, read_study(tmp_path / "mine.csv")[0])


def test_a_certificate_comes_with_its_run(run: Any, tmp_path: Path) -> None:
    certificate = ll.certify(copy_by_hand("lbpe"), max_length=100)
    folder = ll.export(run, tmp_path / "shared", certificate=certificate)
    assert "**Certificate**: proven, up to n = 100" in (folder / "README.md").read_text()
    found = ll.fetch(folder, ll.RunStore(tmp_path / "there"))
    assert found.kind == "certificate" and found.certificate == certificate
    assert found.run is not None and found.run.has("certificate.json")
    said = json.loads((folder / "certificate.json").read_bytes())
    wrong = {"length": "1", "kind": "sure", "limit": 1, "worst": {"x": 1.0}, "leak": {"10": 3}, "lenght": 3}
    for text, sentence in [*(({**said, name: value}, name) for name, value in wrong.items()), ({}, "needs a length")]:
        with pytest.raises(UserError, match=sentence):
            read_certificate(json.dumps(text).encode(), "'a file'")
    tested = ll.certify(run, max_length=4)
    assert tested.kind != "proven" and tested.tried
    assert read_certificate(json.dumps(tested.to_dict()).encode(), "'a file'") == tested


def relist(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        listing = json.loads((folder / "lengthlens.json").read_bytes())
        edit(listing)
        (folder / "lengthlens.json").write_text(json.dumps(listing))

    return apply


def change(name: str, edit: Callable[[bytes], bytes], listed: bool = True) -> Callable[[Path], None]:
    """Change a file of an export; `listed`, with a checksum that is right, as someone with bad intent would."""

    def apply(folder: Path) -> None:
        data = edit((folder / name).read_bytes())
        (folder / name).write_bytes(data)
        if listed:
            relist(lambda listing: listing["files"].update({name: hashlib.sha256(data).hexdigest()}))(folder)

    return apply


def without(name: str) -> Callable[[bytes], bytes]:
    """Rows that lack a field."""
    return lambda data: json.dumps([{k: v for k, v in row.items() if k != name} for row in json.loads(data)]).encode()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (change("model.safetensors", lambda data: data[:-1], listed=False), "is not what was exported"),
        (change("model.safetensors", lambda data: data[:-1]), "not a safetensors file|is not"),
        (change("run.config.json", lambda data: data.replace(b'"seed": 0', b'"seed": 1')), "its config is that of run"),
        (change("run.config.json", lambda data: b"{"), "is not JSON"),
        (change("run.status.json", lambda data: b'{"status": "perfect"}'), "must be one of"),
        (change("run.probes.parquet", lambda data: data[:99]), "parquet|is not"),
        (relist(lambda listing: listing.update(version=2)), "made by a newer version of lengthlens"),
        (relist(lambda listing: listing.update(kind="virus")), "must be one of run, study, certificate"),
        (relist(lambda listing: listing["files"].update({"../../evil": "0" * 64})), "no plain name of a file"),
        (relist(lambda listing: listing["files"].pop("run.status.json")), "lists no run.status.json"),
        (relist(lambda listing: listing.pop("files")), "needs a files"),
        (change("run.evaluation.json", without("exact_match_low")), "a score needs a exact_match_low"),
        (change("run.evaluation.json", without("samples")), "a score needs a samples"),
        (relist(lambda listing: listing.update(name="../elsewhere")), "must be a name of letters, digits"),
    ],
)
def test_what_is_not_what_was_written_is_refused(
    run: Any, damage: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    folder = ll.export(run, tmp_path / "shared")
    damage(folder)
    there = ll.RunStore(tmp_path / "there")
    with pytest.raises(UserError, match=sentence):
        ll.fetch(folder, there)
    assert list(there.runs()) == []


NAMES = ["../victim", "", ".bashrc", "-rf", "a\nb", "/tmp/victim", "a/b", "\x1b[2J", "x" * 300]


@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_written_nowhere_but_here(run: Any, tmp_path: Path, name: str, monkeypatch: Any) -> None:
    write_study(ll.study(ll.RunStore(run.path.parent), pola_targets=[]), {}, tmp_path / "mine.parquet")
    folder = ll.export(tmp_path / "mine.parquet", tmp_path / "shared")
    relist(lambda listing: listing.update(name=name))(folder)
    (tmp_path / "victim.parquet").write_text("mine")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    said = command("import", str(folder))
    assert said.exit_code == 2 and "must be a name of letters, digits" in said.stderr and "\x1b" not in said.stderr
    assert list(Path().iterdir()) == [] and (tmp_path / "victim.parquet").read_text() == "mine"
    relist(lambda listing: listing.update(name="victim"))(folder)
    Path("victim.parquet").write_text("mine")
    said = command("import", str(folder))
    assert said.exit_code == 2 and "there is a file 'victim.parquet' already: say with --out" in said.stderr
    assert Path("victim.parquet").read_text() == "mine"
    assert command("import", str(folder), "--out", "victim.parquet").exit_code == 0


def test_what_a_bundle_says_controls_no_terminal(run: Any, tmp_path: Path) -> None:
    folder = ll.export(run, tmp_path / "shared")
    evil = "fine\nrun_x  converged\x1b[2J\x9b31m\u202e"
    change("run.status.json", lambda data: json.dumps({**json.loads(data), "reason": evil}).encode())(folder)
    store = ("--store", str(tmp_path / "there"))
    for words in (["import", str(folder), *store], ["import", str(folder), *store], ["runs", *store]):
        said = command(*words)
        assert said.exit_code == 0 and not CONTROL.search(said.output) and "\nrun_x" not in said.output
    shown = command("runs", "show", *store, run.id).output
    assert not CONTROL.search(shown) and "\nrun_x" not in shown
    assert "(the store had it already)" in command("import", str(folder), *store).output


def test_sentences(run: Any, tmp_path: Path) -> None:
    folder = ll.export(run, tmp_path / "shared")
    with pytest.raises(UserError, match="is there already: an export needs a directory of its own"):
        ll.export(run, folder)
    with pytest.raises(UserError, match="holds a run: name a store"):
        ll.fetch(folder)
    with pytest.raises(UserError, match="is nothing that `lengthlens export` wrote"):
        ll.fetch(tmp_path)
    other = ll.RunStore(tmp_path / "other")
    mine = other.create(run.config)
    with pytest.raises(UserError, match="has no model to hand on: it is new"):
        ll.export(mine, tmp_path / "none")
    with mine.locked():
        mine.write(MODEL, weights_of(ll.build(ll.ModelConfig.from_dict({**run.config.model.to_dict(), "seed": 5}))))
        mine.set_status(Status("converged", 7, 1.0))
    with pytest.raises(UserError, match=r"the store has another run .* with other weights"):
        ll.fetch(folder, other)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the Hub's place, with the errors that huggingface_hub raises."""
    place = tmp_path / "hub"

    class Api:
        def __init__(self, token: str | None = None) -> None:
            pass

        def create_repo(self, repo: str, private: bool, repo_type: str, exist_ok: bool) -> None:
            (place / repo_type / repo).mkdir(parents=True, exist_ok=exist_ok)
            (place / repo_type / "private").write_text(f"{repo} {private}")

        def upload_folder(self, repo_id: str, folder_path: str, repo_type: str) -> str:
            return shutil.copytree(folder_path, place / repo_type / repo_id, dirs_exist_ok=True).as_uri()

    def snapshot_download(repo: str, repo_type: str = "model", allow_patterns: object = None) -> str:
        if not (place / repo_type / repo).exists():
            raise RepositoryNotFoundError("Repository not found", response=Response(404, request=Request("GET", "")))
        return str(place / repo_type / repo)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return place


def test_a_run_goes_through_the_hub(run: Any, hub: Path, tmp_path: Path) -> None:
    folder = ll.export(run, tmp_path / "shared", hub="me/copier", private=True)
    assert files_of(hub / "model/me/copier") == files_of(folder)
    found = ll.fetch("me/copier", ll.RunStore(tmp_path / "there"))
    assert found.run is not None and found.run.facts()["evaluation"] == run.evaluation()
    model = HookedModel.from_pretrained("me/copier").eval()  # as any saved model on the Hub
    assert torch.equal(model("^ 1 2 ="), run.model()("^ 1 2 ="))
    model.push_to_hub("me/model", private=True)
    assert (hub / "model/private").read_text() == "me/model True"
    assert torch.equal(HookedModel.from_pretrained("me/model").eval()("^ 1 2 ="), model("^ 1 2 ="))


def test_a_study_goes_through_the_hub_as_a_dataset(run: Any, hub: Path, tmp_path: Path) -> None:
    table = ll.study(ll.RunStore(run.path.parent), pola_targets=[])
    write_study(table, {}, tmp_path / "mine.parquet")
    ll.export(tmp_path / "mine.parquet", tmp_path / "shared", hub="me/study")
    assert "study.parquet" in files_of(hub / "dataset/me/study")
    pd.testing.assert_frame_equal(ll.fetch("me/study").table, table)


def test_the_hub_that_says_no(run: Any, hub: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'me/nothing' is neither a local directory nor a model on the Hub"):
        ll.fetch("me/nothing", ll.RunStore(tmp_path / "there"))
    hub.write_text("a file, where no folder can be made")
    with pytest.raises(UserError, match="nothing was uploaded to 'me/copier' on the Hub"):
        ll.export(run, tmp_path / "shared", hub="me/copier")


def test_the_commands(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        result = command(*words)
        assert result.exit_code == 0, result.output
        return result.output

    (tmp_path / "certificate.json").write_text(json.dumps(ll.certify(copy_by_hand("lbpe"), 50).to_dict()))
    said = call("export", "copy_ideal", "shared", "--store", "here", "--certificate", "certificate.json")
    assert "README.md" in said and "certificate.json" in said
    assert "certificate: proven, up to n = 50" in call("import", "shared", "--store", "there")
    assert json.loads(call("import", "shared", "--store", "there", "--json"))["name"] == run.id
    assert run.id in call("runs", "--store", "there")
    write_study(ll.study(ll.RunStore("there"), pola_targets=[]), {}, "mine.parquet")
    call("export", "mine.parquet", "study")
    call("import", "study", "--out", "again.parquet")
    assert Path("again.parquet").read_bytes() == Path("mine.parquet").read_bytes()
