"""The run store: names, whole files, one writer, damage found, nothing lost on a full or read-only disk."""

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock

from lengthlens.errors import UserError
from lengthlens.files import PARTIAL, StorageError
from lengthlens.models.config import ModelConfig
from lengthlens.runs.config import EXECUTION, RunConfig
from lengthlens.runs.run import CHECKPOINT, CONFIG, LOCK, MANIFEST, MODEL, STATUS, Run, Status
from lengthlens.runs.store import RunStore, repair
from lengthlens.runs.sweep import Planned, pending
from lengthlens.runs.training import train
from lengthlens.tests.parameters import NINE, command

TINY = {"n_heads": 2, "d_model": 8, "steps": 4, "batch": 2, "train_max": 2, "check_every": 2, "warmup": 1}


def tiny(**changes: object) -> RunConfig:
    return RunConfig.from_dict({"task": "copy", "scheme": "relative", **TINY, **changes})


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tiny(), RunStore(tmp_path_factory.mktemp("store"))).run


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    """A copy of a finished run, to be damaged at will."""
    shutil.copytree(finished.path, tmp_path / "runs" / finished.id)
    return Run(tmp_path / "runs" / finished.id)


# -- configs and names -------------------------------------------------------------------------------------------


def test_every_choice_that_changes_the_result_changes_the_name() -> None:
    config = tiny()
    other = {
        "task": "reverse", "scheme": "rope", "scheme_options": {"max_distance": 3}, "score_scaling": "none",
        "lengths": "mixed", "precision": "bfloat16", "device": "cpu", "compile": True,
        "d_mlp": 16, "initializer_range": 0.5, "imported": {"name": "gpt2"},
        "attn_normalization": "ssmax",
    }  # fmt: skip
    for field in (each for each in dataclasses.fields(config) if each.name != "plugins"):  # which is filled in
        value = getattr(config, field.name)
        changed = other.get(field.name, value)
        if changed == value:
            changed = not value if isinstance(value, bool) else value / 2 if isinstance(value, float) else value + 2
        options = {} if field.name == "scheme" else config.scheme_options
        values = {**config.to_dict(), "scheme_options": options, field.name: changed}
        assert (RunConfig.from_dict(values).id == config.id) == (field.name in EXECUTION), field.name


ATTENTION = ("attn_normalization", "attn_sink")


def test_a_run_holds_its_model() -> None:
    """Every field that a run shares with a model reaches it, with the model's defaults but for one."""
    sizes = {"n_layers": 3, "n_heads": 2, "d_model": 20, "d_mlp": 9, "n_ctx": 77, "initializer_range": 0.5, "seed": 4}
    config = RunConfig("addition", "t5", {"num_buckets": 8}, score_scaling="none", train_max=3, **sizes)
    shared = {f.name for f in dataclasses.fields(config)} & {f.name for f in dataclasses.fields(ModelConfig)}
    assert shared == {*sizes, "task", "scheme", "scheme_options", "score_scaling", "plugins", *ATTENTION}
    assert all(getattr(config.model, name) == getattr(config, name) for name in shared)
    assert config.model.train_ctx == config.task_object.length(3)
    usual, model = RunConfig("copy", "rope"), ModelConfig(task="copy", scheme="rope")
    assert {name for name in sizes if getattr(usual, name) != getattr(model, name)} == set()
    assert (usual.score_scaling, model.score_scaling) == ("log", "none")


