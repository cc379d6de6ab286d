"""Checkpoints of HookedTransformer 3.9 compute here what they computed there (made by fixtures/hooked39/make.py)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lengthlens.errors import UserError
from lengthlens.models.transformer import HookedModel

FIXTURES = Path(__file__).parent / "fixtures" / "hooked39"
CASES = sorted(path.stem for path in FIXTURES.glob("*.json"))
FLAGS = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_attn_in")


def fixture(case: str) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    return load_file(FIXTURES / f"{case}.safetensors"), json.loads((FIXTURES / f"{case}.json").read_text())


def part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def test_fixtures_are_there() -> None:
    assert len(CASES) == 15


@pytest.mark.parametrize("case", CASES)
def test_logits_and_every_activation(case: str) -> None:
    tensors, hooked = fixture(case)
    model = HookedModel.from_hooked_state_dict(part(tensors, "weights/"), hooked)
    for flag in FLAGS:
        setattr(model.cfg, flag, hooked[flag])
    torch.testing.assert_close(model(tensors["tokens"]), tensors["logits"], atol=1e-5, rtol=0)
    _, cache = model.run_with_cache(tensors["tokens"])
    expected = part(tensors, "activations/")
    # What shortformer adds is not part of the residual stream, so it has a name of its own here; a norm of the
    # embedding is part of its table.
    embedding = {"embed.ln.hook_scale", "embed.ln.hook_normalized"}
    assert expected.keys() - cache.keys() <= ({"hook_pos_embed"} if "shortformer" in case else embedding)
    for name in expected.keys() & cache.keys():
        value = expected[name]
        if name.endswith(("hook_k", "hook_v", "hook_rot_k")):  # where heads share them, each has its own here
            value = value.repeat_interleave(model.cfg.n_heads // value.shape[2], 2)
        torch.testing.assert_close(cache[name], value, atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gated_mlp": True}, "has no weights 'blocks.0.mlp.W_gate'"),
        ({"use_qk_norm": True}, "use_qk_norm=True has no equivalent"),
        ({"num_experts": 4}, "num_experts=4 has no equivalent"),
        ({"output_logits_soft_cap": 30.0}, "output_logits_soft_cap=30.0 has no equivalent"),
        ({"use_local_attn": True}, "use_local_attn=True has no equivalent"),
        ({"final_rms": True}, "final_rms and normalization_type 'LN' has no equivalent"),
        ({"positional_embedding_type": "relative_positional_bias"}, "those that do: standard, rotary, shortformer"),
        ({"act_fn": "solu_ln"}, "act_fn must be one of"),
        ({"n_layers": 3}, "has no weights 'blocks.2.attn.W_K'"),
        ({"n_layers": 1}, "has weights 'blocks.1.attn.W_K', which the model does not have"),
        ({"d_mlp": 9}, r"'blocks.0.mlp.W_in' of shape \[8, 32\], and the model needs \[8, 9\]"),
    ],
)
def test_what_has_no_equivalent_is_refused(change: dict[str, object], sentence: str) -> None:
    tensors, hooked = fixture("standard")
    with pytest.raises(UserError, match=sentence):
        HookedModel.from_hooked_state_dict(part(tensors, "weights/"), {**hooked, **change})
