"""From a config to a trained run: in memory, or on disk where it survives being killed at any moment."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from lengthlens.errors import UserError
from lengthlens.files import StorageError
from lengthlens.models.devices import arithmetic, device_facts
from lengthlens.models.saved import weights_of
from lengthlens.models.schemes.contract import require_sound
from lengthlens.models.transformer import HookedModel
from lengthlens.notebook import card
from lengthlens.runs.config import RunConfig
from lengthlens.runs.evaluation import cpu_threads, in_range_rows
from lengthlens.runs.run import CHECKPOINT, METRICS, MODEL, VERSIONS, Run, Status, step_file
from lengthlens.runs.stack import Stack
from lengthlens.runs.store import RunStore
from lengthlens.runs.trainer import Metrics, Trainer, refuse_too_large
from lengthlens.values import parse_json, parsed, whole

CONVERGED = 0.99  # in-range exact match from which a run counts as converged
CHECKPOINT_SECONDS = 10.0  # at most that much work is lost to a kill; writing takes a few milliseconds
FINISH = "finish"  # what the log calls the end of training
LIBRARIES = ("lengthlens", "torch", "numpy", "safetensors", "transformer-lens")


@dataclass(frozen=True)
class TrainingProgress:
    """How a run is doing, for a progress line."""

    run: str
    metrics: Metrics
    end: int  # the step at which it will end, as far as is known now
    tokens_per_second: float

    @property
    def seconds_left(self) -> float:
        """By the pace so far."""
        per_step = self.metrics.tokens / max(1, self.metrics.step)
        return (self.end - self.metrics.step) * per_step / max(1e-9, self.tokens_per_second)


Report = Callable[[TrainingProgress], None]


@dataclass(frozen=True, repr=False)
class Trained:
    """What training gives. A diverged run has no model; one without a store has no run."""

    config: RunConfig
    status: Status
    model: HookedModel | None
    run: Run | None = None

    def __repr__(self) -> str:
        right = self.status.in_range_exact_match
        scored = "" if right is None else f", exact match {right:.4f} up to n = {self.config.train_max}"
        return f"Trained({self.config.id}: {self.status.status} after {self.status.steps} steps{scored})"

    def _repr_html_(self) -> str:
        if self.run is not None:
            return self.run._repr_html_()
        facts: dict[str, Any] = {"task": self.config.task, "scheme": self.config.spec.label}
        facts |= {"status": self.status.status, "steps": self.status.steps, "reason": self.status.reason}
        return card(f"run {self.config.id}", {**facts, "exact match in range": self.status.in_range_exact_match})

    def summary(self) -> dict[str, Any]:
        """What `lengthlens train --json` prints."""
        return {"run": self.config.id, **asdict(self.status), "path": str(self.run.path) if self.run else None}


def train(
    config: RunConfig,
    store: RunStore | None = None,
    *,
    reports: Iterable[Report] = (),
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    wait: bool = False,
    check: bool = True,
    progress: bool | None = None,
    keep: Iterable[int] = (),
) -> Trained:
    """Train a run, or continue it where it was left, or give it back if it is finished.

    Arguments:
        config: every choice about the run.
        store: where the run is stored, and from where it can be continued after a kill at any moment; without one
            nothing is written.
        reports: each is called with a `TrainingProgress` at every evaluation step.
        checkpoint_seconds: about how much work is lost to a kill.
        wait: what to do while another process trains the same run: wait for it, or refuse.
        check: whether a task or scheme from outside is checked first, once in a process (`lengthlens.check`).
        progress: whether a bar shows how it is doing; if None, on a terminal and in a notebook, unless there are
            `reports`.
        keep: steps after which the weights are kept with the run (`run.checkpoints`, `load(run, step=…)`): 0 and
            multiples of `check_every`. It changes nothing about the run; steps that a finished run did not keep are
            made by training again up to them. A run that ends earlier has none of later steps.

    Result: status, model (None if the run diverged) and run on disk (None without a store). The same config gives the
    same model, bit for bit, on one kind of device, however often it was interrupted.

    Errors: UserError if the scheme does not fit the task, the device is not there or another process has the run;
    StorageError if the store cannot be written.

    >>> trained = train(RunConfig(task="copy", scheme="rope", steps=2, batch=2, train_max=2))
    >>> trained.status.status, trained.status.steps
    ('not-converged', 2)
    """
    listeners, steps = list(reports), kept_steps(config, keep)
    if steps and (store is None or config.imported):
        why = "it was imported: its training is not known here" if config.imported else "there is no store: give one"
        raise UserError(f"run '{config.id}' cannot keep checkpoints, since {why}")
    if config.imported and (store is None or not store.run(config).status().finished):
        raise UserError(f"run '{config.id}' is an imported model, which is not trained here: import it again")
    refuse_too_large(config)
    if check:
        require_sound(config)
    with ExitStack() as held:
        if (sys.stderr.isatty() or "ipykernel" in sys.modules) and not listeners if progress is None else progress:
            listeners.append(held.enter_context(progress_bar(config)))
        run = None if store is None else store.create(config, wait)
        if run is not None:
            held.enter_context(run.locked(wait))
        held.enter_context(cpu_threads(config.threads))
        held.enter_context(arithmetic(config.deterministic, config.tf32))
        if run is None:
            trainer, start = Trainer(config), time.monotonic()
            for _ in _advances(trainer, listeners):
                pass
            status = replace(outcome(trainer)[0], seconds=round(time.monotonic() - start, 3))
            return Trained(config, status, trainer.model.eval() if status.has_model else None)
        if not run.status().finished:
            Session(run, checkpoint_seconds, steps).train(config, listeners)
        elif not any(event["event"] == FINISH for event in run.events()):
            run.log(FINISH, step=run.status().steps)  # the last session was killed before it could
        if run.has(CHECKPOINT):
            run.remove(CHECKPOINT)
        if missing := [step for step in steps if step not in run.checkpoints and step <= run.status().steps]:
            keep_again(run, config, missing)
    status = run.status()
    return Trained(config, status, run.model() if status.has_model else None, run)


def kept_steps(config: RunConfig, keep: Iterable[int]) -> list[int]:
    """The steps asked for, if weights can be kept after them.

    >>> kept_steps(RunConfig(task="copy", scheme="rope"), [400, 0, 400])
    [0, 400]
    """
    steps = sorted({whole(0)(step, "a step to keep") for step in keep})
    for step in steps:
        low = step // config.check_every * config.check_every
        if low != step:
            near = f"the nearest are {low} and {low + config.check_every} (check_every is {config.check_every})"
            raise UserError(f"weights can be kept after evaluation steps, and {step} is none: {near}")
        if step > config.steps:
            raise UserError(f"step {step} is beyond the end of training, which has {config.steps} steps at most")
    return steps


@contextmanager
def progress_bar(config: RunConfig) -> Iterator[Report]:
    """A bar, on a terminal or in a notebook, that is told how training goes."""
    from tqdm.auto import tqdm

    with tqdm(total=config.steps, desc=config.id, unit="step", leave=False) as bar:

        def report(now: TrainingProgress) -> None:
            bar.total = now.end
            bar.set_postfix_str(f"loss {now.metrics.loss:.3f}, in-range {now.metrics.in_range_exact_match:.3f}", False)
            bar.n = now.metrics.step
            bar.refresh()

        yield report


def train_stacked(
    configs: Sequence[RunConfig], store: RunStore, checkpoint_seconds: float = CHECKPOINT_SECONDS
) -> None:
    """Train runs that differ in seed, learning rate or initial values only as one network, each from where it was.

    Runs that are finished, or that another process works on, are left alone. Every run is stored, and can be taken up
    again, alone or in another stack, as if it had been trained alone.
    """
    for config in configs[:1]:
        require_sound(config)
    common = configs[0]
    with ExitStack() as held, cpu_threads(common.threads), arithmetic(common.deterministic, common.tf32):
        sessions: dict[Trainer, Session] = {}
        for config in configs:
            run = store.create(config)
            if run.busy() or run.status().finished:
                continue
            held.enter_context(run.locked(wait=True))
            session = Session(run, checkpoint_seconds)
            held.enter_context(session.noted())
            trainer = session.begin(config)
            if not trainer.done:
                sessions[trainer] = session
        stack = Stack(sessions) if sessions else None
        while stack and stack.trainers:
            for trainer in stack.advance():
                sessions[trainer].keep(trainer)
        for session in sessions.values():
            if session.run.has(CHECKPOINT):
                session.run.remove(CHECKPOINT)


def _advances(trainer: Trainer, reports: list[Report]) -> Iterator[None]:
    """Train to the end, with a stop after each evaluation step, of which every report is told."""
    first, start = trainer.tokens, time.monotonic()
    while not trainer.done:
        trainer.advance()
        speed = (trainer.tokens - first) / (time.monotonic() - start)
        for report in reports:
            report(TrainingProgress(trainer.config.id, trainer.history[-1], trainer.end, speed))
        yield


def keep_again(run: Run, config: RunConfig, steps: list[int]) -> None:
    """Keep weights that a finished run did not keep: train again up to them, which must give the same as it did."""
    trainer, stored = Trainer(config), {line["step"]: line for line in run.metrics()}
    while True:
        if trainer.step and stored.get(trainer.step) != trainer.history[-1]._asdict():
            again = (
                "with the versions and on the kind of machine that it was made with (on a GPU only if deterministic)"
            )
            raise UserError(f"run '{run.id}' does not come out here as it did, so that it has no checkpoints: {again}")
        if trainer.step in steps:
            run.write(step_file(trainer.step), weights_of(trainer.model))
        if trainer.step >= steps[-1]:
            return
        trainer.advance()


def outcome(trainer: Trainer) -> tuple[Status, list[dict[str, Any]]]:
    """How a run that is done ended, and its scores at each n in range."""
    if trainer.diverged:
        loss = trainer.history[-1].loss
        return Status("diverged", trainer.step, None, 0.0, f"the loss became {loss:.4g}"), []
    rows = in_range_rows(trainer.model, trainer.config)
    return judged(rows, trainer.step), rows


def judged(rows: list[dict[str, Any]], steps: int) -> Status:
    """How a run with a model ended, by its scores at each n in range."""
    mean = sum(row["exact_match"] for row in rows) / len(rows)
    if mean >= CONVERGED:
        return Status("converged", steps, mean)
    after = f" after {steps} steps" if steps else ""  # of a model that was trained elsewhere none are known
    digits = 3 if round(mean, 3) < CONVERGED else 6  # else 0.98975 would read as "0.990, below 0.99"
    reason = f"in-range exact match is {mean:.{digits}f}{after}, below {CONVERGED}"
    return Status("not-converged", steps, mean, 0.0, reason)


class Session:
    """The work of one process on a run whose lock it holds, from where the run was left to where it is left again."""

    def __init__(self, run: Run, checkpoint_seconds: float, keep: Iterable[int] = ()) -> None:
        self.run, self.checkpoint_seconds, self.kept, self.before = run, checkpoint_seconds, set(keep), run.status()
        self.start = self.saved = time.monotonic()
        self.step = self.before.steps
        self.finished = False

    def status(self) -> Status:
        seconds = self.before.seconds + time.monotonic() - self.start
        return Status("running", self.step, self.before.in_range_exact_match, round(seconds, 3))

    def train(self, config: RunConfig, reports: list[Report]) -> None:
        """Train to the end."""
        with self.noted():
            trainer = self.begin(config)
            for _ in _advances(trainer, reports):
                self.keep(trainer)

    def begin(self, config: RunConfig) -> Trainer:
        """Take the run up where it was."""
        trainer = self._resumed(config)
        facts = device_facts(trainer.device)
        self.run.set_status(self.status())
        self.run.write_json(VERSIONS, library_versions() | facts)
        before = [event.get("device") for event in self.run.events() if event["event"] == "start"]
        if trainer.step and before and before[-1] not in (None, facts["device"]):
            facts["before"] = before[-1]  # sums are taken in another order from here on
        self.run.log("start", step=trainer.step, host=platform.node(), pid=os.getpid(), **facts)
        self._keep_step(trainer)
        if trainer.done:  # killed between its last checkpoint and its end
            self._finish(trainer)
        return trainer

    def keep(self, trainer: Trainer) -> None:
        """After an evaluation: finish, or write a checkpoint if the last is old."""
        self._keep_step(trainer)
        if trainer.done:
            self._finish(trainer)
        elif time.monotonic() - self.saved >= self.checkpoint_seconds:
            self.step = trainer.step
            self.run.write(CHECKPOINT, encode_checkpoint(trainer))
            self._write_metrics(trainer)
            self.run.set_status(replace(self.status(), in_range_exact_match=trainer.history[-1].in_range_exact_match))
            self.saved = time.monotonic()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """What goes wrong meanwhile is written into the run's status."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.finished:
                self.run.set_status(replace(self.status(), status="interrupted"))
            raise
        except StorageError:
            raise  # nothing can be written now; the last checkpoint stays
        except Exception as error:
            if self.finished:
                raise
            reason = str(error) or type(error).__name__
            self.run.set_status(replace(self.status(), status="failed", reason=reason))
            self.run.log("failed", reason=reason)
            raise

    def _resumed(self, config: RunConfig) -> Trainer:
        """Take up the last checkpoint. A damaged one is set aside, and the run starts again, with the same result."""
        trainer = Trainer(config)
        if not self.run.has(CHECKPOINT):
            return trainer
        try:
            data = self.run.read(CHECKPOINT)
            parsed(lambda: trainer.load(*decode_checkpoint(data)), CHECKPOINT, "the checkpoint of this run")
        except UserError as error:
            self.run.log("damaged checkpoint", reason=str(error))
            self.run.set_aside(CHECKPOINT)
            trainer = Trainer(config)
        self.step = trainer.step
        return trainer

    def _keep_step(self, trainer: Trainer) -> None:
        """Keep the weights of this step, if they were asked for."""
        if trainer.step in self.kept and not trainer.diverged:
            self.run.write(step_file(trainer.step), weights_of(trainer.model))

    def _write_metrics(self, trainer: Trainer) -> None:
        self.run.write(METRICS, "".join(json.dumps(each._asdict()) + "\n" for each in trainer.history).encode())

    def _finish(self, trainer: Trainer) -> None:
        """The status comes last: once it says that the run is finished, all else is there."""
        status, scores = outcome(trainer)
        self.step = trainer.step
        self._write_metrics(trainer)
        if status.has_model:
            self.run.write(MODEL, weights_of(trainer.model))
            self.run.add_evaluation(scores)
        self.run.set_status(replace(status, seconds=self.status().seconds))
        self.finished = True
        self.run.log(FINISH, step=self.step)


