"""Tasks and schemes from outside: by name everywhere, told apart by their definition, checked before training."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lengthlens as ll
from lengthlens.cli import main
from lengthlens.errors import ContractError, UserError
from lengthlens.models.schemes.contract import check_scheme
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.models.schemes.spec import SCHEMES
from lengthlens.notebook import card
from lengthlens.plugins.fingerprint import fingerprint
from lengthlens.plugins.registry import PluginError, forget, load_in_worker, load_plugin, plugins_for_workers
from lengthlens.runs.evaluation import evaluate
from lengthlens.runs.store import repair
from lengthlens.runs.sweep import Grid
from lengthlens.tasks import TASKS, Circuit, Operator, Task
from lengthlens.tasks.contract import check_task
from lengthlens.tests.map import ROOT
from lengthlens.tests.parameters import EvenOdd, command

TINY = {"steps": 2, "batch": 2, "train_max": 2, "d_model": 8, "n_heads": 2, "check_every": 2, "n_ctx": 32}
FILE = '''
import numpy as np
import lengthlens as ll
from lengthlens.tasks import Circuit, Operator, Task

MORE = {more}  {comment}


def unused():
    return {unused}


@ll.register
class Increment(Task):
    """{docstring}"""

    name, family, summary = "plus", "position-addressed", "every digit plus something"
    symbols = tuple("0123456789")

    def answer(self, inputs, scale):
        return (inputs + MORE) % 10

    def circuit(self, scale, tokens=None):
        up = Operator("up", 1, lambda x: "$" if x == "=" else str((int(x) + MORE) % 10))
        k = np.arange(1, scale + 2)
        return Circuit.of(up, scale + k, k)
'''
TEXTS = {"more": 1, "comment": "", "unused": 1, "docstring": "Plus one."}


def written(folder: Path, **changes: object) -> str:
    """A plug-in as a file, in a folder of its own, since a process loads each file once."""
    folder.mkdir(exist_ok=True)
    path = folder / "plus.py"
    path.write_text(FILE.format(**{**TEXTS, **changes}))
    return str(path)


def call(*words: str, code: int = 0) -> str:
    done = command(*words)
    assert done.exit_code == code, done.output
    return done.output


# -- by name, from files ------------------------------------------------------------------------------------------


def test_a_file_is_known_to_every_command(tmp_path: Path) -> None:
    store, file = str(tmp_path / "runs"), written(tmp_path)
    assert "plus" in call("--plugin", file, "tasks")
    steps = ("--task", "plus", "--scheme", "rope", "--steps", "2", "--train-max", "2", "--set", "d_model=8")
    call("train", "--plugin", file, *steps, "--set", "n_heads=2", "--store", store, "--quiet")
    assert "plus" in call("sample", "plus", "--plugin", file, "--scale", "2", "--json")
    assert "unknown" not in call("runs", "--store", store, "--plugin", file)
    for each in [main, *main.commands.values(), *main.commands["runs"].commands.values()]:
        assert {"--plugin", "--debug"} <= {name for parameter in each.params for name in parameter.opts}


def test_the_variable_names_plugins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="unknown task 'plus'"):
        TASKS["plus"]
    monkeypatch.setenv("LENGTHLENS_PLUGINS", written(tmp_path))
    assert TASKS["plus"].render(TASKS["plus"].parse("^ 4 9 =").tokens[0]) == "^ 4 9 = 5 0 $"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("x = 1 / 0", "line 1: ZeroDivisionError"), ("def", "SyntaxError"), (None, "no such file"), ("x = 1", "nothing")],
)
def test_a_plugin_that_fails_is_one_sentence(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    output = call("check", str(path), code=2)
    assert sentence in output and output.count("\n") == 1 and "Traceback" not in output


def test_what_cannot_be_registered_is_refused() -> None:
    class Nothing:
        name = "nothing"

    class Half(Task):
        name = "half"

    class Taken(type(TASKS["copy"])):
        name = "copy"

    for thing, sentence in (
        (Nothing, "subclass of one of Task"),
        (Half, "lacks the method answer"),
        (Taken, "already"),
    ):
        with pytest.raises(UserError, match=sentence):
            ll.register(thing)


# -- definitions --------------------------------------------------------------------------------------------------


def test_a_definition_is_known_by_its_syntax_and_what_it_uses(tmp_path: Path) -> None:
    def of(place: str, **changes: object) -> str:
        call("--plugin", written(tmp_path / place, **changes), "sample", "plus", "--scale", "2")
        origin = TASKS.origin("plus")
        TASKS.remove("plus")
        assert origin is not None
        return origin.fingerprint

    first = of("a")
    assert first == "eaa04e90966c", "stored runs have it"
    assert of("b", comment="# one more", docstring="Something else.") == first
    assert of("c", unused=2) == first
    assert of("d", more=2) != first  # a constant of the module


HELPED = """
import helper
from helper import CONST
from pack.inner import call

