"""Transfer matrices in one batch against a loop of scikit-learn estimators over the same fits, in one run.

`python benchmarks/probes.py [--estimator logistic|ridge]`: all steps of n ≤ 10 of a task, two layers, both readouts,
each fit with its random-label control, tested at every step. Same samples, features and labels, one thread.
"""

import argparse
import time
import warnings

import numpy as np
import torch
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import build
from lengthlens.probes.subject import Subject
from lengthlens.probes.transfer import READOUTS, ROWS, Samples, matrices, observe

HOOKS = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
HALF = ROWS // 2


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--estimator", choices=["logistic", "ridge"], default="logistic")
    parser.add_argument("--task", default="copy")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = build(ModelConfig(task=options.task, scheme="ideal"))
    generator = torch.Generator().manual_seed(0)
    subject = Subject(model)
    samples = Samples.of([observe(subject, model.task, n, HOOKS, "true", ROWS, generator) for n in range(1, 11)])
    cells = [samples.features(hook, readout, len(samples.steps), HALF) for hook in HOOKS for readout in READOUTS]
    seconds = {}
    results = {}
    for name, way in (("batched", batched), ("scikit-learn loop", looped)):
        way(cells[0][:2], samples.label[:2], options.estimator)  # warm up
        start = time.process_time()
        results[name] = [way(features, samples.label, options.estimator) for features in cells]
        seconds[name] = time.process_time() - start
    report(results, seconds, len(samples.steps))


def report(results: dict[str, list[tuple[np.ndarray, np.ndarray]]], seconds: dict[str, float], steps: int) -> None:
    for name, found in results.items():
        own = np.mean([accuracy.diagonal().mean() for accuracy, _ in found])
        everywhere = np.mean([accuracy.mean() for accuracy, _ in found])
        control = np.mean([control.mean() for _, control in found])
        print(
            f"{name:<18} {seconds[name]:8.2f} s   accuracy at the own step {own:.4f}, everywhere {everywhere:.4f}, "
            f"control {control:.4f}"
        )
    ratio = seconds["scikit-learn loop"] / seconds["batched"]
    print(f"{steps} steps, {len(HOOKS)} layers, {len(READOUTS)} readouts: {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
