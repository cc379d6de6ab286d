"""What every task must keep to, checked by trying: each breach names the method and shows the smallest example."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lengthlens.tasks.task import Batch, Family, Task

BEYOND = (0, 1, 2, 3, 5, 9)  # sizes that are tried, counted from the smallest: a few in a row, then some growth
N_INSTANCES = 8  # of each size, where not all of them can be tried
EVERY = 32  # up to so many instances, all are tried
TWO_DEVICES = ("same device", "two devices", "same meta device", "Expected all tensors", "device type")


class Breach(NamedTuple):
    """What a class does not keep to: the method, and what happened, with an example."""

    method: str
    what: str

    def __str__(self) -> str:
        return f"{self.method}: {self.what}"


class BreachError(Exception):
    """Ends a check at its first breach: the smallest example, since sizes are tried in order."""

    def __init__(self, method: str, what: str) -> None:
        super().__init__(f"{method}: {what}")
        self.breach = Breach(method, what)


def demand(holds: bool, method: str, what: str) -> None:
    """A breach unless something holds."""
    if not holds:
        raise BreachError(method, what)


def called(method: str, function: Callable[..., Any], *arguments: Any, where: str, **named: Any) -> Any:
    """What a method gives; whatever it raises is a breach."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise BreachError(method, f"{where} it raises {type(error).__name__}: {first}") from error


def breaches(*checks: Callable[[], None]) -> list[Breach]:
    """The first breach of each check."""
    every = []
    for check in checks:
        try:
            check()
        except BreachError as error:
            every.append(error.breach)
    return list(dict.fromkeys(every))


def check_task(task: Task) -> list[Breach]:
    """Everything that a task does not keep to; empty for one that is sound.

    Declarations first; then, at several sizes, shapes and types of what its methods give, that the circuit writes the
    answer, that the size is read off the tokens, that text and tokens are each other's, and mixed sizes.

    >>> from lengthlens.tasks import TASKS
    >>> check_task(TASKS["addition"])
    []
    """
    first = breaches(partial(declarations, task)) or breaches(partial(shapes, task))
    return first or breaches(
        *(partial(look, task) for look in (scale_of, parse, coupling, circuit, draws, mixed, devices))
    )


def sizes_of(task: Task) -> list[int]:
    largest = task.max_scale
    return [n for n in (task.min_scale + more for more in BEYOND) if largest is None or n <= largest]


def instances(task: Task, n: int) -> Batch:
    """Instances to try, in order: all of them where there are few."""
    every: Batch | None = called("valid", task.every_instance, n, EVERY, where=f"at n = {n}")
    if every is None or not len(every):
        every = called("draw", task.sample, n, N_INSTANCES, torch.Generator().manual_seed(0), where=f"at n = {n}")
    assert every is not None
    return every


def declarations(task: Task) -> None:
    """Names and tokens."""
    for name in ("name", "family", "summary"):
        text = getattr(task, name, None)
        demand(isinstance(text, str) and bool(text), name, f"it must be a text, not {text!r}")
    families = Family.__args__  # type: ignore[attr-defined]
    demand(task.family in families, "family", f"it must be one of {', '.join(families)}, not {task.family!r}")
    for name in ("symbols", "marks"):
        words = getattr(task, name, None)
        full = isinstance(words, tuple) and (len(words) > 0 or (name == "marks" and task.next_sets))
        demand(full, name, f"it must be a tuple of texts, not {words!r}")
        for word in words or ():
            good = isinstance(word, str) and word.split() == [word]
            demand(good, name, f"a token must be a text without spaces, not {word!r}")
    for word in task.vocab:
        demand(task.vocab.count(word) == 1, "symbols", f"'{word}' is a token twice: {task.vocab}")


def shapes(task: Task) -> None:
    """What `draw`, `prompt`, `answer` and the lengths say fits together."""

    def integers(ids: Any, shape: list[int], below: int, method: str, by: str, range_of: str) -> None:
        """Ids [row, *] from 0 to before `below`, of a shape that follows from another method."""
        demand(isinstance(ids, Tensor), method, f"{where} it must give a tensor, not {type(ids).__name__}")
        demand(ids.dtype == torch.long, method, f"{where} it must give ids (torch.int64), not {ids.dtype}")
        told = f"{where} it gives the shape {list(ids.shape)}, and {shape} follows from {by}"
        demand(list(ids.shape) == shape, method, told)
        told = f"{where} it gives the ids {ids.tolist()[0]}, and {range_of} 0 to {below - 1}"
        demand(bool((ids >= 0).all() and (ids < below).all()), method, told)

    for n in sizes_of(task):
        where = f"at n = {n}"
        inputs = called("draw", task.draw, n, 3, torch.Generator().manual_seed(0), torch.device("cpu"), where=where)
        wanted = [3, called("input_length", task.input_length, n, where=where)]
        integers(inputs, wanted, len(task.symbols), "draw", "input_length", "the symbols are")
        for piece in called("prompt", task.prompt, inputs, n, where=where):
            known = isinstance(piece, Tensor) or piece in task.ids
            demand(known, "prompt", f"{where} {piece!r} is neither ids nor a token of the task")
        answer, by = (
            called("answer", task.answer, inputs, n, where=where),
            "answer_length − 1, since '$' is not part of it",
        )
        integers(answer, [3, task.answer_length(n) - 1], len(task.vocab), "answer", by, "tokens are")
        valid = called("valid", task.valid, inputs, n, where=where)
        demand(bool(valid.all()), "valid", f"{where} it refuses {inputs[~valid][:1].tolist()}, which draw gave")


