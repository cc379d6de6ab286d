"""Readout transfer, its cover number, and batched readouts beside scikit-learn's on the same data."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import build
from lengthlens.probes.transfer import BatchedLogistic, BatchedRidge, readout_transfer

HOOK = "blocks.0.hook_resid_post"


def test_a_perfect_copier_needs_one_readout_for_symbols_and_one_for_the_end():
    found = readout_transfer(copy_by_hand(), train_max=4, beyond=[8])
    for readout in ("linear", "sequential"):
        assert set(found.cover(HOOK, readout).values()) == {2}
        symbols = np.array([q < 2 * n + 1 for n, q in found.fit_steps.itertuples(index=False)])
        far = (found.test_steps["scale"] == 8).to_numpy(copy=True)
        far[np.flatnonzero(far)[-1]] = False
        assert found.accuracy[HOOK, readout][np.ix_(symbols, far)].min() > 0.95  # beyond the range, too
        assert found.control[HOOK, readout][np.ix_(symbols, far)].mean() < 0.3


def test_table_by_scale_has_a_control_beside_every_accuracy():
    found = readout_transfer(copy_by_hand(), train_max=3, estimator="ridge", readouts=["linear"], labels="true")
    table = found.by_scale()
    assert set(table.columns) == {"hook", "readout", "fit_scale", "scale", "accuracy", "control"}
    assert len(table) == 9
    row = table[(table["fit_scale"] == 2) & (table["scale"] == 3)].iloc[0]
    rows = (found.fit_steps["scale"] == 2).to_numpy()
    columns = (found.test_steps["scale"] == 3).to_numpy()
    assert row["accuracy"] == pytest.approx(found.accuracy[HOOK, "linear"][np.ix_(rows, columns)].mean())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"hooks": ["blocks.0.hook_resid_pots"]}, r"did you mean 'blocks\.0\.hook_resid_post'"),
        ({"beyond": [20]}, "16 positions and cannot process a sequence of 43"),
        ({"rows": 8}, "8 rows are too few"),
        ({"readouts": ["liner"]}, "did you mean 'linear'"),
    ],
)
def test_refusals_in_a_sentence(asked, says):
    with pytest.raises(UserError, match=says):
        readout_transfer(build(ModelConfig(task="copy", scheme="learned", n_ctx=16)), train_max=3, **asked)


def test_the_same_generator_gives_the_same_matrix():
    first, second = (
        readout_transfer(copy_by_hand(), train_max=3, generator=torch.Generator().manual_seed(5)) for _ in range(2)
    )
    assert all(np.array_equal(first.accuracy[k], second.accuracy[k]) for k in first.accuracy)


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
        right = fitted.predict(X[test].expand(6, -1, -1)) == y[test]
        assert torch.allclose(matrix[:, test], right.double().mean(-1))


@pytest.mark.parametrize("make", [BatchedLogistic, BatchedRidge])
def test_a_class_that_a_fit_has_not_seen_is_never_predicted(data, make):
    X = torch.from_numpy(data[0])
    y = torch.full(X.shape[:2], 2)
    y[1] = torch.from_numpy(data[1])[1]
    predicted = make().fit(X, y, 4).predict(X)
    assert (predicted[0] == 2).all() and len(predicted[1].unique()) == 4
