"""Every method of looking inside on models that others made: GPT-2, Llama, GPT-NeoX and BLOOM of random weights."""

from typing import Any

import pytest
import torch

import lengthlens as ll
from lengthlens.analyses.page.inspection import inside_page
from lengthlens.errors import UserError
from lengthlens.models.transformer import HookedModel
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import few
from lengthlens.tests.test_import import imported

TASK = TASKS["parity-cot"]
PARTS = {"gpt2": "position–position", "llama": "pair 1", "neox": "not turned", "bloom": "bias"}


@pytest.fixture(scope="module", params=few(PARTS, "llama"))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return imported(tmp_path_factory.mktemp(request.param), request.param)[2]


@pytest.fixture(scope="module")
def model(run: Any) -> HookedModel:
    found: HookedModel = run.model()
    return found


def tokens(scale: int = 6) -> torch.Tensor:
    return TASK.sample(scale, 4, torch.Generator().manual_seed(0)).tokens


def operated(model: HookedModel, scale: int = 6, **how: Any) -> torch.Tensor:
    with ll.surgery(model, **how), torch.no_grad():
        return model(tokens(scale))


def test_surgery(run: Any, model: HookedModel) -> None:
    own = operated(model)
    with torch.no_grad():
        assert torch.equal(own, model(tokens()))
    for same in ({"places": range(tokens().shape[1])}, {"codes": run}, {"codes": "ideal", "codes_of": 6}):
        assert torch.equal(operated(model, **same), own)
    moved = (operated(model, shift=3) - own).abs().max() < 1e-4
    assert bool(moved) == (run.config.scheme != "learned")  # all else here goes by differences of positions
    others = {"codes": "none"}, {"codes": "ideal"}, {"codes": "ideal", "other": "one"}
    for how in ({"shuffle": 0}, {"clamp": 3}, *others):
        for heads in (None, ["L1H1"]):
            changed = operated(model, heads=heads, **how)
            assert changed.isfinite().all() and not torch.allclose(changed, own, atol=1e-4), (how, heads)
    with pytest.raises(UserError, match="does not look at n"), ll.surgery(model, scale=3):
        pass
    table = ll.healing(model, scales=[6], train_max=4, rows=4)
    assert set(table["surgery"]) >= {"own", "ideal", "displaced", "none", "borrowed in range"}


def test_a_shift_is_what_a_later_start_is(run: Any, model: HookedModel) -> None:
    """By the scheme's own option, which the importer offers for learned positions."""
    if run.config.scheme != "learned":
        pytest.skip("counts by differences of positions")
    model.pos_embed.options = (before := model.pos_embed.options).__class__(**{**vars(before), "start": 3})
    with torch.no_grad():
        started = model(tokens())
    model.pos_embed.options = before
    torch.testing.assert_close(operated(model, shift=3), started)


def test_relevance(model: HookedModel) -> None:
    found = {method: ll.relevance(model, tokens(), method=method) for method in ("lrp", "integrated", "rollout")}
    assert found["lrp"].conservation < 1e-5 and found["rollout"].conservation < 1e-5
    assert found["integrated"].conservation < 0.01
    assert found["lrp"].positions is not None and found["lrp"].positions.abs().sum() > 0
    judged = ll.judge_relevance(model, scales=[4], rows=4)
    assert judged["sources"].between(0, 1).all() and judged["deletion"].between(0, 1).all()


def test_patching_and_ablation(model: HookedModel) -> None:
    """What enters the first layer at the key that differs is all that differs: patched there, nothing is left."""
    table = ll.patch_by_role(model, scale=4, pairs=4, steps=2)
    entered = table[(table["component"] == "residual") & (table["layer"] == 0) & (table["place"] == table["role"])]
    torch.testing.assert_close(torch.tensor(entered["effect"].tolist()), torch.ones(len(entered)), atol=1e-4, rtol=0)
    assert "symbol" in set(entered["role"])
    assert ll.patch_by_role(model, scale=4, onto=6, pairs=4, steps=2)["effect"].notna().all()
    assert ll.attribution_patching(model, scale=4, pairs=4, steps=2)["effect"].notna().all()
    heads = model.cfg.n_layers * model.cfg.n_heads
    assert len(ll.ablate(model, scales=[4], rows=8)) == heads + 1
    assert len(ll.ablate(model, scales=[4], rows=8, relations=["symbol", "i-j-n"])) == 2 * (heads + 1)
    assert ll.least_heads(model, scale=4, rows=8, keep=0).heads == []
    with pytest.raises(UserError, match=r"less than the 0\.9 to keep"):
        ll.least_heads(model, scale=4, rows=8)


@pytest.mark.slow
def test_everything_that_is_looked_at(run: Any, model: HookedModel) -> None:
    seen = ll.inspect(model, train_max=4, scales=[4, 6], text="^ 1 0 1 1 =")
    assert seen.roles.groupby(["layer", "head", "scale"])["weight"].sum().sub(1).abs().max() < 1e-4
    assert seen.residual[["mean", "position", "content", "remainder"]].sum(axis=1).sub(1).abs().max() < 1e-6
    assert seen.scores.groupby(["layer", "head", "scale"])["share"].sum().sub(1).abs().max() < 1e-4
    assert seen.plane[["positional", "symbolic"]].stack().between(0, 1 + 1e-6).all()
    parts = ll.score_parts(model, tokens(), layer=1)
    _, cache = model.run_with_cache(tokens())
    below = torch.ones(tokens().shape[1], tokens().shape[1]).tril().bool()
    assert PARTS[run.config.imported["name"]] in " ".join(parts)
    whole = sum(parts.values())
    torch.testing.assert_close(whole[..., below], cache["attn_scores", 1][..., below], atol=1e-4, rtol=1e-4)
    assert "data:image/svg+xml" in inside_page(seen, run.id, "Inside")
    with torch.no_grad():
        best = model(TASK.parse("^ 1 0 1 1 =").tokens)
    shown = [place[0].probability for place in seen.sequence.lens[-1]]
    assert shown == pytest.approx(best[0].softmax(-1).amax(-1).tolist(), abs=1e-5)


def test_its_training_is_not_known(run: Any) -> None:
    store = ll.RunStore(run.path.parent)
    with pytest.raises(UserError, match="it was imported: its training is not known here"):
        ll.train(run.config, store, keep=[0])
    with pytest.raises(UserError, match=r"no checkpoint of step 0 .* an imported model has none"):
        ll.load(run, step=0)
    with pytest.raises(UserError, match="no checkpoints were kept"):
        ll.plane_over_training(run)
