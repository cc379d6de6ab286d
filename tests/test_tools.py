"""The tools of TransformerLens 4.3, NNsight and CircuitsVis run on a model of every scheme, with numbers checked."""

import subprocess
import sys

import circuitsvis
import nnsight
import pytest
import torch
from transformer_lens import ActivationCache, FactoredMatrix, SVDInterpreter, patching
from transformer_lens.head_detector import detect_head
from transformer_lens.tools.training import TrainConfig, train

from lengthlens.errors import UserError
from lengthlens.models.schemes import scheme_names
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import few, mixed_batch, small_model

NAMES = scheme_names()
EVERY = pytest.mark.parametrize("name", NAMES)
SOME = pytest.mark.parametrize("name", few(NAMES, "none", "rope", "lbpe", "hinted:relative"))
LINE = "^ 7 3 9 = 7 3 9 $"
BY_POS = ("out", "q", "k", "v", "pattern")
PATCHES = [
    *(getattr(patching, f"get_act_patch_{part}") for part in ("resid_pre", "resid_mid", "attn_out", "mlp_out")),
    *(getattr(patching, f"get_act_patch_attn_head_{part}_by_pos") for part in BY_POS),
    *(getattr(patching, f"get_act_patch_attn_head_{part}_all_pos") for part in BY_POS),
]


@EVERY
def test_residual_decomposition_sums_to_the_residual(name: str) -> None:
    model = small_model(name)
    _, cache = model.run_with_cache(LINE)
    assert isinstance(cache, ActivationCache)
    parts, labels = cache.decompose_resid(return_labels=True)
    torch.testing.assert_close(parts.sum(0), cache["resid_post", 1], atol=1e-5, rtol=1e-5)
    assert ("pos_embed" in labels) == ("embed" in model.pos_embed.acts())
    for neurons in (True, False):
        full = cache.get_full_resid_decomposition(expand_neurons=neurons)
        torch.testing.assert_close(full.sum(0), cache["resid_post", 1], atol=1e-5, rtol=1e-5)


@EVERY
def test_logit_attribution_sums_to_the_logit_on_a_folded_copy(name: str) -> None:
    model = small_model(name)
    logits, cache = model.run_with_cache(LINE)
    with pytest.raises(UserError, match=r"use model.folded\(\)"):
        cache.logit_attrs(cache.decompose_resid(), "7")
    if not {"embed_qk", "read"}.isdisjoint(model.pos_embed.acts()):
        with pytest.raises(UserError, match=r"after the norm|reads a layer's input"):
            model.folded()
        model = small_model(name, normalization_type="LNPre")
        with pytest.raises(UserError, match="has no weights to fold"):
            model.folded()
        logits, cache = model.run_with_cache(LINE)
    else:
        model = model.folded()
        folded_logits, cache = model.run_with_cache(LINE)
        torch.testing.assert_close(folded_logits, logits, atol=1e-5, rtol=1e-5)
    shares = cache.logit_attrs(cache.get_full_resid_decomposition(), "7")
    expected = logits[..., model.to_single_token("7")] - model.b_U[model.to_single_token("7")]
    torch.testing.assert_close(shares.sum(0), expected, atol=1e-4, rtol=1e-4)


@SOME
def test_patching_a_clean_activation_into_itself_changes_nothing(name: str) -> None:
    model = small_model(name)
    tokens = model.to_tokens("^ 7 3 = 7 3 $")
    logits, cache = model.run_with_cache(tokens)
    clean = logits[0, 4, 3].item()
    metric = lambda out: out[0, 4, 3]  # noqa: E731
    for patch in PATCHES if name in ("relative", "rope", "learned") else PATCHES[8::5]:
        result = patch(model, tokens, cache, metric)
        torch.testing.assert_close(result, torch.full_like(result, clean), atol=1e-5, rtol=1e-5)


def test_patching_has_effect_and_composes() -> None:
    model = small_model("relative")
    clean, corrupt = model.to_tokens("^ 7 3 = 7 3 $"), model.to_tokens("^ 1 3 = 7 3 $")
    logits, cache = model.run_with_cache(clean)
    result = patching.get_act_patch_resid_pre(model, corrupt, cache, lambda out: out[0, -1, 3])
    # All of the corruption enters at position 1, so the clean residual stream there is the whole clean run.
    torch.testing.assert_close(result[0, 1], logits[0, -1, 3].detach(), atol=1e-5, rtol=1e-5)
    every = patching.get_act_patch_block_every(model, corrupt, cache, lambda out: out[0, -1, 3])
    heads = patching.get_act_patch_attn_head_all_pos_every(model, corrupt, cache, lambda out: out[0, -1, 3])
    assert every.shape == (3, 2, 7)
    assert heads.shape == (5, 2, 3)


@EVERY
def test_detect_head(name: str) -> None:
    model = small_model(name)
    scores = detect_head(model, LINE, "previous_token_head")
    pattern = model.run_with_cache(LINE)[1]["pattern", 1][0, 2]
    expected = pattern.diagonal(-1).sum() / pattern.sum()
    assert scores.shape == (2, 3)
    torch.testing.assert_close(scores[1, 2], expected.detach(), atol=1e-4, rtol=1e-4)


@SOME
def test_svd_interpreter(name: str) -> None:
    model = small_model(name)
    vectors = SVDInterpreter(model).get_singular_vectors("OV", layer_index=1, head_index=2, num_vectors=2)
    _, _, v = torch.linalg.svd(model.W_V[1, 2] @ model.W_O[1, 2])
    expected = (model.W_U.t() @ v[:2].t()).abs()
    torch.testing.assert_close(vectors[:, 0].abs(), expected.detach(), atol=1e-3, rtol=1e-3)
    for kind in ("w_in", "w_out"):
        assert SVDInterpreter(model).get_singular_vectors(kind, layer_index=0, num_vectors=2).shape == (14, 1, 2)


