"""Schemes that turn queries and keys by an angle proportional to position, so that products depend on i−j."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.schemes.protocols import RotaryPair
from lengthlens.models.schemes.relation import BACK, Code
from lengthlens.models.schemes.scheme import LARGEST, Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Task


@dataclass(frozen=True)
class RopeOptions:
    """What every rotary scheme can be told."""

    base: float = option(10000.0, at_least=1)
    rotary_dim: int | None = option(None, at_least=2)  # how many dimensions of a head turn; none: all
    adjacent_pairs: bool = False  # (0,1)(2,3)… as in GPT-J, rather than halves (0,d/2)(1,d/2+1)… as in Llama


class Rope(PositionScheme):
    """Pair k of the dimensions turns by position · base^(−2k/d) (Su et al. 2021)."""

    name = "rope"
    family, beyond = "rotary", "unbounded"
    summary = "queries and keys turned in proportion to position"
    relation_in_words = phi_name = BACK
    no_hint = "queries and keys are turned alike, so an anchor at the scale cancels in i−j"
    real_positions = True
    Options = RopeOptions
    options: RopeOptions

    def __init__(self, sizes: Sizes, options: RopeOptions, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.dim = sizes.d_head if options.rotary_dim is None else options.rotary_dim
        if self.dim % 2 or self.dim > sizes.d_head:
            wanted = f"rotary_dim must be even and at most d_head ({sizes.d_head}), not {self.dim}"
            raise UserError(f"scheme '{self.name}' turns dimensions in pairs: {wanted}")

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return (query_pos - key_pos + 0 * scale)[..., None]

    def describe(self, code: Code) -> str:
        return f"distance {code[0]}"

    def frequencies(self, length: int, device: torch.device) -> Tensor:
        """The angle per position of each pair. [pair]"""
        return rope_frequencies(self.options.base, self.dim, device)

    def magnitude(self, length: int) -> float:
        """A factor on what turns; another than 1 sharpens or softens attention."""
        return 1.0

    def rotary_pairs(self, length: int) -> list[RotaryPair] | None:
        half, adjacent = self.dim // 2, self.options.adjacent_pairs
        frequencies = self.frequencies(length, torch.device("cpu")).tolist()
        dims = [[2 * k, 2 * k + 1] if adjacent else [k, k + half] for k in range(half)]
        return [RotaryPair(*each) for each in zip(dims, frequencies)]

    def rotate(self, x: Tensor, positions: Positions) -> Tensor:
        cos, sin = positions.memo(("rope", x.shape[2]), lambda: self._turn(positions, x.shape[2]))
        return self._with_rest(x, turned_by(x[..., : self.dim], cos, sin, self.options.adjacent_pairs))

    def _with_rest(self, x: Tensor, turned: Tensor) -> Tensor:
        return turned if self.dim == x.shape[-1] else torch.cat([turned, x[..., self.dim :]], -1)

    def _turn(self, positions: Positions, heads: int) -> tuple[Tensor, ...]:
        """Cosine and signed sine for each dimension, [1|row, pos, head, dim]. bfloat16 cannot tell 256 from 257."""
        length, device = positions.tokens.shape[1], positions.tokens.device
        angle = positions.position[:, :, None, None] * self.frequencies(length, device)
        return self._turned(angle, self.magnitude(length), heads)

    def _turned(self, angle: Tensor, magnitude: float, heads: int) -> tuple[Tensor, ...]:
        cos, sin = magnitude * angle.cos(), magnitude * angle.sin()
        pairs = (torch.stack(pair, -1 if self.options.adjacent_pairs else -2) for pair in ((cos, cos), (-sin, sin)))
        return tuple(pair.flatten(-2).repeat(1, 1, heads, 1) for pair in pairs)  # heads: long rows are quicker


def turned_by(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
    """Pairs of dimensions turned, `sin` with the sign of its dimension; the same type as `x`, computed in float32.

    >>> turned_by(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.tensor([-1.0, 1.0]), adjacent=False)  # by 90°
    tensor([0., 1.])
    """
    part = x.float()
    other = part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if adjacent else part.roll(x.shape[-1] // 2, -1)
    return (part * cos + other * sin).to(x.dtype)


def rope_frequencies(base: float, dim: int, device: torch.device | None = None) -> Tensor:
    """base^(−2k/dim) for each pair k.

    >>> rope_frequencies(10000.0, 4).tolist()
    [1.0, 0.009999999776482582]
    """
    return 1.0 / base ** (torch.arange(0, dim, 2, device=device).float() / dim)


@dataclass(frozen=True)
class XposOptions(RopeOptions):
    """Products shrink with the distance over `scale_base`."""

    scale_base: float = option(512.0, at_least=1)  # as published


class Xpos(Rope):
    """Rope whose pairs also shrink with distance, the slow ones less (Sun et al. 2022).

    Pair k of a query at i is multiplied by ζ_k^(i/s), that of a key at j by ζ_k^(−j/s), with ζ_k = (2k/d + 0.4) / 1.4,
    so that their product has the factor ζ_k^((i−j)/s).
    """

    name = "xpos"
    summary = "rope whose products also shrink with distance"
    Options = XposOptions
    options: XposOptions

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        factor = positions.memo(("xpos", keys), lambda: self._shrunk(positions, -1.0 if keys else 1.0))
        turned = self.rotate(x, positions)
        shrunk = turned[..., : self.dim].float() * factor
        return torch.cat([shrunk.to(x.dtype), turned[..., self.dim :]], -1)

    def _shrunk(self, positions: Positions, sign: float) -> Tensor:
        """The factor of each dimension that turns, [1|row, pos, 1, dim]."""
        zeta = (torch.arange(0, self.dim, 2, device=positions.tokens.device) / self.dim + 0.4) / 1.4
        both = zeta.repeat_interleave(2) if self.options.adjacent_pairs else zeta.repeat(2)
        return both ** (sign * positions.position[:, :, None, None] / self.options.scale_base)


class GrapeMultiplicative(Rope):
    """Rope with angles that are learned, for each layer, from those of rope on (Zhang et al. 2025).

    This is the form of Multiplicative GRAPE in which the planes are pairs of dimensions.
    """

    name = "grape-multiplicative"
    summary = "rope with learned angles"

    def __init__(self, sizes: Sizes, options: RopeOptions, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        start = rope_frequencies(options.base, self.dim).log()
        # A module of maps, whose parameters have the usual learning rate: at fifteen times it, angles jump.
        self.log_frequency = nn.ModuleList(nn.Linear(1, self.dim // 2, bias=False) for _ in range(sizes.n_layers))
        for each in self.log_frequency:
            each.weight.data = start.clone()[:, None]

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        def turn() -> tuple[Tensor, ...]:
            frequency = cast(nn.Linear, self.log_frequency[layer]).weight[:, 0].exp()
            return self._turned(positions.position[:, :, None, None] * frequency, 1.0, x.shape[2])

        cos, sin = positions.memo(("turn", layer), turn)
        return self._with_rest(x, turned_by(x[..., : self.dim], cos, sin, self.options.adjacent_pairs))

    def rotary_pairs(self, length: int) -> list[RotaryPair] | None:
        return None  # they turn otherwise in each layer


class Pope(PositionScheme):
    """Channels that are lengths and angles: content decides the one, position the other (Gopalakrishnan et al. 2025).

    The score is Σ_c softplus(q_c) softplus(k_c) cos((i−j)θ_c − δ_c) with θ_c = base^(−c/d) and a δ learned for each
    head, within [−2π, 0]. Queries and keys become twice as wide: length times cosine, and length times sine.
    """

    name = "pope"
    family, beyond = "rotary", "unbounded"
    summary = "content gives channels their length, position their angle"
    relation_in_words = phi_name = BACK
    no_hint = "queries and keys are turned alike, so an anchor at the scale cancels in i−j"
    real_positions = True

    @dataclass(frozen=True)
    class Options:
        base: float = option(10000.0, at_least=1)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.delta = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, sizes.d_head))

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return (query_pos - key_pos + 0 * scale)[..., None]

    def describe(self, code: Code) -> str:
        return f"distance {code[0]}"

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        def angles() -> Tensor:
            theta = self.options.base ** (-torch.arange(x.shape[-1], device=x.device) / x.shape[-1])
            return positions.position[:, :, None, None] * theta

        angle, length = positions.memo("pope", angles), nn.functional.softplus(x.float())
        if keys:
            angle = angle + self.delta[layer].clamp(-2 * math.pi, 0)
        return torch.cat([length * angle.cos(), length * angle.sin()], -1).to(x.dtype)


@dataclass(frozen=True)
class StretchOptions(RopeOptions):
    """Longer sequences are squeezed into the angles known from `original_length`, by a factor."""

    original_length: int = option(32, at_least=1, at_most=LARGEST)  # the longest sequence of training, in tokens
    scaling: float | None = option(None, at_least=1)  # the factor; none: length / original_length, once beyond it


class _Stretched(Rope):
    """A rotary scheme for lengths beyond training.

    With `scaling` given, the factor is the same at every length, training included, as in most published models.
    Without, a sequence no longer than `original_length` is treated as by ``rope``, and a longer one by the factor that
    its length asks for; pairs at the same distance then are alike only in sequences of the same length.
    """

    no_window = "it stretches the lengths of training to longer ones, of which a window shows nothing"
    no_random = "it stretches the lengths of training to longer ones, and random positions already cover those"
    Options = StretchOptions
    options: StretchOptions
    phi_name = "i−j at a length"

    @property
    def kind(self) -> Hashable:
        return self.phi_name and (self.phi_name, self.options.original_length, self.options.scaling)

    def stretch(self, length: int) -> float:
        """The factor at a length."""
        return self.options.scaling or max(1.0, length / self.options.original_length)

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        distance = query_pos - key_pos + 0 * scale
        if self.options.scaling is not None:
            return distance[..., None]
        # Without a task the length is not known; pairs of the same scale are of the same length all the same.
        scales, place = torch.unique(scale, return_inverse=True)
        if self.task is not None:
            lengths = [max(self.task.length(n), self.options.original_length) for n in scales.tolist()]
            scales = torch.tensor(lengths, device="cpu").to(place.device)
        return torch.stack([distance, scales[place] + 0 * distance], -1)

    def describe(self, code: Code) -> str:
        if len(code) == 1:
            return f"distance {code[0]}"
        return f"distance {code[0]} in a sequence of {'scale' if self.task is None else 'length'} {code[1]}"


class RopeInterpolated(_Stretched):
    """Position interpolation (Chen et al. 2023): positions divided by the factor."""

    name = "rope-pi"
    summary = "rope with positions divided by a factor"
    relation_in_words = "i−j, over the factor that the length asks for"

    def frequencies(self, length: int, device: torch.device) -> Tensor:
        return super().frequencies(length, device) / self.stretch(length)


class RopeNtk(_Stretched):
    """NTK-aware scaling: base · s^(d/(d−2)), which divides the slowest frequency by s and leaves the fastest alone."""

    name = "rope-ntk"
    summary = "rope with a base enlarged by a factor"
    relation_in_words = "i−j, at the base that the length asks for"

    def frequencies(self, length: int, device: torch.device) -> Tensor:
        exponent = self.dim / (self.dim - 2) if self.dim > 2 else 1.0  # one pair has no slowest other than the fastest
        return rope_frequencies(self.options.base * self.stretch(length) ** exponent, self.dim, device)


@dataclass(frozen=True)
class YarnOptions(StretchOptions):
    """Pairs that turn over `beta_fast` times within the original length stay, below `beta_slow` they are divided."""

    beta_fast: float = option(32.0, at_least=0)
    beta_slow: float = option(1.0, at_least=0)
    attention_factor: float | None = option(None, at_least=0)  # none: 0.1·ln(factor) + 1, as published


class RopeYarn(_Stretched):
    """YaRN (Peng et al. 2023): slow pairs interpolated, fast ones kept, a ramp between, and sharper attention."""

    name = "rope-yarn"
    summary = "rope with slow pairs interpolated, fast ones kept, and sharper attention"
    relation_in_words = "i−j, at the frequencies that the length asks for"
    Options = YarnOptions
    options: YarnOptions

    def frequencies(self, length: int, device: torch.device) -> Tensor:
        plain = super().frequencies(length, device)
        low = max(math.floor(self._pair_that_turns(self.options.beta_fast)), 0)
        high = min(math.ceil(self._pair_that_turns(self.options.beta_slow)), self.dim - 1)
        pair = torch.arange(self.dim // 2, device=device)
        slow = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)  # 0.001: a ramp of no width is a step
        return plain * (1 - slow) + plain / self.stretch(length) * slow

    def magnitude(self, length: int) -> float:
        given = self.options.attention_factor
        return 0.1 * math.log(self.stretch(length)) + 1.0 if given is None else given

    def _pair_that_turns(self, times: float) -> float:
        """The (fractional) pair that turns so many times within the original length."""
        turns = self.options.original_length / (max(times, 1e-9) * 2 * math.pi)
        return self.dim * math.log(turns) / (2 * math.log(max(self.options.base, 1 + 1e-9)))