try:
    TRIED = 1
except ValueError:
    TRIED = 2
if TRIED:
    CHOSEN = 1
TWICE = 1
TWICE = TWICE + 1
TABLE = {}
TABLE.update(a=1)

def change():
    global LATER
    LATER = 1

LATER = 0
change()

class Helped:
    def answer(self, inputs, scale):
        helper.f(), call(), CONST, TRIED, CHOSEN, TWICE, TABLE, LATER
        return inputs
"""
BESIDE = {
    "helped.py": HELPED,
    "helper.py": "import further\nCONST = 1\ndef f():\n    return 1\n",
    "further.py": "DEEP = 1\n",
    "pack/__init__.py": "",
    "pack/inner.py": "from .own import g\ndef call():\n    return g()\n",
    "pack/own.py": "def g():\n    return 1\n",
}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("helper.py", "return 1", "return 2"), ("helper.py", "CONST = 1", "CONST = 2"), ("further.py", "1", "2"),
        ("pack/own.py", "return 1", "return 2"), ("helped.py", "TRIED = 1", "TRIED = 3"),
        ("helped.py", "CHOSEN = 1", "CHOSEN = 2"), ("helped.py", "TWICE = 1", "TWICE = 5"),
        ("helped.py", "update(a=1)", "update(a=2)"), ("helped.py", "LATER = 1", "LATER = 2"),
    ],
)  # fmt: skip
def test_whatever_a_plugin_is_made_of_changes_its_fingerprint(tmp_path: Path, file: str, old: str, new: str) -> None:
    def of(place: str, change: bool) -> str:
        for name, text in BESIDE.items():
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new, 1) if change and name == file else f"# a comment\n{text}")
        code = "from helped import Helped; from lengthlens.plugins.fingerprint import fingerprint; "
        words = [sys.executable, "-c", f"{code} print(fingerprint(Helped))"]
        return subprocess.run(words, cwd=tmp_path / place, capture_output=True, text=True, check=True).stdout

    assert of("a", False) != of("b", True)


def test_a_fingerprint_of_one_file_is_what_it_was() -> None:
    """It is part of the ids of runs, so that it may change only where what it covers changes."""
    load_plugin(str(ROOT / "examples" / "own_scheme.py"))
    origin = SCHEMES.origin("half-distance")
    assert origin is not None and origin.fingerprint == "921ce5349604"


def test_an_object_is_known_by_what_it_was_made_with() -> None:
    class By(Task):
        name, family, summary, symbols = "by", "position-addressed", "x", ("a",)

        def __init__(self, more: int) -> None:
            self.more = more

        def answer(self, inputs, scale):
            return inputs

        def circuit(self, scale, tokens=None):
            raise NotImplementedError

    one, same, other = By(1), By(1), By(2)
    assert same.vocab  # what is computed later does not count
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)


def test_ids_of_our_own_runs_are_what_they_were() -> None:
    config = ll.RunConfig("copy", "rope")
    assert config.id == "copy_rope_s0_386a72c3" and "plugins" not in config.to_dict()
    assert ll.RunConfig("addition", "hinted:relative", seed=3).id == "addition_hinted-relative_s3_0afa1744"


def test_a_changed_definition_is_another_run_and_the_old_one_says_so(tmp_path: Path) -> None:
    store = ll.RunStore(tmp_path / "runs")
    call("--plugin", written(tmp_path / "a"), "sample", "plus", "--scale", "2")
    first = ll.RunConfig("plus", "rope", **TINY)
    run = ll.train(first, store).run
    assert run is not None and ll.load(run.path).config == ll.load(first.id, store=store).config == run.model().config
    TASKS.remove("plus")
    row = store.listing()[0]
    assert (row["task"], row["status"]) == ("plus", "not-converged") and "load it with --plugin" in row["reason"]
    assert store.table()["task"].unique().tolist() == ["plus"]
    with pytest.raises(PluginError, match="is not loaded"):
        ll.load(run.path)
    call("--plugin", written(tmp_path / "b", more=2), "sample", "plus", "--scale", "2")
    second = ll.RunConfig("plus", "rope", **TINY)
    assert second.id != first.id and ll.train(second, store).run.id == second.id
    with pytest.raises(PluginError, match="has changed"):
        ll.load(run.path)
    with pytest.raises(PluginError, match="has changed"):
        ll.train(first)
    assert replace(second, task="copy").plugins == {} and replace(second, seed=1).plugins == second.plugins


def test_a_name_may_have_an_underscore_and_its_damaged_run_is_made_again_by_it(tmp_path: Path) -> None:
    """Nothing parses names of runs, which join their parts with underscores."""
    ll.register(type("CopyAgain", (type(TASKS["copy"]),), {"name": "copy_again"}))
    run = ll.train(ll.RunConfig("copy_again", "rope", **TINY), ll.RunStore(tmp_path)).run
    (run.path / "model.safetensors").write_bytes(b"")
    (done,) = repair(run)
    assert "lengthlens train --task copy_again --scheme rope " in done.remedy


def test_opening_a_run_runs_no_code_that_came_with_it(tmp_path: Path) -> None:
    store = ll.RunStore(tmp_path)
    run = ll.train(ll.RunConfig("copy", "rope", **TINY), store).run
    assert run is not None
    mark, code = tmp_path / "mark", run.path / "evil.py"
    code.write_text(f"open({str(mark)!r}, 'w')")
    origin = {"name": "evil", "plugin": str(code), "fingerprint": "0" * 12}
    values = {**run.config.to_dict(), "task": "evil", "plugins": {"task": origin}}
    run.write("config.json", json.dumps(values).encode())
    assert "evil.py" in store.listing()[0]["reason"]
    with pytest.raises(UserError):
        ll.load(run.path)
    assert not mark.exists()


# -- workers --------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # processes of their own
def test_workers_know_what_this_process_knows(tmp_path: Path) -> None:
    call("--plugin", written(tmp_path), "sample", "plus", "--scale", "2")
    grid = Grid(["plus"], ["rope"], seeds=[0, 1], lengths=[3], samples=4, settings=TINY)
    outcomes = ll.sweep(grid, ll.RunStore(tmp_path / "runs"), workers=2)
    assert [(each.status, each.reason is None) for each in outcomes] == [("not-converged", False)] * 2
    assert "below" in str(outcomes[0].reason)


def test_a_worker_that_stands_elsewhere_finds_modules_and_takes_up_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a cluster has a working directory of its own, and lives longer than what it is sent."""
    module = f"plus_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(FILE.format(**TEXTS))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    load_plugin(module)
    plugins = plugins_for_workers()
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(tmp_path)])
    forgotten(module)
    load_in_worker(plugins)  # as in a new process
    assert TASKS.origin("plus") == plugins.origins[0][2]
    (tmp_path / f"{module}.py").write_text(FILE.format(**{**TEXTS, "more": 12345}))
    forgotten(module)
    load_plugin(module)
    changed = plugins_for_workers()
    load_in_worker(changed)
    with pytest.raises(PluginError, match="task 'plus' has changed"):  # the file is no longer what was sent
        load_in_worker(plugins)
    (tmp_path / f"{module}.py").write_text(FILE.format(**TEXTS))
    load_in_worker(plugins)
    assert TASKS.origin("plus") == plugins.origins[0][2] != changed.origins[0][2]


