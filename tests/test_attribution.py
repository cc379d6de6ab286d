"""Attribution: relevance is conserved for every scheme, and names the tokens and positions that are known to matter."""

import pytest
import torch

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_content, copy_by_hand, induction_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes.spec import scheme_names
from lengthlens.models.transformer import build
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import small_model, trained


@pytest.mark.parametrize("scheme", scheme_names())
def test_relevance_is_conserved(scheme: str) -> None:
    model = small_model(scheme, score_scaling="log")
    tokens = TASKS["copy"].sample(5, 3, torch.Generator().manual_seed(0)).tokens
    result = ll.relevance(model, tokens, query=[7, 8, 9])
    expected = model(tokens)[torch.arange(3), torch.tensor([7, 8, 9])]
    assert torch.allclose(result.output, expected.amax(-1) - expected.mean(-1), atol=1e-5)  # the rules keep the value
    assert result.conservation < 1e-4
    assert bool(result.positions.any()) == (
        scheme not in ("none", "windowed:none")
    )  # a window of 16 hides nothing here
    after = torch.arange(13) > torch.tensor([[7], [8], [9]])
    assert not result.tokens[after].any() and not result.positions[after].any()


@pytest.mark.parametrize("kind", ["LN", "RMS", "RMSPre", None])
def test_every_norm_and_activation_conserves(kind: str | None) -> None:
    for act in ("gelu", "relu", "silu"):
        config = ModelConfig("copy", "rope", normalization_type=kind, act_fn=act, d_model=16, d_head=8, n_heads=2)
        assert ll.relevance(build(config), "^ 7 3 5 = 7").conservation < 1e-4


def test_gradients_are_those_of_the_embedding() -> None:
    """Gradient × input by gates, against the gradient by the embeddings themselves."""
    model = small_model("learned")
    tokens = TASKS["copy"].sample(4, 2, torch.Generator().manual_seed(0)).tokens
    kept: dict[str, torch.Tensor] = {}

    def keep(x: torch.Tensor, hook: object) -> torch.Tensor:
        kept[hook.name] = x = x.detach().requires_grad_()  # type: ignore[attr-defined]
        return x

    logits = model.run_with_hooks(tokens, fwd_hooks=[("hook_embed", keep), ("hook_pos_embed", keep)])[:, 6]
    (logits[:, 3] - logits.mean(-1)).sum().backward()
    result = ll.relevance(model, tokens, query=6, target=3, method="gradient")
    for name, part in (("hook_embed", result.tokens), ("hook_pos_embed", result.positions)):
        assert torch.allclose(part, (kept[name] * kept[name].grad).sum(-1), atol=1e-5)


def test_integrated_gradients_add_up() -> None:
    """On a network without norms, whose answer is smooth along the path."""
    model = small_model("relative", normalization_type=None)
    result = ll.relevance(model, "^ 7 3 5 = 7", method="integrated", steps=64)
    assert result.conservation < 1e-2


def test_a_copier_by_position_owes_its_answer_to_one_token_and_its_position() -> None:
    for text, source in (("^ 7 3 5 =", 1), ("^ 7 3 5 = 7", 2), ("^ 7 3 5 = 7 3", 3)):
        result = ll.relevance(copy_by_hand("lbpe"), text)
        share = result.tokens[0] / result.output[0]
        expected = torch.zeros_like(share)
        expected[source] = 0.5
        assert torch.allclose(share, expected, atol=1e-5)
        assert torch.allclose(result.positions[0] / result.output[0], expected, atol=1e-5)


def test_a_copier_by_content_owes_nothing_to_positions() -> None:
    for method in ("lrp", "gradient", "integrated"):
        result = ll.relevance(copy_by_content(), "^ 7 3 5 =", method=method)
        assert not result.positions.any() and int(result.tokens[0].argmax()) == 2


def test_an_induction_head_owes_its_answer_to_three_tokens_and_one_position() -> None:
    """Half to the token copied, a quarter to the query's own, the rest to the one before the copied and its place."""
    result = ll.relevance(induction_by_hand(), "^ c a b = a")
    assert torch.allclose(result.tokens[0] / 29, torch.tensor([0, 0, 0.125, 0.5, 0, 0.25]), atol=1e-4)
    assert torch.allclose(result.positions[0] / 29, torch.tensor([0, 0, 0.125, 0, 0, 0]), atol=1e-4)


def test_rollout_is_the_product_of_patterns() -> None:
    model = small_model("alibi")
    _, cache = model.run_with_cache("^ 7 3 =")
    one, two = (0.5 * cache["pattern", layer][0].mean(0) + 0.5 * torch.eye(4) for layer in range(2))
    result = ll.relevance(model, "^ 7 3 =", method="rollout")
    assert torch.allclose(result.tokens[0], (two @ one)[-1], atol=1e-6) and result.positions is None


def test_relevance_beats_a_random_order() -> None:
    table = ll.judge_relevance(trained("copy_lbpe"), scales=[5], rows=16, methods=["lrp"]).iloc[0]
    assert table["conservation"] < 1e-4 and table["sources"] > 0.8 > 4 * table["sources_random"]
    assert table["deletion"] < 0.6 * table["deletion_random"]
    by_hand = ll.judge_relevance(copy_by_hand("lbpe"), scales=[5, 9], rows=16, methods=["lrp"])
    assert (by_hand["sources"] == 1).all() and (by_hand["position_sources"] == 1).all()


def test_what_does_not_exist_is_answered_with_the_nearest() -> None:
    model = copy_by_hand()
    for call, message in (
        (lambda: ll.relevance(model, "^ 7 3 =", method="lpr"), "unknown method 'lpr'"),
        (lambda: ll.relevance(model, "^ 7 3 =", query=9), "no position 9: the input has positions 0 to 3"),
        (lambda: ll.relevance(lambda tokens: tokens, torch.zeros(1, 3).long()), "needs a model of this project"),
        (lambda: ll.judge_relevance(model, methods=["rolout"]), "unknown method 'rolout'"),
    ):
        with pytest.raises(UserError, match=message):
            call()
