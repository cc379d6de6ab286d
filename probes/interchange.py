"""Interchange: states exchanged between steps count the operators of a network, and marks exchanged with symbols show
what it knows a source by.

The paper's SRC is that of a task: the least number of unit operators of a circuit that computes it. What a *network*
uses is measured here causally. We define (steps and twins are explained in `lengthlens.probes.steps`):

- The *state* of a step is the residual stream at its query, before one of the blocks (one *site* for each block).
- Two steps are *exchangeable* if either of them, given the state of a twin at the other one, still predicts the right
  token in at least a share `agreement` of the instances, whichever site the state is put into.
- Steps that are exchangeable with one representative are one class. Representatives are chosen in the order of n and
  query: the first step that is exchangeable with none of those before it.

SRC_I(n) is the number of classes of all steps up to n. No code of the position embedding enters, so codes that are
declared and not used do not count. Worked example: a copier that attends to the key n back by position alone has the
same state at every step. Its SRC_I is 3: the first step (its query is ``=``), the last (it writes ``$``), which have
twins only among their like, and all others. A copier whose state says where it is accepts no other step's state, and
SRC_I(n) grows.

Marks: the source of some steps is a mark, as copying ends where it meets ``=``. The network may attend there because of
the position, whatever stands there, or because of the token, wherever it is. In all inputs of the task both are true.
We define, for a step with a mark among its sources, the *exchanged* input: that mark and a symbol of the prompt which
the step does not read change places, and n is given as it was. What the operator makes of the tokens now at the
positions of the circuit is the answer by *code*. What it makes of the tokens as they were, the mark among them, is the
answer by *content*. Inputs on which both are the same tell nothing and do not count. Worked example: ``^ 7 3 = 7 3``
becomes ``^ 7 = 3 7 3``. A copier by position finds 3 where ``=`` was and writes 3. A copier that looks for ``=`` writes
``$``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from lengthlens.errors import UserError
from lengthlens.probes.network import AnyModel, Network, network_of, sizes_up_to, task_of
from lengthlens.probes.probe import OURS, Probe, Row, by_scale, index_row
from lengthlens.probes.schema import FIDELITY
from lengthlens.probes.steps import StepAt, sources_of, tokens_read, twins
from lengthlens.runs.evaluation import evaluating
from lengthlens.tasks import Task

if TYPE_CHECKING:
    from lengthlens.probes.network import Context

N_INSTANCES = 24  # of each n, in which states are replaced
LEAST_TWINS = 6  # instances with a twin that two steps need to be compared; with fewer they are not one class
MARK_INSTANCES = 48  # of each step, in which a mark is moved
KNOWN_COLUMNS = ("scale", "place", "operator", "mark", "by_code", "by_content", "inputs")


@dataclass(frozen=True)
class InterchangeSrc:
    """The class of each step, and what follows from it."""

    steps: pd.DataFrame = field(repr=False)  # scale, place, operator, class_scale, class_place, agreement
    exchanged: float  # exact match at the largest n with every state taken from the lower half of the range
    agreement: float

    @property
    def curve(self) -> dict[int, int]:
        """SRC_I by n: the classes whose first step is at this n or below."""
        first = self.steps.drop_duplicates(["class_scale", "class_place"])["class_scale"]
        return {int(n): int((first <= n).sum()) for n in sorted(self.steps["scale"].unique())}


def interchange_src(
    model: AnyModel,
    task: Task | None = None,
    train_max: int = 10,
    *,
    agreement: float = FIDELITY.default,
    rows: int = N_INSTANCES,
    generator: Generator | None = None,
) -> InterchangeSrc:
    """Count the operators of a network by exchanging states between its steps.

    Arguments:
        model: any model with `run_with_cache`, `run_with_hooks` and hooks ``blocks.l.hook_resid_pre``.
        task: the task; that of the model if None. Its circuit says which steps are twins.
        train_max: the largest n that is measured.
        agreement: the least share of right predictions with which two steps count as exchangeable.
        rows: instances of each n in which states are replaced.
        generator: of the instances; seed 0 if None.

    Result: an `InterchangeSrc`; its `curve` is SRC_I(n), its `steps` say which step is in whose class.

    Errors: UserError for a model without hooks, an n that the task does not have, a content-addressed task.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> interchange_src(copy_by_hand("ideal"), train_max=4).curve
    {1: 2, 2: 3, 3: 3, 4: 3}
    """
    if not 0 < agreement <= 1:
        raise UserError(f"agreement must be above 0 and at most 1, not {agreement!r}")
    task, network = task_of(model, task), network_of(model)
    if task.family == "content-addressed":
        raise UserError(
            f"the sources of '{task.name}' follow from its tokens: twins are found by position-addressed circuits only"
        )
    generator = generator or Generator().manual_seed(0)
    exchange = _Exchange(network, task, sizes_up_to(task, train_max), rows, generator)
    return InterchangeSrc(exchange.classes(agreement), exchange.exchanged(), agreement)


class _Exchange:
    """Instances of every n, and the network run on them with states of other steps."""

    def __init__(
        self, network: Network, task: Task, sizes: Sequence[int], n_instances: int, generator: Generator
    ) -> None:
        self.network, self.task, self.sizes, self.generator = network, task, list(sizes), generator
        self.sites = [f"blocks.{layer}.hook_resid_pre" for layer in network.layers(None)]
        self.circuits = {n: task.circuit(n) for n in sizes}
        self.batches = {n: task.sample(n, n_instances, generator) for n in sizes}
        # Every step with the name of its operator, in the order of n and query.
        self.operator = {
            StepAt(n, place): step.operator
            for n, circuit in self.circuits.items()
            for place, step in enumerate(circuit)
        }

    def classes(self, agreement: float) -> pd.DataFrame:
        """Each step with the representative of its class, and the share right when the two are exchanged."""
        rows: dict[StepAt, dict[str, Any]] = {}
        for first in self.operator:
            if first in rows:
                continue
            others = [step for step in self.operator if step not in rows and step > first]
            for step, share in {first: 1.0, **self.exchangeable(first, others, agreement)}.items():
                about = {"scale": step.n, "place": step.place, "operator": self.operator[step]}
                rows[step] = {**about, "class_scale": first.n, "class_place": first.place, "agreement": share}
        return pd.DataFrame([rows[step] for step in self.operator])

    def exchangeable(self, one: StepAt, others: Sequence[StepAt], agreement: float) -> dict[StepAt, float]:
        """The other steps that are exchangeable with `one`, each with the share of right predictions.

        First the states of `one` are put into the others. Those that accept them give theirs in return.
        """
        same = [step for step in others if self.operator[step] == self.operator[one]]
        there: dict[StepAt, float] = {}
        for n in sorted({step.n for step in same}):
            steps = [step for step in same if step.n == n]
            there |= zip(steps, self.shares(steps, [one] * len(steps)))
        accepted = {step: share for step, share in there.items() if share >= agreement}
        both = {step: min(share, *self.shares([one], [step])) for step, share in accepted.items()}
        return {step: share for step, share in both.items() if share >= agreement}

    def shares(self, steps: Sequence[StepAt], donors: Sequence[StepAt]) -> list[float]:
        """For steps of one n, each with its donor: the share of right predictions, the least over sites.

        It is 0 for a step with fewer than `LEAST_TWINS` twins.
        """
        right, has_twin = self.right(steps, donors)
        trials = has_twin.sum(0)
        share = ((right & has_twin).sum(1) / trials.clamp(min=1)).amin(0)
        return torch.where(trials >= LEAST_TWINS, share, 0.0).tolist()

    def exchanged(self) -> float:
        """Exact match at the two largest n when every state comes from a step in the lower half of the range."""
        low = [step for step in self.operator if step.n <= self.sizes[(len(self.sizes) - 1) // 2]]
        least = []
        for n in self.sizes[-2:]:
            chosen: dict[StepAt, StepAt] = {}
            for step in (step for step in self.operator if step.n == n):
                alike = [donor for donor in low if self.operator[donor] == self.operator[step]]
                if alike:
                    chosen[step] = alike[int(torch.randint(len(alike), (), generator=self.generator))]
            right = self.right(list(chosen), list(chosen.values()))[0] if chosen else torch.ones(1, 1, 1)
            least.append(float(right.bool().all(2).double().mean(1).min()))
        return float(np.mean(least)) if low else float("nan")

    def right(self, steps: Sequence[StepAt], donors: Sequence[StepAt]) -> tuple[Tensor, Tensor]:
        """Whether each step predicts its answer token under a state of its donor, all steps of one n at once.

        Out: [site, row, step], and whether there was a twin, [row, step]. A step without one keeps its state.
        """
        n = steps[0].n
        batch, circuit = self.batches[n], self.circuits[n]
        query = torch.from_numpy(circuit.query[[step.place for step in steps]])
        wanted = [tokens_read(circuit, step.place, batch.tokens) for step in steps]
        instances = [twins(self.task, donor, tokens, self.generator) for donor, tokens in zip(donors, wanted)]
        has_twin = torch.stack([fits for _, fits in instances], 1)
        states = self.states(donors, [tokens for tokens, _ in instances])
        return self.predicted(n, query, states, has_twin) == batch.tokens[:, query + 1], has_twin

    def states(self, steps: Sequence[StepAt], tokens: Sequence[Tensor]) -> Tensor:
        """The states of each step in its instances [row, pos], in one pass for each n. [site, row, step, d_model]"""
        states: dict[int, Tensor] = {}
        for n in {step.n for step in steps}:
            mine = [k for k, step in enumerate(steps) if step.n == n]
            together = torch.cat([tokens[k] for k in mine]).to(self.network.device)
            cache = self.network.activations(together, n, self.sites)
            split = zip(*(cache[site].unflatten(0, (len(mine), -1)) for site in self.sites))  # by step, then by site
            for k, of_step in zip(mine, split):
                query = int(self.circuits[n].query[steps[k].place])
                states[k] = torch.stack([at_site[:, query] for at_site in of_step])
        return torch.stack([states[k] for k in range(len(steps))], 2)

    def predicted(self, n: int, query: Tensor, states: Tensor, replaced: Tensor) -> Tensor:
        """The next token predicted at each query, with the states there replaced at each site in turn.

        `states` [site, row, query, d_model], `replaced` [row, query]. Out: [site, row, query].
        """
        model, device = cast(Any, self.network.model), self.network.device

        def put(resid: Tensor, hook: Any, state: Tensor) -> Tensor:
            resid = resid.clone()
            resid[:, query] = torch.where(replaced.to(device)[..., None], state.to(resid.dtype), resid[:, query])
            return resid

        tokens, told = self.batches[n].tokens.to(device), self.network.told(n)
        hooks = [(site, partial(put, state=state)) for site, state in zip(self.sites, states.to(device))]
        with evaluating(model):
            logits = [model.run_with_hooks(tokens, fwd_hooks=[hook], **told)[:, query] for hook in hooks]
        return torch.stack(logits).argmax(-1).cpu()


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
        result = interchange_src(context.subject, *context.range, agreement=self.defaults["fidelity"])
        about = {"fidelity": result.agreement}
        rows = [index_row("iota_interchange", result.curve, about), *by_scale("interchange_src", result.curve, about)]
        return rows + by_scale("interchange_exact_match", {context.train_max: result.exchanged}, about)


# -- marks ------------------------------------------------------------------------------------------------------------


def known_by(
    model: AnyModel, task: Task | None = None, train_max: int = 10, *, generator: Generator | None = None
) -> pd.DataFrame:
    """For each step with a mark among its sources, how often the answer follows the code and how often the content.

    Arguments:
        model: a model that is told n, or does not look at it.
        task: the task; that of the model if None.
        train_max: the largest n that is measured.
        generator: of the instances; seed 0 if None.

    Result: a row for each step and mark, with the columns scale, place (of the answer token), operator, mark, by_code,
    by_content (shares; what is missing to 1 is some other token) and inputs, how many told the two apart.

    Errors: UserError for a content-addressed task, and where no source is a mark.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> known_by(copy_by_hand("ideal"), train_max=4)[["by_code", "by_content"]].mean().tolist()
    [1.0, 0.0]
    """
    task, network = task_of(model, task), network_of(model)
    if task.family == "content-addressed":
        raise UserError(f"the sources of '{task.name}' follow from its tokens, so that all are known by content")
    generator = generator or Generator().manual_seed(0)
    rows = []
    for n in sizes_up_to(task, train_max):
        for place, step in enumerate(task.circuit(n)):
            for mark, tokens, *answers in exchanged(task, n, place, generator):
                query = torch.full((len(tokens),), step.query)
                written = network.next_tokens(tokens.to(network.device), n, query).cpu()
                shares = [float((written == answer).double().mean()) for answer in answers]
                rows.append((n, place, step.operator, mark, *shares, len(tokens)))
    if not rows:
        raise UserError(
            f"no step of '{task.name}' up to n={train_max} has a mark among its sources that could be moved"
        )
    return pd.DataFrame(rows, columns=KNOWN_COLUMNS)


def exchanged(task: Task, n: int, place: int, generator: Generator) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """For each mark among a step's sources: the mark, inputs [row, pos] with it elsewhere, and what networks that know
    it by code and by content would write, [row] each; only inputs on which these differ."""
    circuit = task.circuit(n)
    function = circuit.operators[circuit.operator[place]].function

    def written(tokens: Tensor) -> Tensor:
        """What the operator makes of tokens [row, source]. [row]"""
        return torch.tensor([task.ids[function(*task.words(row))] for row in tokens])

    batch = task.sample(n, MARK_INSTANCES, generator).tokens
    sources, prompt = sources_of(circuit, place), task.prompt_length(n)
    others = [k for k in range(prompt) if int(batch[0, k]) < len(task.symbols) and k not in sources]
    for source in sorted(set(sources)):
        mark = task.vocab[int(batch[0, source])]
        if mark in task.symbols or source >= prompt or not others:
            continue
        to = torch.tensor(others)[torch.randint(len(others), (len(batch),), generator=generator)]
        row, moved = torch.arange(len(batch)), batch.clone()
        moved[row, source], moved[row, to] = batch[row, to], batch[:, source]
        by_code, by_content = written(moved[:, sources]), written(batch[:, sources])
        tells = by_code != by_content
        if tells.any():
            yield mark, moved[tells], by_code[tells], by_content[tells]


class MarksProbe(Probe):
    """Where a source is a mark, how often the answer follows its code and how often its token."""

    name, measures = "marks", ("known_by_code", "known_by_content")
    words = OURS["marks"].words

    def rows(self, context: "Context") -> list[Row]:
        try:
            table = known_by(context.subject, *context.range)
        except UserError as error:  # a content-addressed task, or no mark that could be moved
            return [{"measure": "known_by_code", "reason": str(error)}]
        inputs = int(table["inputs"].sum())
        shares = table[["by_code", "by_content"]].mul(table["inputs"], axis=0).sum() / inputs
        about = {"scale": context.train_max, "samples": inputs}
        return [{"measure": f"known_{name}", "value": float(share), **about} for name, share in shares.items()]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        shares = {row["measure"]: row["value"] for row in rows if row["measure"] in self.measures and not row["reason"]}
        if not shares:
            return []
        by_code, by_content = (f"{shares[name]:.0%}".replace("%", " %") for name in self.measures)
        return [f"marks are recognised by position in {by_code} of inputs, by token in {by_content}"]