def forgotten(module: str) -> None:
    forget([module])
    if "plus" in TASKS.outside():
        TASKS.remove("plus")


# -- contracts ------------------------------------------------------------------------------------------------------


class Idle(EvenOdd):
    def __init__(self, sizes, options, task):
        super().__init__(sizes, options, task)
        self.spare = nn.Parameter(torch.zeros(3))


class OneScale(EvenOdd):
    uses_scale = True

    def score(self, layer, positions, queries, q, k):
        return super().score(layer, positions, queries, q, k) + positions.scale.float().mean()

    def phi(self, query_pos, key_pos, scale):
        return torch.stack(torch.broadcast_tensors((query_pos - key_pos) % 2, scale), -1)


def changed(base, **methods):
    """The class with other methods; each gets the object first, as ever."""
    return type("Changed", (base,), methods)


def whole(scheme, layer, positions, queries, q, k):
    every = slice(0, positions.tokens.shape[1])
    return scheme.table[layer][:, positions.distance(every) % 2].transpose(0, 1)


def prophet(scheme, layer, positions, queries, q, k):
    last = positions.tokens[:, -1].float()[:, None, None, None]
    return EvenOdd.score(scheme, layer, positions, queries, q, k) + last


def unasked(scheme, layer, positions, queries, q, k):
    return EvenOdd.score(scheme, layer, positions, queries, q, k) + positions.scale[:, None, None, None]


