"""Schemes around schemes: ``randomized:<scheme>``, ``shifted:<scheme>`` and ``hinted:<scheme>``."""

import operator
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from lengthlens.errors import TooLongError, UserError
from lengthlens.models.devices import sent
from lengthlens.models.schemes.protocols import RotaryPair
from lengthlens.models.schemes.relation import BACK, DISTANCE, Code, CodeTable, Relation
from lengthlens.models.schemes.scheme import LARGEST, Anchorable, Positions, PositionScheme, Sizes, joined, option
from lengthlens.tasks import Task

Inner: TypeAlias = type[PositionScheme]  # the class of the scheme inside
ANYWHERE = Relation(lambda i, j, n: (0 * (i + j + n))[..., None], "any pair")  # draws give every code to some pair


class Wrapper(PositionScheme):
    """A scheme that changes where another one, `inner`, acts from. Its options stand beside those of `inner`.

    It is made from the class of the inner scheme and that one's options. Where it has several `parts`, what they give
    is added (factors are multiplied).
    """

    prefix: str

    def __init__(self, sizes: Sizes, options: object, task: Task | None, scheme: Inner, inner: object) -> None:
        super().__init__(sizes, options, task)
        self.inner = scheme(sizes, inner, task)
        self.name, self.family = f"{self.prefix}:{scheme.name}", scheme.family
        self.weighs_content = scheme.weighs_content
        self.relation_in_words = self.words(scheme)
        self.by_formula, self.hinges_on, self.has_codes = scheme.by_formula, scheme.hinges_on, scheme.has_codes

    @classmethod
    def refusal(cls, scheme: type[PositionScheme]) -> str | None:
        """Why the wrapper makes no sense around a scheme, or None if it does."""
        raise NotImplementedError

    @classmethod
    def words(cls, scheme: type[PositionScheme]) -> str:
        """The relation in words, around a scheme."""
        return scheme.relation_in_words

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.inner.phi(query_pos, key_pos, scale)

    def describe(self, code: Code) -> str:
        return self.inner.describe(code)

    @property
    def parts(self) -> list[PositionScheme]:
        return [self.inner]

    @property
    def kind(self) -> Hashable:
        kinds = tuple(part.kind for part in self.parts)
        return None if None in kinds else kinds if len(kinds) > 1 else kinds[0]

    @property
    def placements(self) -> int:
        return self.inner.placements

    def acts(self) -> list[str]:  # type: ignore[override]
        return self.inner.acts()

    def acts_in(self, layer: int) -> list[str]:
        return self.inner.acts_in(layer)

    def spreads_in(self, layer: int) -> bool:
        return self.inner.spreads_in(layer)

    def anneal(self, progress: float) -> None:
        self.inner.anneal(progress)

    def offset(self, length: int) -> int:
        return self.inner.offset(length)

    def on_the_host(self, positions: Positions) -> dict[Hashable, Tensor]:
        return self.inner.on_the_host(positions)

    def embed(self, positions: Positions) -> Tensor | None:
        return joined(part.embed(positions) for part in self.parts)

    def embed_qk(self, positions: Positions) -> Tensor | None:
        return joined(part.embed_qk(positions) for part in self.parts)

    def read(self, layer: int, x: Tensor, positions: Positions) -> Tensor | None:
        return self.inner.read(layer, x, positions)

    def rotate(self, x: Tensor, positions: Positions) -> Tensor:
        return self.inner.rotate(x, positions)

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        return self.inner.rotate_in(layer, x, positions, keys)

    def rotary_pairs(self, length: int) -> list[RotaryPair] | None:
        return self.inner.rotary_pairs(length)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        return joined(part.score(layer, positions, queries, q, k) for part in self.parts)

    def factor(self, layer: int, positions: Positions, queries: slice) -> Tensor | None:
        return joined((part.factor(layer, positions, queries) for part in self.parts), operator.mul)


