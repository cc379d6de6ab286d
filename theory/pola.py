"""Position-only linear attention (POLA): the model for which length generalization can be predicted exactly.

POLA computes y_i = Σ_{j≤i} A(i,j) x_j with weights that depend on positions alone. Under a position embedding with
relation φ the weights are A(i,j) = p[φ(i,j)], and p is what gradient descent learns.

The paper says that the Linear Representation Complexity (LRC) of the target A* tells when a position embedding can give
length generalization. The definitions here are this project's operational versions:

- An instance of size n is a sequence of n inputs. LRC(A*, N) is the number of distinct non-zero values of A* over
  j ≤ i < n at all n ≤ N; LRC under φ is the number of classes of φ on which A* is not zero, and infinite where
  A* is not constant on each class.
- Training from p = 0 on the squared loss over isotropic inputs has the limit p[c] = mean of A* over the pairs seen
  of class c, and 0 for a class never seen. The error at n = N is the sum of (A*(i,j) − p[φ(i,j)])² over j ≤ i < N.
- *Which pairs are seen.* As long as neither target nor relation depends on n, an instance of size N0 contains every
  shorter one as its beginning, and training is on n = N0 alone: each pair j ≤ i < N0 counts once. Where one of them
  does (Scale Hint), training is on all n ≤ N0: each triple (i, j, n) counts once.

Example: prefix sum under `relative`, trained at 8. Distances 8 to 15 were never seen, so they keep weight 0.

>>> lrc("prefix-sum", 8), lrc("prefix-sum", 16), lrc_under("relative", "prefix-sum", 16)
(1, 1, 16)
>>> pola_limit("relative", "prefix-sum", train_max=8).error(16)
36.0
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lengthlens.errors import Registry, UserError
from lengthlens.models.schemes import PositionScheme, Relation, SchemeSpec
from lengthlens.models.schemes.relation import Ints, numbered
from lengthlens.models.schemes.spec import relation_of

Floats: TypeAlias = NDArray[np.float64]
Target: TypeAlias = str | Callable[..., Any]  # a name, or a function of (i, j) or (i, j, n)
RelationLike: TypeAlias = str | PositionScheme | Callable[..., Any] | Relation  # likewise, or a scheme

# Values that agree to so many significant digits are the same value; below 10**-12 a value is zero.
DIGITS = 12
MOST_PAIRS = 20_000_000  # a few hundred MB; beyond that a table would not fit into memory

# Targets by name: the attention A*(i, j) that POLA is to learn.
TARGETS: Registry[Callable[..., Any]] = Registry(
    "target",
    {
        "shift-by-one": lambda i, j: i - j == 1,  # y_i = x_{i−1}
        "prefix-sum": lambda i, j: np.ones_like(i),  # y_i = x_0 + … + x_i
        "alternating-sign": lambda i, j: 1 - 2 * ((i - j) % 2),  # y_i = x_i − x_{i−1} + x_{i−2} − …
        # y_i = (x_0 + … + x_i) / (i+1): a new value for every i, so no position embedding can extrapolate it
        "running-mean": lambda i, j: 1 / (i + 1),
        "first-token": lambda i, j: j == 0,  # y_i = x_0
        "window-mean": lambda i, j: (i - j < 4) / np.minimum(i + 1, 4),  # of the last four, or as many as there are
        "decay": lambda i, j: 0.9 ** (i - j),  # y_i = x_i + 0.9 x_{i−1} + 0.81 x_{i−2} + …
        "reversal": lambda i, j, n: i + j == n - 1,  # y_i = x_{n−1−i}, once seen: where to read depends on n
        # three outputs at once: the previous input, the first one, and the prefix sum
        "several-heads": lambda i, j: np.stack([i - j == 1, j == 0, np.ones_like(i)], -1),
    },
)


class Pairs(NamedTuple):
    """Pairs j ≤ i < n of instances of size n, each [pair]."""

    i: Ints
    j: Ints
    n: Ints


def pairs_at(scale: int) -> Pairs:
    """All pairs of one instance."""
    i, j = np.tril_indices(scale)
    return Pairs(i.astype(np.int64), j.astype(np.int64), np.full(len(i), scale, dtype=np.int64))


def pairs_seen(scale: int, looks_at_scale: bool) -> Pairs:
    """All pairs of the instances up to a size n: of that n alone, unless target or relation depend on n."""
    checked_scale(scale)
    count = scale * (scale + 1) * (scale + 2) // 6 if looks_at_scale else scale * (scale + 1) // 2
    if count > MOST_PAIRS:
        raise UserError(f"n = {scale} has {count:,} pairs of positions, more than the {MOST_PAIRS:,} this can hold")
    if not looks_at_scale:
        return pairs_at(scale)
    return Pairs(*(np.concatenate(part) for part in zip(*map(pairs_at, range(1, scale + 1)))))


def checked_scale(scale: int) -> int:
    if scale < 1:
        raise UserError(f"n is at least 1, not {scale}")
    return scale


def function_of(target: Target) -> Callable[..., Any]:
    return TARGETS[target] if isinstance(target, str) else target


def takes_scale(function: Target) -> bool:
    """Whether a function of positions takes n as its third argument."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function_of(function)).parameters.values()
    required = [p for p in parameters if p.kind in kinds and p.default is p.empty]
    if len(required) not in (2, 3):
        raise UserError(
            f"a target or relation is a function of (i, j) or (i, j, n), "
            f"and {named(function)} takes {len(required)} arguments"
        )
    return len(required) == 3


