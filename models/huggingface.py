"""Models of Hugging Face in this project's terms: fields of a `ModelConfig`, weights under HookedTransformer's names.

One function for each kind of model (`model_type` in its config.json). It takes the weights it knows out of a
dictionary; what is left over, or set in the config to something that this model does not have, is refused by name.

Grouped keys and values are written out, one for each head, and a norm of the embedding is applied to the table once:
both compute the same, and every hook then has the shape that it has in all other models.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthlens.errors import UserError

Config = Mapping[str, Any]
Weights = dict[str, Tensor]
Read = tuple[dict[str, Any], Weights]

ACTIVATIONS = {
    **{name: name for name in ("gelu", "gelu_new", "gelu_fast", "relu", "silu")},
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_python": "gelu",
    "swish": "silu",
}
# Features that this model does not have, each with the only values under which it is absent.
ABSENT: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("add_cross_attention", "scale_attn_by_inverse_layer_idx", "mlp_bias"), (False,)),
    **dict.fromkeys(("apply_residual_connection_post_layernorm", "use_sliding_window"), (False,)),
    **dict.fromkeys(("quantization_config", "attn_logit_softcapping", "final_logit_softcapping"), (None,)),
    **dict.fromkeys(("num_local_experts", "num_experts"), (None, 0)),
}
BUFFERS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".inv_freq")  # constants


def gpt2(config: Config, weights: Weights) -> Read:
    """Learned positions, fused queries, keys and values, matrices [in, out]."""
    width, heads, layers = (size(config, name) for name in ("n_embd", "n_head", "n_layer"))
    weights = stripped(weights, "transformer.")
    found = {"embed.W_E": seen(weights, "wte.weight"), "pos_embed.W_pos": take(weights, "wpe.weight")}
    for layer in range(layers):
        theirs, ours = f"h.{layer}.", f"blocks.{layer}."
        found |= norm(weights, f"{theirs}ln_1", f"{ours}ln1") | norm(weights, f"{theirs}ln_2", f"{ours}ln2")
        matrix, bias = take(weights, f"{theirs}attn.c_attn.weight"), take(weights, f"{theirs}attn.c_attn.bias")
        for name, part, shift in zip("QKV", matrix.t().chunk(3), bias.chunk(3)):
            found |= head_maps(f"{ours}attn", name, part, shift, heads)
        out = take(weights, f"{theirs}attn.c_proj.weight").t()
        found |= attention_out(f"{ours}attn", out, take(weights, f"{theirs}attn.c_proj.bias"), heads)
        for side, name in (("in", "c_fc"), ("out", "c_proj")):
            found[f"{ours}mlp.W_{side}"] = take(weights, f"{theirs}mlp.{name}.weight")
            found[f"{ours}mlp.b_{side}"] = take(weights, f"{theirs}mlp.{name}.bias")
    found |= norm(weights, "ln_f", "ln_final") | unembedding(config, weights, "wte.weight", tied=True)
    scaled = config.get("scale_attn_weights", True)
    fields = architecture(config, layers, heads, width, "n_positions", config.get("activation_function", "gelu_new"))
    fields |= {"scheme": "learned", "d_mlp": config.get("n_inner") or 4 * width, "attn_scale": None if scaled else 1.0}
    fields["eps"] = config.get("layer_norm_epsilon", 1e-5)
    return finished(config, fields, found, weights)


def llama(config: Config, weights: Weights) -> Read:
    """Rotary positions, RMS norm, gated MLP, keys and values in groups; Mistral and Qwen2 are of the same build."""
    width, heads, layers = (size(config, n) for n in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if config.get("sliding_window") is not None and config.get("use_sliding_window", True):
        raise refusal(config, "sliding_window", config["sliding_window"])
    weights, d_head = stripped(weights, "model."), config.get("head_dim") or width // heads
    found = {"embed.W_E": seen(weights, "embed_tokens.weight")}
    for layer in range(layers):
        theirs, ours = f"layers.{layer}.", f"blocks.{layer}."
        found |= norm(weights, f"{theirs}input_layernorm", f"{ours}ln1")
        found |= norm(weights, f"{theirs}post_attention_layernorm", f"{ours}ln2")
        for name in "QKV":
            matrix = take(weights, f"{theirs}self_attn.{name.lower()}_proj.weight")
            shift = weights.pop(f"{theirs}self_attn.{name.lower()}_proj.bias", torch.zeros(len(matrix)))
            matrix, shift = (
                written_out(x.view(-1, d_head, *x.shape[1:]), heads).flatten(0, 1) for x in (matrix, shift)
            )
            found |= head_maps(f"{ours}attn", name, matrix, shift, heads)
        shift = weights.pop(f"{theirs}self_attn.o_proj.bias", torch.zeros(width))
        found |= attention_out(f"{ours}attn", take(weights, f"{theirs}self_attn.o_proj.weight"), shift, heads)
        for ours_name, name in (("W_gate", "gate_proj"), ("W_in", "up_proj"), ("W_out", "down_proj")):
            found[f"{ours}mlp.{ours_name}"] = take(weights, f"{theirs}mlp.{name}.weight").t()
        found |= {f"{ours}mlp.b_in": torch.zeros(found[f"{ours}mlp.W_in"].shape[1])}
        found |= {f"{ours}mlp.b_out": torch.zeros(width)}
    found |= norm(weights, "norm", "ln_final") | unembedding(config, weights, "embed_tokens.weight", tied=False)
    fields = architecture(
        config, layers, heads, width, "max_position_embeddings", config.get("hidden_act", "silu"), d_head
    )
    fields |= rotary(config, d_head) | {"d_mlp": size(config, "intermediate_size"), "gated_mlp": True}
    fields |= {"normalization_type": "RMS", "eps": config.get("rms_norm_eps", 1e-6)}
    return finished(config, fields, found, weights)


def gpt_neox(config: Config, weights: Weights) -> Read:
    """Rotary positions on a part of each head, attention and MLP side by side."""
    width, heads, layers = (size(config, n) for n in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    weights = stripped(weights, "gpt_neox.")
    found = {"embed.W_E": seen(weights, "embed_in.weight")}
    for layer in range(layers):
        found |= fused_layer(weights, f"layers.{layer}.", f"blocks.{layer}.", "attention", heads)
    found |= norm(weights, "final_layer_norm", "ln_final")
    found |= unembedding(config, weights, "embed_in.weight", tied=False, name="embed_out.weight")
    fields = architecture(config, layers, heads, width, "max_position_embeddings", config.get("hidden_act", "gelu"))
    fields |= rotary(config, width // heads, config.get("rotary_pct", 0.25))
    fields |= {"d_mlp": size(config, "intermediate_size"), "eps": config.get("layer_norm_eps", 1e-5)}
    fields["parallel_attn_mlp"] = bool(config.get("use_parallel_residual", True))
    return finished(config, fields, found, weights)


def bloom(config: Config, weights: Weights) -> Read:
    """ALiBi with the published slopes, and a norm behind the embedding."""
    width = size(config, "hidden_size" if "hidden_size" in config else "n_embed")
    heads, layers, eps = size(config, "n_head"), size(config, "n_layer"), config.get("layer_norm_epsilon", 1e-5)
    weights = stripped(weights, "transformer.")
    scale, shift = (take(weights, f"word_embeddings_layernorm.{part}") for part in ("weight", "bias"))
    found = {"embed.W_E": F.layer_norm(seen(weights, "word_embeddings.weight"), (width,), scale, shift, eps)}
    for layer in range(layers):
        found |= fused_layer(weights, f"h.{layer}.", f"blocks.{layer}.", "self_attention", heads)
    found |= norm(weights, "ln_f", "ln_final") | unembedding(config, weights, "word_embeddings.weight", tied=True)
    fields = architecture(config, layers, heads, width, "seq_length", "gelu_new")  # its own gelu is that by tanh
    return finished(config, {**fields, "scheme": "alibi", "d_mlp": 4 * width, "eps": eps}, found, weights)


ARCHITECTURES: dict[str, Callable[[Config, Weights], Read]] = {
    "gpt2": gpt2,
    "llama": llama,
    "mistral": llama,
    "qwen2": llama,
    "gpt_neox": gpt_neox,
    "bloom": bloom,
}


def read_huggingface(config: Config, weights: Weights) -> Read:
    """Fields and weights of a model of the kind that its config names."""
    for name, absent in ABSENT.items():
        if name in config and config[name] not in absent:
            raise refusal(config, name, config[name])
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise refusal(config, "layer_types", sorted(set(config["layer_types"])))
    return ARCHITECTURES[config["model_type"]](config, weights)


# -- parts that several kinds share --------------------------------------------------------------------------------


def refusal(config: Config, name: str, value: object) -> UserError:
    return UserError(f"a {config.get('model_type')} model with {name}={value!r} has no equivalent here")


def size(config: Config, name: str) -> int:
    """A size that the config has to name."""
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise UserError(f"the config of the {config.get('model_type')} model has {name}={value!r}, no size")
    return value


def seen(weights: Weights, name: str) -> Tensor:
    """A weight that has to be there."""
    if name not in weights:
        raise UserError(f"the model has no weights '{name}', which its config asks for")
    return weights[name]


def take(weights: Weights, name: str) -> Tensor:
    """A weight that has to be there; it is taken out, so that what has no place here is left over."""
    found = seen(weights, name)
    del weights[name]
    return found


def stripped(weights: Weights, prefix: str) -> Weights:
    """The weights with the prefix of the model inside the language model left out, and without constants."""
    plain = {name.removeprefix(prefix): value for name, value in weights.items()}
    return {name: value for name, value in plain.items() if not f".{name}".endswith(BUFFERS)}


def norm(weights: Weights, theirs: str, ours: str) -> Weights:
    found = {f"{ours}.w": take(weights, f"{theirs}.weight")}
    return found | ({f"{ours}.b": weights.pop(f"{theirs}.bias")} if f"{theirs}.bias" in weights else {})


def head_maps(ours: str, name: str, matrix: Tensor, bias: Tensor, heads: int) -> Weights:
    """W_Q and b_Q, say, from a matrix [head·d_head, d_model] and a bias."""
    split = matrix.reshape(heads, -1, matrix.shape[1]).transpose(1, 2)  # [head, d_model, d_head]
    return {f"{ours}.W_{name}": split, f"{ours}.b_{name}": bias.reshape(heads, -1)}


def attention_out(ours: str, matrix: Tensor, bias: Tensor, heads: int) -> Weights:
    """W_O and b_O from a matrix [d_model, head·d_head] and a bias."""
    return {f"{ours}.W_O": matrix.t().reshape(heads, -1, len(matrix)), f"{ours}.b_O": bias}


def written_out(grouped: Tensor, heads: int) -> Tensor:
    """What groups of heads share, for each head: [group, …] to [head, …]."""
    if heads % len(grouped):
        raise UserError(f"{heads} heads cannot share {len(grouped)} groups of keys")
    return grouped.repeat_interleave(heads // len(grouped), 0)


def fused_layer(weights: Weights, theirs: str, ours: str, attention: str, heads: int) -> Weights:
    """A layer of GPT-NeoX or BLOOM: queries, keys and values of a head stand together in one matrix."""
    found = norm(weights, f"{theirs}input_layernorm", f"{ours}ln1")
    found |= norm(weights, f"{theirs}post_attention_layernorm", f"{ours}ln2")
    matrix = take(weights, f"{theirs}{attention}.query_key_value.weight")  # [head·3·d_head, d_model]
    width = matrix.shape[1]
    bias = weights.pop(f"{theirs}{attention}.query_key_value.bias", torch.zeros(len(matrix)))
    by_head, bias_by_head = matrix.view(heads, 3, -1, width), bias.view(heads, 3, -1)
    for place, name in enumerate("QKV"):
        found |= head_maps(f"{ours}attn", name, by_head[:, place].flatten(0, 1), bias_by_head[:, place], heads)
    shift = weights.pop(f"{theirs}{attention}.dense.bias", torch.zeros(width))
    found |= attention_out(f"{ours}attn", take(weights, f"{theirs}{attention}.dense.weight"), shift, heads)
    for side, name in (("in", "dense_h_to_4h"), ("out", "dense_4h_to_h")):
        found[f"{ours}mlp.W_{side}"] = take(weights, f"{theirs}mlp.{name}.weight").t()
        found[f"{ours}mlp.b_{side}"] = take(weights, f"{theirs}mlp.{name}.bias")
    return found


def unembedding(config: Config, weights: Weights, embed: str, tied: bool, name: str = "lm_head.weight") -> Weights:
    """W_U, from a matrix of its own or from the embedding. `tied` is what the kind does if the config does not say."""
    own, table = weights.pop(name, None), take(weights, embed)
    if config.get("tie_word_embeddings", tied):
        own = table
    if own is None:
        raise UserError(f"the model has no weights '{name}', so it gives no logits: save the model with its head")
    return {"unembed.W_U": own.t(), "unembed.b_U": torch.zeros(len(own))}


def architecture(
    config: Config, layers: int, heads: int, width: int, context: str, act_fn: str, d_head: int | None = None
) -> dict[str, Any]:
    """The fields that all kinds have."""
    if act_fn not in ACTIVATIONS:
        raise refusal(config, "activation", act_fn)
    sizes = {"n_layers": layers, "n_heads": heads, "d_model": width, "d_head": d_head or width // heads}
    return sizes | {"n_ctx": config.get(context) or 2048, "act_fn": ACTIVATIONS[act_fn], "normalization_type": "LN"}


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
    if (
        kind == "yarn"
        and not any(told.get(name) for name in ("mscale", "mscale_all_dim"))
        and told.get("truncate", True)
    ):
        ramp = {name: float(told[name]) for name in ("beta_fast", "beta_slow") if told.get(name)}
        options |= {**ramp, "attention_factor": told.get("attention_factor")}
        return {"scheme": "rope-yarn", "scheme_options": options}
    raise refusal(config, "rope_type", kind)


def finished(config: Config, fields: dict[str, Any], found: Weights, left: Weights) -> Read:
    """Fields and weights, if nothing is left over that has no equivalent."""
    if left:
        raise UserError(
            f"the {config.get('model_type')} model has weights '{min(left)}', which have no equivalent here"
        )
    return {**fields, "d_vocab": len(found["embed.W_E"]), "d_vocab_out": found["unembed.W_U"].shape[1]}, found
