"""Attention to the few keys that a query names and one mean of all others, against scores in blocks."""

import pytest
import torch

import lengthlens as ll
from lengthlens.models import attention
from lengthlens.models.transformer import HookedModel

N = 12


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What attention to named keys gave, short inputs counting as long, in several blocks of queries."""
    monkeypatch.setattr(attention, "NAMED_LENGTH", 1)
    monkeypatch.setattr(attention, "NAMED_BLOCK", 2000)
    plain, found = attention.attend_to_named, []
    monkeypatch.setattr(attention, "attend_to_named", lambda *given: found.append(plain(*given)) or found[-1])
    return found


def made(scheme: str, scaling: str = "none") -> HookedModel:
    torch.manual_seed(0)
    model = ll.build(ll.ModelConfig(task="addition", scheme=scheme, score_scaling=scaling, d_model=16, n_heads=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        alive = model.pos_embed.alive  # few of them, and others in each head
        alive.copy_(torch.rand(alive.shape) < 4 / alive[0, 0].numel())
    return model.eval()


@pytest.mark.parametrize("scaling", ["none", "log"])
@pytest.mark.parametrize("scheme", ["lbpe", "lbpe/forms=nine"])
def test_the_same_as_scores_in_blocks(
    scheme: str, scaling: str, calls: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(scheme, scaling)
    tokens = ll.TASKS["addition"].sample(N, 3, torch.Generator().manual_seed(0)).tokens
    some = slice(9, tokens.shape[1] - 2)
    with torch.no_grad():
        fast, of_some = model(tokens, scale=N), model(tokens, scale=N, queries=some)
        monkeypatch.setattr(attention, "NAMED_LENGTH", 1000)
        slow = model(tokens, scale=N)
    assert len(calls) == 4, "both layers, twice"
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_some, slow[:, some], rtol=1e-4, atol=1e-4)


def test_gradients_hooks_rows_of_different_sizes_and_other_keys_with_scores_go_by_scores(
    calls: list[torch.Tensor],
) -> None:
    model = made("lbpe/forms=nine")
    tokens = ll.TASKS["addition"].sample(4, 2, torch.Generator().manual_seed(0)).tokens
    model(tokens, scale=4).sum().backward()
    with torch.no_grad():
        model.run_with_cache(tokens, scale=4)
        model(tokens, scale=torch.tensor([3, 4]))
        made("lbpe/other=one")(tokens, scale=4)
        assert calls == []
        model(tokens, scale=4)
        assert len(calls) == 2