def named(function: Target) -> str:
    return repr(function if isinstance(function, str) else getattr(function, "__name__", "a function"))


def call(function: Callable[..., Any], pairs: Pairs) -> NDArray[Any]:
    """The function at all pairs at once, or one by one if it was not written for arrays."""
    arguments = pairs if takes_scale(function) else pairs[:2]
    try:
        return np.asarray(function(*arguments))
    except (ValueError, TypeError):
        return np.asarray([function(*map(int, one)) for one in zip(*arguments)])


def values(target: Target, pairs: Pairs) -> Floats:
    """A*(i, j; n) at each pair, [pair, head], rounded so that equal values compare as equal."""
    raw = np.asarray(call(function_of(target), pairs), dtype=np.float64)
    of_pairs = np.broadcast_to(raw, (len(pairs.i), *raw.shape[1:])).reshape(len(pairs.i), -1)
    wrong = ~np.isfinite(of_pairs).all(1)
    if wrong.any():
        k = int(wrong.argmax())
        raise UserError(
            f"target {named(target)} is not a finite number at i={pairs.i[k]}, j={pairs.j[k]}, n={pairs.n[k]}"
        )
    return rounded(of_pairs)


def rounded(x: Floats) -> Floats:
    """Rounded to `DIGITS` significant digits, and to zero below 10**-DIGITS.

    >>> rounded(np.array([0.1 + 0.2, 1e-17])).tolist()
    [0.3, 0.0]
    """
    size = np.floor(np.log10(np.maximum(np.abs(x), 10.0**-DIGITS)))
    scaled_by = 10.0 ** (DIGITS - 1 - size)
    return np.where(np.abs(x) < 10.0**-DIGITS, 0.0, np.round(x * scaled_by) / scaled_by) + 0.0  # no negative zero


def level_sets(target: Target) -> Relation:
    """`ideal` for POLA: two pairs have the same code exactly when the target has the same value there.

    Derived from the target, never written by hand: the code is the value's own bits, read as an integer.
    """

    def phi(i: Tensor, j: Tensor, n: Tensor) -> Ints:
        return np.ascontiguousarray(values(target, Pairs(i.numpy(), j.numpy(), n.numpy()))).view(np.int64)

    return Relation(phi, "the level sets of the target", uses_scale=takes_scale(target))


DERIVED = {"ideal": level_sets}  # relations that mean something else here than as schemes of a network


