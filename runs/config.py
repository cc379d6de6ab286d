"""Every choice about one training run, and the name that follows from it."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lengthlens.models.config import JsonConfig, ModelConfig, later
from lengthlens.models.devices import named
from lengthlens.tasks import TASKS, Task
from lengthlens.values import Rule, anything, map_of, one_of, real, record, text, truth, whole

IMPORTED = {
    **dict.fromkeys(("name", "kind", "sha256"), text()),
    "tokens": map_of(whole()),  # the source's id of each token of the task
    "model": map_of(anything()),  # fields of the model's config that a run's config does not have
}
DEVICE = Rule("auto, cpu, cuda, cuda:0, cuda:1, … or mps", lambda value: isinstance(value, str) and named(value))
RULES = {
    **dict.fromkeys(("task", "scheme"), text()),
    **dict.fromkeys(("train_max", "steps", "batch", "check_every", "patience"), whole(1)),
    "warmup": whole(0),
    "threads": whole(1, 256),  # more than any processor here has; with 100,000 the system ends the process
    "device": DEVICE,
    **dict.fromkeys(("deterministic", "tf32"), truth()),
    "precision": one_of("float32", "bfloat16"),
    "lengths": one_of("one", "mixed"),
    "compile": truth(),
    "imported": record("imported model", {}, IMPORTED),
    **dict.fromkeys(("lr", "pe_lr_factor", "weight_decay", "clip"), real(0)),
    **dict.fromkeys(("beta2", "cooldown", "label_smoothing"), real(0, below=1)),
}  # what the fields about training must be; ModelConfig knows the others

# How and where the numbers are computed, not which numbers: they do not enter a run's name. On another device or with
# another number of threads sums are taken in another order, so results then agree up to rounding, not bit for bit.
EXECUTION = ("device", "threads", "compile", "deterministic", "tf32")

MODEL_FIELDS = {f.name for f in dataclasses.fields(ModelConfig)}  # a run passes them on to its model


@dataclass(frozen=True)
class RunConfig(JsonConfig):
    """Every choice about one training run: the same config is the same run, and has the same `id`.

    Arguments: the fields below. Those of the model mean what they mean in `ModelConfig`, which has their reasons and
    checks them; `config.model` is that ModelConfig. All others are about training.

    Errors: UserError, in one sentence, for an unknown task, scheme or option, or a value that makes no sense.

    >>> config = RunConfig(task="copy", scheme="relative", scheme_options={"max_distance": "3"}, n_layers=4)
    >>> config.scheme_options, config.model.n_layers, config.model.train_ctx
    ({'max_distance': 3}, 4, 23)
    >>> RunConfig.from_json(config.to_json()) == config
    True
    >>> dataclasses.replace(config, device="cpu").id == config.id != dataclasses.replace(config, seed=1).id
    True
    """

    KIND = "run config"
    task: str  # a name in TASKS
    scheme: str  # a name of a scheme, such as "rope" or "hinted:relative"
    scheme_options: Mapping[str, Any] = field(default_factory=dict)  # completed by the scheme's defaults
    n_layers: int = ModelConfig.n_layers
    n_heads: int = ModelConfig.n_heads
    d_model: int = ModelConfig.d_model
    d_mlp: int | None = ModelConfig.d_mlp
    n_ctx: int = ModelConfig.n_ctx
    initializer_range: float | None = ModelConfig.initializer_range  # with 0.03 addition stayed on a plateau
    score_scaling: str | None = None  # filled in; as `SchemeSpec.usual_scaling` has it, with the reason
    train_max: int = 10  # the largest n in training: room enough to see growth, and to go 100 times beyond
    steps: int = 4000  # at most; copying by plain distances takes nearly all of them, most runs settle before
    batch: int = 32  # instances a step; in a few trials on parity-cot, four times as many converged no sooner
    lengths: str = "one"  # one n for each batch wastes nothing on padding; "mixed" draws one for each row
    lr: float = 2e-3  # AdamW's usual rate for so small a model
    pe_lr_factor: float = 15.0  # biases of scores must become large, which weights of a network must not
    label_smoothing: float = 0.1  # wants fixed logits, so that leaking attention keeps costing; see trainer.py
    weight_decay: float = 0.01  # of weight matrices; position tables, biases and norms have none
    beta2: float = 0.98  # a shorter memory than 0.999, since n alternates between batches
    clip: float = 1.0  # the largest norm of a gradient, so that no single batch can throw a run off
    warmup: int = 100  # steps in which the rate rises to lr, while AdamW's averages are still poor
    cooldown: float = 0.5  # share of the run, at its end, in which the rate falls to zero along a cosine
    check_every: int = 100  # steps between evaluations of in-range exact match; a run is resumed from one of them
    patience: int = 5  # perfect evaluations in a row, with a margin at rest, before the cool-down starts early
    seed: int = ModelConfig.seed  # of initial weights and data
    precision: str = "float32"  # "bfloat16" is for CUDA
    device: str = "auto"  # cuda where there is one, else cpu; mps only if asked for
    threads: int = 1  # of the CPU; these matrices are too small for more, and one gives the same bits everywhere
    compile: bool = False  # compiling takes longer than most runs here
    deterministic: bool = later(False)  # on CUDA, only kernels that give the same bits every time, which are slower
    tf32: bool = later(False)  # on CUDA, products with ten bits of mantissa, which are quicker
    imported: Mapping[str, Any] = later(factory=dict)  # where the model comes from, if it was not trained here
    plugins: Mapping[str, Any] = later(factory=dict)  # filled in: where a task or scheme from outside is from
    attn_normalization: str = later(ModelConfig.attn_normalization)
    attn_sink: bool = later(ModelConfig.attn_sink)

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            rule(getattr(self, name), name)
        self.note_names()
        object.__setattr__(self, "scheme_options", dict(self.spec.options))
        if self.score_scaling is None:
            usual = self.spec.usual_scaling if self.attn_normalization == "softmax" else "none"  # the others need none
            object.__setattr__(self, "score_scaling", usual)
        for each in dataclasses.fields(self):
            if each.type is float:
                object.__setattr__(self, each.name, float(getattr(self, each.name)))  # 1 and 1.0 are one run
        self.task_object.checked_scale(self.train_max)
        self.model  # noqa: B018 (checks all that is about the model)

    @property
    def task_object(self) -> Task:
        return TASKS[self.task]

    @cached_property
    def model(self) -> ModelConfig:
        """The model that is trained."""
        shared = {name: value for name, value in vars(self).items() if name in MODEL_FIELDS}
        shared["train_ctx"] = self.task_object.longest(self.train_max)
        return ModelConfig.from_dict({**self.imported.get("model", {}), **shared})

    def identity(self) -> dict[str, Any]:
        """The choices that decide the result: all but `EXECUTION`; of plug-ins what they define, not where they are."""
        values = {**self.to_dict(), "scheme_options": self.spec.identity()}
        if self.plugins:
            values["plugins"] = {kind: origin["fingerprint"] for kind, origin in self.plugins.items()}
        return {name: value for name, value in values.items() if name not in EXECUTION}

    @cached_property
    def id(self) -> str:
        """Task, scheme and seed to read, and a hash of all choices that decide the result: copy_rope_s0_1a2b3c4d."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.task.replace('/', '-')}_{self.scheme.replace(':', '-')}_s{self.seed}_{digest}"
