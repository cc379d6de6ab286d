"""Transfer matrices in one batch against a loop of scikit-learn estimators over the same fits, in one run.

`python benchmarks/probes.py [--estimator logistic|ridge]`: all steps of n ≤ 10 of a task, two layers, both readouts,
each fit with its random-label control, tested at every step. Same samples, features and labels, one thread.
"""

import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from common import options, show, timed
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import build
from lengthlens.probes.network import Network
from lengthlens.probes.transfer import N_INSTANCES, READOUTS, Samples, matrices, observe

HOOKS = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
HALF = N_INSTANCES // 2
Way = Callable[[torch.Tensor, torch.Tensor, str], tuple[np.ndarray, np.ndarray]]  # accuracy, control: [fit, test]


def batched(features: torch.Tensor, label: torch.Tensor, estimator: str) -> tuple[np.ndarray, np.ndarray]:
    return matrices(features, label, len(label), HALF, estimator, torch.Generator().manual_seed(0))


def looped(features: torch.Tensor, label: torch.Tensor, estimator: str) -> tuple[np.ndarray, np.ndarray]:
    """The same fits and tests with scikit-learn, one after the other."""
    order = torch.rand(len(label), HALF, generator=torch.Generator().manual_seed(0)).argsort(1)
    X, y = features.numpy(), label.numpy()
    found = np.zeros((2, len(y), len(y)))
    for fit in range(len(y)):
        for control in (0, 1):
            labels = y[fit, :HALF][order[fit].numpy()] if control else y[fit, :HALF]
            made = estimator_for(estimator, labels).fit(X[fit, :HALF], labels)
            for test in range(len(y)):
                found[control, fit, test] = (made.predict(X[test, HALF:]) == y[test, HALF:]).mean()
    return found[0], found[1]


def estimator_for(name: str, labels: np.ndarray) -> object:
    """scikit-learn's own, with its defaults; it has none for a single class."""
    if len(np.unique(labels)) < 2:
        return DummyClassifier(strategy="most_frequent")
    return LogisticRegression() if name == "logistic" else RidgeClassifier()


def main() -> None:
    given = options(__doc__, estimator=("logistic", "ridge"), task="copy")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = build(ModelConfig(task=given.task, scheme="ideal"))
    generator, subject = torch.Generator().manual_seed(0), Network(model)
    samples = Samples.of([observe(subject, model.task, n, HOOKS, "true", N_INSTANCES, generator) for n in range(1, 11)])
    cells = [samples.features(hook, readout, len(samples.steps), HALF) for hook in HOOKS for readout in READOUTS]
    print(f"{len(samples.steps)} steps, {len(HOOKS)} layers, {len(READOUTS)} readouts, one thread")
    base = None
    for name, way in (("batched", batched), ("scikit-learn loop", looped)):
        way(cells[0][:2], samples.label[:2], given.estimator)  # warm up

        def work(way: Way = way) -> np.ndarray:
            return np.array([way(features, samples.label, given.estimator) for features in cells])

        seconds, found = timed(work, time.process_time)  # found: [cell, accuracy or control, fit, test]
        base = base or seconds
        accuracy, control = found[:, 0], found[:, 1]
        own = accuracy.diagonal(axis1=1, axis2=2).mean()
        note = f"accuracy at the own step {own:.4f}, everywhere {accuracy.mean():.4f}, control {control.mean():.4f}"
        show(name, seconds, base, note)


if __name__ == "__main__":
    main()
