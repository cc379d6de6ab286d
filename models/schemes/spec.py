"""Every position embedding by name, and a name with its options as one value.

`SCHEMES` maps names to classes. A new scheme is a subclass of `PositionScheme` and a line: below, or
``@lengthlens.register`` above the class from outside. From then on it can be named wherever a scheme is named: in a
`ModelConfig`, a run, the verdict, the listing. An unknown name, or one that is taken, raises a `UserError` with the
nearest one.

>>> SCHEMES["rope"].relation_in_words
'i−j'

`SchemeSpec` is a name and its options, parsed, checked, completed, printed and built in one place. Options are the
fields of a scheme's `Options`, a frozen dataclass; they are read from JSON values or from texts.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import torch

from lengthlens.errors import Registry, UserError, unknown
from lengthlens.models.schemes import absolute, accumulated, distance, ideal, lbpe, rotary
from lengthlens.models.schemes.relation import DISTANCE, Phi, Relation
from lengthlens.models.schemes.scheme import PositionScheme, Sizes
from lengthlens.models.schemes.wrappers import (
    Continuous,
    Dropped,
    Layers,
    Randomized,
    ScaleHinted,
    Shifted,
    Windowed,
    Wrapper,
)
from lengthlens.plugins.registry import Extensible
from lengthlens.tasks import TASKS, Task
from lengthlens.values import shown, split_list

SCHEMES: Extensible[type[PositionScheme]] = Extensible(
    "scheme",
    {
        scheme.name: scheme
        for scheme in (
            *(absolute.NoPosition, absolute.LearnedPositions, absolute.Sinusoidal, absolute.Shortformer),
            *(rotary.Rope, rotary.RopeInterpolated, rotary.RopeNtk, rotary.RopeYarn),
            *(rotary.Xpos, rotary.Pope, rotary.GrapeMultiplicative),
            *(distance.Alibi, distance.T5, distance.Relative, distance.Shaw, distance.TransformerXL),
            *(distance.KerpleLog, distance.KerplePower, distance.Fire, distance.Cope, distance.Urpe, distance.Dape),
            *(absolute.Coupled, absolute.Abacus, distance.RpeSquare),
            *(accumulated.Forgetting, accumulated.Reflected, accumulated.Wall),
            *(accumulated.SelectiveRope, accumulated.GrapeAdditive),
            Layers,
            *(ideal.Ideal, lbpe.LearnedRelation, lbpe.FreeRelation, lbpe.LearnedFields),
        )
    },
    classes=True,
)

WRAPPERS: Registry[type[Wrapper]] = Registry(
    "wrapper of schemes", {w.prefix: w for w in (Randomized, Shifted, ScaleHinted, Windowed, Dropped, Continuous)}
)


SCALING, SCALINGS = "score_scaling", ("none", "log")  # part of labels, and a field of configs


def scheme_names() -> list[str]:
    """The names of all schemes, and of all compositions with a wrapper that make sense."""
    pairs = itertools.product(WRAPPERS.values(), SCHEMES.items())
    return [*SCHEMES, *(f"{outer.prefix}:{name}" for outer, (name, inner) in pairs if outer.refusal(inner) is None)]


def split_label(text: str) -> tuple[str, dict[str, str | None]]:
    """The name in a label and the options after it, as they are written; None where one has no value.

    >>> split_label("lbpe/forms=nine/other=each"), split_label("mine/new")
    (('lbpe', {'forms': 'nine', 'other': 'each'}), ('mine', {'new': None}))
    """
    name, *parts = split_list(text, "/")
    if name.startswith("layers(") and name.endswith(")"):
        name, parts = "layers", [f"of={name[7:-1]}", *parts]
    options = (part.partition("=") for part in parts)
    return name, {key: value if equals else None for key, equals, value in options}


def named(scheme: str, options: object = None) -> tuple[str, Mapping[str, Any]]:
    """The name of a scheme and its options, some of which may stand after the name.

    >>> named("relative/max_distance=3"), named("relative", {"max_distance": 3})
    (('relative', {'max_distance': '3'}), ('relative', {'max_distance': 3}))
    """
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        raise UserError(f"scheme_options must map names to values, not {given!r}")
    name, after = split_label(scheme)
    for key, value in after.items():
        if value is None:
            raise UserError(f"'{key}' in '{scheme}' is no option: write scheme/option=value")
        if key in given:
            raise UserError(f"option '{key}' of scheme '{name}' is given twice, in '{scheme}' and as {given[key]!r}")
    return name, {**given, **after}


@dataclass(frozen=True)
class SchemeSpec:
    """A scheme, possibly inside a wrapper, with all its options; and how scores are scaled, where that is given.

    >>> spec = SchemeSpec.parse("hinted:relative/max_distance=3")
    >>> spec.name, spec.options, spec.label
    ('hinted:relative', {'max_distance': 3}, 'hinted:relative/max_distance=3')
    >>> SchemeSpec.of("relative", {"max_distance": 128}) == SchemeSpec.of("relative")
    True
    >>> SchemeSpec.parse("ideal/score_scaling=none").label, SchemeSpec.parse("ideal/score_scaling=log").label
    ('ideal/score_scaling=none', 'ideal')
    """

    name: str
    options: Mapping[str, Any]  # all of them, as JSON has them
    score_scaling: str | None = None  # None: `usual_scaling`

    def __hash__(self) -> int:
        return hash(self.name)

    @classmethod
    def of(cls, scheme: object, options: object = None, score_scaling: str | None = None) -> "SchemeSpec":
        """A scheme by name, with options (texts, if need be) by name or after the name; others have their defaults.

        In a list, it may also be a table with a name and options, as in TOML, or a `SchemeSpec` already.
        """
        if isinstance(scheme, SchemeSpec):
            return scheme
        if isinstance(scheme, Mapping) and isinstance(scheme.get("name"), str):
            options = {key: value for key, value in scheme.items() if key != "name"}
            scheme = scheme["name"]
        if not isinstance(scheme, str):
            raise UserError(f"a scheme is a name or a table with a name, not {scheme!r}")
        name, with_name = named(scheme, options)
        given: dict[str, Any] = dict(with_name)
        scaling = score_scaling if SCALING in _about(name) else given.pop(SCALING, score_scaling)
        if scaling not in (None, *SCALINGS):
            raise unknown(f"option '{SCALING}' of scheme '{name}'", str(scaling), SCALINGS)
        filled: list[dict[str, Any]] = [asdict(each) for each in _filled(name, _kinds(name), given)]
        plain = json.loads(json.dumps({key: value for each in filled for key, value in each.items()}))  # as on disk
        usual = cls(name, plain)
        return usual if scaling in (None, usual.usual_scaling) else cls(name, plain, scaling)

    @classmethod
    def parse(cls, text: str) -> "SchemeSpec":
        """A scheme with its options in one word, a label: ``relative`` or ``relative/max_distance=3``."""
        return cls.of(text)

    def to_dict(self) -> dict[str, Any]:
        """The fields of a config that it stands for."""
        scaling = {} if self.score_scaling is None else {SCALING: self.score_scaling}
        return {"scheme": self.name, "scheme_options": dict(self.options), **scaling}

    @property
    def scheme(self) -> type[PositionScheme]:
        """The class, without its wrapper."""
        return _classes(self.name)[0]

    @property
    def uses_scale(self) -> bool:
        """Whether it is told the input size n, by itself or by its wrapper."""
        return any(each.uses_scale for each in _classes(self.name) if each is not None)

    @property
    def usual_scaling(self) -> str:
        """How scores are scaled in training unless something else is asked for.

        Softmax spreads over ever more keys, and even the ideal scheme decays, unless scores grow with the log of their
        number. Where all keys that a scheme does not name weigh as one, there is nothing to make up for.

        >>> SchemeSpec.of("ideal").usual_scaling, SchemeSpec.of("lbpe").usual_scaling
        ('log', 'none')
        """
        return "log" if self.options.get("other", "each") == "each" else "none"

    @property
    def relation_in_words(self) -> str:
        scheme, wrapper = _classes(self.name)
        return wrapper.words(scheme) if wrapper else scheme.relation_in_words

    @property
    def label(self) -> str:
        """As tables and figures name it: with what is not the default. `parse` gives the same `SchemeSpec` again."""
        usual, about = SchemeSpec.of(self.name).options, _about(self.name)
        words = {key: {text: word for word, text in about[key].get("names", {}).items()} for key in usual}
        other = {key: words[key].get(value, value) for key, value in self.options.items() if usual[key] != value}
        other |= {} if self.score_scaling is None else {SCALING: self.score_scaling}
        name = f"{self.name}({other.pop('of')})" if "of" in other else self.name
        return "/".join([name, *(f"{key}={value}" for key, value in other.items())])

    def identity(self) -> dict[str, Any]:
        """The options that are part of a run's name: without those that were added later and are as it was before.

        >>> sorted(SchemeSpec.of("ideal", {"other": "each"}).identity())
        ['table_scale']
        """
        about = _about(self.name)
        return {k: v for k, v in self.options.items() if about[k].get("before") is None or about[k]["before"] != v}

    def build(self, task: Task | None = None, sizes: Sizes | None = None) -> PositionScheme:
        """The scheme itself, for a network of these sizes.

        >>> SchemeSpec.parse("relative/max_distance=3").build().phi(*torch.tensor([9, 2, 1]))
        tensor([3])
        """
        scheme, wrapper = _classes(self.name)
        inner, *outer = _filled(self.name, _kinds(self.name), self.options)
        if wrapper is None:
            return scheme(sizes or Sizes(), inner, task)
        return wrapper(sizes or Sizes(), outer[0], task, scheme, inner)


Layers.spec = SchemeSpec.parse


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

    def built(task: Task) -> PositionScheme:
        if isinstance(scheme, str):
            return make_scheme(scheme, options, task)
        return scheme(Sizes(), _filled(scheme.name, [scheme.Options], options)[0], task)

    try:
        return built(task), ""
    except UserError as refusal:
        built(TASKS["copy"])  # a wrong name or option is wrong for any task
        return None, str(refusal)


def scheme_rows() -> list[dict[str, Any]]:
    """One row of plain values for each scheme and each sensible composition, for tables and JSON.

    >>> row = next(row for row in scheme_rows() if row["name"] == "relative")
    >>> row["acts"], row["relation"], row["options"]
    (['score'], 'min(i−j, max_distance)', {'max_distance': 128})
    """
    rows = []
    for spec in map(SchemeSpec.of, scheme_names()):
        scheme, wrapper = _classes(spec.name)
        family = wrapper.prefix if wrapper else scheme.family
        summary = f"{scheme.summary}; {wrapper.summary}" if wrapper else scheme.summary
        acts = wrapper.places(scheme.acts()) if wrapper else scheme.acts()
        row = {"name": spec.name, "family": family, "summary": summary, "acts": acts}
        rows.append({**row, "relation": spec.relation_in_words, "options": spec.options})
    return rows


RelationLike: TypeAlias = str | PositionScheme | Phi | Relation


def relation_of(relation: RelationLike) -> Relation:
    """The relation named: ``"i-j"``, ``"(i,j)"``, a scheme in a word, a scheme, a function of (i, j, n), a relation.

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
        return DISTANCE
    if plain == "(i,j)":
        return Relation(lambda i, j, n: torch.stack(torch.broadcast_tensors(i, j), -1), "(i, j)", uses_scale=False)
    return SchemeSpec.parse(relation).build().relation()


