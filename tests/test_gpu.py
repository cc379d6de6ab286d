"""What only a GPU can show: its precision, its bits, compiled and captured steps, and several of them at once."""

import inspect
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

import lengthlens as ll
from lengthlens.models.devices import arithmetic
from lengthlens.models.schemes import scheme_names
from lengthlens.runs.sweep import Grid
from lengthlens.runs.trainer import Trainer
from lengthlens.tasks import Task
from lengthlens.tests.parameters import TINY, small

if not torch.cuda.is_available():
    pytest.skip("there is no GPU here", allow_module_level=True)

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]
SCHEMES = pytest.mark.parametrize("scheme", scheme_names())


def test_bfloat16() -> None:
    assert ll.train(small("rope", device="cuda", precision="bfloat16", steps=12)).status.steps == 12


@SCHEMES
def test_compiled_steps_learn_what_plain_ones_do(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In so many steps that what was compiled for an n is used with other instances; and nothing is left out."""
    monkeypatch.setattr(Task, "run_index", inspect.unwrap(Task.run_index))  # its checks cannot be traced
    torch._dynamo.reset()
    counters.clear()
    plain, quick = (Trainer(small(scheme, device="cuda", **more)) for more in ({}, {"compile": True}))
    for _ in range(8):
        torch.testing.assert_close(quick._step(), plain._step(), atol=1e-4, rtol=1e-3)
    assert counters["stats"]["unique_graphs"] and not counters["graph_break"]


@SCHEMES
def test_deterministic_runs_have_the_same_bits(scheme: str) -> None:
    """In a process that has multiplied before, as `ll.train` is asked for it at any time."""
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    one, other = (ll.train(small(scheme, device="cuda", deterministic=True, steps=9)).model for _ in range(2))
    assert all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.skipif(torch.cuda.get_device_capability() < (8, 0), reason="this GPU has no TF32")
def test_coarser_products_are_asked_for_and_taken_back() -> None:
    ll.train(small("rope", device="cuda", tf32=True, steps=9))
    x = torch.randn(512, 512, device="cuda")
    exact = (x.double() @ x.double()).float()
    with arithmetic(deterministic=False, tf32=True):
        assert float((x @ x - exact).abs().max()) > 1e-3
    assert float((x @ x - exact).abs().max()) < 1e-3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_a_sweep_uses_all_gpus(tmp_path: Path) -> None:
    store, settings = ll.RunStore(tmp_path), {**TINY, "device": "cuda", "steps": 3}
    outcomes = ll.sweep(Grid(["copy"], ["rope"], range(3 * torch.cuda.device_count()), [3], settings=settings), store)
    assert {outcome.status for outcome in outcomes} == {"not-converged"}
    used = {event["device"] for run in store.runs() for event in run.events()[:1]}
    assert used == {f"cuda:{k}" for k in range(torch.cuda.device_count())}
