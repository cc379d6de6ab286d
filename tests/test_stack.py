"""Many runs as one: each becomes what it would have become alone, with the operations of one."""

import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lengthlens as ll
from lengthlens.commands.runs import print_outcome
from lengthlens.models import devices
from lengthlens.models.schemes import scheme_names
from lengthlens.runs.stack import Stack, stacks
from lengthlens.runs.sweep import Grid, sweep, train_and_evaluate_all
from lengthlens.runs.trainer import Trainer
from lengthlens.tasks import Task
from lengthlens.tests.parameters import NINE, few

TINY = {"train_max": 4, "batch": 4, "d_model": 16, "n_heads": 2, "check_every": 3, "steps": 7, "device": "cpu"}
# Moved by rounding alone: nothing that all keys have in common changes a softmax. In W_R, rows of slow sinusoids.
NOISE = ("b_K", "inner.b_in", "anchored.b_in", "pos_embed.b_in", "W_R")
EVERY = few([NINE, *scheme_names()], NINE, "lbpe", "randomized:learned")


def configs(scheme: str, count: int, **changes: Any) -> list[ll.RunConfig]:
    task = "addition" if scheme in ("coupled", "abacus") else "copy"
    common = {"task": task, "scheme": scheme, **TINY, **changes}
    return [ll.RunConfig.from_dict({**common, "seed": seed, "lr": 2e-3 * (1 + seed)}) for seed in range(count)]


def finished(trainers: list[Trainer]) -> list[Trainer]:
    stack = Stack(trainers)
    while stack.trainers:
        stack.advance()
    return trainers


