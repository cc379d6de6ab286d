"""Stretching: short inputs at the positions of long ones, and the length at which a network will fail.

Interchange (`probes/interchange.py`) says whether a network uses one operator at every step. It may still fail on
longer inputs, since its position embedding gives the sources codes there that were never trained, or never trained
together, or since attention spreads over more keys. All of this can be tried on inputs of the training range.

We define:

- An instance of scale n is *stretched* to scale N if its tokens stand at positions of an instance of scale N: the marks
  at the marks, the symbols of each run at some of the places of that run, in order. A step is looked at if its sources
  then stand where the circuit of scale N has them.
- *Codes only*: the network sees only those keys, as few as in training, with the codes that they have at scale N. What
  fails here fails for its codes.
- *With all keys*: every other position of the long instance is there, too, as a key with its own code; its content
  (key and value vectors) is that of a random symbol of the same run, from another of the instances. What fails only
  here fails since attention spreads.
- The exact match predicted at scale N is p to the power of the number of answer tokens, p the share of tokens right.

Where it loses: on `shift` it predicts failure for eight of eleven networks that carry to n = 20 (and for one of 55
networks on other tasks). Borrowed content is independent of the answer, and what is true of an instance as a whole
(here, that answer and prompt hold the same tokens) is lost; why that matters to these networks is not known yet.

Nothing here runs the network on a long input. Worked example: a copier that attends to the key with i−j−n = 0 has that
code at every N, so exact match 1 is predicted; one that attends to i−j = 10 at n = 10 is predicted to fail at N = 11.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes.scheme import Positions, PositionScheme, scheme_of
from lengthlens.probes.subject import Subject, subject_of, task_of
from lengthlens.runs.evaluation import evaluating
from lengthlens.tasks import Batch, Circuit, Task

FACTORS = (2, 3, 4, 6, 10)  # times the training range
ROWS = 32  # instances; with about eight placements and ten steps each, p is known to about 0.001
EXTRAPOLATES = 0.9

Cause = Literal["codes", "spread"]
Keys = Literal["codes only", "all"]


@dataclass(frozen=True)
class StretchedMatch:
    """Exact match predicted at each length, by which keys the network saw, and what follows."""

    table: pd.DataFrame  # scale, keys, token_accuracy, exact_match
    train_max: int

    def at(self, scale: int, keys: Keys = "all") -> float:
        """The exact match predicted at a scale."""
        rows = self.table[(self.table["scale"] == scale) & (self.table["keys"] == keys)]
        return float(rows["exact_match"].iloc[0])

    @property
    def scales(self) -> list[int]:
        return sorted(map(int, self.table["scale"].unique()))

    @property
    def fails_at(self) -> int | None:
        """The first of the scales where exact match is predicted below 0.9; None if there is none."""
        return next((scale for scale in self.scales if self.at(scale) < EXTRAPOLATES), None)

    @property
    def cause(self) -> Cause | None:
        """Why it fails there: by its codes alone, or since attention spreads over more keys."""
        if self.fails_at is None:
            return None
        return "codes" if self.at(self.fails_at, "codes only") < EXTRAPOLATES else "spread"


def stretched_match(
    model: Callable[..., Any] | Subject,
    task: Task | None = None,
    train_max: int = 10,
    scales: Sequence[int] | None = None,
    *,
    rows: int = ROWS,
    generator: torch.Generator | None = None,
) -> StretchedMatch:
    """Predict exact match at longer scales from inputs of scale `train_max`.

    Arguments:
        model: a model of this project, with its position embedding.
        task: the task; the model's own if None. Its circuit must follow from positions.
        train_max: the scale of the inputs.
        scales: the scales N they are stretched to; 2, 3, 4, 6 and 10 times `train_max` if None.
        rows: how many inputs.
        generator: of the inputs; seed 0 if None.

    Result: a `StretchedMatch`.

    Errors: UserError for a model without a position embedding of this project, or a content-addressed task.

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> found = stretched_match(copy_by_hand("lbpe"), train_max=4, scales=[8, 40])
    >>> found.at(8), found.at(40), found.fails_at
    (1.0, 1.0, None)
    """
    task, subject = task_of(model, task), subject_of(model)
    scheme = scheme_of(subject.model)
    if scheme is None:
        raise UserError("the model has no position embedding of this project, so that its inputs cannot be stretched")
    if task.family == "content-addressed":
        raise UserError(f"the sources of '{task.name}' follow from its tokens, so that its inputs cannot be stretched")
    generator = generator or torch.Generator().manual_seed(0)
    batch = task.sample(train_max, rows, generator)
    chosen = scales or [f * train_max for f in FACTORS if task.max_scale is None or f * train_max <= task.max_scale]
    found = []
    for scale, keys in product(chosen, ("codes only", "all")):
        share = float(np.mean(_shares(subject, task, batch, train_max, scale, keys == "all", generator)))
        match = share ** len(task.circuit(scale))
        found.append({"scale": scale, "keys": keys, "token_accuracy": share, "exact_match": match})
    return StretchedMatch(pd.DataFrame(found, columns=["scale", "keys", "token_accuracy", "exact_match"]), train_max)


def _shares(
    subject: Subject, task: Task, batch: Batch, short: int, long: int, all_keys: bool, generator: torch.Generator
) -> list[float]:
    """The share of instances in which each step is right, for each placement in which it can be looked at."""
    circuit = task.circuit(short)
    query = torch.from_numpy(circuit.query)
    answer, found = batch.tokens[:, query + 1], []
    for places in placements(task, short, long):
        steps = kept_steps(circuit, task.circuit(long), places)
        if steps.any():
            predicted = _predicted(subject, task, batch, long, places, all_keys, generator)[:, query]
            found += (predicted == answer).double().mean(0)[steps].tolist()
    if not found:
        raise UserError(f"no step of '{task.name}' at n={short} has its sources where those of n={long} are")
    return found


# -- where tokens stand ------------------------------------------------------------------------------------------


def placements(task: Task, short: int, long: int) -> Iterator[Tensor]:
    """Positions of the long instance for the tokens of a short one, [pos], in several ways.

    The symbols of a run stand at the first places of the long run, at the last, or spread over it; those of the prompt
    and those of the answer may do so differently, as a mirrored answer needs.

    >>> from lengthlens.tasks import TASKS
    >>> next(placements(TASKS["copy"], 2, 4)).tolist()  # ^ 7 3 = 7 3 $ within ^ 7 3 . . = 7 3 . . $
    [0, 1, 2, 5, 6, 7, 10]
    """
    (few, few_marks), (_, many_marks) = (_marks(task, scale) for scale in (short, long))
    if len(few_marks) != len(many_marks):
        raise UserError(f"'{task.name}' has more marks at n={long} than at n={short}: its inputs cannot be stretched")
    end_of_prompt = task.prompt_length(short) - 1
    seen = set()
    for of_prompt, of_answer in product(WAYS, WAYS):
        places = torch.zeros(few, dtype=torch.long)
        for k, (mark, place) in enumerate(zip(few_marks, many_marks)):
            places[mark] = place
            if k + 1 < len(few_marks):
                size, room = few_marks[k + 1] - mark - 1, many_marks[k + 1] - place - 1
                way = WAYS[of_answer if mark >= end_of_prompt else of_prompt]
                places[mark + 1 : few_marks[k + 1]] = place + 1 + way(size, room)
        if tuple(places.tolist()) not in seen:
            seen.add(tuple(places.tolist()))
            yield places


WAYS: dict[str, Callable[[int, int], Tensor]] = {
    "first": lambda size, room: torch.arange(size),
    "last": lambda size, room: torch.arange(room - size, room),
    "spread": lambda size, room: (torch.arange(size) * (room - 1)) // max(1, size - 1),
    "mirrored": lambda size, room: room - 1 - ((torch.arange(size) * (room - 1)) // max(1, size - 1)).flip(0),
}


def _marks(task: Task, scale: int) -> tuple[int, list[int]]:
    """The length of an instance, and the positions of all tokens that are no symbols."""
    tokens = task.sample(scale, 1, torch.Generator().manual_seed(0)).tokens[0]
    return len(tokens), (tokens >= len(task.symbols)).nonzero()[:, 0].tolist()


def kept_steps(short: Circuit, long: Circuit, places: Tensor) -> Tensor:
    """Which steps of a short circuit have, at their places, the operator and the sources of a step of the long one."""
    known = {step.query: (step.operator, step.sources) for step in long}
    return torch.tensor(
        [
            known.get(int(places[step.query])) == (step.operator, tuple(places[list(step.sources)].tolist()))
            for step in short
        ]
    )


def stand_ins(task: Task, long: int, places: Tensor, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each row and position of the long instance, the row and position of the short ones whose content it has.

    Tokens that stand there are their own; any other is a random token of the same run of a random row. [row, pos] each
    """
    length, marks = _marks(task, long)
    here = {int(place): k for k, place in enumerate(places)}
    of_row = torch.arange(rows)[:, None].repeat(1, length)
    of_pos = torch.zeros(rows, length, dtype=torch.long)
    for first, last in zip(marks, [*marks[1:], length]):
        run = [here[p] for p in range(first + 1, last) if p in here] or [here[first]]
        for place in range(first, last):
            if place in here:
                of_pos[:, place] = here[place]
            else:
                of_row[:, place] = torch.randint(rows, (rows,), generator=generator)
                of_pos[:, place] = torch.tensor(run)[torch.randint(len(run), (rows,), generator=generator)]
    return of_row, of_pos


