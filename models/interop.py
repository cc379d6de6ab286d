"""The same model elsewhere: HookedTransformer checkpoints (TransformerLens up to 3.9), TransformerLens 4's bridge."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lengthlens.errors import UserError
from lengthlens.models.config import ModelConfig
from lengthlens.models.huggingface import ACTIVATIONS, written_out
from lengthlens.models.saved import check_weights
from lengthlens.models.transformer import HookedModel
from lengthlens.values import anything, map_of, real, shown, text

BUFFERS = ("mask", "IGNORE", "rotary_sin", "rotary_cos")  # constants that old checkpoints carry along

# Features of HookedTransformer that this model does not have, each with the only values under which it is absent.
SWITCHES = (
    "load_in_4bit qk_norm_after_rope rmsnorm_uses_offset scale_attn_by_inverse_layer_idx use_NTK_by_parts_rope "
    "use_attention_sinks use_dynamic_ntk_rope use_local_attn use_logn_attn use_normalization_before_and_after "
    "use_qk_norm use_yarn_rope"
)
ABSENT: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(SWITCHES.split(), (False,)),
    **dict.fromkeys(("clip_qkv", "num_experts", "rope_scaling", "rotary_base_local"), (None,)),
    **dict.fromkeys(("per_layer_head_dim", "per_layer_num_key_value_heads"), (None,)),
    "scale_embedding": (None, False),
    **dict.fromkeys(("attn_scores_soft_cap", "output_logits_soft_cap"), (-1.0, 0, None)),
    "attention_dir": ("causal",),
    "rotary_scaling_factor": (1.0,),
}

# Of a bridge of TransformerLens 4: what its native model is called, and what it has.
ARCHITECTURE = "TransformerLensNative"
SHARED_FIELDS = (
    *("d_model", "d_head", "n_layers", "n_heads", "n_ctx", "d_mlp", "d_vocab", "d_vocab_out"),
    *("act_fn", "attn_only", "normalization_type", "eps", "attn_scale", "dtype"),
)
SCHEMES_THERE = ("learned", "rope")
ACTIVATIONS_THERE = ("gelu", "gelu_new", "relu", "silu", "solu")


def import_hooked(state_dict: Mapping[str, Tensor], hooked_config: Mapping[str, Any]) -> HookedModel:
    """The model that computes what the HookedTransformer with this state dict and config computes.

    ``import_hooked(old.state_dict(), old.cfg.to_dict())`` for an `old` of the four kinds standard, rotary,
    shortformer and alibi. What this model does not have is refused by name.
    """
    fields, weights = read_hooked(hooked_config, dict(state_dict))
    model = HookedModel(ModelConfig(**fields))
    check_weights(weights, model.state_dict(), "the checkpoint")
    model.to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    return model


def is_hooked_config(config: Mapping[str, Any]) -> bool:
    """Whether this is the config of a HookedTransformer or of a TransformerBridge, as a dict."""
    return "model_type" not in config and all(name in config for name in ("n_layers", "d_model", "d_head", "d_vocab"))


def read_hooked(hooked: Mapping[str, Any], weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fields of a `ModelConfig`, and the weights that it needs, of a HookedTransformer or a TransformerBridge.

    Grouped keys and values are written out for each head, and a norm of the embedding is applied to its table.
    """
    for name, absent in ABSENT.items():
        if name in hooked and hooked[name] not in absent:
            raise UserError(f"a HookedTransformer with {name}={shown(hooked[name])} has no equivalent here")
    fields = hooked_fields(hooked)
    weights = {name: value for name, value in weights.items() if name.rpartition(".")[2] not in BUFFERS}
    if "embed.weight" in weights:
        weights = from_native(hooked, weights)
    if fields["scheme"] == "alibi":
        weights.pop("pos_embed.W_pos", None)  # TransformerLens makes the table and never looks at it
    found = {}
    for name, value in weights.items():
        part = name.rpartition(".")[2].removeprefix("_")  # of grouped keys and values the names begin with it
        if part in ("W_K", "b_K", "W_V", "b_V"):
            value = written_out(value, fields["n_heads"])
        found[name.replace("attn._", "attn.")] = value
    if hooked.get("post_embedding_ln"):
        scale, shift = found.pop("embed.ln.w", None), found.pop("embed.ln.b", None)
        found["embed.W_E"] = F.layer_norm(found["embed.W_E"], (fields["d_model"],), scale, shift, fields["eps"])
    if fields["attn_only"]:  # a bridge lists zeros in the place of what is not there
        found = {name: value for name, value in found.items() if ".mlp." not in name}
    return fields, found


