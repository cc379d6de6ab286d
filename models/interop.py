"""The same model elsewhere: HookedTransformer checkpoints (TransformerLens up to 3.9), TransformerLens 4's bridge."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.attention import Attention
from lengthlens.models.config import ModelConfig
from lengthlens.models.layers import MLP
from lengthlens.models.pretrained import check_weights
from lengthlens.models.transformer import HookedModel

BUFFERS = ("mask", "IGNORE", "rotary_sin", "rotary_cos")  # constants that old checkpoints carry along

# Features of HookedTransformer that this model does not have, each with the only value under which it is absent.
ABSENT: dict[str, tuple[object, ...]] = {
    "attention_dir": ("causal",),
    "attn_scores_soft_cap": (-1.0, 0, None),
    "clip_qkv": (None,),
    "final_rms": (False,),
    "gated_mlp": (False,),
    "load_in_4bit": (False,),
    "n_key_value_heads": (None,),
    "num_experts": (None,),
    "output_logits_soft_cap": (-1.0, 0, None),
    "parallel_attn_mlp": (False,),
    "post_embedding_ln": (False,),
    "rotary_base_local": (None,),
    "rotary_scaling_factor": (1.0,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_NTK_by_parts_rope": (False,),
    "use_attention_sinks": (False,),
    "use_dynamic_ntk_rope": (False,),
    "use_local_attn": (False,),
    "use_logn_attn": (False,),
    "use_normalization_before_and_after": (False,),
    "use_qk_norm": (False,),
    "use_yarn_rope": (False,),
}


def import_hooked(state_dict: Mapping[str, Tensor], hooked_config: Mapping[str, Any]) -> HookedModel:
    """The model that computes what the HookedTransformer with this state dict and config computes.

    ``import_hooked(old.state_dict(), old.cfg.to_dict())`` for an `old` of the four kinds standard, rotary,
    shortformer and alibi. What this model does not have is refused by name.
    """
    for name, absent in ABSENT.items():
        if name in hooked_config and hooked_config[name] not in absent:
            raise UserError(f"a HookedTransformer with {name}={hooked_config[name]!r} has no equivalent here")
    model = HookedModel(hooked_model_config(hooked_config))
    weights = {name: value for name, value in state_dict.items() if name.rpartition(".")[2] not in BUFFERS}
    if model.config.scheme == "alibi":
        weights.pop("pos_embed.W_pos", None)  # HookedTransformer makes the table and never looks at it
    check_weights(weights, model.state_dict(), "the checkpoint")
    model.to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    return model


def hooked_model_config(hooked: Mapping[str, Any]) -> ModelConfig:
    """A HookedTransformerConfig, as a dict, in this project's terms."""
    try:
        sizes = {name: hooked[name] for name in ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx")}
    except KeyError as error:
        raise UserError(f"the HookedTransformerConfig has no {error}") from None
    attn_only = bool(hooked.get("attn_only", False))
    scheme, options = hooked_scheme(hooked)
    return ModelConfig(
        **sizes,
        d_mlp=None if attn_only else hooked.get("d_mlp"),
        d_vocab_out=None if hooked.get("d_vocab_out", -1) == -1 else hooked["d_vocab_out"],
        scheme=scheme,
        scheme_options=options,
        act_fn="gelu" if attn_only else hooked.get("act_fn", "relu"),
        normalization_type=hooked.get("normalization_type", "LN"),
        eps=hooked.get("eps", 1e-5),
        attn_only=attn_only,
        attn_scale=hooked_attn_scale(hooked),
    )


def hooked_scheme(hooked: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and options of the scheme that a HookedTransformer's positional_embedding_type is."""
    kind = hooked.get("positional_embedding_type", "standard")
    rotary = {
        "base": hooked.get("rotary_base", 10000),
        "rotary_dim": hooked.get("rotary_dim"),
        "adjacent_pairs": bool(hooked.get("rotary_adjacent_pairs", False)),
    }
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "standard": ("learned", {}),
        "rotary": ("rope", rotary),
        "shortformer": ("shortformer", {}),
        "alibi": ("alibi", {"slopes": "transformer-lens"}),
    }
    if kind not in kinds:
        raise UserError(f"positional_embedding_type {kind!r} has no equivalent here; those that do: {', '.join(kinds)}")
    return kinds[kind]


def hooked_attn_scale(hooked: Mapping[str, Any]) -> float | None:
    if not hooked.get("use_attn_scale", True):
        return 1.0
    scale = float(hooked.get("attn_scale", -1.0))
    return None if scale <= 0 else scale


# -- a bridge of TransformerLens 4 -----------------------------------------------------------------------------------

ARCHITECTURE = "TransformerLensNative"
SHARED_FIELDS = (
    *("d_model", "d_head", "n_layers", "n_heads", "n_ctx", "d_mlp", "d_vocab", "d_vocab_out"),
    *("act_fn", "attn_only", "normalization_type", "eps", "attn_scale", "dtype"),
)
SCHEMES_THERE = ("learned", "rope")
ACTIVATIONS_THERE = ("gelu", "gelu_new", "relu", "silu", "solu")


def to_bridge(model: HookedModel) -> Any:
    """A TransformerBridge around TransformerLens' native model with copies of the weights: equal logits.

    The native model rotates adjacent pairs. A ``rope`` that rotates halves is carried over by reordering each head's
    queries and keys, which changes neither scores nor logits; only there are `hook_q` and `hook_k` reordered.
    """
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module  # slow to import
    from transformer_lens.model_bridge.sources.native import NativeModel

    refuse_without_equivalent(model)
    native = NativeModel(bridge_config(model))
    native.head = nn.Linear(model.cfg.d_model, model.cfg.d_vocab_out)  # TransformerLens' own has no bias
    with torch.no_grad():
        copy_weights(model, native)
    native = native.to(model.cfg.device, model.cfg.dtype).train(model.training)
    return build_bridge_from_module(
        native,
        architecture=ARCHITECTURE,
        tl_config=native.cfg,
        tokenizer=None,
        dtype=model.cfg.dtype,
        device=model.cfg.device,
        model_name="native",
    )


def refuse_without_equivalent(model: HookedModel) -> None:
    config = model.config
    if config.scheme not in SCHEMES_THERE:
        raise UserError(
            f"TransformerLens 4 has no native model with scheme '{config.scheme}', only {' and '.join(SCHEMES_THERE)}"
        )
    if config.score_scaling != "none":
        raise UserError(f"TransformerLens 4 has no native model with score_scaling '{config.score_scaling}'")
    if config.act_fn not in ACTIVATIONS_THERE:
        raise UserError(f"TransformerLens 4 has no native model with act_fn '{config.act_fn}'")
    if model.cfg.attn_scale == 1 and model.cfg.d_head > 1:
        raise UserError("TransformerLens 4 has no native model with attn_scale 1")


def bridge_config(model: HookedModel) -> Any:
    from transformer_lens.config import TransformerBridgeConfig

    cfg, rope = model.cfg, model.config.scheme == "rope"
    options: Any = model.pos_embed.options
    shared = {name: getattr(cfg, name) for name in SHARED_FIELDS}
    return TransformerBridgeConfig(
        **shared,
        positional_embedding_type="rotary" if rope else "standard",
        rotary_dim=(options.rotary_dim or cfg.d_head) if rope else None,
        rotary_base=options.base if rope else 10000,
        architecture=ARCHITECTURE,
    )


def copy_weights(model: HookedModel, native: Any) -> None:
    native.tok_embed.weight.copy_(model.W_E)
    if native.pos is not None:
        native.pos.weight.copy_(model.W_pos)
    order = adjacent_order(model)
    for ours, theirs in zip(model.layers, native.layers):
        copy_norm(ours.ln1, theirs.ln1)
        copy_attention(ours.attn, theirs.attn, order)
        if not model.cfg.attn_only:
            copy_norm(ours.ln2, theirs.ln2)
            copy_mlp(ours.mlp, theirs.mlp)
    copy_norm(model.ln_final, native.ln_out)
    native.head.weight.copy_(model.W_U.t())
    native.head.bias.copy_(model.b_U)


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


def copy_norm(ours: nn.Module, theirs: Any) -> None:
    if getattr(ours, "w", None) is not None:
        theirs.weight.copy_(ours.w)
    if getattr(ours, "b", None) is not None:
        theirs.bias.copy_(ours.b)


def copy_attention(ours: Attention, theirs: Any, order: Tensor) -> None:
    same = torch.arange(len(order))
    for name, columns in (("Q", order), ("K", order), ("V", same)):
        weight, bias, linear = (getattr(ours, f"W_{name}"), getattr(ours, f"b_{name}"), getattr(theirs, name.lower()))
        linear.weight.copy_(weight[:, :, columns].transpose(1, 2).flatten(0, 1))
        linear.bias.copy_(bias[:, columns].flatten())
    theirs.o.weight.copy_(ours.W_O.flatten(0, 1).t())
    theirs.o.bias.copy_(ours.b_O)


def copy_mlp(ours: MLP, theirs: Any) -> None:
    theirs.fc_in.weight.copy_(ours.W_in.t())
    theirs.fc_in.bias.copy_(ours.b_in)
    theirs.fc_out.weight.copy_(ours.W_out.t())
    theirs.fc_out.bias.copy_(ours.b_out)
