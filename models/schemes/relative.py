"""Schemes that add to each score a value that depends on the two positions alone."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from lengthlens.models.schemes.scheme import Family, Frame, PositionScheme, Sizes
from lengthlens.tasks import Task


class Relative(PositionScheme):
    """One learned value for each head and distance, clipped at `max_distance`."""

    name: ClassVar[str] = "relative"
    family: ClassVar[Family] = "relative"
    summary: ClassVar[str] = "one learned bias per distance, clipped"
    relation_in_words: ClassVar[str] = "min(i−j, max_distance)"

    @dataclass(frozen=True)
    class Options:
        max_distance: int = 128  # larger than any training length here: each distance has a value of its own

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.table = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, options.max_distance + 1))

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return (query_pos - key_pos + 0 * scale).clamp(max=self.options.max_distance)[..., None]

    def describe(self, code: tuple[int, ...]) -> str:
        return f"distance {code[0]}"

    def score(self, layer: int, frame: Frame, rows: slice, q: Tensor, k: Tensor) -> Tensor | None:
        query, key = frame.position[:, rows, None], frame.position[:, None, : rows.stop]
        distance = (query - key).clamp(0, self.options.max_distance)  # [1|row, query, key]
        return self.table[layer][:, distance].transpose(0, 1)
