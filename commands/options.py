"""Options that several commands share, and how the words that a user types are read."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lengthlens import values
from lengthlens.errors import UserError
from lengthlens.values import LARGEST, MOST_ITEMS, parse_json, read_whole_number, split_list

MOST_SCALE = 10_000_000  # the largest n that a command takes

Command = Callable[..., None]


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number within bounds: ``type=Whole(1)`` in place of int, which has none."""

    name = "integer"

    def __init__(self, low: int = 0, high: int = LARGEST) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value  # a default
        return read_whole_number(value, param.opts[0] if param else "it", self.low, self.high)


class OutFile(click.Path):
    """A file to write: refused at once, before any work, if something else than a regular file has its name."""

    def __init__(self, dir_okay: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from lengthlens.files import replaceable

        return replaceable(Path(values.text()(str(value), param.opts[0] if param else "the file")))


class OutFolder(click.Path):
    """A directory to write into; "" is none."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(value)
        if not str(value) or (path.exists() and not path.is_dir()):
            raise UserError(f"{param.opts[0] if param else 'it'} must be a directory, not {values.shown(str(value))}")
        return path


def reading(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """The callback of an option that reads its text, if there is one, by `read`."""

    def callback(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else read(text)
        except UserError as wrong:
            raise UserError(f"{parameter.opts[0]}: {wrong}") from None

    return callback


def read_names(text: str) -> list[str]:
    """Names with commas between them.

    >>> read_names("pdf, png"), read_names("")
    (['pdf', 'png'], [])
    """
    return [name.strip() for name in split_list(text) if name.strip()]


def read_numbers(text: str) -> list[int]:
    """Whole numbers and ranges.

    >>> read_numbers("10,20,50"), read_numbers("0-3,7")
    ([10, 20, 50], [0, 1, 2, 3, 7])
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = read_whole_number(first, "each number (5,10-12 are a number and a range)")
        high = read_whole_number(last, f"the end of the range {values.shown(part)}") if dash else low
        if high < low:
            raise UserError(f"the range {values.shown(part)} is empty: its end comes before its beginning")
        if len(numbers) + high - low >= MOST_ITEMS:
            raise UserError(f"{values.shown(text)} has more than {MOST_ITEMS} numbers")
        numbers += range(low, high + 1)
    return numbers


def read_scales(text: str) -> list[int | tuple[int, ...]]:
    """Whole numbers and ranges, and tuples of field lengths: written out (3:5), or one length repeated (4x200).

    >>> read_scales("10,12-13,3:5,4x200")
    [10, 12, 13, (3, 5), (200, 200, 200, 200)]
    """
    scales: list[int | tuple[int, ...]] = []
    for part in text.split(","):
        if "x" not in part and ":" not in part:
            scales += read_numbers(part)
            continue
        count, times, length = part.strip().partition("x")
        words = f"each number in {values.shown(part)} (a tuple such as 3:5 or 20x200)"
        if times and read_whole_number(count, words) > MOST_ITEMS:
            raise UserError(f"{values.shown(part)} has more than {MOST_ITEMS} numbers")
        pieces = [length] * int(count) if times else part.split(":")
        scales.append(tuple(read_whole_number(piece, words) for piece in pieces))
    return scales


def read_bytes(text: str) -> int:
    """An amount of memory.

    >>> read_bytes("2GiB"), read_bytes("512M"), read_bytes("1.5 GB")
    (2147483648, 536870912, 1610612736)
    """
    parts = re.fullmatch(r"([0-9]{0,12}\.?[0-9]{1,12}(?:E[0-9]{1,2})?) *([KMG]?)I?B?", text.strip().upper())
    amount = float(parts[1]) * 1024 ** " KMG".index(parts[2] or " ") if parts else math.nan
    if not 1 <= amount < 2**60:
        raise UserError(f"{values.shown(text)} is no amount of memory: write it as 512MiB or 2GiB")
    return int(amount)


def load_plugins(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> None:
    """Load plug-ins before anything else is looked at."""
    from lengthlens.plugins.registry import load_plugin

    for plugin in given:
        load_plugin(plugin)


def common_options() -> list[click.Parameter]:
    """A new ``--plugin``, and a new ``--debug``, which `Group.main` looks for; every command has both."""
    plugin = click.Option(
        ["--plugin", "plugins"],
        multiple=True,
        metavar="FILE.py|MODULE",
        is_eager=True,
        expose_value=False,
        callback=load_plugins,
        help="Load user-defined tasks, schemes, probes and figures from there; may be given again.",
    )
    words = "Where a plug-in fails, show the whole traceback instead of a sentence."
    return [plugin, click.Option(["--debug"], is_flag=True, expose_value=False, help=words)]


def read_where(text: str) -> dict[str, list[Any]]:
    """Fields with the values that are allowed for them.

    >>> read_where("task=copy|reverse, train_max=10")
    {'task': ['copy', 'reverse'], 'train_max': [10]}
    """
    allowed = {}
    for part in read_names(text):
        name, equals, values = part.partition("=")
        if not (name and equals and values):
            raise UserError(f"'{part}' in '{text}' is no FIELD=VALUE, such as task=copy or train_max=5|10")
        allowed[name.strip()] = [plain_value(value.strip()) for value in values.split("|")]
    return allowed


names, numbers, scales = reading(read_names), reading(read_numbers), reading(read_scales)


def read_pairs(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Texts ``name=value`` as a dictionary."""
    split = [text.partition("=") for text in given]
    for name, equals, value in split:
        if not (name and equals):
            raise UserError(f"'{name}{equals}{value}' is no {parameter.opts[0]}: write {parameter.metavar}")
    names = [name.strip().replace("-", "_") for name, *_ in split]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{parameter.opts[0]} {twice[0]} is given twice: give it once")
    return dict(zip(names, (value.strip() for *_, value in split)))


def given_fields(settings: dict[str, str], **named: Any) -> dict[str, Any]:
    """Fields of a config from options that were given, and from FIELD=VALUE texts."""
    fields = {name: value for name, value in named.items() if value is not None}
    if twice := sorted(fields.keys() & settings.keys() - {"scheme_options"}):
        raise UserError(f"{twice[0]} is given twice, as --{twice[0].replace('_', '-')} and by --set: give it once")
    return fields | {name: plain_value(value) for name, value in settings.items()}


def plain_value(text: str) -> Any:
    """A number, true, false or null as JSON has them; else the text itself.

    >>> plain_value("3"), plain_value("rope"), plain_value("[1]")
    (3, 'rope', [1])
    """
    try:
        return parse_json(text, "it")
    except UserError:
        return text


def open_store(context: click.Context, parameter: click.Parameter | None, path: str | None) -> Any:
    """The store at a path; without a path, the store of the group's ``--store``, if there is one."""
    from lengthlens.runs.store import RunStore

    if path is None:
        return context.obj
    if not values.text()(path, "--store"):
        raise UserError("--store must be the name of a directory, not ''")
    return RunStore(Path(path))


store_option = click.option(
    "--store", default="runs", show_default=True, callback=open_store, help="The directory of all runs.", metavar="DIR"
)
own_store = click.option("--store", callback=open_store, help="The directory of all runs.", metavar="DIR")


def read_device(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """The name of a device."""
    from lengthlens.runs.config import DEVICE

    if name is not None:
        DEVICE(name, "--device")
    return name


device_option = click.option(
    "--device", callback=read_device, help="Where to compute: auto, cpu, cuda, cuda:0, cuda:1, … or mps."
)


def read_resources(*given: Any) -> dict[str, float] | None:
    """Amounts by name; None if there are none."""
    return {k: float(values.real(above=0)(plain_value(v), k)) for k, v in read_pairs(*given).items()} or None


resources_option = click.option(
    "--resources",
    multiple=True,
    metavar="NAME=AMOUNT",
    callback=read_resources,
    help="What a run takes of a Dask worker: GPU=1.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
quiet = click.option("--quiet", is_flag=True, help="Only the summary.")
plot_file = click.option("--plot", type=OutFile(), help="Draw into this file (.png, .pdf or .svg).")
width_option = click.option(
    "--width", type=float, help="Of figures, in inches: 3.3 for a column of a paper, 7 for a page."
)
scheme_option = click.option(
    "--scheme-option",
    "scheme_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=read_pairs,
    help="An option of the scheme, e.g. max_distance=3; may be given again.",
)


def engine_options(command: Command) -> Command:
    """Where much work is done: `engine`, `workers`, `address`."""
    command = click.option("--address", help="Of the Dask scheduler: tcp://…")(command)
    command = click.option(
        "--workers", type=Whole(1, 4096), help="Local processes.  [default: one for each core, or GPU]"
    )(command)
    return click.option("--engine", default="local", show_default=True, help="local or dask.")(command)


def config_options(command: Command) -> Command:
    """Fields of a run's config: `steps`, `train_max`, `device`, `score_scaling`, and `settings` for any other."""
    words = "Any other field of the run's config, such as batch=64 or lr=0.002."
    scaling, pair = click.Choice(["log", "none"]), "FIELD=VALUE"
    command = click.option("--set", "settings", multiple=True, metavar=pair, callback=read_pairs, help=words)(command)
    command = click.option("--score-scaling", type=scaling, help="Length-scaled scores, or not.")(command)
    command = device_option(command)
    command = click.option("--train-max", type=Whole(1), help="The largest n in training.")(command)
    return click.option("--steps", type=Whole(1), help="The most training steps.")(command)
