"""Schemes that can also count from the scale: those that ``hinted:`` makes sense around."""

from abc import abstractmethod

from torch import Tensor

from lengthlens.models.schemes.scheme import Frame, PositionScheme, Sizes
from lengthlens.tasks import Task


class Anchorable(PositionScheme):
    """A scheme with a `signed` twin, which counts positions from an anchor and so may meet negative numbers.

    A subclass acts through the methods with ``_at``, which take the anchor as `shift` ([1|row], or None for none), and
    overrides the plain ones of the contract to call them without.
    """

    anchored_in_words: str  # the relation of the signed twin, at anchor n

    def __init__(self, sizes: Sizes, options: object, task: Task | None, signed: bool = False) -> None:
        super().__init__(sizes, options, task)
        self.signed = signed

    @abstractmethod
    def codes_at(self, query_pos: Tensor, key_pos: Tensor, shift: Tensor) -> Tensor:
        """The code of each pair as seen from the anchor. [*broadcast, component]"""

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.codes_at(query_pos, key_pos, 0 * scale)

    def embed_at(self, frame: Frame, shift: Tensor | None) -> Tensor | None:
        return None

    def embed_qk_at(self, frame: Frame, shift: Tensor | None) -> Tensor | None:
        return None

    def score_at(
        self, layer: int, frame: Frame, rows: slice, q: Tensor, shift: Tensor | None
    ) -> Tensor | None:
        return None

    def factor_at(self, layer: int, frame: Frame, rows: slice, shift: Tensor | None) -> Tensor | None:
        return None
