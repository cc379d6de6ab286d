"""Schemes whose position ids the task gives: positions that play the same part share an id, and so a learned vector."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import Code
from lengthlens.models.schemes.scheme import LARGEST, Family, Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Task

KEPT_SCALES = 64


class PositionIds(ABC):
    """Position ids that follow from the scale, kept for the scales asked for lately."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._kept: OrderedDict[int, Tensor] = OrderedDict()

    @abstractmethod
    def make(self, scale: int) -> Tensor:
        """The ids of an instance of this scale. [pos]"""

    def at(self, scale: int) -> Tensor:
        """The same, from memory if asked for lately."""
        if scale not in self._kept:
            with torch.device("cpu"):
                self._kept[scale] = self.make(scale)
            if len(self._kept) > KEPT_SCALES:
                self._kept.popitem(last=False)
        return self._kept[scale]

    def of_pairs(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """The ids of both positions of each pair, [*broadcast, 2]. Behind the instance comes padding, whose id is 0."""
        shape = (query_pos + key_pos + scale).shape
        both = torch.stack([query_pos.expand(shape), key_pos.expand(shape)], -1)
        scale, codes = scale.expand(shape), torch.zeros_like(both)
        for n in torch.unique(scale).tolist():
            ids, here = self.at(n).to(both.device), scale == n
            inside = both[here] < len(ids)
            codes[here] = torch.where(inside, ids[both[here].clamp(max=len(ids) - 1)], 0)
        return codes


class CoupledIds(PositionIds):
    """The task's coupling, from start 1."""

    def make(self, scale: int) -> Tensor:
        return 1 + self.task.coupling(scale)


class PlaceInRun(PositionIds):
    """The place in the run of symbols. Which tokens are symbols follows from the scale, so any instance shows it."""

    def make(self, scale: int) -> Tensor:
        instance = self.task.sample(scale, 1, torch.Generator(device="cpu").manual_seed(0), "cpu")
        return self.task.run_index(instance.tokens)[0]


class _TaskGiven(PositionScheme):
    """One learned vector for each position id. In training all ids are moved up by one random number per batch."""

    family: Family = "task-given"
    no_random = "its position ids are given by the task, and already moved at random in training"
    no_hint = "its position ids are given by the task, which knows the scale"
    Ids: type[PositionIds]

    def __init__(self, sizes: Sizes, options: object, task: Task | None, ids: int) -> None:
        super().__init__(sizes, options, task)
        if task is None:
            raise UserError(f"scheme '{self.name}' takes its position ids from a task: build the model for a task")
        self.ids = self.Ids(task)
        self.W_pos = nn.Parameter(torch.empty(ids, sizes.d_model))
        nn.init.normal_(self.W_pos, std=0.02)

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.ids.of_pairs(query_pos, key_pos, scale)

    def describe(self, code: Code) -> str:
        return f"position id {code[1]} seen from {code[0]}"

    def offset(self, largest: int) -> int:
        """A random number from 0 to `largest` in training, 0 otherwise."""
        if not self.training or largest == 0:
            return 0
        return int(torch.randint(largest + 1, (), generator=self.generator, device="cpu"))

    def looked_up(self, ids: Tensor, bound: int) -> Tensor:
        """The vectors of ids [row, pos], which are at most `bound`; refuses ids that have none."""
        if bound >= len(self.W_pos) and ids.device.type != "meta":
            largest = int(ids.max())
            if largest >= len(self.W_pos):
                raise UserError(
                    f"scheme '{self.name}' has position ids up to {len(self.W_pos) - 1}, "
                    f"and this sequence needs {largest}: raise its option max_id"
                )
        return self.W_pos[ids]


class Coupled(_TaskGiven):
    """Position coupling (Cho et al. 2024): each answer token shares the id of the symbol it belongs with.

    Adding 653 and 049, lowest digit first, from start 1: ``^ 3 5 6 + 9 4 0 = 2 0 7 0 $`` has ids
    1, 2 3 4, 1, 2 3 4, 1, 2 3 4 5 6. The start is drawn from 1 to `max_start` in training. Padding has id 0.
    """

    name = "coupled"
    summary = "one learned vector per position id that the task couples, added to the embedding"
    Ids = CoupledIds
    relation_in_words = "(coupled id of i, coupled id of j)"
    uses_scale = True

    @dataclass(frozen=True)
    class Options:
        max_start: int = option(100, at_least=1, at_most=LARGEST)
        max_id: int = option(512, at_least=1, at_most=LARGEST)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task, options.max_id + 1)
        self.ids.at(self.ids.task.min_scale)  # a task that couples nothing refuses here

    def embed(self, positions: Positions) -> Tensor | None:
        offset = self.offset(self.options.max_start - 1)
        ids = self._ids(positions)
        ids = torch.where(ids == 0, 0, ids + offset)
        return self.looked_up(ids, bound=positions.tokens.shape[1] + 1 + offset)

    def _ids(self, positions: Positions) -> Tensor:
        """The ids of each row, cut or filled up with 0 to the length of the tokens. [1|row, pos]"""
        assert positions.scale is not None
        length, device = positions.tokens.shape[1], positions.tokens.device
        if device.type == "meta":  # no scale to read there, and any ids will do
            return torch.zeros(len(positions.scale), length, dtype=torch.long, device=device)
        ids = torch.zeros(len(positions.scale), length, dtype=torch.long, device="cpu")
        for row, scale in enumerate(positions.scale.tolist()):
            own = self.ids.at(scale)[:length]
            ids[row, : len(own)] = own
        return ids.to(device)


class Abacus(_TaskGiven):
    """Abacus embeddings (McLeish et al. 2024): the place in the run of symbols, counted from 1; 0 for other tokens.

    ``^ 3 5 6 + 9 4 0 = 2 0 7 0 $`` has ids 0, 1 2 3, 0, 1 2 3, 0, 1 2 3 4, 0. In training those above 0 are moved up
    by a random number from 0 to `max_offset`.
    """

    name = "abacus"
    summary = "one learned vector per place in a run of symbols, added to the embedding"
    Ids = PlaceInRun
    relation_in_words = "(place of i in its run of symbols, place of j in its own)"

    @dataclass(frozen=True)
    class Options:
        max_offset: int = option(99, at_least=0, at_most=LARGEST)  # the published range of 100
        max_id: int = option(512, at_least=1, at_most=LARGEST)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task, options.max_id + 1)

    def embed(self, positions: Positions) -> Tensor | None:
        offset = self.offset(self.options.max_offset)
        ids = self.ids.task.run_index(positions.tokens)
        return self.looked_up(torch.where(ids == 0, 0, ids + offset), bound=positions.tokens.shape[1] + offset)
