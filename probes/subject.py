"""A network as the probes see it: tokens of one scale in, logits or hooked activations out."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.runs.evaluation import device_of, evaluating, right_tokens, score_of, takes_scale
from lengthlens.tasks import Task

# Tokens of one forward pass: large enough that overhead does not count, small enough for a processor's cache.
CHUNK_TOKENS = 1 << 14


class Subject:
    """Any model that can be asked for logits, and, if it has hooks, for activations.

    `model` is a HookedModel of this project, another model with `run_with_cache` (a TransformerBridge, say), or a
    plain function from ids [row, pos] to logits [row, pos, token]. Whoever has a parameter `scale` is told the scale
    of the instances, so that tokens may be replaced without hiding it. Nothing here has gradients, and a model that
    has a training mode is taken out of it meanwhile.

    >>> logits = Subject(lambda tokens: torch.nn.functional.one_hot(tokens, 14).float()).logits
    >>> logits(torch.tensor([[3, 1]]), scale=1).argmax(-1)
    tensor([[3, 1]])
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self.takes_scale = takes_scale(model)
        self.device = device_of(model)

    def logits(
        self, tokens: Int[Tensor, "row pos"], scale: int, at: slice = slice(None)
    ) -> Float[Tensor, "row some_pos token"]:
        """[row, pos] to [row, pos, token], at some of the positions."""
        with evaluating(self.model):
            return torch.cat([self.model(part, **self._scale(scale))[:, at].float() for part in chunks(tokens)])

    def next_tokens(self, tokens: Int[Tensor, "row pos"], scale: int, query: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
        """The arg-max next token of each row at its own `query` [row]. [row]"""
        found, parts = [], chunks(tokens)
        with evaluating(self.model):
            for part, at in zip(parts, query.split(len(parts[0]))):
                logits = self.model(part, **self._scale(scale))
                found.append(logits[torch.arange(len(part), device=logits.device), at].argmax(-1))
        return torch.cat(found)

    def activations(
        self, tokens: Int[Tensor, "row pos"], scale: int, names: Sequence[str]
    ) -> dict[str, Float[Tensor, "row pos *rest"]]:
        """What each hook point sees, by name, [row, pos, …]."""
        run, caches = self._run_with_cache(), []
        with evaluating(self.model):
            for part in chunks(tokens):
                try:
                    cache = run(part, names_filter=list(names), **self._scale(scale))[1]
                except KeyError:
                    cache = {}  # a name that is none is an error for one library and nothing for another
                for name in names:
                    if name not in cache:
                        raise unknown("hook point", name, run(part[:1], **self._scale(scale))[1].keys())
                caches.append(cache)
        return {name: torch.cat([cache[name] for cache in caches]).float() for name in names}

    def layers(self, chosen: Sequence[int] | None) -> list[int]:
        """The layers asked for, or all of them, of a model that has hooks."""
        self._run_with_cache()
        count: Any = getattr(getattr(self.model, "cfg", None), "n_layers", None)
        if chosen is None and count is None:
            raise UserError("the model does not say how many layers it has (cfg.n_layers): name the layers")
        for layer in chosen or ():
            if count is not None and not 0 <= layer < count:
                raise UserError(f"there is no layer {layer}: the model has layers 0 to {count - 1}")
        return list(range(count) if chosen is None else chosen)

    def _run_with_cache(self) -> Any:
        run = getattr(self.model, "run_with_cache", None)
        if run is None:
            raise UserError("this probe needs activations, and the model has no hooks (no run_with_cache)")
        return run

    def _scale(self, scale: int) -> dict[str, int]:
        return {"scale": scale} if self.takes_scale else {}


AnyModel: TypeAlias = Callable[..., Any] | Subject


def chunks(tokens: Tensor) -> list[Tensor]:
    return list(tokens.split(max(1, CHUNK_TOKENS // tokens.shape[1])))


def subject_of(model: AnyModel) -> Subject:
    return model if isinstance(model, Subject) else Subject(model)


def task_of(model: AnyModel, task: Task | None) -> Task:
    """The task given, or the one that the model was built for."""
    own = getattr(subject_of(model).model, "task", None) if task is None else task
    if not isinstance(own, Task):
        raise UserError("the model does not name its task: give it, e.g. task=TASKS['copy']")
    return own


def scales_up_to(task: Task, train_max: int) -> range:
    """Every scale of the task up to `train_max`."""
    task.checked_scale(train_max)
    return range(task.min_scale, train_max + 1)


def answer_queries(task: Task, scale: int) -> range:
    """The positions at which a token of the answer is predicted.

    >>> from lengthlens.tasks import TASKS
    >>> answer_queries(TASKS["copy"], 2)  # ^ 7 3 = 7 3 $
    range(3, 6)
    """
    return range(task.prompt_length(scale) - 1, task.length(scale) - 1)


def exact_by_scale(
    model: AnyModel, task: Task, scales: Sequence[int], rows: int = 256, generator: torch.Generator | None = None
) -> dict[int, float]:
    """The share of random instances with every answer token right (teacher-forced arg-max), for each scale."""
    subject = subject_of(model)
    generator = generator or torch.Generator().manual_seed(0)
    found = {}
    for scale in scales:
        batch = task.sample(scale, rows, generator)
        logits = subject.logits(batch.tokens.to(subject.device), scale)
        found[scale] = score_of(scale, right_tokens(logits, batch)).exact_match
    return found


def reachable(model: AnyModel, task: Task, scales: Sequence[int]) -> list[int]:
    """Those of the scales that the task has and the model can process."""
    found: list[int] = []
    for scale in scales:
        with suppress(UserError):
            found += exact_by_scale(model, task, [scale], rows=1)
    return found
