"""The contract of a position embedding: where it acts in the network, and which position pairs it treats alike."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.tasks import Task

Made = TypeVar("Made")
Family = Literal["none", "absolute", "rotary", "relative", "contextual", "task-given", "circuit", "learned relation"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the network that a scheme serves. The defaults do where only the relation is asked for."""

    n_layers: int = 2
    n_heads: int = 4
    d_head: int = 16
    d_model: int = 64
    n_ctx: int = 64  # the longest sequence that will ever be asked for


@dataclass(frozen=True)
class NoOptions:
    """The options of a scheme that has none."""


def readable(numbers: Tensor) -> bool:
    """Whether what is computed may depend on the numbers in a tensor, not only on its shape."""
    return numbers.device.type != "meta" and not torch.compiler.is_compiling()


@dataclass(frozen=True)
class Frame:
    """Where the tokens of one forward pass stand.

    `tokens` [row, pos]; `position` [1 or row, pos], the ids the scheme goes by, 0 1 2 … unless it says otherwise;
    `scale` [1 or row], or None for a scheme that does not look at it. `limit` is a number that all position ids stay
    below; None says that they are 0 1 2 … without a gap, so that a distance occurs along a whole diagonal.
    """

    tokens: Tensor
    position: Tensor
    scale: Tensor | None
    limit: int | None = None
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def cached(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once for all layers and dropped with the frame. No parameter may enter it."""
        if key not in self.cache:
            self.cache[key] = make()
        made: Made = self.cache[key]
        return made

    def per_scale(self, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What `make` gives for scales [scale], as [scale, …], made once for each that occurs and spread over rows.

        Where scales cannot be read (on the meta device, under a compiler) it is made for each row.
        """
        assert self.scale is not None
        if len(self.scale) == 1 or not readable(self.scale):
            return make(self.scale)
        distinct, of_row = self.cached("scales", self._distinct_scales)
        made = make(distinct)
        return made if len(distinct) == 1 else made[of_row]

    def _distinct_scales(self) -> tuple[Tensor, Tensor]:
        distinct, of_row = torch.unique(self.scale, return_inverse=True)
        return distinct, of_row

    def distance(self, rows: slice) -> Tensor:
        """i−j for the queries `rows` and all keys up to the last of them. [1|row, query, key]"""
        return self.position[:, rows, None] - self.position[:, None, : rows.stop]


class CodeTable(NamedTuple):
    """What a scheme has learned for each value of one component of its code, as numbers that it adds to scores."""

    values: nn.Parameter  # [layer, head, entry], or [head, entry] where all layers share it
    first: int  # the value of the component at the first entry; the next entry belongs to the next value
    words: str  # the component: "min(i−j, max_distance)"


class PositionScheme(nn.Module, ABC):
    """A position embedding (PE).

    A scheme may act in five places; each does nothing unless the subclass overrides it:

    ==============  ==========================================================  ===============================
    `embed`         added to the token embedding                                [1|row, pos, d_model]
    `embed_qk`      added to what queries and keys, not values, are made from   [1|row, pos, d_model]
    `rotate`        turns queries and keys                                      [row, pos, head, d_head]
    `score`         added to the attention scores, for a block of queries       [1|row, 1|head, query, key]
    `factor`        multiplied onto the pattern after the softmax               [1|row, 1|head, query, key]
    ==============  ==========================================================  ===============================

    and it always says its position relation, `relation`: pairs with the same code are treated alike, whatever is
    learned. One scheme object serves all layers; tables that differ by layer have a layer dimension.

    `score` and `factor` are asked for one block of queries at a time (`rows`), so that no T×T tensor is ever kept;
    keys run from 0 to ``rows.stop - 1`` and causality is the caller's business.

    A subclass sets the class variables, keeps what it needs in ``__init__``, and is one line in ``SCHEMES``.
    """

    name: str
    family: Family
    summary: str
    relation_in_words: str
    uses_scale: bool = False  # whether `frame` has to know the scale
    no_random: str | None = None  # why `randomized:` makes no sense on it, if it does not
    no_hint: str | None = None  # why `hinted:` makes no sense on it, if it does not
    Options: ClassVar[type] = NoOptions  # a frozen dataclass; its fields are the scheme's options

    def __init__(self, sizes: Sizes, options: object, task: Task | None) -> None:
        super().__init__()
        self.sizes = sizes
        self.options = options
        self.task = task
        # Schemes that draw at random in training draw from it; a trainer may put its own in its place.
        self.generator = torch.Generator(device="cpu").manual_seed(0)

    @abstractmethod
    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """The code of each pair: integer tensors that broadcast together in, [*broadcast, component] out."""

    def describe(self, code: tuple[int, ...]) -> str:
        """A code in words, for counterexamples: "distance 5"."""
        return f"code {code[0] if len(code) == 1 else code}"

    def option_values(self) -> dict[str, Any]:
        """The options by name, defaults included: what `make_scheme` needs to make the same scheme again."""
        return asdict(self.options)  # type: ignore[call-overload, no-any-return]

    def tables(self) -> list[CodeTable]:
        """Its biases as tables, one for each component of its code; none if it does not work by tables."""
        return []

    def anneal(self, progress: float) -> None:
        """Told by a trainer how much of the training is done, from 0 to 1."""

    def frame(self, tokens: Tensor, scale: Tensor | None = None) -> Frame:
        """Where `tokens` [row, pos] stand; the scale is inferred by the task's own rule where it is not given."""
        position = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return Frame(tokens, position, self.frame_scale(tokens, scale) if self.uses_scale else None)

    def frame_scale(self, tokens: Tensor, scale: Tensor | None) -> Tensor:
        """The scale of each row, [row]; [1] if all rows have the same, which makes one bias do for all of them."""
        if scale is None:
            if self.task is None:
                raise UserError(f"scheme '{self.name}' needs the scale: give it, or build the model for a task")
            scale = self.task.scale_of(tokens)
        scale = scale.reshape(-1).to(tokens.device)
        if len(scale) not in (1, len(tokens)):
            raise UserError(f"{len(scale)} scales were given for {len(tokens)} rows: one for each is needed")
        return scale[:1] if readable(scale) and bool((scale == scale[0]).all()) else scale

    def embed(self, frame: Frame) -> Tensor | None:
        return None

    def embed_qk(self, frame: Frame) -> Tensor | None:
        return None

    def rotate(self, x: Tensor, frame: Frame) -> Tensor:
        return x

    def score(self, layer: int, frame: Frame, rows: slice, q: Tensor, k: Tensor) -> Tensor | None:
        """`q` [row, query, head, d_head] of the block, `k` [row, key, head, d_head] of all keys up to its end.

        Both as they enter the dot product: rotated, and `q` already divided by the square root of d_head.
        """
        return None

    def factor(self, layer: int, frame: Frame, rows: slice) -> Tensor | None:
        return None

    @classmethod
    def acts(cls) -> list[str]:
        """The places in which the scheme acts, by name."""
        places = ("embed", "embed_qk", "rotate", "score", "factor")
        return [place for place in places if getattr(cls, place) is not getattr(PositionScheme, place)]
