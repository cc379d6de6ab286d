"""Measured SRC and LRC: influence, interventions, readouts, fits, and models whose answer is known."""

import pytest
import torch

from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import build
from lengthlens.probes.lrc import fit_positions, independent_answers, measured_lrc
from lengthlens.probes.network import Network, exact_by_scale
from lengthlens.probes.src import influence, measured_src
from lengthlens.probes.steps import CodeRole, Roles, assignments, fill_roles, keys_of
from lengthlens.probes.transfer import readout_transfer
from lengthlens.runs.config import RunConfig
from lengthlens.runs.trainer import Trainer
from lengthlens.runs.training import train
from lengthlens.tasks import TASKS, Batch

SIZES = range(1, 9)
KNOWN = [  # measure, scheme, its max_distance, relation, complexity at n = 1 … 8 of the copier written by hand
    *((measure, "ideal", None, None, [1 for _ in SIZES]) for measure in (measured_src, measured_lrc)),
    *((measure, "ideal", None, "i-j", [*SIZES]) for measure in (measured_src, measured_lrc)),
    *((measure, "ideal", None, "(i,j)", [n * (n + 3) // 2 for n in SIZES]) for measure in (measured_src, measured_lrc)),
    *(
        (measure, "hinted:relative", clip, None, [min(n, clip) for n in SIZES])
        for measure in (measured_src, measured_lrc)
        for clip in (2, 5)
    ),
    (measured_src, "lbpe", None, None, [1 for _ in SIZES]),
    # One code for all: beyond n = 1 no readout can tell the symbol that is read from the others, so each of the n
    # steps that copy a symbol counts by itself; the one that reads "=" is explained.
    (measured_src, "ideal", None, "none", [n * (n + 1) // 2 for n in SIZES]),
]


@pytest.mark.parametrize(("measure", "scheme", "clip", "relation", "curve"), KNOWN)
def test_a_copier_by_hand_has_exactly_its_known_complexity(measure, scheme, clip, relation, curve):
    model = copy_by_hand(scheme) if clip is None else copy_by_hand(scheme, clip)
    result = measure(model, train_max=8, relation=relation)
    assert result.curve == dict(zip(SIZES, curve))
    if measure is measured_lrc and clip is None:
        assert result.r2["value"].min() > 0.999


def test_a_perfect_circuit_as_a_plain_function():
    """Running parity, computed from its definition: two readouts under codes that mark its roles."""
    task = TASKS["parity-cot"]

    def perfect(tokens, scale):
        key = (torch.arange(tokens.shape[1]) - scale).clamp(min=0)
        symbol = tokens[:, key]
        value = ((symbol == 1).long() + (tokens == 1).long()) % 2
        best = torch.where(symbol == task.ids["="], task.ids["$"], value)
        return 20.0 * torch.nn.functional.one_hot(best, len(task.vocab)).float()

    roles = measured_src(perfect, task, 8, relation=lambda i, j, n: (i - j == n) * 1 + (i == j) * 2)
    # Add two symbols; and repeat the first one, or stop at "=".
    assert list(roles.curve.values()) == [1, *[2] * 7]
    distances = measured_src(perfect, task, 8, relation="i-j")
    assert list(distances.curve.values()) == [2 * n - 1 for n in SIZES]


def test_influence_of_the_hand_built_model_is_its_circuit():
    task = TASKS["copy"]
    found = influence(Network(copy_by_hand()), task, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(4, 8)
    for step, source in zip(range(4), (1, 2, 3, 4)):
        expected[step, source] = 1
    assert torch.allclose(found, expected, atol=1e-6)


def test_assignments_are_the_same_for_steps_alike_and_never_too_many():
    roles = Roles((1, 2, 3), (CodeRole((0, 5), tuple(range(10)), 3, (1, 2, 3, 4)),))
    drawn = assignments(roles)
    assert drawn.shape == (64, 3) and torch.equal(drawn, assignments(roles))
    assert drawn.unique().numel() == 4  # 4³ = 64: all combinations of a few symbols
    assert len(set(keys_of(roles, drawn))) == 20  # bags of three from four


def test_tokens_are_placed_at_random_among_the_keys_of_a_code():
    roles = Roles((2,), (CodeRole((0, 5), (7, 8), 1, (1, 2, 3)),))
    base = torch.zeros(500, 6, dtype=torch.long)
    tokens = fill_roles(roles, torch.tensor([[7]]), base, torch.Generator().manual_seed(0))
    assert (tokens.sum(1) == 7).all()
    assert ((tokens == 7).double().mean(0)[1:4] - 1 / 3).abs().max() < 0.1


def test_fidelity_and_threshold_can_be_changed_afterwards_or_refused():
    found = measured_src(copy_by_hand(), train_max=3)
    assert found.curve_at(0.5) == found.curve
    with pytest.raises(UserError, match="1 base instances are too few"):
        measured_src(copy_by_hand(), train_max=3, bases=1)


@pytest.mark.slow
def test_a_model_trained_on_shuffled_labels_reads_nothing_but_where_to_stop(monkeypatch):
    """Trained as usual, on answers of other instances: every answer position is shuffled over the rows."""

    def shuffled(trainer, draw=Trainer.draw):
        batch = draw(trainer)
        order = torch.rand(batch.tokens.shape, generator=trainer.data).argsort(0)
        tokens = torch.where(batch.answer_mask.all(0), batch.tokens.gather(0, order), batch.tokens)
        return Batch(tokens, batch.answer_mask, batch.scale)

    monkeypatch.setattr(Trainer, "draw", shuffled)
    sizes = {"d_model": 32, "n_heads": 2, "train_max": 4}
    model = train(RunConfig(task="copy", scheme="ideal", steps=200, lr=3e-3, lengths="one", **sizes)).model
    assert exact_by_scale(model, TASKS["copy"], [4])[4] < 0.05  # there are 10⁴ answers
    steps = measured_src(model, train_max=4).behaviours
    reads = [[len(step.signature) for step in steps if step.scale == n] for n in (1, 2, 3, 4)]
    assert reads == [[0, 1], [0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0, 1]]


def test_every_probe_works_on_a_transformer_bridge():
    model = build(ModelConfig(task="copy", scheme="learned", n_ctx=64, d_model=16, n_heads=2))
    bridge, task = model.to_bridge(), TASKS["copy"]
    theirs = measured_lrc(bridge, task, 4, relation="(i,j)")
    ours = measured_lrc(model, train_max=4)
    assert theirs.curve == ours.curve
    assert measured_src(bridge, task, 3, relation="(i,j)").curve == measured_src(model, train_max=3).curve
    found = readout_transfer(bridge, task, 3, layers=[0], readouts=["linear"])
    assert found.accuracy["blocks.0.hook_resid_post", "linear"].shape == (9, 9)
    with pytest.raises(UserError, match=r"did you mean 'blocks\.0\.hook_resid_post'"):
        readout_transfer(bridge, task, 3, hooks=["blocks.0.hook_resid_pots"])


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


@pytest.mark.parametrize(
    ("model", "asked", "says"),
    [
        (copy_by_hand(), {"rows": 10}, "10 rows are too few to fit weights for 23 positions"),
        (copy_by_hand(), {"layers": [3]}, "there is no layer 3"),
        (lambda tokens: tokens, {"task": TASKS["copy"], "relation": "i-j"}, "has no hooks"),
        (lambda tokens: tokens, {}, "does not name its task"),
        (lambda tokens: tokens, {"task": TASKS["copy"]}, "relation is not known"),
    ],
)
def test_refusals_in_a_sentence(model, asked, says):
    with pytest.raises(UserError, match=says):
        measured_lrc(model, **asked)