def from_native(hooked: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a bridge around TransformerLens' native model under HookedTransformer's names.

    Around other models matrices are laid out as those have them, which the names do not tell.
    """
    if hooked.get("architecture") != ARCHITECTURE:
        kind = hooked.get("architecture")
        raise UserError(f"the state dict of a bridge around {kind} has its layout: save bridge.tl_parameters() instead")
    heads, found = int(hooked["n_heads"]), {}
    shapes = {"q": "W_Q b_Q", "k": "W_K b_K", "v": "W_V b_V", "o": "W_O b_O"}
    shapes |= {"in": "W_in b_in", "out": "W_out b_out", "gate": "W_gate b_gate", "unembed": "W_U b_U"}
    for name, value in weights.items():
        place, _, kind = name.rpartition(".")
        above, _, last = place.rpartition(".")
        if last in shapes:
            matrix, bias = shapes[last].split()
            if last in "qkv":
                groups = len(value) // int(hooked["d_head"])
                value = value.reshape(groups, -1, *value.shape[1:])
                value = value.transpose(1, 2) if kind == "weight" else value
            elif kind == "weight":
                value = value.t().reshape(heads, -1, len(value)) if last == "o" else value.t()
            found[f"{above or last}.{matrix if kind == 'weight' else bias}"] = value
        else:
            tables = {"embed": "W_E", "pos_embed": "W_pos"}
            found[f"{place}.{tables.get(place, 'w' if kind == 'weight' else 'b')}"] = value
    width, vocab = found["embed.W_E"].shape[1], found["unembed.W_U"].shape[1]
    found.setdefault("unembed.b_U", torch.zeros(vocab))
    for layer in range(int(hooked["n_layers"])):
        if f"blocks.{layer}.mlp.W_in" in found:  # gated, it has no biases
            found.setdefault(f"blocks.{layer}.mlp.b_in", torch.zeros(found[f"blocks.{layer}.mlp.W_in"].shape[1]))
            found.setdefault(f"blocks.{layer}.mlp.b_out", torch.zeros(width))
    return found


def hooked_fields(hooked: Mapping[str, Any]) -> dict[str, Any]:
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


def to_bridge(model: HookedModel) -> Any:
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
    with torch.no_grad():
        for theirs, ours in weight_pairs(model, native):
            theirs.copy_(ours)
    native = native.to(cfg.device, cfg.dtype).train(model.training)
    same = {"tl_config": native.cfg, "dtype": cfg.dtype, "device": cfg.device}
    return build_bridge_from_module(native, architecture=ARCHITECTURE, tokenizer=None, model_name="native", **same)


def weight_pairs(model: HookedModel, native: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Each weight of the native model, and its value."""
    yield native.tok_embed.weight, model.W_E
    if native.pos is not None:
        yield native.pos.weight, model.W_pos
    yield native.head.weight, model.W_U.t()
    yield native.head.bias, model.b_U
    order = adjacent_order(model)
    norms = [(model.ln_final, native.ln_out)]
    for ours, theirs in zip(model.layers, native.layers):
        norms.append((ours.ln1, theirs.ln1))
        for name, columns in (("Q", order), ("K", order), ("V", torch.arange(len(order)))):
            linear = getattr(theirs.attn, name.lower())
            yield linear.weight, getattr(ours.attn, f"W_{name}")[:, :, columns].transpose(1, 2).flatten(0, 1)
            yield linear.bias, getattr(ours.attn, f"b_{name}")[:, columns].flatten()
        yield theirs.attn.o.weight, ours.attn.W_O.flatten(0, 1).t()
        yield theirs.attn.o.bias, ours.attn.b_O
        if not model.cfg.attn_only:
            norms.append((ours.ln2, theirs.ln2))
            for side in ("in", "out"):
                linear = getattr(theirs.mlp, f"fc_{side}")
                yield linear.weight, getattr(ours.mlp, f"W_{side}").t()
                yield linear.bias, getattr(ours.mlp, f"b_{side}")
    for norm, native_norm in norms:
        for name, parameter in norm.named_parameters():
            yield getattr(native_norm, {"w": "weight", "b": "bias"}[name]), parameter


def adjacent_order(model: HookedModel) -> Tensor:
    """Where each dimension of a head goes so that the two of a pair become neighbours. [d_head]

    Halves rotate 0 with 2 and 1 with 3 in a head of four; in the order 0, 2, 1, 3 pairs are adjacent.
    """
    order = torch.arange(model.cfg.d_head)
    options: Any = model.pos_embed.options
    if model.config.scheme == "rope" and not options.adjacent_pairs:
        width = options.rotary_dim or model.cfg.d_head
        order[:width] = torch.arange(width).view(2, -1).t().flatten()
    return order
