"""What every task must keep to, checked by trying: each breach names the method and shows the smallest example."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lengthlens.tasks.task import Batch, Family, Task

SCALES = (0, 1, 2, 3, 5, 9)  # tried, counted from the smallest: a few small ones in a row, then some growth
ROWS = 8  # instances of each, where not all of them can be tried
EVERY = 32  # so many at most are tried all
TWO_DEVICES = ("same device", "two devices", "same meta device", "Expected all tensors", "device type")


class Breach(NamedTuple):
    """What a class does not keep to: the method, and what happened, with an example."""

    method: str
    what: str

    def __str__(self) -> str:
        return f"{self.method}: {self.what}"


class BreachError(Exception):
    """Ends a check at its first breach: the smallest example, since scales are tried in order."""

    def __init__(self, method: str, what: str) -> None:
        super().__init__(f"{method}: {what}")
        self.breach = Breach(method, what)


def demand(holds: bool, method: str, what: str) -> None:
    """A breach unless something holds."""
    if not holds:
        raise BreachError(method, what)


def called(method: str, function: Callable[..., Any], *arguments: Any, where: str, **named: Any) -> Any:
    """What a method gives; whatever it raises is a breach of its own."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise BreachError(method, f"{where} it raises {type(error).__name__}: {first}") from error


def breaches(*checks: Callable[[], None]) -> list[Breach]:
    """The breaches that some checks find, one each at most."""
    found = []
    for check in checks:
        try:
            check()
        except BreachError as error:
            found.append(error.breach)
    return list(dict.fromkeys(found))


def check_task(task: Task) -> list[Breach]:
    """Everything that a task does not keep to; empty for one that is sound.

    Declarations first; then, at several scales, shapes and types of what its methods give, that the circuit writes the
    answer, that the scale is read off the tokens, that text and tokens are each other's, and mixed scales.

    >>> from lengthlens.tasks import TASKS
    >>> check_task(TASKS["addition"])
    []
    """
    declared = breaches(partial(declarations, task))
    if declared:
        return declared
    shaped = breaches(partial(every_shape, task))
    if shaped:
        return shaped
    several = [partial(each_scale, task, look) for look in (scale_of, parse, coupling)]
    return breaches(*several, *(partial(look, task) for look in (circuit, draws, mixed, devices)))


def scales_of(task: Task) -> list[int]:
    largest = task.max_scale
    return [n for n in (task.min_scale + more for more in SCALES) if largest is None or n <= largest]


def each_scale(task: Task, look: Callable[[Task, int, Batch], None]) -> None:
    for n in scales_of(task):
        look(task, n, instances(task, n))


def instances(task: Task, scale: int) -> Batch:
    """Instances to try, in order: all of them where there are few."""
    every = called("valid", task.every_instance, scale, EVERY, where=f"at n = {scale}")
    if every is not None and len(every):
        return every  # type: ignore[no-any-return]
    return called("draw", task.sample, scale, ROWS, generator(), where=f"at n = {scale}")  # type: ignore[no-any-return]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def declarations(task: Task) -> None:
    """Names and tokens."""
    for name in ("name", "family", "summary"):
        own = getattr(task, name, None)
        demand(isinstance(own, str) and bool(own), name, f"it must be a text, not {own!r}")
    families = Family.__args__  # type: ignore[attr-defined]
    demand(task.family in families, "family", f"it must be one of {', '.join(families)}, not {task.family!r}")
    for name in ("symbols", "marks"):
        words = getattr(task, name, None)
        demand(isinstance(words, tuple) and len(words) > 0, name, f"it must be a tuple of texts, not {words!r}")
        for word in words or ():
            good = isinstance(word, str) and word.split() == [word]
            demand(good, name, f"a token must be a text without spaces, not {word!r}")
    for word in task.vocab:
        demand(task.vocab.count(word) == 1, "symbols", f"'{word}' is a token twice: {task.vocab}")


def every_shape(task: Task) -> None:
    for n in scales_of(task):
        shapes(task, n)


def shapes(task: Task, n: int) -> None:
    """What `draw`, `prompt`, `answer` and the lengths say fits together."""
    where, cpu = f"at n = {n}", torch.device("cpu")
    inputs = called("draw", task.draw, n, 3, generator(), cpu, where=where)
    wanted = [3, called("input_length", task.input_length, n, where=where)]
    integers(inputs, wanted, "draw", "input_length", where)
    demand(
        bool((inputs >= 0).all() and (inputs < len(task.symbols)).all()),
        "draw",
        f"{where} it gives the ids {inputs.tolist()[0]}, and the symbols are 0 to {len(task.symbols) - 1}",
    )
    pieces = called("prompt", task.prompt, inputs, n, where=where)
    for piece in pieces:
        known = isinstance(piece, Tensor) or piece in task.ids
        demand(known, "prompt", f"{where} {piece!r} is neither ids nor a token of the task")
    answer = called("answer", task.answer, inputs, n, where=where)
    integers(answer, [3, task.answer_length(n) - 1], "answer", "answer_length − 1, since '$' is not part of it", where)
    demand(
        bool((answer >= 0).all() and (answer < len(task.vocab)).all()),
        "answer",
        f"{where} it gives the ids {answer.tolist()[0]}, and tokens are 0 to {len(task.vocab) - 1}",
    )
    valid = called("valid", task.valid, inputs, n, where=where)
    demand(bool(valid.all()), "valid", f"{where} it refuses {inputs[~valid][:1].tolist()}, which draw gave")


