"""Up to which length leaked attention cannot change an answer: a certificate for a trained model.

Some position schemes *name* a bounded number of keys at each query, whatever the length (`places`). What all others
attract of the attention of a head, because they are many, is the *leak*: beyond the training range it can go wrong.

Proven from the weights, for every instance: which keys a step names, that long sequences hold no kinds of steps that
short ones do not (`places`), and how much attention can leak (`proof.leak_bound`). What follows from it for the answer
is a certificate of one of two kinds:

- ``proven``: the answer is right at every step of every instance up to the length, in exact arithmetic. For models in
  which logits are linear in what heads move (`proof.proof`).
- ``conditional``: the worst leak that was found leaves every step a reserve of margin at every length that was tried.
  An adversary chooses, at each position by itself, what all other keys hold (`search.Game`): more than any instance
  could. Its worst choice is searched for by gradient descent and is not proven to be the worst; lengths between those
  that were tried are not tried. `Certificate.assumes` says so.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from lengthlens.errors import UserError
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.certificate.places import Places, settled_scale
from lengthlens.probes.certificate.proof import leak_bound, proof
from lengthlens.probes.certificate.search import RESERVE, Climb
from lengthlens.runs.evaluation import exact_match
from lengthlens.runs.run import Run
from lengthlens.tasks import Task

Report = Callable[[str], None]
Leaks = dict[int, list[list[float]]]

LEAK_LENGTHS = (10, 100, 1000, 10_000)
SHORT_ROWS = 50  # instances of each length below the settled one, on which the model itself is run
NOTHING_LONGER = "no longer length was asked for"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is known about a model at lengths it was never run on."""

    length: int  # 0 if none
    kind: Literal["proven", "conditional", "none"]
    limit: bool  # whether it ends there only because nothing longer was asked for
    reason: str  # in a sentence: what ends it, or why there is none
    assumes: str = ""  # what it rests on besides exact arithmetic; empty if nothing
    settled: int  # the scale from which on no new kinds of steps come
    margin: float | None = None  # usual lead of the right logit, where it was computed
    worst: dict[int, float]  # the least margin by length: found, or for a proof, a bound for all lengths up to it
    weakest_step: str
    weakest_head: str
    leak: Leaks  # the most that can leak, by length: [layer][head]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def certify(
    model: HookedModel | Run,
    max_length: int = 1_000_000,
    *,
    task: Task | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> Certificate:
    """The largest length (scale n) up to which leaked attention cannot change any answer.

    Arguments:
        model: a model of one or two layers under a scheme that names a bounded number of keys, or a trained run of it.
        max_length: the longest length to ask about.
        task: whose answers they are; the one that the model was built for, if not given.
        seed: of the instances and of the adversary, for a conditional certificate.
        report: is told what is being done.

    Result: a `Certificate`; its length is 0, with a reason, where nothing can be certified.

    Errors: UserError for a scheme, task or number of layers that the theory does not cover, and for a `max_length`
    below the smallest scale of the task.

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> found = certify(copy_by_hand("lbpe"), max_length=10_000)
    >>> found.kind, found.length, found.limit
    ('proven', 10000, True)
    """
    if isinstance(model, Run):
        run: Run = model
        task, model = task or run.config.task_object, run.model("cpu")
    task = checked(model, task or model.task, max_length)
    tell = report or (lambda text: None)
    tell("kinds of steps")
    settled = settled_scale(model.pos_embed, task)
    leaks = {}
    for length in LEAK_LENGTHS:
        scales = (length,) if length < settled else (settled, settled + 1)  # all kinds of steps that there are
        bounds = [leak_bound(model, task, Places(model.pos_embed, task, scale), length) for scale in scales]
        leaks[length] = torch.stack(bounds).amax(0).tolist()
    if model.cfg.n_layers > 1 or not model.cfg.attn_only or model.cfg.normalization_type is not None:
        return searched(model, task, settled, max_length, leaks, seed, tell)
    tell("proof")
    length, step, least = proof(model, task, settled, max_length)
    return Certificate(
        length=length,
        kind="proven" if length else "none",
        limit=step is None,
        reason="from there on keys that are no sources can outweigh the one that is" if step else NOTHING_LONGER,
        settled=settled,
        worst={length: least} if length else {},
        weakest_step=f"the step that writes '{task.vocab[int(step.target[0])]}'" if step else "",
        weakest_head=leakiest(leaks),
        leak=leaks,
    )


