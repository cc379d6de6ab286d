"""On a GPU; where there is none, on devices that are pretended (tests/pretended.py), on which work can be counted."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.models.devices import arithmetic
from lengthlens.models.schemes import scheme_names
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.runs.evaluation import exact_match
from lengthlens.runs.sweep import Grid
from lengthlens.runs.trainer import Trainer, answer_loss
from lengthlens.runs.training import decode_checkpoint, encode_checkpoint
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import few, small, trained
from lengthlens.tests.pretended import Gpus, prepare, pretended_gpus

if not prepare.cache_info().currsize and not torch.cuda.is_available():
    pytest.skip("needs a process of its own: pytest tests/test_devices.py", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")
pretends = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU none is pretended")
# Kernels of a step, where they are more than 250: these compute with each layer's parameters one after the other.
MORE = {"fire": 270, "randomized:fire": 270, "hinted:xl": 260, "hinted:kerple-log": 270}
MORE |= {"rpe-square": 290, "hinted:kerple-power": 290, "hinted:fire": 390}
MORE |= {"windowed:fire": 270, "continuous:fire": 270, "windowed:grape-multiplicative": 260, "dape": 260}
MORE |= {"grape-additive": 270, "windowed:grape-additive": 270, "selective-rope": 290, "windowed:selective-rope": 330}
MORE |= {"wall": 270, "windowed:wall": 270, "path": 330, "windowed:path": 340}
EVERY = few(scheme_names(), "lbpe", "coupled")


@pytest.fixture
def gpus() -> Iterator[Gpus]:
    """Two that are pretended, which count what they are asked to do."""
    if torch.cuda.is_available():
        pytest.skip("where there is a GPU none is pretended")
    with pretended_gpus(2) as found:
        yield found


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    """A GPU, or else a pretended one."""
    if torch.cuda.is_available():
        yield torch.device("cuda:0")
        return
    with pretended_gpus(2):
        yield torch.device("cuda:1")


@pytest.mark.parametrize("lengths", ["one", "mixed"])
@pytest.mark.parametrize("scheme", EVERY)
def test_a_step_waits_at_most_once_and_launches_few_kernels(scheme: str, lengths: str, gpus: Gpus) -> None:
    """Also: what is learned is what the CPU learns, but for b_K, whose gradient is rounding alone."""
    here, there = (Trainer(small(scheme, device=device, lengths=lengths)) for device in ("cpu", "cuda"))
    for step in range(4):
        for trainer in (here, there):
            trainer.model.train()
            gpus.reset()
            loss = trainer._step()
            assert loss.device == trainer.device
        assert gpus.waits == 0, gpus.waited
        assert gpus.doubles == 0 and set(gpus.devices) == {0}
        if step == 3:
            assert gpus.kernels < MORE.get(scheme, 250), gpus.launched
    for (name, own), other in zip(here.model.named_parameters(), there.parameters):
        if not name.endswith(("b_K", "inner.b_in", "anchored.b_in", "pos_embed.b_in")):
            torch.testing.assert_close(other.cpu(), own.detach(), atol=2e-5, rtol=1e-4, msg=name)


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", EVERY)
def test_gradients_cache_exact_match_and_generation_are_those_of_the_cpu(scheme: str, cuda: torch.device) -> None:
    here = ll.build(small(scheme).model).eval()
    there = ll.build(small(scheme).model).eval().to(cuda)
    task = TASKS[small(scheme).task]
    batch = task.sample([1, 3, 2], generator=torch.Generator().manual_seed(0))
    found = []
    for model in (here, there):
        logits, cache = model.run_with_cache(batch.tokens, batch.scale)
        loss = answer_loss(logits, batch, 0.1)
        named = {n: p for n, p in model.named_parameters() if not n.endswith("b_K")}
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        found.append([logits, *cache.values(), *(g for g in gradients if g is not None)])
    assert all(x.device == cuda for x in found[1])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(other.detach().cpu(), own.detach(), atol=1e-4, rtol=1e-3)
    assert exact_match(there, task, [2, 4], samples=8) == exact_match(here, task, [2, 4], samples=8)
    prompt = batch.tokens[1:2, : task.prompt_length(3)]
    assert torch.equal(there.generate(prompt, 4, 3).cpu(), here.generate(prompt, 4, 3))


@pytest.mark.parametrize("scheme", EVERY)
def test_generation_waits_for_nothing(scheme: str, gpus: Gpus) -> None:
    model, task = ll.build(small(scheme).model).eval().to("cuda"), TASKS[small(scheme).task]
    batch = task.sample(3, 1, generator=torch.Generator().manual_seed(0))
    gpus.reset()
    model.generate(batch.tokens[:, : task.prompt_length(3)], 4, 3)
    assert gpus.kernels and gpus.waits == 0, gpus.waited


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", few(["lbpe", "shifted:learned"], "lbpe"))
def test_training_resumes_on_a_gpu_bit_by_bit(scheme: str, cuda: torch.device) -> None:
    with arithmetic(deterministic=True, tf32=False):
        whole = Trainer(small(scheme, device="cuda"))
        whole.advance()
        state = decode_checkpoint(encode_checkpoint(whole))
        whole.advance()
        taken_up = Trainer(small(scheme, device="cuda"))
        taken_up.load(*state)
        taken_up.advance()
    assert taken_up.history == whole.history
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(taken_up.parameters, whole.parameters))


def test_what_is_left_on_the_cpu_is_found(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the pretended device refuses what CUDA would."""
    model = ll.build(small("relative").model).to("cuda")
    tokens = TASKS["copy"].sample(3, 2, torch.Generator().manual_seed(0)).tokens

    def left_behind(self: PositionScheme, *given: object) -> torch.Tensor:
        return torch.zeros(1, 1, 9, 9)

    monkeypatch.setattr(type(model.pos_embed), "score", left_behind)
    with pytest.raises(RuntimeError, match="same device"):
        model(tokens, 3)
    x = torch.ones(3, device="cuda:0")
    with pytest.raises(RuntimeError, match="same device, but found cuda:0, cuda:1"):
        x + torch.ones(3, device="cuda:1")
    assert float((x + torch.tensor(1.0)).sum()) == 6.0  # a number without dimensions may come from the CPU
    gpus.reset()
    x[x > 0].sum().item()
    assert gpus.waits == 2 and gpus.kernels >= 3


