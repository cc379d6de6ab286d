"""Interchange SRC: how many operators a network uses, counted by exchanging its internal states between steps.

The paper's SRC is that of a task: the least number of unit operators of a circuit that computes it. What a *network*
uses is measured here causally. We define:

- The *state* of a step is the residual stream at its query, before one of the blocks (one *site* for each block).
- Two steps are *twins* on two instances if the task's circuit applies the same operator to the same tokens there, and
  the token at the query is the same: then the same answer is due, and only scale and positions differ.
- Two steps are *exchangeable* if either, with the state of a twin at the other in place of its own, at each of the
  sites in turn, still predicts the right token, in at least a share `agreement` of the instances.
- Steps that are exchangeable with one representative are one class. Representatives are chosen in the order of scale
  and query: the first step that is exchangeable with none of those before it.

SRC_I(n) is the number of classes of all steps at scales ≤ n. No code of the position embedding enters, so that codes
which are declared and not used do not count. Worked example: a copier that attends to the key n back by position alone
has the same state at every step, SRC_I(n) = 3: the first step (its query is ``=``), the last (it writes ``$``), which
have twins only among their like, and all others. One whose state says where it is accepts no other step's, and
SRC_I(n) grows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.probes.network import Network, network_of, scales_up_to, task_of
from lengthlens.probes.probe import OURS, Probe, Row, by_scale, index_row
from lengthlens.probes.schema import FIDELITY
from lengthlens.probes.steps import StepAt, sources_of, tokens_read, twins
from lengthlens.runs.evaluation import evaluating, takes
from lengthlens.tasks import Task

if TYPE_CHECKING:
    from lengthlens.probes.table import Context

ROWS = 24  # instances of each scale in which states are replaced
MARK_INSTANCES = 16  # of each step and place that the mark is moved to
MARK_PLACES = 3  # that a mark is moved to, at random
KNOWN_COLUMNS = ("scale", "place", "operator", "mark", "by_code", "by_content", "inputs")
TRIALS = 6  # instances with a twin below which two steps are not compared, and so are not one class


@dataclass(frozen=True)
class InterchangeSrc:
    """The class of each step, and what follows from it."""

    steps: pd.DataFrame = field(repr=False)  # scale, place, operator, class_scale, class_place, agreement
    exchanged: float  # exact match at the largest scales with every state taken from the lower half of the scales
    agreement: float

    @property
    def curve(self) -> dict[int, int]:
        """SRC_I by scale: the classes whose first step is at that scale or below."""
        first = self.steps.drop_duplicates(["class_scale", "class_place"])["class_scale"]
        return {int(n): int((first <= n).sum()) for n in sorted(self.steps["scale"].unique())}


def interchange_src(
    model: Callable[..., Any] | Network,
    task: Task | None = None,
    train_max: int = 10,
    *,
    agreement: float = FIDELITY.default,
    rows: int = ROWS,
    generator: torch.Generator | None = None,
) -> InterchangeSrc:
    """Count the operators of a network by exchanging states between its steps.

    Arguments:
        model: any model with `run_with_cache`, `run_with_hooks` and hooks ``blocks.l.hook_resid_pre``.
        task: the task; the model's own if None. Its circuit says which steps are twins.
        train_max: the largest scale looked at.
        agreement: the least share of right predictions with which two steps count as exchangeable.
        rows: instances of each scale in which states are replaced.
        generator: of the instances; seed 0 if None.

    Result: an `InterchangeSrc`; its `curve` is SRC_I(n), its `steps` say which step is in whose class.

    Errors: UserError for a model without hooks, a scale that the task does not have, a content-addressed task.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> interchange_src(copy_by_hand("ideal"), train_max=4).curve
    {1: 2, 2: 3, 3: 3, 4: 3}
    """
    if not 0 < agreement <= 1:
        raise UserError(f"agreement must be above 0 and at most 1, not {agreement!r}")
    task, subject = task_of(model, task), network_of(model)
    if task.family == "content-addressed":
        raise UserError(
            f"the sources of '{task.name}' follow from its tokens: twins are found by position-addressed circuits only"
        )
    exchange = _Exchange(
        subject, task, scales_up_to(task, train_max), rows, generator or torch.Generator().manual_seed(0)
    )
    return InterchangeSrc(exchange.classes(agreement), exchange.exchanged(), agreement)


class _Exchange:
    """Instances of every scale, and the network run on them with states of other steps."""

    def __init__(
        self, subject: Network, task: Task, scales: Sequence[int], rows: int, generator: torch.Generator
    ) -> None:
        self.subject, self.task, self.scales, self.generator = subject, task, list(scales), generator
        self.sites = [f"blocks.{layer}.hook_resid_pre" for layer in subject.layers(None)]
        self.circuits = {scale: task.circuit(scale) for scale in scales}
        self.batches = {scale: task.sample(scale, rows, generator) for scale in scales}
        self.resumes = subject.takes_queries and takes(subject.model, "start_at_layer")
        self._residuals: dict[int, list[Tensor]] = {}

    @cached_property
    def steps(self) -> list[StepAt]:
        """Every step, in the order of scale and query."""
        return [StepAt(scale, place) for scale, circuit in self.circuits.items() for place in range(len(circuit))]

    # -- classes ---------------------------------------------------------------------------------------------------

    def classes(self, agreement: float) -> pd.DataFrame:
        """Each step with the representative of its class, and the share right when the two are exchanged."""
        rows: dict[StepAt, dict[str, Any]] = {}
        for first in self.steps:
            if first in rows:
                continue
            shares = self.shares(first, [step for step in self.steps if step not in rows and step > first], agreement)
            for step, share in {first: 1.0, **shares}.items():
                if share >= agreement:
                    about = {"scale": step.scale, "place": step.place, "operator": self.operator(step)}
                    rows[step] = {**about, "class_scale": first.scale, "class_place": first.place, "agreement": share}
        return pd.DataFrame([rows[step] for step in self.steps])

    def operator(self, step: StepAt) -> str:
        circuit = self.circuits[step.scale]
        return str(circuit.operators[circuit.operator[step.place]].name)

    def shares(self, one: StepAt, others: Sequence[StepAt], agreement: float) -> dict[StepAt, float]:
        """The share of right predictions when `one` is exchanged with each of the others, the least over sites.

        First the states of `one` are put into the others; those that accept them give theirs in return. Steps without
        enough twins are left out.
        """
        same = [step for step in others if self.operator(step) == self.operator(one)]
        there: dict[StepAt, float] = {}
        for scale in sorted({step.scale for step in same}):
            steps = [step for step in same if step.scale == scale]
            there |= self._shares(steps, [one] * len(steps))
        accepted = [step for step, share in there.items() if share >= agreement]
        back = self._given_back(one, accepted) if accepted else {}
        return {step: min(there[step], back.get(step, 0.0)) for step in accepted}

    def _shares(self, steps: Sequence[StepAt], donors: Sequence[StepAt]) -> dict[StepAt, float]:
        """For steps of one scale, each with its donor: the share right, the least over sites."""
        return dict(_least(steps, *self.right(steps[0].scale, [step.place for step in steps], donors)))

    def _given_back(self, one: StepAt, donors: Sequence[StepAt]) -> dict[StepAt, float]:
        """The same for one step and each of several donors in turn, all in one batch."""
        batch, circuit = self.batches[one.scale], self.circuits[one.scale]
        wanted = tokens_read(circuit, one.place, batch.tokens)
        tokens, has_twin = zip(*(twins(self.task, donor, wanted, self.generator) for donor in donors))
        states = self.states(donors, tokens).transpose(1, 2).flatten(1, 2)[:, :, None]  # [site, donor·row, 1, d_model]
        query, answer = torch.from_numpy(circuit.query[[one.place]]), batch.tokens[:, circuit.query[one.place] + 1]
        found = self._patched(one.scale, query, states, torch.cat(has_twin)[:, None])[..., 0]  # [site, donor·row]
        right = found.unflatten(1, (len(donors), -1)).transpose(1, 2) == answer[:, None]
        return dict(_least(donors, right, torch.stack(has_twin, 1)))

    def exchanged(self) -> float:
        """Exact match at the two largest scales when every state comes from a step at the lower half of the scales."""
        low = [step for step in self.steps if step.scale <= self.scales[(len(self.scales) - 1) // 2]]
        least = []
        for scale in self.scales[-2:]:
            chosen: dict[int, StepAt] = {}
            for step in (step for step in self.steps if step.scale == scale):
                alike = [donor for donor in low if self.operator(donor) == self.operator(step)]
                if alike:
                    chosen[step.place] = alike[int(torch.randint(len(alike), (), generator=self.generator))]
            right, _ = self.right(scale, list(chosen), list(chosen.values()))
            least.append(float(right.all(2).double().mean(1).min()))
        return float(np.mean(least)) if low else float("nan")

    # -- replacing states ------------------------------------------------------------------------------------------

    def right(self, scale: int, places: Sequence[int], donors: Sequence[StepAt]) -> tuple[Tensor, Tensor]:
        """Whether each step predicts its answer token under states of its donor, all steps of an instance at once.

        Out: [site, row, place] and whether there was a twin, [row, place]; a step without one keeps its own state.
        """
        batch, circuit = self.batches[scale], self.circuits[scale]
        query = torch.from_numpy(circuit.query[list(places)])
        rows = len(batch)
        has_twin = torch.zeros(rows, len(places), dtype=torch.bool)
        if not places:
            return torch.zeros(len(self.sites), rows, 0, dtype=torch.bool), has_twin
        tokens = []
        for k, (place, donor) in enumerate(zip(places, donors)):
            found, has_twin[:, k] = twins(self.task, donor, tokens_read(circuit, place, batch.tokens), self.generator)
            tokens.append(found)
        states = self.states(donors, tokens)  # [site, row, place, d_model]
        return self._patched(scale, query, states, has_twin) == batch.tokens[:, query + 1], has_twin

    def _patched(self, scale: int, query: Tensor, states: Tensor, replaced: Tensor) -> Tensor:
        """The next token predicted at each query, with the states there replaced at each site in turn.

        `states` [site, row, query, d_model] and `replaced` [row, query], whose rows are those of the instances of the
        scale, perhaps several times over. Out: [site, row, query].
        """
        model, device = cast(Any, self.subject.model), self.subject.device
        tokens = self.batches[scale].tokens.to(device)
        times, replaced, found = len(replaced) // len(tokens), replaced.to(device)[..., None], []

        def hook(resid: Tensor, hook: Any, own: Tensor) -> Tensor:
            resid = resid.clone()
            resid[:, query] = torch.where(replaced, own.to(resid.dtype), resid[:, query])
            return resid

        with evaluating(model):
            for layer, (site, own) in enumerate(zip(self.sites, states.to(device))):
                told: dict[str, Any] = {"scale": scale} if self.subject.takes_scale else {}
                if self.resumes:  # from the residual stream, which is known, and up to the last query
                    resid = hook(self._residual(scale)[layer].repeat(times, 1, 1), None, own)
                    first, last = int(query.min()), int(query.max())
                    told |= {"start_at_layer": layer, "tokens": tokens.repeat(times, 1)}
                    logits = model(resid, **told, queries=slice(first, last + 1))[:, query - first]
                else:
                    hooks = [(site, partial(hook, own=own))]
                    logits = model.run_with_hooks(tokens.repeat(times, 1), fwd_hooks=hooks, **told)[:, query]
                found.append(logits.argmax(-1).cpu())
        return torch.stack(found)

    def _residual(self, scale: int) -> list[Tensor]:
        """The residual stream at each site, of the instances of a scale."""
        if scale not in self._residuals:
            self._residuals[scale] = self._seen(self.batches[scale].tokens.to(self.subject.device), scale)
        return self._residuals[scale]

    def _seen(self, tokens: Tensor, scale: int, at: slice = slice(None)) -> list[Tensor]:
        """The residual stream at each site, [row, pos, d_model], at some of the positions."""
        if not self.resumes:
            cache = self.subject.activations(tokens, scale, self.sites)
            return [cache[site][:, at] for site in self.sites]
        model, told, last = cast(Any, self.subject.model), {"scale": scale, "tokens": tokens}, len(self.sites) - 1
        with evaluating(model):
            seen = [model(tokens, scale, stop_at_layer=0)]
            for layer in range(last):
                asked = at if layer + 1 == last and at.stop else None  # those before it need all positions
                seen.append(model(seen[-1], **told, start_at_layer=layer, stop_at_layer=layer + 1, queries=asked))
        return [*(each[:, at] for each in seen[:last]), seen[last] if last and at.stop else seen[last][:, at]]

    def states(self, donors: Sequence[StepAt], tokens: Sequence[Tensor]) -> Tensor:
        """The state at the query of each donor in its instances [row, pos]. [site, row, donor, d_model]"""
        found: dict[int, Tensor] = {}
        for scale in {donor.scale for donor in donors}:
            mine = [k for k, donor in enumerate(donors) if donor.scale == scale]
            query = self.circuits[scale].query[[donors[k].place for k in mine]]
            first, last = int(query.min()), int(query.max())
            together = torch.cat([tokens[k] for k in mine]).to(self.subject.device)
            at = torch.from_numpy(query - first).repeat_interleave(len(tokens[mine[0]]))
            seen = self._seen(together, scale, slice(first, last + 1))
            own = torch.stack([each[torch.arange(len(at)), at] for each in seen]).cpu()
            found |= dict(zip(mine, own.unflatten(1, (len(mine), -1)).unbind(1)))
        return torch.stack([found[k] for k in range(len(donors))], 2)


def _least(steps: Sequence[StepAt], right: Tensor, has_twin: Tensor) -> Iterator[tuple[StepAt, float]]:
    """The share right, the least over sites, of steps with enough twins. [site, row, step], [row, step]"""
    trials = has_twin.sum(0)
    share = ((right & has_twin).sum(1) / trials.clamp(min=1)).amin(0)
    yield from ((step, float(s)) for step, s, n in zip(steps, share, trials) if n >= TRIALS)


class InterchangeProbe(Probe):
    """SRC by exchanging states between steps, its ι, and exact match with states taken from shorter inputs."""

    name, curves, index = "interchange", {"interchange_src": "iota_interchange"}, "iota_interchange"
    label, short, growth = "ι of interchange SRC", "ι of interchange", "interchange SRC"
    measures = ("interchange_src", "iota_interchange", "interchange_exact_match")
    words = OURS["interchange"].words
    thresholds = (FIDELITY,)  # the least agreement of two steps

    def rows(self, context: "Context") -> list[Row]:
        if context.task.family == "content-addressed":
            return [
                {"measure": "interchange_src", "reason": "the sources follow from the tokens: no twins by position"}
            ]
        found = interchange_src(context.subject, *context.range, agreement=FIDELITY.default)
        rows = [index_row("iota_interchange", found.curve, self.defaults)]
        rows += by_scale("interchange_src", found.curve, self.defaults)
        return rows + by_scale("interchange_exact_match", {context.train_max: found.exchanged}, self.defaults)


# -- marks ------------------------------------------------------------------------------------------------------------


class Exchanged(NamedTuple):
    """Inputs of one step with a mark elsewhere, and what either way of knowing it would write."""

    tokens: Tensor  # [row, pos]
    by_code: Tensor  # [row]
    by_content: Tensor  # [row]


def known_by(
    model: Callable[..., Any] | Network,
    task: Task | None = None,
    train_max: int = 10,
    *,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """For each step with a mark among its sources, how often the answer follows the code and how often the content.

    Arguments:
        model: a model that is told the scale, or does not look at it.
        task: the task; the model's own if None.
        train_max: the largest scale looked at.
        generator: of the instances; seed 0 if None.

    Result: a row for each step and mark, with the columns scale, place (of the answer token), operator, mark, by_code,
    by_content (shares; what is missing to 1 is some other token) and inputs, how many told the two apart.

    Errors: UserError for a content-addressed task, and where no source is a mark.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> known_by(copy_by_hand("ideal"), train_max=4)[["by_code", "by_content"]].mean().tolist()
    [1.0, 0.0]
    """
    task, subject = task_of(model, task), network_of(model)
    if task.family == "content-addressed":
        raise UserError(f"the sources of '{task.name}' follow from its tokens, so that all are known by content")
    generator = generator or torch.Generator().manual_seed(0)
    rows = []
    for scale in scales_up_to(task, train_max):
        circuit = task.circuit(scale)
        for place, query in enumerate(circuit.query.tolist()):
            for mark, inputs in exchanged(task, scale, place, generator):
                number = len(inputs.tokens)
                at = torch.full((number,), query)
                found = subject.next_tokens(inputs.tokens.to(subject.device), scale, at).cpu()
                shares = [float((found == wanted).double().mean()) for wanted in inputs[1:]]
                operator = circuit.operators[circuit.operator[place]].name
                rows.append((scale, place, operator, mark, *shares, number))
    if not rows:
        raise UserError(
            f"no step of '{task.name}' up to n={train_max} has a mark among its sources that could be moved"
        )
    return pd.DataFrame(rows, columns=KNOWN_COLUMNS)


def exchanged(task: Task, scale: int, place: int, generator: torch.Generator) -> Iterator[tuple[str, Exchanged]]:
    """Inputs of a step for each mark among its sources, if any tells code and content apart."""
    circuit = task.circuit(scale)
    operator = circuit.operators[circuit.operator[place]]
    batch = task.sample(scale, MARK_INSTANCES * MARK_PLACES, generator).tokens
    sources, prompt = sources_of(circuit, place), task.prompt_length(scale)
    for source in sorted(set(sources)):
        mark, others = (
            task.vocab[int(batch[0, source])],
            [k for k in range(prompt) if int(batch[0, k]) < len(task.symbols) and k not in sources],
        )
        if mark in task.symbols or source >= prompt or not others:
            continue
        to = torch.tensor(others)[torch.randint(len(others), (len(batch),), generator=generator)]
        row, moved = torch.arange(len(batch)), batch.clone()
        moved[row, source], moved[row, to] = batch[row, to], batch[:, source]
        by_code, by_content = (_written(task, operator.function, tokens[:, sources]) for tokens in (moved, batch))
        tells = by_code != by_content
        if tells.any():
            yield mark, Exchanged(moved[tells], by_code[tells], by_content[tells])


def _written(task: Task, function: Callable[..., str], tokens: Tensor) -> Tensor:
    """What an operator makes of tokens [row, source]. [row]"""
    return torch.tensor([task.ids[function(*task.words(row))] for row in tokens])


class MarksProbe(Probe):
    """Where a source is a mark, how often the answer follows its code and how often its token."""

    name, measures = "marks", ("known_by_code", "known_by_content")
    words = OURS["marks"].words

    def rows(self, context: "Context") -> list[Row]:
        try:
            found = known_by(context.subject, *context.range)
        except UserError as error:  # a content-addressed task, or no mark that could be moved
            return [{"measure": "known_by_code", "reason": str(error)}]
        weighted = found[["by_code", "by_content"]].mul(found["inputs"], axis=0).sum() / found["inputs"].sum()
        about = {"scale": context.train_max, "samples": int(found["inputs"].sum())}
        return [{"measure": f"known_{name}", "value": float(value), **about} for name, value in weighted.items()]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        shares = {
            row["measure"].removeprefix("known_by_"): row["value"]
            for row in rows
            if row["measure"] in self.measures and not row["reason"]
        }
        texts = ", ".join(f"{share:.2f} by {name}" for name, share in shares.items())
        return [f"marks are known {texts}"] if texts else []
