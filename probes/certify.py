"""What is known about a network's answers on long inputs: a certificate, *proven* or *tested*, and nothing in between.

*Proven*: every answer token of every instance up to the length is right, as the network computes it, rounding included.
It follows from the weights (`lengthlens.probes.proof`), for one layer of attention without norm and MLP under a
position embedding that names few keys at each query.

*Tested*, of all other networks: instances at lengths drawn evenly in log n were answered, and so many were wrong. Let
all instances of n be as the task draws them, and let n have the chance log((n+1)/n) / log((N+1)/n₁), from the task's
least size n₁ to N. If k of m instances so drawn were wrong, the share p of wrong ones among all is, with a confidence
of 95 %, at most the p at which k or fewer would have had a chance of 5 % (Clopper and Pearson, one-sided).

Example: none of 300 was wrong. (1−p)³⁰⁰ = 0.05 at p = 1 − 0.05^(1/300) = 0.0099, so fewer than 1 % are, at most. That
is about all lengths together. With N = 1000 a draw is above 900 in 1.5 % of cases, so a network that is always wrong
there passes a test of 300 in one of a hundred cases, and one that is wrong on one instance of a thousand mostly does.
"""

import math
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from lengthlens.errors import TooLongError, UserError
from lengthlens.models.saved import refuse_not_finite
from lengthlens.models.transformer import HookedModel
from lengthlens.notebook import card
from lengthlens.probes.proof import checked_layout, leak_bound, proof
from lengthlens.runs.evaluation import FLOAT, exact_match, numbers_a_token
from lengthlens.runs.run import Run
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import Layout, Line
from lengthlens.values import within_memory

Report = Callable[[str], None]

