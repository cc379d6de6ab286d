"""Instances on which one looks at a network, and the network run on them with someone watching."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.inside.subject import StepRoles, fitting_scales, roles_in
from lengthlens.probes.subject import AnyModel, Subject, answer_queries, subject_of, task_of
from lengthlens.runs.evaluation import evaluating
from lengthlens.tasks import Task

ROWS = 32  # instances of each scale: means over heads then move by less than 0.02 from draw to draw
SCALES = (5, 10, 20)  # where none are named: what runs are trained on by default, and twice that
Watcher = Callable[[Tensor], Tensor | None]  # sees an activation, may give another in its place


@dataclass(frozen=True)
class Instances:
    """Token ids of one scale, the queries that count, and what the circuit reads there.

    Without a task the scale is the length of a random piece that stands there twice, as is usual for language models,
    and the queries are those of its second half.
    """

    tokens: Tensor  # [row, pos]
    scale: int
    queries: Tensor  # [query]
    task: Task | None = None

    @property
    def roles(self) -> StepRoles | None:
        """Which keys the circuit reads at the queries; None without a task."""
        return None if self.task is None else roles_in(self.task, self.scale, self.tokens)


def drawn(
    model: AnyModel, task: Task | None, scale: int, rows: int = ROWS, generator: torch.Generator | None = None
) -> Instances:
    """Random instances of a scale; for a model without a task, random tokens twice."""
    generator = generator or torch.Generator().manual_seed(scale)
    task = known_task(model, task)
    if task is not None:
        queries = answer_queries(task, scale)
        return Instances(
            task.sample(scale, rows, generator).tokens, scale, torch.arange(len(queries)) + queries[0], task
        )
    vocabulary: Any = getattr(getattr(subject_of(model).model, "cfg", None), "d_vocab", None)
    if vocabulary is None:
        raise UserError("the model does not name its task or its vocabulary (cfg.d_vocab): give a task")
    piece = torch.randint(vocabulary, (rows, scale), generator=generator)
    return Instances(torch.cat([piece, piece], 1), scale, scale + torch.arange(scale))


def known_task(model: AnyModel, task: Task | None) -> Task | None:
    """The task given, or the model's own if it has one."""
    own = getattr(subject_of(model).model, "task", None)
    return task_of(model, task) if task is not None or own is not None else None


def checked_scales(model: AnyModel, task: Task | None, scales: Sequence[int] | None) -> list[int]:
    """The scales asked for, if they exist, in order and each once; the default ones that exist if None."""
    task = known_task(model, task)
    if scales is None:
        scales = [n for n in SCALES if task is None or task.min_scale <= n <= (task.max_scale or n)]
    wanted = sorted(set(scales))
    if task is not None:
        return fitting_scales(model, task, wanted)
    if not wanted or wanted[0] < 2:
        raise UserError(f"a piece that is repeated has at least 2 tokens, not {wanted[0] if wanted else 'none'}")
    return wanted


def watch(
    model: AnyModel, tokens: Tensor, scale: int, watchers: Iterable[tuple[str, Watcher]], blocked: bool = True
) -> Tensor:
    """Run the model while each watcher sees the activation at its hook point; the logits. [row, pos, token]

    A watcher that gives a tensor puts it in the place of what it saw. Where the model can (and `blocked` is left on),
    scores and patterns come in blocks of queries, [row, head, query, key], with all keys up to the last query.
    """
    subject: Subject = subject_of(model)
    run: Any = subject.model
    if not hasattr(run, "run_with_hooks"):
        raise UserError("looking inside needs hooks, and the model has none (no run_with_hooks)")
    in_blocks = getattr(run, "blocked_attention", nullcontext) if blocked else nullcontext
    hooks = [(name, lambda value, hook, seen=seen: seen(value)) for name, seen in watchers]
    told = {"scale": scale} if subject.takes_scale else {}
    with evaluating(run), in_blocks():
        logits: Tensor = run.run_with_hooks(tokens.to(subject.device), fwd_hooks=hooks, **told)
    return logits


def first_query(block: Tensor) -> int:
    """The first query of a block [..., query, key] that has all keys up to its last query."""
    return block.shape[-1] - block.shape[-2]