@pytest.mark.cuda
def test_ids_are_checked_before_a_gpu_sees_them(cuda: torch.device) -> None:
    model = ll.build(small("rope").model).to("cuda")
    for wrong in (torch.tensor([[1, 99]]), torch.tensor([[1, -1]])):
        for tokens in (wrong, wrong.to("cuda")):
            with pytest.raises(UserError, match="outside the vocabulary of 14 tokens"):
                model(tokens)


def test_devices_by_number(gpus: Gpus) -> None:
    assert Trainer(small("rope", device="cuda:1")).device == torch.device("cuda:1")
    with pytest.raises(UserError, match="no device 'cuda:2' here: the choices are auto, cpu, cuda, cuda:0, cuda:1"):
        Trainer(small("rope", device="cuda:2"))
    with pytest.raises(UserError, match="device"):
        small("rope", device="cuda:x")


@pretends
def test_a_run_says_where_it_was_trained(tmp_path: Path) -> None:
    store, config = ll.RunStore(tmp_path), small("rope", steps=9)

    def stop(progress: Any) -> None:
        if progress.metrics.step == 6:
            raise KeyboardInterrupt

    with pretended_gpus(2), pytest.raises(KeyboardInterrupt):
        ll.train(replace(config, device="cuda:1"), store, reports=[stop], checkpoint_seconds=0)
    run = ll.train(replace(config, device="cpu"), store).run
    starts = [event for event in run.events() if event["event"] == "start"]
    assert [start["device"] for start in starts] == ["cuda:1", "cpu"]
    assert starts[0]["gpu"] == "pretended" and starts[1]["before"] == "cuda:1"
    assert run.model().cfg.device.type == "cpu"


