"""Readouts, many at once: multinomial logistic regression and ridge classification, all fits in one batch of tensors.

The interface and the objectives are scikit-learn's (`LogisticRegression`, `RidgeClassifier`) with one more dimension in
front: X [fit, sample, feature], y [fit, sample]. A test fits both on the same data.
"""

import torch
from torch import Tensor

from lengthlens.errors import UserError

ABSENT = -1e9  # score of a class that a fit has not seen: it is never predicted


class _Readout:
    """What both kinds share: `coef_` [fit, class, feature], `intercept_` [fit, class] and how they predict."""

    coef_: Tensor
    intercept_: Tensor

    def decision_function(self, X: Tensor) -> Tensor:
        """Scores of X [fit, sample, feature], [fit, sample, class]."""
        return X @ self.coef_.mT + self.intercept_[:, None]

    def predict(self, X: Tensor) -> Tensor:
        """The class of each sample, [fit, sample]."""
        return self.decision_function(X).argmax(-1)

    def score(self, X: Tensor, y: Tensor) -> Tensor:
        """The share of samples [fit, sample, feature] that each fit gets right, [fit]."""
        return (self.predict(X) == y).double().mean(-1)

    def transfer(self, X: Tensor, y: Tensor) -> Tensor:
        """Every fit on every test set, X [test, sample, feature] and y [test, sample]: shares right, [fit, test]."""
        fits, classes, features = self.coef_.shape
        # Classes lead, so that the largest score is found for many fits and samples at a time.
        weights = self.coef_.transpose(0, 1).reshape(classes * fits, features)
        offsets = self.intercept_.T.reshape(-1, 1)
        found = []
        for samples, labels in zip(X, y):
            scores = torch.addmm(offsets, weights, samples.T).view(classes, fits, len(labels))
            own = scores.gather(0, labels.expand(1, fits, -1))[0]
            found.append((own >= scores.amax(0)).sum(1))
        return torch.stack(found, 1).double() / y.shape[1]


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
        self.C = C
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Tensor, y: Tensor, classes: int | None = None) -> "BatchedLogistic":
        """`classes` is one more than the largest label if it is not given. `y` may be [fit, task, sample]: several
        labellings of the same samples, whose fits share all that can be shared (then fits are counted fit by fit).
        """
        several = y.dim() == 3
        labels = y if several else y[:, None]
        check_samples(X, y)
        classes = int(y.max()) + 1 if classes is None else classes
        wanted = one_hot(labels, classes)  # [fit, sample, task·class]
        absent = (wanted.sum(1) == 0).float() * ABSENT  # [fit, task·class]
        weights = self._descend(augmented(X), wanted, absent, classes)  # [fit, feature + 1, task·class]
        per_fit = weights.mT.unflatten(1, (-1, classes)).flatten(0, 1)  # [fit·task, class, feature + 1]
        self.coef_ = per_fit[..., :-1].contiguous()
        self.intercept_ = per_fit[..., -1] + absent.unflatten(1, (-1, classes)).flatten(0, 1)
        return self

    def _descend(self, X: Tensor, wanted: Tensor, absent: Tensor, classes: int) -> Tensor:
        penalty = penalties(X, 1 / self.C)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(X.mT @ X / 2 + torch.diag_embed(penalty)))
        weights = X.new_zeros(len(X), X.shape[2], wanted.shape[2])
        ahead, momentum = weights, X.new_ones(len(X), 1, 1)
        for iteration in range(1, self.max_iter + 1):
            self.n_iter_ = iteration
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
    """Ridge regression onto ±1 for each class, the largest wins; one closed-form solve for all fits.

    >>> X = torch.tensor([[[-2.0], [-1.0], [1.0], [2.0]]])
    >>> BatchedRidge().fit(X, torch.tensor([[0, 0, 1, 1]])).predict(X)
    tensor([[0, 0, 1, 1]])
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def fit(self, X: Tensor, y: Tensor, classes: int | None = None) -> "BatchedRidge":
        """As `BatchedLogistic.fit`."""
        check_samples(X, y)
        labels = y if y.dim() == 3 else y[:, None]
        classes = int(y.max()) + 1 if classes is None else classes
        wanted = one_hot(labels, classes)
        absent = (wanted.sum(1) == 0).float() * ABSENT
        X = augmented(X)
        system = X.mT @ X + torch.diag_embed(penalties(X, self.alpha))
        weights = torch.linalg.solve(system, X.mT @ (2 * wanted - 1))
        per_fit = weights.mT.unflatten(1, (-1, classes)).flatten(0, 1)
        self.coef_ = per_fit[..., :-1].contiguous()
        self.intercept_ = per_fit[..., -1] + absent.unflatten(1, (-1, classes)).flatten(0, 1)
        return self


def check_samples(X: Tensor, y: Tensor) -> None:
    if X.dim() != 3 or y.shape[0] != X.shape[0] or y.shape[-1] != X.shape[1]:
        raise UserError(
            f"X must be [fit, sample, feature] and y [fit, sample], not {list(X.shape)} and {list(y.shape)}"
        )
    if X.shape[1] < 2:
        raise UserError(f"{X.shape[1]} samples are too few for a fit: at least 2 are needed")


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """[fit, task, sample] to [fit, sample, task·class]."""
    return torch.nn.functional.one_hot(labels.transpose(1, 2), classes).float().flatten(2)


def augmented(X: Tensor) -> Tensor:
    """With a last feature that is always 1, for the intercept."""
    return torch.cat([X, X.new_ones(*X.shape[:2], 1)], 2)


def penalties(X: Tensor, size: float) -> Tensor:
    """The penalty on each feature's weights, [fit, feature]: next to nothing for the intercept."""
    penalty = X.new_full((len(X), X.shape[2]), size)
    penalty[:, -1] = 1e-4 * size
    return penalty
