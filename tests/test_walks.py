"""The walks in CONTRIBUTING.md are what happens: the functions of each table are called in that order."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc import locate
from types import FrameType
from typing import Any

import pytest

import lengthlens as ll
from lengthlens.probes.table import probe_run
from lengthlens.runs.store import RunStore
from lengthlens.tests.map import PAGE

SMALL = {"task": "copy", "train_max": 2, "steps": 2, "batch": 2, "n_heads": 2, "d_model": 8}


def one_batch(folder: Path) -> Callable[[], object]:
    store = RunStore(folder)
    return lambda: ll.train(ll.RunConfig(scheme="relative", **SMALL), store)


def one_number(folder: Path) -> Callable[[], object]:
    store = RunStore(folder)
    run = ll.train(ll.RunConfig(scheme="relative", **SMALL), store).run

    def walk() -> None:
        probe_run(run, ["src"], force=True)
        ll.draw(ll.study(store, pola_targets=[]), ["growth-src"], out=folder / "figures", formats=["png"])

    return walk


def one_name(folder: Path) -> Callable[[], object]:
    return lambda: ll.build(ll.ModelConfig(task="copy", scheme="relative/max_distance=3"))("^ 7 3 =")


def one_id(folder: Path) -> Callable[[], object]:
    def walk() -> None:
        run = ll.train(ll.RunConfig(scheme="relative", **SMALL), RunStore(folder)).run
        RunStore(folder).find(run.id).model()

    return walk


WALKS = {"one batch": one_batch, "one number": one_number, "one scheme name": one_name, "one run id": one_id}


def table(walk: str) -> list[list[str]]:
    """The rows under the heading of a walk: function, what it does and, of a number, its form afterwards."""
    text = PAGE.read_text("utf-8").partition(f"### {walk.capitalize()}\n")[2].partition("\n#")[0]
    return [
        [cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"
    ]


@contextmanager
def calls(wanted: set[str]) -> Iterator[list[tuple[str, int]]]:
    """Those of the wanted functions that are called, and how many functions of ours are on the stack then."""
    seen: list[tuple[str, int]] = []

    def ours(frame: FrameType | None) -> Iterator[str]:
        while frame:
            name = f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"
            if name.startswith("lengthlens.") and not name.startswith("lengthlens.tests") and "<" not in name:
                yield name.removeprefix("lengthlens.")
            frame = frame.f_back

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in last and (stack := list(ours(frame))) and stack[0] in wanted:
            seen.append((stack[0], len(stack)))

    last = {name.rpartition(".")[2] for name in wanted}
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("walk", WALKS)
def test_functions_are_called_in_the_order_of_the_walk(walk: str, tmp_path: Path) -> None:
    names = [row[0] for row in table(walk)]
    assert len(names) >= 6
    go = WALKS[walk](tmp_path)
    with calls(set(names)) as seen:
        go()
    rest = iter([name for name, _ in seen])
    assert [name for name in names if name not in rest] == []  # each is looked for after the one before it


def test_how_many_calls_lead_from_training_to_the_bias_table(tmp_path: Path) -> None:
    bias = "models.schemes.distance.Relative.values"
    go = one_batch(tmp_path)
    with calls({bias}) as seen:
        go()
    depth = seen[0][1] - 1
    assert depth <= 15 and f"there are {depth} calls" in PAGE.read_text("utf-8")


def test_how_many_forms_a_number_takes_up_to_its_figure() -> None:
    """The form after each function is what the function gives back."""
    forms = []
    for name, _, form in table("one number"):
        if form != "–":
            function: Any = locate(f"lengthlens.{name}")
            function = getattr(function, "fget", None) or getattr(function, "func", function)
            assert form in str(inspect.signature(function).return_annotation), name
            forms += [form] if forms[-1:] != [form] else []
    assert len(forms) - 1 <= 6 and f"changes its form {len(forms) - 1} times" in PAGE.read_text("utf-8")
