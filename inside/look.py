"""Everything that one looks at inside a network, gathered once: what `lengthlens inspect` shows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lengthlens.errors import UserError
from lengthlens.inside.ablation import ablate
from lengthlens.inside.heads import Glance, HeadRelation, glance, head_relations, measure_table, role_table
from lengthlens.inside.instances import checked_scales, drawn, known_task
from lengthlens.inside.plane import head_plane, plane_over_training
from lengthlens.inside.residual import residual_shares
from lengthlens.inside.scores import score_shares
from lengthlens.inside.sequence import SequenceView, look_at
from lengthlens.inside.subject import label
from lengthlens.probes.subject import AnyModel, reachable
from lengthlens.runs.run import Run
from lengthlens.tasks import Task

TRAIN_MAX = 10  # that of runs by default
FACTORS = (0.5, 1, 2, 5)  # of the largest training scale: within it and beyond
SAMPLES = 64  # instances for exact match with and without a head: differences of 0.1 are then more than chance


@dataclass(frozen=True)
class Inspection:
    """What was seen: tables with one row for each head and scale (or hook point and scale), and one sequence."""

    train_max: int
    scales: list[int]
    glances: list[Glance]  # one for each scale
    relations: list[HeadRelation]  # one for each head
    measures: pd.DataFrame  # layer, head, scale, measure, value
    roles: pd.DataFrame  # layer, head, scale, role, weight
    plane: pd.DataFrame  # layer, head, scale, positional, symbolic, weight, kind
    scores: pd.DataFrame  # layer, head, scale, part, share
    residual: pd.DataFrame  # hook, scale, mean, position, content, remainder, …
    ablation: pd.DataFrame  # layer, head, scale, whole, without: exact match; empty without a task
    sequence: SequenceView
    training: pd.DataFrame  # as plane, with a column step in front; empty where no checkpoints were kept

    def summary(self) -> list[dict[str, Any]]:
        """A row for each head, in plain values: the relation in words, and the measures at the largest scales."""
        inside, last = max([n for n in self.scales if n <= self.train_max], default=self.scales[0]), self.scales[-1]
        measures = self.measures.set_index(["layer", "head", "measure", "scale"])["value"]
        plane = self.plane.set_index(["layer", "head", "scale"])
        without = self.ablation.set_index(["layer", "head", "scale"])["without"] if len(self.ablation) else None
        rows = []
        for each in self.relations:
            head = (each.layer, each.head)
            row: dict[str, Any] = {
                "head": label(head),
                "attends_to": each.words,
                "kind": plane.loc[(*head, inside), "kind"],
            }
            row |= {f"entropy_{n}": measures[(*head, "entropy", n)] for n in dict.fromkeys((inside, last))}
            row |= {f"first_key_{n}": measures[(*head, "first_key", n)] for n in dict.fromkeys((inside, last))}
            row |= {"position_share": measures[(*head, "position_share", inside)]}
            if without is not None:
                row |= {f"without_{n}": without[(*head, n)] for n in dict.fromkeys((inside, last))}
            plain = {key: value if isinstance(value, str) else float(value) for key, value in row.items()}
            rows.append({key: None if pd.isna(value) else value for key, value in plain.items()})
        return rows


def inspect(
    model: AnyModel,
    task: Task | None = None,
    *,
    train_max: int = TRAIN_MAX,
    scales: Sequence[int] | None = None,
    text: str | None = None,
    length: int | None = None,
    checkpoints: Run | Mapping[int, AnyModel] | None = None,
    report: Callable[[str], None] | None = None,
) -> Inspection:
    """Look inside a network: what every head does at several lengths, and one sequence in full.

    Arguments:
        model: a HookedModel, or a model with HookedTransformer's hook names.
        task: the task; the model's own if None. A model without one is shown random tokens twice.
        train_max: the largest scale in training.
        scales: the scales n to look at; half, once, twice and five times `train_max` if None, as far as they exist.
        text: the sequence to show in full, as the task writes it.
        length: where no text is given, the scale of a random one; `train_max` if None.
        checkpoints: the run, or models by training step, for the plane of heads over training; left out if None.
        report: is told what is being done.

    Result: an `Inspection`, which `lengthlens.analyses.inside.page` makes a page of.

    Errors: UserError for a model without hooks, a text that is no instance, and a scale that does not exist.

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> print(inspect(copy_by_hand(), scales=[3, 6], text="^ 7 3 =").relations[0])
    L0H0 attends to i−j = n, weight 1.00 at every length up to 6
    """
    tell = report or (lambda _: None)
    if text is not None and length is not None:
        raise UserError("give a sequence, or the length of one, not both")
    task = known_task(model, task)
    if scales is None:
        scales = _default_scales(model, task, train_max)
    scales = checked_scales(model, task, scales)
    tell("one sequence")
    sequence = look_at(model, text, _shown_length(task, train_max) if length is None else length, task)
    glances = []
    for n in scales:
        tell(f"heads at n = {n}")
        glances.append(glance(model, drawn(model, task, n)))
    tell("permuting keys")
    plane = head_plane(model, task, _permutable(task, scales))
    tell("parts of scores and of the residual stream")
    parts = (
        score_shares(model, task, scales),
        residual_shares(model, task, scales, train_max=scales_in(scales, train_max)),
    )
    tell("leaving out heads")
    ablation = pd.DataFrame() if task is None else without_heads(model, task, scales)
    training = pd.DataFrame()
    if checkpoints is not None:
        tell("the course of training")
        training = plane_over_training(checkpoints, task, max(2, scales_in(scales, train_max)))
    tables = measure_table(glances), role_table(glances), plane, *parts, ablation
    return Inspection(train_max, scales, glances, head_relations(glances), *tables, sequence, training)


def _default_scales(model: AnyModel, task: Task | None, train_max: int) -> list[int]:
    wanted = sorted({max(2, int(factor * train_max)) for factor in FACTORS})
    return wanted if task is None else reachable(model, task, wanted) or reachable(model, task, [train_max])


def _shown_length(task: Task | None, train_max: int) -> int:
    return train_max if task is None else max(task.min_scale, train_max)


def _permutable(task: Task | None, scales: Sequence[int]) -> list[int]:
    """At least two free keys are needed."""
    return [n for n in scales if n >= 2] or [max(2, task.min_scale if task else 2)]


def scales_in(scales: Sequence[int], train_max: int) -> int:
    """The largest of the scales in the training range; the smallest if there is none."""
    return max([n for n in scales if n <= train_max], default=scales[0])


def without_heads(model: AnyModel, task: Task, scales: Sequence[int], samples: int = SAMPLES) -> pd.DataFrame:
    """Exact match as it is, and without each head: its output replaced by its mean at the same position (`ablate`).

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> from lengthlens.tasks import TASKS
    >>> without_heads(copy_by_hand(), TASKS["copy"], [6])[["whole", "without"]].values.tolist()
    [[1.0, 0.0]]
    """
    table = ablate(model, task, scales, rows=samples)
    alone = table[table["head"] >= 0].rename(columns={"exact_match": "without"})
    return alone[["layer", "head", "scale", "whole", "without"]].sort_values(
        ["layer", "head", "scale"], kind="stable", ignore_index=True
    )
