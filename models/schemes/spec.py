"""Every position embedding by name, and a name with its options as one value.

`SCHEMES` maps names to classes. A new scheme is a subclass of `PositionScheme` and a line: below, or
``SCHEMES.add("mine", Mine)`` from outside. From then on it can be named wherever a scheme is named: in a `ModelConfig`,
a run, the verdict, the listing. An unknown name, or one that is taken, raises a `UserError` with the nearest one.

>>> SCHEMES["rope"].relation_in_words
'i−j'

`SchemeSpec` is a name and its options, parsed, checked, completed, printed and built in one place. Options are the
fields of a scheme's `Options`, a frozen dataclass; they are read from JSON values or from texts.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import torch

from lengthlens.errors import Registry, UserError, unknown
from lengthlens.models.schemes.absolute import LearnedPositions, NoPosition, Shortformer, Sinusoidal
from lengthlens.models.schemes.contextual import Cope, RpeSquare
from lengthlens.models.schemes.distance_bias import T5, Alibi, Fire, KerpleLog, KerplePower, Relative
from lengthlens.models.schemes.distance_vectors import Shaw, TransformerXL, Urpe
from lengthlens.models.schemes.ideal import Ideal
from lengthlens.models.schemes.lbpe import FreeRelation, LearnedRelation
from lengthlens.models.schemes.relation import Phi, Relation
from lengthlens.models.schemes.rotary import Rope, RopeInterpolated, RopeNtk, RopeYarn
from lengthlens.models.schemes.scheme import PositionScheme, Sizes
from lengthlens.models.schemes.taskgiven import Abacus, Coupled
from lengthlens.models.schemes.wrappers import Randomized, ScaleHinted, Wrapper
from lengthlens.tasks import TASKS, Task

SCHEMES: Registry[type[PositionScheme]] = Registry(
    "scheme",
    {
        scheme.name: scheme
        for scheme in (
            *(NoPosition, LearnedPositions, Sinusoidal, Shortformer, Rope, RopeInterpolated, RopeNtk, RopeYarn),
            *(Alibi, T5, Relative, Shaw, TransformerXL, KerpleLog, KerplePower, Fire, Cope, Urpe),
            *(Coupled, Abacus, RpeSquare, Ideal, LearnedRelation, FreeRelation),
        )
    },
)

WRAPPERS: Registry[type[Wrapper]] = Registry(
    "wrapper of schemes", {wrapper.prefix: wrapper for wrapper in (Randomized, ScaleHinted)}
)


def scheme_names() -> list[str]:
    """The names of all schemes, and of all compositions with a wrapper that make sense."""
    wrapped = [
        f"{prefix}:{name}"
        for prefix, wrapper in WRAPPERS.items()
        for name, scheme in SCHEMES.items()
        if wrapper.refusal(scheme) is None
    ]
    return [*SCHEMES, *wrapped]


@dataclass(frozen=True)
class SchemeSpec:
    """A scheme, possibly inside a wrapper, with all its options.

    >>> spec = SchemeSpec.parse("hinted:relative/max_distance=3")
    >>> spec.name, spec.options, spec.label
    ('hinted:relative', {'max_distance': 3}, 'hinted:relative/max_distance=3')
    >>> SchemeSpec.of("relative", {"max_distance": 128}) == SchemeSpec.of("relative")
    True
    """

    name: str
    options: Mapping[str, Any]  # all of them, as JSON has them; `of` completes and checks

    def __hash__(self) -> int:
        return hash(self.label)

    # -- reading -------------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, name: str, options: object = None) -> "SchemeSpec":
        """A scheme by name, with options by name (as texts, if need be); those not given have their defaults."""
        given = {} if options is None else options
        if not isinstance(given, Mapping):
            raise UserError(f"scheme_options must map names to values, not {given!r}")
        read: dict[str, Any] = {}
        for own in _read(name, given):
            read |= dataclasses.asdict(own)
        return cls(name, json.loads(json.dumps(read)))  # tuples become lists, as they do on disk

    @classmethod
    def parse(cls, text: str) -> "SchemeSpec":
        """A scheme with its options in one word: ``relative`` or ``relative/max_distance=3``."""
        name, *parts = text.split("/")
        options = {}
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals:
                raise UserError(f"'{part}' in '{text}' is no option: write scheme/option=value")
            options[key] = value
        return cls.of(name, options)

    @classmethod
    def from_entry(cls, entry: object) -> "SchemeSpec":
        """What stands for a scheme in a list: itself, a word, or (in a TOML file) a table with a name and options."""
        if isinstance(entry, SchemeSpec):
            return entry
        if isinstance(entry, str):
            return cls.parse(entry)
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            return cls.of(entry["name"], {key: value for key, value in entry.items() if key != "name"})
        raise UserError(f"a scheme is a name or a table with a name, not {entry!r}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SchemeSpec":
        """From the two fields under which it is stored."""
        return cls.of(values["scheme"], values.get("scheme_options"))

    def to_dict(self) -> dict[str, Any]:
        return {"scheme": self.name, "scheme_options": dict(self.options)}

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def scheme(self) -> type[PositionScheme]:
        """The class, without its wrapper."""
        return _classes(self.name)[0]

    @property
    def wrapper(self) -> type[Wrapper] | None:
        return _classes(self.name)[1]

    @property
    def family(self) -> str:
        """The kind of scheme; for a wrapped one, its wrapper."""
        return self.wrapper.prefix if self.wrapper else self.scheme.family

    @property
    def summary(self) -> str:
        return f"{self.scheme.summary}; {self.wrapper.summary}" if self.wrapper else self.scheme.summary

    @property
    def relation_in_words(self) -> str:
        return self.wrapper.words(self.scheme) if self.wrapper else self.scheme.relation_in_words

    @property
    def learns_relation(self) -> bool:
        """Whether the relation itself is learned, so that a trained scheme has `entries`."""
        return self.scheme.learns_relation

    @property
    def defaults(self) -> dict[str, Any]:
        """The options by name, as they are if nothing is said."""
        return dict(SchemeSpec.of(self.name).options)

    @property
    def label(self) -> str:
        """As tables and figures name it: with those of its options that are not the default. `parse` reads it."""
        usual = self.defaults
        return "/".join([self.name, *(f"{k}={v}" for k, v in self.options.items() if usual[k] != v)])

    def identity(self) -> dict[str, Any]:
        """The options that are part of a run's name: without those that were added later and are at their default.

        >>> sorted(SchemeSpec.of("ideal", {"other": "each"}).identity())
        ['table_scale']
        """
        fields = [field for kind in _options(self.name) for field in dataclasses.fields(kind)]
        later = {field.name: field.default for field in fields if field.metadata.get("later")}
        return {name: value for name, value in self.options.items() if name not in later or later[name] != value}

    def build(self, task: Task | None = None, sizes: Sizes | None = None) -> PositionScheme:
        """The scheme itself, for a network of these sizes.

        >>> SchemeSpec.parse("relative/max_distance=3").build().phi(*torch.tensor([9, 2, 1]))
        tensor([3])
        """
        sizes = sizes or Sizes()
        inner, *own = _read(self.name, self.options)
        if self.wrapper is None:
            return self.scheme(sizes, inner, task)
        return self.wrapper.wrap(self.scheme, sizes, own[0], inner, task)


def make_scheme(
    name: str, options: Mapping[str, Any] | None = None, task: Task | None = None, sizes: Sizes | None = None
) -> PositionScheme:
    """The scheme of this name, built: ``SchemeSpec.of(name, options).build(task, sizes)``."""
    return SchemeSpec.of(name, options).build(task, sizes)


def scheme_for(
    task: Task, scheme: "str | PositionScheme | type[PositionScheme]", options: Mapping[str, Any]
) -> tuple[PositionScheme | None, str]:
    """A scheme by name, class or object, for a task; or None and the reason, if it is sound and refuses this task."""
    if isinstance(scheme, PositionScheme):
        if options:
            raise UserError(f"scheme '{scheme.name}' was given as an object, which has its options already")
        return scheme, ""
    try:
        return _built(task, scheme, options), ""
    except UserError as refusal:
        _built(TASKS["copy"], scheme, options)  # a wrong name or option is wrong for any task
        return None, str(refusal)


def _built(task: Task, scheme: str | type[PositionScheme], options: Mapping[str, Any]) -> PositionScheme:
    if isinstance(scheme, str):
        return SchemeSpec.of(scheme, options).build(task)
    return scheme(Sizes(), _filled(scheme.name, [scheme.Options], options)[0], task)


def scheme_rows() -> list[dict[str, Any]]:
    """One row of plain values for each scheme and each sensible composition, for tables and JSON.

    >>> row = next(row for row in scheme_rows() if row["name"] == "relative")
    >>> row["acts"], row["relation"], row["options"]
    (['score'], 'min(i−j, max_distance)', {'max_distance': 128})
    """
    return [
        {
            "name": spec.name,
            "family": spec.family,
            "summary": spec.summary,
            "acts": spec.scheme.acts(),
            "relation": spec.relation_in_words,
            "options": spec.options,
        }
        for spec in map(SchemeSpec.of, scheme_names())
    ]


RelationLike: TypeAlias = str | PositionScheme | Phi | Relation


def relation_of(relation: RelationLike) -> Relation:
    """The relation meant: ``"i-j"``, ``"(i,j)"``, a scheme in a word, a scheme, a function of (i, j, n), a relation.

    A function takes integer tensors that broadcast together and gives codes [*] or [*, component].

    >>> relation_of("i-j").table([5], [0, 4], scale=3)[..., 0].tolist()
    [[5, 1]]
    """
    if isinstance(relation, Relation):
        return relation
    if isinstance(relation, PositionScheme):
        return relation.relation()
    if not isinstance(relation, str):
        return Relation(relation, getattr(relation, "__name__", "a function"))
    plain = relation.replace(" ", "").replace("−", "-")
    if plain == "i-j":
        return Relation(lambda i, j, n: i - j, "i−j", uses_scale=False)
    if plain == "(i,j)":
        both: Phi = lambda i, j, n: torch.stack(torch.broadcast_tensors(i, j), -1)  # noqa: E731
        return Relation(both, "(i, j)", uses_scale=False)
    return SchemeSpec.parse(relation).build().relation()


# -- names and options -----------------------------------------------------------------------------------------------

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", NoneType: "none"}


def _classes(name: str) -> tuple[type[PositionScheme], type[Wrapper] | None]:
    """What a name stands for: a scheme, and the wrapper around it."""
    prefix, colon, inner = name.partition(":")
    if not colon:
        if name not in SCHEMES:
            raise unknown("scheme", name, scheme_names())
        return SCHEMES[name], None
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
    return SCHEMES[inner], wrapper


def _options(name: str) -> list[type]:
    """The `Options` of a scheme, and of its wrapper if it has one."""
    scheme, wrapper = _classes(name)
    return [scheme.Options, *([wrapper.Options] if wrapper else [])]


def _read(name: str, given: Mapping[str, Any]) -> list[Any]:
    """The same, filled from values by name."""
    return _filled(name, _options(name), given)


def _filled(name: str, kinds: Sequence[type], given: Mapping[str, Any]) -> list[Any]:
    fields = {field.name: field for kind in kinds for field in dataclasses.fields(kind)}
    for each in given:
        if each not in fields:
            raise unknown(f"option of scheme '{name}'", str(each), fields)
    filled = []
    for kind in kinds:
        types = get_type_hints(kind)
        own = [field for field in dataclasses.fields(kind) if field.name in given]
        values = {
            field.name: _value(
                f"option '{field.name}' of scheme '{name}'", types[field.name], field.metadata, given[field.name]
            )
            for field in own
        }
        filled.append(kind(**values))
    return filled


def _value(what: str, kind: Any, bounds: Mapping[str, float | None], value: Any) -> Any:
    """The value as one of the types that `kind` allows, within its bounds; else a sentence that says what it may be."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise unknown(what, str(value), get_args(kind))
    allowed = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    for one in allowed:
        found, read = _as(one, value)
        if found and _within(read, bounds):
            return read
    raise UserError(f"{what} must be {_in_words(allowed, bounds)}, not {value!r}")


def _as(kind: type, value: Any) -> tuple[bool, Any]:
    """Whether the value can be read as this type, and what it then is."""
    text = value.strip() if isinstance(value, str) else None
    if kind is str:
        return text is not None, value
    if kind is NoneType:
        return value is None or (text is not None and text.lower() == "none"), None
    if kind is bool:
        if text is not None:
            return text.lower() in TRUTH, TRUTH.get(text.lower())
        return isinstance(value, bool), value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False, None
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        return False, None
    exact = text is not None or number == value  # 3.5 is no whole number, 3.0 is one
    return exact and math.isfinite(number), number


def _within(value: Any, bounds: Mapping[str, float | None]) -> bool:
    low, high = bounds.get("at_least"), bounds.get("at_most")
    if not isinstance(value, (int, float)):
        return True
    return (low is None or value >= low) and (high is None or value <= high)


def _in_words(allowed: tuple[type, ...], bounds: Mapping[str, float | None]) -> str:
    words = " or ".join(KINDS[one] for one in allowed)
    low, high = bounds.get("at_least"), bounds.get("at_most")
    if low is not None and high is not None:
        return f"{words} from {low} to {high}"
    if low is not None:
        return f"{words} of at least {low}"
    return words if high is None else f"{words} of at most {high}"
