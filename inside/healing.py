"""What does a run that fails on long inputs lack? The same run under surgery, at several lengths.

Each kind of surgery answers one question about a run that is accurate in range and fails beyond it:

- *ideal*: every pair has the code of its counterpart in range. Healed: the codes of long inputs were at fault.
- *ideal, others as one*: the same, and attention does not spread over more keys. Healed only now: so did that.
- *borrowed in range*: the ideal relation at the largest scale of training, with codes of a smaller one. Harmed: the
  network does not do the circuit's steps by its codes alone. It carries positions on in its residual stream, where
  surgery on codes does not reach, or goes by content; then the ideal relation cannot heal it either.
- *displaced*: a control that must not heal. The ideal relation, with the key beside each source taken for it.
- *none*: no position embedding at all.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lengthlens.errors import UserError
from lengthlens.inside.surgery import surgery, trained_to
from lengthlens.probes.subject import exact_by_scale, task_of
from lengthlens.tasks import Task

SURGERIES: dict[str, dict[str, Any]] = {
    "own": {},
    "ideal": {"codes": "ideal"},
    "ideal, others as one": {"codes": "ideal", "other": "one"},
    "displaced": {"codes": "displaced"},
    "none": {"codes": "none"},
}
IN_RANGE = "borrowed in range"
SHARE = 0.7  # of the largest scale of training: whose codes are borrowed for the control in range
ROWS = 128  # instances: a share of 0.9 is known to about 0.03
HEALED = 0.9  # exact match from which a run counts as right


def healing(
    model: Any,
    task: Task | None = None,
    scales: Sequence[int] = (20, 40),
    *,
    train_max: int | None = None,
    rows: int = ROWS,
) -> pd.DataFrame:
    """Exact match of a model at longer scales, as it is and under each kind of surgery.

    Arguments:
        model: a model of this project.
        task: the task; the model's own if None.
        scales: the scales n beyond training.
        train_max: the largest scale of training, whose codes are borrowed; by the model's config if None.
        rows: instances of each scale.

    Result: a row for each surgery and scale: surgery, scale, exact_match; the control in range is at `train_max`.

    Errors: UserError for a task or scheme that has no ideal relation, in one sentence.

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> table = healing(copy_by_hand("lbpe"), scales=[12], train_max=6, rows=16)
    >>> dict(zip(table["surgery"], table["exact_match"]))["ideal"]
    1.0
    """
    task = task_of(model, task)
    most = train_max or trained_to(model)
    asked = {name: {**how, "codes_of": most} if how else {} for name, how in SURGERIES.items()}
    found = [
        {"surgery": name, "scale": scale, "exact_match": match}
        for name, how in asked.items()
        for scale, match in _exact(model, task, scales, rows, how).items()
    ]
    less = max(task.min_scale, int(SHARE * most))
    if less == most:
        raise UserError(f"train_max must be above {less}, so that codes of a smaller scale can be borrowed in range")
    in_range = _exact(model, task, [most], rows, {"codes": "ideal", "codes_of": less})
    found.append({"surgery": IN_RANGE, "scale": most, "exact_match": in_range[most]})
    return pd.DataFrame(found)


def _exact(model: Any, task: Task, scales: Sequence[int], rows: int, how: dict[str, Any]) -> dict[int, float]:
    with surgery(model, **how):
        return exact_by_scale(model, task, scales, rows)
