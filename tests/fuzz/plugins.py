"""Plug-ins that misbehave: in what they do, where, and from when on; each is asked for by every command that uses one.

A plug-in notes in the file ``triggered`` that it has misbehaved. Whatever command was running then must say so in one
sentence and with an exit code, unless the misbehaviour is harmless; and JSON must stay JSON.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

# From when on: at once, beyond what `check` tries, or only after training.
TRIGGERS = {"always": "True", "far": "n >= 13", "later": "os.path.exists('later')"}
RAISED = {
    "raises": "raise ValueError('no\\nsuch thing')",
    "exits": "sys.exit(0)",
    "asserts": "assert n < 0, 'x' * 5000",
    "lacks": "{}['\\x1b[2J']",
    "stops": "raise StopIteration",
    "generator": "raise GeneratorExit",
    "recursion": "self.answer(inputs, n)",
    "refuses": "raise ll.errors.UserError('a\\nb')",
}
# What `answer` gives instead of `out`.
ANSWERS = {
    "row": "out[1:]", "column": "out[:, :1]", "more": "torch.cat([out, out], 1)", "float": "out.float()",
    "int32": "out.int()", "bool": "out > 4", "negative": "out - 20", "large": "out + 1000", "none": "None",
    "list": "out.tolist()", "numpy": "out.numpy()", "text": "'abc'", "flat": "out.flatten()",
    "device": "out.to('meta')", "deep": "out[..., None]",
}  # fmt: skip
OTHER = {  # where, and what
    "draw-float": ("draw", "out = out.float()"),
    "draw-row": ("draw", "out = out[1:]"),
    "draw-large": ("draw", "out = out + 99"),
    "draw-none": ("draw", "out = None"),
    "prompt-unknown": ("prompt", "out = [*out, '?']"),
    "prompt-none": ("prompt", "out = [*out, None]"),
    "circuit-none": ("circuit", "out = None"),
    "circuit-raises": ("circuit", "raise KeyError(n)"),
    "dtype": ("answer", "torch.set_default_dtype(torch.float64)"),
    "default-device": ("answer", "torch.set_default_device('meta')"),
    "prints": ("answer", "print('{', n)"),
    "writes": ("draw", "sys.stdout.write('\\x1b[2J]')"),
}
HARMLESS = ("prints", "writes", "dtype", "default-device")  # what is printed is right
SCHEMES = {
    "nan": "out = out * float('nan')",
    "raises": "raise ZeroDivisionError(layer)",
    "exits": "sys.exit(0)",
    "ahead": "same = positions.tokens[:, None] == positions.tokens.roll(-1, 1)[..., None]  # [row, query, key]\n"
    "            out = out + 9 * same[:, None, queries, : k.shape[1]]",
    "shape": "out = out[..., :1, :1, :1].expand(1, 1, 1, 7)",
    "text": "out = 'x'",
    "double": "out = out.double()[..., :-1]",
}
AT_ONCE = {
    "import-exits": "sys.exit(0)",
    "import-raises": "raise ValueError('a\\nb')",
    "import-prints": "print('hello')",
    "import-dtype": "torch.set_default_dtype(torch.float64)",
    "import-syntax": "def (",
    "import-os": "sys.stdout.write('{')",
}
TASK = """
import os, sys
import numpy as np, torch
import lengthlens as ll
from lengthlens.tasks import Circuit, Operator, Task

def bad(n):
    if {trigger} and {on}:
        open("triggered", "a").write("x")
        return True
    return False

{first}

@ll.register
class Odd(Task):
    name, family, summary = "odd", "position-addressed", "every digit plus one"
    symbols = tuple("0123456789")

    def draw(self, n, batch, generator, device):
        out = super().draw(n, batch, generator, device)
        if {where!r} == "draw" and bad(n):
            {what}
        return out

    def prompt(self, inputs, n):
        out = super().prompt(inputs, n)
        if {where!r} == "prompt" and bad(n):
            {what}
        return out

    def answer(self, inputs, n):
        out = (inputs + 1) % 10
        if {where!r} == "answer" and bad(n):
            {what}
        return out

    def circuit(self, n, tokens=None):
        up = Operator("up", 1, lambda x: "$" if x == "=" else str((int(x) + 1) % 10))
        k = np.arange(1, n + 2)
        out = Circuit.of(up, n + k, k)
        if {where!r} == "circuit" and bad(n):
            {what}
        return out
"""
SCHEME = """
from torch import nn
from lengthlens.models.schemes.scheme import PositionScheme