def resolved(relation: RelationLike, target: Target, options: Mapping[str, Any] | None = None) -> Relation:
    """What a relation's name, a scheme or a function of positions stands for."""
    if isinstance(relation, str):
        if relation not in DERIVED:
            return SchemeSpec.of(relation, options).build().relation()
        if options:
            raise UserError(f"scheme '{relation}' has no options under POLA, and was given {', '.join(options)}")
        return DERIVED[relation](target)
    if options:
        raise UserError("options go with the name of a scheme, not with a scheme or function of your own")
    given = relation_of(relation)
    if given.phi is not relation:
        return given
    function = given.phi  # of (i, j) or (i, j, n), on arrays or on numbers

    def phi(i: Tensor, j: Tensor, n: Tensor) -> Any:
        codes = call(function, Pairs(i.numpy(), j.numpy(), n.numpy()))
        return np.broadcast_to(codes, (len(i), *codes.shape[1:])).reshape(len(i), -1)

    return Relation(phi, named(function), uses_scale=takes_scale(function))


class Seen(NamedTuple):
    """The pairs of all instances up to a size n, with the target's values and the relation's classes of pairs."""

    pairs: Pairs
    values: Floats  # [pair, head]
    codes: Ints  # [class, component]
    which: Ints  # the class of each pair. [pair]
    by_scale: bool  # whether target or relation depend on n, so that pairs are those of all n

    @classmethod
    def up_to(cls, scale: int, relation: Relation, target: Target) -> "Seen":
        by_scale = relation.uses_scale or takes_scale(target)
        pairs = pairs_seen(scale, by_scale)
        return cls(pairs, values(target, pairs), *numbered(relation.codes(*pairs)), by_scale)


# -- complexity, and the limit of gradient descent -------------------------------------------------------------------


def lrc(target: Target, scale: int) -> int:
    """Linear Representation Complexity: the number of distinct non-zero values of the target up to a size n.

    >>> lrc("alternating-sign", 8), lrc("running-mean", 8), lrc(lambda i, j: i == j, 8)
    (2, 8, 1)
    """
    weights = values(target, pairs_seen(scale, takes_scale(target)))
    return len(np.unique(weights[weights.any(1)], axis=0))


def lrc_under(relation: RelationLike, target: Target, scale: int) -> float:
    """The number of classes of a relation on which the target is not zero; infinite if it varies within one.

    >>> lrc_under("relative", "shift-by-one", 8), lrc_under("learned", "shift-by-one", 8)
    (1, 7)
    >>> lrc_under("none", "shift-by-one", 8)
    inf
    """
    seen = Seen.up_to(scale, resolved(relation, target), target)
    constant = constant_on(seen.which, seen.values).all()
    return len(np.unique(seen.which[seen.values.any(1)])) if constant else math.inf


def constant_on(which: Ints, weights: Floats) -> NDArray[np.bool_]:
    """For each class whether all its pairs have one value. [class]"""
    first = np.unique(which, return_index=True)[1]
    same = (weights == weights[first][which]).all(1)
    return np.asarray(np.bincount(which, weights=~same) == 0)


@dataclass(frozen=True)
class Limit:
    """What training converges to: a weight for each code that was seen, and zero for every other."""

    relation: Relation
    target: Target
    codes: Ints  # [class, component]
    weights: Floats  # [class, head]

    def at(self, codes: Ints) -> Floats:
        """The weights of codes [pair, component], [pair, head]."""
        _, which = numbered(np.concatenate([self.codes, codes]))
        table = np.zeros((which.max() + 1, self.weights.shape[1]))
        table[which[: len(self.codes)]] = self.weights
        return table[which[len(self.codes) :]]

    def error(self, scale: int) -> float:
        """The squared error at a size n, summed over pairs and heads."""
        pairs = pairs_seen(scale, looks_at_scale=False)  # those of this n
        return float(((values(self.target, pairs) - self.at(self.relation.codes(*pairs))) ** 2).sum())


