"""What was found by attacking the store, the files and the commands: each attack, and what happens now."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import click
import pandas as pd
import pytest
import torch
from safetensors.torch import load, save, save_file

from lengthlens import files, values
from lengthlens.analyses.table import read_study, write_study
from lengthlens.analyses.tables import Table
from lengthlens.cli import main
from lengthlens.commands.terminal import foresee
from lengthlens.errors import UserError
from lengthlens.models.config import ModelConfig
from lengthlens.models.foreign import read_checkpoint
from lengthlens.models.transformer import build
from lengthlens.plugins.registry import load_plugin
from lengthlens.probes.table import FILE, probe_run
from lengthlens.runs.evaluation import evaluate
from lengthlens.runs.run import CHECKPOINT, CONFIG, EVALUATION, LOG, MANIFEST, METRICS, MODEL, STATUS, VERSIONS, Run
from lengthlens.runs.store import RunStore, harmless, repair
from lengthlens.runs.sweep import read_grid
from lengthlens.runs.training import train
from lengthlens.studies.build import study
from lengthlens.studies.reproduce import is_shown, write_stamp
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import command, few
from lengthlens.tests.test_fuzz import load as load_fuzz
from lengthlens.tests.test_runs import tiny
from lengthlens.theory.verdict import verdict


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two finished runs, one of which is probed."""
    store = RunStore(tmp_path_factory.mktemp("made") / "runs")
    for seed in (0, 1):
        trained = train(tiny(seed=seed), store)
    assert trained.run is not None
    probe_run(trained.run, ["lrc"], force=True)
    return store.path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> RunStore:
    shutil.copytree(made, tmp_path / "runs")
    return RunStore(tmp_path / "runs")


@pytest.fixture
def run(store: RunStore) -> Run:
    """The run that is probed."""
    return store.find("copy_relative_s1")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- 1: output replaces files and nothing else ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "link", "dangling", "folder", "socket"])