# -- the network -------------------------------------------------------------------------------------------------


class Stretched(PositionScheme):
    """Another scheme, `inner`, as it acts at chosen `places` of a longer sequence, which stands at `long`."""

    name = "stretched"
    summary = "another scheme, at some positions of a longer sequence"
    relation_in_words = "that of the other scheme, at those positions"

    def __init__(self, inner: PositionScheme, places: Tensor, long: Positions) -> None:
        super().__init__(inner.sizes, inner.options, inner.task)
        self.family, self.places, self.long = inner.family, places, long
        self.wrapped = (inner,)  # a tuple, so that its parameters remain the model's own

    @property
    def inner(self) -> PositionScheme:
        return self.wrapped[0]

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.inner.phi(self.places[query_pos], self.places[key_pos], scale)

    def acts(self) -> list[str]:  # type: ignore[override]
        return self.inner.acts()

    def embed(self, positions: Positions) -> Tensor | None:
        return self._at_places(self.inner.embed(self.long))

    def embed_qk(self, positions: Positions) -> Tensor | None:
        return self._at_places(self.inner.embed_qk(self.long))

    def _at_places(self, vectors: Tensor | None) -> Tensor | None:
        return None if vectors is None else vectors[:, self.places]


def _predicted(
    subject: Subject, task: Task, batch: Batch, long: int, places: Tensor, all_keys: bool, generator: torch.Generator
) -> Tensor:
    """The next token predicted at every position of the short instances, stretched. [row, pos]"""
    model: Any = subject.model
    tokens, places = batch.tokens.to(subject.device), places.to(subject.device)
    filled = stand_ins(task, long, places, len(batch), generator)
    with evaluating(model):
        positions = model.pos_embed.positions(tokens[filled], torch.tensor([long], device=tokens.device))
        scheme = Stretched(model.pos_embed, places, positions)
        hooks = [
            hook for layer in subject.layers(None) for hook in _Layer(model, layer, scheme, filled, all_keys).hooks()
        ]
        with _in_place_of(model, scheme):
            predicted: Tensor = model.run_with_hooks(tokens, fwd_hooks=hooks).argmax(-1).cpu()
    return predicted


