"""Measured LRC: the fit, the count, and a model whose answer is known."""

import itertools

import numpy as np
import pytest
import torch

from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.probes.lrc import fit_positions, independent_answers, measured_lrc
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import hitting_points

KNOWN = {"ideal": [1] * 8, "i-j": list(range(1, 9)), "(i,j)": [n * (n + 3) // 2 for n in range(1, 9)]}


@pytest.mark.parametrize("relation", KNOWN)
def test_hand_built_model_has_exactly_its_known_lrc(relation):
    model = copy_by_hand()
    found = measured_lrc(model, train_max=8, relation=None if relation == "ideal" else relation)
    assert list(found.curve.values()) == KNOWN[relation]
    assert found.r2["value"].min() > 0.999


@pytest.mark.parametrize("clip", [2, 5])
def test_hand_built_model_with_a_clipped_hint(clip):
    found = measured_lrc(copy_by_hand("hinted:relative", clip), train_max=8)
    assert found.curve == {n: min(n, clip) for n in range(1, 9)}


def test_fit_recovers_weights_of_every_query_in_one_solve():
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(200, 6, 2, 5, generator=generator)
    weights = torch.rand(2, 6, 6, generator=generator).tril()
    z = torch.einsum("hqk,rkhd->rqhd", weights, v)
    fit = fit_positions(v, z, range(2, 6))
    assert torch.allclose(fit.weights, weights[:, 2:].double(), atol=1e-4)
    assert fit.r2.min() > 0.9999


def test_fit_equals_least_squares_for_content_that_no_weights_describe():
    generator = torch.Generator().manual_seed(1)
    v, z = (torch.randn(50, 4, 1, 3, generator=generator) for _ in range(2))
    fit = fit_positions(v, z, [2], ridge=0)
    A = v[:, :3, 0].permute(0, 2, 1).reshape(-1, 3).double()
    b = z[:, 2, 0].reshape(-1).double()
    assert torch.allclose(fit.weights[0, 0, :3], torch.linalg.lstsq(A, b[:, None]).solution[:, 0])
    # Leverage: what it costs to force one weight to another value, the others adapting.
    forced = b - A[:, 0] * (fit.weights[0, 0, 0] + 0.5)
    rest = torch.linalg.lstsq(A[:, 1:], forced[:, None]).solution[:, 0]
    cost = (forced - A[:, 1:] @ rest).square().sum() / b.square().sum() - fit.unexplained[0, 0]
    assert torch.isclose(cost, 0.25 * fit.leverage[0, 0, 0])


def test_hitting_points_is_the_least_number():
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = rng.integers(0, 8, rng.integers(1, 6)).astype(float)
        high = low + rng.integers(0, 4, len(low))
        least = next(
            size
            for size in range(1, 7)
            if any(
                all(any(a <= p <= b for p in points) for a, b in zip(low, high))
                for points in itertools.combinations(sorted({*low, *high}), min(size, len({*low, *high})))
            )
        )
        assert hitting_points(low, high) == least


def test_inputs_are_independent_and_keep_their_marks():
    task = TASKS["copy"]
    tokens = independent_answers(task, 3, 500, torch.Generator().manual_seed(0))
    assert (tokens[:, 4] == task.ids["="]).all()
    assert 0.05 < (tokens[:, 1] == tokens[:, 5]).double().mean() < 0.2  # one in ten, not always


def test_lbpe_is_judged_by_what_survives_pruning():
    model = copy_by_hand("lbpe")
    with torch.no_grad():
        model.pos_embed.gate_logits.fill_(1.0)  # every form counts a little again
        model.pos_embed.bias += 0.3 * torch.randn(9, 7, generator=torch.Generator().manual_seed(0))
        model.pos_embed.bias[0, 0, 1, 3] = 9 * 30.0
    found = measured_lrc(model, train_max=8)
    assert found.relation == "surviving forms (|bias| > 6) i−j−n: 0"
    assert set(found.curve.values()) == {1}


def test_refusals_in_a_sentence():
    model = copy_by_hand()
    with pytest.raises(UserError, match="10 rows are too few to fit weights for 23 positions"):
        measured_lrc(model, rows=10)
    with pytest.raises(UserError, match="there is no layer 3"):
        measured_lrc(model, layers=[3])
    with pytest.raises(UserError, match="has no hooks"):
        measured_lrc(lambda tokens: tokens, TASKS["copy"], relation="i-j")
    with pytest.raises(UserError, match="does not name its task"):
        measured_lrc(lambda tokens: tokens)
    with pytest.raises(UserError, match="relation is not known"):
        measured_lrc(lambda tokens: tokens, TASKS["copy"])