class Randomized(Wrapper):
    """Positions drawn from a larger range, in order (Ruoss et al. 2023), in training and after.

    A sequence of 4 tokens may get the positions 17 230 231 1904, so that long distances occur in short sequences.
    In training every batch has another draw; in evaluation the draw follows from `seed` and the length alone, so
    that results can be had again. (It does depend on the length: a prefix alone is placed otherwise than within a
    longer sequence.)

    Its relation is that of ranks. One draw treats pairs alike by the drawn numbers; over all draws, what pairs have
    in common is the distribution of those: for a scheme of distances it is the same whenever i−j is the same (in
    sequences of one length), since the gaps of ordered draws are exchangeable, and for others whenever i and j are.
    """

    prefix = "randomized"
    summary = "the same, with positions drawn in order from a larger range"

    @dataclass(frozen=True)
    class Options:
        range: int = option(2048, at_least=1, at_most=LARGEST)  # as published; no longer sequence can be placed
        seed: int = option(0, at_least=0, at_most=2**31)  # of the draws in evaluation

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, scheme: Inner, inner: object) -> None:
        super().__init__(replace(sizes, n_ctx=options.range), options, task, scheme, inner)

    @classmethod
    def refusal(cls, scheme: type[PositionScheme]) -> str | None:
        return scheme.no_random

    @classmethod
    def words(cls, scheme: type[PositionScheme]) -> str:
        return "(i, j), by rank" if scheme.family == "absolute" else "i−j, by rank"

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        if self.inner.family == "absolute":
            return super().phi(query_pos, key_pos, scale)
        return (query_pos - key_pos + 0 * scale)[..., None]

    @property
    def kind(self) -> Hashable:
        return self.inner.kind if self.inner.family == "absolute" else BACK

    def describe(self, code: Code) -> str:
        if len(code) == 2:
            return f"the position of rank {code[1]} seen from that of rank {code[0]}"
        return f"{code[0]} places back"

    def shared_relation(self) -> Relation | None:
        return DISTANCE

    def trained_as(self) -> Relation:
        return ANYWHERE

    def positions(self, tokens: Tensor, scale: Tensor | None = None) -> Positions:
        length = tokens.shape[1]
        if length > self.options.range:
            drawn_from = f"draws positions from a range of {self.options.range}"
            raise TooLongError(f"scheme '{self.name}' {drawn_from} and cannot place a sequence of {length}")
        generator = self.generator
        if not self.training:
            generator = torch.Generator(device="cpu").manual_seed(self.options.seed * 2**31 + length)
        # Drawn on the CPU, so that every device has the same.
        drawn = torch.randperm(self.options.range, generator=generator, device="cpu")[:length]
        position, offset = sent(drawn.sort().values, tokens.device)[None], self.offset(self.options.range)
        return Positions(tokens, position, None, limit=self.options.range, offset=offset)


class Shifted(Wrapper):
    """Positions that start at a random number in training, one for each batch, and at 0 after it.

    A sequence of 4 tokens may get the positions 17 18 19 20. Every position up to `range` is trained that way, and
    pairs at the same distance are trained to be treated alike, which their codes do not make them.
    """

    prefix = "shifted"
    summary = "the same, with positions that start at a random number in training"

    @dataclass(frozen=True)
    class Options:
        range: int = option(512, at_least=1, at_most=LARGEST)  # all positions stay below it: instances of n = 100 fit

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, scheme: Inner, inner: object) -> None:
        super().__init__(replace(sizes, n_ctx=options.range), options, task, scheme, inner)

    @classmethod
    def refusal(cls, scheme: type[PositionScheme]) -> str | None:
        if scheme.family == "task-given":
            return "its position ids are already moved at random in training"
        return None if scheme.family == "absolute" else "where a sequence starts makes no difference to it"

    def shared_relation(self) -> Relation | None:
        return DISTANCE

    def trained_as(self) -> Relation:
        return DISTANCE

    def positions(self, tokens: Tensor, scale: Tensor | None = None) -> Positions:
        length, start = tokens.shape[1], 0
        if length > self.options.range:
            raise UserError(f"scheme '{self.name}' has {self.options.range} positions and cannot place {length}")
        if self.training:
            start = int(torch.randint(self.options.range - length + 1, (), generator=self.generator, device="cpu"))
        position = torch.arange(start, start + length, device=tokens.device)[None]
        return Positions(tokens, position, None, limit=self.options.range, offset=self.offset(self.options.range))


class ScaleHinted(Wrapper):
    """Scale Hint: beside the distance i−j, a twin of the scheme with other parameters looks at i−j−n.

    Pairs that agree in both codes are treated alike.
    Example: ``hinted:relative`` with max_distance 3 has the codes (min(i−j, 3), clip(i−j−n, ±3)), and on copying, the
    key to read has the second code 0 at every scale.
    """

    prefix = "hinted"
    summary = "the same, and again with the distance counted from the scale"
    uses_scale = True

    def __init__(self, sizes: Sizes, options: object, task: Task | None, scheme: Inner, inner: object) -> None:
        super().__init__(sizes, options, task, scheme, inner)
        assert issubclass(scheme, Anchorable)
        self.anchored = scheme(sizes, inner, task, anchored=True)

    @property
    def parts(self) -> list[PositionScheme]:
        return [self.inner, self.anchored]

    @classmethod
    def refusal(cls, scheme: type[PositionScheme]) -> str | None:
        anchorable = issubclass(scheme, Anchorable)
        return scheme.no_hint or (None if anchorable else "it has no form that counts from the scale")

    @classmethod
    def words(cls, scheme: type[PositionScheme]) -> str:
        assert issubclass(scheme, Anchorable)
        return f"({scheme.relation_in_words}, {scheme.anchored_in_words})"

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.cat([part.phi(query_pos, key_pos, scale) for part in self.parts], -1)

    def describe(self, code: Code) -> str:
        half = len(code) // 2
        return f"{self.inner.describe(code[:half])}; from the scale, {self.anchored.describe(code[half:])}"

    def shared_relation(self) -> Relation | None:
        """Two curves, of i−j and of |i−j−n|, together tell a key from the one on the other side of n."""
        return Relation(lambda i, j, n: i - j - n, "i−j−n") if self.by_formula else None

    def tables(self) -> list[CodeTable]:
        return [table for part in self.parts for table in part.tables()]
