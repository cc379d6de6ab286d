"""Tasks and their complexity as rows of plain values, for tables, JSON and figures."""

from collections.abc import Callable
from typing import Any

import torch

from lengthlens.tasks.complexity import search_src, src_curve, src_declared
from lengthlens.tasks.task import Task

Row = dict[str, Any]


def task_rows() -> list[Row]:
    """One row for each task: example at n = 4, vocabulary size, length as a formula, declared SRC at 4, 8 and 16."""
    from lengthlens.tasks import TASKS

    return [task_row(task) for task in TASKS.values()]


def task_row(task: Task) -> Row:
    """
    >>> from lengthlens.tasks import TASKS
    >>> task_row(TASKS["addition"])["length"]
    '3n+5'
    """
    example = task.sample(4, 1, torch.Generator().manual_seed(1)).tokens[0]
    return {
        "name": task.name,
        "family": task.family,
        "summary": task.summary,
        "example": task.render(example),
        "vocabulary": len(task.vocab),
        "length": length_formula(task),
        "src": {n: src_declared(task, n) for n in (4, 8, 16)},
    }


def length_formula(task: Task) -> str:
    """The sequence length as a linear function of n, which it is for every task whose prompt and answer are."""
    slope = task.length(5) - task.length(4)
    return f"{slope if slope > 1 else ''}n+{task.length(4) - 4 * slope}"


def step_rows(task: Task, text: str) -> list[Row]:
    """One row for each answer token of the instance that `text` spells: who writes it, from which positions.

    >>> from lengthlens.tasks import TASKS
    >>> step_rows(TASKS["parity-cot"], "^ 1 1 =")[1]
    {'query': 4, 'writes': '0', 'operator': 'add mod 2', 'reads': '1 1', 'sources': '2 4'}
    """
    batch = task.parse(text)
    words = task.words(batch.tokens[0])
    return [
        {
            "query": step.query,
            "writes": words[step.query + 1],
            "operator": step.operator,
            "reads": " ".join(words[s] for s in step.sources),
            "sources": " ".join(map(str, step.sources)),
        }
        for step in task.circuit(int(batch.scale), words)
    ]


def src_rows(
    task: Task, max_scale: int, arity: int | None, report: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """One row for each scale: declared SRC and, if an arity is given, searched SRC and how sure it is."""
    declared = src_curve(task, max_scale)
    rows: list[Row] = []
    for scale, count in zip(range(task.min_scale, max_scale + 1), declared):
        row: Row = {"task": task.name, "scale": scale, "declared": count}
        if arity is not None:
            report(f"n = {scale} of {max_scale}")
            found = search_src(task, scale, arity)
            row |= {"arity": arity, "searched": found.value, "exact": found.exact, "note": found.note}
        rows.append(row)
    return rows