MOST_PROVEN, MOST_TESTED = 1_000_000, 1000  # the longest lengths that are asked about by default
INSTANCES = 300  # of a test: if none is wrong, fewer than 1 % are
CONFIDENCE = 0.95
LEAK_LENGTHS = (10, 100, 1000, 10_000)
NOTHING_LONGER = "no longer length was asked for"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is known about a model at lengths it was never trained on."""

    length: int  # 0 if none; of a test, the largest length that was run, below the first at which it was wrong
    kind: Literal["proven", "tested", "none"]
    limit: bool  # whether it ends there only because nothing longer was asked for
    reason: str  # in a sentence: what ends it, or why there is none
    assumes: str = ""  # what it rests on besides the weights and the task's word on its circuit; empty if nothing
    unproven: str = ""  # why nothing is proven, where that is so
    settled: int | None = None  # of a proof: the n from which on no new kinds of steps come
    worst: dict[int, float] = field(default_factory=dict)  # of a proof: a bound on all leads of right tokens, by length
    weakest_step: str = ""  # of a proof: the one that ends it
    tried: dict[int, int] = field(default_factory=dict)  # of a test: how many instances of each length were answered
    failed: dict[int, int] = field(default_factory=dict)  # and how many of them wrong, where any were
    error_bound: float | None = None  # with 95 % confidence, the most that are wrong of instances so drawn
    leak: dict[int, list[list[float]]] = field(default_factory=dict)  # proven: the most that can leak, by length:
    # [layer][head] of those layers of which it is known, the first

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        return f"Certificate({self.headline})"

    @property
    def headline(self) -> str:
        """What it says, in a line."""
        if self.kind == "none":
            return f"nothing is proven, and no length passed the test: {self.reason}"
        end = ", as far as was asked" if self.limit else ""
        return f"{self.kind} up to n = {self.length}{end}"

    def _repr_html_(self) -> str:
        facts = {"why not longer": "" if self.limit else self.reason, "rests on": self.assumes}
        facts |= {"why not proven": self.unproven, "weakest step": self.weakest_step}
        return card(self.headline, facts, [{"n": n, "least lead": float(lead)} for n, lead in self.worst.items()])


def certify(
    model: HookedModel | Run,
    max_length: int | None = None,
    *,
    task: Task | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> Certificate:
    """The largest length (input size n) up to which answers are proven to be right; else up to which a test saw none
    wrong.

    Arguments:
        model: a model, or a trained run of it.
        max_length: the longest length to ask about; if not given, 1,000,000 for a proof and 1000 for a test.
        task: whose answers they are; the one that the model was built for, if not given.
        seed: of the lengths and instances of a test.
        report: is told what is being done.

    Result: a `Certificate`. Its `kind` is "proven", or "tested" where nothing is proven (`unproven` says why), or
    "none" where the first length that was tried is wrong.

    Errors: UserError for a model with forward hooks, for one that names no task, and for a `max_length` below the
    smallest size of the task, or so large that an instance does not fit into memory.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> certificate = certify(copy_by_hand("lbpe"), max_length=10_000)
    >>> certificate.kind, certificate.length, certificate.limit
    ('proven', 10000, True)
    """
    if isinstance(model, Run):
        run: Run = model
        task, model = task or run.config.task_object, run.model("cpu")
    task = checked(model, task or model.task)
    longest = math.inf if task.max_scale is None else task.max_scale
    if max_length is not None and max_length < task.min_scale:
        raise UserError(f"max_length must be at least {task.min_scale}, not {max_length}")
    tell, leak = report or (lambda text: None), dict[int, list[list[float]]]()
    try:
        layout = covered(model, task)
        here = model if model.cfg.device.type == "cpu" else deepcopy(model).to("cpu")  # exact arithmetic, small tables
        tell("what can leak")
        leak = {n: [leak_bound(here, task, layout, n).tolist()] for n in LEAK_LENGTHS if n <= longest}
        # Else logits are not linear in what heads move.
        if model.cfg.n_layers > 1 or not model.cfg.attn_only or model.cfg.normalization_type is not None:
            raise UserError("answers are proven of one layer of attention without norm and MLP, and the model has more")
        tell("proof")
        limit = int(min(max_length or MOST_PROVEN, longest))
        length, step, least, settled = proof(here, task, layout, limit)
    except UserError as error:
        unproven = str(error)
    else:
        reason = NOTHING_LONGER if length == limit else "beyond there may be new kinds of steps, too many to look at"
        if step:
            reason = "from there on keys that are no sources can outweigh the one that is"
        if length >= task.min_scale:
            return Certificate(
                length=length,
                kind="proven",
                limit=length == limit,
                reason=reason,
                settled=settled,
                worst={length: least},
                weakest_step=f"the step that writes '{task.vocab[int(step.target[0])]}'" if step else "",
                leak=leak,
            )
        unproven = "at the smallest n, keys that are no sources, or rounding, can outweigh the one that is"
    return by_test(model, task, int(min(max_length or MOST_TESTED, longest)), seed, tell, unproven, leak)


def checked(model: HookedModel, task: Task | None) -> Task:
    """The task, if model and task go together, and the model computes nothing but what its weights make it."""
    if task is None:
        raise UserError("a certificate is about the answers of a task, and the model names none")
    built_for = model.pos_embed.task
    if built_for is not None and built_for != task:
        raise UserError(f"the model was built for task '{built_for.name}', not for '{task.name}' as it was given")
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            where = f"at '{name}'" if name else "on the whole"
            raise UserError(f"the model has a forward hook {where}: only a model without hooks can be certified")
    refuse_not_finite(model)
    return task


# -- proven ------------------------------------------------------------------------------------------------------------


def covered(model: HookedModel, task: Task) -> Layout:
    """The task's layout, if something can be proven about attention of this model on it; else a `UserError` says why
    not."""
    scheme = model.pos_embed
    if scheme.named_keys(torch.arange(1), scheme.task.min_scale if scheme.task else 1) is None:
        needed = "name a bounded number of keys at each query and treat all others alike, whatever the length"
        raise UserError(f"scheme '{scheme.name}' is not covered: only schemes such as lbpe and ideal {needed}")
    if not all(block.attn.normalization.plain for block in model.layers):
        kind = "a sink" if model.config.attn_sink else f"attn_normalization {model.config.attn_normalization}"
        raise UserError(f"a network with {kind} is not covered: only plain softmax is")
    if scheme.pools_others and model.config.score_scaling != "none":
        why = "without length-scaled scores only: with them, keys that weigh as one at one length do not at another"
        raise UserError(f"scheme '{scheme.name}' with other=one is covered {why}")
    if set(scheme.acts()) - {"score"} or scheme.named_lines(Layout((), Line(), Line(), ())) is None:
        needed = "says on which lines the keys lie that it names (`named_lines`), and acts on scores alone"
        half = "a form with 2j that is still in use names keys at every second query, and so on no line"
        raise UserError(f"scheme '{scheme.name}' is not covered: only one that {needed} ({half})")
    if task.family != "position-addressed" or not task.one_number:
        needed = "each answer token follows from a fixed number of tokens, at places that position and one n give"
        raise UserError(f"task '{task.name}' is not covered: only one in which {needed}")
    return checked_layout(task)


# -- tested ------------------------------------------------------------------------------------------------------------


def by_test(
    model: HookedModel,
    task: Task,
    limit: int,
    seed: int,
    tell: Report,
    unproven: str,
    leak: dict[int, list[list[float]]],
) -> Certificate:
    """Answer `INSTANCES` instances at lengths drawn up to `limit`, and say what follows."""
    tokens = task.length(limit) if task.one_number else task.longest(limit)
    within_memory(tokens * numbers_a_token(model.config) * FLOAT, f"an instance of n = {limit}")
    generator = torch.Generator().manual_seed(seed)
    tried = Counter(drawn_lengths(task.min_scale, limit, INSTANCES, generator))
    failed, reasons = dict[int, int](), dict[int, str]()
    for n, count in sorted(tried.items()):
        tell(f"{count} instances of n = {n}")
        try:
            (score,) = exact_match(model, task, [n], samples=count, seed=seed)
            wrong, why = count - round(score.exact_match * count), "the model is wrong"
        except TooLongError as error:
            wrong, why = count, str(error)
        if wrong:
            failed[n], reasons[n] = wrong, f"at n = {n}, on {wrong} of {count} instances, {why}"
    first = min(failed, default=None)
    length = max((n for n in tried if first is None or n < first), default=0)
    wrong = sum(failed.values())
    bound = clopper_pearson(wrong, INSTANCES)
    drawn = f"at lengths drawn evenly in log n from {task.min_scale} to {limit}"
    most = f"{math.ceil(1000 * bound) / 10:g} %"  # rounded up
    assumes = f"{wrong} of {INSTANCES} instances were wrong, {drawn} (seed {seed}): "
    assumes += f"with {100 * CONFIDENCE:g} % confidence, at most {most} of all instances at lengths so drawn are wrong"
    return Certificate(
        length=length,
        kind="tested" if length else "none",
        limit=first is None,
        reason=NOTHING_LONGER if first is None else reasons[first],
        assumes=assumes,
        unproven=unproven,
        tried=dict(sorted(tried.items())),
        failed=failed,
        error_bound=bound,
        leak=leak,
    )


def drawn_lengths(low: int, high: int, number: int, generator: torch.Generator) -> list[int]:
    """Whole numbers from `low` to `high`, evenly in their logarithm: n has the chance log((n+1)/n) / log((high+1)/low).

    >>> sorted(drawn_lengths(1, 1000, 8, torch.Generator().manual_seed(0)))
    [3, 11, 23, 86, 132, 236, 578, 813]
    """
    even = torch.rand(number, generator=generator, dtype=torch.float64)
    drawn = low * ((high + 1) / low) ** even
    return [min(int(n), high) for n in drawn]


def clopper_pearson(wrong: int, of: int) -> float:
    """The most that a share may be, with 95 % confidence, of which `wrong` were seen among `of` independent draws.

    That is the p at which the chance of `wrong` or fewer is 5 %: 1 − 0.05^(1/m) for none of m, and 1 for all of them.

    >>> round(clopper_pearson(0, 300), 5), round(clopper_pearson(3, 300), 5), clopper_pearson(5, 5)
    (0.00994, 0.02564, 1.0)
    """
    from scipy.special import betaincinv  # slow to import

    return 1.0 if wrong == of else float(betaincinv(wrong + 1, of - wrong, CONFIDENCE))