def checked(model: HookedModel, task: Task | None, max_length: int) -> Task:
    """The task, if the theory covers it and the model."""
    scheme = model.pos_embed
    if scheme.named_keys(torch.arange(1), scheme.task.min_scale if scheme.task else 1) is None:
        needed = "name a bounded number of keys at each query and treat all others alike, whatever the length"
        raise UserError(f"scheme '{scheme.name}' cannot be certified: only schemes such as lbpe and ideal {needed}")
    if scheme.pools_others and model.config.score_scaling != "none":
        why = "without length-scaled scores only: with them, keys that weigh as one at one length do not at another"
        raise UserError(f"scheme '{scheme.name}' with other=one can be certified {why}")
    if task is None:
        raise UserError("a certificate is about the answers of a task, and the model names none")
    if task.family != "position-addressed":
        needed = "each answer token follows from a fixed number of tokens, at places that position and scale give"
        raise UserError(f"task '{task.name}' is {task.family}: a length can be certified only where {needed}")
    if model.cfg.n_layers > 2:
        raise UserError(f"models of one or two layers can be certified, not of {model.cfg.n_layers}")
    if max_length < task.min_scale:
        raise UserError(f"max_length must be at least {task.min_scale}, not {max_length}")
    return task


def searched(
    model: HookedModel, task: Task, settled: int, limit: int, leaks: Leaks, seed: int, tell: Report
) -> Certificate:
    climb: Climb | None = None

    def made(length: int, reason: str, assumes: str = "", at: int | None = None) -> Certificate:
        found = climb.weakest if climb else {}
        return Certificate(
            length=length,
            kind="conditional" if length else "none",
            limit=reason == NOTHING_LONGER,
            reason=reason,
            assumes=assumes,
            settled=settled,
            margin=climb.usual if climb else None,
            worst={n: weakest.margin for n, weakest in sorted(found.items())},
            weakest_step=found[at].step if at else "",
            weakest_head=found[at].head if at else leakiest(leaks),
            leak=leaks,
        )

    short = min(settled - 1, limit)
    for scale in range(task.min_scale, short + 1):
        tell(f"the model at n = {scale}")
        (score,) = exact_match(model, task, [scale], samples=SHORT_ROWS, seed=seed)
        if score.exact_match < 1:
            return made(0, f"at n = {scale} the model itself is wrong on some of {SHORT_ROWS} instances")
    assumes = f"up to n = {short} the model was run on {SHORT_ROWS} instances of each length"
    if short == limit:
        return made(limit, NOTHING_LONGER, assumes)
    climb, both = Climb(model, task, settled, seed, tell), f"n = {settled} and {settled + 1}"
    if climb.wrong:
        return made(0, f"the model itself is wrong on {climb.wrong} of {climb.screened} instances of {both}")
    assumes += f", and on {climb.screened} of {both}"
    if limit <= settled + 1:
        return made(limit, NOTHING_LONGER, assumes)
    length, failed = climb.up_to(settled + 1, limit)
    if tried := ", ".join(str(n) for n in sorted(climb.weakest) if n <= length):
        steps = sum(len(each.target) for _, each in climb.games)
        assumes += (
            f"; beyond, the worst leak was searched for and not proven to be the worst, at n = {tried}, "
            f"on {steps} steps, the weakest among them, and each keeps {RESERVE:.0%} of the usual margin or more"
        )
    if failed is None:
        return made(length, NOTHING_LONGER, assumes, min(climb.weakest, key=climb.weakest.__getitem__))
    margin = climb.weakest[failed].margin
    reason = f"at n = {failed} a leak was found that leaves a margin of {margin:.2f}, below {RESERVE:.0%} of the usual"
    return made(length, reason, assumes, failed)


def leakiest(leaks: Leaks) -> str:
    """The head that can leak the most at the longest length."""
    table = torch.tensor(leaks[max(leaks)])
    layer, head = divmod(int(table.argmax()), table.shape[1])
    return f"layer {layer} head {head}"
