"""Schemes that add a vector for each position."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from lengthlens.models.schemes.scheme import Family, Frame, PositionScheme, Sizes
from lengthlens.registry import UserError
from lengthlens.tasks import Task


class NoPosition(PositionScheme):
    """No position embedding: attention sees a set of earlier tokens."""

    name: ClassVar[str] = "none"
    family: ClassVar[Family] = "none"
    summary: ClassVar[str] = "nothing"
    relation_in_words: ClassVar[str] = "one code for all pairs"

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.zeros_like(query_pos + key_pos + scale)[..., None]


class Learned(PositionScheme):
    """One learned vector for each position, up to n_ctx."""

    name: ClassVar[str] = "learned"
    family: ClassVar[Family] = "absolute"
    summary: ClassVar[str] = "one learned vector per position, added to the embedding"
    relation_in_words: ClassVar[str] = "(i, j)"

    def __init__(self, sizes: Sizes, options: object, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.W_pos = nn.Parameter(torch.empty(sizes.n_ctx, sizes.d_model))
        nn.init.normal_(self.W_pos, std=0.02)

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.stack(torch.broadcast_tensors(query_pos + 0 * scale, key_pos + 0 * scale), -1)

    def describe(self, code: tuple[int, ...]) -> str:
        return f"position {code[1]} seen from {code[0]}"

    def embed(self, frame: Frame) -> Tensor | None:
        length = frame.tokens.shape[1]
        if length > len(self.W_pos):
            raise UserError(f"scheme 'learned' has {len(self.W_pos)} positions and cannot process a sequence of {length}")
        return self.W_pos[frame.position]