@pytest.mark.parametrize(
    ("scheme", "method", "example"),
    [
        (
            changed(EvenOdd, phi=lambda _, i, j, n: ((i - j + 0 * n) % 3)[..., None]),
            "phi",
            "(query 0, key 0) at n = 1 and (query 3, key 0) at n = 1 have one code",
        ),
        (changed(EvenOdd, phi=lambda _, i, j, n: (i - j + 0 * n)[..., None] / 2), "phi", "torch.float32"),
        (
            changed(EvenOdd, score=lambda s, layer, pos, q, *_: s.table[layer][:, pos.distance(q)[0] % 2]),
            "score",
            "must give [1 or row, 1 or head, query, key]",
        ),
        (changed(EvenOdd, score=whole), "score", "keys run from 0 to 0"),
        (Idle, "__init__", "parameter 'spare'"),
        (changed(EvenOdd, score=prophet), "score", "a scheme must not look ahead"),
        (changed(EvenOdd, score=unasked), "score", "(positions.scale is None unless the class says uses_scale = True)"),
        (OneScale, "score", "is treated otherwise on rows of sizes"),
    ],
)
def test_a_scheme_that_breaks_its_contract(scheme: type[PositionScheme], method: str, example: str) -> None:
    ll.register(scheme)
    assert any(found.method == method and example in found.what for found in check_scheme("even-odd"))
    with pytest.raises(UserError, match="does not keep to its contract"):
        ll.train(ll.RunConfig("copy", "even-odd", **TINY))


class Echo(Task):
    name, family, summary, symbols = "echo", "position-addressed", "the string again", ("a", "b")

    def answer(self, inputs, scale):
        return inputs

    def circuit(self, scale, tokens=None):
        k = np.arange(1, scale + 2)
        return Circuit.of(Operator("copy", 1, lambda token: "$" if token == "=" else token), scale + k, k)


class Shifting(Echo):
    """One name for a function that changes with the size."""

    def answer(self, inputs, scale):
        return (inputs + scale) % 2

    def circuit(self, scale, tokens=None):
        k = np.arange(1, scale + 2)
        turn = Operator("turn", 1, lambda x: "$" if x == "=" else "ab"[("ab".index(x) + scale) % 2])
        return Circuit.of(turn, scale + k, k)


class Ahead(EvenOdd):
    """A bias where the key's token is that which follows the query."""

    family = "contextual"
    least = 0  # positions from which on it does so

    def score(self, layer, positions, queries, q, k):
        tokens = positions.tokens
        same = tokens[:, None] == tokens.roll(-1, 1)[..., None]  # [row, query, key]
        same = same & (torch.arange(tokens.shape[1])[:, None] >= self.least)
        return super().score(layer, positions, queries, q, k) + 9 * same[:, None, queries, : k.shape[1]]