@pytest.mark.parametrize("words", [["src", "copy", "--max-scale", "2", "--plot"], ["runs", "table"]])
def test_only_a_file_is_replaced(tmp_path: Path, store: RunStore, kind: str, words: list[str]) -> None:
    target, out = tmp_path / "target", tmp_path / "out.png"
    target.write_text("mine")
    if kind == "fifo":
        os.mkfifo(out)
    elif kind == "folder":
        out.mkdir()
    elif kind == "socket":
        os.mknod(out, stat.S_IFSOCK | 0o600)
    else:
        out.symlink_to(target if kind == "link" else tmp_path / "nowhere")
    before = out.lstat()
    where = ["--store", str(store.path)] if words[0] == "runs" else []
    name = out if words[0] != "runs" else out.rename(tmp_path / "out.parquet")
    result = command(*words, str(name), *where)
    assert result.exit_code == 2 and "out" in result.stderr, result.output
    assert (name.lstat().st_mode, name.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert target.read_text() == "mine" and not (tmp_path / "nowhere").exists()


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    with pytest.raises(files.StorageError, match="it is a device"):
        files.write_whole(Path("/dev/null"), b"x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


# -- 2: links in a run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [LOG, STATUS, MANIFEST, MODEL, EVALUATION, CHECKPOINT, ".lock"])
def test_links_in_a_run_are_not_followed(store: RunStore, run: Run, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes((run.path / name).read_bytes() if run.has(name) else b"")
    before = outside.read_bytes()
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(outside)
    with pytest.raises(UserError), run.locked():
        run.set_status(run.status())
        run.log("test")
        run.write(name, b"{}")
    assert outside.read_bytes() == before and outside.is_file()
    if name != ".lock":
        assert any(name in problem for problem in run.problems())


def test_a_run_that_is_a_link_is_refused(store: RunStore, run: Run, tmp_path: Path) -> None:
    moved = run.path.rename(tmp_path / "moved")
    run.path.symlink_to(moved)
    before = contents(moved)
    assert any("is a link" in problem for problem in run.problems())
    with pytest.raises(UserError, match="is a link"):
        train(tiny(seed=1), store)
    with pytest.raises(UserError, match="is a link"):
        repair(run)
    assert contents(moved) == before


# -- 3: the log ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["torn", "flipped", "lost", "not text", "unchecked"])
def test_a_torn_line_is_left_out_and_seen(run: Run, damage: str) -> None:
    lines = (run.path / LOG).read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    if damage == "torn":
        lines[1] = lines[1][:40]
    elif damage == "flipped":
        lines[1] = lines[1].replace(b"finish", b"finisj")
    elif damage == "lost":
        lines = lines[1:]
    elif damage == "unchecked":
        lines[1] = lines[1].replace(lines[1][lines[1].index(b', "step"') :], b"}\n")
    else:
        lines[1] = b"\xff\xfe}\n"
    (run.path / LOG).write_bytes(b"".join(lines))
    assert len(run.events()) == (0 if damage == "lost" else 1)
    assert any(LOG in problem for problem in run.problems())
    shown = command("runs", "show", run.id, "--store", str(run.path.parent), "--json")
    assert shown.exit_code == 0 and isinstance(json.loads(shown.stdout)["log"], list)
    with run.locked():
        run.log("later")
    assert run.events()[-1]["event"] == "later"
    assert [each.file for each in repair(run)] == [LOG] and run.problems() == run.events() == []
    assert train(tiny(seed=1), RunStore(run.path.parent)).status.finished
    assert [event["event"] for event in run.events()] == ["finish"], "noted again"


def test_a_short_write_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    files.append_line(path, b"one")
    monkeypatch.setattr(os, "fdopen", short_writing)
    with pytest.raises(files.StorageError, match="No space"):
        files.append_line(path, b"two")
    monkeypatch.undo()
    files.append_line(path, b"three")
    assert path.read_bytes() == b"one\nthree\n"


def short_writing(descriptor: int, *rest: object, **options: object) -> object:
    """A file on a disk that takes two bytes and no more."""

    class Short:
        def __enter__(self) -> "Short":
            return self

        def __exit__(self, *_: object) -> None:
            os.close(descriptor)

        def write(self, data: bytes) -> int:
            return os.write(descriptor, data[:2])

    return Short()


# -- 4: only a refused length is a result --------------------------------------------------------------------------


def test_an_error_is_not_kept_as_a_score(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> object:
        raise UserError("something else")

    monkeypatch.setattr("lengthlens.runs.evaluation.right_answers", fails)
    before = run.evaluation()
    with pytest.raises(UserError, match="something else"):
        evaluate(run, [3], samples=5)
    assert run.evaluation() == before


# -- 5: what reproduce names is there ------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_outputs_are_looked_at(tmp_path: Path, damage: str) -> None:
    made = [tmp_path / name for name in ("study.parquet", "index.html")]
    for path in made:
        path.write_bytes(b"long enough")
    write_stamp(tmp_path, "this", made)
    assert is_shown(tmp_path, "this") and not is_shown(tmp_path, "that")
    made[1].unlink() if damage == "gone" else made[1].write_bytes(b"long" if damage == "cut" else b"changed now")
    assert not is_shown(tmp_path, "this")


@pytest.mark.parametrize("stamp", [b"", b"\xff\xfe", b"[]", b'{"made_of": 3, "files": {}}', b'{"files": {"..": []}}'])
def test_a_damaged_stamp_means_make_again(tmp_path: Path, stamp: bytes) -> None:
    (tmp_path / ".shown").write_bytes(stamp)
    assert not is_shown(tmp_path, "this")


# -- 7: one damaged run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [STATUS, CONFIG, MANIFEST, EVALUATION])
def test_a_damaged_run_is_named_left_out_and_counted(store: RunStore, run: Run, tmp_path: Path, name: str) -> None:
    (run.path / name).write_bytes(b"{")
    told = dict[str, str]()
    table = study(store, pola_targets=[], left_out=told.__setitem__)
    assert list(told) == [run.id] and name in told[run.id]
    assert set(table["run"]) - {""} == {store.find("copy_relative_s0").id}
    with pytest.raises(UserError, match=run.id):
        study(store, pola_targets=[])
    for words in (["runs", "table", str(tmp_path / "all")], ["probe", "--all", "--measure", "lrc", "--force"]):
        result = command(*words, "--store", str(store.path))
        assert result.exit_code == (0 if words[0] == "probe" and name in (EVALUATION, CONFIG) else 1), result.output
        if result.exit_code:
            assert run.id in result.stderr and "1 damaged run" in result.stderr
    assert set(pd.read_parquet(tmp_path / "all.parquet")["run"]) == {store.find("copy_relative_s0").id}


# -- 8: repair -----------------------------------------------------------------------------------------------------

DAMAGE = {"flip": lambda data: data[:-3] + b"?" + data[-2:], "cut": lambda data: data[: len(data) // 2], "gone": None}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [CONFIG, STATUS, MODEL, MANIFEST, EVALUATION, METRICS, VERSIONS, FILE])
def test_damage_is_repaired(store: RunStore, run: Run, name: str, damage: str) -> None:
    """What is damaged is set aside, alone or with its run; the command that is named makes the run again."""
    path, change = run.path / name, DAMAGE[damage]
    data, before = path.read_bytes(), contents(run.path)
    path.unlink() if change is None else path.write_bytes(change(data))
    damaged = contents(run.path)
    assert any(name in each for each in run.problems()) or (damage == "gone" and name == MANIFEST)
    planned = repair(run, dry_run=True)
    assert planned and contents(run.path) == damaged, "only said"
    done = repair(run)
    assert done == planned and store.check() == [] and repair(run) == []
    after = contents(store.path)
    assert set(damaged.values()) - {damaged.get(MANIFEST)} <= set(after.values()), "nothing is deleted"
    if name not in (CONFIG, STATUS, MODEL, MANIFEST):
        assert all(contents(run.path)[kept] == before[kept] for kept in (CONFIG, STATUS, MODEL))
        assert [each.healed for each in done] == [name == EVALUATION]
        assert (run.path / name).exists() == (name == EVALUATION)
        assert name != EVALUATION or (run.path / name).read_bytes() == data
        return
    assert not run.path.exists() and contents(store.path / "damaged" / run.id) == damaged
    (each,) = done
    if name == CONFIG:
        assert each.remedy == "the whole run is set aside: its config is lost"
        return
    words = each.remedy.partition("train it again: lengthlens ")[2].split()
    again = command(*words, "--store", str(store.path), "--quiet")
    assert again.exit_code == 0 and contents(run.path)[MODEL] == before[MODEL]


def test_repair_is_a_command(store: RunStore, run: Run) -> None:
    words = ("runs", "repair", "--store", str(store.path))
    assert "nothing to repair" in command(*words).stdout
    (run.path / EVALUATION).write_bytes(b"")
    planned = command(*words, run.id, "--dry-run", "--json")
    assert planned.exit_code == 1 and json.loads(planned.stdout)["repairs"][0]["file"] == EVALUATION
    assert store.check()
    healed = command(*words)
    assert healed.exit_code == 0 and "1 files were healed" in healed.stdout, healed.output
    assert store.check() == []
    (run.path / MODEL).write_bytes(b"")
    lost = command(*words)
    assert lost.exit_code == 1 and "train it again" in lost.stdout


def test_again_replaces_damaged_files(store: RunStore, run: Run) -> None:
    for name, words in (
        (EVALUATION, ["evaluate", run.id, "--lengths", "3", "--samples", "5"]),
        (FILE, ["probe", run.id, "--measure", "lrc", "--force"]),
    ):
        (run.path / name).write_bytes(b"damaged")
        refused = command(*words, "--store", str(store.path))
        assert refused.exit_code == 2 and "runs repair" in refused.stderr
        again = command(*words, "--again", "--store", str(store.path))
        assert again.exit_code == 0, again.output
        assert run.problems() == []
        assert (run.path / "damaged" / name).read_bytes() == b"damaged"
    assert {row["length"] for row in run.evaluation()} == {1, 2, 3}


# -- 9 and 10: sweeps and numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "tasks = 5", 'tasks = ["copy"]\nschemes = ["rope"]\nsamples = "x"', "tasks = [[1]]", "seeds = [-1]",
        'tasks = ["copy"]\nschemes = ["rope"]\nlengths = [0]', "tasks = " + "[" * 3000 + "]" * 3000, "settings = 3",
        'tasks = ["copy"]\nschemes = ["rope"]\nsamples = 0', 'tasks = ["copy"]\nschemes = 7', "seeds = true",
        "tasks = 3 4", "task = ['copy']", "schemes = [3]", "schemes = [{a = 1}]",
        'tasks = ["copy"]\nschemes = ["rope"]\n[settings]\nseed = 7', "\udcff",
    ],
)  # fmt: skip
def test_a_sweep_file_is_checked(tmp_path: Path, text: str) -> None:
    (tmp_path / "grid.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as refusal:
        read_grid(tmp_path / "grid.toml").configs()
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "--tasks", "copy", "--schemes", "rope", "--seeds", "5-3"],
        ["sweep", "--tasks", "copy", "--schemes", "rope", "--samples", "-1"],
        ["sweep", "--tasks", "copy", "--schemes", "rope", "--seeds", "0-10000000000"],
        ["sweep", "--tasks", "copy", "--schemes", "rope", "--resources", "GPU=x"],
        ["sweep", "--tasks", "copy", "--schemes", "rope", "--workers", "2147483648"],
        ["runs", "check", "--store", "typo"],
        ["evaluate", "copy_relative_s0", "--lengths", "5-3"],
        ["evaluate", "copy_relative_s0", "--lengths", "3", "--samples", "0"],
        ["evaluate", "copy_relative_s0", "--lengths", "²"],
        ["evaluate", "copy_relative_s0", "--lengths", "9" * 5000],
        ["evaluate", "copy_relative_s0", "--memory", "nan"],
        ["evaluate", ""],
        ["evaluate", "a/" * 3000],
        ["train", "--task", "copy", "--scheme", "rope", "--seed", "9" * 30],
        ["train", "--task", "copy", "--scheme", "rope", "--set", "scheme_options=5"],
        ["train", "--task", "copy", "--scheme", "rope", "--set", "scheme_options=" + "[" * 5000],
        ["train", "--task", "copy", "--scheme", "rope", "--set", "threads=100000"],
        ["train", "--task", "copy", "--scheme", "rope", "--store", ""],
        ["train", "--task", "x" * 300, "--scheme", "rope"],
        ["runs", "table", ""],
        ["runs", "table", "/"],
        ["report", "--table", "study.parquet", "--out", ""],
        ["report", "--table", "/dev/zero"],
        ["sweep", "/dev/zero"],
        ["sweep", "fifo"],
        ["sample", "copy", "--seed", "1\0"],
        ["sample", "caf\udce9"],
        ["tasks", "--plugin", "runs"],
        ["surgery", "--all", "--out", "new"],
    ],
    ids=lambda words: " ".join(words)[:60].encode("ascii", "replace").decode().replace("\0", "0"),
)
def test_nonsense_is_one_sentence(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    before = contents(store.path)
    result = command(*words)
    assert result.exit_code == 2, result.output[:500]
    said = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert len(said) == 1 and len(said[0]) < 2000
    assert contents(store.path) == before, "nothing was trained"


# -- 11 and 12: damaged entries and tables -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (STATUS, {"status": 3}), (STATUS, []), (STATUS, {"status": "converged", "steps": "x"}), (EVALUATION, {"a": 1}),
        (EVALUATION, [{"length": "x"}]), (EVALUATION, [3]), (VERSIONS, [1]), (METRICS, {"step": None}), (CONFIG, []),
        (STATUS, {"status": "converged", "seconds": 1e999}),
    ],
)  # fmt: skip
def test_believed_checksums_do_not_make_nonsense_sense(store: RunStore, run: Run, name: str, value: object) -> None:
    """A checksum that was made to fit is believed, the content is not."""
    run.write(name, json.dumps(value).encode())
    vars(run).pop("config", None)
    with pytest.raises(UserError):
        run.facts()
    store.listing()


def small_study() -> pd.DataFrame:
    rows = {"run": ["a", "b"], "task": "copy", "scheme": "rope", "measure": "steps", "value": [1.0, 2.0]}
    return pd.DataFrame(rows)


def test_any_change_of_a_study_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "study.parquet"
    write_study(small_study(), {"made": "2030-01-31"}, path)
    table, about = read_study(path)
    assert len(table) == 2 and about == {"made": "2030-01-31"}
    assert len(pd.read_parquet(path)) == 2, "still a plain parquet file"
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(UserError):
            read_study(path)
    for end in (0, 4, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(UserError):
            read_study(path)


def test_a_study_without_a_checksum_is_read(tmp_path: Path) -> None:
    small_study().to_parquet(tmp_path / "earlier.parquet")
    assert len(read_study(tmp_path / "earlier.parquet")[0]) == 2


@pytest.mark.parametrize("cell", ["1e400", "99999999999999999999999", "x", "\udcff", "y" * 9000])
def test_a_damaged_csv_is_a_sentence(tmp_path: Path, cell: str) -> None:
    text = f"task,scheme,measure,value,scale\ncopy,rope,src,1,{cell}\n"
    (tmp_path / "a.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as refusal:
        read_study(tmp_path / "a.csv")
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_an_imported_model_is_made_of_files(tmp_path: Path, name: str) -> None:
    """A fifo would be waited for."""
    about = {"model_type": "gpt2", "n_embd": 4, "n_layer": 0, "n_head": 1, "n_positions": 3, "vocab_size": 2}
    (tmp_path / "config.json").write_text(json.dumps(about))
    sizes = {"wte.weight": (2, 4), "wpe.weight": (3, 4), "ln_f.weight": (4,), "ln_f.bias": (4,)}
    save_file({key: torch.ones(size) for key, size in sizes.items()}, tmp_path / "model.safetensors")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"cannot read '.*{name}': it is a named pipe"):
        read_checkpoint(tmp_path)


def test_no_message_is_endless() -> None:
    assert len(str(UserError("x" * 10_000))) == 2000
    with pytest.raises(UserError, match="finite number"):
        values.real()(10**400, "lr")
    assert str(UserError("a\nb\ud800")) == "a b\\ud800"


# -- 14: memory is bounded beforehand ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("evaluate copy_relative_s0 --lengths 200000", "1000 instances of n = 200000 would take 3 GiB"),
        ("evaluate copy_relative_s0 --samples 1000000000", "1000000000 instances of n = 2 would take 59 GiB"),
        ("sweep --tasks copy --schemes rope --samples 1000000000 --lengths 10", "would take 193 GiB"),
        ("sweep --tasks copy --schemes rope --lengths 0-10000000000", "the end of the range '0-10000000000' must be"),
        ("train --task copy --scheme rope --set batch=2147483647", "batches of 2147483647 would take"),
        ("train --task copy --scheme rope --set d_model=65536", "d_model 65536 and batches of 32 would take"),
        ("verdict --task copy --scheme relative --test-max 20000", "up to n = 20000 would take 32 GiB"),
        ("verdict --all --test-max 20000", "task 'sort' has no size n = 20000: the largest is 128"),
        ("inspect copy_relative_s0 --lengths 10000000", "32 inputs of n = 10000000 would take"),
        ("pola --target prefix-sum --scheme relative --test-max 20000", "more than the 20,000,000 this can hold"),
    ],
)
def test_what_does_not_fit_into_memory_is_refused_with_its_size(store: RunStore, words: str, says: str) -> None:
    result = command(*words.split(), *([] if words.startswith(("verdict", "pola")) else ["--store", str(store.path)]))
    assert result.exit_code == 2 and says in result.stderr and result.stderr.count("Error") == 1


