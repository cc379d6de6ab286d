"""Schemes that go by a distance: the plain i−j, or, when wrapped in ``hinted:``, also i−j−n."""

from abc import abstractmethod

import torch
from torch import Tensor

from lengthlens.models.schemes.scheme import Family, Frame, PositionScheme, Sizes
from lengthlens.tasks import Task


def along_diagonals(line: Tensor, queries: int) -> Tensor:
    """One value for each distance, spread over a block of queries and keys. [*, queries+keys−1] to [*, query, key]

    `line` runs from the last query's distance to key 0 down to the first query's distance to the last key. The
    keys of one query are a window on it, so no index tensor is needed and the gradient is a sum along diagonals.

    >>> along_diagonals(torch.tensor([2, 1, 0, -1, -2]), queries=3)
    tensor([[ 0, -1, -2],
            [ 1,  0, -1],
            [ 2,  1,  0]])
    """
    return line.unfold(-1, line.shape[-1] - queries + 1, 1).flip(-2)


class Distanced(PositionScheme):
    """A scheme for which a pair counts by its distance.

    A `signed` twin of it takes part in ``hinted:``; there the distance to the anchor, i−j−n, may be negative.
    """

    family: Family = "relative"
    relation_in_words = "i−j"
    anchored_in_words = "|i−j−n|"  # the codes of its signed twin

    def __init__(self, sizes: Sizes, options: object, task: Task | None, signed: bool = False) -> None:
        super().__init__(sizes, options, task)
        self.signed = signed

    @abstractmethod
    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        """The code of each pair from its distance, [*, component]."""

    @abstractmethod
    def score_at(self, layer: int, frame: Frame, rows: slice, q: Tensor, shift: Tensor | None) -> Tensor:
        """What is added to the scores, with distances reduced by `shift` [1|row]. [1|row, 1|head, query, key]"""

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.codes(query_pos - key_pos + 0 * scale, query_pos)

    def describe(self, code: tuple[int, ...]) -> str:
        return f"distance {code[0]}"

    def score(self, layer: int, frame: Frame, rows: slice, q: Tensor, k: Tensor) -> Tensor | None:
        return self.score_at(layer, frame, rows, q, None)


class DistanceBias(Distanced):
    """A scheme that adds to each score one value per head and distance, whatever the tokens are."""

    @abstractmethod
    def values(self, layer: int, distance: Tensor) -> Tensor:
        """The bias of each head at these distances; negative ones too, though unread unless `signed`. [head, *]"""

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return (distance.abs() if self.signed else distance)[..., None]

    def score_at(self, layer: int, frame: Frame, rows: slice, q: Tensor, shift: Tensor | None) -> Tensor:
        if frame.limit is None and (shift is None or len(shift) == 1):
            queries = rows.stop - rows.start
            line = torch.arange(rows.stop - 1, -queries, -1, device=frame.tokens.device)
            return along_diagonals(self.values(layer, line if shift is None else line - shift), queries)[None]
        return self.values(layer, shifted(frame, rows, shift)).transpose(0, 1)


def shifted(frame: Frame, rows: slice, shift: Tensor | None) -> Tensor:
    """i−j, or i−j−n with `shift` n. [1|row, query, key]"""
    return frame.distance(rows) if shift is None else frame.distance(rows) - shift[:, None, None]
