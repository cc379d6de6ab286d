"""The model: both ways of attention agree, hooks fire, scales are inferred, nothing assumes a CPU."""

from typing import Any
from unittest import mock

import pytest
import torch

from lengthlens.errors import UserError
from lengthlens.models import attention
from lengthlens.models.attention import LONG
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes import scheme_names
from lengthlens.models.transformer import HookedModel, build
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import few, mixed_batch, small_model

NAMES = scheme_names()
LENGTHS = (1, 2, 22, 100)


def all_scores(model: HookedModel, explicit: bool = True) -> HookedModel:
    """The same model, which from now on computes all scores at once even if nobody looks at them."""
    for block in model.layers:
        block.attn.explicit = explicit
    return model


def gradients(model: HookedModel, tokens: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of a function of all logits, and the logits themselves under the name ''."""
    model.zero_grad()
    logits = model(tokens, scale)
    (logits * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).mean().backward()
    return {"": logits.detach(), **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("score_scaling", ["none", "log"])
@pytest.mark.parametrize("name", few(NAMES, *NAMES[::4]))
def test_fused_equals_explicit(name: str, score_scaling: str) -> None:
    model = small_model(name, score_scaling=score_scaling)
    for length in LENGTHS if score_scaling == "none" else (22,):
        tokens, scale = mixed_batch(length)
        for block in model.layers:
            block.attn.block_elements = 3 * 3 * length * max(1, length // 3)  # several blocks of queries
        fused = gradients(all_scores(model, False), tokens, scale)
        explicit = gradients(all_scores(model), tokens, scale)
        assert fused.keys() == explicit.keys()
        for key, value in explicit.items():
            torch.testing.assert_close(fused[key], value, atol=1e-5, rtol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", NAMES)
def test_long_passes_without_gradients_are_the_same(name: str) -> None:
    """From `LONG` keys on, what a scheme adds to scores is the mask of a fused kernel, also in blocks of queries."""
    model = small_model(name, score_scaling="log")
    tokens, scale = mixed_batch(LONG + 16)
    with torch.no_grad():
        whole = model(tokens, scale)
        for block in model.layers:
            block.attn.block_elements = 3 * 3 * tokens.shape[1] * 30
        parts = model(tokens, scale)
        explicit = all_scores(model)(tokens, scale)
    torch.testing.assert_close(whole, explicit, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(parts, explicit, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_neither_later_tokens_nor_other_rows_matter(name: str) -> None:
    """A later token changes no earlier logit where n is given. Where it is not, it is inferred for each row."""
    model = small_model(name)
    tokens, scale = mixed_batch(22)
    logits, changed = model(tokens, scale), tokens.clone()
    changed[:, 15:] = 3
    torch.testing.assert_close(logits[:, :15], model(changed, scale)[:, :15], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(model(tokens), logits, atol=0, rtol=0)
    for row in range(3):
        torch.testing.assert_close(model(tokens[row : row + 1])[0], logits[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_other_devices_and_types(name: str) -> None:
    """In bfloat16; and on the meta device, which refuses tensors of two devices: nothing assumes a CPU."""
    model = small_model(name)
    tokens, _ = mixed_batch(22)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens, return_type="loss")
    loss.backward()
    assert abs(loss.item() - model(tokens, return_type="loss").item()) < 0.1
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model = model.to("meta").train()
    assert model.cfg.device.type == "meta"
    model(tokens.to("meta"), return_type="loss").backward()
    assert all(p.grad is None or p.grad.is_meta for p in model.parameters())
    assert all_scores(model)(tokens.to("meta")).shape == (3, 22, 14)


def test_same_config_same_weights_and_no_trace_in_the_global_generator() -> None:
    states, drawn = [], []
    for global_seed, seed in ((5, 3), (6, 3), (5, 4)):
        torch.manual_seed(global_seed)
        states.append(build(ModelConfig(task="copy", scheme="learned", seed=seed)).state_dict())
        drawn.append(torch.rand(1))
    first, second, other = states
    assert torch.equal(drawn[0], drawn[2]) and all(torch.equal(first[key], second[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in ("embed.W_E", "pos_embed.W_pos"))


def test_log_scaling_is_the_formula() -> None:
    """Scores of query i, the scheme's part included, are multiplied by log(i+2) / log(L+2)."""
    plain, scaled = (small_model("alibi", score_scaling=s, train_ctx=9, n_layers=1) for s in ("none", "log"))
    tokens, _ = mixed_batch(22)
    scores = [m.run_with_cache(tokens, names_filter="blocks.0.attn.hook_attn_scores")[1] for m in (plain, scaled)]
    a, b = (cache["blocks.0.attn.hook_attn_scores"].tril() for cache in scores)
    i = torch.arange(22.0)
    factor = (i + 2).log() / torch.tensor(11.0).log()
    torch.testing.assert_close(a.nan_to_num(0) * factor[:, None], b.nan_to_num(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["relative", "ideal", "rope"])
def test_generation_agrees_with_teacher_forcing(name: str) -> None:
    model = small_model(name, score_scaling="log")
    prompt = model.to_tokens(["^ 7 3 9 =", "^ 1 1 0 ="])
    written = model.generate(prompt, 6)
    assert written.shape == (2, 11)
    assert torch.equal(model(written)[:, 4:-1].argmax(-1), written[:, 5:])


def test_loss() -> None:
    model = small_model("relative")
    tokens, _ = mixed_batch(22)
    logits, loss = model(tokens, return_type="both")
    each = torch.nn.functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
    real = tokens[:, 1:] != model.task.pad_id
    torch.testing.assert_close(loss, each[real].mean())
    torch.testing.assert_close(model(tokens, return_type="loss", loss_per_token=True)[real], each[real])
    mask = torch.zeros(3, 21, dtype=torch.bool)
    mask[:, 4] = True
    torch.testing.assert_close(model(tokens, return_type="loss", query_mask=mask), each[mask].mean())
    assert model(tokens, return_type=None) is None


def test_start_and_stop_at_layers() -> None:
    model = small_model("ideal")
    tokens, _ = mixed_batch(22)
    residual = model(tokens, stop_at_layer=1)
    torch.testing.assert_close(model(residual, start_at_layer=1, tokens=tokens), model(tokens))


@pytest.mark.parametrize("name", ["relative", "rope", "learned", "shortformer"])
def test_every_hook_fires_and_its_value_is_used(name: str) -> None:
    """Adding to any activation changes the logits, and each has a gradient: no hook point is an ornament."""
    model = small_model(name)
    tokens, _ = mixed_batch(9)
    clean, backward = model(tokens), set()
    model.add_hook(lambda name: name in model._firing(None), lambda grad, hook: backward.add(hook.name), "bwd")
    model(tokens, return_type="loss").backward()
    model.reset_hooks()
    assert backward == model._firing(None)
    for switch in (model.set_use_attn_result, model.set_use_hook_mlp_in, model.set_use_split_qkv_input):
        switch(True)
    for hook_name in (n for n in model.hook_dict if not n.endswith("hook_attn_in")):
        noise = torch.Generator().manual_seed(0)
        logits = model.run_with_hooks(
            tokens, fwd_hooks=[(hook_name, lambda x, hook, g=noise: x + torch.randn(x.shape, generator=g))]
        )
        assert not torch.allclose(logits, clean, atol=1e-4), hook_name
    torch.testing.assert_close(model(tokens), clean, atol=1e-6, rtol=1e-6)


def test_in_place_hooks_do_not_touch_parameters() -> None:
    model = small_model("learned")
    tokens, _ = mixed_batch(9)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def zero(x: torch.Tensor, hook: object) -> None:
        x[:, 2] = 0

    with torch.no_grad():
        for name in model._firing(None):
            model.run_with_hooks(tokens, fwd_hooks=[(name, zero)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_hook_that_cannot_fire_is_refused(model: HookedModel) -> None:
    tokens, _ = mixed_batch(9)
    for run in (
        lambda: model.run_with_cache(tokens, names_filter="blocks.0.attn.hook_result"),
        lambda: model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_result")),
        lambda: model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_q_input", lambda x, hook: x)]),
        lambda: model.add_hook("blocks.1.hook_mlp_in", lambda x, hook: x),
    ):
        with pytest.raises(UserError, match="does not fire: call set_use_"):
            run()
    with pytest.raises(UserError, match="unknown hook point 'blocks"):
        model.run_with_cache(tokens, names_filter=["blocks.0.attn.hook_patern"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"scheme_options": {"max_dist": 3}}, "unknown option of scheme 'relative' 'max_dist'"),
        ({"task": "coppy"}, "unknown task 'coppy': did you mean 'copy'"),
        ({"n_layers": 0}, "n_layers must be a whole number from 1"),
        ({"n_heads": 2.0}, "n_heads must be a whole number from 1"),
        ({"d_head": None, "d_model": 7}, "d_model 7 is not divisible by n_heads 3"),
        ({"act_fn": "gleu"}, "act_fn must be one of gelu"),
        ({"normalization_type": "ln"}, "normalization_type must be one of LN, LNPre"),
        ({"score_scaling": "sqrt"}, "score_scaling must be one of none, log"),
        ({"eps": -1}, "eps must be"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"attn_only": 1}, "attn_only must be true or false"),
        ({"task": None}, "needs a task or d_vocab"),
        ({"d_vocab": 3}, "d_vocab 3 is too small for task 'copy' with 14 tokens"),
        ({"scheme_options": {"max_distance": object()}}, "scheme_options is not plain values"),
        ({"d_modle": 3}, "did you mean 'd_model'"),
    ],
)
def test_bad_configs_are_refused_in_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        small_model(**{"scheme": "relative", **changes})


@pytest.mark.parametrize(
    ("given", "how", "sentence"),
    [
        (torch.tensor([[99]]), {"scale": 1}, "outside the vocabulary of 14"),
        (torch.zeros(1, 2), {}, "tokens must be ids"),
        (torch.zeros(1, 0, dtype=torch.long), {}, "tokens must be ids"),
        ("^ q =", {}, "'q' is not a token of task 'copy'"),
        ("^ 1 =", {"scale": torch.tensor([1, 2])}, "one scale for each of 1 rows"),
        ("^ 1 =", {"return_type": "logit"}, "return_type must be"),
    ],
)
def test_bad_inputs_are_refused_in_one_sentence(given: Any, how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        small_model("ideal")(given, **how)


def with_few_keys(scheme: str, scaling: str = "none") -> HookedModel:
    torch.manual_seed(0)
    model = build(ModelConfig(task="addition", scheme=scheme, score_scaling=scaling, d_model=16, n_heads=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        alive = model.pos_embed.alive  # few of them, and others in each head
        alive.copy_(torch.rand(alive.shape) < 4 / alive[0, 0].numel())
    return model.eval()


@pytest.mark.parametrize("scaling", ["none", "log"])
@pytest.mark.parametrize("scheme", ["lbpe", "lbpe/forms=nine"])
def test_attention_to_named_keys_is_the_same_as_by_scores(
    scheme: str, scaling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The few keys that a query names and one mean of all others. A gradient, hooks, rows of different sizes and
    schemes that weigh all other keys need scores."""
    calls = mock.Mock(side_effect=attention.attend_to_named)
    monkeypatch.setattr(attention, "attend_to_named", calls)
    monkeypatch.setattr(attention, "NAMED_BLOCK", 2000)  # so that there are several blocks
    model, task = with_few_keys(scheme, scaling), TASKS["addition"]
    tokens = task.sample(12, 3, torch.Generator().manual_seed(0)).tokens
    some = slice(9, tokens.shape[1] - 2)
    with torch.no_grad():
        by_scores = model(tokens, scale=12)
        monkeypatch.setattr(attention, "NAMED_LENGTH", 1)
        model.run_with_cache(tokens, scale=12)
        model(tokens, scale=torch.tensor([11, 12, 12]))
        with_few_keys("lbpe/other=one")(tokens, scale=12)
        with torch.enable_grad():
            model(tokens, scale=12).sum().backward()
        assert calls.call_count == 0
        named, of_some = model(tokens, scale=12), model(tokens, scale=12, queries=some)
    assert calls.call_count == 4, "both layers, twice"
    torch.testing.assert_close(named, by_scores, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_some, by_scores[:, some], rtol=1e-4, atol=1e-4)