@contextmanager
def _in_place_of(model: Any, scheme: Stretched) -> Iterator[None]:
    """The model with another position embedding, for a while."""
    model.pos_embed = scheme
    try:
        yield
    finally:
        model.pos_embed = scheme.inner


class _Layer:
    """Attention of one layer over the keys of the long sequence, from the queries, keys and values of the short one."""

    def __init__(
        self, model: Any, layer: int, scheme: Stretched, filled: tuple[Tensor, Tensor], all_keys: bool
    ) -> None:
        self.model, self.layer, self.scheme, self.filled = model, layer, scheme, filled
        key = torch.arange(filled[0].shape[1], device=scheme.places.device)
        there = torch.isin(key, scheme.places) | all_keys
        self.sees = there & (key <= scheme.places[:, None])  # [present query, long key]
        self.parts: dict[str, Tensor] = {}

    def hooks(self) -> list[tuple[str, Callable[..., Any]]]:
        name = f"blocks.{self.layer}.attn.hook_"
        return [*((f"{name}{part}", self._keep(part)) for part in "qkv"), (f"{name}z", self._mixed)]

    def _keep(self, part: str) -> Callable[..., None]:
        def hook(value: Tensor, hook: Any) -> None:
            self.parts[part] = value[self.filled]  # [row, long pos, head, d_head]

        return hook

    def _mixed(self, z: Tensor, hook: Any) -> Tensor:
        """What each head gives at the queries that are present. [row, pos, head, d_head]"""
        scheme, places, config = self.scheme, self.scheme.places, self.model.config
        q, k = (scheme.inner.rotate(self.parts[part], scheme.long) for part in "qk")
        q, every = q / self.model.cfg.attn_scale, slice(0, q.shape[1])
        scores = q[:, places].transpose(1, 2) @ k.permute(0, 2, 3, 1)  # [row, head, present query, long key]
        bias = scheme.inner.score(self.layer, scheme.long, every, q, k)
        scores = scores if bias is None else scores + bias[..., places, :]
        if config.score_scaling == "log":
            scores = scores * (torch.log(places + 2.0) / math.log(config.train_ctx + 2))[:, None]
        pattern = scores.masked_fill(~self.sees, -math.inf).softmax(-1)
        factor = scheme.inner.factor(self.layer, scheme.long, every)
        pattern = pattern if factor is None else pattern * factor[..., places, :]
        mixed: Tensor = (pattern @ self.parts["v"].transpose(1, 2)).transpose(1, 2)
        return mixed
