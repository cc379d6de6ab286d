"""Schemes that go by a distance: the plain i−j, or, in their anchored twin, i−j−n."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from lengthlens.models.schemes.anchor import Anchorable
from lengthlens.models.schemes.scheme import Family, Frame


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


class Distanced(Anchorable):
    """A scheme for which a pair counts by its distance, and perhaps by where the query is."""

    family: Family = "relative"
    relation_in_words = "i−j"
    anchored_in_words = "|i−j−n|"

    @abstractmethod
    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        """The code of each pair from its distance, [*, component]."""

    def codes_at(self, query_pos: Tensor, key_pos: Tensor, anchor: Tensor) -> Tensor:
        return self.codes(query_pos - key_pos - anchor, query_pos)

    def describe(self, code: tuple[int, ...]) -> str:
        return f"distance {code[0]}"

    def distances(self, frame: Frame, rows: slice) -> Tensor:
        """i−j, or i−j−n in the anchored twin, for a block of queries. [1|row, query, key]"""
        if not self.anchored:
            return frame.distance(rows)
        assert frame.scale is not None
        return frame.distance(rows) - frame.scale[:, None, None]

    def by_distance(self, values: Callable[[Tensor], Tensor], frame: Frame, rows: slice) -> Tensor:
        """A function of distance, from [*] to [head, *], for a block of queries. [1|row, head, query, key]

        Where positions have no gaps it is asked for one distance per diagonal, and once for each scale that occurs.
        """
        if frame.limit is not None:
            return values(self.distances(frame, rows)).transpose(0, 1)
        line = torch.arange(rows.stop - 1, rows.start - rows.stop, -1, device=frame.tokens.device)
        queries = rows.stop - rows.start
        if not self.anchored:
            return along_diagonals(values(line), queries)[None]
        return frame.per_scale(lambda n: along_diagonals(values(line - n[:, None]).transpose(0, 1), queries))


class DistanceBias(Distanced):
    """A scheme that adds to each score one value per head and distance, whatever the tokens are."""

    @abstractmethod
    def values(self, layer: int, distance: Tensor) -> Tensor:
        """The bias of each head at these distances; finite at negative ones too, even if never read. [head, *]"""

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return (distance.abs() if self.anchored else distance)[..., None]

    def score(self, layer: int, frame: Frame, rows: slice, q: Tensor, k: Tensor) -> Tensor | None:
        return self.by_distance(lambda distance: self.values(layer, distance), frame, rows)


class DistanceTable(Distanced):
    """A scheme with something learned for each distance up to `max_distance`, which all longer ones share.

    A table starts at distance `least`: 0, or −max_distance in the anchored twin.
    """

    relation_in_words = "min(i−j, max_distance)"
    anchored_in_words = "clip(i−j−n, ±max_distance)"

    @property
    @abstractmethod
    def last(self) -> int:
        """The option max_distance."""

    @property
    def least(self) -> int:
        return -self.last if self.anchored else 0

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return distance.clamp(self.least if self.anchored else None, self.last)[..., None]

    def place(self, distance: Tensor) -> Tensor:
        """The place in the table of each distance."""
        return distance.clamp(self.least, self.last) - self.least

    def describe(self, code: tuple[int, ...]) -> str:
        edge = " or more" if code[0] == self.last else " or less" if code[0] == -self.last else ""
        return f"distance {code[0]}{edge}"
