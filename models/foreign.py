"""Models trained elsewhere, as directories on disk: their architecture, weights and tokens under this project's names.

A directory of Hugging Face holds config.json, weights as safetensors and perhaps a tokenizer. One of TransformerLens
holds the same with `cfg.to_dict()` as config.json and, in model.safetensors, the state dict of a HookedTransformer (up
to 3.9) or what `tl_parameters()` of a TransformerBridge gives (from 4 on). Nothing is unpickled and no code that came
with a model is run: weights in another format are refused. So are, by name, weights for which this project's model has
no place, and features in a config that it does not have.

Keys and values that heads share are repeated for each head, and a norm of the embedding is applied to its table once:
both compute the same, and every hook has the shape that it has in all other models.

`to_bridge` is the way back: a model of this project as a TransformerBridge of TransformerLens 4.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from lengthlens.errors import UserError, unknown
from lengthlens.files import read_whole, regular
from lengthlens.models.saved import CONFIG, WEIGHTS
from lengthlens.tasks import Task
from lengthlens.tasks.task import BEGIN, END, PAD
from lengthlens.values import anything, header_within, map_of, parse_json, parsed, real, shown, text

Config = Mapping[str, Any]
Weights = dict[str, Tensor]
Read = tuple[dict[str, Any], Weights]  # fields of a `ModelConfig`, and weights under this model's names

INDEX = f"{WEIGHTS}.index.json"  # names the file of each weight, where a model has several
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")  # what weights are called in formats that may run code
ENDS = {BEGIN: "bos_token_id", END: "eos_token_id", PAD: "pad_token_id"}  # of Hugging Face's configs
MOST_TOKENS = 1 << 20  # of a vocabulary
SPACES = ("", "Ġ", "▁")  # how tokenizers write the space before a word, or its absence


@dataclass(frozen=True)
class Checkpoint:
    """A model that was trained elsewhere: fields of a `ModelConfig`, and weights under this project's names and shapes.

    Token ids are those of the source, until `restricted_to` takes those of a task.
    """

    name: str  # of the directory
    kind: str  # gpt2, llama, …, or TransformerLens
    sha256: str  # of config and weights
    fields: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    vocabulary: Mapping[str, int] = field(default_factory=dict)  # the id of each token by its text; may be empty
    ends: Mapping[str, int] = field(default_factory=dict)  # ids that the config names for ``^``, ``$`` and ``_``

    @property
    def d_vocab(self) -> int:
        return len(self.weights["embed.W_E"])

    def restricted_to(self, task: Task, ids: Mapping[str, int]) -> "Checkpoint":
        """The same model over the tokens of a task: embedding and unembedding of these ids only, in the task's order.

        Logits are those of the source at these ids, so that an answer is the likeliest among the task's tokens.
        """
        chosen = torch.tensor([ids[token] for token in task.vocab])
        weights = {**self.weights, "embed.W_E": self.weights["embed.W_E"][chosen]}
        weights["unembed.W_U"] = self.weights["unembed.W_U"][:, chosen]
        weights["unembed.b_U"] = self.weights["unembed.b_U"][chosen]
        sizes = {"d_vocab": len(chosen), "d_vocab_out": len(chosen)}
        return replace(self, fields={**self.fields, **sizes}, weights=weights)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The model in a local directory of Hugging Face or TransformerLens.

    What this project's model cannot represent is refused by name, and so are weights that are not safetensors.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"'{folder}' is not a directory with a model")
    config = read_json(folder / CONFIG)
    sizes = ("n_layers", "d_model", "d_head", "d_vocab")
    hooked = "model_type" not in config and all(name in config for name in sizes)
    kind = "TransformerLens" if hooked else str(config.get("model_type"))
    if not hooked and "model_type" not in config:
        raise UserError(f"'{folder / CONFIG}' is the config of no model of Hugging Face or TransformerLens")
    if not hooked and kind not in KINDS:
        raise unknown("kind of model", kind, KINDS)
    files = _weight_files(folder)
    weights: Weights = {}
    for file in map(regular, files):
        with file.open("rb") as opened:
            header_within(opened.read(8), f"'{file}'")
        weights |= parsed(partial(load_file, file), f"'{file}'", "a safetensors file")
    weights = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    try:
        fields, weights = (read_hooked if hooked else read_huggingface)(config, weights)
    except (RuntimeError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"the weights of '{folder}' do not fit its config: {error}") from None
    weights = {name: value.contiguous() for name, value in weights.items()}
    ends = {token: config[name] for token, name in ENDS.items() if type(config.get(name)) is int}
    checksum = hashlib.sha256()
    for path in (folder / CONFIG, *files):
        with path.open("rb") as opened:
            checksum.update(hashlib.file_digest(opened, "sha256").digest())
    name, vocabulary = folder.resolve().name, read_vocabulary(folder)
    return Checkpoint(name, kind, checksum.hexdigest(), fields, weights, vocabulary, ends)


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: one, or those that its index lists."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        listed = read_json(folder / INDEX).get("weight_map")
        names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
        if not names or any(Path(name).name != name for name in names):
            raise UserError(f"'{folder / INDEX}' lists no files of this directory")
        return [folder / name for name in names]
    others = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if others:
        how = "save the model as safetensors (save_pretrained does)"
        raise UserError(f"'{folder}' holds its weights as {others[0]}, a format that may run code: {how}")
    raise UserError(f"'{folder}' holds no {WEIGHTS}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    values: dict[str, Any] = parse_json(read_whole(path), f"'{path}'", map_of(anything(), MOST_TOKENS))
    return values


# -- tokens --------------------------------------------------------------------------------------------------------


def read_vocabulary(folder: Path) -> dict[str, int]:
    """The ids of a tokenizer's tokens, from tokenizer.json or vocab.json; empty without one."""
    path = next((folder / name for name in ("tokenizer.json", "vocab.json") if (folder / name).exists()), None)
    if path is None:
        return {}
    described = read_json(path)

    def tokens() -> dict[str, int]:
        if path.name == "vocab.json":
            return described
        listed: Any = (described.get("model") or {}).get("vocab") or {}
        pieces = {piece[0]: k for k, piece in enumerate(listed)} if isinstance(listed, list) else listed
        return {**pieces, **{token["content"]: token["id"] for token in described.get("added_tokens") or []}}

    ids = parsed(tokens, f"'{path}'", "a tokenizer")
    if any(type(token) is not str or type(number) is not int for token, number in ids.items()):
        raise UserError(f"'{path}' is not a tokenizer: it maps something else than texts to whole numbers")
    return ids