def _classes(name: str) -> tuple[type[PositionScheme], type[Wrapper] | None]:
    """What a name stands for: a scheme, and the wrapper around it."""
    prefix, colon, inner = name.partition(":")
    if not colon:
        if name not in SCHEMES:
            raise unknown("scheme", name, scheme_names())
        return SCHEMES[name], None
    wrapper = WRAPPERS[prefix]
    if ":" in inner:  # twice the same would say nothing new
        reason = "one wrapper at a time, since n counts tokens and random positions do not"
        raise UserError(f"scheme '{name}' makes no sense: {reason}")
    if (refusal := wrapper.refusal(SCHEMES[inner])) is not None:
        raise UserError(f"scheme '{name}' makes no sense: {refusal} (that is '{inner}')")
    return SCHEMES[inner], wrapper


# -- options, read from values or texts ----------------------------------------------------------------------------

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", NoneType: "none"}


def _kinds(name: str) -> list[type]:
    """The `Options` of a scheme, and of its wrapper if it has one."""
    return [each.Options for each in _classes(name) if each is not None]


def _about(name: str) -> dict[str, Mapping[str, Any]]:
    """What `option` says about each option of a scheme."""
    return {field.name: field.metadata for kind in _kinds(name) for field in dataclasses.fields(kind)}


