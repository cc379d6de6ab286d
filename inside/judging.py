"""How good is an attribution? Three tests of what `relevance` says about a model's answers.

- *Conservation*: how far the parts are from the answer, relative to it. 0 is exact.
- *Deletion*: tokens are replaced by those of another instance, the most relevant first; the area under the probability
  of the answer, beside that of a random order. The lower, the better the order.
- *Sources*: among as many tokens as the circuit's step reads, the most relevant ones, the share that it reads; the same
  by relevance of positions, where the method tells. Beside it the share that a random choice has.
"""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from lengthlens.inside.attribution import METHODS, Relevance, relevance
from lengthlens.inside.subject import StepRoles, fitting_scales, nearest, roles_in
from lengthlens.probes.subject import AnyModel, Subject, subject_of, task_of
from lengthlens.tasks import Batch, Task

ROWS = 24
DELETED = 8  # tokens taken away, one after the other: more than any step here reads


def judge_relevance(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] = (10,),
    *,
    methods: Sequence[str] = METHODS,
    rows: int = ROWS,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """Judge methods of attribution on a model's own answers, one random step of each instance.

    Arguments:
        model: a HookedModel.
        task: the task; the model's own if None.
        scales: the scales n of the instances.
        methods: among lrp, gradient, integrated and rollout.
        rows: instances of each scale.
        generator: of instances, steps and random orders; seed 0 if None.

    Result: a row for each scale and method: conservation, deletion, deletion_random, sources, position_sources (NaN
    where the method does not tell), sources_random.

    Errors: UserError for a method or scale that does not exist, with the nearest.

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> judge_relevance(copy_by_hand("lbpe"), scales=[5], methods=["lrp"], rows=8).round(2)["sources"].tolist()
    [1.0]
    """
    for method in methods:
        if method not in METHODS:
            raise nearest("method", method, METHODS)
    task, subject = task_of(model, task), subject_of(model)
    generator, found = generator or torch.Generator().manual_seed(0), []
    for scale in fitting_scales(model, task, scales):
        batch = task.sample(scale, rows, generator)
        roles = roles_in(task, scale, batch.tokens)
        step = torch.randint(len(roles.query), (rows,), generator=generator)
        case = _Case(subject, batch, scale, roles, step, generator)
        chance = case.area(torch.rand(batch.tokens.shape, generator=generator))
        for method in methods:
            said = relevance(model, batch.tokens, case.query, method=method, scale=scale)
            positions = said.positions if said.positions is not None and bool(said.positions.any()) else None
            found.append(
                {
                    "scale": scale,
                    "method": method,
                    "conservation": said.conservation,
                    "deletion": case.area(_of_tokens(said)),
                    "deletion_random": chance,
                    "sources": case.sources_among(_of_tokens(said)),
                    "position_sources": float("nan") if positions is None else case.sources_among(positions.cpu()),
                    "sources_random": case.sources_by_chance(),
                }
            )
    return pd.DataFrame(found)


def _of_tokens(said: Relevance) -> Tensor:
    return said.tokens.cpu()


class _Case:
    """Instances with one step each, and what is to be explained there: the model's own answer."""

    def __init__(
        self, subject: Subject, batch: Batch, scale: int, roles: StepRoles, step: Tensor, generator: torch.Generator
    ) -> None:
        self.subject, self.tokens, self.scale = subject, batch.tokens, scale
        self.query, self.rows = roles.query[step], torch.arange(len(step))
        of_row = self.rows if len(roles.key) > 1 else torch.zeros_like(self.rows)
        self.read = torch.zeros(self.tokens.shape, dtype=torch.bool)
        for key, role in zip(roles.key[of_row, step].T, roles.role[of_row, step].T):
            self.read[self.rows[role >= 0], key[role >= 0]] = True
        self.seen = torch.arange(self.tokens.shape[1]) <= self.query[:, None]
        self.other = self.tokens.roll(1, 0)
        self.answer = self._logits(self.tokens).argmax(-1)

    def _logits(self, tokens: Tensor) -> Tensor:
        logits = self.subject.logits(tokens.to(self.subject.device), self.scale)
        return logits[self.rows, self.query].cpu()

    def area(self, said: Tensor) -> float:
        """The mean probability of the answer while the tokens said to matter most are replaced, one by one."""
        order = said.masked_fill(~self.seen, -torch.inf).argsort(1, descending=True)
        tokens, found = self.tokens.clone(), []
        for place in order[:, : min(DELETED, order.shape[1])].T:
            tokens[self.rows, place] = self.other[self.rows, place]
            found.append(self._logits(tokens).softmax(-1)[self.rows, self.answer].mean())
        return float(torch.stack(found).mean())

    def sources_among(self, said: Tensor) -> float:
        """The share of sources among as many of the most relevant tokens."""
        rank = said.masked_fill(~self.seen, -torch.inf).argsort(1, descending=True).argsort(1)
        hits = ((rank < self.read.sum(1, keepdim=True)) & self.read).sum(1)
        return float((hits / self.read.sum(1)).mean())

    def sources_by_chance(self) -> float:
        return float((self.read.sum(1) / self.seen.sum(1)).mean())
