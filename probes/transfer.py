"""Readout transfer: a readout fitted at one step, tested at every other step, in the training range and beyond.

A *step* writes one token of an answer; its *query* is the position before that token. We define: at the query of each
step of each input size n, a readout is fitted from a hooked activation at the query's position to
the model's next token (or the true one). Two kinds: *linear*, from the activation alone, and *sequential*, from the
activation, the previous output token, and products of that token with the activation's main directions (so that what
the step computes from both can be read before the model has computed it). Entry (s, t) of the transfer matrix is the
accuracy at step t of the readout fitted at step s, on instances that no fit has seen.

- Beside every accuracy stands a *control*: the same fit to shuffled labels. The difference is the selectivity.
- The *cover number* up to n is the least number of readouts such that every step at sizes ≤ n is decoded by one of
  them with an accuracy of at least `bar` (set cover, solved exactly); a step that no readout decodes, not even that
  fitted there, counts by itself. It depends on no position embedding. After the last layer it says little: there the
  model's unembedding is one linear readout for all steps, whatever came before.

Worked example: if the readout from step 1 decodes all steps but the last, which always writes ``$``, and the last
step's own readout decodes only that, the cover number is 2 at every n.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Generator, Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.probes.network import AnyModel, Network, answer_queries, network_of, sizes_up_to, task_of
from lengthlens.probes.probe import OURS, Probe, Row, by_scale, index_row, records
from lengthlens.probes.schema import BAR
from lengthlens.tasks import Task

if TYPE_CHECKING:
    from lengthlens.probes.network import Context

Labels = Literal["model", "true"]
READOUTS = ("linear", "sequential")
ESTIMATORS = ("logistic", "ridge")

N_INSTANCES = 256  # instances of each n: half to fit on, half to test on
DIRECTIONS = 8  # of the activation, that a sequential readout multiplies with the previous token
STEPS = 20  # of the logistic fit: accuracy then agrees with that of a converged one to about 1e-4
ABSENT = -1e9  # score of a class that a fit has not seen: it is never predicted


@dataclass(frozen=True)
class Transfer:
    """Transfer matrices, one for each (hook point, readout)."""

    fit_steps: pd.DataFrame  # scale, query: one row for each row of a matrix
    test_steps: pd.DataFrame  # scale, query: one row for each column
    accuracy: dict[tuple[str, str], NDArray[np.float64]]  # [fit, test]
    control: dict[tuple[str, str], NDArray[np.float64]]  # [fit, test], of fits to shuffled labels
    bar: float = BAR.default

    def by_scale(self) -> pd.DataFrame:
        """Means over the steps of each pair of sizes: hook, readout, fit_scale, scale, accuracy, control."""

        def means(matrix: NDArray[np.float64]) -> pd.DataFrame:
            frame = pd.DataFrame(matrix, index=self.fit_steps["scale"], columns=self.test_steps["scale"])
            by_size = frame.groupby(level=0).mean().T.groupby(level=0).mean().T
            return by_size.rename_axis(index="fit_scale").reset_index().melt("fit_scale", value_name="accuracy")

        parts = []
        for (hook, readout), matrix in self.accuracy.items():
            control = means(self.control[hook, readout])["accuracy"]
            parts.append(means(matrix).assign(control=control, hook=hook, readout=readout))
        return pd.concat(parts, ignore_index=True)

    def cover(self, hook: str, readout: str, bar: float | None = None) -> dict[int, int]:
        """The cover number at each n of the fits."""
        decodes, covers = self.accuracy[hook, readout] >= (self.bar if bar is None else bar), {}
        for n in sorted(self.fit_steps["scale"].unique()):
            rows, columns = ((steps["scale"] <= n).to_numpy() for steps in (self.fit_steps, self.test_steps))
            covers[int(n)] = cover_number(decodes[np.ix_(rows, columns)])
        return covers


def readout_transfer(
    model: AnyModel,
    task: Task | None = None,
    train_max: int = 10,
    *,
    beyond: Sequence[int] = (),
    hooks: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    readouts: Sequence[str] = READOUTS,
    estimator: str = "logistic",
    labels: Labels = "model",
    rows: int = N_INSTANCES,
    bar: float = BAR.default,
    generator: Generator | None = None,
) -> Transfer:
    """Readout transfer: fit a readout at every step of every n up to `train_max`, test each at all steps.

    Arguments:
        model: a HookedModel, or another model with `run_with_cache`.
        task: whose instances are used; the one that the model was built for, if not given.
        train_max: the largest n of the fits.
        beyond: larger n at which the fits are tested, too.
        hooks: names such as ``blocks.0.hook_resid_post``; in their place `layers`, all if not given, stand for these.
        readouts: "linear" (from the activation), "sequential" (from the activation and the previous token), or both.
        estimator: "logistic" or "ridge".
        labels: what is read out: the "model"'s next token, or the "true" one.
        rows: instances of each n, half to fit on and half to test on.
        bar: the accuracy at which a step counts as decoded.
        generator: of all draws; seed 0 if not given.

    Result: a `Transfer`; `.accuracy[hook, readout]` is the matrix [fit, test] with `.control` beside it, `.by_scale()`
    its means, `.cover(hook, readout)` the cover number by n.

    Errors: UserError for an unknown readout, estimator, hook or layer, for fewer than 32 rows, and for a model without
    hooks.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> readout_transfer(copy_by_hand(), train_max=3, rows=64).cover("blocks.0.hook_resid_post", "sequential")
    {1: 2, 2: 2, 3: 2}
    """
    task, subject = task_of(model, task), network_of(model)
    for kind, name, choices in [("estimator", estimator, ESTIMATORS), *(("readout", r, READOUTS) for r in readouts)]:
        if name not in choices:
            raise unknown(kind, name, choices)
    if rows < 32:
        raise UserError(f"{rows} rows are too few to fit and test readouts: at least 32 are needed")
    if hooks is None:
        hooks = [f"blocks.{layer}.hook_resid_post" for layer in subject.layers(layers)]
    generator = generator or Generator().manual_seed(0)
    inside = list(sizes_up_to(task, train_max))
    seen = [observe(subject, task, scale, hooks, labels, rows, generator) for scale in [*inside, *beyond]]
    samples = Samples.of(seen)
    fits = sum(len(part.steps) for part in seen[: len(inside)])
    accuracy, control = {}, {}
    for key in itertools.product(hooks, readouts):
        features = samples.features(*key, fits, rows // 2)
        accuracy[key], control[key] = matrices(features, samples.label, fits, rows // 2, estimator, generator)
    return Transfer(samples.steps[:fits], samples.steps, accuracy, control, bar)


@dataclass(frozen=True)
class Samples:
    """Instances at answer queries, a step each: of one n, or of all, those of larger n last."""

    steps: pd.DataFrame  # scale, query
    activations: dict[str, Tensor]  # [step, row, feature]
    previous: Tensor  # [step, row], the token at the query: the previous output
    label: Tensor  # [step, row]

    @classmethod
    def of(cls, parts: Sequence["Samples"]) -> "Samples":
        """All together, tokens numbered by those that occur."""
        return cls(
            pd.concat([part.steps for part in parts], ignore_index=True),
            {name: torch.cat([part.activations[name] for part in parts]) for name in parts[0].activations},
            torch.cat([part.previous for part in parts]).unique(return_inverse=True)[1],
            torch.cat([part.label for part in parts]).unique(return_inverse=True)[1],
        )

    def features(self, hook: str, readout: str, fits: int, half: int) -> Tensor:
        """[step, row, feature], centred and scaled once for all steps, by what fits may see."""
        x = self.activations[hook]
        visible = x[:fits, :half].flatten(0, 1)
        x = (x - visible.mean(0)) / visible.std().clamp(min=1e-6)
        if readout == "linear":
            return x
        visible = x[:fits, :half].flatten(0, 1)
        main = torch.linalg.eigh(visible.T @ visible).eigenvectors[:, -DIRECTIONS:]
        previous = torch.nn.functional.one_hot(self.previous).to(x.dtype)
        products = (previous[..., None] * (x @ main)[..., None, :]).flatten(2)
        return torch.cat([x, previous, products], 2)


def observe(
    subject: Network, task: Task, scale: int, hooks: Sequence[str], labels: Labels, rows: int, generator: Generator
) -> Samples:
    """Random instances of one n."""
    tokens = task.sample(scale, rows, generator).tokens.to(subject.device)
    queries = answer_queries(task, scale)
    at = slice(queries.start, queries.stop)
    logits, activations = subject.logits_and_activations(tokens, scale, hooks)
    here = {name: seen[:, at].flatten(2).transpose(0, 1) for name, seen in activations.items()}
    true = tokens[:, queries.start + 1 : queries.stop + 1]
    label = true if labels == "true" else logits[:, at].argmax(-1)
    return Samples(pd.DataFrame({"scale": scale, "query": queries}), here, tokens[:, at].T, label.T)


def matrices(
    features: Tensor, label: Tensor, fits: int, half: int, estimator: str, generator: Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Accuracy and control, [fit, test] each: one batch of fits, the first half of the rows; tested on the rest."""
    true = label[:fits, :half]
    order = torch.rand(fits, half, generator=generator).argsort(1).to(true.device)
    both = torch.stack([true, true.gather(1, order)], 1)
    made = BatchedLogistic(max_iter=STEPS) if estimator == "logistic" else BatchedRidge()
    made.fit(features[:fits, :half], both, int(label.max()) + 1)
    pair = made.transfer(features[:, half:], label[:, half:]).view(fits, 2, -1).cpu().numpy()
    return pair[:, 0], pair[:, 1]


