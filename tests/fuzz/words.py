"""Argument lists: every command with options of its own, given values that make sense and values that do not.

Numbers that would only mean much work (a million steps) are not among them: each is small, or beyond every bound.
"""

import random

import click

from lengthlens.cli import main

NUMBERS = ["1", "2", "3", "0", "-1", "", "²", "x", "1.5", "1e9", "nan", "inf", "٣", "9" * 5000, "2147483648"]
NUMBERS += ["9223372036854775808", "18446744073709551616", " 2 ", "+2", "0x10", "--", "\u22121"]
RANGES = [*NUMBERS, "5-3", "1-2", "1,2", ",", "1,,2", "0-99999999999", "1-", "-", "2,x", "0-5-9"]
PATHS = ["", ".", "..", "/", "/dev/null", "/dev/zero", "/dev/full", "fifo", "folder", "link", "dangling", "a" * 300]
PATHS += ["a/" * 2000, "new", "new/deep/er", "study.parquet", "study.csv", "grid.toml", "model", "runs", "/etc/passwd"]
PATHS += ["~", "-", "=cmd", "a\nb", "a|b", "\x1b[31m", "é", "file.png", "file.pdf", "file.xyz"]
NAMES = ["", "x" * 300, "\x07", *"copy rope relative copy_relative parity-cot nothing =1 a|b ../..".split()]
NAMES += ["hinted:relative", "hinted:hinted:rope", "relative/max_distance=3", "relative/max_distance", "copy,rope", "/"]
PAIRS = ["scheme_options=" + "[" * 2000, "forms=" + "i" * 5000]
PAIRS += "scheme_options=5 seed=7 seed=x threads=100000 threads=1 lr=nan batch=0 batch=2147483648 d_model=9".split()
PAIRS += "d_model=0 = a a= =b steps=1e999 compile=3 task=copy GPU=x GPU=-1 GPU=1 max_distance=3 max_distance=-1".split()
PAIRS += "n_layers=100000 precision=half device=gpu forms=i-j lengths=some initializer_range=-1 scheme=7".split()
PAIRS += ["train_max=0"]
MEMORY = ["1GiB", "nan", "inf", "0", "-1", "1e400", "512M", "x", "", "9" * 400]
ANYTHING = [*NUMBERS, *PATHS, *NAMES, "smoke?", "log", "none", "auto", "cpu", "pdf", "png,svg", "local", "dask"]

# So that what is asked for in earnest takes no time; the last word on an option counts.
SMALL = {
    "train": ["--steps", "2", "--train-max", "2", "--set", "batch=2", "--set", "d_model=8", "--set", "n_heads=2"],
    "sweep": ["--steps", "2", "--train-max", "2", "--set", "batch=2", "--set", "d_model=8", "--workers", "1"],
    "evaluate": ["--samples", "3"],
    "probe": ["--measure", "lrc", "--force"],
    "pola": ["--test-max", "4", "--train-max", "2"],
    "verdict": ["--test-max", "4", "--train-max", "2", "--jobs", "1"],
    "certify": ["--max-length", "8"],
    "src": ["--max-scale", "3"],
    "figures": ["--formats", "svg"],
}
DRAWING = False  # whether studies that can be read may be asked to be drawn
NEVER = ("--wandb", "--tensorboard", "--help", "--version", "--all", "--address")  # other services, other processes
LEFT = ("reproduce", "check")  # minutes each


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command that ends in itself, with the words that lead there."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found.append(((*path, name), command))
    return found


def value(parameter: click.Parameter, chance: random.Random) -> str:
    """A value for a parameter: mostly of its kind, sometimes of another."""
    name, kind = parameter.name or "", parameter.type.name
    if chance.random() < 0.1:
        return chance.choice(ANYTHING)
    if isinstance(parameter.type, click.Choice):
        return chance.choice([*map(str, parameter.type.choices), "x", ""])
    if kind in ("integer", "integer range"):
        return chance.choice(NUMBERS)
    if name == "memory":
        return chance.choice(MEMORY)
    if name in ("lengths", "seeds", "layers", "beyond", "scales"):
        return chance.choice(RANGES)
    if name in ("settings", "scheme_options", "resources"):
        return chance.choice(PAIRS)
    if name == "tables" and not DRAWING:
        return chance.choice([path for path in PATHS if not path.startswith("study")])
    if kind in ("file", "directory", "path") or name in ("store", "out", "table", "tables", "file", "plot"):
        return chance.choice(PATHS)
    return chance.choice(NAMES)


def command_line(chance: random.Random) -> list[str]:
    """A command with some of its options, in a working directory with runs, study.parquet, grid.toml and model."""
    if chance.random() < 0.03:
        return [chance.choice(ANYTHING) for _ in range(chance.randrange(4))]
    path, command = chance.choice([each for each in commands(main) if each[0][0] not in LEFT])
    asked: list[str] = []
    for parameter in command.params:
        names = [name for name in parameter.opts if name.startswith("--")]
        if set(parameter.opts) & set(NEVER):
            continue
        if isinstance(parameter, click.Argument):
            if chance.random() < 0.95:
                asked.append(usual(parameter, path) if chance.random() < 0.6 else value(parameter, chance))
        elif getattr(parameter, "is_flag", False):
            asked += names[:1] if chance.random() < 0.2 else []
        elif parameter.required or chance.random() < 0.25:
            often = 0.6 if parameter.name != "tables" else 0.15 if DRAWING else 0.0  # a whole study takes seconds
            given = (
                usual(parameter, path) if parameter.required and chance.random() < often else value(parameter, chance)
            )
            asked += [names[0], given]
    if "--store" not in asked and any("--store" in parameter.opts for parameter in command.params):
        asked += ["--store", "runs"]
    return [*path, *asked, *SMALL.get(path[0], [])] if chance.random() < 0.97 else [*path, *asked, "--no-such", "x"]


def usual(parameter: click.Parameter, path: tuple[str, ...]) -> str:
    """A value with which a command works."""
    known = {"task": "copy", "scheme": "rope", "instance": "^ 7 3 =", "target": "prefix-sum", "tables": "study.parquet"}
    if parameter.name == "file":
        return "grid.toml" if path == ("sweep",) else "all.parquet"
    return known.get(parameter.name or "", "copy_relative")
