"""Options that several commands share, and how the words that a user types are read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lengthlens.errors import UserError

Command = Callable[..., None]

store_path = click.option(
    "--store", default="runs", show_default=True, help="The directory of all runs.", metavar="DIR"
)
own_store = click.option("--store", help="The directory of all runs.", metavar="DIR")
device_option = click.option("--device", type=click.Choice(["auto", "cuda", "mps", "cpu"]), help="Where to compute.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
plot_file = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw into this file (.png, .pdf or .svg)."
)


def pairs(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Texts ``name=value`` as a dictionary."""
    split = [text.partition("=") for text in given]
    for name, equals, value in split:
        if not (name and equals):
            raise UserError(f"'{name}{equals}{value}' is no {parameter.opts[0]}: write NAME=VALUE")
    return {name.strip().replace("-", "_"): value.strip() for name, _, value in split}


scheme_option = click.option(
    "--scheme-option",
    multiple=True,
    metavar="NAME=VALUE",
    callback=pairs,
    help="An option of the scheme, e.g. max_distance=3; may be given again.",
)


def engine_options(command: Command) -> Command:
    """Where much work is done: `engine`, `workers`, `address`."""
    return together(
        click.option("--engine", default="local", show_default=True, help="local or dask."),
        click.option("--workers", type=int, help="Local processes.  [default: one for each core]"),
        click.option("--address", help="Of the Dask scheduler: tcp://…"),
    )(command)


def config_options(command: Command) -> Command:
    """Fields of a run's config: `steps`, `train_max`, `device`, `score_scaling`, and `settings` for any other."""
    return together(
        click.option("--steps", type=int, help="The most training steps."),
        click.option("--train-max", type=int, help="The largest scale in training."),
        device_option,
        click.option("--score-scaling", type=click.Choice(["log", "none"]), help="Length-scaled scores, or not."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="FIELD=VALUE",
            help="Any other field of the run's config, such as batch=64 or lr=0.002.",
        ),
    )(command)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def given_settings(settings: tuple[str, ...], **named: Any) -> dict[str, Any]:
    """Fields of a config from options that were given, and from FIELD=VALUE texts."""
    fields = {name: value for name, value in named.items() if value is not None}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"'{text}' is no setting: write --set FIELD=VALUE")
        fields[name.replace("-", "_")] = plain_value(value)
    return fields


def plain_value(text: str) -> Any:
    """A number, true, false or null as JSON has them; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_numbers(text: str) -> list[int]:
    """Whole numbers and ranges.

    >>> read_numbers("10,20,50"), read_numbers("0-3,7")
    ([10, 20, 50], [0, 1, 2, 3, 7])
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UserError(f"'{part}' in '{text}' is no whole number or range such as 0-4")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_bytes(text: str) -> int:
    """An amount of memory.

    >>> read_bytes("2GiB"), read_bytes("512M"), read_bytes("1.5 GB")
    (2147483648, 536870912, 1610612736)
    """
    number, unit = split_number(text.strip().upper().removesuffix("B").removesuffix("I"))
    if number is None or unit not in UNITS or number <= 0:
        raise UserError(f"'{text}' is no amount of memory: write it as 512MiB or 2GiB")
    return int(number * UNITS[unit])


def split_number(text: str) -> tuple[float | None, str]:
    """The number that a text begins with, and the rest."""
    digits = text.rstrip("KMG ")
    try:
        return float(digits), text[len(digits) :].strip()
    except ValueError:
        return None, text