def token_ids(checkpoint: Checkpoint, task: Task, given: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The model's id of each of the task's tokens.

    `given` maps tokens of the task to ids, or to texts of tokens of the model's tokenizer; others are guessed. Symbols
    and marks are looked up in the tokenizer, all as they are or all with a space before them. ``^``, ``$`` and ``_``
    are the tokens with these texts or, where the tokenizer lacks ``^`` or ``$``, the ids that the config names as
    beginning, end and padding. A model without a tokenizer that has exactly as many ids as the task has tokens is taken
    to use the task's ids.
    """
    known, payload, ids = checkpoint.vocabulary, (*task.symbols, *task.marks), dict(task.ids)
    if known or checkpoint.d_vocab != len(task.vocab):
        ids = {token: number for token, number in checkpoint.ends.items() if number < checkpoint.d_vocab}
        ids |= {token: known[token] for token in ENDS if {BEGIN, END} <= known.keys() and token in known}
        space = next((each for each in SPACES if all(each + token in known for token in payload)), None)
        ids |= {} if space is None else {token: known[space + token] for token in payload}
    for token, value in (given or {}).items():
        if token not in task.ids:
            continue
        number = known.get(value) if isinstance(value, str) else value
        if type(number) is not int or not 0 <= number < checkpoint.d_vocab:
            wanted = f"an id below {checkpoint.d_vocab}" + " or a token of its tokenizer" * bool(known)
            raise UserError(f"token '{token}' is mapped to {value!r}, and '{checkpoint.name}' needs {wanted}")
        ids[token] = number
    ids.setdefault(PAD, ids.get(END, 0))  # padding stands after the answer, where nothing looks at it
    missing = [token for token in task.vocab if token not in ids]
    if missing:
        has = "a tokenizer without them" if known else "no tokenizer"
        raise UserError(
            f"the model's ids of {' '.join(missing)} are not known ('{checkpoint.name}' has {has}): give a JSON file "
            f"that maps every token of task '{task.name}' to an id or a token of the model"
        )
    ids = {token: ids[token] for token in task.vocab}
    tokens: dict[int, str] = {}  # by id; two of one id could not be told apart, and only padding may share one
    for token, number in ids.items():
        if not 0 <= number < checkpoint.d_vocab:
            raise UserError(f"token '{token}' has id {number}, and '{checkpoint.name}' has {checkpoint.d_vocab} ids")
        if token != PAD and tokens.setdefault(number, token) != token:
            raise UserError(f"tokens '{tokens[number]}' and '{token}' have one id of '{checkpoint.name}', {number}")
    return ids


# -- names ---------------------------------------------------------------------------------------------------------


class Naming(NamedTuple):
    """How a kind of model names its parts, by what they are called here; those of a layer begin with `layer`."""

    prefix: str  # of the model inside the language model
    layer: str  # {} being its number
    names: Mapping[str, str]
    # Queries, keys and values: three maps; one map, all queries first; one map, those of each head together.
    joined: Literal["no", "all", "by head"] = "no"
    transposed: bool = False  # matrices are [in, out] and not [out, in]
    unembed: str = "lm_head"
    tied: bool = False  # whether the embedding is the unembedding, if the config does not say


GPT2 = {"embed": "wte", "pos_embed": "wpe", "ln1": "ln_1", "ln2": "ln_2", "QKV": "attn.c_attn", "O": "attn.c_proj"}
GPT2 |= {"in": "mlp.c_fc", "out": "mlp.c_proj", "ln_final": "ln_f"}
LLAMA = {"embed": "embed_tokens", "ln1": "input_layernorm", "ln2": "post_attention_layernorm", "ln_final": "norm"}
LLAMA |= {name: f"self_attn.{name.lower()}_proj" for name in "QKVO"}
LLAMA |= {"gate": "mlp.gate_proj", "in": "mlp.up_proj", "out": "mlp.down_proj"}
NEOX = {"embed": "embed_in", "ln1": "input_layernorm", "ln2": "post_attention_layernorm"}
NEOX |= {"QKV": "attention.query_key_value", "O": "attention.dense", "ln_final": "final_layer_norm"}
NEOX |= {"in": "mlp.dense_h_to_4h", "out": "mlp.dense_4h_to_h"}
BLOOM = {**NEOX, "embed": "word_embeddings", "embed_norm": "word_embeddings_layernorm", "ln_final": "ln_f"}
BLOOM |= {"QKV": "self_attention.query_key_value", "O": "self_attention.dense"}

ARCHITECTURE = "TransformerLensNative"  # what the model inside a native bridge is called
# Constants that checkpoints of Hugging Face carry along, by the end of their name.
BUFFERS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".inv_freq")


def renamed(naming: Naming, fields: Mapping[str, Any], weights: Weights, tied: bool = False) -> Weights:
    """Weights under this model's names. They are taken out of `weights`: what has no place here is left there.

    A bias that is not there is zero.
    """
    heads, d_head, names = fields["n_heads"], fields["d_head"], naming.names

    def linear(name: str) -> tuple[Tensor, Tensor]:
        """A matrix [out, in] and a bias [out]."""
        matrix = take(weights, f"{name}.weight")
        matrix = matrix.t() if naming.transposed else matrix
        return matrix, weights.pop(f"{name}.bias", torch.zeros(len(matrix)))

    def norm(theirs: str, ours: str) -> Weights:
        scale = take(weights, f"{theirs}.weight")
        shift = weights.pop(f"{theirs}.bias", None)
        return {f"{ours}.w": scale} if shift is None else {f"{ours}.w": scale, f"{ours}.b": shift}

    def by_head(x: Tensor) -> Tensor:
        """[out, …] to [map, head or group of them, d_head, …]"""
        if naming.joined == "by head":
            return x.view(heads, 3, d_head, *x.shape[1:]).transpose(0, 1)
        if naming.joined == "all":
            return x.reshape(3, heads, d_head, *x.shape[1:])
        return x.view(1, -1, d_head, *x.shape[1:])

    table = take(weights, f"{names['embed']}.weight")
    ours: Weights = {"embed.W_E": table}
    if "embed_norm" in names:
        scale, shift = (take(weights, f"{names['embed_norm']}.{part}") for part in ("weight", "bias"))
        ours["embed.W_E"] = F.layer_norm(table, (table.shape[1],), scale, shift, fields["eps"])
    if fields["scheme"] == "learned":
        ours["pos_embed.W_pos"] = take(weights, f"{names['pos_embed']}.weight")
    for layer in range(fields["n_layers"]):
        theirs, block = naming.layer.format(layer), f"blocks.{layer}."
        ours |= norm(f"{theirs}{names['ln1']}", f"{block}ln1")
        for maps in ("Q", "K", "V") if naming.joined == "no" else ("QKV",):
            matrices, biases = map(by_head, linear(theirs + names[maps]))
            for name, matrix, bias in zip(maps, matrices, biases):
                ours[f"{block}attn.W_{name}"] = written_out(matrix, heads).transpose(1, 2)
                ours[f"{block}attn.b_{name}"] = written_out(bias, heads)
        matrix, ours[f"{block}attn.b_O"] = linear(theirs + names["O"])
        ours[f"{block}attn.W_O"] = matrix.t().reshape(heads, d_head, -1)
        ours |= norm(f"{theirs}{names['ln2']}", f"{block}ln2")
        for side in ("in", "out"):
            matrix, ours[f"{block}mlp.b_{side}"] = linear(theirs + names[side])
            ours[f"{block}mlp.W_{side}"] = matrix.t()
        if fields["gated_mlp"]:
            ours[f"{block}mlp.W_gate"] = take(weights, f"{theirs}{names['gate']}.weight").t()
    ours |= norm(names["ln_final"], "ln_final")
    matrix, bias = (weights.pop(f"{naming.unembed}.{part}", None) for part in ("weight", "bias"))
    matrix = table if tied else matrix
    if matrix is None:
        name = f"{naming.unembed}.weight"
        raise UserError(f"the model has no weights '{name}', so it gives no logits: save the model with its head")
    return ours | {"unembed.W_U": matrix.t(), "unembed.b_U": torch.zeros(len(matrix)) if bias is None else bias}


def take(weights: Weights, name: str) -> Tensor:
    """A weight that has to be there; it is taken out."""
    if name not in weights:
        raise UserError(f"the model has no weights '{name}', which its config asks for")
    return weights.pop(name)


def written_out(grouped: Tensor, heads: int) -> Tensor:
    """Keys or values that heads share, for each head: [group, …] to [head, …]."""
    if heads % len(grouped):
        raise UserError(f"{heads} heads cannot share {len(grouped)} groups of keys")
    return grouped.repeat_interleave(heads // len(grouped), 0)


# -- TransformerLens -----------------------------------------------------------------------------------------------

HOOKED_BUFFERS = ("mask", "IGNORE", "rotary_sin", "rotary_cos")  # constants that old checkpoints carry along
GROUPED = ("W_K", "b_K", "W_V", "b_V")  # what heads may share
# Features of HookedTransformer that this model does not have, each with the only values under which it is absent.
SWITCHES = (
    "load_in_4bit qk_norm_after_rope rmsnorm_uses_offset scale_attn_by_inverse_layer_idx use_NTK_by_parts_rope "
    "use_attention_sinks use_dynamic_ntk_rope use_local_attn use_logn_attn use_normalization_before_and_after "
    "use_qk_norm use_yarn_rope"
)
HOOKED_ABSENT: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(SWITCHES.split(), (False,)),
    **dict.fromkeys(("clip_qkv", "num_experts", "rope_scaling", "rotary_base_local"), (None,)),
    **dict.fromkeys(("per_layer_head_dim", "per_layer_num_key_value_heads"), (None,)),
    "scale_embedding": (None, False),
    **dict.fromkeys(("attn_scores_soft_cap", "output_logits_soft_cap"), (-1.0, 0, None)),
    "attention_dir": ("causal",),
    "rotary_scaling_factor": (1.0,),
}
ACTIVATIONS = {
    **{name: name for name in ("gelu", "gelu_new", "gelu_fast", "relu", "silu")},
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_python": "gelu",
    "swish": "silu",
}


def read_hooked(hooked: Config, weights: Weights) -> Read:
    """Fields and weights of a HookedTransformer or a TransformerBridge."""
    for name, absent in HOOKED_ABSENT.items():
        if name in hooked and hooked[name] not in absent:
            raise UserError(f"a HookedTransformer with {name}={shown(hooked[name])} has no equivalent here")
    fields = hooked_fields(hooked)
    if "embed.weight" in weights:
        raise UserError("the state dict of a bridge has the layout of its model: save bridge.tl_parameters() instead")
    ours = {}
    for name, value in weights.items():
        place, _, last = name.rpartition(".")
        part = last.removeprefix("_")  # of grouped keys and values the names begin with it
        unused = fields["scheme"] == "alibi" and name == "pos_embed.W_pos"  # made by TransformerLens, and never read
        if unused or last in HOOKED_BUFFERS or (fields["attn_only"] and ".mlp." in name):  # zeros, of a bridge
            continue
        ours[f"{place}.{part}"] = written_out(value, fields["n_heads"]) if part in GROUPED else value
    if hooked.get("post_embedding_ln"):
        scale, shift = ours.pop("embed.ln.w", None), ours.pop("embed.ln.b", None)
        ours["embed.W_E"] = F.layer_norm(ours["embed.W_E"], (fields["d_model"],), scale, shift, fields["eps"])
    return fields, ours


def hooked_fields(hooked: Config) -> dict[str, Any]:
    """A HookedTransformerConfig, as a dict, in the fields of a `ModelConfig`."""
    map_of(anything())(hooked, "a HookedTransformerConfig")
    try:
        sizes = {name: hooked[name] for name in ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx")}
    except KeyError as error:
        raise UserError(f"the HookedTransformerConfig has no {error}") from None
    rotary = {"base": hooked.get("rotary_base", 10000), "rotary_dim": hooked.get("rotary_dim")}
    native = hooked.get("architecture") == ARCHITECTURE  # which turns adjacent pairs, whatever the config says
    rotary["adjacent_pairs"] = native or bool(hooked.get("rotary_adjacent_pairs", False))
    slopes = "published" if hooked.get("architecture") else "transformer-lens"  # a bridge computes what its model does
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "standard": ("learned", {}),
        "rotary": ("rope", rotary),
        "shortformer": ("shortformer", {}),
        "alibi": ("alibi", {"slopes": slopes}),
    }
    kind = text()(hooked.get("positional_embedding_type", "standard"), "positional_embedding_type")
    if kind not in kinds:
        raise UserError(
            f"positional_embedding_type {shown(kind)} has no equivalent here; those that do: {', '.join(kinds)}"
        )
    attn_only = bool(hooked.get("attn_only", False))
    given_scale = float(real()(hooked.get("attn_scale", -1.0), "attn_scale"))
    attn_scale = given_scale if hooked.get("use_attn_scale", True) else 1.0
    norm, act_fn = hooked.get("normalization_type", "LN"), "gelu" if attn_only else hooked.get("act_fn", "relu")
    if hooked.get("final_rms") and norm not in ("RMS", "RMSPre"):
        raise UserError(
            f"a HookedTransformer with final_rms and normalization_type {shown(norm)} has no equivalent here"
        )
    return dict(
        **sizes,
        d_mlp=None if attn_only else hooked.get("d_mlp"),
        d_vocab_out=None if hooked.get("d_vocab_out", -1) == -1 else hooked["d_vocab_out"],
        scheme=kinds[kind][0],
        scheme_options=kinds[kind][1],
        act_fn=ACTIVATIONS.get(str(act_fn), act_fn),
        normalization_type=norm,
        eps=hooked.get("eps", 1e-5),
        attn_only=attn_only,
        attn_scale=attn_scale if attn_scale > 0 else None,
        gated_mlp=not attn_only and bool(hooked.get("gated_mlp", False)),
        parallel_attn_mlp=not attn_only and bool(hooked.get("parallel_attn_mlp", False)),
    )


# -- Hugging Face --------------------------------------------------------------------------------------------------

# Features that this model does not have, each with the only values under which it is absent.
ABSENT: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("add_cross_attention", "scale_attn_by_inverse_layer_idx", "mlp_bias"), (False,)),
    **dict.fromkeys(("apply_residual_connection_post_layernorm", "use_sliding_window"), (False,)),
    **dict.fromkeys(("quantization_config", "attn_logit_softcapping", "final_logit_softcapping"), (None,)),
    **dict.fromkeys(("num_local_experts", "num_experts"), (None, 0)),
}


def gpt2(config: Config) -> dict[str, Any]:
    """Learned positions."""
    fields = architecture(config, "n_embd", "n_head", "n_layer", "n_positions")
    fields |= activation(config, config.get("activation_function", "gelu_new"))
    fields |= {"scheme": "learned", "d_mlp": config.get("n_inner") or 4 * fields["d_model"]}
    fields["attn_scale"] = None if config.get("scale_attn_weights", True) else 1.0
    return fields | {"eps": config.get("layer_norm_epsilon", 1e-5)}


def llama(config: Config) -> dict[str, Any]:
    """Rotary positions, RMS norm, gated MLP, keys and values in groups; Mistral and Qwen2 are of the same build."""
    if config.get("sliding_window") is not None and config.get("use_sliding_window", True):
        raise refusal(config, "sliding_window", config["sliding_window"])
    fields = architecture(config, "hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")
    fields["d_head"] = config.get("head_dim") or fields["d_head"]
    fields |= activation(config, config.get("hidden_act", "silu")) | rotary(config, fields["d_head"])
    fields |= {"d_mlp": size(config, "intermediate_size"), "gated_mlp": True}
    return fields | {"normalization_type": "RMS", "eps": config.get("rms_norm_eps", 1e-6)}


def gpt_neox(config: Config) -> dict[str, Any]:
    """Rotary positions on a part of each head, attention and MLP side by side."""
    fields = architecture(config, "hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")
    fields |= activation(config, config.get("hidden_act", "gelu"))
    fields |= rotary(config, fields["d_head"], config.get("rotary_pct", 0.25))
    fields |= {"d_mlp": size(config, "intermediate_size"), "eps": config.get("layer_norm_eps", 1e-5)}
    return fields | {"parallel_attn_mlp": bool(config.get("use_parallel_residual", True))}


def bloom(config: Config) -> dict[str, Any]:
    """ALiBi with the published slopes, and a norm after the embedding."""
    width = "hidden_size" if "hidden_size" in config else "n_embed"
    fields = architecture(config, width, "n_head", "n_layer", "seq_length")
    fields |= activation(config, "gelu_new")  # BLOOM's gelu is that by tanh
    return fields | {"scheme": "alibi", "d_mlp": 4 * fields["d_model"], "eps": config.get("layer_norm_epsilon", 1e-5)}


LLAMA_NAMING = Naming("model.", "layers.{}.", LLAMA)
KINDS: dict[str, tuple[Callable[[Config], dict[str, Any]], Naming]] = {
    "gpt2": (gpt2, Naming("transformer.", "h.{}.", GPT2, joined="all", transposed=True, tied=True)),
    **dict.fromkeys(("llama", "mistral", "qwen2"), (llama, LLAMA_NAMING)),
    "gpt_neox": (gpt_neox, Naming("gpt_neox.", "layers.{}.", NEOX, joined="by head", unembed="embed_out")),
    "bloom": (bloom, Naming("transformer.", "h.{}.", BLOOM, joined="by head", tied=True)),
}


def read_huggingface(config: Config, weights: Weights) -> Read:
    """Fields and weights of a model of the kind that its config names."""
    for name, absent in ABSENT.items():
        if name in config and config[name] not in absent:
            raise refusal(config, name, config[name])
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise refusal(config, "layer_types", sorted(set(config["layer_types"])))
    read, naming = KINDS[config["model_type"]]
    fields = read(config)
    plain = {name.removeprefix(naming.prefix): value for name, value in weights.items()}
    plain = {name: value for name, value in plain.items() if not f".{name}".endswith(BUFFERS)}
    ours = renamed(naming, fields, plain, config.get("tie_word_embeddings", naming.tied))
    if plain:
        raise UserError(f"the {config['model_type']} model has weights '{min(plain)}', which have no equivalent here")
    return {**fields, "d_vocab": len(ours["embed.W_E"]), "d_vocab_out": ours["unembed.W_U"].shape[1]}, ours


def refusal(config: Config, name: str, value: object) -> UserError:
    return UserError(f"a {config.get('model_type')} model with {name}={value!r} has no equivalent here")


def size(config: Config, name: str) -> int:
    """A size that the config has to name."""
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise UserError(f"the config of the {config.get('model_type')} model has {name}={value!r}, no size")
    return value


def architecture(config: Config, width: str, heads: str, layers: str, context: str) -> dict[str, Any]:
    """The sizes that all kinds have, by what the config calls them."""
    d_model, n_heads, n_layers = (size(config, name) for name in (width, heads, layers))
    sizes = {"n_layers": n_layers, "n_heads": n_heads, "d_model": d_model, "d_head": d_model // n_heads}
    return {**sizes, "n_ctx": config.get(context) or 2048, "normalization_type": "LN", "gated_mlp": False}


def activation(config: Config, name: str) -> dict[str, Any]:
    if name not in ACTIVATIONS:
        raise refusal(config, "activation", name)
    return {"act_fn": ACTIVATIONS[name]}


def rotary(config: Config, d_head: int, share: float = 1.0) -> dict[str, Any]:
    """The rotary scheme of a config, in the form of transformers 5 (rope_parameters) or before (rope_scaling)."""
    told: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = told.get("rope_type", told.get("type", "default"))
    base = told.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    width = int(d_head * told.get("partial_rotary_factor", config.get("partial_rotary_factor", share)))
    options: dict[str, Any] = {"base": float(base), "rotary_dim": None if width == d_head else width}
    if kind == "default":
        return {"scheme": "rope", "scheme_options": options}
    original = told.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    options |= {"original_length": original, "scaling": told.get("factor")}
    if kind == "linear":
        return {"scheme": "rope-pi", "scheme_options": options}
    plain = not any(told.get(name) for name in ("mscale", "mscale_all_dim")) and told.get("truncate", True)
    if kind == "yarn" and plain:
        ramp = {name: float(told[name]) for name in ("beta_fast", "beta_slow") if told.get(name)}
        options |= {**ramp, "attention_factor": told.get("attention_factor")}
        return {"scheme": "rope-yarn", "scheme_options": options}
    raise refusal(config, "rope_type", kind)


# -- the way back --------------------------------------------------------------------------------------------------

SHARED_FIELDS = (
    *("d_model", "d_head", "n_layers", "n_heads", "n_ctx", "d_mlp", "d_vocab", "d_vocab_out"),
    *("act_fn", "attn_only", "normalization_type", "eps", "attn_scale", "dtype"),
)
SCHEMES_THERE = ("learned", "rope")
ACTIVATIONS_THERE = ("gelu", "gelu_new", "relu", "silu", "solu")


def to_bridge(model: Any) -> Any:
    """A TransformerBridge around TransformerLens' native model with copies of the weights: equal logits.

    The native model rotates adjacent pairs. A ``rope`` that rotates halves is carried over by reordering each head's
    queries and keys, which changes neither scores nor logits; only there are `hook_q` and `hook_k` reordered.
    """
    from transformer_lens.config import TransformerBridgeConfig  # slow to import, all three
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
    from transformer_lens.model_bridge.sources.native import NativeModel

    config, cfg = model.config, model.cfg
    unavailable = {
        f"scheme '{config.scheme}', only {' and '.join(SCHEMES_THERE)}": config.scheme not in SCHEMES_THERE,
        f"score_scaling '{config.score_scaling}'": config.score_scaling != "none",
        f"act_fn '{config.act_fn}'": config.act_fn not in ACTIVATIONS_THERE,
        "attn_scale 1": cfg.attn_scale == 1 and cfg.d_head > 1,
        f"attn_normalization '{config.attn_normalization}'": config.attn_normalization != "softmax",
        "attn_sink": config.attn_sink,
        "gated_mlp": cfg.gated_mlp,
        "parallel_attn_mlp": cfg.parallel_attn_mlp,
    }
    for feature, asked_for in unavailable.items():
        if asked_for:
            raise UserError(f"TransformerLens 4 has no native model with {feature}")
    rope = config.scheme == "rope"
    options: Any = model.pos_embed.options
    bridge_config = TransformerBridgeConfig(
        **{name: getattr(cfg, name) for name in SHARED_FIELDS},
        positional_embedding_type="rotary" if rope else "standard",
        rotary_dim=(options.rotary_dim or cfg.d_head) if rope else None,
        rotary_base=options.base if rope else 10000,
        architecture=ARCHITECTURE,
    )
    native = NativeModel(bridge_config)
    native.head = nn.Linear(cfg.d_model, cfg.d_vocab_out)  # TransformerLens' own has no bias
    native.load_state_dict(native_weights(model))
    native = native.to(cfg.device, cfg.dtype).train(model.training)
    same = {"tl_config": native.cfg, "dtype": cfg.dtype, "device": cfg.device}
    return build_bridge_from_module(native, architecture=ARCHITECTURE, tokenizer=None, model_name="native", **same)


def native_weights(model: Any) -> Weights:
    """The weights of a `HookedModel` under the names of TransformerLens' native model.

    Halves rotate 0 with 2 and 1 with 3 in a head of four; in the order 0, 2, 1, 3 the two of a pair are neighbours.
    """
    columns, options = torch.arange(model.cfg.d_head), model.pos_embed.options
    if model.config.scheme == "rope" and not options.adjacent_pairs:
        width = options.rotary_dim or model.cfg.d_head
        columns[:width] = torch.arange(width).view(2, -1).t().flatten()
    weights = {"tok_embed.weight": model.W_E, "head.weight": model.W_U.t(), "head.bias": model.b_U}
    if model.config.scheme == "learned":
        weights["pos.weight"] = model.W_pos
    norms = {"ln_out": model.ln_final}
    for layer, block in enumerate(model.blocks):
        norms[f"layers.{layer}.ln1"], there = block.ln1, f"layers.{layer}.attn."
        for name, order in (("Q", columns), ("K", columns), ("V", columns.sort().values)):
            matrix, bias = getattr(block.attn, f"W_{name}"), getattr(block.attn, f"b_{name}")
            weights[f"{there}{name.lower()}.weight"] = matrix[:, :, order].transpose(1, 2).flatten(0, 1)
            weights[f"{there}{name.lower()}.bias"] = bias[:, order].flatten()
        weights |= {f"{there}o.weight": block.attn.W_O.flatten(0, 1).t(), f"{there}o.bias": block.attn.b_O}
        if model.cfg.attn_only:
            continue
        norms[f"layers.{layer}.ln2"] = block.ln2
        for side in ("in", "out"):
            weights[f"layers.{layer}.mlp.fc_{side}.weight"] = getattr(block.mlp, f"W_{side}").t()
            weights[f"layers.{layer}.mlp.fc_{side}.bias"] = getattr(block.mlp, f"b_{side}")
    for there, norm in norms.items():
        for name, parameter in norm.named_parameters():
            weights[f"{there}.{'weight' if name == 'w' else 'bias'}"] = parameter
    return weights