def test_one_config_has_one_name_however_it_is_written() -> None:
    assert tiny(scheme_options={"max_distance": "3"}) == tiny(scheme_options={"max_distance": 3})
    assert tiny(lr=1).id == tiny(lr=1.0).id
    name = tiny(scheme="hinted:relative").id
    assert name.startswith("copy_hinted-relative_s0_")
    assert "/" not in name and ":" not in name


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"task": "coppy"}, ["coppy", "copy"]),
        ({"scheme": "rop"}, ["rop", "rope"]),
        ({"scheme_options": {"max": 1}}, ["max", "max_distance"]),
        ({"steps": 0}, ["steps", "0"]),
        ({"steps": 1.5}, ["steps", "1.5"]),
        ({"lr": float("nan")}, ["lr", "nan"]),
        ({"lr": -1}, ["lr", "-1"]),
        ({"device": "gpu"}, ["device", "gpu", "cuda"]),
        ({"precision": "half"}, ["half", "bfloat16"]),
        ({"lengths": "some"}, ["some", "mixed"]),
        ({"learning_rate": 1}, ["learning_rate", "lr"]),
        ({"d_model": 9}, ["9", "n_heads"]),
        ({"n_layers": 0}, ["n_layers", "0"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"score_scaling": "lin"}, ["score_scaling", "lin", "log"]),
    ],
)
def test_a_bad_config_is_refused_in_one_sentence(changes: dict[str, object], names: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        tiny(**changes)
    assert all(name in str(caught.value) for name in names)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"task": "copy"}', '{"task": 3, "scheme": "rope"}'])
def test_text_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        RunConfig.from_json(text)


# -- files -------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_sound_and_complete(finished: Run) -> None:
    store = RunStore(finished.path.parent)
    assert store.check() == []
    assert {CONFIG, STATUS, MANIFEST, MODEL, "metrics.jsonl", "evaluation.json", "versions.json"} <= {
        path.name for path in finished.path.iterdir()
    }
    assert not finished.has(CHECKPOINT)
    assert [row["step"] for row in finished.metrics()] == [2, 4]
    assert [event["event"] for event in finished.events()] == ["start", "finish"]
    assert finished.model().config.scheme == "relative"


ENTRIES = [None, 3, [], {}, {"sha256": 3}, {"sha256": "x"}, {"before": None}]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"format": "x", "files": {}}', '{"format": 1, "files": 3}'),
        *(json.dumps({"format": 1, "files": {STATUS: entry}}) for entry in ENTRIES),
        json.dumps({"format": 1, "files": {"../../secret": {"sha256": "0" * 64}}}),
    ],
)
def test_a_damaged_manifest_is_a_sentence(run: Run, text: str) -> None:
    (run.path / MANIFEST).write_text(text)
    (problem,) = run.problems()
    assert "manifest.json" in problem and ("outside of the run" in problem) == ("secret" in text)
    assert RunStore(run.path.parent).listing()[0]["status"] == "unreadable"


def test_a_run_of_a_newer_version_is_refused_and_left_alone(run: Run) -> None:
    listed = json.loads((run.path / MANIFEST).read_text())
    (run.path / MANIFEST).write_text(json.dumps({**listed, "format": 2}))
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    store = RunStore(run.path.parent)
    with pytest.raises(UserError, match="newer version"):
        train(tiny(), store)
    with pytest.raises(UserError, match="newer version"):
        repair(run)
    assert "newer version" in store.check()[0]
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before


@contextlib.contextmanager
def killed_after(monkeypatch: pytest.MonkeyPatch, allowed: int) -> Iterator[None]:
    """What is written inside is cut off after so many changes of the directory: renames and removals."""
    left = [True] * allowed

    def cut(original: Callable[..., object]) -> Callable[..., object]:
        def change(*arguments: object, **options: object) -> object:
            if not left:
                raise KeyboardInterrupt
            left.pop()
            return original(*arguments, **options)

        return change

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        for name in ("replace", "unlink"):
            patch.setattr(Path, name, cut(getattr(Path, name)))
        yield


