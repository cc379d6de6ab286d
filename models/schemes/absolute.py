"""Schemes that give each position a vector: by its number, or by a position id that the task gives; and no position.

Positions that play the same part in a task share an id, and so a learned vector.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lengthlens.errors import TooLongError, UserError
from lengthlens.models.devices import on_the_cpu, sent
from lengthlens.models.schemes.relation import BOTH, Code, Relation
from lengthlens.models.schemes.scheme import LARGEST, Anchorable, Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import remembered
from lengthlens.tasks.task import example_of


def sinusoid(position: Tensor, width: int) -> Tensor:
    """Sines and cosines of Vaswani et al. (2017), in turns. [*] to [*, width]

    >>> sinusoid(torch.tensor([0, 1]), 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    even = torch.arange(0, width, 2, device=position.device)
    angle = position[..., None] * 10000.0 ** (-even / width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]


class NoPosition(PositionScheme):
    """No position embedding: attention sees a set of earlier tokens."""

    name = "none"
    family, beyond = "none", "bounded"
    summary = "nothing"
    relation_in_words = "one code for all pairs"
    no_random = "it does not look at positions"
    no_hint = "it does not look at positions, so there is no relation to anchor at the scale"

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.zeros_like(query_pos + key_pos + scale)[..., None]

    def describe(self, code: Code) -> str:
        return "any position"


class _Absolute(PositionScheme):
    """A scheme whose code is both positions."""

    family, beyond = "absolute", "unbounded"
    relation_in_words = phi_name = BOTH
    no_window = "vectors in the residual stream serve all layers, and a window is a layer's"

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.stack(torch.broadcast_tensors(query_pos + 0 * scale, key_pos), -1)

    def describe(self, code: Code) -> str:
        return f"position {code[1]} seen from {code[0]}"


class _Table(_Absolute, Anchorable):
    """One learned vector for each position, up to n_ctx; in the anchored twin, for each of i−n.

    Positions begin at `start`. With a `spread` they begin at a random place from there on, up to `spread` further and
    as far as the table goes: in training another one for each batch (Kiyono et al. 2021); in evaluation `draws` fixed
    ones, over which exact match is averaged. The anchored twin counts from the scale and has no start.
    """

    @dataclass(frozen=True)
    class Options:
        start: int = option(0, at_least=0, at_most=LARGEST, before=0)
        spread: int = option(0, at_least=0, at_most=LARGEST, before=0)
        draws: int = option(8, at_least=1, at_most=1000, before=8)  # without a spread there is but one

    options: Options
    phi_name = BOTH
    anchored_in_words = "(i−n, j−n)"

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.least = -sizes.n_ctx if anchored else 0
        self.W_pos = nn.Parameter(torch.empty(sizes.n_ctx - self.least, sizes.d_model))
        nn.init.normal_(self.W_pos, std=0.02)  # as small as token embeddings usually start

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return super().phi(query_pos - self.anchor(scale), key_pos - self.anchor(scale), scale)

    def vectors(self, positions: Positions) -> Tensor:
        length = positions.limit or positions.tokens.shape[1]
        n_ctx, start = self.sizes.n_ctx, 0 if self.anchored else self.options.start
        if start + length > n_ctx:
            held = f"has {n_ctx} positions and cannot process a sequence of {length}"
            raise TooLongError(f"scheme '{self.name}' {held}" + (f" that starts at {start}" if start else ""))
        if not self.anchored:
            return self.W_pos[positions.position + (start + positions.offset)]
        assert positions.scale is not None
        return self.W_pos[(positions.position - positions.scale[:, None]).clamp(min=self.least) - self.least]

    @property
    def placements(self) -> int:
        return self.options.draws if self.options.spread else 1

    def offset(self, length: int) -> int:
        """How far behind `start` the positions of a sequence of this length begin in this pass."""
        if not self.options.spread or self.anchored:
            return 0
        room = min(self.options.spread, self.sizes.n_ctx - self.options.start - length)
        generator = self.generator if self.training else torch.Generator(device="cpu").manual_seed(self.placement)
        return int(torch.rand((), generator=generator, device="cpu") * (room + 1))


class LearnedPositions(_Table):
    """One learned vector for each position, up to n_ctx."""

    name = "learned"
    summary = "one learned vector per position, added to the embedding"

    def embed(self, positions: Positions) -> Tensor | None:
        return self.vectors(positions)


class Shortformer(_Table):
    """One learned vector for each position, for queries and keys only: what values carry is free of position."""

    name = "shortformer"
    summary = "one learned vector per position, added to what queries and keys are made from"

    def embed_qk(self, positions: Positions) -> Tensor | None:
        return self.vectors(positions)


class Sinusoidal(_Absolute):
    """Fixed sines and cosines of each position (Vaswani et al. 2017)."""

    name = "sinusoidal"
    summary = "fixed sines and cosines of the position, added to the embedding"
    no_hint = "sines of i and of i−n add up to a sine of i whose size depends on the scale and may be zero"

    @dataclass(frozen=True)
    class Options:
        amplitude: float = option(1.0, at_least=0)  # as published, for token embeddings of about unit entries

    options: Options

    def embed(self, positions: Positions) -> Tensor | None:
        return self.options.amplitude * sinusoid(positions.position, self.sizes.d_model)


# -- position ids that the task gives -------------------------------------------------------------------------------


@remembered
def coupled_ids(task: Task, scale: int) -> Tensor:
    """The task's coupling, from start 1. [pos]"""
    with on_the_cpu():
        return 1 + task.coupling(scale)


@remembered
def place_in_run(task: Task, scale: int) -> Tensor:
    """The place in the run of symbols."""
    with on_the_cpu():
        return task.run_index(example_of(task, scale)[None])[0]


def pairs_of_ids(ids: Callable[[int], Tensor], query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
    """Both position ids of each pair, [*broadcast, 2], where `ids` gives those of an input size, [pos].

    After the instance comes padding, whose id is 0.
    """
    scales, which = torch.unique(scale, return_inverse=True)
    each = nn.utils.rnn.pad_sequence([ids(n) for n in scales.tolist()], batch_first=True)  # [scale, pos]
    each = nn.functional.pad(each, (0, 1)).to(query_pos.device)  # the last position stands for all after it
    both = [each[which, place.clamp(max=each.shape[1] - 1)] for place in (query_pos, key_pos)]
    return torch.stack(torch.broadcast_tensors(*both), -1)


class _TaskGiven(PositionScheme):
    """One learned vector for each position id. In training all ids are moved up by one random number per batch."""

    family, beyond = "task-given", "bounded"
    whole_scale = True
    no_random = "its position ids are given by the task, and already moved at random in training"
    no_hint = "its position ids are given by the task, which knows the scale"
    options: Any  # have `max_id`, the largest id that has a vector

    def __init__(self, sizes: Sizes, options: Any, task: Task | None) -> None:
        if task is None:
            raise UserError(f"scheme '{self.name}' takes its position ids from a task: build the model for a task")
        super().__init__(sizes, options, task)
        self.W_pos = nn.Parameter(torch.empty(options.max_id + 1, sizes.d_model))
        nn.init.normal_(self.W_pos, std=0.02)

    def ids(self, scale: int) -> Tensor:
        """The ids of an instance, [pos]."""
        raise NotImplementedError

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return pairs_of_ids(self.ids, query_pos, key_pos, scale)

    def describe(self, code: Code) -> str:
        return f"position id {code[1]} seen from {code[0]}"

    def shared_relation(self) -> Relation:
        def difference(query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
            ids = self.phi(query_pos, key_pos, scale)
            here = (ids > 0).all(-1)  # ids of 0 are not moved
            return torch.stack([torch.where(here, ids[..., 0] - ids[..., 1], 0), here.long()], -1)

        words = "difference of the position ids"
        return Relation(difference, words, lambda code: f"position ids that differ by {code[0]}", whole_scale=True)

    def trained_as(self) -> Relation:
        return self.shared_relation()

    @property
    def furthest(self) -> int:
        """How far ids are moved up at most, in training."""
        raise NotImplementedError

    def offset(self, length: int) -> int:
        """In training, ids above 0 are moved up by a random number up to `furthest`."""
        if not self.training or not self.furthest:
            return 0
        return int(torch.randint(self.furthest + 1, (), generator=self.generator, device="cpu"))

    def vectors(self, ids: Tensor, positions: Positions) -> Tensor:
        """The vectors of ids [row, pos], moved."""
        offset = positions.offset
        # No id is larger than the number of tokens and one, so that they need not be read as long as that has a vector.
        furthest = ids.shape[1] + 1 + (offset if isinstance(offset, int) else self.furthest)
        if isinstance(offset, int) and furthest >= len(self.W_pos) and ids.device.type != "meta":
            largest = int(ids.max()) + offset
            if largest >= len(self.W_pos):
                needed = f"and this sequence needs {largest}: raise its option max_id"
                raise TooLongError(f"scheme '{self.name}' has position ids up to {len(self.W_pos) - 1}, {needed}")
        return self.W_pos[torch.where(ids == 0, 0, ids + offset)]


class Coupled(_TaskGiven):
    """Position coupling (Cho et al. 2024): each answer token shares the id of the symbol it belongs with.

    Adding 653 and 049, lowest digit first, from start 1: ``^ 3 5 6 + 9 4 0 = 2 0 7 0 $`` has ids
    1, 2 3 4, 1, 2 3 4, 1, 2 3 4 5 6. The start is drawn from 1 to `max_start` in training. Padding has id 0.
    """

    name = "coupled"
    summary = "one learned vector per position id that the task couples, added to the embedding"
    relation_in_words = "(coupled id of i, coupled id of j)"
    uses_scale = True

    @dataclass(frozen=True)
    class Options:
        max_start: int = option(100, at_least=1, at_most=LARGEST)
        max_id: int = option(512, at_least=1, at_most=LARGEST)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        assert task is not None
        self.ids(task.min_scale)  # a task that couples nothing refuses here

    def ids(self, scale: int) -> Tensor:
        assert self.task is not None
        return coupled_ids(self.task, scale)

    @property
    def furthest(self) -> int:
        return self.options.max_start - 1

    def embed(self, positions: Positions) -> Tensor | None:
        return self.vectors(positions.memo("ids", lambda: self._ids(positions)), positions)

    def on_the_host(self, positions: Positions) -> dict[Hashable, Tensor]:
        return {"ids": self._ids(positions)}

    def _ids(self, positions: Positions) -> Tensor:
        """The id of every token, [1|row, pos]; 0 behind the instance."""
        assert positions.scale is not None
        length, device = positions.tokens.shape[1], positions.tokens.device
        ids = torch.zeros(len(positions.scale), length, dtype=torch.long, device="cpu")
        # On the meta device there is no scale to read, and any ids will do.
        scales = [] if device.type == "meta" else positions.scales or positions.scale.tolist()
        for row, scale in enumerate(scales):
            of_row = self.ids(scale)[:length]
            ids[row, : len(of_row)] = of_row
        return sent(ids, device)


class Abacus(_TaskGiven):
    """Abacus embeddings (McLeish et al. 2024): the place in the run of symbols, counted from 1; 0 for other tokens.

    ``^ 3 5 6 + 9 4 0 = 2 0 7 0 $`` has ids 0, 1 2 3, 0, 1 2 3, 0, 1 2 3 4, 0. In training those above 0 are moved up
    by a random number from 0 to `max_offset`.
    """

    name = "abacus"
    summary = "one learned vector per place in a run of symbols, added to the embedding"
    relation_in_words = "(place of i in its run of symbols, place of j in its own)"

    @dataclass(frozen=True)
    class Options:
        max_offset: int = option(99, at_least=0, at_most=LARGEST)  # the published range of 100
        max_id: int = option(512, at_least=1, at_most=LARGEST)

    options: Options

    def ids(self, scale: int) -> Tensor:
        assert self.task is not None
        return place_in_run(self.task, scale)

    @property
    def furthest(self) -> int:
        return self.options.max_offset

    def embed(self, positions: Positions) -> Tensor | None:
        assert self.task is not None
        return self.vectors(self.task.run_index(positions.tokens), positions)