@ll.register
class Peculiar(PositionScheme):
    name, family = "peculiar", "contextual"
    summary, relation_in_words = "one learned bias for even distances, one for odd", "(i-j) mod 2"

    def __init__(self, sizes, options, task):
        super().__init__(sizes, options, task)
        self.table = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, 2))

    def phi(self, query_pos, key_pos, scale):
        return ((query_pos - key_pos + 0 * scale) % 2)[..., None]

    def score(self, layer, positions, queries, q, k):
        out = self.table[layer][:, positions.distance(queries) % 2].transpose(0, 1)
        n = positions.tokens.shape[1] // 2 - 1
        if bad(n):
            {what}
        return out
"""


class Plugin(NamedTuple):
    """A file that misbehaves."""

    name: str
    source: str
    scheme: str = "rope"
    harmless: bool = False


def every() -> list[Plugin]:
    """All of them: what misbehaves at once only at import, all else from three moments on."""
    made = []
    usual = {"trigger": "False", "on": "False", "first": "", "where": "", "what": "pass"}
    for name, what in AT_ONCE.items():
        note = f"open('triggered', 'a').write('x')\n{what}"
        source = TASK.format(**{**usual, "first": note})
        made.append(Plugin(name, source, harmless=name in ("import-prints", "import-os")))
    tasks = {name: ("answer", what) for name, what in RAISED.items()}
    tasks |= {f"answer-{name}": ("answer", f"out = {what}") for name, what in ANSWERS.items()} | OTHER
    for (name, (where, what)), (when, trigger) in product(tasks.items(), TRIGGERS.items()):
        asked = {**usual, "trigger": trigger, "on": "True", "where": where, "what": what}
        made.append(Plugin(f"{name} {when}", TASK.format(**asked), harmless=name in HARMLESS))
    for (name, what), (when, trigger) in product(SCHEMES.items(), TRIGGERS.items()):
        source = TASK.format(**{**usual, "trigger": trigger, "on": "True"}) + SCHEME.format(what=what)
        made.append(Plugin(f"scheme-{name} {when}", source, "peculiar"))
    return made


def asked(plugin: Plugin) -> list[list[str]]:
    """The commands, in order; RUN stands for what `train` made."""
    tiny = "steps=2 batch=2 d_model=8 n_heads=2 n_layers=1 train_max=2 check_every=2 warmup=1".split()
    settings = [word for pair in tiny for word in ("--set", pair)]
    scheme, store = ["--scheme", plugin.scheme], ["--store", "runs"]
    return [
        ["check", "odd.py", "--json"],
        ["sample", "odd", "--scale", "14", "--batch", "3", "--json"],
        ["train", "--task", "odd", *scheme, *settings, *store, "--quiet", "--json"],
        ["evaluate", "RUN", "--lengths", "2,14", "--samples", "20", *store, "--json"],
        ["verdict", "--task", "odd", *scheme, "--train-max", "4", "--test-max", "14", "--json"],
        ["probe", "RUN", "--measure", "lrc", "--force", *store, "--json"],
        ["inspect", "RUN", "--lengths", "2,14", "--out", "page.html", *store, "--json"],
        ["sweep", "--tasks", "odd", "--schemes", plugin.scheme, "--seeds", "7,8", "--lengths", "14", "--samples", "20",
         "--workers", "2", *settings, *store, "--json"],
    ]  # fmt: skip


def attack(plugin: Plugin, invoke: Callable[[list[str]], tuple[int, str, str]]) -> str:
    """Ask for everything, and judge; how many commands said that something is wrong."""
    Path("odd.py").write_text(plugin.source)
    run, told, triggered = None, 0, Path("triggered")
    for words in asked(plugin):
        if "RUN" in words and run is None:
            continue
        Path("later").touch() if words[0] == "evaluate" else None
        triggered.unlink(missing_ok=True)
        words = [str(run) if word == "RUN" else word for word in words]
        code, out, err = invoke([words[0], "--plugin", "odd.py", *words[1:]])
        said = f"{' '.join(words)[:60]} ended with {code}: {err[-400:]} {out[-200:]}"
        # What Python could not even report while a stack was full is the test runner's hook, not the command.
        traced = "Traceback" in err and "unraisable" not in err
        assert not traced and code in (0, 1, 2), said
        # A task that refuses an instance by itself is a reason for `verdict` to try another scheme.
        excused = plugin.harmless or (plugin.name.startswith("refuses") and words[0] == "verdict")
        assert code != 0 or excused or not triggered.exists(), f"silent: {said}"
        if code == 2:
            sentences = [line for line in err.splitlines() if line.startswith("Error: ")]
            assert len(sentences) == 1 and len(sentences[0]) < 2100 and not out, said
        else:
            try:
                result = json.loads(out)
            except ValueError as error:
                raise AssertionError(f"no JSON: {said}") from error
            run = result["run"] if words[0] == "train" and code == 0 else run
        told += code != 0
    return f"{'told' if told else 'sound'}"
