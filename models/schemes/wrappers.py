"""Schemes around schemes, such as ``randomized:<scheme>``, and one that has others in its layers."""

import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor, nn

from lengthlens.errors import TooLongError, UserError
from lengthlens.models.devices import sent
from lengthlens.models.schemes.protocols import RotaryPair
from lengthlens.models.schemes.relation import BACK, DISTANCE, Code, CodeTable, Relation
from lengthlens.models.schemes.scheme import LARGEST, Anchorable, Positions, PositionScheme, Sizes, joined, option
from lengthlens.tasks import Task
from lengthlens.values import split_list

Inner: TypeAlias = type[PositionScheme]  # the class of the scheme inside
HIDDEN = -30_000.0  # added to a score that hides a key: finite, so that it can be multiplied, and in range of float16
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
        self.beyond = "bounded" if self.widens else scheme.beyond

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

    @classmethod
    def places(cls, acts: list[str]) -> list[str]:
        """Where the wrapper acts around a scheme that acts there."""
        return acts

    def acts(self) -> list[str]:  # type: ignore[override]
        return self.places(self.inner.acts())

    def acts_in(self, layer: int) -> list[str]:
        return self.places(self.inner.acts_in(layer))

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
    widens = True

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

    def drawn(self, length: int, generator: torch.Generator) -> Tensor:
        """So many positions, on the CPU, so that every device has the same."""
        return torch.randperm(self.options.range, generator=generator, device="cpu")[:length]

    def positions(self, tokens: Tensor, scale: Tensor | None = None) -> Positions:
        length = tokens.shape[1]
        if length > self.options.range:
            drawn_from = f"draws positions from a range of {self.options.range}"
            raise TooLongError(f"scheme '{self.name}' {drawn_from} and cannot place a sequence of {length}")
        generator = self.generator
        if not self.training:
            generator = torch.Generator(device="cpu").manual_seed(self.options.seed * 2**31 + length)
        drawn = self.drawn(length, generator).sort().values
        position, offset = sent(drawn, tokens.device)[None], self.offset(self.options.range)
        return Positions(tokens, position, None, limit=self.options.range, offset=offset)


class Continuous(Randomized):
    """Positions that are any numbers, drawn from a range, in order (Shimizu et al. 2026), in training and after.

    A sequence of 4 tokens may get the positions 17.2 230.9 231.0 1904.4. Otherwise as ``randomized:``. A step
    costs what it costs without.
    """

    prefix = "continuous"
    summary = "the same, with positions that are any numbers, drawn in order from a range"

    @classmethod
    def refusal(cls, scheme: type[PositionScheme]) -> str | None:
        return scheme.no_random or (None if scheme.real_positions else "it has no place between two whole positions")

    def drawn(self, length: int, generator: torch.Generator) -> Tensor:
        return torch.rand(length, generator=generator, device="cpu") * self.options.range


class Windowed(Wrapper):
    """A query sees the `window` keys up to itself, and no others.

    So many layers of it reach so many times further; beside layers that see everything it keeps to what is near (RNoPE-
    SWA, SWAN). Where scores are scaled with length, those of a window are not: its keys do not grow in number.
    """

    prefix = "windowed"
    summary = "the same, with the nearest keys alone"

    @dataclass(frozen=True)
    class Options:
        window: int = option(16, at_least=1, at_most=LARGEST)  # half of what is seen in training

    options: Options

    @classmethod
    def refusal(cls, scheme: type[PositionScheme]) -> str | None:
        far = scheme.family in ("circuit", "learned relation", "task-given", "contextual")
        return scheme.no_window or ("it is made to look for keys wherever they are" if far else None)

    @classmethod
    def words(cls, scheme: type[PositionScheme]) -> str:
        return f"({scheme.relation_in_words}) if i−j < window"

    @classmethod
    def places(cls, acts: list[str]) -> list[str]:
        return [*dict.fromkeys([*acts, "score"])]

    def spreads_in(self, layer: int) -> bool:
        return False

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        code = self.inner.phi(query_pos, key_pos, scale)
        outside = (query_pos - key_pos + 0 * scale >= self.options.window)[..., None]
        return torch.cat([torch.where(outside, 0, code), outside.long()], -1)

    def describe(self, code: Code) -> str:
        return "outside of the window" if code[-1] else self.inner.describe(code[:-1])

    @property
    def kind(self) -> Hashable:
        return self.inner.kind and (self.inner.kind, "within", self.options.window)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        def outside() -> Tensor:
            return (positions.distance(queries) >= self.options.window)[:, None]

        key = ("window", self.options.window, queries.start, queries.stop)
        hidden, score = positions.memo(key, outside, square=True), super().score(layer, positions, queries, q, k)
        return (q.new_zeros(()) if score is None else score).masked_fill(hidden, HIDDEN)