@lru_cache(1024)
def _fields(kind: type) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """The type of each option, and what `option` says about it."""
    types = get_type_hints(kind)
    return {field.name: (types[field.name], field.metadata) for field in dataclasses.fields(kind)}


def _filled(scheme: str, kinds: Sequence[type], given: Mapping[str, Any]) -> list[Any]:
    """Objects of these kinds, with the options that are given and the defaults of others."""
    fields = {name: field for kind in kinds for name, field in _fields(kind).items()}
    for name in given:
        if name not in fields:
            raise unknown(f"option of scheme '{scheme}'", str(name), fields)
    before = {name: about["before"] for name, (_, about) in fields.items() if about.get("before") is not None}
    if given.keys() >= fields.keys() - before.keys():  # stored when these were all
        given = {**before, **given}
    values = {
        name: _value(f"option '{name}' of scheme '{scheme}'", *fields[name], value) for name, value in given.items()
    }
    return [kind(**{name: values[name] for name in _fields(kind) if name in values}) for kind in kinds]


def _value(what: str, kind: Any, about: Mapping[str, Any], value: Any) -> Any:
    """The value as one of the types that `kind` allows, within its bounds; else a sentence that says what it may be."""
    if isinstance(value, str):
        value = about.get("names", {}).get(value.strip(), value)
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise unknown(what, str(value), get_args(kind))
    allowed = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    low, high = about.get("at_least"), about.get("at_most")
    for one in allowed:
        with suppress(ValueError, OverflowError):
            read = _read(one, value)
            if not isinstance(read, int | float) or ((low is None or read >= low) and (high is None or read <= high)):
                return read
    bounds = "" if high is None else f" of at most {high}"
    if low is not None:
        bounds = f" of at least {low}" if high is None else f" from {low} to {high}"
    raise UserError(f"{what} must be {' or '.join(KINDS[one] for one in allowed)}{bounds}, not {shown(value)}")


def _read(kind: type, value: Any) -> Any:
    """The value, or the text that stands for it, as this type; ValueError if it is none."""
    text = value.strip().lower() if isinstance(value, str) else None
    if kind is str and text is not None:
        return value
    if kind is NoneType and (value is None or text == "none"):
        return None
    if kind is bool and (isinstance(value, bool) or text in TRUTH):
        return value if text is None else TRUTH[text]
    if kind in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
        number = kind(value)
        if math.isfinite(number) and (text is not None or number == value):  # 3.5 is no whole number, 3.0 is one
            return number
    raise ValueError(value)
