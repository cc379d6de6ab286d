"""Sequential Representation Complexity (SRC) of a task: how many operators its answers take, up to a scale.

The paper (arXiv 2510.04130) conjectures that length generalization is possible exactly when SRC does not grow with
the scale. Its formal definition was not at hand; the two counts here are this project's operational versions.
"""

import math
from typing import NamedTuple

import torch

from lengthlens.tasks.circuit import Circuit
from lengthlens.tasks.search import Problem, cover
from lengthlens.tasks.task import Batch, Task


def src_declared(task: Task, n: int) -> int:
    """The number of distinct operators in the task's own circuits at all scales up to n: an upper bound on SRC.

    >>> from lengthlens.tasks import TASKS
    >>> [src_declared(TASKS[name], 4) for name in ("parity-cot", "parity")]
    [1, 4]
    """
    return src_curve(task, n)[-1]


def src_curve(task: Task, n: int) -> list[int]:
    """`src_declared` at the task's smallest scale, the next one, … and n, in one pass.

    >>> from lengthlens.tasks import TASKS
    >>> src_curve(TASKS["parity"], 4)
    [1, 2, 3, 4]
    """
    operators: set[str] = set()
    curve = []
    for scale in range(task.min_scale, task.checked_scale(n) + 1):
        operators |= some_circuit(task, scale).used
        curve.append(len(operators))
    return curve


def some_circuit(task: Task, scale: int) -> Circuit:
    """The circuit at a scale; for a content-addressed task, that of one instance."""
    if task.family != "content-addressed":
        return task.circuit(scale)
    tokens = task.sample(scale, 1, torch.Generator().manual_seed(scale)).tokens[0]
    return task.circuit(scale, task.words(tokens))


class Search(NamedTuple):
    """What a search found.

    `value` operators suffice; fewer than `at_least` do not. `exact` when the two meet and every instance was looked
    at; `note` says what stands in the way otherwise.
    """

    value: float
    at_least: float
    exact: bool
    note: str


def src_searched(task: Task, n: int, arity: int) -> int | float:
    """The least number of operators of at most this arity that compute the task up to scale n; no declaration used.

    Sources are the same positions for every instance of a scale. Infinite where no `arity` positions determine some
    answer token. See `search_src` for whether the number is exact.

    >>> from lengthlens.tasks import TASKS
    >>> src_searched(TASKS["parity-cot"], 3, arity=2), src_searched(TASKS["parity"], 3, arity=2)
    (1, inf)
    """
    value = search_src(task, n, arity).value
    return value if math.isinf(value) else int(value)


def search_src(task: Task, n: int, arity: int, max_instances: int = 20_000, max_nodes: int = 2_000) -> Search:
    """`src_searched` with its certainty.

    Every instance of a scale is looked at where there are at most `max_instances`, else a sample of a tenth of that.
    A sample can prove that positions do *not* determine a token, so "infinite" is exact even then. `max_nodes` bounds
    the search for each number of operators.
    """
    scales = range(task.min_scale, task.checked_scale(n) + 1)
    batches = {scale: task.every_instance(scale, max_instances) for scale in scales}
    sampled = [scale for scale, batch in batches.items() if batch is None]
    problem = Problem(arity, len(task.vocab))
    for scale, batch in batches.items():
        if not problem.add(_columns(task, scale, batch or _sample(task, scale, max_instances // 10))):
            return Search(
                math.inf, math.inf, True, f"no choice of {arity} sources determines every answer token at n = {scale}"
            )
    found = cover(problem, max_nodes)
    notes = [f"scales {', '.join(map(str, sampled))} sampled"] if sampled else []
    if found.at_least < found.value:
        notes.append(f"between {found.at_least} and {found.value}: the search was cut short")
    return Search(found.value, found.at_least, not notes, "; ".join(notes))


def _sample(task: Task, scale: int, rows: int) -> Batch:
    return task.sample(scale, rows, torch.Generator().manual_seed(scale))


def _columns(task: Task, scale: int, batch: Batch) -> tuple[torch.Tensor, int]:
    """The instances, and the first query that writes the answer."""
    return batch.tokens, task.prompt_length(scale) - 1
