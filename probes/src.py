"""Measured SRC: how many readouts explain every step of a trained model in terms of its position codes.

A *step* writes one token of an answer; its *query* is the position before that token. The *relation* of a position
embedding gives each pair of a query and a key a *code*, i−j for instance. We define (the paper's SRC is that of a task:
the least number of operators of a circuit for it):

- The *sources* of an answer query are the keys whose replacement changes the prediction there, by more than
  `threshold` in total variation (`influence`). Keys that have the same token in all instances of an n
  (marks, ``^``) count only where no others do: putting a symbol there makes an input that is no instance, and shows
  what disturbs a model (an attention sink, say), not what it depends on. The *signature* of the step is the codes of
  its sources under the model's relation; the token at the query, which is in the residual stream without any
  attention, has a code of its own.
- A *readout* is a table from the tokens in the roles of a signature to the next token: an operator with its arguments
  named by codes. It explains a step if the step behaves by it **under intervention**: tokens are put in the
  roles, all else is a random instance, and the model's arg-max next token is what the table says, in at least a
  share `fidelity` of the trials. What a table does not know yet is learned from the step; what it knows is tested on
  the step. So every later step, and every larger n, is held out when it is tested.
- A role is known by its code alone. So tokens are put not where the source is but at random among all keys that have
  its code (and where the same tokens occur in real instances): if one code marks a key that matters and others that
  are not, no readout explains the step. Under ``none`` all keys share one code, and signatures alone would look
  invariant.
- A step that no known readout explains opens a new one; one that no readout by codes can explain counts by itself.

SRC_M(n) is the number of readouts for all steps at sizes ≤ n. Worked example: a perfect copier that attends to the key
n back. Under i−j−n, one readout: the token at code 0, or ``$`` for ``=``. Under i−j one for each distance: SRC_M(n) =
n. Under (i, j) one for each step: SRC_M(n) = 2 + 3 + … + (n+1).
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import Relation
from lengthlens.models.schemes.spec import RelationLike
from lengthlens.probes.network import (
    AnyModel,
    Network,
    answer_queries,
    exact_by_scale,
    probed_relation,
    reachable,
    sizes_up_to,
    task_of,
)
from lengthlens.probes.probe import OURS, Probe, Row, by_scale, index_row
from lengthlens.probes.schema import FIDELITY, INFLUENCE
from lengthlens.probes.steps import Key, Roles, Signature, assignments, fill_roles, keys_of
from lengthlens.tasks import Task

if TYPE_CHECKING:
    from lengthlens.probes.network import Context

Step: TypeAlias = tuple[int, tuple[int, ...]]  # a query, and the keys that are its sources

BASES = 8  # random instances for each assignment at least: half to learn a table from, half to test it on
TRIALS = 256  # of each step at least, so that its agreement is known to about 0.02
N_INSTANCES = 64  # means of influence are then within about 0.05, far from the threshold for keys that matter
KEYS_AT_ONCE = 8  # distributions over large vocabularies take memory
UNKNOWN = -1  # what a table says where it knows nothing
SUPPORT_ROWS = 256  # instances from which the tokens that occur at a position are read


@dataclass(frozen=True)
class StepBehaviour:
    """What a model does at one answer query when tokens are put in the roles of its sources."""

    scale: int
    query: int
    sources: tuple[int, ...]
    signature: Signature
    keys: list[Key] = field(repr=False)  # of each assignment: the tokens by role
    outputs: Tensor = field(repr=False)  # [assignment, base], the next token

    def table(self, bases: slice = slice(None)) -> dict[Key, int]:
        """The most frequent next token for each tokens-by-role."""
        votes: dict[Key, Counter[int]] = {}
        for key, row in zip(self.keys, self.outputs[:, bases].tolist()):
            votes.setdefault(key, Counter()).update(row)
        return {key: count.most_common(1)[0][0] for key, count in votes.items()}

    def agreement(self, table: dict[Key, int], bases: slice = slice(None)) -> float:
        """The share of trials in which the step does what the table says, 1 if the table knows none of them."""
        entry = np.array([table.get(key, UNKNOWN) for key in self.keys])
        known = entry != UNKNOWN
        if not known.any():
            return 1.0
        return float((self.outputs.numpy()[known, bases] == entry[known, None]).mean())

    @cached_property
    def whole(self) -> dict[Key, int]:
        """The table of all trials."""
        return self.table()

    @cached_property
    def best(self) -> float:
        """The agreement with the best table for this step alone: learned from one half of the instances, tested on
        the other."""
        half = self.outputs.shape[1] // 2
        return self.agreement(self.table(slice(half)), slice(half, None))


@dataclass(frozen=True)
class MeasuredSrc:
    """The behaviour of every step up to the largest n in training, and what follows from it."""

    behaviours: list[StepBehaviour] = field(repr=False)
    relation: str
    threshold: float = INFLUENCE.default
    fidelity: float = FIDELITY.default

    def steps(self, fidelity: float | None = None) -> pd.DataFrame:
        """Each step, in the order of n and query, with the first readout of its signature that explains it.

        Columns scale, query, sources, signature, readout (a number), agreement. Another `fidelity` needs no new run.
        """
        bar = self.fidelity if fidelity is None else fidelity
        tables: dict[Signature, dict[int, dict[Key, int]]] = {}
        rows, count = [], 0
        for step in self.behaviours:
            readout = count
            if step.best >= bar:
                known = tables.setdefault(step.signature, {})
                readout = next((k for k, table in known.items() if step.agreement(table) >= bar), count)
                known[readout] = step.whole | known.get(readout, {})  # it learns what it did not know
            count += readout == count
            rows.append((step.scale, step.query, step.sources, step.signature, readout, step.best))
        return pd.DataFrame(rows, columns=["scale", "query", "sources", "signature", "readout", "agreement"])

    def curve_at(self, fidelity: float | None = None) -> dict[int, int]:
        """SRC_M by n."""
        steps = self.steps(fidelity)  # by n, and readouts are numbered in the order of steps
        largest = (steps["readout"] + 1).groupby(steps["scale"]).max().cummax()
        return {int(n): int(count) for n, count in largest.items()}  # type: ignore[call-overload]

    @property
    def curve(self) -> dict[int, int]:
        return self.curve_at()

    @property
    def about(self) -> Row:
        """What it was counted under, as columns of a row."""
        return {"relation": self.relation, "influence": self.threshold, "fidelity": self.fidelity}

    def signatures(self) -> dict[int, int]:
        """How many signatures there are up to each n: SRC_M without its test of fidelity."""
        sizes = sorted({step.scale for step in self.behaviours})
        return {n: len({step.signature for step in self.behaviours if step.scale <= n}) for n in sizes}


def measured_src(
    model: AnyModel,
    task: Task | None = None,
    train_max: int = 10,
    *,
    relation: RelationLike | None = None,
    threshold: float = INFLUENCE.default,
    fidelity: float = FIDELITY.default,
    rows: int = N_INSTANCES,
    bases: int = BASES,
    generator: Generator | None = None,
) -> MeasuredSrc:
    """Measured SRC: find the sources of every step up to `train_max`, intervene on them, and count the readouts needed.

    Arguments:
        model: a HookedModel, another model with hooks, or a function from ids [row, pos] to logits [row, pos, token].
        task: whose instances are used; the one that the model was built for, if not given.
        train_max: the largest n; every n up to it is measured.
        relation: gives codes in place of the model's relation: "i-j", "(i,j)", a scheme, or a function of (i, j, n).
        threshold: the influence above which a key is a source.
        fidelity: the share of trials in which a readout must say what the model does.
        rows: instances that influence is a mean of.
        bases: random instances for each assignment of tokens, at least.
        generator: of all draws; seed 0 if not given.

    Result: a `MeasuredSrc`; `.curve` is SRC_M by n, `.steps()` every step with its sources and its readout.

    Errors: UserError if the model names no task or no relation and none is given, for an n that the task does not have,
    and for fewer than 2 bases.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> measured_src(copy_by_hand(), train_max=4, relation="i-j").curve
    {1: 1, 2: 2, 3: 3, 4: 4}
    """
    return measured_src_at([threshold], model, task, train_max, relation, generator, fidelity, rows, bases)[0]


def measured_src_at(
    thresholds: Sequence[float],
    model: AnyModel,
    task: Task | None,
    train_max: int,
    relation: RelationLike | None,
    generator: Generator | None,
    fidelity: float = FIDELITY.default,
    rows: int = N_INSTANCES,
    bases: int = BASES,
) -> list[MeasuredSrc]:
    """The same for several thresholds; most steps have the same sources at all of them, and are intervened on once."""
    if bases < 2:
        raise UserError(f"{bases} base instances are too few: one to learn from and one to test on are needed")
    task = task_of(model, task)
    subject, known = probed_relation(model, task, train_max, relation)
    generator = generator or Generator().manual_seed(0)
    results = [MeasuredSrc([], known.words, threshold, fidelity) for threshold in thresholds]
    for scale in sizes_up_to(task, train_max):
        change = influence(subject, task, scale, rows, generator)
        steps: list[list[Step]] = [
            [(query, tuple(row.nonzero()[:, 0].tolist())) for query, row in zip(answer_queries(task, scale), is_source)]
            for is_source in (change > threshold for threshold in thresholds)
        ]
        distinct = list(dict.fromkeys(step for each in steps for step in each))
        behaviour = dict(zip(distinct, behave(subject, task, known, scale, distinct, bases, generator)))
        for result, each in zip(results, steps):
            result.behaviours.extend(behaviour[step] for step in each)
    return results


def influence(
    subject: Network, task: Task, scale: int, rows: int = N_INSTANCES, generator: Generator | None = None
) -> Tensor:
    """Mean total-variation change of the next-token distribution at each answer query, for each key. [query, key]

    In random instances the token at the key is replaced by another: a symbol by another symbol, a mark by a symbol; the
    model is told n. Total variation is ½ Σ |p − p'|: 1 if the prediction changes altogether. Keys after the query
    have none. Example: copying ``^ 7 3 = 7``, replacing the 3 changes what follows for sure, replacing 7 does not.
    """
    tokens, symbols = task.sample(scale, rows, generator).tokens, len(task.symbols)
    queries = answer_queries(task, scale)
    keys, at = queries.stop, slice(queries.start, queries.stop)  # the last token is seen by no query
    before = subject.logits(tokens.to(subject.device), scale, at).softmax(-1)
    shift = 1 + torch.randint(max(1, symbols - 1), (keys, rows), generator=generator)
    any_symbol = torch.randint(symbols, (keys, rows), generator=generator)
    old = tokens.T[:keys]
    new = torch.where(old < symbols, (old + shift) % symbols, any_symbol)
    here = torch.eye(keys, tokens.shape[1], dtype=torch.bool)[:, None]
    change = torch.zeros(keys, len(queries))
    for first, changed in zip(
        range(0, keys, KEYS_AT_ONCE), torch.where(here, new[..., None], tokens).split(KEYS_AT_ONCE)
    ):
        skipped = max(0, first - queries.start)  # queries before all of these keys; `changed` is [key, row, pos]
        seeing = slice(queries.start + skipped, queries.stop)
        after = subject.logits(changed.flatten(0, 1).to(subject.device), scale, seeing).softmax(-1)
        differs = after.unflatten(0, changed.shape[:2]) - before[:, skipped:]
        change[first : first + len(changed), skipped:] = (differs.abs().sum(-1).mean(1) / 2).cpu()
    sees = torch.arange(keys) <= torch.tensor(queries)[:, None]
    return torch.where(sees, change.T, 0.0)


def behave(
    subject: Network, task: Task, relation: Relation, scale: int, steps: list[Step], bases: int, generator: Generator
) -> list[StepBehaviour]:
    """What the model does at each of these steps of one n, in one batch of instances."""
    queries = answer_queries(task, scale)
    codes = relation.table(queries, range(queries.stop), scale)
    seen = task.sample(scale, SUPPORT_ROWS, generator).tokens
    occurring = [tuple(column.unique().tolist()) for column in seen.T]
    all_roles = [Roles.of(codes[query - queries.start], occurring, query, list(sources)) for query, sources in steps]
    drawn = [assignments(roles) for roles in all_roles]
    times = [max(bases, TRIALS // len(given)) for given in drawn]
    base = task.sample(scale, max(times), generator).tokens
    tokens = [fill_roles(roles, given, base[:k], generator) for roles, given, k in zip(all_roles, drawn, times)]
    query = torch.cat([torch.full((len(t),), q) for t, (q, _) in zip(tokens, steps)])
    outputs = subject.next_tokens(torch.cat(tokens).to(subject.device), scale, query).cpu()
    each = outputs.split([len(t) for t in tokens])
    return [
        StepBehaviour(scale, q, roles.sources, roles.signature, keys_of(roles, given), out.view(len(given), -1))
        for (q, _), roles, given, out in zip(steps, all_roles, drawn, each)
    ]


class SrcProbe(Probe):
    """Measured SRC; signatures: the same without the test of fidelity."""

    name, measures, curves, index = "src", ("src", "signatures", "iota_src"), {"src": "iota_src"}, "iota_src"
    label, short, growth = "ι of measured SRC", "ι of SRC", "measured SRC"
    words = OURS["src"].words
    thresholds = (INFLUENCE, FIDELITY)

    def rows(self, context: "Context") -> list[Row]:
        if context.uncoded:
            return [{"measure": "src", "reason": context.uncoded}]
        (subject, relation), (influence, fidelity) = context.coded, self.defaults.values()
        results = measured_src_at(INFLUENCE.tried, subject, *context.range, relation, context.generator, fidelity)
        usual = results[INFLUENCE.tried.index(influence)]
        rows = by_scale("src", usual.curve, usual.about) + by_scale("signatures", usual.signatures(), usual.about)
        for result, fidelity in itertools.product(results, FIDELITY.tried):
            rows.append(index_row("iota_src", result.curve_at(fidelity), {**result.about, "fidelity": fidelity}))
        return rows


class PrunedProbe(Probe):
    """A copy without what answers in range do not need: ι of its SRC, its SRC, and exact match beyond the range."""

    name, measures, curves = "pruned", ("pruned", "pruned_src", "pruned_exact_match"), {"pruned_src": "pruned"}
    words = OURS["pruned"].words
    thresholds = (INFLUENCE, FIDELITY)
    factors = (2, 10)  # times the training range: where the copy is tried
    samples = 200  # instances of each

    def rows(self, context: "Context") -> list[Row]:
        if context.pruned is None:
            return [{"measure": "pruned", "reason": "nothing to prune: no bias for each code"}]
        (subject, relation), task, generator = context.pruned, context.task, context.generator
        influence, fidelity = self.defaults.values()
        (result,) = measured_src_at([influence], subject, *context.range, relation, generator, fidelity)
        about, curve = {"samples": self.samples, **result.about}, result.curve
        far = reachable(subject, task, [factor * context.train_max for factor in self.factors])
        exact = exact_by_scale(subject, task, far, self.samples, generator)
        rows = [index_row("pruned", curve, about), *by_scale("pruned_src", curve, about)]
        return rows + by_scale("pruned_exact_match", exact, about)

    def lines(self, rows: Sequence[Row]) -> list[str]:
        exact = [row for row in rows if row["measure"] == "pruned_exact_match"]
        texts = ", ".join(f"{row['value']:.2f} at n = {row['scale']}" for row in exact)
        return [f"pruned to {exact[0]['relation']}", f"  exact match of the pruned copy: {texts}"] if exact else []
