"""Schemes that can also count from the scale: those that ``hinted:`` makes sense around."""

from abc import abstractmethod

from torch import Tensor

from lengthlens.models.schemes.scheme import PositionScheme, Sizes
from lengthlens.tasks import Task


class Anchorable(PositionScheme):
    """A scheme with an `anchored` twin, which counts positions from the scale and so may meet negative numbers."""

    anchored_in_words: str  # the relation of the anchored twin

    def __init__(self, sizes: Sizes, options: object, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task)
        self.anchored = anchored

    @property
    def in_words(self) -> str:
        """The relation that it goes by: its own, or that of the anchored twin."""
        return self.anchored_in_words if self.anchored else self.relation_in_words

    @abstractmethod
    def codes_at(self, query_pos: Tensor, key_pos: Tensor, anchor: Tensor) -> Tensor:
        """The code of each pair as seen from an anchor. [*broadcast, component]"""

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.codes_at(query_pos, key_pos, scale if self.anchored else 0 * scale)
