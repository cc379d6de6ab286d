"""Exact match from one pass: the same verdict as real generation, the same figures whatever the memory."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lengthlens.commands.options import read_bytes
from lengthlens.errors import ContractError, UserError
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.network import exact_by_scale
from lengthlens.runs.config import RunConfig
from lengthlens.runs.evaluation import (
    evaluate,
    exact_match,
    instance_seed,
    right_answers,
    right_tokens,
    rows_within,
    score_of,
    wilson,
)
from lengthlens.runs.run import Run
from lengthlens.runs.store import RunStore
from lengthlens.runs.trainer import CHECK_SEED, check_in_range
from lengthlens.runs.training import train
from lengthlens.tasks import TASKS

HALF = {"d_model": 32, "batch": 32, "train_max": 4, "check_every": 50, "warmup": 10, "cooldown": 0.5}


def half_trained(task: str, scheme: str, steps: int) -> HookedModel:
    """A model that gets some instances right and others wrong."""
    model = train(RunConfig.from_dict({"task": task, "scheme": scheme, "steps": steps, **HALF})).model
    assert model is not None
    return model


def generated(model: HookedModel, task_name: str, length: int, samples: int) -> tuple[Tensor, Tensor]:
    """Whether greedy generation, token by token, gives the true answer: with its end token, and up to it. [row] each"""
    task = TASKS[task_name]
    batch = task.sample(length, samples, torch.Generator().manual_seed(instance_seed(0, length)))
    prompt = task.prompt_length(length)
    tokens = batch.tokens[:, :prompt]
    for _ in range(task.answer_length(length)):
        logits = model(tokens, batch.scale)
        tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
    right = tokens[:, prompt:] == batch.tokens[:, prompt:]
    return right.all(1), right[:, :-1].all(1)


@pytest.mark.parametrize(
    ("task", "scheme", "steps", "length"),
    [
        ("parity-cot", "ideal", 60, 6),
        pytest.param("copy", "rope", 250, 3, marks=pytest.mark.slow),
        pytest.param("addition", "learned", 250, 1, marks=pytest.mark.slow),
    ],
)
def test_one_pass_gives_the_verdict_of_generation_on_every_instance(
    task: str, scheme: str, steps: int, length: int
) -> None:
    model = half_trained(task, scheme, steps)
    right = right_answers(model, TASKS[task], length, 200, seed=0)
    with torch.no_grad():
        whole, no_end = generated(model, task, length, 200)
    assert torch.equal(right.all(1), whole)
    assert torch.equal(right[:, :-1].all(1), no_end)
    assert 0 < int(whole.sum()) < 200, "the test is about right and wrong ones"


def test_the_figures_do_not_depend_on_memory_or_on_other_lengths(model: HookedModel) -> None:
    task = TASKS["copy"]
    plenty = exact_match(model, task, [2, 5, 9], samples=50)
    assert plenty == exact_match(model, task, [2, 5, 9], samples=50, memory=1)
    assert plenty[1:2] == exact_match(model, task, [5], samples=50)
    assert plenty[1:2] != exact_match(model, task, [5], samples=50, seed=1)


def test_a_score_counts_instances_and_tokens() -> None:
    right = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]], dtype=torch.bool)
    score = score_of(2, right)
    assert (score.samples, score.exact_match, score.exact_match_no_end) == (4, 0.25, 0.5)
    assert score.token_accuracy == pytest.approx(8 / 12)
    assert score.exact_match_low < 0.25 < score.exact_match_high


@pytest.mark.parametrize(
    ("right", "samples", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)]
)
def test_wilson_by_published_values(right: int, samples: int, low: float, high: float) -> None:
    assert wilson(right, samples) == pytest.approx((low, high), abs=5e-5)


def test_fewer_rows_fit_where_sequences_are_longer(model: HookedModel) -> None:
    rows = [rows_within(1 << 30, model, length) for length in (10, 100, 1000)]
    assert rows == sorted(rows, reverse=True)
    assert rows_within(1, model, 10**6) == 1


def test_evaluation_leaves_the_model_in_its_mode(model: HookedModel) -> None:
    model.train()
    exact_match(model, TASKS["copy"], [2], samples=2)
    assert model.training


def test_bad_requests_are_refused(model: HookedModel) -> None:
    with pytest.raises(UserError, match="samples"):
        exact_match(model, TASKS["copy"], [2], samples=0)
    with pytest.raises(UserError, match="n = 0"):
        exact_match(model, TASKS["copy"], [0], samples=1)
    for text in ("", "much", "-1G", "0", "5X"):
        with pytest.raises(UserError, match="memory"):
            read_bytes(text)


# -- runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Run:
    values = {"task": "copy", "scheme": "learned", "steps": 2, "n_ctx": 16, **HALF}
    trained = train(RunConfig.from_dict(values), RunStore(tmp_path))
    assert trained.run is not None
    return trained.run


def test_what_is_known_is_not_computed_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate(run, [3, 5], samples=20)
    monkeypatch.setattr(Run, "model", None)  # would fail if asked for
    assert evaluate(run, [5, 3], samples=20) == first[::-1]
    assert {row["length"] for row in run.evaluation()} == {1, 2, 3, 4, 5}
    assert run.problems() == []


def test_results_that_cannot_be_kept_are_still_given(run: Run) -> None:
    told: list[UserError] = []
    with run.locked():
        (row,) = evaluate(run, [3], samples=7, unkept=told.append)
    assert row["samples"] == 7
    assert "another process" in str(told[0])


def copied(tokens: Tensor, scale: int) -> Tensor:
    """Logits of a function that looks up what it has to copy, and ends where the task does."""
    task = TASKS["copy"]
    found = tokens.roll(scale, 1)
    found = found.masked_fill(found == task.ids["="], task.ids["$"])
    return torch.nn.functional.one_hot(found, len(task.vocab)).float()


def test_any_function_can_be_evaluated_and_is_told_the_scale() -> None:
    """A function that looks the right answer up is always right; one that never ends the answer misses the end."""
    task, told = TASKS["copy"], []

    def shown(tokens: Tensor, scale: int) -> Tensor:
        told.append(scale)
        return copied(tokens, scale)

    def endless(tokens: Tensor, scale: int) -> Tensor:
        logits = copied(tokens, scale)
        logits[..., task.ids["$"]] = -1
        return logits

    assert [score.exact_match for score in exact_match(shown, task, [3, 70], samples=100)] == [1, 1]
    assert set(told) == {3, 70}
    (score,) = exact_match(endless, task, [3], samples=10)
    assert (score.exact_match, score.exact_match_no_end, score.token_accuracy) == (0, 1, 0.75)


def test_what_looks_ahead_or_gives_no_numbers_gets_no_score() -> None:
    """A function that shows the next token, always or far from the beginning only, would be right at every n."""
    task = TASKS["copy"]

    def peeking(tokens: Tensor, scale: int) -> Tensor:
        ahead = torch.nn.functional.one_hot(tokens.roll(-1, 1), len(task.vocab)).float()
        return ahead if scale > 20 else copied(tokens, scale)

    assert exact_match(peeking, task, [3], samples=20)[0].exact_match == 1
    with pytest.raises(ContractError, match="it looks ahead, and gets no score"):
        exact_match(peeking, task, [30], samples=20)
    with pytest.raises(ContractError, match="at n = 3 the model gives NaN"):
        exact_match(lambda tokens, scale: copied(tokens, scale) * float("nan"), task, [3], samples=20)


@pytest.mark.parametrize("name", ["tomita-4", "multiplication-unpadded"])
def test_a_look_ahead_is_seen_where_sets_are_right_and_where_answers_differ_in_length(name: str) -> None:
    task = TASKS[name]

    def repeats(tokens: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(tokens, len(task.vocab)).float()

    assert exact_match(repeats, task, [4], samples=30)[0].exact_match < 1
    with pytest.raises(ContractError, match="it looks ahead, and gets no score"):
        exact_match(lambda tokens: repeats(tokens.roll(-1, 1)), task, [4], samples=30)
    with pytest.raises(ContractError, match="the model gives NaN"):
        exact_match(lambda tokens: repeats(tokens) * float("nan"), task, [4], samples=30)


def test_the_probes_and_the_trainer_count_as_evaluation_does(model: HookedModel) -> None:
    task, generator = TASKS["copy"], torch.Generator()
    batch = task.sample(2, 256, generator.manual_seed(0))
    with torch.no_grad():
        right = (model(batch.tokens, batch.scale)[:, :-1].argmax(-1) == batch.tokens[:, 1:]) | ~batch.query_mask
    assert exact_by_scale(model, task, [2]) == {2: float(right.all(1).double().mean())}
    trained = half_trained("parity-cot", "ideal", 60)
    config = RunConfig("parity-cot", "ideal", train_max=3)
    shares = []
    generator.manual_seed(CHECK_SEED)
    for scale in (1, 2, 3):
        batch = trained.task.sample(scale, 64, generator)
        with torch.no_grad():
            shares.append(right_tokens(trained(batch.tokens, scale), batch).all(1).double().mean())
    assert 0 < check_in_range(trained, trained.task, config)[0] == float(torch.stack(shares).mean())
