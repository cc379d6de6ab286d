"""Measured SRC: influence, interventions, readouts, and models whose answer is known."""

from dataclasses import replace

import pytest
import torch

from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes.lrc import measured_lrc
from lengthlens.probes.network import Network, exact_by_scale, own_relation
from lengthlens.probes.src import influence, measured_src
from lengthlens.probes.steps import CodeRole, Roles, assignments, fill_roles, keys_of
from lengthlens.probes.transfer import readout_transfer
from lengthlens.runs.config import RunConfig
from lengthlens.runs.trainer import Trainer
from lengthlens.tasks import TASKS, Batch
from lengthlens.tests.parameters import NINE

SCALES = range(1, 9)
KNOWN = {
    "ideal": [1 for _ in SCALES],
    "i-j": list(SCALES),
    "(i,j)": [n * (n + 3) // 2 for n in SCALES],
    # One code for all: beyond n = 1 no readout can tell the symbol that is read from the others, so each of the n
    # steps that copy a symbol counts by itself; the one that reads "=" is explained.
    "none": [n * (n + 1) // 2 for n in SCALES],
}


@pytest.mark.parametrize("relation", KNOWN)
def test_hand_built_model_has_exactly_its_known_src(relation):
    found = measured_src(copy_by_hand(), train_max=8, relation=None if relation == "ideal" else relation)
    assert list(found.curve.values()) == KNOWN[relation]


def test_signatures_alone_would_look_invariant_without_the_fidelity_test():
    found = measured_src(copy_by_hand(), train_max=6, relation="none")
    assert found.steps()["signature"].nunique() == 1
    assert found.curve[6] > found.curve[3]


def test_hand_built_model_that_learned_its_relation():
    assert set(measured_src(copy_by_hand("lbpe"), train_max=8).curve.values()) == {1}


@pytest.mark.parametrize("clip", [2, 5])
def test_hand_built_model_with_a_clipped_hint(clip):
    found = measured_src(copy_by_hand("hinted:relative", clip), train_max=8)
    assert found.curve == {n: min(n, clip) for n in SCALES}


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
    assert list(distances.curve.values()) == [2 * n - 1 for n in SCALES]


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


def test_pruning_keeps_the_model_as_it_was_and_drops_what_no_answer_needs():
    model = build(ModelConfig(task="copy", scheme=NINE, n_heads=2, d_model=16))
    with torch.no_grad():
        model.pos_embed.bias.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    subject, relation = own_relation(model, TASKS["copy"], 4)
    assert subject.model is not model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert relation.words.startswith("surviving forms")
    assert not subject.model.pos_embed.alive.all()


class ShuffledTrainer(Trainer):
    """Trains as usual, on answers that have nothing to do with their prompts."""

    def draw(self) -> Batch:
        return shuffled_answers(super().draw(), self.data)


def shuffled_answers(batch: Batch, generator: torch.Generator | None) -> Batch:
    """Every answer position shuffled over the rows, each by itself: the same tokens there, from other instances."""
    rows, length = batch.tokens.shape
    order = torch.rand(rows, length, generator=generator).argsort(0).to(batch.tokens.device)
    same_place = batch.answer_mask.all(0) if rows else batch.answer_mask.any(0)
    tokens = torch.where(same_place, batch.tokens.gather(0, order), batch.tokens)
    return Batch(tokens, batch.answer_mask, batch.scale)


def trained_on_shuffled(config: RunConfig) -> HookedModel:
    """The model of a run's config after as many steps on shuffled labels (one scale for each batch)."""
    trainer = ShuffledTrainer(replace(config, lengths="one"))
    while not trainer.done:
        trainer.advance()
    model: HookedModel = trainer.model.eval()
    return model


def test_shuffled_labels_are_those_of_other_instances():
    batch = TASKS["copy"].sample(4, 200, torch.Generator().manual_seed(0))
    shuffled = shuffled_answers(batch, torch.Generator().manual_seed(1))
    assert torch.equal(shuffled.tokens[:, :6], batch.tokens[:, :6])
    assert (shuffled.tokens[:, 6:10] != batch.tokens[:, 6:10]).double().mean() > 0.8
    assert torch.equal(shuffled.tokens.sort(0).values[:, 6:], batch.tokens.sort(0).values[:, 6:])


@pytest.mark.slow
def test_a_model_trained_on_shuffled_labels_reads_nothing_but_where_to_stop():
    config = RunConfig(task="copy", scheme="ideal", steps=200, d_model=32, n_heads=2, train_max=4, lr=3e-3)
    model = trained_on_shuffled(config)
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