@pytest.mark.parametrize("victim", ["versions.json", "new.json"])
@pytest.mark.parametrize("first", [0, 1, 2, 9])
@pytest.mark.parametrize("second", range(4))
@pytest.mark.parametrize("removed", [False, True])
def test_two_kills_in_a_row_leave_the_files_as_listed(
    run: Run, monkeypatch: pytest.MonkeyPatch, victim: str, first: int, second: int, removed: bool
) -> None:
    """Stop `write`, then `write` or `remove`, before any of their changes, or before none: the run is sound."""
    with killed_after(monkeypatch, first):
        run.write(victim, b"[1]")
    with killed_after(monkeypatch, second):
        run.remove(victim) if removed else run.write(victim, b"[2]")
    assert run.problems() == []
    with run.locked():
        assert not list(run.path.glob(f".*{PARTIAL}"))
    if run.has(victim):
        run.read_json(victim)
    run.write(victim, b"[3]")
    assert run.read_json(victim) == [3]
    assert run.problems() == []


@pytest.mark.parametrize("kills", [[], [1], [1, 1]])
@pytest.mark.parametrize("early", [False, True])
def test_damage_is_found_between_and_after_kills(
    run: Run, monkeypatch: pytest.MonkeyPatch, kills: list[int], early: bool
) -> None:
    """A write that was only announced does not make a damaged file a good one."""
    name = "versions.json"
    if early:
        (run.path / name).write_bytes(b"[0]")
    for k, allowed in enumerate(kills):
        with killed_after(monkeypatch, allowed):
            run.write(name, f"[{k + 1}]".encode())
    if not early:
        (run.path / name).write_bytes(b"[0]")
    (problem,) = run.problems()
    assert name in problem and "checksum" in problem
    with pytest.raises(StorageError, match="damaged"):
        run.read(name)
    run.write(name, b"[9]")
    assert run.problems() == []


def test_a_file_written_while_it_is_read_is_not_damaged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original, writes = Run.manifest, iter([b"[1]"])

    def manifest(self: Run) -> dict[str, object]:
        listed = original(self)
        for data in writes:  # once, between reading the manifest and the file
            self.write("versions.json", data)
        return listed

    monkeypatch.setattr(Run, "manifest", manifest)
    assert run.read_json("versions.json") == [1]


def test_a_config_of_another_run_and_a_file_that_nobody_wrote_are_noticed(run: Run, store: RunStore) -> None:
    run.write(CONFIG, tiny(seed=5).to_json().encode())
    assert "belongs to" in run.problems()[0]
    (run.path / "stray.txt").write_text("?")
    assert any("stray.txt" in problem for problem in run.problems())
    with pytest.raises(UserError, match="another config"):
        store.create(tiny())


def test_a_run_that_another_process_has_in_hand_is_refused(store: RunStore) -> None:
    run = store.create(tiny())
    run.set_status(Status("running", 2))
    assert run.status().status == "interrupted"
    with FileLock(run.path / LOCK):
        assert run.status().status == "running"
        with pytest.raises(UserError, match="another process"):
            train(tiny(), store)
    assert train(tiny(), store).status.finished


def test_reading_leaves_every_file_as_it_is(run: Run, tmp_path: Path) -> None:
    """Bytes, times and names, also of a run that says it is running, about which the lock is asked."""
    store = RunStore(run.path.parent)
    interrupted = store.create(tiny(seed=1))
    with interrupted.locked():
        interrupted.set_status(Status("running", 2))
    for path in store.path.rglob("*"):
        os.utime(path, (1, 1))
    before = snapshot(store.path)
    assert {row["status"] for row in store.listing()} == {"not-converged", "interrupted"}
    assert store.check() == []
    store.write_table(tmp_path / "table")
    found = store.find(run.id)
    assert found.facts()["status"]["status"] == "not-converged" and not interrupted.busy()
    assert found.model() is not None
    for words in (["runs"], ["runs", "show", run.id], ["runs", "check"], ["runs", "table", str(tmp_path / "again")]):
        assert command(*words, "--store", str(store.path)).exit_code == 0
    assert pending([Planned(tiny(), {}), Planned(tiny(seed=1), {})], store) == [tiny(seed=1)]
    assert snapshot(store.path) == before


def snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """When each file and directory was changed, and what is in it."""
    paths = [folder, *folder.rglob("*")]
    return {path: (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes()) for path in paths}


