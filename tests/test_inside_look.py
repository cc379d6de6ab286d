"""Looking inside networks: on models built by hand the known mechanism is found, and parts add up for every scheme."""

import math
import re

import pandas as pd
import pytest
import torch

from lengthlens.analyses.inside import plot_plane
from lengthlens.analyses.page.inspection import inside_page
from lengthlens.errors import UserError
from lengthlens.inside.heads import (
    FIRST,
    OTHER,
    attention_by_role,
    head_plane,
    head_statistics,
    heads,
    plane_over_training,
    relations,
)
from lengthlens.inside.instances import roles_in, sample_instances
from lengthlens.inside.look import inspect
from lengthlens.inside.residual import PARTS, residual_parts, residual_shares, split
from lengthlens.inside.scores import score_parts, score_shares
from lengthlens.models.by_hand import copy_by_content, copy_by_hand, induction_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes import scheme_names
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes.network import head_named, hook_named
from lengthlens.runs.evaluation import exact_match
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import small_model

POSITION, CONTENT, INDUCTION = copy_by_hand("lbpe"), copy_by_content(), induction_by_hand()


def value(table: pd.DataFrame, **at: object) -> float:
    """The one number of a tidy table at these columns; it stands in the last."""
    for name, wanted in at.items():
        table = table[table[name] == wanted]
    assert len(table) == 1
    return float(table.iloc[0, -1])


@pytest.mark.parametrize(
    ("model", "relation", "kind", "scores"),
    [
        (POSITION, "attends to i−j = n", "positional", {"bias": 1.0, "content": 0.0}),
        (CONTENT, "attends to the circuit's source 'token'", "symbolic", {"content": 1.0}),
    ],
    ids=["position", "content"],
)
def test_a_copier_is_recognised(model: HookedModel, relation: str, kind: str, scores: dict[str, float]) -> None:
    assert all(score.exact_match == 1.0 for score in exact_match(model, model.task, [2, 7, 60], samples=64))
    (of_head,) = relations(model, scales=[3, 8, 30])
    assert str(of_head) == f"L0H0 {relation}, weight 1.00 at every length up to 30"
    roles = attention_by_role(model, scales=[8])
    assert [value(roles, role=role) for role in ("token", FIRST, OTHER)] == [1.0, 0.0, 0.0]
    (point,) = head_plane(model, scales=[8]).to_dict("records")
    assert (point["positional"], point["symbolic"]) == ((1.0, 0.0) if kind == "positional" else (0.0, 1.0))
    assert point["kind"] == kind
    assert dict(score_shares(model, scales=[8])[["part", "share"]].values) == scores
    table = heads(model, scales=[8])
    assert value(table, measure="entropy") < 1e-6
    assert kind == "symbolic" or value(table, measure="position_share") > 0.999


def test_an_induction_head_is_recognised_with_what_it_is_made_of() -> None:
    assert all(score.exact_match == 1.0 for score in exact_match(INDUCTION, INDUCTION.task, [2, 7, 60], samples=64))
    words = [each.words for each in relations(INDUCTION, scales=[4, 12])]
    for text, relation in zip(words, ("i−j = 1", "i−j = 2", "the circuit's source 'token'")):
        assert text == f"attends to {relation}, weight 1.00 at every length up to 12"
    assert words[3].startswith("spreads over about 15 keys")
    table = heads(INDUCTION, scales=[12])
    assert value(table, layer=0, head=0, measure="previous_token") == 1.0
    assert value(table, layer=1, head=0, measure="duplicate_token") < 0.02  # a letter twice in a row
    # All queries but those at which a letter occurs by chance twice, and the last, which attends to "=".
    induction = [value(table, layer=1, head=head, measure="induction") for head in (0, 1)]
    assert induction[0] > 0.6 > 3 * induction[1]
    kinds = head_plane(INDUCTION, scales=[12])["kind"].tolist()
    assert kinds == ["elsewhere", "positional", "symbolic", "even"]


def test_entropy_of_an_even_head_is_the_log_of_the_number_of_keys() -> None:
    table = heads(INDUCTION, scales=[6])
    expected = (math.log(9) + math.log(10)) / 2  # the queries see 9 and 10 keys
    assert value(table, layer=1, head=1, measure="entropy") == pytest.approx(expected, abs=1e-5)
    assert value(table, layer=1, head=1, measure="first_key") == pytest.approx((1 / 9 + 1 / 10) / 2, abs=1e-6)