def integers(found: Any, shape: list[int], method: str, by: str, where: str) -> None:
    """Ids [row, *], as another method says."""
    demand(isinstance(found, Tensor), method, f"{where} it must give a tensor, not {type(found).__name__}")
    demand(found.dtype == torch.long, method, f"{where} it must give ids (torch.int64), not {found.dtype}")
    told = f"{where} it gives the shape {list(found.shape)}, and {shape} follows from {by}"
    demand(list(found.shape) == shape, method, told)


def circuit(task: Task) -> None:
    """The circuit has a step for each token of the answer and writes it; one operator's name is one function."""
    known: dict[tuple[str, tuple[str, ...]], tuple[str, str]] = {}
    for n in scales_of(task):
        start, end, steps = task.prompt_length(n), task.length(n), None
        for row in instances(task, n).tokens[:ROWS]:
            words, text = task.words(row), task.render(row)
            prompt, right = " ".join(words[:start]), words[start:]
            if steps is None or task.family == "content-addressed":
                steps = called("circuit", task.circuit, n, words, where=f"on '{prompt}'")
            queries, wanted = steps.query.tolist(), f"the answer is written from queries {start - 1} to {end - 2}"
            whole = queries == list(range(start - 1, end - 1))
            demand(whole, "circuit", (f"at n = {n} it has steps at queries {queries}, and {wanted}"))
            written = called("circuit", steps.run, words, where=f"on '{prompt}'")
            both = f"it writes '{' '.join(written)}', and answer says '{' '.join(right)}'"
            demand(written == right, "circuit", (f"on '{prompt}' {both}"))
            for step in steps:
                read, wrote = tuple(words[s] for s in step.sources), words[step.query + 1]
                before, where = known.setdefault((step.operator, read), (wrote, text))
                same = f"'{before}' in '{where}' and '{wrote}' in '{text}': one name must be one function"
                demand(before == wrote, "circuit", (f"operator '{step.operator}' of {read} is {same}"))


def scale_of(task: Task, n: int, batch: Batch) -> None:
    """The scale follows from the tokens: with the answer, and from the prompt alone."""
    for tokens in (batch.tokens, batch.tokens[:, : task.prompt_length(n)]):
        text = task.render(tokens[0])
        found = called("scale_of", task.scale_of, tokens, where=f"on '{text}'")
        for row in (found != n).nonzero().flatten().tolist():
            raise BreachError(
                "scale_of", f"'{task.render(tokens[row])}' is of scale {n}, and it says {int(found[row])}"
            )


def parse(task: Task, n: int, batch: Batch) -> None:
    """What `render` prints is parsed to the same tokens, with its answer and without."""
    for row in batch.tokens[:ROWS]:
        for tokens in (row, row[: task.prompt_length(n)]):
            text = task.render(tokens)
            found = called("parse", task.parse, text, where=f"on '{text}'").tokens[0]
            demand(torch.equal(found, row), "parse", f"'{text}' becomes '{task.render(found)}'")


def coupling(task: Task, n: int, batch: Batch) -> None:
    """Where a task couples positions, it does so for every token."""
    try:
        found = task.coupled_answer(n)
    except Exception:
        return  # it couples none
    wanted = task.answer_length(n)
    demand(len(found) == wanted, "coupled_answer", f"at n = {n} it has {len(found)} places for {wanted} tokens")


def draws(task: Task) -> None:
    """The same generator gives the same instances."""
    n = scales_of(task)[-1]
    one, other = (task.sample(n, ROWS, generator()).tokens for _ in range(2))
    alike = "the same generator gives other instances each time: it must draw from the generator it is given"
    demand(torch.equal(one, other), "draw", f"at n = {n} {alike}")


def mixed(task: Task) -> None:
    """Rows of different scales, padded at the end, are told apart."""
    wanted = list(reversed(scales_of(task)))[:3]
    batch = called("sample", task.sample, wanted, generator=generator(), where=f"at scales {wanted}")
    found = called("scale_of", task.scale_of, batch.tokens, where="on padded rows").tolist()
    demand(found == wanted, "scale_of", f"padded rows are of scales {wanted}, and it says {found}")


def devices(task: Task) -> None:
    """Nothing is made on the CPU for tokens that are elsewhere."""
    n = scales_of(task)[-1]
    for device in away():
        inputs = task.draw(n, 2, generator(), torch.device("cpu")).to(device)
        for method in ("answer", "valid"):
            other_device(method, partial(getattr(task, method), inputs, n), device)


def away() -> Iterator[str]:
    """A device without storage, which every machine has, and a real one where there is one."""
    yield "meta"
    if torch.cuda.is_available():
        yield "cuda"


def other_device(method: str, function: Callable[[], Any], device: str) -> None:
    """A breach if a method mixes devices. What needs the numbers themselves cannot be tried without storage."""
    try:
        found = function()
    except (RuntimeError, NotImplementedError) as error:
        mixes = any(words in str(error) for words in TWO_DEVICES)
        demand(not mixes, method, f"tensors on another device do not work: {str(error).splitlines()[0]}")
    except Exception:
        return
    else:
        place = found.device.type if isinstance(found, Tensor) else device
        demand(place == device, method, f"for tensors on '{device}' it gives one on '{place}'")
