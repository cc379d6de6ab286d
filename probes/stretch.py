"""Stretching: short inputs at the positions of long ones, and the length at which a network will fail.

Steps, sources and circuits are explained in `probes/steps.py`; the code of a key is what the position embedding makes
of it and a query. Interchange (`probes/interchange.py`) says whether a network uses one operator at every step. It may
still fail on longer inputs, since its position embedding gives the sources codes there that were never trained, or
never trained together, or since attention spreads over more keys. All of this can be tried on inputs of the training
range.

We define:

- An instance of size n is *stretched* to size N if its tokens stand at positions of an instance of size N: the marks
  at the marks, the first and last symbols of each run at its ends, those between somewhere between, in order. A step is
  looked at if its sources then stand where the circuit at N has them.
- Every other position of the long instance is there, too, as a key with the code of its place. Its content (key and
  value vectors) is that of a *stand-in*: a token from inside the same run of one of the short instances, chosen so that
  the whole is as much like one long instance as it can be. In an answer it has the same tokens in its sources.
- The exact match predicted at N is the product, over its steps, of the share of instances in which each is right.
- A step whose operator, or the tokens in its sources, never comes up in the training range (`rows_unseen`) counts as
  wrong: nothing in range says what the network makes of it.
- *Recombination*: where a scheme has several parts, each is stretched alone, the others staying as they are in range.
  That says on which parts the network depends.
- It fails at the first N where exact match is below 0.9. The *cause* is operator rows never seen, if these are enough
  for that; that attention spreads, if leaving out the stand-ins heals it, or scores twice as sharp do (which must
  do no harm in range). Else codes are at fault, those of a part on which the network depends. Codes of sources that no
  pair had in training were *never trained*; if each of their components was, the parts were *never together*; else the
  code was trained for keys that are not read. Random positions in training count (`PositionScheme.trained_as`).

Why stand-ins have to fit: with random ones, eight networks on `shift` that extrapolate were predicted to fail, at the
last step and in inputs with certain stand-ins; with fitting ones they are not. So these networks use more than the
sources of the circuit. What it is (the state of the token before, the neighbour of a mark) was not tested.

What this is worth: a network that can be run on long inputs can simply be tried there, at like cost. Stretching says
*why* it fails, and shows that nothing beyond the inputs of the training range and the codes of longer ones is needed to
know that it will.

Nothing here runs the network on a long input. Worked example: a copier that attends to the key with i−j−n = 0 has that
code at every N, so exact match 1 is predicted; one that attends to i−j = 10 at n = 10 is predicted to fail at N = 11.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import Code, Relation
from lengthlens.models.schemes.scheme import Positions, PositionScheme, joined, scheme_of
from lengthlens.probes.codes import Derived
from lengthlens.probes.network import Network, network_of, task_of
from lengthlens.probes.probe import OURS, Probe, Row, records
from lengthlens.probes.steps import StepAt, kept_steps, own_places, place_tokens, stand_ins, tokens_read, twins
from lengthlens.runs.evaluation import EXTRAPOLATES, evaluating
from lengthlens.tasks import Batch, Task
from lengthlens.tasks.circuit import UNUSED

if TYPE_CHECKING:
    from lengthlens.probes.network import Context

FACTORS = (2, 3, 4, 6, 10)  # times the training range
N_INSTANCES = 32  # instances; with about ten steps each in three placements, p is known to about 0.001
SHARPER = 2.0  # scores times this, to see whether attention that spreads is at fault
RESAMPLED = 500  # of the bootstrap over instances
LONG_ROWS = 8  # long instances whose operator rows are looked for in range
ROUNDS = 6  # of looking; in one a row that is there is found with a chance of 0.7 or more at each step

Cause = Literal[
    "operator rows never seen",
    "attention spreads",
    "codes never trained",
    "parts never together",
    "codes trained for other keys",
]


class Way(NamedTuple):
    """How a stretched network is run."""

    all_keys: bool = True  # or only those of the short instance
    sharper: float = 1.0  # what scores are multiplied by
    stretched: tuple[int, ...] | None = None  # the parts of the scheme that have the codes of the long instance; all


ALL, FEW = Way(), Way(all_keys=False)


@dataclass(frozen=True)
class StretchedMatch:
    """Exact match predicted at each length, where it first falls below 0.9, and why."""

    table: pd.DataFrame  # scale, token_accuracy, exact_match, low, high
    train_max: int
    cause: Cause | None = None  # of the failure at `fails_at`
    at_fault: str = ""  # the codes, or the operator row, at fault in words
    parts: Mapping[str, float] = field(default_factory=dict)  # with several: exact match with the codes of one alone

    def at(self, scale: int) -> float:
        """The exact match predicted at an n."""
        return float(self.table.set_index("scale")["exact_match"][scale])

    @property
    def scales(self) -> list[int]:
        return sorted(map(int, self.table["scale"]))

    @property
    def fails_at(self) -> int | None:
        """The first n where exact match is predicted below 0.9; None if there is none."""
        return self._first("exact_match")

    @property
    def interval(self) -> tuple[int | None, int | None]:
        """The same by the ends of the interval of exact match (95 %, bootstrap over instances)."""
        return self._first("low"), self._first("high")

    def _first(self, column: str) -> int | None:
        low = self.table[self.table[column] < EXTRAPOLATES]["scale"]
        return None if low.empty else int(low.min())


def stretched_match(
    model: Callable[..., Any] | Network,
    task: Task | None = None,
    train_max: int = 10,
    scales: Sequence[int] | None = None,
    *,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> StretchedMatch:
    """Predict exact match at larger n from inputs of n = `train_max`.

    Arguments:
        model: a model of this project, with its position embedding.
        task: the task; that of the model if None. Its circuit must follow from positions.
        train_max: the n of the inputs.
        scales: the sizes N they are stretched to; 2, 3, 4, 6 and 10 times `train_max` if None.
        rows: how many inputs.
        generator: of the inputs; seed 0 if None.

    Result: a `StretchedMatch`. Its `parts` say, by the words of each part of the scheme, the exact match at the
    smallest of these sizes with the codes of that size in this part alone.

    Errors: UserError for a model without a position embedding of this project, or a content-addressed task.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> result = stretched_match(copy_by_hand("lbpe"), train_max=4, scales=[8, 40])
    >>> result.at(8), result.at(40), result.fails_at
    (1.0, 1.0, None)
    """
    task, subject = task_of(model, task), network_of(model)
    scheme = scheme_of(subject.model)
    if scheme is None:
        raise UserError("the model has no position embedding of this project, so that its inputs cannot be stretched")
    network: Any = subject.model
    if not network.layers[0].attn.normalization.plain:
        raise UserError("inputs can be stretched under softmax without a sink alone, which this model does not have")
    if task.family == "content-addressed":
        raise UserError(f"the sources of '{task.name}' follow from its tokens, so that its inputs cannot be stretched")
    generator = generator or torch.Generator().manual_seed(0)
    batch = task.sample(train_max, rows, generator)
    chosen = scales or [f * train_max for f in FACTORS if task.max_scale is None or f * train_max <= task.max_scale]
    trial = _Trial(subject, task, batch, train_max, generator)
    rows_of = {scale: trial.right(scale) for scale in chosen}
    table = pd.DataFrame([{"scale": scale, **estimated(right, generator)} for scale, right in rows_of.items()])
    result = StretchedMatch(table, train_max, parts=trial.parts(min(chosen), scheme))
    return result if result.fails_at is None else replace(result, **trial.blamed(result.fails_at, scheme))


def estimated(right: Tensor, generator: torch.Generator) -> dict[str, float]:
    """Token accuracy and exact match if the steps are right as often as here, with its interval. `right` [row, step]

    >>> estimated(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.Generator().manual_seed(0))["exact_match"]
    0.5
    """
    drawn = torch.randint(len(right), (RESAMPLED, len(right)), generator=generator)
    low, high = right[drawn].mean(1).prod(1).quantile(torch.tensor([0.025, 0.975], dtype=right.dtype)).tolist()
    share = right.mean(0)
    return {"token_accuracy": float(share.mean()), "exact_match": float(share.prod()), "low": low, "high": high}


@dataclass(frozen=True)
class _Trial:
    """Instances of one n, to be stretched to others."""

    subject: Network
    task: Task
    batch: Batch
    short: int
    generator: torch.Generator

    def right(self, long: int, way: Way = ALL) -> Tensor:
        """How often each step of the long circuit is right, over placements; the mean if none has it. [row, step]"""
        circuit, longer = self.task.circuit(self.short), self.task.circuit(long)
        query = torch.from_numpy(circuit.query)
        answer = self.batch.tokens[:, query + 1]
        right = torch.zeros(len(answer), self.task.length(long), dtype=torch.double)
        looked = torch.zeros(self.task.length(long))
        kept = [(kept_steps(circuit, longer, places), places) for places in place_tokens(self.task, self.short, long)]
        for steps, places in sorted(kept, key=lambda each: -int(each[0].sum())):
            at = places[query[steps]]
            if not looked[at].all():  # else each of its steps was looked at already
                right[:, at] += (self.predicted(long, places, way)[:, query] == answer)[:, steps]
                looked[at] += 1
        right, looked = (each[..., torch.from_numpy(longer.query)] for each in (right, looked))
        unseen, _ = rows_unseen(self.task, self.short, long)
        if not looked.any() and unseen.all():
            return torch.zeros_like(right)
        if not looked.any():
            missing = f"has its sources where those of n={long} are"
            raise UserError(f"no step of '{self.task.name}' at n={self.short} {missing}")
        share = right / looked
        share = torch.where(looked > 0, share, share[:, looked > 0].mean(1, keepdim=True))
        return share * (1 - unseen)

    def match(self, long: int, way: Way) -> float:
        return float(self.right(long, way).mean(0).prod())

    def parts(self, long: int, scheme: PositionScheme) -> dict[str, float]:
        """Exact match with the codes of the long instance in one part of the scheme alone, by its words."""
        if len(scheme.parts) == 1:
            return {}
        return {
            part.relation().words: self.match(long, Way(all_keys=False, stretched=(k,)))
            for k, part in enumerate(scheme.parts)
        }

    def blamed(self, long: int, scheme: PositionScheme) -> dict[str, Any]:
        """Why it fails at an n: the cause, and the codes at fault in words."""
        unseen, row = rows_unseen(self.task, self.short, long)
        if (1 - unseen).prod() < EXTRAPOLATES:
            return {"cause": "operator rows never seen", "at_fault": row}
        # Scores that are sharper must do no harm in range.
        trials = ((Way(sharper=SHARPER), (long, self.short)), (FEW, (long,)))
        if any(all(self.match(n, way) >= EXTRAPOLATES for n in sizes) for way, sizes in trials):
            return {"cause": "attention spreads"}
        alone = self.parts(long, scheme)
        parts = scheme.parts if alone else [scheme]
        for part in [part for part in parts if alone.get(part.relation().words, 0.0) < EXTRAPOLATES] or parts:
            relation = part.trained_as()
            fresh = sorted(self.codes(relation, [long])[0] - (trained := self.codes(relation, self.scales)[1]))
            known = [set(values) for values in zip(*trained)]
            if never := [code for code in fresh if any(x not in seen for x, seen in zip(code, known))]:
                return {"cause": "codes never trained", "at_fault": relation.describe(never[0])}
            if fresh:
                return {"cause": "parts never together", "at_fault": relation.describe(fresh[0])}
        whole = scheme.relation()
        fresh = sorted(self.codes(whole, [long])[0] - self.codes(whole, self.scales)[0])
        if not fresh:  # sources have codes that they had in training, so that it must be those of other keys
            return {"cause": "codes never trained", "at_fault": "those of keys that are not read"}
        cause = "parts never together" if alone else "codes trained for other keys"
        return {"cause": cause, "at_fault": scheme.describe(fresh[0])}

    @property
    def scales(self) -> range:
        return range(self.task.min_scale, self.short + 1)

    def codes(self, relation: Relation, scales: Iterable[int]) -> tuple[set[Code], set[Code]]:
        """The codes of all sources at these sizes, and of all pairs of a query with a key."""
        sources, pairs = set(), set()
        for scale in scales:
            circuit, key = self.task.circuit(scale), np.arange(self.task.length(scale))
            codes = relation.codes(key[:, None], key, np.array(scale))  # [query, key, component]
            pairs |= set(map(tuple, np.unique(codes[key <= key[:, None]], axis=0).tolist()))
            step, slot = (circuit.sources != UNUSED).nonzero()
            sources |= set(map(tuple, codes[circuit.query[step], circuit.sources[step, slot]].tolist()))
        return sources, pairs

    def predicted(self, long: int, places: Tensor, way: Way) -> Tensor:
        """The next token predicted at every position of the short instances, stretched. [row, pos]"""
        model: Any = self.subject.model
        tokens, scale = self.batch.tokens.to(self.subject.device), partial(torch.full, (1,))
        filled = own_places(len(tokens), self.task.length(long), places)
        if way.all_keys:
            filled = stand_ins(self.task, self.batch, self.short, long, places, self.generator)
        places, filled = places.to(tokens.device), (filled[0].to(tokens.device), filled[1].to(tokens.device))
        with evaluating(model):
            inner = model.pos_embed
            there, here = inner.positions(tokens[filled], scale(long)), inner.positions(tokens, scale(self.short))
            scheme = Stretched(inner, places, there, here, way)
            layers = [_Layer(model, layer, scheme, filled) for layer in self.subject.layers(None)]
            model.pos_embed = scheme
            try:
                logits: Tensor = model.run_with_hooks(
                    tokens, fwd_hooks=[hook for each in layers for hook in each.hooks()]
                )
            finally:
                model.pos_embed = inner
        return logits.argmax(-1).cpu()


@lru_cache(maxsize=64)
def rows_unseen(task: Task, short: int, long: int) -> tuple[Tensor, str]:
    """How often each step of a long instance has an operator row that never comes up in range, and the first such row.

    A row is an operator with the tokens at the query and in its sources. Whether it comes up is tried by planting it
    at the steps of n = `short` with that operator. [step]

    >>> from lengthlens.tasks import TASKS
    >>> rows_unseen(TASKS["addition"], 4, 9)[0].sum(), rows_unseen(TASKS["parity"], 4, 9)
    (tensor(0.), (tensor([1., 0.]), 'sum of 9 mod 2'))
    """
    generator = torch.Generator().manual_seed(0)
    few, many, tokens = task.circuit(short), task.circuit(long), task.sample(long, LONG_ROWS, generator).tokens
    names, first = [step.operator for step in many], ""
    unseen = torch.ones(len(many), LONG_ROWS)
    for name in dict.fromkeys(names):
        places = [k for k, each in enumerate(names) if each == name]
        rows = [tokens_read(many, place, tokens) for place in places]
        for arity in {row.shape[1] for row in rows}:
            mine = [k for k, row in zip(places, rows) if row.shape[1] == arity]
            every = torch.stack([row for row in rows if row.shape[1] == arity])  # [place, row, 1 + sources]
            wanted, which = every.flatten(0, 1).unique(dim=0, return_inverse=True)
            left = torch.ones(len(wanted), dtype=torch.bool)
            donors = [k for k, step in enumerate(few) if step.operator == name and 1 + len(step.sources) == arity]
            for donor in donors * ROUNDS:
                if left.any():
                    left[left.clone()] = ~twins(task, StepAt(short, donor), wanted[left], generator)[1]
            unseen[mine] = left[which].view(len(mine), LONG_ROWS).float()
            if left.any() and not first:
                example = " ".join(task.words(wanted[left][0, 1:])) if donors else ""
                first = f"{name} of {example}" if example else name
    return unseen.mean(1), first


# -- the network -------------------------------------------------------------------------------------------------


class Stretched(Derived):
    """Another scheme, `inner`, as it acts at chosen `places` of a longer sequence, which stands at `long`."""

    def __init__(self, inner: PositionScheme, places: Tensor, long: Positions, short: Positions, way: Way) -> None:
        super().__init__(inner)
        self.places, self.long, self.short, self.way = places, long, short, way

    def split(self) -> list[tuple[PositionScheme, bool]]:
        """The parts of the scheme, and whether each has the codes of the long sequence."""
        if self.way.stretched is None:
            return [(self.inner, True)]
        return [(part, k in self.way.stretched) for k, part in enumerate(self.inner.parts)]

    def embed(self, positions: Positions) -> Tensor | None:
        return joined(self._vectors(part.embed, stretched) for part, stretched in self.split())

    def embed_qk(self, positions: Positions) -> Tensor | None:
        return joined(self._vectors(part.embed_qk, stretched) for part, stretched in self.split())

    def _vectors(self, embed: Callable[[Positions], Tensor | None], stretched: bool) -> Tensor | None:
        vectors = embed(self.long if stretched else self.short)
        return vectors[:, self.places] if stretched and vectors is not None else vectors

    def take_in(
        self, layer: int, x: Tensor, positions: Positions, hook: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """What each token contributes to the short input; `_Layer` gives it to the long one."""
        self.inner.take_in(layer, x, self.short, hook)

    def bias(self, layer: int, q: Tensor, k: Tensor) -> Tensor | None:
        """What is added to the scores of the present queries. `q`, `k` [row, long pos, head, d_head]"""
        parts = []
        for part, stretched in self.split():
            if stretched:
                scores = part.score(layer, self.long, slice(0, q.shape[1]), q, k)
                scores = None if scores is None else scores[..., self.places, :]
            else:
                few = slice(0, len(self.places))
                scores = part.score(layer, self.short, few, q[:, self.places], k[:, self.places])
                if scores is not None:  # of the present keys: nothing else of the long sequence is looked at
                    present, scores = scores, scores.new_zeros(*scores.shape[:-1], q.shape[1])
                    scores[..., self.places] = present
            parts.append(scores)
        return joined(parts)


class _Layer:
    """Attention of one layer over the keys of the long sequence, from the queries, keys and values of the short one."""

    def __init__(self, model: Any, layer: int, scheme: Stretched, filled: tuple[Tensor, ...]) -> None:
        self.model, self.layer, self.scheme, self.filled = model, layer, scheme, filled
        key = torch.arange(filled[0].shape[1], device=scheme.places.device)
        there = torch.isin(key, scheme.places) | scheme.way.all_keys
        sees = there & (key <= scheme.places[:, None])
        self.hides = torch.where(sees, 0.0, -math.inf)  # [present query, long key]
        self.parts: dict[str, Tensor] = {}

    def hooks(self) -> list[tuple[str, Callable[..., Any]]]:
        name = f"blocks.{self.layer}.attn.hook_"
        kept = [*"qkv", *(["gate"] if f"{name}gate" in self.model.hook_dict else [])]
        return [*((f"{name}{part}", partial(self._keep, part)) for part in kept), (f"{name}z", self._mixed)]

    def _keep(self, part: str, value: Tensor, hook: Any) -> None:
        self.parts[part] = value[self.filled]  # [row, long pos, head, d_head]

    def _mixed(self, z: Tensor, hook: Any) -> Tensor:
        """What each head gives at the queries that are present. [row, pos, head, d_head]"""
        scheme, places, config = self.scheme, self.scheme.places, self.model.config
        if "gate" in self.parts:  # what tokens contribute, of the tokens that stand in the long sequence
            scheme.inner.keep(self.layer, self.parts["gate"], scheme.long)
        q, k = (scheme.inner.rotate_in(self.layer, self.parts[part], scheme.long, part == "k") for part in "qk")
        q = q / self.model.cfg.attn_scale
        scores = q[:, places].transpose(1, 2) @ k.permute(0, 2, 3, 1)  # [row, head, present query, long key]
        bias = scheme.bias(self.layer, q, k)
        scores = scores if bias is None else scores + bias
        if config.score_scaling == "log" and scheme.inner.spreads_in(self.layer):
            scores = scores * (torch.log(places + 2.0) / math.log(config.train_ctx + 2))[:, None]
        pattern = (scheme.way.sharper * scores).add_(self.hides).softmax(-1)
        factor = scheme.inner.factor(self.layer, scheme.long, slice(0, q.shape[1]))
        pattern = pattern if factor is None else pattern * factor[..., places, :]
        mixed: Tensor = (pattern @ self.parts["v"].transpose(1, 2)).transpose(1, 2)
        return mixed


class StretchProbe(Probe):
    """Exact match predicted at larger n from inputs of the training range; where it falls below 0.9, and why.

    Its index is what is predicted to be missing at the smallest of these n, twice the training range. There,
    part_exact_match has the codes of the long input in one part of the scheme alone, which `relation` names.
    """

    name = "stretch"
    measures = ("predicted_exact_match", "predicted_loss", "predicted_failure", "part_exact_match")
    index = "predicted_loss"
    label, short = "predicted failure", "predicted failure"
    words = OURS["stretch"].words

    def rows(self, context: "Context") -> list[Row]:
        try:
            result = stretched_match(context.subject, *context.range)
        except UserError as error:  # no position embedding of ours, a content-addressed task, too many positions
            return [{"measure": "predicted_exact_match", "reason": str(error)}]
        columns = result.table[["scale", "exact_match", "low", "high"]].rename(columns={"exact_match": "value"})
        rows = [{"measure": "predicted_exact_match", **row} for row in records(columns)]
        first = min(result.scales)
        rows.append({"measure": "predicted_loss", "scale": first, "value": 1 - result.at(first)})
        for words, match in result.parts.items():
            rows.append({"measure": "part_exact_match", "scale": first, "value": match, "relation": words})
        if result.fails_at is not None:
            (low, high), last = result.interval, max(result.scales)
            ends = {"low": low or last, "high": high or last}
            about = {"reason": result.cause, "relation": result.at_fault}
            rows.append({"measure": "predicted_failure", "scale": first, "value": result.fails_at, **ends, **about})
        return rows

    def lines(self, rows: Sequence[Row]) -> list[str]:
        values = [row for row in rows if row["measure"] == "predicted_exact_match" and not row["reason"]]
        texts = ", ".join(f"{row['value']:.2f} at n = {row['scale']}" for row in values)
        failures = [row for row in rows if row["measure"] == "predicted_failure"]
        fault = [
            f"predicted to fail at n = {row['value']:g}: {row['reason']} {row['relation'] or ''}" for row in failures
        ]
        parts = [row for row in rows if row["measure"] == "part_exact_match"]
        alone = ", ".join(f"{row['value']:.2f} in {row['relation']}" for row in parts)
        of_parts = [f"with the codes of n = {parts[0]['scale']} in one part alone: {alone}"] if parts else []
        return [*([f"predicted exact match: {texts}"] if texts else []), *of_parts, *map(str.strip, fault)]