def test_weights_that_do_not_fit_into_memory_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "machine_memory", lambda: 1 << 30)
    with pytest.raises(UserError, match="the weights of the model would take 4 GiB"):
        build(ModelConfig(task="copy", scheme="learned", d_model=1 << 14, n_layers=1, n_heads=1, attn_only=True))


@pytest.mark.slow
def test_a_task_that_is_limited_needs_no_long_circuits() -> None:
    """Of as many scales as are asked for: operators are counted until it is clear that they grow."""
    assert verdict("parity", "relative", 10, 20_000).verdict == "task-limited"


# -- 15: weights that are not finite -------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["evaluate"], ["probe", "--measure", "lrc", "--force"], ["inspect"], ["surgery"]])
def test_weights_that_are_not_finite_are_named(store: RunStore, words: list[str]) -> None:
    run = store.find("copy_relative_s0")
    weights = load(run.read(MODEL))
    next(iter(weights.values())).view(-1)[0] = float("nan")
    with run.locked():
        run.write(MODEL, save(weights))
    result = command(words[0], run.id, *words[1:], "--store", str(store.path))
    assert result.exit_code == 2 and "weights of the model are not finite" in result.stderr


# -- 16: workers end with their parent -----------------------------------------------------------------------------

WORKERS = """
import os, sys, time
from pathlib import Path
from lengthlens.parallel import in_parallel

def work(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)

list(in_parallel(work, dict.fromkeys(range(4), sys.argv[1]), workers=2, fork=sys.argv[2] == "fork"))
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
@pytest.mark.parametrize("start", ["fork", pytest.param("fresh", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path: Path, start: str, how: signal.Signals) -> None:
    """After a kill they notice it; Ctrl-C cancels what waits and ends them at once."""
    (tmp_path / "work.py").write_text(WORKERS)
    (places := tmp_path / "workers").mkdir()
    words = [sys.executable, str(tmp_path / "work.py"), str(places), start]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a shell's background jobs do not hear
    parent = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    while len(found := [path.name for path in places.iterdir()]) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(how)
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    deadline = time.monotonic() + (10 * busy if how == signal.SIGINT else 60)
    while any(Path("/proc", worker).exists() for worker in found):
        assert time.monotonic() < deadline, "left over"
        time.sleep(0.05)
    assert parent.communicate()[1].count("Traceback") == (how == signal.SIGINT), "workers say nothing"


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", few([130, 3], 3))
def test_ctrl_c_is_obeyed(number: int) -> None:
    """At random moments: within two seconds, in one sentence, with nobody left and a sound store."""
    assert [each for each in load_fuzz("interrupts").interrupts(number) if each["wrong"]] == []


@pytest.mark.parametrize("what", [RuntimeError, KeyboardInterrupt])
def test_a_part_that_swallows_ctrl_c_is_interrupted_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: type[BaseException]
) -> None:
    def swallows(self: object, ctx: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except KeyboardInterrupt:
            raise what from None

    monkeypatch.setattr(click.Group, "invoke", swallows)
    with pytest.raises(SystemExit) as end:
        main(["tasks"])
    assert end.value.code == 130 and capsys.readouterr().err.count("interrupted: ") == 1
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# -- what is parsed is bounded, and what is asked for is one thing ---------------------------------------------------


def test_what_costs_much_to_parse_is_refused() -> None:
    for text in (".".join(["a"] * 20_000) + " = 1", "\n".join(".".join("a" * 3000) + f"{k} = 1" for k in range(9))):
        with pytest.raises(UserError, match="more dots in a line"):
            values.parse_toml(text, "the file")
    assert values.parse_toml(f"x = [{', '.join(['0.5'] * 3000)}]", "the file")["x"][2999] == 0.5
    header = json.dumps({f"a{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(200_000)})
    with pytest.raises(UserError, match="not a safetensors file: it says that its header has"):
        values.header_within(len(header).to_bytes(8, "little") + header.encode(), "it")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train --task copy --scheme rope --seed 5 --set seed=4", "seed is given twice, as --seed and by --set"),
        ("train --task copy --scheme rope --steps 20 --set steps=7", "steps is given twice, as --steps and by --set"),
        ("train --task copy --scheme rope --set lr=1 --set lr=2", "--set lr is given twice"),
        ("runs --status convergd", "unknown status 'convergd': did you mean 'converged'?"),
        ("sample copy --scale 10000000", "5 instances of n = 10000000 would take 9 GiB of memory"),
        ("patch copy_relative_s0 --length 90000", "patching at n = 90000 would take"),
        ("inspect copy_relative_s0 --length 20000", "40003 tokens is too long to be shown"),
    ],
)
def test_what_cannot_be_meant_is_refused(store: RunStore, words: str, says: str) -> None:
    place = () if words.startswith(("sample", "src")) else ("--store", str(store.path))
    done = command(words.split()[0], *place, *words.split()[1:])
    assert done.exit_code == 2 and says in done.stderr, done.output


def test_long_work_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    foresee("a little", 3.0)
    foresee("much", 4650.0, 3 << 30)
    assert capsys.readouterr().err == "much may take about 77:30 minutes and 3.0 GiB\n"


def test_a_run_whose_plugin_is_not_loaded_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    copied = "import lengthlens as ll\nfrom lengthlens.tasks.copying import Copy\n@ll.register\nclass Mine(Copy):\n"
    path.write_text(copied + "    name = 'mine'\n")
    load_plugin(str(path))
    store = RunStore(tmp_path / "runs")
    train(tiny(task="mine"), tmp_path / "runs")  # a store's name will do
    before = contents(store.path)
    TASKS.remove("mine")
    for what in ("check", "repair"):
        assert command("runs", what, "--store", str(store.path)).exit_code == 0
    assert contents(store.path) == before and store.listing()[0]["reason"].startswith("task 'mine' comes from plug-in")


def test_an_exact_match_is_a_share(tmp_path: Path) -> None:
    table = small_study().assign(measure="exact_match", value=1.7)
    table.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(UserError, match=r"has an exact match of 1.7, which is a share: from 0 to 1"):
        read_study(tmp_path / "a.csv")


# -- low -----------------------------------------------------------------------------------------------------------


def test_no_cell_is_a_formula_and_no_name_breaks_a_table() -> None:
    table = pd.DataFrame({"reason": ["=1+1", "+1", "-1", "@x", "fine", None], "value": [-1.0] * 6})
    assert [str(cell)[:1] for cell in harmless(table)["reason"][:4]] == ["'"] * 4
    assert harmless(table)["value"].tolist() == [-1.0] * 6
    row = {"name": "a|b\n`<script>`\r*x*", "value": "=1+1"}
    shown = Table("Names", [row], {"name": "name", "value": "value"})
    (line,) = shown.markdown().splitlines()[4:]
    assert line.count("|") - line.count("\\|") == 3 and "<script>" not in line
    assert "'=1+1" in shown.csv()
