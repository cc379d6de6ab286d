"""Up to which length leaked attention cannot change an answer: a certificate for a trained model.

Some position schemes *name* a bounded number of keys at each query, whatever the length (`places`). What all others
attract of the attention of a head, because they are many, is the *leak*: beyond the training range it can go wrong.

Which keys a step names follows from linear functions of query and scale, and so does at which scales new kinds of steps
come (`kinds`): for the scheme as for the task, which has to say where its steps are (`Task.layout`). Computed from the
weights, for every instance, is how much attention can leak (`proof.leak_bound`). What follows from it for the answer is
a certificate of one of two kinds:

- ``proven``: the answer is right at every step of every instance up to the length, as the model computes it, rounding
  included. For models in which logits are linear in what heads move (`proof.proof`).
- ``conditional``: the worst leak that was found leaves every step a reserve of margin at every length that was tried.
  An adversary chooses, at each position by itself, what all other keys hold (`search.Game`): more than any instance
  could. Its worst choice is searched for by gradient descent and is not proven to be the worst; lengths between those
  that were tried are not tried, and where there are new kinds of steps the model itself is run on some instances.
  `Certificate.assumes` says so.

Where the kinds of steps cannot be computed there is no certificate.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch

from lengthlens.errors import UserError
from lengthlens.models.saved import refuse_not_finite
from lengthlens.models.transformer import HookedModel
from lengthlens.notebook import card
from lengthlens.probes.certificate.kinds import Cuts, named_places
from lengthlens.probes.certificate.places import NamedSteps, checked_layout
from lengthlens.probes.certificate.proof import leak_bound, proof
from lengthlens.probes.certificate.search import RESERVE, Climb
from lengthlens.runs.evaluation import exact_match
from lengthlens.runs.run import Run
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import Layout, Line

Report = Callable[[str], None]
Leaks = dict[int, list[list[float]]]

LEAK_LENGTHS = (10, 100, 1000, 10_000)
SHORT_ROWS = 50  # instances of each scale at which kinds of steps change, on which the model itself is run
MOST_PLAYED = 256  # the largest scale of such instances, and of those on whose steps the adversary plays
MOST_PERIOD = 12  # of scales on whose steps it plays at once
NOTHING_LONGER = "no longer length was asked for"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is known about a model at lengths it was never run on."""

    length: int  # 0 if none
    kind: Literal["proven", "conditional", "none"]
    limit: bool  # whether it ends there only because nothing longer was asked for
    reason: str  # in a sentence: what ends it, or why there is none
    assumes: str = ""  # what it rests on besides the weights and the task's word on its circuit; empty if nothing
    settled: int  # the scale from which on no new kinds of steps come
    margin: float | None = None  # usual lead of the right logit, where it was computed
    worst: dict[int, float]  # the least margin by length: found, or for a proof, a bound for all lengths up to it
    weakest_step: str
    weakest_head: str
    leak: Leaks  # the most that can leak, by length: [layer][head]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        return f"Certificate({self.headline})"

    @property
    def headline(self) -> str:
        """What it says, in a line."""
        if not self.length:
            return f"no length is certified: {self.reason}"
        return f"certified up to n = {self.length}{', no limit found below' if self.limit else ''} ({self.kind})"

    def _repr_html_(self) -> str:
        facts = {"why not longer": "" if self.limit else self.reason, "assumes": self.assumes}
        facts |= {"weakest step": self.weakest_step, "weakest head": self.weakest_head}
        table = [{"n": n, "least margin": float(margin)} for n, margin in self.worst.items()]
        return card(self.headline, facts, table)


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

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> found = certify(copy_by_hand("lbpe"), max_length=10_000)
    >>> found.kind, found.length, found.limit
    ('proven', 10000, True)
    """
    if isinstance(model, Run):
        run: Run = model
        task, model = task or run.config.task_object, run.model("cpu")
    model = on_cpu(model)
    task = checked(model, task or model.task, max_length)
    layout, tell = checked_layout(task), report or (lambda text: None)
    limit = max_length if task.max_scale is None else min(max_length, task.max_scale)
    tell("what can leak")
    leaks = {n: leak_bound(model, task, steps_at(model, task, layout, n), n).tolist() for n in LEAK_LENGTHS}
    if model.cfg.n_layers > 1 or not model.cfg.attn_only or model.cfg.normalization_type is not None:
        return searched(model, task, layout, limit, leaks, seed, tell)
    tell("proof")
    found = proof(model, task, layout, limit)
    length = found.length if found.length >= task.min_scale else 0
    return Certificate(
        length=length,
        kind="proven" if length else "none",
        limit=found.step is None,
        reason="from there on keys that are no sources can outweigh the one that is" if found.step else NOTHING_LONGER,
        settled=found.settled,
        worst={length: found.least} if length else {},
        weakest_step=f"the step that writes '{task.vocab[int(found.step.target[0])]}'" if found.step else "",
        weakest_head=leakiest(leaks),
        leak=leaks,
    )


def steps_at(model: HookedModel, task: Task, layout: Layout, scale: int) -> NamedSteps:
    """Steps of all kinds that there are at a scale."""
    scheme = model.pos_embed
    if scale < max(layout.since, task.min_scale):
        return NamedSteps.of_scale(scheme, task, max(scale, task.min_scale))
    cuts = Cuts(named_places(layout, scheme.named_lines(layout) or [], 1), layout.first, layout.last)
    return NamedSteps.at(scheme, task, layout, *cuts.slices(np.array([scale])))


def on_cpu(model: HookedModel) -> HookedModel:
    """The model, or a copy of it on the CPU: what is asked of it is exact arithmetic on small tables."""
    return model if model.cfg.device.type == "cpu" else copy.deepcopy(model).to("cpu")


def checked(model: HookedModel, task: Task | None, max_length: int) -> Task:
    """The task, if the theory covers it and the model."""
    scheme = model.pos_embed
    if scheme.named_keys(torch.arange(1), scheme.task.min_scale if scheme.task else 1) is None:
        needed = "name a bounded number of keys at each query and treat all others alike, whatever the length"
        raise UserError(f"scheme '{scheme.name}' cannot be certified: only schemes such as lbpe and ideal {needed}")
    if scheme.pools_others and model.config.score_scaling != "none":
        why = "without length-scaled scores only: with them, keys that weigh as one at one length do not at another"
        raise UserError(f"scheme '{scheme.name}' with other=one can be certified {why}")
    if set(scheme.acts()) - {"score"} or scheme.named_lines(Layout((), Line(), Line(), ())) is None:
        needed = "says on which lines the keys lie that it names (`named_lines`), and acts on scores alone"
        half = "a form with 2j that is still in use names keys at every second query, and so on no line"
        raise UserError(f"scheme '{scheme.name}' cannot be certified: only one that {needed} ({half})")
    if task is None:
        raise UserError("a certificate is about the answers of a task, and the model names none")
    if scheme.task is not None and scheme.task != task:
        raise UserError(f"the model was built for task '{scheme.task.name}', not for '{task.name}' as it was given")
    refuse_not_finite(model)
    if task.family != "position-addressed":
        needed = "each answer token follows from a fixed number of tokens, at places that position and scale give"
        raise UserError(f"task '{task.name}' is {task.family}: a length can be certified only where {needed}")
    if not task.one_number:
        why = "a certificate is about all scales up to an n, and tuples of lengths are in no such order"
        raise UserError(f"the scales of task '{task.name}' are tuples, for which nothing can be certified yet: {why}")
    if model.cfg.n_layers > 2:
        raise UserError(f"models of one or two layers can be certified, not of {model.cfg.n_layers}")
    if max_length < task.min_scale:
        raise UserError(f"max_length must be at least {task.min_scale}, not {max_length}")
    return task


@dataclass(frozen=True)
class Stage:
    """Scales in a row with the same kinds of steps, those of its first `period` scales."""

    first: int
    last: int  # the limit, if it goes on for ever
    period: int

    @property
    def alone(self) -> bool:
        """Whether it is too short for anything to repeat."""
        return self.last - self.first < self.period

    @property
    def scales(self) -> list[int]:
        """Those on whose steps one has to look."""
        return list(range(self.first, min(self.last, self.first + self.period - 1) + 1))


def stages(model: HookedModel, task: Task, layout: Layout, limit: int) -> tuple[list[Stage], int]:
    """All scales up to `limit`, and the scale from which on no kinds of steps are new."""
    named, layers = model.pos_embed.named_lines(layout) or [], model.cfg.n_layers
    cuts = [Cuts(named_places(layout, named, layers), layout.first, layout.last)]
    if layers > 1:  # other keys are positions of any kind, in the prompt as well
        cuts.append(Cuts(named_places(layout, named, layers - 1), Line(), layout.last))
    period = math.lcm(*(each.period for each in cuts))
    if period > MOST_PERIOD:
        raise UserError(
            f"kinds of steps repeat only every {period} scales, and steps of {MOST_PERIOD} at most are played"
        )
    start = max(layout.since, task.min_scale)
    changes = sorted({*range(task.min_scale, start), *(n for each in cuts for n in each.changes(start).tolist())})
    found, at = [], task.min_scale
    for change in [*(n for n in changes if n <= limit), limit + 1]:
        if at < change:
            found.append(Stage(at, change - 1, period))
        if change <= limit:
            found.append(Stage(change, change, period))
        at = change + 1
    return found, 1 + max(changes, default=start - 1)


def searched(
    model: HookedModel, task: Task, layout: Layout, limit: int, leaks: Leaks, seed: int, tell: Report
) -> Certificate:
    """The stages one after the other: run the model where kinds of steps change, play with the adversary where not."""
    tell("kinds of steps")
    parts, settled = stages(model, task, layout, limit)
    climbs: list[Climb] = []
    ran: list[int] = []

    def made(length: int, reason: str, at: int | None = None) -> Certificate:
        found = {n: weakest for climb in climbs for n, weakest in climb.weakest.items()}
        at = at or min(found, key=found.__getitem__, default=None)
        return Certificate(
            length=length if length >= task.min_scale else 0,
            kind="conditional" if length >= task.min_scale else "none",
            limit=reason == NOTHING_LONGER,
            reason=reason,
            assumes=assumptions(ran, climbs, length) if length >= task.min_scale else "",
            settled=settled,
            margin=min((climb.usual for climb in climbs), default=None),
            worst={n: weakest.margin for n, weakest in sorted(found.items())},
            weakest_step=found[at].step if at else "",
            weakest_head=found[at].head if at else leakiest(leaks),
            leak=leaks,
        )

    for stage in parts:
        if stage.scales[-1] > MOST_PLAYED:
            new = f"from n = {stage.first} on there may be new kinds of steps"
            return made(stage.first - 1, f"{new}, and only instances up to n = {MOST_PLAYED} are looked at")
        if stage.alone:
            for scale in stage.scales:
                tell(f"the model at n = {scale}")
                (score,) = exact_match(model, task, [scale], samples=SHORT_ROWS, seed=seed)
                if score.exact_match < 1:
                    why = f"at n = {scale} the model itself is wrong on some of {SHORT_ROWS} instances"
                    return made(scale - 1 if climbs else 0, why)
                ran.append(scale)
            continue
        climb = Climb(model, task, stage.scales, seed, tell)
        if climb.wrong:
            which = f"n = {in_ranges(stage.scales)}"
            why = f"the model itself is wrong on {climb.wrong} of {climb.screened} instances of {which}"
            return made(stage.first - 1 if climbs else 0, why)
        climbs.append(climb)
        length, failed = climb.up_to(stage.scales[-1], stage.last)
        if failed is not None:
            margin, share = climb.weakest[failed].margin, f"{RESERVE:.0%} of the usual"
            return made(
                length, f"at n = {failed} a leak was found that leaves a margin of {margin:.2f}, below {share}", failed
            )
    return made(limit, NOTHING_LONGER)


def assumptions(ran: list[int], climbs: list[Climb], length: int) -> str:
    """What a conditional certificate rests on, in a sentence."""
    said = []
    if ran:
        said.append(f"at n = {in_ranges(ran)} the model was run on {SHORT_ROWS} instances of each length")
    for climb in climbs:
        said.append(f"at n = {in_ranges(climb.scales)} on {climb.screened}")
    if tried := sorted(n for climb in climbs for n in climb.weakest if n <= length):
        steps = sum(len(each.target) for climb in climbs for _, each in climb.games)
        said.append(
            f"beyond, at n = {', '.join(map(str, tried))}, the worst leak was searched for and not proven to be the "
            f"worst, on {steps} steps, the weakest among them, and each keeps {RESERVE:.0%} of the usual margin or more"
        )
    return "; ".join(said)


def in_ranges(numbers: list[int]) -> str:
    """Whole numbers in order, those in a row as a range.

    >>> in_ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    breaks = [k for k in range(1, len(numbers)) if numbers[k] != numbers[k - 1] + 1]
    runs = [numbers[a:b] for a, b in zip([0, *breaks], [*breaks, len(numbers)])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def leakiest(leaks: Leaks) -> str:
    """The head that can leak the most at the longest length."""
    table = torch.tensor(leaks[max(leaks)])
    layer, head = divmod(int(table.argmax()), table.shape[1])
    return f"layer {layer} head {head}"