@SOME
def test_training_tool(name: str) -> None:
    model = small_model(name)
    tokens = TASKS["copy"].sample(3, 16, torch.Generator().manual_seed(0)).tokens
    before = model(tokens, return_type="loss").item()
    rows = [{"tokens": row} for row in tokens]
    train(model, TrainConfig(num_epochs=4, batch_size=8, lr=1e-2, device="cpu", print_every=None), rows)
    model.eval()
    assert model(tokens, return_type="loss").item() < before


@EVERY
def test_nnsight(name: str) -> None:
    """Reading and writing through NNsight; the pattern too, which it must not miss on the fused way."""
    model = small_model(name)
    tokens, scale = mixed_batch(22)
    logits, cache = model.run_with_cache(tokens, scale)
    lens = nnsight.NNsight(model)
    with lens.trace(tokens, scale):
        pattern = lens.blocks[0].attn.hook_pattern.output.save()
        residual = lens.blocks[1].hook_resid_post.output.save()
    torch.testing.assert_close(pattern, cache["pattern", 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(residual, cache["resid_post", 1], atol=1e-5, rtol=1e-5)
    with lens.trace(tokens, scale):
        lens.blocks[0].hook_attn_out.output[:] = 0
        changed = lens.unembed.hook_out.output.save()
    zeroed = model.run_with_hooks(tokens, scale, fwd_hooks=[("blocks.0.hook_attn_out", lambda x, hook: 0 * x)])
    torch.testing.assert_close(changed, zeroed, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(changed, logits, atol=1e-4)


def test_circuitsvis() -> None:
    model = small_model("relative")
    _, cache = model.run_with_cache(LINE, remove_batch_dim=True)
    drawn = circuitsvis.attention.attention_patterns(tokens=model.to_str_tokens(LINE), attention=cache["pattern", 0])
    assert "AttentionPatterns" in str(drawn)
    assert cache["pattern", 0].shape == (3, 9, 9)


def test_names_of_weights_and_tokens() -> None:
    model = small_model("learned")
    assert model.all_head_labels() == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    assert model.W_Q.shape == model.W_K.shape == model.W_V.shape == (2, 3, 10, 4)
    assert model.W_O.shape == (2, 3, 4, 10)
    assert model.W_in.shape == (2, 10, 12)
    assert model.W_pos.shape == (128, 10)
    assert isinstance(model.OV, FactoredMatrix)
    torch.testing.assert_close(model.OV.AB[1, 2], model.W_V[1, 2] @ model.W_O[1, 2])
    torch.testing.assert_close(model.QK.AB[0, 1], model.blocks[0].attn.QK.AB[1])
    torch.testing.assert_close(model.accumulated_bias(1, mlp_input=True), model.b_O.sum(0) + model.b_out[0])
    assert model.to_str_tokens(LINE) == LINE.split()
    assert model.to_string(model.to_tokens([LINE, LINE])) == [LINE, LINE]
    torch.testing.assert_close(model.tokens_to_residual_directions("$"), model.W_U[:, model.to_single_token("$")])


@pytest.mark.parametrize(
    "changes",
    [
        {"scheme": "learned"},
        {"scheme": "rope"},
        {"scheme": "rope", "scheme_options": {"rotary_dim": 2, "base": 50.0}, "normalization_type": "RMS"},
        {"scheme": "rope", "scheme_options": {"adjacent_pairs": True}, "normalization_type": "LNPre"},
        {"scheme": "learned", "attn_only": True, "normalization_type": None},
    ],
)
def test_bridge(changes: dict[str, object]) -> None:
    model = small_model(**changes)
    tokens, _ = mixed_batch(22)
    bridge = model.to_bridge()
    torch.testing.assert_close(bridge(tokens), model(tokens), atol=1e-5, rtol=1e-5)
    _, theirs = bridge.run_with_cache(tokens)
    _, ours = model.run_with_cache(tokens)
    torch.testing.assert_close(theirs["blocks.1.attn.hook_pattern"], ours["pattern", 1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scheme": "alibi"}, "no native model with scheme 'alibi'"),
        ({"scheme": "rope", "score_scaling": "log"}, "score_scaling 'log'"),
        ({"scheme": "rope", "act_fn": "gelu_fast"}, "act_fn 'gelu_fast'"),
    ],
)
def test_no_bridge_without_an_equivalent(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        small_model(**changes).to_bridge()


IMPORTED = """
import importlib, sys, {modules}
package = sys.modules.get("transformer_lens") or __import__("transformer_lens")
before = dict(vars(package))
print(type(package), sorted(before), type(package.__spec__.loader))
importlib.reload(package)  # makes again what it defines, and finds what is imported as it was
assert all(vars(package)[name] is value for name, value in before.items() if isinstance(value, type))
"""


def test_the_library_leaves_transformer_lens_as_it_is() -> None:
    """In a fresh process, ``sys.modules["transformer_lens"]`` is what Python imports, whatever of ours is imported."""
    all_of_it = "lengthlens.models, lengthlens.models.transformer, lengthlens.inside.patching, lengthlens.cli"
    printed = []
    for modules in ("lengthlens.models", all_of_it, "transformer_lens"):
        call = [sys.executable, "-c", IMPORTED.format(modules=modules)]
        printed.append(subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout)
    *ours, plain = printed
    assert ours == [plain, plain] and plain.startswith("<class 'module'> ['ActivationCache', ")
