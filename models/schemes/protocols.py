"""What a scheme may offer beside where it acts and its relation φ: one class for each, and who asks for it.

`PositionScheme` inherits from all of them. Each method here is the answer of a scheme that does not offer it ("cannot",
"none"), so that a scheme overrides what it does offer, and nobody asks for a scheme's class. To read or write a plain
scheme, models/schemes/scheme.py is enough.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lengthlens.models.schemes.relation import Code, CodeTable, LearnedEntry, Pointer, Relation, pruned
from lengthlens.tasks.circuit import Layout, Line


class Related(ABC):
    """What the classes below ask a scheme for."""

    @abstractmethod
    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor: ...

    @abstractmethod
    def describe(self, code: Code) -> str: ...

    @abstractmethod
    def relation(self) -> Relation: ...


class ExplainsCodes(Related):
    """What its codes leave open, for the verdict (theory/verdict.py) and the causes of failures (probes/stretch.py)."""

    phi_name: str | None = None  # what φ is called where other schemes have the same; see `kind`
    hinges_on: str | None = None  # what decides how pairs are treated, where codes that positions give do not
    by_formula: bool = False  # whether few numbers say what it adds at every distance, so that none is left untrained
    has_codes: bool = True  # False: tokens between a key and a query decide, so that φ says only which pair it is
    # What it gives to a code that training never met: "bounded" by what it gave in training (a formula that falls with
    # distance, buckets, entries still as they were at the start), "unbounded" (angles, vectors), or "unknown".
    beyond: str = "unknown"
    widens: bool = False  # whether positions are drawn in training, so that every one it may place is trained
    remedy: str | None = None  # what to call it where it is tried as a way out for a task: "the ideal relation"

    @property
    def kind(self) -> Hashable:
        """Schemes with the same have the same φ for a task, which saves a verdict on each; None promises nothing."""
        about = getattr(self, "anchored", False), getattr(self, "last", None)
        return self.phi_name and (self.phi_name, *about) if any(about) else self.phi_name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if ("phi" in vars(cls) or "codes" in vars(cls)) and "phi_name" not in vars(cls):
            cls.phi_name = None  # another φ than the scheme it inherits from

    @property
    def parts(self) -> "list[Any]":
        """The schemes that it is the sum of, each with another code; itself if there is only one."""
        return [self]

    def shared_relation(self) -> Relation | None:
        """Pairs that it may come to treat alike although their codes differ, as with positions drawn at random."""
        return None

    def trained_as(self) -> Relation:
        """By whose codes pairs count as trained: its φ, or a coarser one where training draws random positions."""
        return self.relation()


class LearnsRelation(Related):
    """A relation of which training chooses a part: for the verdict, pruning (probes/pruning.py) and tables."""

    learns_relation: bool = False  # whether φ itself is learned, so that it is only known once it has been pruned

    def candidates(self) -> dict[str, Relation]:
        """The relations among which training chooses, by name; empty if the relation is fixed."""
        return {}

    def pointers(self) -> list[list[Pointer]]:
        """The pointers to which a head may give weights, a list for each kind of head, beside `candidates`."""
        return []

    def tables(self) -> list[CodeTable]:
        """Its biases as tables, one for each component of its code; none if it does not work by tables."""
        return []

    def prune(self, unchanged: Callable[[], bool]) -> Relation | None:
        """Switch off, in place, what can go while `unchanged()` stays true: the relation left, None if nothing can go.

        A scheme with `tables` need not override it: entries that need not differ become alike.
        """
        tables = self.tables()
        return pruned(self.phi, tables, unchanged) if tables else None

    def entries(self) -> list[LearnedEntry]:
        """What a learned relation consists of, strongest first; none if the relation is fixed."""
        return []


class NamedKeys(NamedTuple):
    """The keys whose code has a bias, query by query; all others are treated alike at every length."""

    key: Tensor  # [query, name]; below 0 or after the query where there is none
    bias: Tensor  # [layer, head, query, name], what the scheme adds there
    valued: Tensor  # [layer, head, query, name], whether the head has a value there, even if that is 0


class NamesFewKeys:
    """All keys but a few are treated alike: for certificates (probes/proof.py), for long inputs (attention.py)."""

    @property
    def pools_others(self) -> bool:
        """Whether all keys without a value weigh together as one, however many they are."""
        return False

    @property
    def means_others(self) -> bool:
        """Whether these have score 0, so that only their mean value counts."""
        return False

    def named_keys(self, query: Tensor, scale: int | Tensor) -> NamedKeys | None:
        """The keys that queries [query] name at an input size, or at one size for each query, [query].

        None if the scheme does not treat all but a few keys alike.
        """
        return None

    def names_in(self, positions: Any, queries: slice) -> NamedKeys | None:
        """The keys that the queries of a pass name, the same in all its rows; None where they are not, or not few.

        `positions` are the pass's `Positions`.
        """
        scales = positions.scales
        if not scales or len(set(scales)) > 1:
            return None
        return self.named_keys(torch.arange(queries.start, queries.stop), scales[0])

    def named_lines(self, layout: Layout) -> list[Line] | None:
        """Lines on which all keys of `named_keys` lie at every n, for a task of this layout; None if it cannot say.

        Which of its keys have which bias may depend on the order of these lines and those of the layout, and on nothing
        else.
        """
        return None


def pooled_keys(other: Tensor) -> Tensor:
    """At keys without a value, the log of how many of them a query sees; 0 elsewhere. [*, query, key]

    Taken off the scores, it makes them weigh as one key with their average, however many there are: at every length,
    attention is then the same function of the keys that have a value. `other` says which they are, of `seen_keys`.

    The first key stands apart, value or not. Heads that have nothing to attend to rest on a mark such as ``^``, by its
    token; pooled, its weight would fade as the keys beside it grow in number.

    >>> valued = torch.tensor([[[False, False, True, False]]])
    >>> pooled_keys(~valued & seen_keys(slice(3, 4), valued.device)).exp().round().tolist()
    [[[1.0, 2.0, 1.0, 2.0]]]
    """
    number = other.sum(-1, keepdim=True, dtype=torch.get_default_dtype()).clamp(min=1)
    return torch.where(other, number.log(), 0)


def seen_keys(queries: slice, device: torch.device) -> Tensor:
    """The keys that each query of a block sees, without the first. [query, key]"""
    query = torch.arange(queries.start, queries.stop, device=device)[:, None]
    key = torch.arange(queries.stop, device=device)
    return (key <= query) & (key > 0)


class ChangesInTraining:
    """What a trainer (runs/trainer.py) tells a scheme, and what it asks."""

    def anneal(self, progress: float) -> None:
        """Told how much of the training is done, from 0 to 1."""

    def penalty(self) -> Tensor | None:
        """What is added to the loss until the learning rate begins to fall, as a price of what is not needed."""
        return None

    def condense(self, unchanged: Callable[[], bool]) -> None:
        """Told, once, that the learning rate begins to fall: what can go while `unchanged()` holds may go.

        Training goes on with what is left.
        """


class DrawsPositions:
    """Positions that are drawn at random: for evaluation (runs/evaluation.py), which averages over draws."""

    placement: int = 0  # which of its draws a pass in evaluation uses, where there are several
    real_positions: bool = False  # whether positions may be any numbers, and not whole ones alone
    no_random: str | None = None  # why `randomized:` makes no sense on it, if it does not
    no_window: str | None = None  # why `windowed:` makes no sense on it, if it does not
    no_hint: str | None = None  # why `hinted:` makes no sense on it, if it does not

    @property
    def placements(self) -> int:
        """Over how many draws exact match is averaged; `placement` says which one a pass uses."""
        return 1

    def offset(self, length: int) -> int:
        """A number to draw for a pass over so many tokens, which `embed` finds in its positions; 0 if none is."""
        return 0


class RotaryPair(NamedTuple):
    """Two dimensions of a head that turn together."""

    dims: list[int]
    frequency: float  # the angle, in radians, by which they turn from one position to the next


class TurnsPairs:
    """A rotation of dimensions in pairs: for the parts of scores by frequency (inside/scores.py)."""

    def rotary_pairs(self, length: int) -> list[RotaryPair] | None:
        """The dimensions of a head that `rotate` turns together, in a sequence of this length; None if none."""
        return None
