"""What a model is made of: every choice a user makes, and the same sizes as TransformerLens' tools expect them."""

import copy
import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import torch

from lengthlens.errors import UserError, unknown
from lengthlens.models.schemes import SCHEMES, SchemeSpec
from lengthlens.models.schemes.spec import SCALING, named
from lengthlens.plugins.registry import Origin
from lengthlens.tasks import TASKS, Task
from lengthlens.values import anything, map_of, one_of, parse_json, parsed, real, record, text, truth, whole

# What turns scores into weights (models/normalization.py).
NORMALIZATIONS = ("softmax", "ssmax", "entmax", "asentmax", "stick-breaking")
# Bounds that no sensible model reaches; a damaged or hostile config is refused before memory is asked for.
SIZES = ("d_model", "d_head", "d_mlp", "d_vocab", "d_vocab_out", "n_ctx", "train_ctx")
RULES = {
    **dict.fromkeys(("task", "scheme"), text()),
    **dict.fromkeys(SIZES, whole(1, 1 << 20)),
    "n_layers": whole(1, 1024),
    "n_heads": whole(1, 4096),
    "act_fn": one_of("gelu", "gelu_new", "gelu_fast", "relu", "silu", "solu"),
    "normalization_type": one_of("LN", "LNPre", "RMS", "RMSPre", None),
    "score_scaling": one_of("none", "log"),
    "attn_normalization": one_of(*NORMALIZATIONS),
    **dict.fromkeys(("attn_only", "gated_mlp", "parallel_attn_mlp", "attn_sink"), truth()),
    "seed": whole(0, 2**63 - 1),
    **dict.fromkeys(("eps", "attn_scale", "initializer_range"), real(above=0)),
}  # what each field must be; None, where it is the default, needs no rule, and SchemeSpec checks the options
ORIGIN = record("plug-in", dict.fromkeys(("name", *Origin._fields), text()))


def later(default: Any = dataclasses.MISSING, factory: Any = dataclasses.MISSING) -> Any:
    """A field that was added when configs had been stored without it; its default means what they did.

    At that value it is not written, so that ids and checksums of what was stored before stay as they are.
    """
    return field(default=default, default_factory=factory, metadata={"later": True})


@dataclass(frozen=True)
class JsonConfig:
    """Choices that are stored as JSON. `KIND` names them in errors."""

    KIND: ClassVar[str]

    @cached_property
    def spec(self) -> SchemeSpec:
        """The scheme with all its options."""
        stored: Any = self
        return SchemeSpec.of(stored.scheme, stored.scheme_options)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by field, without those that were added later and are at their default."""
        values: dict[str, Any] = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
            if not (each.metadata.get("later") and value == default):
                values[each.name] = copy.deepcopy(dict(value)) if isinstance(value, Mapping) else value
        return values

    def note_names(self) -> None:
        """Move options that stand after the scheme's name to `scheme_options`, and fill in `plugins`: where the task
        and the scheme come from, if from outside.

        Entries of `plugins` were stored. If the same definition is not loaded now, `PluginError` says what to load.
        """
        config: Any = self
        if isinstance(config.scheme, str) and not {"/", "("}.isdisjoint(config.scheme):
            (scheme, options), default = named(config.scheme, config.scheme_options), getattr(type(self), SCALING)
            scaling = options.get(SCALING, config.score_scaling)
            if config.score_scaling not in (scaling, default):
                raise UserError(f"{SCALING} is given twice, in '{config.scheme}' and as {config.score_scaling!r}")
            options = {key: value for key, value in options.items() if key != SCALING}
            for field_name, value in (("scheme", scheme), ("scheme_options", options), (SCALING, scaling)):
                object.__setattr__(self, field_name, value)
        stored = map_of(ORIGIN)(config.plugins, "plugins")
        bare = config.scheme.rpartition(":")[2] if isinstance(config.scheme, str) else None
        noted = {}
        for kind, registry, name in (("task", TASKS, config.task), ("scheme", SCHEMES, bare)):
            entry = stored.get(kind)
            origin = registry.origin(name) if isinstance(name, str) else None
            if entry and entry["name"] == name:
                registry.same(name, Origin(*(entry[key] for key in Origin._fields)))
                noted[kind] = dict(config.plugins[kind])
            elif origin is not None:
                noted[kind] = {"name": name, **origin._asdict()}
        object.__setattr__(self, "plugins", noted)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config with these values; a field that does not exist is refused by name, and one that is needed."""
        map_of(anything())(values, f"the {cls.KIND}")
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for name in values:
            if name not in fields:
                raise unknown(f"field of a {cls.KIND}", str(name), fields)
        for name, each in fields.items():
            if name not in values and each.default is each.default_factory is dataclasses.MISSING:
                raise UserError(f"a {cls.KIND} needs a {name}")
        return cls(**values)

    @classmethod
    def from_json(cls, data: str | bytes) -> Self:
        return cls.from_dict(parse_json(data, f"the {cls.KIND}"))


