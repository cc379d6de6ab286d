"""HookedTransformer checkpoints (TransformerLens up to 3.9) as models of this project."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.config import ModelConfig
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


def check_weights(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights that are not exactly those of the model, naming the first that is wrong."""
    for name in sorted(given.keys() | wanted.keys()):
        if name not in given:
            raise UserError(f"{source} has no weights '{name}', which the model needs")
        if name not in wanted:
            raise UserError(f"{source} has weights '{name}', which the model does not have")
        got, want = given[name], wanted[name]
        if got.shape != want.shape:
            raise UserError(f"{source} has '{name}' of shape {list(got.shape)}, and the model needs {list(want.shape)}")
        if got.dtype != want.dtype and not (got.is_floating_point() and want.is_floating_point()):
            raise UserError(f"{source} has '{name}' of type {got.dtype}, and the model needs {want.dtype}")
