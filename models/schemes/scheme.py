"""The contract of a position embedding: where it acts in the network, and which position pairs it treats alike."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.devices import sent
from lengthlens.models.schemes.protocols import (
    ChangesInTraining,
    DrawsPositions,
    ExplainsCodes,
    LearnsRelation,
    NamesFewKeys,
    TurnsPairs,
)
from lengthlens.models.schemes.relation import Code, Relation, code_in_words
from lengthlens.tasks import Task
from lengthlens.tasks.scale import size_of

Made = TypeVar("Made")
Family = Literal[
    "none", "absolute", "rotary", "relative", "contextual", "accumulated", "task-given", "circuit", "learned relation"
]
KEPT_LENGTH = 512  # up to so many tokens, numbers for all pairs of them are kept for the other layers: some megabytes
LARGEST = 1_000_000  # of any option that sizes a table: more is a slip of the hand, or a hostile file


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


def option(
    default: Any,
    at_least: float | None = None,
    at_most: float | None = None,
    before: Any = None,
    names: Mapping[str, str] | None = None,
) -> Any:
    """A field of an `Options` dataclass whose numbers are bounded (bounds included).

    One that was added when runs had been stored without it says what they did `before`: at that value it is no part of
    a run's name, so that stored runs have the same name. `names` are short words for long texts.
    """
    about = {"at_least": at_least, "at_most": at_most, "before": before, "names": names or {}}
    return field(default=default, metadata=about)


def readable(numbers: Tensor) -> bool:
    """Whether the host knows the numbers in a tensor, without waiting for a device, and what is computed may depend on
    them."""
    mapped = torch._C._functorch.is_batchedtensor(numbers)  # of many models at once
    return numbers.device.type == "cpu" and not mapped and not torch.compiler.is_compiling()


@dataclass(frozen=True)
class Positions:
    """Where the tokens of one forward pass stand. All that has to be known on the host is known here: what follows is a
    function of tensors alone.

    `tokens` [row, pos]; `position` [1 or row, pos], the ids the scheme uses, 0 1 2 … unless it says otherwise;
    `scale` [1 or row], the input size n, or None for a scheme that does not look at it, and `scales` the same numbers
    where the host has them. `limit` is a number that all position ids stay below; None says that they are 0 1 2 …
    without a gap, so that a distance occurs along a whole diagonal. `offset` is a number that the scheme drew for this
    pass. `cache` is what a scheme gave to this pass by name, such as the results of `on_the_host`.
    """

    tokens: Tensor
    position: Tensor
    scale: Tensor | None
    limit: int | None = None
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    scales: tuple[int, ...] | None = None
    offset: int | Tensor = 0
    made: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def memo(self, key: Hashable, make: Callable[[], Made], square: bool = False) -> Made:
        """What is in `cache` under this key, or what `make` gives, made once for all layers of this pass.

        A key that holds the number of a layer makes it that layer's alone. What grows with the `square` of the number
        of tokens is not kept for long sequences.
        """
        if key in self.cache or (square and self.tokens.shape[1] > KEPT_LENGTH):
            given: Made = self.cache[key] if key in self.cache else make()
            return given
        if key not in self.made:
            self.made[key] = make()
        made: Made = self.made[key]
        return made

    def keep(self, layer: int, made: Any) -> None:
        """Keep for the rest of the pass what was made of a layer's input; `kept` gives it back."""
        self.cache["kept", layer] = made

    def kept(self, layer: int) -> Any:
        if ("kept", layer) not in self.cache:
            raise UserError("what the scheme makes of a layer's input is known in a pass of the network alone")
        return self.cache["kept", layer]

    def alone(self) -> "Positions":
        """The same with nothing made in this pass yet, neither here nor in the positions of which these are made up."""
        cache = {key: each.alone() if isinstance(each, Positions) else each for key, each in self.cache.items()}
        return replace(self, made={}, cache=cache)

    def per_scale(self, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What `make` gives for input sizes [size], as [size, …], made once for each that occurs and spread over rows.

        Where the host does not know the sizes (on the meta device, under a compiler) it is made for each row.
        """
        assert self.scale is not None
        if len(self.scale) == 1 or self.scales is None:
            return make(self.scale)
        numbers, device = torch.tensor(self.scales, device="cpu"), self.tokens.device
        both = self.memo("sizes", lambda: [sent(each, device) for each in torch.unique(numbers, return_inverse=True)])
        return make(both[0])[both[1]]

    def distance(self, queries: slice) -> Tensor:
        """i−j for a block of queries and all keys up to the last of them. [1|row, query, key]"""
        key, position = ("distance", queries.start, queries.stop), self.position
        return self.memo(key, lambda: position[:, queries, None] - position[:, None, : queries.stop], square=True)


class PositionScheme(
    ExplainsCodes, LearnsRelation, NamesFewKeys, ChangesInTraining, DrawsPositions, TurnsPairs, nn.Module, ABC
):
    """A position embedding (PE).

    A scheme may act in six places; each does nothing unless the subclass overrides it:

    ==============  ==========================================================  ===============================
    `read`          makes something of a layer's input, once for each pass      [row, pos, head] or [*, d]
    `embed`         added to the token embedding                                [1|row, pos, d_model]
    `embed_qk`      added to what queries and keys, not values, are made from   [1|row, pos, d_model]
    `rotate`        turns queries and keys                                      [row, pos, head, d]
    `score`         added to the attention scores, for a block of queries       [1|row, 1|head, query, key]
    `factor`        multiplied onto the pattern after the softmax               [1|row, 1|head, query, key]
    ==============  ==========================================================  ===============================

    and it always says its position relation, `phi`: pairs with the same code are treated alike, whatever is learned.
    One scheme object serves all layers; tables that differ by layer have a layer dimension. Every place is given the
    `Positions` of the pass, whose `memo` keeps what is made for that pass. What `read` gives passes ``hook_gate``, so
    that it can be looked at and changed; `positions.kept(layer)` then has it, for `rotate_in` and `score` of the layer.

    `score` and `factor` are asked for one block of `queries` at a time, so that no T×T tensor is ever kept; keys run
    from 0 to ``queries.stop - 1`` and causality is the caller's business.

    A subclass sets the class variables, keeps what it needs in ``__init__``, and is one line in ``SCHEMES``, or has
    ``@lengthlens.register`` above it from outside. What theory, probes and trainers can do with it beyond that, it
    offers by the methods in models/schemes/protocols.py, each of which says "cannot" unless it is overridden.
    """

    name: str
    family: Family
    summary: str
    relation_in_words: str
    uses_scale: bool = False  # whether `positions` has to know the input size n
    whole_scale: bool = False  # whether a size that is a tuple of lengths reaches it whole, and not as the largest
    weighs_content: bool = False  # whether `score` looks at queries and keys, and not at positions alone
    Options: ClassVar[type] = NoOptions  # a frozen dataclass; its fields are the scheme's options

    def __init__(self, sizes: Sizes, options: object, task: Task | None) -> None:
        super().__init__()
        self.sizes, self.options, self.task = sizes, options, task
        # Schemes that draw at random in training draw from it; a trainer may put another in its place.
        self.generator = torch.Generator(device="cpu").manual_seed(0)

    @abstractmethod
    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """The code of each pair: integer tensors that broadcast together in, [*broadcast, component] out."""

    def describe(self, code: Code) -> str:
        """A code in words, for counterexamples: "distance 5"."""
        return code_in_words(code)

    def relation(self) -> Relation:
        """φ with its words, and what is known about it that saves work."""
        about = self.phi, self.relation_in_words, self.describe
        return Relation(*about, uses_scale=self.uses_scale, whole_scale=self.whole_scale, kind=self.kind)

    def positions(self, tokens: Tensor, scale: Tensor | None = None) -> Positions:
        """Where `tokens` [row, pos] stand; the input size n is inferred by the rule of the task where it is not given.

        Best given on the CPU, or inferred from tokens there: then nobody waits for a device to say it.
        """
        numbers, scales = self._told(tokens, scale) if self.uses_scale else (None, None)
        numbers = None if numbers is None else sent(numbers, tokens.device)
        position, offset = torch.arange(tokens.shape[1], device=tokens.device)[None], self.offset(tokens.shape[1])
        return Positions(tokens, position, numbers, scales=scales, offset=offset)

    def on_the_host(self, positions: Positions) -> dict[Hashable, Tensor]:
        """What only the host can make for these positions, by the key with which `Positions.memo` is asked for it.

        [1|row, …] each, of sizes that do not depend on n.
        """
        return {}

    def known_scale(self, tokens: Tensor, scale: Tensor | None) -> Tensor:
        """The scale of each row, [row]; [1] if all rows have the same, which makes one bias do for all of them."""
        return sent(self._told(tokens, scale)[0], tokens.device)

    def _told(self, tokens: Tensor, scale: Tensor | None) -> tuple[Tensor, tuple[int, ...] | None]:
        """The same, where it is, and the numbers in it if the host has them."""
        if scale is None:
            if self.task is None:
                raise UserError(f"scheme '{self.name}' needs the scale: give it, or build the model for a task")
            meta = tokens.device.type == "meta"
            scale = self.task.scale_of(tokens if meta or torch.compiler.is_compiling() else tokens.cpu())
        scale = scale.reshape(-1) if self.whole_scale else size_of(scale.reshape(-1))
        if len(scale) not in (1, len(tokens)):
            raise UserError(f"{len(scale)} scales were given for {len(tokens)} rows: one for each is needed")
        if not readable(scale):
            return scale, None
        scales = tuple(scale.tolist())
        one = scales.count(scales[0]) == len(scales)
        return (scale[:1], scales[:1]) if one else (scale, scales)

    def embed(self, positions: Positions) -> Tensor | None:
        return None

    def embed_qk(self, positions: Positions) -> Tensor | None:
        return None

    def rotate(self, x: Tensor, positions: Positions) -> Tensor:
        return x

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        """`rotate` of queries, or of `keys`, as one layer sees it: the same for both and in all layers, unless a scheme
        says otherwise. It may change the width of a head."""
        return self.rotate(x, positions)

    def read(self, layer: int, x: Tensor, positions: Positions) -> Tensor | None:
        """`x` [row, pos, d_model] is what queries, keys and values of the layer are made from: the normalised stream.

        What is made of a position may depend on it and on those before it.
        """
        return None

    def take_in(
        self, layer: int, x: Tensor, positions: Positions, hook: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Ask `read`, let a hook see what it gives, and keep that for the layer."""
        made = self.read(layer, x, positions)
        if made is not None:
            self.keep(layer, made if hook is None else hook(made), positions)

    def keep(self, layer: int, made: Tensor, positions: Positions) -> None:
        """Keep for a layer what was read, or what stands for it."""
        positions.keep(layer, made)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        """`q` [row, query, head, d_head] of the block, `k` [row, key, head, d_head] of all keys up to its end.

        Both as they enter the dot product: rotated, and `q` already divided by the square root of d_head.
        """
        return None

    def factor(self, layer: int, positions: Positions, queries: slice) -> Tensor | None:
        return None

    @classmethod
    def acts(cls) -> list[str]:
        """The places in which the scheme acts, by name."""
        places = ("embed", "embed_qk", "rotate", "score", "factor", "read")
        acts = [place for place in places if getattr(cls, place) is not getattr(PositionScheme, place)]
        by_layer = cls.rotate_in is not PositionScheme.rotate_in and "rotate" not in acts
        return [*acts, "rotate"] if by_layer else acts

    def acts_in(self, layer: int) -> list[str]:
        """The places in which it acts in one layer: in all the same, unless a scheme says otherwise."""
        return self.acts()

    def spreads_in(self, layer: int) -> bool:
        """Whether a query sees more keys in longer inputs, so that scores may be scaled with their number."""
        return True


class Anchorable(PositionScheme):
    """A scheme that ``hinted:`` makes sense around.

    It has an `anchored` twin, which counts positions from the scale and so may meet negative numbers.
    """

    anchored_in_words: str  # the relation of the anchored twin

    def __init__(self, sizes: Sizes, options: object, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task)
        self.anchored = anchored
        self.relation_in_words = self.anchored_in_words if anchored else self.relation_in_words

    def anchor(self, scale: Tensor) -> Tensor:
        """Where positions are counted from."""
        return scale if self.anchored else 0 * scale


def joined(parts: Iterable[Tensor | None], join: Callable[[Tensor, Tensor], Tensor] = operator.add) -> Tensor | None:
    """The sum (or what `join` makes) of those that are there."""
    given = [part for part in parts if part is not None]
    return reduce(join, given) if given else None


def schemes_in(model: nn.Module) -> list[PositionScheme]:
    """The position embeddings of a model: a wrapper, and those inside it."""
    return [module for module in model.modules() if isinstance(module, PositionScheme)]


def scheme_of(model: object) -> PositionScheme | None:
    """The position embedding of a model of this project; None for any other model."""
    scheme = getattr(model, "pos_embed", None)
    return scheme if isinstance(scheme, PositionScheme) else None