def pola_limit(relation: RelationLike, target: Target, train_max: int) -> Limit:
    """The limit of gradient descent from zero: the mean of the target over each class seen up to `train_max`.

    >>> limit = pola_limit("none", "shift-by-one", 8)  # 7 of 36 pairs are one apart
    >>> limit.weights.tolist() == [[7 / 36]]
    True
    """
    relation = resolved(relation, target)
    _, wanted, codes, which, _ = Seen.up_to(train_max, relation, target)
    counts = np.bincount(which)
    means = np.stack([np.bincount(which, weights=head) / counts for head in wanted.T], 1)
    first = np.unique(which, return_index=True)[1]
    # Exact on a class with one value, where summing would round.
    weights = np.where(constant_on(which, wanted)[:, None], wanted[first], means)
    return Limit(relation, target, codes, weights)


def pola_table(
    target: Target,
    scheme: RelationLike,
    train_max: int,
    test_max: int,
    train: bool = False,
    options: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """A row for each n up to `test_max`: LRC, LRC under the scheme, and errors after training to `train_max`.

    `target_energy`, the sum of A*², is the error of a model that knows nothing; `trained_error` is there only
    after real training (`train`).
    """
    checked_scale(train_max)
    if test_max < train_max:
        raise UserError(f"test_max {test_max} is below train_max {train_max}: it must be at least as large")
    relation = resolved(scheme, target, options)
    table = complexity_table(pola_limit(relation, target, train_max), test_max)
    if train:
        model = pola_train(relation, target, train_max, test_max, generator)
        table["trained_error"] = [model.error(target, n) for n in table["scale"]]
    table.insert(0, "target", label_of(target))
    table.insert(1, "scheme", label_of(scheme))
    table.insert(2, "train_max", train_max)
    return table


def label_of(given: Target | RelationLike) -> str:
    if isinstance(given, str):
        return given
    return str(getattr(given, "name", None) or getattr(given, "__name__", None) or type(given).__name__)


def complexity_table(limit: Limit, largest: int) -> pd.DataFrame:
    """The predicted part of the table, from one pass over all pairs.

    A pair belongs to every size from the one it first occurs at: its n if target or relation depend on n, else i+1.
    """
    pairs, wanted, codes, which, by_scale = Seen.up_to(largest, limit.relation, limit.target)
    since = pairs.n if by_scale else pairs.i + 1
    missed = np.bincount(since, ((wanted - limit.at(codes)[which]) ** 2).sum(1), largest + 1)[1:]
    energy = np.bincount(since, (wanted**2).sum(1), largest + 1)[1:]
    order = np.lexsort((since, which))
    first = order[np.unique(which[order], return_index=True)[1]]  # the earliest pair of each class
    differs = since[(wanted != wanted[first][which]).any(1)]  # the n at which a class has two different values
    scales, broken = np.arange(1, largest + 1), differs.min(initial=largest + 1)
    return pd.DataFrame(
        {
            "scale": scales,
            "lrc": counted(since, numbered(wanted.view(np.int64))[1], wanted, largest),
            "lrc_under": np.where(scales < broken, counted(since, which, wanted, largest), np.inf),
            "target_energy": energy if by_scale else energy.cumsum(),
            "predicted_error": missed if by_scale else missed.cumsum(),
        }
    )


def counted(since: Ints, which: Ints, wanted: Floats, largest: int) -> Ints:
    """How many classes have a pair that is not zero, at each n from 1 to `largest`."""
    mine = wanted.any(1)
    born = np.full(int(which.max()) + 1, largest + 1)
    np.minimum.at(born, which[mine], since[mine])
    return np.bincount(born, minlength=largest + 2)[1 : largest + 1].cumsum()


# -- as a model, and its real gradient descent -----------------------------------------------------------------------


class Pola(nn.Module):
    """y_i = Σ_{j≤i} p[φ(i,j;n)] x_j with one learned row of weights `p` (a weight per head) for each code.

    There is a weight for every code up to n = `largest`, seen in training or not; all are zero at first.
    """

    def __init__(self, relation: RelationLike, target: Target, largest: int) -> None:
        super().__init__()
        self.seen = seen = Seen.up_to(largest, resolved(relation, target), target)
        self.largest = largest
        self.p = nn.Parameter(torch.zeros(len(seen.codes), seen.values.shape[1], dtype=torch.float64))

    def classes(self, scale: int) -> Tensor:
        """The class of each pair of an instance, [query, key]; one past the last for keys in the future."""
        pairs = self.seen.pairs
        mine = pairs.n == scale if self.seen.by_scale else pairs.i < scale
        table = torch.full((scale, scale), len(self.p))
        table[pairs.i[mine], pairs.j[mine]] = torch.from_numpy(self.seen.which[mine])
        return table

    def weighted(self, classes: Tensor, x: Tensor) -> Tensor:
        """Outputs [row, query, head] for inputs `x` [row, key], from the classes of the pairs."""
        weights = nn.functional.pad(self.p, (0, 0, 0, 1))[classes]  # [query, key, head]
        return torch.einsum("qkh,rk->rqh", weights, x)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [row, pos] to y [row, pos, head]: instances of as many inputs as there are positions."""
        return self.weighted(self.classes(x.shape[1]), x.double())

    @torch.no_grad()
    def error(self, target: Target, scale: int) -> float:
        """The squared error at a size n over an orthonormal basis of inputs."""
        if scale > self.largest:
            raise UserError(f"this model was built for n up to {self.largest}, not {scale}")
        inputs = torch.eye(scale, dtype=torch.float64)
        return float((self(inputs) - outputs(target, inputs)).square().sum())


def outputs(target: Target, x: Tensor) -> Tensor:
    """What the target makes of inputs `x` [row, pos]: [row, pos, head]."""
    pairs = pairs_at(x.shape[1])
    of_pairs = torch.from_numpy(values(target, pairs))
    weights = torch.zeros(x.shape[1], x.shape[1], of_pairs.shape[1], dtype=torch.float64)
    weights[pairs.i, pairs.j] = of_pairs
    return torch.einsum("qkh,rk->rqh", weights, x)


def pola_train(
    relation: RelationLike,
    target: Target,
    train_max: int,
    test_max: int | None = None,
    generator: torch.Generator | None = None,
    steps: int = 20_000,
    tolerance: float = 1e-9,
) -> Pola:
    """The model after real gradient descent from zero on the squared loss, trained up to `train_max`.

    The inputs of each n are a random orthonormal basis: exactly isotropic, so the loss of the batch is the expected
    loss. Rate and momentum follow from the sizes of the largest and smallest class (the loss is a parabola along each
    weight, as steep as its class is large). It ends when no weight's gradient exceeds `tolerance`, or after `steps`.
    """
    model = Pola(relation, target, max(train_max, test_max or train_max))
    instances = []  # of each size the classes of its pairs, inputs and outputs
    for n in range(1, train_max + 1) if model.seen.by_scale else [checked_scale(train_max)]:
        x = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q
        instances.append((model.classes(n), x, outputs(target, x)))
    every = torch.cat([classes.flatten() for classes, _, _ in instances])
    sizes = torch.bincount(every, minlength=len(model.p) + 1)[:-1]
    seen = 2.0 * sizes[sizes > 0]  # the curvature along each weight is twice the size of its class
    steep, flat = math.sqrt(float(seen.max())), math.sqrt(float(seen.min()))
    rate, momentum = 4 / (steep + flat) ** 2, ((steep - flat) / (steep + flat)) ** 2
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = [(model.weighted(classes, x) - y).square().sum() for classes, x, y in instances]
        torch.stack(losses).sum().backward()
        optimizer.step()
        if model.p.grad is None or float(model.p.grad.abs().max()) < tolerance:
            break
    return model
