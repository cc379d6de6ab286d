"""Which keys a query can tell apart by position.

A scheme that adds a bias for a finite number of codes *names* a bounded number of keys at each query. All other keys,
the *rest*, have no bias: a head sees of them only what their tokens are. Here a key is named if its code has a bias in
any head, if it is the query itself, or if it holds a mark such as ``=`` (of which an instance has a fixed number).

Where all keys without a value weigh together as one (``other=one``), a key is named if any head has a value for it,
even if that is 0. The rest is then pooled in every head; a named key is pooled where a head has no value for it. The
first key never is.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes import PositionScheme
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import Layout, Line, StepRange
from lengthlens.tasks.scale import Ints
from lengthlens.tasks.task import END

NONE = -1  # no such key; of tokens, any symbol
GRAIN = 2.0**30  # biases are taken as multiples of its inverse
LARGEST_BIAS = 2.0**22  # of the sum over all names, so that they are exact; e to that power is beyond any number
# Scales at which a task's layout is compared with its circuit: all small ones, and some that are not.
COMPARED = (*range(1, 65), 100, 128, 333, 1000, 1001, 4096)


class Named(NamedTuple):
    """The keys that queries name, each once."""

    key: Tensor  # [query, name], NONE where a query names fewer than the widest one
    bias: Tensor  # [layer, head, query, name], what the scheme adds there
    pooled: Tensor  # [layer, head, query, name], whether it is one of those that weigh together as one key
    size: Tensor  # [layer, head], the sum of all biases without their signs, at the query where that is the largest

    @property
    def exists(self) -> Tensor:
        return self.key != NONE


def named_at(scheme: PositionScheme, query: Tensor, scale: int | Tensor, marks: Tensor) -> Named:
    """What queries [query] name at a scale or at their own, [query]; the marks of each, [query, mark], among it."""
    found = scheme.named_keys(query, scale)
    assert found is not None  # other schemes are refused before
    key, bias, valued = found
    size = bias.abs().sum(3).amax(2)
    if not bool((size < LARGEST_BIAS).all()):
        raise UserError(f"biases of scheme '{scheme.name}' add up to {float(size.max()):g}: too much to be certified")
    key = torch.cat([key, marks, query[:, None]], 1)
    more = (0, key.shape[1] - bias.shape[3])
    bias, valued = (torch.nn.functional.pad(part, more) for part in (bias, valued))
    valued = valued | (not scheme.pools_others)
    key = torch.where((key >= 0) & (key <= query[:, None]), key, NONE)
    same = (key[:, :, None] == key[:, None, :]) & (key != NONE)[:, None, :]  # [query, name, name]
    again = same.tril(-1).any(2)
    # Whole numbers, which float64 adds without rounding: the same keys have the same sum wherever they are met.
    parts = bias.double().mul(GRAIN).round(), valued.double()
    total, values = (torch.einsum("qmk,lhqk->lhqm", same.double(), part) for part in parts)
    total = (total / GRAIN).to(bias.dtype)
    key, order = torch.where(again, NONE, key).sort(dim=1, descending=True)
    width = int((key != NONE).sum(1).max())
    key, order = key[:, :width], order.expand_as(total)[..., :width]
    return Named(key, total.gather(3, order), (values.gather(3, order) == 0) & (key > 0), size)


class Places:
    """Instances of one scale, as a scheme sees them: the keys named at each position."""

    def __init__(self, scheme: PositionScheme, task: Task, scale: int) -> None:
        self.task, self.scale = task, scale
        any_row = torch.zeros(1, task.input_length(scale), dtype=torch.long)
        self.tokens = task.assemble(any_row, scale).tokens[0, :-1]  # of one instance; nothing reads the end token
        self.length = len(self.tokens)
        self.symbol = self.tokens < len(task.symbols)  # [pos]: any symbol in other instances; else a mark, always
        self.first_answer = task.prompt_length(scale)
        marks = (~self.symbol).nonzero().T.expand(self.length, -1)
        self.named = named_at(scheme, torch.arange(self.length), scale, marks)

    @property
    def answer_queries(self) -> Tensor:
        return torch.arange(self.first_answer - 1, self.length)


@dataclass(frozen=True, eq=False)
class NamedSteps:
    """Answer queries at any scales: what each names, what is known of the tokens there, and what its step reads."""

    query: Tensor  # [step]
    scale: Tensor  # [step]
    named: Named
    token: Tensor  # [step, name], the mark that a named key holds, NONE for any symbol
    own: Tensor  # [step], the same for the query itself
    layout: Layout
    which: Ints  # [step], which of the layout's steps it is
    sources: Tensor  # [step, slot], NONE where it has fewer
    held: Tensor  # [step, slot], the mark there, NONE for any symbol

    @classmethod
    def at(cls, scheme: PositionScheme, task: Task, layout: Layout, query: Ints, scale: Ints) -> "NamedSteps":
        i, n = torch.from_numpy(query), torch.from_numpy(scale)
        marks = torch.stack([line.at(torch.zeros_like(n), n) for _, line in layout.marks], 1)  # [step, mark]
        ids = torch.tensor([task.ids[name] for name, _ in layout.marks])

        def mark_at(position: Tensor) -> Tensor:
            there = position[..., None] == marks.view(len(n), *[1] * (position.dim() - 1), -1)
            return torch.where(there, ids, NONE).amax(-1)

        which, sources = layout.reads(query, scale)
        if (which < 0).any():
            raise UserError(f"the layout of task '{task.name}' has no step for some query of its answer")
        read, named = torch.from_numpy(sources), named_at(scheme, i, n, marks)
        return cls(i, n, named, mark_at(named.key), mark_at(i), layout, which, read, mark_at(read))

    @classmethod
    def of_scale(cls, scheme: PositionScheme, task: Task, scale: int) -> "NamedSteps":
        """All steps of one scale, by the task's circuit."""
        layout = layout_of_scale(task, scale)
        query = np.arange(layout.first.constant, layout.last.constant + 1)
        return cls.at(scheme, task, layout, query, np.full(len(query), scale))

    def only(self, k: int) -> "NamedSteps":
        """One of them."""
        row = slice(k, k + 1)
        key, bias, pooled, size = self.named
        named = Named(key[row], bias[:, :, row], pooled[:, :, row], size)
        parts = self.token[row], self.own[row], self.layout, self.which[row], self.sources[row], self.held[row]
        return NamedSteps(self.query[row], self.scale[row], named, *parts)

    def kinds(self) -> tuple[list[bytes], Ints]:
        """The distinct kinds of steps, spelled out: all that decides what one layer does; and which is whose. [step]"""
        named, slots = self.named, self.sources.shape[1]
        exists = named.exists.numpy()
        role = (named.key[:, :, None] == self.sources[:, None]) & (self.sources >= 0)[:, None]  # [step, name, slot]
        of_key = [self.token, named.key == self.query[:, None], role.long() @ 2 ** torch.arange(slots)]
        of_head = [named.bias.double().flatten(0, 1).view(torch.long), named.pooled.flatten(0, 1).long()]
        parts = [*(part.long()[None] for part in of_key), *of_head]
        facts = torch.cat(parts).permute(1, 2, 0).contiguous().numpy()  # [step, name, fact]
        facts[~exists] = -1  # as bytes, behind all others
        # The order of keys makes no difference, and neither does how many there are at other steps.
        keys = np.sort(facts.view(np.dtype((np.void, facts.itemsize * facts.shape[2])))[..., 0], axis=1)
        read = torch.cat([self.sources, self.query[:, None]], 1)
        first = (read[:, :, None] == read[:, None]).long().argmax(2)  # the first slot with the same source
        last = self.query == self.layout.last.at(self.query, self.scale)
        facts = torch.cat([first, self.held, self.own[:, None], last[:, None]], 1).numpy()
        operators = np.array([operator.encode() for operator, *_ in self.layout.steps])[self.which]
        number = exists.sum(1).tolist()
        rows = [
            b"|".join([name, bytes(fact), bytes(key[:m])]) for name, fact, key, m in zip(operators, facts, keys, number)
        ]
        numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        return list(numbers), np.array([numbers[row] for row in rows])


