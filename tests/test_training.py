"""Training: resumed as if never interrupted, every ending named, the schedule and the rates as described."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from lengthlens.errors import UserError
from lengthlens.inside.heads import plane_over_training
from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import build
from lengthlens.runs.config import RunConfig
from lengthlens.runs.run import CHECKPOINT, METRICS, MODEL, step_file
from lengthlens.runs.store import RunStore, load
from lengthlens.runs.trainer import Trainer, check_in_range, fast_parameters, make_optimizer
from lengthlens.runs.training import TrainingProgress, tensorboard_report, train, wandb_report
from lengthlens.studies.sharing import export, fetch
from lengthlens.tasks import TASKS
from lengthlens.tests import parameters
from lengthlens.tests.parameters import NINE, few


def small(scheme: str = "relative", **changes: object) -> RunConfig:
    return parameters.small(scheme, **{"steps": 12, "warmup": 2, "cooldown": 0.3, **changes})


# -- resuming ----------------------------------------------------------------------------------------------------

# Schemes that draw positions in training, that are annealed, that have networks of their own, and plain ones.
SCHEMES = ("relative", "rope", "learned", "ideal", NINE, "hinted:relative", "randomized:learned", "abacus", "fire")


@pytest.mark.parametrize("scheme", few(SCHEMES, "rope", NINE, "randomized:learned"))
def test_a_resumed_run_is_bit_identical(scheme: str, tmp_path: Path) -> None:
    config = small(scheme)
    whole = train(config, RunStore(tmp_path / "whole")).run
    parts = RunStore(tmp_path / "parts")
    for _ in range(8):
        try:
            train(config, parts, reports=[stop_after(2)], checkpoint_seconds=0)
        except KeyboardInterrupt:
            assert parts.run(config).status().status == "interrupted"
    split = parts.run(config)
    assert [event["event"] for event in split.events()].count("start") > 1
    for name in (MODEL, METRICS, "evaluation.json"):
        assert split.read(name) == whole.read(name), name
    assert split.status().steps == whole.status().steps


def stop_after(evaluations: int):  # type: ignore[no-untyped-def]
    """A report that interrupts the training after some evaluation steps, as Ctrl-C would."""
    seen = 0

    def report(_: TrainingProgress) -> None:
        nonlocal seen
        seen += 1
        if seen == evaluations:
            raise KeyboardInterrupt

    return report


@pytest.mark.parametrize("keep", [0, 5, 1000])
def test_a_truncated_checkpoint_is_put_aside_and_nothing_is_lost(tmp_path: Path, keep: int) -> None:
    store, config = RunStore(tmp_path), small()
    with pytest.raises(KeyboardInterrupt):
        train(config, store, reports=[stop_after(3)], checkpoint_seconds=0)
    path = store.run(config).path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:keep])
    assert CHECKPOINT in store.check()[0]
    run = train(config, store).run
    assert run.status().finished
    assert [event["event"] for event in run.events()] == ["start", "damaged checkpoint", "start", "finish"]
    assert run.read(MODEL) == train(config, RunStore(tmp_path / "other")).run.read(MODEL)
    assert store.check() == []


# -- endings -----------------------------------------------------------------------------------------------------


def test_a_run_that_learns_converges_and_stops_early() -> None:
    config = RunConfig("parity-cot", "ideal", d_model=16, batch=32, train_max=3, steps=3000, check_every=25, patience=2)
    trained = train(config)
    assert trained.status.status == "converged"
    assert trained.status.in_range_exact_match == 1.0
    assert trained.status.steps < 3000


def test_a_run_that_has_not_learnt_says_so() -> None:
    status = train(small(lengths="mixed")).status
    assert status.steps == 12
    assert status.status == "not-converged"
    assert status.reason is not None and "0.99" in status.reason


def test_a_diverging_run_ends_at_once_without_a_model(tmp_path: Path) -> None:
    trained = train(small(lr=1e6, clip=0.0, steps=60), RunStore(tmp_path))
    assert trained.status.status == "diverged"
    assert trained.status.steps < 60
    assert trained.model is None
    assert not trained.run.has(MODEL) and not trained.run.has(CHECKPOINT)
    assert trained.run.problems() == []


def test_no_number_is_divergence() -> None:
    trainer = Trainer(small())
    with torch.no_grad():
        trainer.model.embed.W_E.fill_(float("nan"))
    trainer.advance()
    assert trainer.diverged and trainer.done


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"device": "cuda"}, "no device 'cuda'"), ({"precision": "bfloat16", "device": "cpu"}, "bfloat16")],
)
def test_what_the_machine_cannot_do_is_refused(changes: dict[str, object], words: str) -> None:
    if torch.cuda.is_available() and changes["device"] == "cuda":
        pytest.skip("there is a CUDA device")
    with pytest.raises(UserError, match=words):
        train(small(**changes))


# -- recipe ------------------------------------------------------------------------------------------------------


def test_biases_of_scores_learn_faster_and_are_not_decayed() -> None:
    model = build(ModelConfig(task="copy", scheme="relative"))
    optimizer = make_optimizer(model, RunConfig("copy", "relative"))
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    table = groups[id(model.pos_embed.table)]
    assert (table["factor"], table["weight_decay"]) == (RunConfig("copy", "relative").pe_lr_factor, 0)
    assert groups[id(model.unembed.W_U)]["weight_decay"] > 0
    assert groups[id(model.unembed.b_U)]["weight_decay"] == 0
    assert len(groups) == len(list(model.parameters()))


def test_vectors_and_small_networks_learn_at_the_rate_of_the_model() -> None:
    for scheme in ("learned", "shortformer"):
        assert not list(fast_parameters(build(ModelConfig(task="copy", scheme=scheme)).pos_embed))
    fire = build(ModelConfig(task="copy", scheme="fire")).pos_embed
    inside = {id(p) for module in fire.modules() if isinstance(module, nn.Linear) for p in module.parameters()}
    assert not inside & {id(p) for p in fast_parameters(fire)}


def test_evaluating_changes_nothing() -> None:
    trainer, other = Trainer(small("randomized:rope")), Trainer(small("randomized:rope"))
    check_in_range(other.model, other.task, other.config)
    assert trainer.advance() == other.advance()


# -- progress and trackers ---------------------------------------------------------------------------------------


def test_reports_see_every_evaluation_step_and_metrics_keep_them(tmp_path: Path) -> None:
    seen: list[TrainingProgress] = []
    run = train(small(), RunStore(tmp_path), reports=[seen.append]).run
    assert [progress.metrics.step for progress in seen] == [3, 6, 9, 12]
    assert run.metrics() == [json.loads(json.dumps(progress.metrics._asdict())) for progress in seen]
    assert seen[-1].seconds_left == 0 < seen[0].seconds_left
    assert seen[0].tokens_per_second > 0


def test_trackers_that_are_not_installed_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"lengthlens\[wandb\]"):
        wandb_report(small())
    with pytest.raises(UserError, match=r"lengthlens\[tensorboard\]"):
        tensorboard_report(tmp_path)


def test_metrics_reach_a_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, config = Mock(), small()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    train(config, reports=[wandb_report(config)])
    assert wandb.init.call_args.kwargs["id"] == config.id
    assert [call.kwargs["step"] for call in wandb.init.return_value.log.call_args_list] == [3, 6, 9, 12]


def test_defaults_work_for_every_task_with_a_range() -> None:
    for name, task in TASKS.items():
        if task.max_scale is None or task.max_scale >= 10:
            assert RunConfig(name, "rope").model.train_ctx == task.longest(10)


# -- checkpoints over training ---------------------------------------------------------------------------------------


def test_weights_over_training_are_kept_beside_the_run_and_change_nothing(tmp_path: Path) -> None:
    config = small(check_every=2, steps=6)
    plain, kept = RunStore(tmp_path / "plain"), RunStore(tmp_path / "kept")
    without, run = train(config, plain).run, train(config, kept, keep=[4, 0]).run
    assert without.id == run.id
    assert run.checkpoints == [0, 4] and without.checkpoints == [] and run.problems() == []
    assert without.read(MODEL) == run.read(MODEL)
    start, trainer = load(run, step=0), Trainer(config)
    assert all(map(torch.equal, start.state_dict().values(), trainer.model.state_dict().values()))
    trainer.advance(), trainer.advance()
    assert all(map(torch.equal, load(run, step=4).state_dict().values(), trainer.model.state_dict().values()))
    # Of a finished run, by training again: the same bytes.
    again = train(config, plain, keep=[0, 2, 4]).run
    assert again.checkpoints == [0, 2, 4]
    assert again.read(step_file(4)) == run.read(step_file(4)) and again.facts()["checkpoints"] == [0, 2, 4]
    copied = fetch(export(again, tmp_path / "shared"), RunStore(tmp_path / "elsewhere")).run
    assert copied.checkpoints == again.checkpoints
    table = plane_over_training(again, scale=2)
    assert sorted(set(table["step"])) == [0, 2, 4, 6]


def test_a_checkpoint_that_was_not_kept_is_one_sentence(tmp_path: Path) -> None:
    config, store = small(check_every=2, steps=4), RunStore(tmp_path)
    run = train(config, store, keep=[2]).run
    for call, sentence in {
        (lambda: load(run, step=4)): r"no checkpoint of step 4 \(kept: 2\): train it with keep=\[4\]",
        (lambda: train(config, store, keep=[3])): "3 is none: the nearest are 2 and 4",
        (lambda: train(config, store, keep=[8])): "step 8 is beyond the end of training, which has 4 steps",
        (lambda: train(config, keep=[2])): "there is no store: give one",
    }.items():
        with pytest.raises(UserError, match=sentence):
            call()
    metrics = [json.loads(line) for line in run.read(METRICS).splitlines()]
    with run.locked():
        run.write(METRICS, b"".join(json.dumps({**line, "loss": 1.0}).encode() + b"\n" for line in metrics))
    with pytest.raises(UserError, match="does not come out here as it did"):
        train(config, store, keep=[4])