class Dropped(Wrapper):
    """Rotations that training drops after a share of its steps; the rest adapts to their absence (Gelberg et al. 2025).

    Dropped, all tokens stand at position 0, where nothing turns. A step costs what it costs without the wrapper.
    """

    prefix = "dropped"
    summary = "the same, until training drops it and goes on without"
    alive: Tensor  # 1 until it is dropped, 0 after it

    @dataclass(frozen=True)
    class Options:
        at: float = option(0.7, at_least=0, at_most=1)  # share of training; then the learning rate is still at 0.65

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, scheme: Inner, inner: object) -> None:
        super().__init__(sizes, options, task, scheme, inner)
        self.register_buffer("alive", torch.ones((), dtype=torch.long))

    @classmethod
    def refusal(cls, scheme: type[PositionScheme]) -> str | None:
        vanishes = scheme.family == "rotary" and scheme.no_window is None
        return None if vanishes else "only a plain rotation vanishes where all tokens stand at one position"

    @classmethod
    def words(cls, scheme: type[PositionScheme]) -> str:
        return f"{scheme.relation_in_words}, and one code for all pairs once it is dropped"

    def relation(self) -> Relation:
        """That of the network that training ends with."""
        return ANYWHERE

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return super().phi(query_pos, key_pos, scale) * self.alive.to(query_pos.device)

    @property
    def kind(self) -> Hashable:
        return None

    def anneal(self, progress: float) -> None:
        self.alive.fill_(int(progress < self.options.at))
        super().anneal(progress)

    def positions(self, tokens: Tensor, scale: Tensor | None = None) -> Positions:
        placed = self.inner.positions(tokens, scale)
        limit = placed.limit or tokens.shape[1]
        return replace(placed, position=placed.position * sent(self.alive, tokens.device), limit=limit)


class Shifted(Wrapper):
    """Positions that start at a random number in training, one for each batch, and at 0 after it.

    A sequence of 4 tokens may get the positions 17 18 19 20. Every position up to `range` is trained that way, and
    pairs at the same distance are trained to be treated alike, which their codes do not make them.
    """

    prefix = "shifted"
    summary = "the same, with positions that start at a random number in training"
    widens = True

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


