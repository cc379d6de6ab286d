"""Attention that puts the named keys right after a fused kernel, against scores in blocks."""

import pytest
import torch

import lengthlens as ll
from lengthlens.models import named
from lengthlens.models.schemes import NamedKeys
from lengthlens.models.transformer import HookedModel
from lengthlens.tests.parameters import NINE

SCALE = 12
SCHEMES = [NINE, "lbpe/forms=nine/other=one", "ideal", "ideal/other=one", "lbpe/other=one", "lbpe/forms=nine"]


@pytest.fixture(autouse=True)
def short_counts_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "LONG", 1)


def made(scheme: str, scaling: str, task: str = "addition") -> HookedModel:
    torch.manual_seed(0)
    model = ll.build(ll.ModelConfig(task=task, scheme=scheme, score_scaling=scaling, d_model=16, n_heads=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        if hasattr(model.pos_embed, "alive"):  # few of them, and others in each head
            alive = model.pos_embed.alive
            alive.copy_(torch.rand(alive.shape) < 8 / alive[0, 0].numel())
    return model.eval()


@pytest.mark.parametrize("scaling", ["none", "log"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_as_scores_in_blocks(scheme: str, scaling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(scheme, scaling)
    tokens = ll.TASKS["addition"].sample(SCALE, 3, torch.Generator().manual_seed(0)).tokens
    monkeypatch.setattr(named, "BLOCK", 2000)  # several blocks of queries
    used = []
    for way in ("attend", "attend_to_mean"):
        plain = getattr(named, way)
        monkeypatch.setattr(f"lengthlens.models.attention.{way}", lambda *a, f=plain: used.append(f(*a)) or used[-1])
    some = slice(9, tokens.shape[1] - 2)
    with torch.no_grad():
        fast, of_some = model(tokens, scale=SCALE), model(tokens, scale=SCALE, queries=some)
        monkeypatch.setattr(named, "LONG", 1000)
        slow = model(tokens, scale=SCALE)
    assert len(used) == 4 and all(each is not None for each in used), "both layers, twice"
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_some, slow[:, some], rtol=1e-4, atol=1e-4)


def test_where_the_named_key_was_nearly_all_and_is_suppressed_nothing_is_claimed() -> None:
    """Its content outweighs all others by e^40, its bias takes that away: the rest is lost to rounding."""
    q, k, v = torch.ones(1, 1, 1, 1), torch.tensor([0.0, 40.0, 0.0]).view(1, 3, 1, 1), torch.rand(1, 3, 1, 1)
    for bias, exact in ((-80.0, False), (-40.0, False), (0.0, True), (5.0, True)):
        own = NamedKeys(torch.tensor([[1]]), torch.full((1, 1, 1, 1), bias), torch.ones(1, 1, 1, 1, dtype=torch.bool))
        assert (named.attend(q, k, v, own, 0, torch.ones(1), False) is not None) == exact


def test_gradients_hooks_and_rows_of_different_scales_go_by_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("lbpe/forms=nine/other=one", "none", "copy")
    monkeypatch.setattr("lengthlens.models.attention.attend", lambda *_: pytest.fail("this way is closed"))
    tokens = ll.TASKS["copy"].sample(4, 2, torch.Generator().manual_seed(0)).tokens
    model(tokens, scale=4).sum().backward()
    with torch.no_grad():
        model.run_with_cache(tokens, scale=4)
        model(tokens, scale=torch.tensor([3, 4]))
        with pytest.raises(pytest.fail.Exception):
            model(tokens, scale=4)