def encode_checkpoint(trainer: Trainer) -> bytes:
    """The state as one safetensors file, all that is no tensor as JSON in its header. Nothing is pickled."""
    tensors, facts = trainer.state()
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(plain, {"facts": json.dumps(facts)})


def decode_checkpoint(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `encode_checkpoint` was given."""
    tensors = load(data)
    header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")], "its header")
    return tensors, parse_json(header["__metadata__"]["facts"], "its state")


def library_versions() -> dict[str, str]:
    """What the run was made with."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def wandb_report(config: RunConfig, project: str = "lengthlens") -> Report:
    """Send metrics to Weights & Biases, under the run's name, so that a resumed run goes on there too."""
    try:
        import wandb
    except ImportError:
        raise UserError("--wandb needs Weights & Biases: pip install 'lengthlens[wandb]'") from None
    sent = wandb.init(project=project, id=config.id, name=config.id, config=config.to_dict(), resume="allow")

    def report(progress: TrainingProgress) -> None:
        metrics = progress.metrics._asdict()
        sent.log({**metrics, "tokens_per_second": progress.tokens_per_second}, step=metrics["step"])

    return report


def tensorboard_report(directory: Path) -> Report:
    """Write metrics as TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs TensorBoard: pip install 'lengthlens[tensorboard]'") from None
    writer = SummaryWriter(str(directory))

    def report(progress: TrainingProgress) -> None:
        for name, value in progress.metrics._asdict().items():
            if name != "step":
                writer.add_scalar(name, value, progress.metrics.step)
        writer.flush()

    return report