def test_the_mean_pattern_keeps_all_weight_whatever_the_length() -> None:
    for n in (3, 70):  # 70: more positions than bins
        pattern = head_statistics(POSITION, sample_instances(POSITION, None, n)).pattern
        assert pattern.shape[2] <= 96 and pattern.shape[3] <= 96
        assert pattern.sum(-1).sub(1).abs().max() < 1e-5


BARE = {"score_scaling": "log", "normalization_type": None}


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [pytest.param(name, {}, marks=[pytest.mark.slow] * (k % 4 > 0)) for k, name in enumerate(scheme_names())]
    + [(name, BARE) for name in ("learned", "shortformer", "rope", "xl")],
)
def test_parts_of_the_score_add_up(scheme: str, changes: dict[str, object]) -> None:
    model = small_model(scheme, **changes)
    tokens = TASKS["copy"].sample(4, 2, torch.Generator().manual_seed(0)).tokens
    _, cache = model.run_with_cache(tokens, 4)
    for layer in (0, 1):
        scores = cache[f"blocks.{layer}.attn.hook_attn_scores"]
        parts = score_parts(model, tokens, layer=layer)
        seen = torch.isfinite(scores)
        torch.testing.assert_close(sum(parts.values())[seen], scores[seen], atol=1e-4, rtol=1e-4)
    shares = score_shares(model, scales=[4], rows=4).groupby(["layer", "head"])["share"].sum()
    assert (shares - 1).abs().max() < 1e-4


