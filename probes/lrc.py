"""Measured LRC: how many (code, weight) pairs the heads of a trained model spend on position-only linear attention.

We define (the paper's LRC is that of a target, not of a network): for a head, an input size n and an answer query i
(the position before a token of the answer), the best position-only linear attention is the a that minimises
E‖z_i − Σ_{j≤i} a_j v_j‖² over inputs, z the head's output and v its values. LRC_M(n) is the least number of pairs
(code, non-zero weight) that serve all answer queries at sizes ≤ n when every key gets its weight by its code under the
model's relation (what its scheme makes of a query and a key: i−j, say); for each head, and summed over heads.

- *Inputs.* In true instances tokens depend on each other (copying: answer token k is symbol k), so weights could be
  split between two keys at no cost. Here the answer's tokens are replaced by independent random symbols and the
  model is told n; the marks stay. Then every weight is determined.
- *Same weight, and zero.* A weight serves key j at query i if putting it in the place of a_j (the others adapt) adds to
  the squared error no more than `tolerance`² of the output, E‖z_i‖², and what the best fit leaves unexplained. So each
  key accepts an interval of weights. A key that accepts 0 is not used. The distinct weights of a code are the least
  number of points that hit all the intervals of its keys. One threshold, in units of the head's output: a
  thin spread of attention over many keys is not a hundred weights, keys whose values cannot be told apart (two marks,
  say) accept anything, and a head that searches for content, which no position-only weights describe, adds little.
- *R²* is the share of the variance of the head's output that the fit explains.

What it leaves open: whether a code suffices to find the key. Under ``none`` one code has weight 1 at the key that is
read and 0 at all others, and LRC_M is 1; measured SRC is what tells that apart.

Worked example: a head that attends to the key n back with weight 1 and nothing else. Under i−j the codes are 1 … n, so
LRC_M(n) = n; under i−j−n the one code is 0 and LRC_M(n) = 1.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import numbered
from lengthlens.models.schemes.spec import RelationLike
from lengthlens.probes.network import AnyModel, answer_queries, probed_relation, sizes_up_to, task_of
from lengthlens.probes.probe import OURS, Probe, Row, by_scale, index_row, records
from lengthlens.probes.schema import TOLERANCE
from lengthlens.tasks import Task

if TYPE_CHECKING:
    from lengthlens.probes.network import Context

RIDGE = 1e-6  # of the mean squared length of a value: against exact ties only
N_INSTANCES = 512  # fits of 22 positions then agree with those from many more rows to about 0.01


class Fit(NamedTuple):
    """Position-only linear attention of the heads of one layer at one n."""

    weights: Tensor  # [head, query, key], zero at keys after the query
    leverage: Tensor  # [head, query, key], the error added by changing a weight by d is d² · leverage · E‖z_i‖²
    unexplained: Tensor  # [head, query], as a share of E‖z_i‖²
    r2: Tensor  # [head]


@dataclass(frozen=True)
class MeasuredLrc:
    """Fitted weights, one row for each (layer, head, scale, query, key), and what follows from them."""

    weights: pd.DataFrame  # layer, head, scale, query, key, code (numbered), weight, leverage, unexplained
    r2: pd.DataFrame  # layer, head, scale, value
    relation: str
    tolerance: float = TOLERANCE.default

    def counts(self, tolerance: float | None = None) -> pd.DataFrame:
        """LRC_M of each head at each n: columns layer, head, scale, value. Another tolerance costs no new fit."""
        tolerance = self.tolerance if tolerance is None else tolerance
        table = self.weights
        reach = np.sqrt((tolerance**2 + table["unexplained"]) / table["leverage"].clip(lower=1e-12))
        low, high = (table["weight"] + sign * reach for sign in (-1, 1))
        used = table[["layer", "head", "code", "scale"]].assign(low=low, high=high)[(low > 0) | (high < 0)]
        used = used.sort_values(["layer", "head", "code", "high", "low"])
        grid = self.r2[["layer", "head", "scale"]].sort_values(["layer", "head", "scale"], ignore_index=True)
        counts: Counter[tuple[int, int, int]] = Counter()
        for scale in grid["scale"].unique().tolist():
            within = used[used["scale"] <= scale]
            known: list[int] = []
            point = -np.inf
            for *code, start, end in zip(*(within[c].tolist() for c in ("layer", "head", "code", "low", "high"))):
                if code != known or start > point:  # the next point, as far right as it may be
                    known, point = code, end
                    counts[code[0], code[1], scale] += 1
        return grid.assign(value=[counts[cell] for cell in grid.itertuples(index=False, name=None)])

    def curve_at(self, tolerance: float | None = None) -> dict[int, int]:
        """LRC_M by n, summed over heads."""
        summed = self.counts(tolerance).groupby("scale")["value"].sum()
        return {int(scale): int(value) for scale, value in summed.items()}  # type: ignore[call-overload]

    @property
    def curve(self) -> dict[int, int]:
        return self.curve_at()


def measured_lrc(
    model: AnyModel,
    task: Task | None = None,
    train_max: int = 10,
    *,
    relation: RelationLike | None = None,
    layers: Sequence[int] | None = None,
    rows: int = N_INSTANCES,
    ridge: float = RIDGE,
    tolerance: float = TOLERANCE.default,
    generator: torch.Generator | None = None,
) -> MeasuredLrc:
    """Measured LRC: fit position-only linear attention to every head at every n, and count (code, weight) pairs.

    Arguments:
        model: a HookedModel, or another model with `run_with_cache` and hooks named as TransformerLens names them.
        task: whose instances are used; the one that the model was built for, if not given.
        train_max: the largest n; every n up to it is fitted.
        relation: gives codes in place of the model's relation: "i-j", "(i,j)", a scheme, or a function of (i, j, n).
        layers: all, if not given.
        rows: instances of each n.
        ridge: added to the Gram matrix, as a share of the mean squared length of a value.
        tolerance: the error, as a share of the head's output, at which weights still count as the same.
        generator: of all draws; seed 0 if not given.

    Result: a `MeasuredLrc`; `.curve` is LRC_M by n, summed over heads, `.counts()` each head's, `.r2` the fits.

    Errors: UserError if the model has no hooks, names no task or no relation and none is given, for a layer or n that
    does not exist, and for too few rows.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> measured_lrc(copy_by_hand(), train_max=4, relation="i-j").curve
    {1: 1, 2: 2, 3: 3, 4: 4}
    """
    task = task_of(model, task)
    if rows < 2 * (length := task.length(train_max)):
        raise UserError(
            f"{rows} rows are too few to fit weights for {length} positions: {2 * length} are needed at least"
        )
    subject, known = probed_relation(model, task, train_max, relation)
    chosen = subject.layers(layers)
    generator = generator or torch.Generator().manual_seed(0)
    weights, codes, r2 = [], [], []
    for scale in sizes_up_to(task, train_max):
        tokens = independent_answers(task, scale, rows, generator).to(subject.device)
        queries = answer_queries(task, scale)
        place, key = np.nonzero(np.arange(tokens.shape[1]) <= np.array(queries)[:, None])  # keys that queries see
        names = [f"blocks.{layer}.attn.hook_{part}" for layer in chosen for part in "vz"]
        seen = subject.activations(tokens, scale, names)
        for layer in chosen:
            v, z = (seen[f"blocks.{layer}.attn.hook_{part}"] for part in "vz")
            fit = fit_positions(v, z, queries, ridge)
            for head, explained in enumerate(fit.r2.tolist()):
                weight, leverage, unexplained = (part[head].cpu().numpy() for part in fit[:3])
                about = (np.full(len(key), number) for number in (layer, head, scale))
                numbers = weight[place, key], leverage[place, key], unexplained[place]
                weights.append((*about, np.array(queries)[place], key, *numbers))
                codes.append(known.table(queries, range(tokens.shape[1]), scale, (layer, head))[place, key])
                r2.append((layer, head, scale, explained))
    names = ["layer", "head", "scale", "query", "key", "weight", "leverage", "unexplained"]
    table = pd.DataFrame({name: np.concatenate(column) for name, column in zip(names, zip(*weights))})
    table.insert(5, "code", numbered(np.concatenate(codes))[1])
    return MeasuredLrc(table, pd.DataFrame(r2, columns=["layer", "head", "scale", "value"]), known.words, tolerance)


def independent_answers(task: Task, scale: int, rows: int, generator: torch.Generator | None) -> Tensor:
    """Instances whose answer tokens are replaced by random symbols, independent of all others. [row, pos]"""
    batch = task.sample(scale, rows, generator)
    free = torch.randint(len(task.symbols), batch.tokens.shape, generator=generator)
    return torch.where(batch.answer_mask, free, batch.tokens)


def fit_positions(v: Tensor, z: Tensor, queries: Sequence[int], ridge: float = RIDGE) -> Fit:
    """The best position-only weights of every head and query, all in one batched solve.

    `v`, `z` [row, pos, head, d_head]. One Gram matrix of the values serves all queries: a query uses the rows and
    columns of the keys that it sees, and at the others the system says 1·a = 0.
    """
    if v.device.type == "mps":  # which has no float64
        v, z = v.cpu(), z.cpu()
    values = v.double().permute(2, 1, 0, 3).flatten(2)  # [head, key, row·d_head]
    targets = z.double()[:, list(queries)].permute(2, 1, 0, 3)  # [head, query, row, d_head]
    flat = targets.flatten(2)
    gram, cross = values @ values.mT, flat @ values.mT  # [head, key, key], [head, query, key]
    sees = torch.arange(v.shape[1], device=v.device) <= torch.tensor(list(queries), device=v.device)[:, None]
    eye = torch.eye(v.shape[1], dtype=torch.float64, device=v.device)
    small = ridge * gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-12)[:, None, None, None]
    system = torch.where(sees[:, :, None] & sees[:, None], gram[:, None] + small * eye, eye)
    inverse = torch.linalg.inv(system)  # [head, query, key, key]
    weights = (inverse @ torch.where(sees, cross, 0.0)[..., None])[..., 0]
    missed = (flat - weights @ values).square().sum(2)
    energy = flat.square().sum(2).clamp(min=1e-30)
    leverage = 1 / (inverse.diagonal(dim1=2, dim2=3) * energy[..., None])
    spread = (targets - targets.mean(2, keepdim=True)).square().sum((1, 2, 3))
    varies = spread > 1e-9 * energy.sum(1)  # a head whose output never varies is explained by being reproduced
    r2 = torch.where(varies, 1 - missed.sum(1) / spread.clamp(min=1e-30), 1.0)
    return Fit(weights, leverage, missed / energy, r2)


class LrcProbe(Probe):
    """Measured LRC of each head and (rows without a layer) of all; r2: how position-only each head is."""

    name, measures, curves, index = "lrc", ("lrc", "r2", "iota_lrc"), {"lrc": "iota_lrc"}, "iota_lrc"
    label, short, growth = "ι of measured LRC", "ι of LRC", "measured LRC"
    words = OURS["lrc"].words
    thresholds = (TOLERANCE,)

    def rows(self, context: "Context") -> list[Row]:
        if context.uncoded:
            return [{"measure": "lrc", "reason": context.uncoded}]
        subject, relation = context.coded
        result = measured_lrc(
            subject, *context.range, relation=relation, layers=context.layers, generator=context.generator,
            tolerance=self.defaults["tolerance"],
        )  # fmt: skip
        codes = {"relation": relation.words}
        about = {**codes, "tolerance": result.tolerance}
        rows = [{**row, "measure": "lrc", **about} for row in records(result.counts())]
        rows += by_scale("lrc", result.curve, about)
        rows += [{**row, "measure": "r2", **codes} for row in records(result.r2)]
        for tolerance in TOLERANCE.tried:
            rows.append(index_row("iota_lrc", result.curve_at(tolerance), {**codes, "tolerance": tolerance}))
        return rows