def circuit(task: Task) -> None:
    """The circuit has a step for each token of the answer and writes it; one operator's name is one function."""
    known: dict[tuple[str, tuple[str, ...]], tuple[str, str]] = {}
    if not task.declares_circuit:
        return
    for n in sizes_of(task):
        start, end, steps = task.prompt_length(n), task.length(n), None
        for row in instances(task, n).tokens[:N_INSTANCES]:
            words, text = task.words(row), task.render(row)
            prompt, right = " ".join(words[:start]), words[start:]
            if steps is None or task.family == "content-addressed":
                steps = called("circuit", task.circuit, n, words, where=f"on '{prompt}'")
            queries, wanted = steps.query.tolist(), f"the answer is written from queries {start - 1} to {end - 2}"
            whole = queries == list(range(start - 1, end - 1))
            demand(whole, "circuit", f"at n = {n} it has steps at queries {queries}, and {wanted}")
            written = called("circuit", steps.run, words, where=f"on '{prompt}'")
            both = f"it writes '{' '.join(written)}', and answer says '{' '.join(right)}'"
            demand(written == right, "circuit", f"on '{prompt}' {both}")
            for step in steps:
                read, wrote = tuple(words[s] for s in step.sources), words[step.query + 1]
                before, where = known.setdefault((step.operator, read), (wrote, text))
                same = f"'{before}' in '{where}' and '{wrote}' in '{text}': one name must be one function"
                demand(before == wrote, "circuit", f"operator '{step.operator}' of {read} is {same}")


def scale_of(task: Task) -> None:
    """The size follows from the tokens: with the answer, and from the prompt alone."""
    for n in sizes_of(task):
        every = instances(task, n).tokens
        for tokens in (every, every if task.next_sets else every[:, : task.prompt_length(n)]):
            told = called("scale_of", task.scale_of, tokens, where=f"on '{task.render(tokens[0])}'")
            for row in (told != n).nonzero().flatten().tolist()[:1]:
                wrong = f"'{task.render(tokens[row])}' is of n = {n}, and it says {int(told[row])}"
                raise BreachError("scale_of", wrong)


def parse(task: Task) -> None:
    """What `render` prints is parsed to the same tokens, with its answer and without."""
    for n in sizes_of(task):
        for row in instances(task, n).tokens[:N_INSTANCES]:
            for tokens in (row, row if task.next_sets else row[: task.prompt_length(n)]):
                text = task.render(tokens)
                parsed = called("parse", task.parse, text, where=f"on '{text}'").tokens[0]
                demand(torch.equal(parsed, row), "parse", f"'{text}' becomes '{task.render(parsed)}'")


def coupling(task: Task) -> None:
    """Where a task couples positions, it does so for every token."""
    for n in sizes_of(task):
        try:
            places = len(task.coupled_answer(n))
        except Exception:
            return  # it couples none
        wanted = task.answer_length(n)
        demand(places == wanted, "coupled_answer", f"at n = {n} it has {places} places for {wanted} tokens")


def draws(task: Task) -> None:
    """The same generator gives the same instances."""
    n = sizes_of(task)[-1]
    one, other = (task.sample(n, N_INSTANCES, torch.Generator().manual_seed(0)).tokens for _ in range(2))
    alike = "the same generator gives other instances each time: it must draw from the generator it is given"
    demand(torch.equal(one, other), "draw", f"at n = {n} {alike}")


def mixed(task: Task) -> None:
    """Rows of different sizes, padded at the end, are told apart."""
    wanted = list(reversed(sizes_of(task)))[:3]
    batch = called("sample", task.sample, wanted, generator=torch.Generator().manual_seed(0), where=f"at n = {wanted}")
    told = called("scale_of", task.scale_of, batch.tokens, where="on padded rows").tolist()
    demand(told == wanted, "scale_of", f"padded rows are of n = {wanted}, and it says {told}")


def devices(task: Task) -> None:
    """Nothing is made on the CPU for tokens that are elsewhere: on a device without storage, or a real one."""
    n = sizes_of(task)[-1]
    for device in ["meta", "cuda"] if torch.cuda.is_available() else ["meta"]:
        inputs = task.draw(n, 2, torch.Generator().manual_seed(0), torch.device("cpu")).to(device)
        for method in ("answer", "valid"):
            other_device(method, partial(getattr(task, method), inputs, n), device)


def other_device(method: str, function: Callable[[], Any], device: str) -> None:
    """A breach if a method mixes devices. What needs the numbers themselves cannot be tried without storage."""
    try:
        made = function()
    except (RuntimeError, NotImplementedError) as error:
        mixes = any(words in str(error) for words in TWO_DEVICES)
        demand(not mixes, method, f"tensors on another device do not work: {str(error).splitlines()[0]}")
    except Exception:
        return
    else:
        place = made.device.type if isinstance(made, Tensor) else device
        demand(place == device, method, f"for tensors on '{device}' it gives one on '{place}'")