@pytest.mark.parametrize("least", [0, 30])
def test_a_scheme_that_looks_ahead_is_not_sound_and_gets_no_score(
    least: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Near the beginning, or only where instances are longer than those that are tried first."""
    monkeypatch.setattr(Ahead, "least", 10_000)
    ll.register(Ahead)
    assert check_scheme("even-odd") == []
    run = ll.train(ll.RunConfig("copy", "even-odd", **TINY), tmp_path).run
    monkeypatch.setattr(Ahead, "least", least)
    (breach,) = check_scheme("even-odd")
    assert breach.method == "score" and "a scheme must not look ahead" in breach.what
    for look in (lambda: evaluate(run, [40]), lambda: ll.exact_match(run.model(), TASKS["copy"], [40])):
        with pytest.raises(ContractError, match="it looks ahead, and gets no score"):
            look()
    assert 40 not in {row["length"] for row in run.evaluation()}


def test_a_scheme_that_gives_nan_is_an_error_and_no_result(tmp_path: Path) -> None:
    def nan(scheme, layer, positions, queries, q, k):
        values = EvenOdd.score(scheme, layer, positions, queries, q, k)
        return values * float("nan") if Path(tmp_path / "later").exists() else values

    ll.register(changed(EvenOdd, score=nan))
    run = ll.train(ll.RunConfig("copy", "even-odd", **TINY), tmp_path / "runs").run
    (tmp_path / "later").touch()
    for words in (["evaluate", "--lengths", "9"], ["inspect"], ["probe", "--again", "--force", "--measure", "lrc"]):
        said = call(words[0], run.id, *words[1:], "--store", str(tmp_path / "runs"), code=2)
        assert "the model gives NaN, which is no answer" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("task", "method", "example"),
    [
        (changed(Echo, symbols=("a", "a")), "symbols", "'a' is a token twice"),
        (changed(Echo, answer=lambda _, x, n: x[:, 1:]), "answer", "at n = 1, not torch.int64 of the shape [3, 0]"),
        (changed(Echo, answer=lambda _, x, n: x.float()), "answer", "torch.float32"),
        (changed(Echo, answer=lambda _, x, n: 1 - x), "circuit", "on '^ a =' it writes 'a $', and answer says 'b $'"),
        (Shifting, "circuit", "operator 'turn' of ('a',)"),
        (changed(Echo, scale_of=lambda _, x: torch.ones(len(x)).long()), "scale_of", "is of n = 2, and it says 1"),
        (changed(Echo, prompt=lambda _, x, n: [1 - x, "="]), "parse", "on '^ b ="),
        (changed(Echo, draw=lambda _, n, rows, *on: torch.randint(2, (rows, n))), "draw", "gives other instances"),
    ],
)
def test_a_task_that_breaks_its_contract(task: type[Task], method: str, example: str) -> None:
    assert check_task(Echo()) == []
    found = check_task(task())
    assert any(each.method == method and example in each.what for each in found), found


# -- what is not said, printed or ended by a plug-in ---------------------------------------------------------------

LATE = FILE.replace("def answer(self, inputs, scale):", "def answer(self, inputs, scale):\n        {late}")


@pytest.mark.parametrize(
    ("late", "says"),
    [
        ("if scale > 12: raise ValueError('a\\nb')", "answer(scale=14) fails in plus.py, line 21: ValueError: a"),
        ("if scale > 12: sys.exit(0)", "answer(scale=14) fails in plus.py, line 21: NameError"),
        ("if scale > 12: raise SystemExit(0)", "answer(scale=14) fails in plus.py, line 21: SystemExit: 0"),
        ("if scale > 12: return inputs[:1]", "answer of task 'plus' must give ids (torch.int64) of the shape [3, 14]"),
        ("if scale > 12: return inputs[:, :1]", "not torch.int64 of the shape [3, 1]"),
        ("if scale > 12: return inputs.float()", "not torch.float32 of the shape [3, 14]"),
        ("if scale > 12: return inputs + 20", "not ids from 2"),
    ],
)
def test_what_goes_wrong_at_an_untried_length_is_a_sentence(tmp_path: Path, late: str, says: str) -> None:
    path = tmp_path / "plus.py"
    path.write_text(LATE.format(**TEXTS, late=late))
    call("check", str(path))
    words = ("sample", "plus", "--scale", "14", "--batch", "3", "--plugin", str(path))
    said = call(*words, code=2)
    assert says in said and said.count("\n") == 1
    if "raise ValueError" in late:
        assert isinstance(command(*words, "--debug").exception, ValueError)


def test_ctrl_c_in_a_plugin_is_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "plus.py"
    path.write_text(LATE.format(**TEXTS, late="raise KeyboardInterrupt"))
    assert "interrupted: " in call("sample", "plus", "--plugin", str(path), code=130)


def test_a_plugin_may_print_and_json_stays_json(tmp_path: Path) -> None:
    path = tmp_path / "plus.py"
    path.write_text("print('{', 'at import')\n" + LATE.format(**TEXTS, late="print('in answer', '\\x1b[2J')"))
    done = command("sample", "plus", "--plugin", str(path), "--json")
    assert len(json.loads(done.stdout)) == 5 and "at import" in done.stderr and "in answer" in done.stderr


@pytest.mark.parametrize("setting", ["default_dtype(torch.float64)", "default_device('meta')"])
def test_what_is_everyones_is_not_set_by_a_plugin(tmp_path: Path, setting: str) -> None:
    (tmp_path / "plus.py").write_text(f"import torch\ntorch.set_{setting}\n" + FILE.format(**TEXTS))
    assert "it sets torch's default" in call("check", str(tmp_path / "plus.py"), code=2)
    path = tmp_path / "late.py"
    path.write_text("import torch\n" + LATE.format(**TEXTS, late=f"torch.set_{setting}"))
    assert "answer: at n = 1 it sets torch's default" in call("check", str(path), code=1)
    assert torch.get_default_dtype() == torch.float32 and torch.zeros(1).device.type == "cpu"


# -- Python as a way in ---------------------------------------------------------------------------------------------


def test_results_show_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ll.RunStore(tmp_path)
    trained = ll.train(ll.RunConfig("copy", "rope", **TINY), store, progress=True)
    assert trained.run is not None and trained.model is not None
    assert "2/2" in capsys.readouterr().err
    for thing in (trained, trained.run, store, trained.model, ll.verdict("copy", "rope", 2, 4)):
        assert len(repr(thing)) < 250 and "\n" not in repr(thing)
    for thing in (trained, store, ll.verdict("copy", "rope", 2, 4)):
        assert "copy" in thing._repr_html_() and thing._repr_html_().count("<div") == thing._repr_html_().count("</div")
    assert "&lt;script&gt;" in card("<script>", {})
    with pytest.raises(UserError, match="no directory of a run or a saved model"):
        ll.load(tmp_path / "nothing")
    trained.model.save_pretrained(str(tmp_path / "saved"))
    assert ll.load(tmp_path / "saved").config == trained.model.config
    with pytest.raises(UserError, match="is not a token"):
        trained.model.predict("^ x =")


def test_a_listing_is_cached_until_the_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lengthlens.commands import theory

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[int] = []

    def make() -> list[dict[str, int]]:
        made.append(1)
        return [{"n": 1}]

    monkeypatch.setattr(theory, "named_anywhere", lambda: False)
    assert theory.cached("mine", make) == theory.cached("mine", make) == [{"n": 1}] and made == [1]
    (path,) = (tmp_path / "lengthlens").iterdir()
    path.write_bytes(path.read_bytes()[:-3])  # damaged: made again
    assert theory.cached("mine", make) == [{"n": 1}] and made == [1, 1]
    monkeypatch.setattr(theory, "code_version", lambda: "other")
    assert theory.cached("mine", make) and made == [1, 1, 1] and not path.exists()
    monkeypatch.setattr(theory, "named_anywhere", lambda: True)
    assert theory.cached("mine", make) and made == [1, 1, 1, 1]