def cover_number(decodes: NDArray[np.bool_]) -> int:
    """The least number of rows that together are true in every column; a column without any counts as one more.

    >>> cover_number(np.array([[True, True, False], [False, True, True], [False, True, False]]))
    2
    """
    possible = decodes.any(0)
    alone = int((~possible).sum())
    if not possible.any():
        return alone
    needs = LinearConstraint(decodes[:, possible].T.astype(float), lb=1.0)
    solved = milp(np.ones(len(decodes)), constraints=needs, integrality=1, bounds=Bounds(0, 1))
    return alone + round(float(solved.fun))


class _Readout:
    """Many fits in one batch of tensors: `coef_` [fit, class, feature], `intercept_` [fit, class] and how they predict.

    The interface and the objectives are those of scikit-learn's `LogisticRegression` and `RidgeClassifier`, with one
    more dimension in front: X [fit, sample, feature], y [fit, sample]. A test fits both on the same data.
    """

    coef_: Tensor
    intercept_: Tensor
    penalty: float  # on the squares of weights

    def fit(self, X: Tensor, y: Tensor, classes: int | None = None) -> Self:
        """`classes` is one more than the largest label if it is not given. `y` may be [fit, task, sample]: several
        labellings of the same samples, whose fits share all that can be shared (then fits are counted fit by fit).
        """
        classes = int(y.max()) + 1 if classes is None else classes
        labels = (y if y.dim() == 3 else y[:, None]).transpose(1, 2)  # [fit, sample, task]
        wanted = torch.nn.functional.one_hot(labels, classes).float().flatten(2)  # [fit, sample, task·class]
        absent = (wanted.sum(1) == 0).float() * ABSENT  # [fit, task·class]
        with_one = torch.cat([X, X.new_ones(*X.shape[:2], 1)], 2)  # a last feature for the intercept
        penalty = with_one.new_full((len(X), with_one.shape[2]), self.penalty)  # [fit, feature + 1]
        penalty[:, -1] = 1e-4 * self.penalty  # next to nothing for the intercept
        weights = self._solve(with_one, wanted, absent, classes, penalty)  # [fit, feature + 1, task·class]
        per_fit = weights.mT.unflatten(1, (-1, classes)).flatten(0, 1)  # [fit·task, class, feature + 1]
        self.coef_ = per_fit[..., :-1].contiguous()
        self.intercept_ = per_fit[..., -1] + absent.unflatten(1, (-1, classes)).flatten(0, 1)
        return self

    def _solve(self, X: Tensor, wanted: Tensor, absent: Tensor, classes: int, penalty: Tensor) -> Tensor:
        raise NotImplementedError

    def predict(self, X: Tensor) -> Tensor:
        """The class of each sample of X [fit, sample, feature], [fit, sample]."""
        return (X @ self.coef_.mT + self.intercept_[:, None]).argmax(-1)

    def transfer(self, X: Tensor, y: Tensor) -> Tensor:
        """Every fit on every test set, X [test, sample, feature] and y [test, sample]: shares right, [fit, test]."""
        fits, classes, features = self.coef_.shape
        # Classes lead, so that the largest score is found for many fits and samples at a time.
        weights = self.coef_.transpose(0, 1).reshape(classes * fits, features)
        offsets = self.intercept_.T.reshape(-1, 1)
        right = []
        for samples, labels in zip(X, y):
            scores = torch.addmm(offsets, weights, samples.T).view(classes, fits, len(labels))
            of_label = scores.gather(0, labels.expand(1, fits, -1))[0]
            right.append((of_label >= scores.amax(0)).sum(1))
        return torch.stack(right, 1).cpu().double() / y.shape[1]


