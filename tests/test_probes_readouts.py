"""Batched readouts beside scikit-learn's own on the same data."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from lengthlens.errors import UserError
from lengthlens.probes.transfer import BatchedLogistic, BatchedRidge


@pytest.fixture(scope="module")
def data():
    """Six problems with four classes, noisy enough that no fit is perfect."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 4, 8))
    y = rng.integers(0, 4, (6, 120))
    X = np.take_along_axis(centres, y[..., None], 1) + rng.normal(size=(6, 120, 8))
    return X.astype(np.float32), y


def test_logistic_is_scikit_learns(data):
    X, y = data
    ours = BatchedLogistic(C=0.7, max_iter=2000, tol=1e-6).fit(torch.from_numpy(X), torch.from_numpy(y))
    for k in range(len(X)):
        theirs = LogisticRegression(C=0.7, tol=1e-8, max_iter=5000).fit(X[k], y[k])
        assert np.abs(ours.coef_[k].numpy() - theirs.coef_).max() < 5e-3
        shift = ours.intercept_[k].numpy() - theirs.intercept_
        assert np.ptp(shift) < 1e-2  # a common constant changes nothing
        assert (ours.predict(torch.from_numpy(X))[k].numpy() == theirs.predict(X[k])).mean() > 0.99


def test_ridge_is_scikit_learns(data):
    X, y = data
    ours = BatchedRidge(alpha=2.0).fit(torch.from_numpy(X), torch.from_numpy(y))
    for k in range(len(X)):
        theirs = RidgeClassifier(alpha=2.0).fit(X[k], y[k])
        assert np.abs(ours.coef_[k].numpy() - theirs.coef_).max() < 1e-3
        assert (ours.predict(torch.from_numpy(X))[k].numpy() == theirs.predict(X[k])).all()


@pytest.mark.parametrize("make", [BatchedLogistic, BatchedRidge])
def test_labellings_of_the_same_samples_are_fitted_as_if_alone(data, make):
    X, y = torch.from_numpy(data[0]), torch.from_numpy(data[1])
    both = torch.stack([y, y.flip(1)], 1)
    together = make().fit(X, both, 4)
    alone = [make().fit(X, labels, 4) for labels in both.unbind(1)]
    for task in range(2):
        assert torch.allclose(together.coef_[task::2], alone[task].coef_, atol=2e-2)


@pytest.mark.parametrize("make", [BatchedLogistic, BatchedRidge])
def test_transfer_is_every_fit_on_every_test_set(data, make):
    X, y = torch.from_numpy(data[0]), torch.from_numpy(data[1])
    fitted = make().fit(X, y)
    matrix = fitted.transfer(X, y)
    for test in range(6):
        expected = fitted.score(X[test].expand(6, -1, -1), y[test].expand(6, -1))
        assert torch.allclose(matrix[:, test], expected)


@pytest.mark.parametrize("make", [BatchedLogistic, BatchedRidge])
def test_a_class_that_a_fit_has_not_seen_is_never_predicted(data, make):
    X = torch.from_numpy(data[0])
    y = torch.full(X.shape[:2], 2)
    y[1] = torch.from_numpy(data[1])[1]
    predicted = make().fit(X, y, 4).predict(X)
    assert (predicted[0] == 2).all() and len(predicted[1].unique()) == 4


def test_too_few_samples_and_wrong_shapes_are_refused():
    with pytest.raises(UserError, match="1 samples are too few"):
        BatchedLogistic().fit(torch.zeros(2, 1, 3), torch.zeros(2, 1, dtype=torch.long))
    with pytest.raises(UserError, match="X must be"):
        BatchedRidge().fit(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