@pytest.mark.cuda
@pytest.mark.slow
def test_probes_and_certificates_on_a_gpu_are_those_of_the_cpu(cuda: torch.device) -> None:
    from lengthlens.probes.table import probe_model

    tables, certificates = [], []
    for device in ("cpu", cuda):
        with redirect_stdout(io.StringIO()):
            tables.append(probe_model(trained("copy_lbpe").to(device), train_max=3, measures=["src", "lrc"]))
        certificates.append(ll.certify(trained("copy_lbpe").to(device), max_length=20))
    here, there = tables
    assert here["measure"].tolist() == there["measure"].tolist() and certificates[0] == certificates[1]
    np.testing.assert_allclose(there["value"], here["value"], atol=1e-3, rtol=1e-3)


# What Python runs first in every process: a worker takes its GPU before it loads any plug-in.
PRETENDING = """
from lengthlens.tests.pretended import pretended_gpus

kept = pretended_gpus(2)
kept.__enter__()
"""
# A plug-in that defines something is loaded by every worker before its first run. There each waits for the other, since
# one alone may be done with all runs before the other has imported everything. The command itself is the first to load.
MEETING = """
import os
import time
from pathlib import Path

import lengthlens as ll
from lengthlens.models.schemes.absolute import NoPosition

met = Path(__file__).parent / "met"
alone, until = not met.exists(), time.monotonic() + 300
met.mkdir(exist_ok=True)
(met / str(os.getpid())).touch()
while not alone and len(list(met.iterdir())) < 3 and time.monotonic() < until:
    time.sleep(0.05)

@ll.register
class Own(NoPosition):
    name = "own"
"""


@pytest.mark.parametrize(("device", "used"), [("cpu", set()), ("cuda:1", {1})])
def test_a_sweep_trains_and_evaluates_where_it_is_told_to(
    device: str, used: set[int], gpus: Gpus, tmp_path: Path
) -> None:
    gpus.reset()
    settings = {"steps": 2, "train_max": 2, "batch": 2, "d_model": 8, "n_heads": 1, "device": device}
    (outcome,) = ll.sweep(Grid(["copy"], ["rope"], [0], [3], settings=settings), ll.RunStore(tmp_path), workers=1)
    assert outcome.status == "not-converged" and set(gpus.devices) == used


def test_what_is_not_asked_of_arithmetic_is_left_alone() -> None:
    """Torch has an old and a new name for the precision of products, and refuses to read the old after the new."""
    matmul = torch.backends.cuda.matmul
    matmul.fp32_precision = "ieee"
    try:
        torch.set_deterministic_debug_mode("warn")
        with arithmetic(deterministic=True, tf32=True):
            assert matmul.fp32_precision == "tf32" and torch.get_deterministic_debug_mode() == 2
        assert torch.get_deterministic_debug_mode() == 1
        with arithmetic(deterministic=False, tf32=False):
            assert torch.get_deterministic_debug_mode() == 1
        assert matmul.fp32_precision == "ieee"
    finally:
        matmul.fp32_precision = "none"
        torch.set_deterministic_debug_mode("default")


@pretends
@pytest.mark.slow
def test_a_sweep_uses_all_gpus(tmp_path: Path) -> None:
    """Two workers, each with a pretended GPU of its own, which every process has from its start."""
    plugin, site = tmp_path / "meeting.py", tmp_path / "site"
    plugin.write_text(MEETING)
    site.mkdir()
    (site / "sitecustomize.py").write_text(PRETENDING)
    words = "sweep --tasks copy --schemes rope --seeds 0-2 --steps 3 --train-max 2 --device cuda --set batch=2"
    code = "from lengthlens.cli import main; main()"
    call = [sys.executable, "-c", code, "--plugin", str(plugin), *words.split(), "--store", str(tmp_path / "runs")]
    subprocess.run(call, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(site)})
    used = [event["device"] for run in ll.RunStore(tmp_path / "runs").runs() for event in run.events()[:1]]
    assert len(used) == 3 and set(used) == {"cuda:0", "cuda:1"}