class BatchedLogistic(_Readout):
    """Multinomial logistic regression, one for each leading index.

    Minimises, as scikit-learn does, Σ cross-entropy + ‖W‖² / 2C, the intercept free. Quasi-Newton steps with one fixed
    matrix for each fit: the curvature of the cross-entropy is at most ½ XᵀX whatever the weights (Böhning 1992), so
    one inverse serves all steps and classes; Nesterov's momentum, which starts again where it does not help.

    >>> X = torch.tensor([[[-2.0], [-1.0], [1.0], [2.0]]])
    >>> BatchedLogistic().fit(X, torch.tensor([[0, 0, 1, 1]])).predict(X)
    tensor([[0, 0, 1, 1]])
    """

    def __init__(self, C: float = 1.0, max_iter: int = 100, tol: float = 1e-3) -> None:
        self.penalty, self.max_iter, self.tol = 1 / C, max_iter, tol

    def _solve(self, X: Tensor, wanted: Tensor, absent: Tensor, classes: int, penalty: Tensor) -> Tensor:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(X.mT @ X / 2 + torch.diag_embed(penalty)))
        weights = X.new_zeros(len(X), X.shape[2], wanted.shape[2])
        ahead, momentum = weights, X.new_ones(len(X), 1, 1)
        for _ in range(self.max_iter):
            scores = (X @ ahead + absent[:, None]).unflatten(2, (-1, classes))
            surplus = scores.softmax(-1).flatten(2) - wanted  # [fit, sample, task·class]
            gradient = X.mT @ surplus + penalty[..., None] * ahead
            new = torch.baddbmm(ahead, inverse, gradient, alpha=-1)
            step = new - weights
            wrong_way = (gradient * step).sum((1, 2), keepdim=True) > 0  # the momentum has overshot
            grown = (1 + (1 + 4 * momentum**2).sqrt()) / 2
            ahead = torch.where(wrong_way, new, new + (momentum - 1) / grown * step)
            momentum = torch.where(wrong_way, torch.ones_like(grown), grown)
            weights = new
            if float(gradient.abs().amax()) < self.tol * X.shape[1]:
                break
        return weights