def in_child(body: Callable[[], None]) -> str:
    """Run `body` in a forked process; the UserError it raises, as text, or how it ended otherwise."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            body()
            text = "no error"
        except UserError as error:
            text = f"{type(error).__name__}: {error}"
        except BaseException as error:  # the parent must hear of it
            text = f"unexpected {error!r}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that every user may look into, which pytest's own is not."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("exists", [False, True])
def test_a_read_only_store_is_a_sentence(public_directory: Path, finished: Run, exists: bool) -> None:
    path = public_directory / "runs"
    shutil.copytree(finished.path, path / finished.id)
    if not exists:
        (path / finished.id / STATUS).unlink()

    def as_nobody() -> None:
        if os.getuid() == 0:  # whom no permission stops
            os.setuid(65534)
        train(tiny() if exists else tiny(seed=1), RunStore(path))

    for each in [*path.rglob("*"), path]:
        each.chmod(0o555 if each.is_dir() else 0o444)
    text = in_child(as_nobody)
    for each in [path, *path.rglob("*")]:
        each.chmod(0o755)
    assert text.startswith("StorageError: cannot"), text
    assert str(path) in text
    assert [p.name for p in path.iterdir()] == [finished.id]


def test_a_full_disk_stops_training_and_loses_nothing(store: RunStore) -> None:
    """With room for small files only, the first checkpoint fails; with room again, the run goes on."""

    def with_little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
        train(tiny(), store, checkpoint_seconds=0)

    text = in_child(with_little_room)
    assert text.startswith("StorageError: cannot write"), text
    assert "checkpoint.safetensors" in text
    assert store.check() == []
    assert store.listing()[0]["status"] == "interrupted"
    assert not list(store.path.rglob(f"*{PARTIAL}"))
    assert train(tiny(), store).status.finished


# -- finding and tables ------------------------------------------------------------------------------------------


def test_a_run_is_found_by_name_beginning_and_path(store: RunStore) -> None:
    runs = [store.create(tiny(seed=seed)) for seed in (0, 1)]
    assert store.find(runs[0].id).id == store.find("copy_relative_s0").id == runs[0].id
    assert store.find(str(runs[1].path)).id == runs[1].id
    assert store.listing(task="sort") == [] and len(store.listing(status="new", scheme="relative")) == 2
    with pytest.raises(UserError, match="2 runs"):
        store.find("copy")
    with pytest.raises(UserError, match="copy_relative_s0"):
        store.find("copy_relative_s9")
    nowhere = RunStore(store.path / "nowhere")
    assert nowhere.table().empty and "exact_match" in nowhere.table().columns
    with pytest.raises(UserError, match="no runs"):
        nowhere.find("copy")


def test_the_table_has_a_row_for_each_run_and_length(run: Run, tmp_path: Path) -> None:
    store = RunStore(run.path.parent)
    store.create(tiny(seed=1))  # never trained
    parquet, csv = store.write_table(tmp_path / "table.csv")
    table = pd.read_parquet(parquet)
    assert table["length"].tolist() == [1, 2, pd.NA]
    assert table["run"].nunique() == 2
    assert set(table["status"]) == {"not-converged", "new"}
    again = pd.read_csv(csv)
    assert list(again.columns) == list(table.columns)
    assert again["exact_match"].tolist()[:2] == table["exact_match"].tolist()[:2]


def test_scores_are_scaled_unless_the_scheme_makes_up_for_length_itself():
    scaling = {scheme: RunConfig("copy", scheme).score_scaling for scheme in ("rope", "ideal", NINE, "lbpe")}
    assert scaling == {"rope": "log", "ideal": "log", NINE: "log", "lbpe": "none"}
    assert RunConfig("copy", "lbpe", score_scaling="log").id != RunConfig("copy", "lbpe").id
    assert RunConfig("copy", "lbpe", score_scaling="none").id == RunConfig("copy", "lbpe").id
