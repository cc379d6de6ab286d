"""The command line as a user meets it: what it prints, what it refuses, and how."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import command as run

TRAIN = ("train", "--task", "copy", "--scheme", "rope")


def test_help_imports_nothing_heavy() -> None:
    """What makes `lengthlens --help` quick, without a clock: torch and its company stay out of the process."""
    code = (
        "import sys; from lengthlens.cli import main; main(['--help'], standalone_mode=False); "
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'sklearn', 'matplotlib'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_tasks_as_json_and_as_a_table() -> None:
    assert run("--version").stdout.startswith("lengthlens, version ")
    rows = {row["name"]: row for row in json.loads(run("tasks", "--json").stdout)}
    table = run("tasks").stdout
    assert list(rows) == list(TASKS) and all(name in table for name in TASKS)
    assert isinstance(json.loads(run("schemes", "--json").stdout), list)
    assert rows["parity"]["src"] == {"4": 4, "8": 8, "16": 16}
    assert rows["copy"]["family"] == "position-addressed"
    assert TASKS["addition"].parse(rows["addition"]["example"]).scale.item() == 4


def test_sample_is_reproducible_and_parses_back() -> None:
    first = run("sample", "addition", "--scale", "3", "--batch", "4", "--seed", "7")
    assert first.stdout == run("sample", "addition", "--scale", "3", "--batch", "4", "--seed", "7").stdout
    lines = first.stdout.splitlines()
    assert len(lines) == 4
    for line in lines:
        TASKS["addition"].parse(line)


def test_steps_show_the_circuit() -> None:
    rows = json.loads(run("steps", "parity-cot", "^ 1 0 1 =", "--json").stdout)
    assert [row["writes"] for row in rows] == ["1", "1", "0", "$"]
    reads = {"slots": "symbol, so far", "reads": "0 1", "sources": "2 5"}
    assert rows[1] == {"query": 5, "writes": "1", "operator": "add mod 2", **reads}


def test_src_with_search(tmp_path: Path) -> None:
    drawn = tmp_path / "src.png"
    words = ["src", "parity", "--max-scale", "4", "--search", "--arity", "3", "--plot", str(drawn), "--json"]
    rows = json.loads(run(*words).stdout)
    assert [row["declared"] for row in rows] == [1, 2, 3, 4]
    assert [row["searched"] for row in rows] == [1, 1, 1, "inf"]
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["src", "coppy"], "did you mean 'copy'?"),
        (["taks"], "did you mean 'tasks'?"),
        (["src", "copy", "--max-scal", "3"], "--max-scale"),
        (["src", "copy", "--max-scale", "0"], "no size n = 0: the smallest is 1"),
        (["src", "copy", "--search", "--arity", "0"], "at least 1, not 0"),
        (["src", "copy", "--plot", "figure.xyz"], "figure.xyz"),
        (["sample", "copy", "--batch", "0"], "at least 1, not 0"),
        (["sample", "sort", "--scale", "400"], "the largest is 128"),
        (["steps", "copy", "^ 7 x ="], "'x' is not a token"),
        (["steps", "copy", "^ 7 3 = 7 4 $"], "should be '3', not '4'"),
        ([*TRAIN, "--task", "coppy"], "did you mean 'copy'?"),
        ([*TRAIN, "--set", "step=3"], "steps"),
        ([*TRAIN, "--set", "steps"], "FIELD=VALUE"),
        ([*TRAIN, "--scheme-option", "bas=1"], "base"),
        (["evaluate", "nothing", "--store", "nowhere"], "no runs in 'nowhere'"),
        (["sweep", "--tasks", "copy"], "at least one"),
        (["sweep", "--tasks", "copy", "--schemes", "rope", "--engine", "ray"], "local, dask"),
        (["runs", "sho"], "show"),
        (["reproduce", "--preset", "quik"], "unknown preset 'quik': did you mean 'quick'?"),
    ],
)
def test_bad_input_is_one_clear_sentence(words: list[str], named: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert named in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 or (lines[0].startswith("Usage: ") and lines[-1].startswith("Error: ") and len(lines) == 4)


@pytest.mark.parametrize("words", ["src copy --max-scale 3 --plot", "inspect copy/lbpe --out"])
def test_a_file_that_cannot_be_written_is_refused_and_leaves_nothing(words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    result = run(*words.split(), str(tmp_path / "file" / "figure.png"))
    assert result.exit_code == 2
    assert "is no directory" in result.stderr and "file" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("words", ["verdict --task copy", "train --task copy --steps 2 --set batch=2 --train-max 2"])
def test_options_may_stand_behind_the_name_of_a_scheme(words: str, tmp_path: Path) -> None:
    store = ["--store", str(tmp_path)] if words.startswith("train") else []
    done = run(*words.split(), "--scheme", "relative/max_distance=3", *store)
    assert done.exit_code == 0, done.output
    apart = ["--scheme", "relative", "--scheme-option", "max_distance=3"]
    again = run(*words.split(), *apart, *store).stdout
    assert again.replace("; it was there already, and nothing was trained", "") == done.stdout  # the same run
    assert (again == done.stdout) == words.startswith("verdict")
    twice = run(*words.split(), *apart[2:], "--scheme", "relative/max_distance=3", *store)
    assert twice.exit_code == 2 and "is given twice" in twice.output