class BatchedRidge(_Readout):
    """Ridge regression onto ±1 for each class, the largest wins; one closed-form solve for all fits."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.penalty = alpha

    def _solve(self, X: Tensor, wanted: Tensor, absent: Tensor, classes: int, penalty: Tensor) -> Tensor:
        system = X.mT @ X + torch.diag_embed(penalty)
        weights: Tensor = torch.linalg.solve(system, X.mT @ (2 * wanted - 1))
        return weights


class TransferProbe(Probe):
    """Accuracy of readouts from each layer's output, fitted at fit_scale and tested at scale, with its control.

    cover: the least number of those readouts, for each n.
    """

    name, measures, index = "transfer", ("transfer", "cover", "iota_cover"), "iota_cover"
    label, short, curves = "ι of cover number", "ι of cover", {"cover": "iota_cover"}
    words = OURS["transfer"].words
    thresholds = (BAR,)

    def rows(self, context: "Context") -> list[Row]:
        result = readout_transfer(
            context.subject, *context.range, beyond=context.beyond, layers=context.layers, generator=context.generator,
            bar=self.defaults["bar"],
        )  # fmt: skip
        layer = {hook: int(hook.split(".")[1]) for hook, _ in result.accuracy}  # 1 in blocks.1.hook_resid_post
        rows = records(result.by_scale())
        for row in rows:
            row.update(measure="transfer", value=row.pop("accuracy"), layer=layer[row.pop("hook")])
        for hook, readout in result.accuracy:
            about = {"layer": layer[hook], "readout": readout}
            rows += by_scale("cover", result.cover(hook, readout), {**about, "bar": result.bar})
            for bar in BAR.tried:
                rows.append(index_row("iota_cover", result.cover(hook, readout, bar), {**about, "bar": bar}))
        return rows
