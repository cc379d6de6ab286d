"""Position-only linear attention as a model, and its real gradient descent."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import numbered
from lengthlens.theory.pola import (
    Pairs,
    RelationLike,
    Target,
    checked_scale,
    codes_of,
    look_at_scale,
    pairs_at,
    pairs_seen,
    resolved,
    values,
)


class Pola(nn.Module):
    """y_i = Σ_{j≤i} p[φ(i,j;n)] x_j with one learned row of weights `p` (a weight per head) for each code.

    There is a weight for every code up to scale `largest`, seen in training or not; all are zero at first.
    """

    def __init__(self, relation: RelationLike, target: Target, largest: int) -> None:
        super().__init__()
        relation = resolved(relation, target)
        self.looks_at_scale = look_at_scale(relation, target)
        self.largest = largest
        pairs = pairs_seen(largest, self.looks_at_scale)
        codes, which = numbered(codes_of(relation, target, pairs))
        heads = values(target, Pairs(*(part[:1] for part in pairs))).shape[1]
        self.p = nn.Parameter(torch.zeros(len(codes), heads, dtype=torch.float64))
        self.pairs = pairs
        self.which = which

    def classes(self, scale: int) -> Tensor:
        """The class of each pair of an instance, [query, key]; one past the last for keys in the future."""
        mine = self.pairs.n == scale if self.looks_at_scale else self.pairs.i < scale
        table = torch.full((scale, scale), len(self.p))
        table[self.pairs.i[mine], self.pairs.j[mine]] = torch.from_numpy(self.which[mine])
        return table

    def attention(self, classes: Tensor) -> Tensor:
        """A(i, j), [*, query, key, head], from the classes of the pairs."""
        return nn.functional.pad(self.p, (0, 0, 0, 1))[classes]

    def forward(self, x: Tensor) -> Tensor:
        """`x` [row, pos] to y [row, pos, head], taken as instances of scale `pos`."""
        return torch.einsum("qkh,rk->rqh", self.attention(self.classes(x.shape[1])), x.double())

    @torch.no_grad()
    def error(self, target: Target, scale: int) -> float:
        """The squared error at a scale over an orthonormal basis of inputs."""
        if scale > self.largest:
            raise UserError(f"this model was built for scales up to {self.largest}, not {scale}")
        inputs = torch.eye(scale, dtype=torch.float64)
        return float((self(inputs) - outputs(target, inputs)).square().sum())


def outputs(target: Target, x: Tensor) -> Tensor:
    """What the target makes of inputs `x` [row, pos]: [row, pos, head]."""
    pairs = pairs_at(x.shape[1])
    found = torch.from_numpy(values(target, pairs))
    weights = torch.zeros(x.shape[1], x.shape[1], found.shape[1], dtype=torch.float64)
    weights[pairs.i, pairs.j] = found
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

    The inputs of each scale are a random orthonormal basis: exactly isotropic, so the loss of the batch is
    the expected loss. Gradient descent has momentum; rate and momentum follow from the sizes of the largest
    and smallest class (the loss is a parabola along each weight, as steep as its class is large). It ends when
    no weight's gradient exceeds `tolerance`, or after `steps` steps.
    """
    model = Pola(relation, target, max(train_max, test_max or train_max))
    scales = range(1, train_max + 1) if model.looks_at_scale else [checked_scale(train_max)]
    classes, x, y = training_set(model, target, scales, generator)
    optimizer = descent(model, classes)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (torch.einsum("sqkh,srk->srqh", model.attention(classes), x) - y).square().sum()
        loss.backward()
        optimizer.step()
        if model.p.grad is None or float(model.p.grad.abs().max()) < tolerance:
            break
    return model


def training_set(
    model: Pola, target: Target, scales: Sequence[int], generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Classes [scale, query, key], inputs [scale, row, pos] and outputs [scale, row, pos, head], padded."""
    size, future, heads = max(scales), *model.p.shape
    classes = torch.full((len(scales), size, size), future)
    x = torch.zeros(len(scales), size, size, dtype=torch.float64)
    y = torch.zeros(len(scales), size, size, heads, dtype=torch.float64)
    for k, scale in enumerate(scales):
        basis = torch.linalg.qr(torch.randn(scale, scale, dtype=torch.float64, generator=generator)).Q
        classes[k, :scale, :scale] = model.classes(scale)
        x[k, :scale, :scale] = basis
        y[k, :scale, :scale] = outputs(target, basis)
    return classes, x, y


def descent(model: Pola, classes: Tensor) -> torch.optim.Optimizer:
    """Gradient descent with the rate and momentum that suit the curvature, twice the size of each class."""
    sizes = torch.bincount(classes.flatten(), minlength=len(model.p) + 1)[:-1]
    seen = 2.0 * sizes[sizes > 0]
    steep, flat = math.sqrt(float(seen.max())), math.sqrt(float(seen.min()))
    rate, momentum = 4 / (steep + flat) ** 2, ((steep - flat) / (steep + flat)) ** 2
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
