"""Schemes whose position ids the task gives: positions that play the same part share an id, and so a learned vector."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lengthlens.errors import TooLongError, UserError
from lengthlens.models.devices import on_the_cpu, sent
from lengthlens.models.schemes.relation import Code, Relation
from lengthlens.models.schemes.scheme import LARGEST, Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import remembered
from lengthlens.tasks.task import example_of


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


class PositionIds:
    """Position ids [pos] that follow from the scale of a task, `ids_of(task, scale)`."""

    def __init__(self, task: Task, ids_of: Callable[[Task, int], Tensor]) -> None:
        self.at = partial(ids_of, task)  # remembered by the functions themselves

    def of_pairs(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """The ids of both positions of each pair, [*broadcast, 2]. Behind the instance comes padding, whose id is 0."""
        scales, which = torch.unique(scale, return_inverse=True)
        ids = nn.utils.rnn.pad_sequence([self.at(n) for n in scales.tolist()], batch_first=True)  # [scale, pos]
        ids = nn.functional.pad(ids, (0, 1)).to(query_pos.device)  # the last position stands for all behind
        each = [ids[which, place.clamp(max=ids.shape[1] - 1)] for place in (query_pos, key_pos)]
        return torch.stack(torch.broadcast_tensors(*each), -1)


class _TaskGiven(PositionScheme):
    """One learned vector for each position id. In training all ids are moved up by one random number per batch."""

    family = "task-given"
    whole_scale = True
    no_random = "its position ids are given by the task, and already moved at random in training"
    no_hint = "its position ids are given by the task, which knows the scale"
    ids_of: "staticmethod[[Task, int], Tensor]"
    options: Any  # have `max_id`, the largest id that has a vector

    def __init__(self, sizes: Sizes, options: Any, task: Task | None) -> None:
        if task is None:
            raise UserError(f"scheme '{self.name}' takes its position ids from a task: build the model for a task")
        super().__init__(sizes, options, task)
        self.ids = PositionIds(task, self.ids_of)
        self.W_pos = nn.Parameter(torch.empty(options.max_id + 1, sizes.d_model))
        nn.init.normal_(self.W_pos, std=0.02)

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.ids.of_pairs(query_pos, key_pos, scale)

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
    ids_of = staticmethod(coupled_ids)
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
        self.ids.at(task.min_scale)  # a task that couples nothing refuses here

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
            own = self.ids.at(scale)[:length]
            ids[row, : len(own)] = own
        return sent(ids, device)


class Abacus(_TaskGiven):
    """Abacus embeddings (McLeish et al. 2024): the place in the run of symbols, counted from 1; 0 for other tokens.

    ``^ 3 5 6 + 9 4 0 = 2 0 7 0 $`` has ids 0, 1 2 3, 0, 1 2 3, 0, 1 2 3 4, 0. In training those above 0 are moved up
    by a random number from 0 to `max_offset`.
    """

    name = "abacus"
    summary = "one learned vector per place in a run of symbols, added to the embedding"
    ids_of = staticmethod(place_in_run)
    relation_in_words = "(place of i in its run of symbols, place of j in its own)"

    @dataclass(frozen=True)
    class Options:
        max_offset: int = option(99, at_least=0, at_most=LARGEST)  # the published range of 100
        max_id: int = option(512, at_least=1, at_most=LARGEST)

    options: Options

    @property
    def furthest(self) -> int:
        return self.options.max_offset

    def embed(self, positions: Positions) -> Tensor | None:
        assert self.task is not None
        return self.vectors(self.task.run_index(positions.tokens), positions)