class Layers(PositionScheme):
    """Another scheme in each layer: those of a list, in turn, as ``layers(rope,rope,rope,none)``.

    SmolLM3 and Llama 4 have no position embedding in every fourth layer and rope in the others. Layers that share a
    scheme are served by one object, which has tables for so many layers. Vectors that are added to the residual stream
    reach all layers, and positions drawn at random belong to the input, so such schemes cannot stand in the list.
    """

    name = "layers"
    family = "rotary"
    summary = "another scheme in each layer, those of a list in turn"
    relation_in_words = "that of each layer's scheme"
    no_random = no_window = "its schemes can have the wrapper themselves"
    no_hint = "its schemes can have the wrapper themselves"
    spec: ClassVar[Callable[[str], Any]]  # the parser of a scheme with its options (set where it is defined)

    @dataclass(frozen=True)
    class Options:
        of: str = "rope,rope,rope,none"  # schemes with their options, as labels

        def __post_init__(self) -> None:
            for part in split_list(self.of):
                Layers.spec(part)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        listed = split_list(options.of)
        labels = [Layers.spec(listed[layer % len(listed)]).label for layer in range(sizes.n_layers)]
        different = [*dict.fromkeys(labels)]
        self.schemes = nn.ModuleList(
            Layers.spec(label).build(task, replace(sizes, n_layers=labels.count(label))) for label in different
        )
        for label, part in zip(different, self.each):
            added = not {"embed", "embed_qk"}.isdisjoint(part.acts())
            if added or part.learns_relation or isinstance(part, Layers | Randomized | Dropped):
                raise UserError(f"layers() takes schemes that concern a layer alone, which '{label}' does not")
        # The scheme of each layer, and the number that the layer has there.
        self.at = [(different.index(label), labels[:layer].count(label)) for layer, label in enumerate(labels)]
        places = [*dict.fromkeys(act for part in self.each for act in part.acts())]
        self.acts = lambda: places  # type: ignore[method-assign]
        self.uses_scale = any(part.uses_scale for part in self.each)
        self.whole_scale = any(part.whole_scale for part in self.each)
        self.weighs_content = any(part.weighs_content for part in self.each)
        self.has_codes = all(part.has_codes for part in self.each)
        self.hinges_on = next((part.hinges_on for part in self.each if part.hinges_on), None)

    @classmethod
    def acts(cls) -> list[str]:
        return ["rotate"]  # of the list that is the default

    @property
    def each(self) -> list[PositionScheme]:
        """The different schemes."""
        return [cast(PositionScheme, scheme) for scheme in self.schemes]

    @property
    def kind(self) -> Hashable:
        kinds = [part.kind for part in self.each]
        return None if None in kinds else ("layers", *kinds)

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.cat([part.phi(query_pos, key_pos, scale) for part in self.each], -1)

    def describe(self, code: Code) -> str:
        words, rest, one = [], code, torch.ones((), dtype=torch.long)
        for part in self.each:
            width = part.phi(one, one, one).shape[-1]
            words.append(part.describe(rest[:width]))
            rest = rest[width:]
        return "; ".join(dict.fromkeys(words))

    def of_layer(self, layer: int, positions: Positions) -> tuple[PositionScheme, int, Positions]:
        """The scheme of a layer, the layer's number there, and positions on which it keeps what it makes."""
        part, number = self.at[layer]
        if ("part", part) not in positions.cache:
            positions.cache["part", part] = replace(positions, made={}, cache=dict(positions.cache))
        return self.each[part], number, positions.cache["part", part]

    def on_the_host(self, positions: Positions) -> dict[Hashable, Tensor]:
        return {key: value for part in self.each for key, value in part.on_the_host(positions).items()}

    def anneal(self, progress: float) -> None:
        for part in self.each:
            part.anneal(progress)

    def acts_in(self, layer: int) -> list[str]:
        part, number = self.at[layer]
        return self.each[part].acts_in(number)

    def spreads_in(self, layer: int) -> bool:
        part, number = self.at[layer]
        return self.each[part].spreads_in(number)

    def take_in(
        self, layer: int, x: Tensor, positions: Positions, hook: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        part, number, where = self.of_layer(layer, positions)
        part.take_in(number, x, where, hook)

    def keep(self, layer: int, made: Tensor, positions: Positions) -> None:
        part, number, where = self.of_layer(layer, positions)
        part.keep(number, made, where)

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        part, number, where = self.of_layer(layer, positions)
        return part.rotate_in(number, x, where, keys)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        part, number, where = self.of_layer(layer, positions)
        return part.score(number, where, queries, q, k)

    def factor(self, layer: int, positions: Positions, queries: slice) -> Tensor | None:
        part, number, where = self.of_layer(layer, positions)
        return part.factor(number, where, queries)
