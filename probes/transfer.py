"""Readout transfer: a readout fitted at one step of one scale, tested at every other, in the training range and beyond.

We define: at each answer query of each scale, a readout is fitted from a hooked activation at the query's position to
the model's next token (or the true one). Two kinds: *linear*, from the activation alone, and *sequential*, from the
activation, the previous output token, and products of that token with the activation's main directions (so that what
the step computes from both can be read before the model has computed it). Entry (s, t) of the transfer matrix is the
accuracy at step t of the readout fitted at step s, on instances that no fit has seen.

- Beside every accuracy stands a *control*: the same fit to shuffled labels. The difference is the selectivity.
- The *cover number* up to n is the least number of readouts such that every step at scales ≤ n is decoded by one of
  them with an accuracy of at least `bar` (set cover, solved exactly); a step that none decodes, not even its own,
  counts by itself. It looks at no position embedding. Behind the last layer it says little: there the model's own
  unembedding is one linear readout for all steps, whatever came before.

Worked example: if the readout from step 1 decodes all steps but the last, which always writes ``$``, and the last
step's own readout decodes only that, the cover number is 2 at every n.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.probes.readouts import BatchedLogistic, BatchedRidge
from lengthlens.probes.subject import Subject, answer_queries, scales_up_to, subject_of, task_of
from lengthlens.tasks import Task

Labels = Literal["model", "true"]
READOUTS = ("linear", "sequential")
ESTIMATORS = ("logistic", "ridge")

ROWS = 256  # instances of each scale: half to fit on, half to test on
DIRECTIONS = 8  # of the activation, that a sequential readout multiplies with the previous token
STEPS = 20  # of the logistic fit: accuracy then agrees with that of a converged one to about 1e-4
BAR = 0.9


@dataclass(frozen=True)
class Transfer:
    """Transfer matrices, one for each (hook point, readout)."""

    fit_steps: pd.DataFrame  # scale, query: one row for each row of a matrix
    test_steps: pd.DataFrame  # scale, query: one row for each column
    accuracy: dict[tuple[str, str], NDArray[np.float64]]  # [fit, test]
    control: dict[tuple[str, str], NDArray[np.float64]]  # [fit, test], of fits to shuffled labels
    bar: float = BAR

    def by_scale(self) -> pd.DataFrame:
        """Means over the steps of each pair of scales: hook, readout, fit_scale, scale, accuracy, control."""
        parts = []
        for hook, readout in self.accuracy:
            means = [self._means(matrix[hook, readout]) for matrix in (self.accuracy, self.control)]
            parts.append(means[0].assign(control=means[1]["accuracy"], hook=hook, readout=readout))
        return pd.concat(parts, ignore_index=True)

    def _means(self, matrix: NDArray[np.float64]) -> pd.DataFrame:
        frame = pd.DataFrame(matrix, index=self.fit_steps["scale"], columns=self.test_steps["scale"])
        means = frame.groupby(level=0).mean().T.groupby(level=0).mean().T
        means = means.rename_axis(index="fit_scale", columns="scale")
        return means.reset_index().melt("fit_scale", value_name="accuracy")

    def cover(self, hook: str, readout: str, bar: float | None = None) -> dict[int, int]:
        """The cover number at each scale of the fits."""
        matrix, bar = self.accuracy[hook, readout], self.bar if bar is None else bar
        found = {}
        for scale in sorted(self.fit_steps["scale"].unique()):
            rows = (self.fit_steps["scale"] <= scale).to_numpy()
            columns = (self.test_steps["scale"] <= scale).to_numpy()
            found[int(scale)] = cover_number(matrix[np.ix_(rows, columns)] >= bar)
        return found


def readout_transfer(
    model: Callable[..., Any] | Subject,
    task: Task | None = None,
    train_max: int = 10,
    *,
    beyond: Sequence[int] = (),
    hooks: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    readouts: Sequence[str] = READOUTS,
    estimator: str = "logistic",
    labels: Labels = "model",
    rows: int = ROWS,
    bar: float = BAR,
    generator: torch.Generator | None = None,
) -> Transfer:
    """Fit at every step of every scale up to `train_max`, test there and at the scales `beyond`.

    `hooks` are names such as ``blocks.0.hook_resid_post``, which are also what `layers` (all, if not given) stand for.
    """
    task, subject = task_of(model, task), subject_of(model)
    _check(readouts, estimator, rows)
    if hooks is None:
        hooks = [f"blocks.{layer}.hook_resid_post" for layer in subject.layers(layers)]
    generator = generator or torch.Generator().manual_seed(0)
    inside = list(scales_up_to(task, train_max))
    seen = [look(subject, task, scale, hooks, labels, rows, generator) for scale in [*inside, *beyond]]
    samples = Samples.of(seen)
    fits = len(samples.steps) - sum(len(part.label) for part in seen[len(inside) :])
    accuracy, control = {}, {}
    for hook in hooks:
        for readout in readouts:
            features = samples.features(hook, readout, fits, rows // 2)
            both = matrices(features, samples.label, fits, rows // 2, estimator, generator)
            accuracy[hook, readout], control[hook, readout] = both
    return Transfer(samples.steps[:fits], samples.steps, accuracy, control, bar)


def _check(readouts: Sequence[str], estimator: str, rows: int) -> None:
    for readout in readouts:
        if readout not in READOUTS:
            raise unknown("readout", readout, READOUTS)
    if estimator not in ESTIMATORS:
        raise unknown("estimator", estimator, ESTIMATORS)
    if rows < 32:
        raise UserError(f"{rows} rows are too few to fit and test readouts: at least 32 are needed")


# -- samples -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """Instances of one scale, at each of its answer queries."""

    scale: int
    query: list[int]
    activations: dict[str, Tensor]  # [step, row, feature]
    previous: Tensor  # [step, row], the token at the query: the previous output
    label: Tensor  # [step, row]


def look(
    subject: Subject,
    task: Task,
    scale: int,
    hooks: Sequence[str],
    labels: Labels,
    rows: int,
    generator: torch.Generator,
) -> Look:
    tokens = task.sample(scale, rows, generator).tokens.to(subject.device)
    queries = answer_queries(task, scale)
    at = slice(queries.start, queries.stop)
    seen = subject.activations(tokens, scale, hooks)
    if labels == "true":
        label = tokens[:, queries.start + 1 : queries.stop + 1]
    else:
        label = subject.logits(tokens, scale, at).argmax(-1)
    here = {name: value[:, at].flatten(2).transpose(0, 1) for name, value in seen.items()}
    return Look(scale, list(queries), here, tokens[:, at].T, label.T)


@dataclass(frozen=True)
class Samples:
    """The samples of all steps, those of larger scales last."""

    steps: pd.DataFrame  # scale, query
    activations: dict[str, Tensor]  # [step, row, feature]
    previous: Tensor  # [step, row], numbered
    label: Tensor  # [step, row], numbered

    @classmethod
    def of(cls, seen: Sequence[Look]) -> "Samples":
        steps = [(part.scale, query) for part in seen for query in part.query]
        names = seen[0].activations
        return cls(
            pd.DataFrame(steps, columns=["scale", "query"]),
            {name: torch.cat([part.activations[name] for part in seen]) for name in names},
            torch.cat([part.previous for part in seen]).unique(return_inverse=True)[1],
            torch.cat([part.label for part in seen]).unique(return_inverse=True)[1],
        )

    def features(self, hook: str, readout: str, fits: int, half: int) -> Tensor:
        """[step, row, feature], centred and scaled once for all steps, by what fits may see."""
        own = self.activations[hook]
        visible = own[:fits, :half].flatten(0, 1)
        own = (own - visible.mean(0)) / visible.std().clamp(min=1e-6)
        if readout == "linear":
            return own
        visible = own[:fits, :half].flatten(0, 1)
        main = torch.linalg.eigh(visible.T @ visible).eigenvectors[:, -DIRECTIONS:]
        previous = torch.nn.functional.one_hot(self.previous).to(own.dtype)
        products = (previous[..., None] * (own @ main)[..., None, :]).flatten(2)
        return torch.cat([own, previous, products], 2)


# -- matrices ------------------------------------------------------------------------------------------------


def matrices(
    features: Tensor, label: Tensor, fits: int, half: int, estimator: str, generator: torch.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Accuracy and control, [fit, test] each: one batch of fits, the first half of the rows; tested on the rest."""
    fitted, true = features[:fits, :half], label[:fits, :half]
    order = torch.rand(fits, half, generator=generator).argsort(1).to(true.device)
    both = torch.stack([true, true.gather(1, order)], 1)
    classes = int(label.max()) + 1
    made = BatchedLogistic(max_iter=STEPS) if estimator == "logistic" else BatchedRidge()
    found = made.fit(fitted, both, classes).transfer(features[:, half:], label[:, half:])
    pair = found.view(fits, 2, -1).cpu().numpy()
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
    # Equal rows and equal columns are needed once.
    small = np.unique(np.unique(decodes[:, possible], axis=0), axis=1)
    needs = LinearConstraint(small.T.astype(float), lb=1.0)
    solved = milp(np.ones(len(small)), constraints=needs, integrality=1, bounds=Bounds(0, 1))
    return alone + round(float(solved.fun))