def test_an_added_embedding_has_four_parts_that_are_what_they_are_called() -> None:
    """In the first layer, without a norm: position–position comes from W_pos alone, content–content from W_E and b."""
    model = small_model("learned", normalization_type=None)
    tokens = TASKS["copy"].sample(3, 2, torch.Generator().manual_seed(0)).tokens
    parts = score_parts(model, tokens, 3)
    q, k = (model.pos_embed.W_pos[:9] @ w for w in (model.W_Q[0], model.W_K[0]))
    expected = q @ k.transpose(-1, -2) / model.cfg.attn_scale
    torch.testing.assert_close(parts["position–position"][0], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(parts["position–position"][0], parts["position–position"][1])
    embedded = model.W_E[tokens][:, None]
    q, k = (embedded @ w + b[:, None] for w, b in ((model.W_Q[0], model.b_Q[0]), (model.W_K[0], model.b_K[0])))
    expected = q @ k.transpose(-1, -2) / model.cfg.attn_scale
    torch.testing.assert_close(parts["content–content"], expected, atol=1e-5, rtol=1e-4)


def test_rotary_pairs_turn_as_they_say() -> None:
    """For one query and one key vector, the part of a pair goes as cos(frequency · distance + phase)."""
    for adjacent in (False, True):
        model = small_model("rope", scheme_options={"adjacent_pairs": adjacent}, normalization_type=None)
        tokens = torch.full((1, 40), 7)  # the same content everywhere
        parts = score_parts(model, tokens, 10)
        assert list(parts) == ["pair 0, wavelength 6.283", "pair 1, wavelength 628.3"]
        for part, frequency in zip(parts.values(), (1.0, 0.01)):
            d = part[0, 0, 39].flip(0).double()  # by distance
            # x(d+1) + x(d−1) = 2 cos(frequency) x(d) for every phase
            torch.testing.assert_close(d[2:] + d[:-2], 2 * math.cos(frequency) * d[1:-1], atol=1e-5, rtol=1e-3)


def test_residual_parts_add_up_and_are_orthogonal() -> None:
    for hook in ("hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"):
        split_up = residual_parts(small_model("learned"), scale=5, hook=hook, rows=16)
        torch.testing.assert_close(sum(split_up.parts.values()).expand_as(split_up.activation), split_up.activation)
        assert sum(split_up.shares.values()) == pytest.approx(1.0, abs=1e-9)


def test_an_activation_of_known_parts_is_split_into_them() -> None:
    """Every token at every place equally often: the parts are exactly those it was made of."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.stack([torch.arange(4).roll(k) for k in range(4)])
    position = torch.randn(4, 5, generator=generator, dtype=torch.double)
    content = torch.randn(4, 5, generator=generator, dtype=torch.double)
    position, content, mean = position - position.mean(0), content - content.mean(0), torch.ones(5)
    parts = split(mean + position + content[tokens], tokens)
    for one, other in ((parts.mean, mean.double()), (parts.position, position), (parts.content, content)):
        torch.testing.assert_close(one, other)
    assert parts.shares["remainder"] < 1e-12


def test_position_vectors_continue_as_they_were_made() -> None:
    """Learned vectors on a line go on along it: same direction, ever larger."""
    model = build(ModelConfig("copy", "learned", n_ctx=64, normalization_type=None)).eval()
    with torch.no_grad():
        model.pos_embed.W_pos.copy_(torch.arange(64.0)[:, None] * torch.ones(64))
    table = residual_shares(model, scales=[5, 10, 20], train_max=10).set_index(["hook", "scale"])
    before = table.loc["blocks.0.hook_resid_pre"]
    assert before["in_span"].tolist() == pytest.approx([1, 1, 1], abs=1e-4)
    assert before.loc[10, "size"] == pytest.approx(1.0) and before.loc[20, "size"] > 3
    # Where scores alone tell positions apart, the stream has no position part before the layer.
    before = residual_shares(POSITION, scales=[5, 20]).set_index(["hook", "scale"]).loc["blocks.0.hook_resid_pre"]
    assert (before["position"] < 0.02).all() and before.drop(columns=list(PARTS)).isna().all(axis=None)


def test_a_head_that_turns_from_content_to_position_is_followed() -> None:
    """A copier whose bias grows while its content scores stay: symbolic first, positional in the end."""
    checkpoints = {}
    for step, share in ((0, 0.0), (100, 0.001), (200, 1.0)):
        model = copy_by_hand("lbpe")
        with torch.no_grad():
            model.pos_embed.bias *= share
            model.layers[0].attn.W_Q[0, :14] = model.layers[0].attn.W_K[0, :14] = 6.0 * torch.eye(14)
        checkpoints[step] = model
    table = plane_over_training(checkpoints, scale=6)
    assert table["step"].tolist() == [0, 100, 200]
    assert table["kind"].tolist() == ["symbolic", "symbolic", "positional"]
    assert plot_plane(table).axes[0].get_xlabel().startswith("symbolic")
    with pytest.raises(UserError, match="no checkpoints were kept"):
        plane_over_training({})


def test_a_model_without_a_task_is_shown_random_tokens_twice() -> None:
    model = build(ModelConfig(d_vocab=50, scheme="rope", n_heads=2, d_model=16)).eval()
    assert set(heads(model, scales=[6, 9])["scale"]) == {6, 9}
    assert set(attention_by_role(model, scales=[6])["role"]) == {FIRST, OTHER}
    assert len(head_plane(model, scales=[6])) == len(relations(model, scales=[6])) == 4
    assert len(residual_shares(model, scales=[6])) == 3 and len(score_shares(model, scales=[6]))
    seen = inspect(model, train_max=8, scales=[4, 8], text="3 1 4 1 5")
    assert not len(seen.ablation) and len(seen.summary()) == 4
    assert "What the heads" in inside_page(seen, "a model", "What the heads do")


def test_names_that_do_not_exist_are_answered_with_the_nearest() -> None:
    roles = roles_in(TASKS["parity-cot"], 3, TASKS["parity-cot"].parse("^ 1 0 1 =").tokens)
    short = build(ModelConfig("copy", "learned", n_ctx=40))
    for call, message in (
        (lambda: head_named(INDUCTION, "L2H1"), "unknown head 'L2H1': did you mean 'L1H1'"),
        (lambda: hook_named(INDUCTION, "blocks.0.attn.hook_patern"), "did you mean 'blocks.0.attn.hook_pattern'"),
        (lambda: heads(INDUCTION, scales=[1]), "task 'induction' has no instances of n = 1: the nearest is n = 2"),
        (lambda: roles.keys_of("simbol"), "unknown role 'simbol': did you mean 'symbol'"),
        (lambda: heads(short, scales=[50]), "cannot process a sequence of 103 (the largest n that fits is 18)"),
        (lambda: score_parts(INDUCTION, "^ c a b = a", layer=5), "no layer 5: the model has layers 0 to 1"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            call()