def assert_same(model: Any, learned: list[torch.Tensor]) -> None:
    for (name, weight), other in zip(model.named_parameters(), learned):
        if not name.endswith(NOISE):
            torch.testing.assert_close(other, weight, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("lengths", few(["one", "mixed"], "mixed"))
@pytest.mark.parametrize("scheme", EVERY)
def test_a_stacked_run_learns_what_it_learns_alone(scheme: str, lengths: str) -> None:
    count = 8 if (scheme, lengths) == (NINE, "one") else 3
    alone = [Trainer(config) for config in configs(scheme, count, lengths=lengths)]
    for trainer in alone:
        while not trainer.done:
            trainer.advance()
    together = finished([Trainer(config) for config in configs(scheme, count, lengths=lengths)])
    for one, other in zip(alone, together):
        assert [m.step for m in one.history] == [m.step for m in other.history] == [3, 6, 7]
        assert one.tokens == other.tokens and one.end == other.end
        torch.testing.assert_close(
            torch.tensor([m.loss for m in other.history]), torch.tensor([m.loss for m in one.history])
        )
        assert_same(one.model, other.parameters)


def pinned(self: torch.Tensor) -> torch.Tensor:
    assert not torch.compiler.is_compiling()
    return self


def without_constants(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """A backend that runs a graph as it is, and refuses one that makes a tensor of numbers of Python's."""
    assert [node for node in graph.graph.nodes if node.target in (torch.tensor, torch.as_tensor)] == []
    return graph


@pytest.mark.parametrize("scheme", few(scheme_names(), "none"))
def test_a_step_compiles_as_one_graph_without_a_break(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By dynamo, which under `fullgraph` refuses to leave anything out. It gives what a plain step gives.

    Tensors are sent as to a GPU, from pinned memory, but for what is traced: a compiler cannot pin. And nothing made on
    the CPU is part of the graph, which could not be captured then.
    """
    compile = torch.compile
    monkeypatch.setattr(devices, "GPU", "cpu")
    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    eager = {"backend": without_constants, "fullgraph": True}
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: compile(loss, dynamic=dynamic, **eager))
    monkeypatch.setattr(Task, "run_index", inspect.unwrap(Task.run_index))  # its checks cannot be traced
    torch._dynamo.reset()
    plain, compiled = (Trainer(configs(scheme, 1, compile=asked)[0]) for asked in (False, True))
    torch.testing.assert_close(compiled._step(), plain._step())
    assert_same(plain.model, compiled.parameters)


def test_many_networks_in_one_process_are_all_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps eight graphs of a function and then runs it as it is, with no more than a warning."""
    compile, graphs = torch.compile, list[str]()

    def kept(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(scheme)
        return graph

    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: compile(loss, dynamic=dynamic, backend=kept))
    schemes = ["none", "learned", "sinusoidal", "shortformer", "rope", "alibi"]
    for scheme in schemes:
        for trainer in (Trainer(config) for config in configs(scheme, 2, compile=True)):
            for _ in range(4):
                trainer._step()
    assert set(graphs) == set(schemes) and len(graphs) <= 4 * len(schemes)  # one for each n, for both seeds


class Operations(TorchDispatchMode):
    """Counts the operations that networks of this size consist of; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.number = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number[str(func)] += not (func.is_view or func is torch.ops.aten._unsafe_view.default)
        return func(*args, **(kwargs or {}))


def operations(trainers: list[Trainer]) -> int:
    """Of a step but for drawing its instances, which each run does for itself."""
    stack = Stack(trainers)
    batches = [trainer.draw() for trainer in trainers]
    for trainer, batch in zip(trainers, batches):
        trainer.draw = lambda batch=batch: batch  # type: ignore[method-assign]
    stack._step()
    inputs = stack.inputs()
    with Operations() as counted:
        stack.train_on(*inputs)
    return counted.number.total()


def test_operations_do_not_depend_on_how_many_runs_there_are() -> None:
    """Eight seeds of lbpe: as many as two. One has a copy less, since its embeddings alone are contiguous."""
    one, two, eight = (operations([Trainer(c) for c in configs(NINE, count, steps=4)]) for count in (1, 2, 8))
    assert one + 1 == two == eight


def test_runs_of_a_stack_stop_by_themselves_and_go_on_from_their_own_checkpoints() -> None:
    pair = [Trainer(config) for config in configs("rope", 2)]
    pair[1].end = 5  # as if it had settled
    finished(pair)
    assert [trainer.step for trainer in pair] == [7, 5] and [m.step for m in pair[1].history] == [3, 5]
    first = Trainer(configs("rope", 1)[0])
    first.advance()
    resumed = Trainer(configs("rope", 1)[0])
    resumed.load(*first.state())
    finished([resumed, Trainer(configs("rope", 2)[1])])  # one has done three steps, the other none
    assert_same(pair[0].model, resumed.parameters)


def test_what_can_be_stacked() -> None:
    seeds = configs("rope", 5)
    assert [[c.seed for c in group] for group in stacks(seeds, 2)] == [[0, 1], [2, 3], [4]]
    assert len(stacks([*configs("rope", 2), *configs("alibi", 2)], 8)) == 2


def test_a_sweep_of_stacks_keeps_every_run_by_itself(tmp_path: Path) -> None:
    grid = Grid(["copy"], ["rope"], seeds=[0, 1, 2], lengths=[5], samples=4, settings=TINY)
    single, stacked = ll.RunStore(tmp_path / "a"), ll.RunStore(tmp_path / "b")
    alone, together = sweep(grid, single, workers=1), sweep(grid, stacked, workers=1, stack=2)
    assert alone == together and all(outcome.trained for outcome in together)
    for one, other in zip(single.runs(), stacked.runs()):
        assert one.id == other.id and other.verified()
        assert [r["exact_match"] for r in one.evaluation()] == [r["exact_match"] for r in other.evaluation()]
        assert [e["event"] for e in other.events()] == [e["event"] for e in one.events()]
        assert not other.has("checkpoint.safetensors")
    assert not any(outcome.trained for outcome in sweep(grid, stacked, workers=1, stack=2))


def test_a_sweep_whose_stacking_fails_says_so_and_trains_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no rule for aten::own\nmore lines")

    monkeypatch.setattr("lengthlens.runs.sweep.train_stacked", fails)
    plans = Grid(["copy"], ["rope"], seeds=[0, 1], settings=TINY).planned()
    outcomes = train_and_evaluate_all(plans, ll.RunStore(tmp_path), 10, wait=True)
    assert [outcome.alone for outcome in outcomes] == ["RuntimeError: no rule for aten::own", None]
    assert all(outcome.trained and not outcome.failed for outcome in outcomes)
    print_outcome(outcomes[0])
    assert "since stacking failed: RuntimeError: no rule for aten::own" in capsys.readouterr().err