@dataclass(frozen=True)
class ModelConfig(JsonConfig):
    """Every choice about a model.

    Arguments: the fields below, each with the reason for its default. Sizes that are None follow from others or from
    the task (`resolved` fills them in); `spec` is the scheme with all its options.

    Errors: UserError, in one sentence, for an unknown scheme or option, or a size that makes no sense. A task is looked
    up when the model is built, so that it may be user-defined.

    >>> config = ModelConfig(task="copy", scheme="relative", scheme_options={"max_distance": 3})
    >>> ModelConfig.from_json(config.to_json()) == config
    True
    >>> config.resolved().d_vocab, config.resolved().d_head
    (14, 16)
    """

    KIND = "model config"
    task: str | None = None  # a name in TASKS; None for a model whose d_vocab is given instead
    scheme: str = "none"  # a name in SCHEMES; nothing is added unless it is asked for
    scheme_options: Mapping[str, Any] = field(default_factory=dict)  # by name; the scheme's defaults otherwise
    n_layers: int = 2  # the least depth in which heads compose, enough for one circuit step
    n_heads: int = 4  # an operator of the tasks here has up to four sources
    d_model: int = 64  # learns the tasks here in under a minute on one core
    d_head: int | None = None  # d_model / n_heads if None
    d_mlp: int | None = None  # 4 d_model if None, as everywhere
    d_vocab: int | None = None  # the task's if None
    d_vocab_out: int | None = None  # d_vocab if None
    n_ctx: int = 2048  # rows of tables with one entry per position, and the limit for TransformerLens' tools
    train_ctx: int = 32  # longest training sequence in tokens; only score scaling looks at it
    act_fn: str = "gelu"  # smooth, and a single kernel
    normalization_type: str | None = "LN"  # as in HookedTransformer
    eps: float = 1e-5  # as in HookedTransformer
    attn_only: bool = False  # MLPs are where operators are computed
    attn_scale: float | None = None  # what scores are divided by; the square root of d_head if None
    score_scaling: str = "none"  # "log" keeps heads sharp on long inputs, at a price in comparability
    initializer_range: float | None = None  # 0.8 / sqrt(d_model) if None, as in HookedTransformer
    seed: int = 0  # of the initial weights; the same seed gives the same weights, bit for bit
    plugins: Mapping[str, Any] = later(factory=dict)  # filled in: where a task or scheme from outside is from
    gated_mlp: bool = later(False)  # a second map times the activation, as in Llama
    parallel_attn_mlp: bool = later(False)  # the MLP reads what attention reads, as in GPT-NeoX
    attn_normalization: str = later("softmax")  # how scores become weights; the others keep heads sharp on long inputs
    attn_sink: bool = later(False)  # a learned score for each head that takes weight and gives no value, as in gpt-oss

    def __post_init__(self) -> None:
        self.note_names()
        # As JSON will give them back (tuples become lists), so that a saved config equals the original.
        options = map_of(anything())(self.scheme_options, "scheme_options")
        plain = parsed(lambda: json.loads(json.dumps(dict(options))), "scheme_options", "plain values by name")
        object.__setattr__(self, "scheme_options", plain)
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name in RULES and not (value is None and each.default is None):
                RULES[each.name](value, each.name)
        self.spec  # noqa: B018 (refuses what does not exist)
        if self.attn_sink and self.attn_normalization == "stick-breaking":
            raise UserError("attn_sink takes weight, of which attn_normalization stick-breaking leaves some anyway")
        if self.d_head is None and self.d_model % self.n_heads:
            raise UserError(
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}: give d_head or other sizes"
            )

    def resolved(self, task: Task | None = None) -> "ModelConfig":
        """The same choices with nothing left open. `task` is the task itself, where it is not one of TASKS."""
        if task is None and self.task is not None:
            task = TASKS[self.task]
        if task is not None and self.task is not None and task.name != self.task:
            raise UserError(f"the config is of task '{self.task}', and task '{task.name}' was given")
        d_vocab = self.d_vocab or (len(task.vocab) if task else None)
        if d_vocab is None:
            raise UserError("a model needs a task or d_vocab, and the config has neither")
        if task is not None and d_vocab < len(task.vocab):
            raise UserError(f"d_vocab {d_vocab} is too small for task '{task.name}' with {len(task.vocab)} tokens")
        sizes: dict[str, Any] = {"d_vocab": d_vocab, "d_vocab_out": self.d_vocab_out or d_vocab}
        sizes |= {"d_head": self.d_head or self.d_model // self.n_heads, "d_mlp": self.d_mlp or 4 * self.d_model}
        return dataclasses.replace(self, task=task.name if task else None, **sizes)


@dataclass
class LensConfig:
    """`model.cfg`: the fields of a HookedTransformerConfig that TransformerLens' tools read, shared and mutable."""

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int | None
    d_vocab: int
    d_vocab_out: int
    n_ctx: int
    act_fn: str
    normalization_type: str | None
    eps: float
    attn_only: bool
    attn_scale: float
    seed: int
    positional_embedding_type: str
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    dtype: torch.dtype = torch.float32
    n_key_value_heads: int | None = None  # heads do not share keys and values
    use_attn_scale: bool = True
    use_attn_result: bool = False
    use_split_qkv_input: bool = False
    use_attn_in: bool = False
    use_hook_mlp_in: bool = False
    final_rms: bool = False
    gated_mlp: bool = False
    parallel_attn_mlp: bool = False
    attn_normalization: str = "softmax"
    attn_sink: bool = False
    default_prepend_bos: bool = False
    model_name: str = "lengthlens"

    @classmethod
    def of(cls, config: ModelConfig) -> "LensConfig":
        """From a resolved config."""
        shared = {f.name: getattr(config, f.name) for f in dataclasses.fields(cls) if hasattr(config, f.name)}
        shared["d_mlp"] = None if config.attn_only else config.d_mlp
        shared["attn_scale"] = config.attn_scale or math.sqrt(shared["d_head"])
        return cls(**shared, positional_embedding_type=config.scheme)
