"""Tasks and schemes from outside: by name everywhere, told apart by their definition, checked before training."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import lengthlens as ll
from lengthlens.cli import main
from lengthlens.errors import UserError
from lengthlens.models.schemes.contract import check_scheme
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.notebook import card
from lengthlens.plugins.fingerprint import fingerprint
from lengthlens.plugins.registry import PluginError, forget, load_in_worker, load_plugin, plugins_for_workers
from lengthlens.runs.store import repair
from lengthlens.runs.sweep import Grid
from lengthlens.tasks import TASKS, Circuit, Operator, Task
from lengthlens.tasks.contract import check_task
from lengthlens.tests.parameters import EvenOdd

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
    done = CliRunner().invoke(main, words)
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
    for command in [main, *main.commands.values(), *main.commands["runs"].commands.values()]:
        assert "--plugin" in [name for parameter in command.params for name in parameter.opts]


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
        (changed(EvenOdd, score=prophet), "score", "the last token changes"),
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


@pytest.mark.parametrize(
    ("task", "method", "example"),
    [
        (changed(Echo, symbols=("a", "a")), "symbols", "'a' is a token twice"),
        (changed(Echo, answer=lambda _, x, n: x[:, 1:]), "answer", "it gives the shape [3, 0], and [3, 1]"),
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