def layout_of_scale(task: Task, scale: int) -> Layout:
    """What a task's circuit says at one scale, as a layout of that scale alone."""
    any_row = torch.zeros(1, task.input_length(scale), dtype=torch.long)
    tokens = task.assemble(any_row, scale).tokens[0]
    prompt = task.prompt_length(scale)
    marks = (tokens[:-1] >= len(task.symbols)).nonzero()[:, 0].tolist()
    steps = [
        StepRange(
            step.operator, Line(0, 0, step.query), Line(0, 0, step.query), tuple(Line(0, 0, s) for s in step.sources)
        )
        for step in task.circuit(scale)
    ]
    named = tuple((task.vocab[int(tokens[at])], Line(0, 0, at)) for at in marks)
    return Layout(named, Line(0, 0, prompt), Line(0, 0, len(tokens)), tuple(steps), scale)


def checked_layout(task: Task) -> Layout:
    """The layout of a task, if it has one and its circuit, marks and lengths agree with it."""
    layout = task.layout()
    if layout is None:
        raise UserError(f"task '{task.name}' does not say where its steps are at every scale (`Task.layout`)")
    largest = math.inf if task.max_scale is None else task.max_scale
    for scale in COMPARED:
        if max(layout.since, task.min_scale) <= scale <= largest and not _agrees(task, layout, scale):
            raise UserError(f"the layout of task '{task.name}' is not that of its circuit at scale {scale}")
    return layout


def _agrees(task: Task, layout: Layout, scale: int) -> bool:
    circuit = task.circuit(scale)
    which, sources = layout.reads(circuit.query, np.full(len(circuit), scale))
    tokens = task.sample(scale, 2, torch.Generator().manual_seed(scale)).tokens
    marks = np.full(tokens.shape[1], NONE)
    for name, line in layout.marks:
        marks[line.at(0, scale)] = task.ids[name]
    marks[-1] = task.ids[END]
    operators = [operator.name for operator in circuit.operators]
    ends = layout.answer.at(0, scale), layout.length.at(0, scale), layout.first.at(0, scale), layout.last.at(0, scale)
    return (
        ends == (task.prompt_length(scale), task.length(scale), circuit.query[0], circuit.query[-1])
        and bool((which >= 0).all())
        and sources.shape == circuit.sources.shape
        and bool((sources == circuit.sources).all())
        and [layout.steps[k].operator for k in which] == [operators[k] for k in circuit.operator]
        and bool((np.where(tokens < len(task.symbols), NONE, tokens) == marks).all())
    )


def carried(position: Tensor, scale: int, to: int) -> Tensor:
    """Where positions of an instance of one scale lie in a larger one: near a multiple of the scale they stay as near.

    >>> carried(torch.tensor([1, 39, 41, 60, 82]), 40, 1000).tolist()
    [1, 999, 1001, 1500, 2002]
    """
    part, offset, near = position // scale, position % scale, scale // 4
    middle = near + (offset - near) * (to - 2 * near) / (scale - 2 * near)
    inside = torch.where(offset <= near, offset, torch.where(offset >= scale - near, to - scale + offset, middle))
    return part * to + inside.long()
