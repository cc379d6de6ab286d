"""Every position embedding, by name. A new one is a class and a line in `SCHEMES`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lengthlens.errors import Registry, UserError, unknown
from lengthlens.models.schemes.absolute import Learned, NoPosition, Shortformer, Sinusoidal
from lengthlens.models.schemes.contextual import Cope, RpeSquare
from lengthlens.models.schemes.distance_bias import T5, Alibi, Relative
from lengthlens.models.schemes.distance_kernels import Fire, KerpleLog, KerplePower
from lengthlens.models.schemes.distance_vectors import Shaw, TransformerXL, Urpe
from lengthlens.models.schemes.ideal import Ideal
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.models.schemes.options import later_options, option_names, read_options
from lengthlens.models.schemes.rotary import Rope, RopeInterpolated, RopeNtk, RopeYarn
from lengthlens.models.schemes.scheme import Frame, PositionScheme, Sizes
from lengthlens.models.schemes.taskgiven import Abacus, Coupled
from lengthlens.models.schemes.wrappers import Randomized, ScaleHinted, Wrapper
from lengthlens.tasks import Task

SCHEMES: Registry[type[PositionScheme]] = Registry(
    "scheme",
    {
        scheme.name: scheme
        for scheme in (
            NoPosition,
            Learned,
            Sinusoidal,
            Shortformer,
            Rope,
            RopeInterpolated,
            RopeNtk,
            RopeYarn,
            Alibi,
            T5,
            Relative,
            Shaw,
            TransformerXL,
            KerpleLog,
            KerplePower,
            Fire,
            Cope,
            Urpe,
            Coupled,
            Abacus,
            RpeSquare,
            Ideal,
            LearnedRelation,
        )
    },
)
WRAPPERS: Registry[type[Wrapper]] = Registry(
    "wrapper of schemes", {wrapper.prefix: wrapper for wrapper in (Randomized, ScaleHinted)}
)


class SchemeKind(NamedTuple):
    """What a name stands for: a scheme, possibly inside a wrapper."""

    name: str
    scheme: type[PositionScheme]
    wrapper: type[Wrapper] | None

    @property
    def summary(self) -> str:
        inner = self.scheme.summary
        return inner if self.wrapper is None else f"{inner}; {self.wrapper.summary}"

    @property
    def relation_in_words(self) -> str:
        return self.scheme.relation_in_words if self.wrapper is None else self.wrapper.words(self.scheme)

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, with their defaults."""
        own = {} if self.wrapper is None else vars(self.wrapper.Options())
        return {**vars(self.scheme.Options()), **own}

    def identifying(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options without those that were added later and are at their default.

        >>> sorted(scheme_kind("ideal").identifying({"table_scale": 20, "other": "each"}))
        ['table_scale']
        """
        wrapped = {} if self.wrapper is None else later_options(self.wrapper.Options)
        later = {**later_options(self.scheme.Options), **wrapped}
        return {name: value for name, value in options.items() if name not in later or later[name] != value}


def scheme_names() -> list[str]:
    """The names of all schemes, and of all compositions with a wrapper that make sense."""
    wrapped = [
        f"{prefix}:{name}"
        for prefix, wrapper in WRAPPERS.items()
        for name, scheme in SCHEMES.items()
        if wrapper.refusal(scheme) is None
    ]
    return [*SCHEMES, *wrapped]


def scheme_kind(name: str) -> SchemeKind:
    """What a name stands for.

    >>> scheme_kind("hinted:relative").relation_in_words
    '(min(i−j, max_distance), clip(i−j−n, ±max_distance))'
    """
    prefix, colon, inner = name.partition(":")
    if not colon:
        if name not in SCHEMES:
            raise unknown("scheme", name, scheme_names())
        return SchemeKind(name, SCHEMES[name], None)
    wrapper = WRAPPERS[prefix]
    if ":" in inner:
        # Twice the same says nothing new; and n counts tokens, which random positions do not.
        raise UserError(
            f"scheme '{name}' makes no sense: one wrapper at a time, "
            "since a scale counts tokens and random positions do not"
        )
    reason = wrapper.refusal(SCHEMES[inner])
    if reason is not None:
        raise UserError(f"scheme '{name}' makes no sense: {reason} (that is '{inner}')")
    return SchemeKind(name, SCHEMES[inner], wrapper)


def make_scheme(
    name: str, options: Mapping[str, Any] | None = None, task: Task | None = None, sizes: Sizes | None = None
) -> PositionScheme:
    """The scheme of this name, with options by name (as texts, if need be), for a network of these sizes.

    >>> import torch
    >>> make_scheme("relative", {"max_distance": "3"}).relation(torch.tensor(9), torch.tensor(2), torch.tensor(1))
    tensor([3])
    """
    kind, given, sizes = scheme_kind(name), options or {}, sizes or Sizes()
    for each in given:
        if each not in kind.options:
            raise unknown(f"option of scheme '{name}'", each, kind.options)
    inner = _read(name, kind.scheme.Options, given)
    if kind.wrapper is None:
        return kind.scheme(sizes, inner, task)
    return kind.wrapper.wrap(kind.scheme, sizes, _read(name, kind.wrapper.Options, given), inner, task)


def _read(name: str, kind: type, given: Mapping[str, Any]) -> object:
    """Those of the options that are this dataclass's own."""
    own: object = read_options(name, kind, {key: given[key] for key in option_names(kind) if key in given})
    return own


__all__ = [
    "SCHEMES",
    "WRAPPERS",
    "Frame",
    "PositionScheme",
    "SchemeKind",
    "Sizes",
    "make_scheme",
    "scheme_kind",
    "scheme_names",
]
