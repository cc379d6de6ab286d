"""Instances on which one looks inside a network, the roles of their keys, and the network run on them with watchers.

A *role* is what a key is to a step of the task's circuit: the slot of the operator that it fills, under the name that
the operator's function has for it (adding digits reads ``a``, ``b``, ``a_before``, …).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.models.config import ModelConfig
from lengthlens.probes.network import AnyModel, Network, answer_queries, exact_by_scale, network_of, reachable, task_of
from lengthlens.runs.evaluation import FLOAT, evaluating, numbers_a_token
from lengthlens.tasks import Circuit, Task
from lengthlens.tasks.circuit import UNUSED
from lengthlens.values import within_memory


@dataclass(frozen=True)
class StepRoles:
    """Which keys the circuit reads at each answer query of some instances of one input size, and in which role.

    >>> from lengthlens.tasks import TASKS
    >>> roles = roles_in(TASKS["parity-cot"], 2, TASKS["parity-cot"].parse("^ 1 1 =").tokens)
    >>> roles.names, roles.query.tolist(), roles.key[0].tolist()
    (('symbol', 'so_far'), [3, 4, 5], [[1, 3], [2, 4], [3, 5]])
    """

    names: tuple[str, ...]
    query: Tensor  # [step]
    key: Tensor  # [1 or row, step, slot], 0 where the step has fewer slots; 1 where all rows read alike
    role: Tensor  # [1 or row, step, slot], an index into `names`; −1 where the step has fewer slots

    def keys_of(self, name: str) -> Tensor:
        """The key in a role at each step, −1 where there is none; the first where there are several. [1|row, step]"""
        if name not in self.names:
            raise unknown("role", name, self.names)
        filled = self.role == self.names.index(name)
        first = filled.to(torch.uint8).argmax(-1, keepdim=True)
        return torch.where(filled.any(-1), self.key.gather(-1, first)[..., 0], -1)


def roles_in(task: Task, scale: int, tokens: Tensor) -> StepRoles:
    """The roles of keys in instances [row, pos] of one input size."""
    if task.family == "content-addressed":
        circuits = [task.circuit(scale, task.words(row)) for row in tokens.cpu()]
    else:
        circuits = [task.circuit(scale)]
    names = tuple(dict.fromkeys(name for circuit in circuits for name in role_names(circuit)))
    roles = []
    for circuit in circuits:
        of_operator = np.full((len(circuit.operators), circuit.sources.shape[1]), -1)  # [operator, slot]
        for place, operator in enumerate(circuit.operators):
            if operator.name in circuit.used:
                of_operator[place, : operator.arity] = [names.index(slot) for slot in operator.slots]
        roles.append(np.where(circuit.sources == UNUSED, -1, of_operator[circuit.operator]))
    sources = np.stack([circuit.sources for circuit in circuits])
    key, role = (torch.from_numpy(each) for each in (np.where(sources == UNUSED, 0, sources), np.stack(roles)))
    return StepRoles(names, torch.from_numpy(circuits[0].query), key, role)


def role_names(circuit: Circuit) -> list[str]:
    """The names of all slots of the operators that a circuit uses."""
    used = circuit.used
    return list(dict.fromkeys(slot for each in circuit.operators if each.name in used for slot in each.slots))


# -- instances, and the network run on them --------------------------------------------------------------------------

N_INSTANCES = 32  # of each input size: means over heads then move by less than 0.02 from draw to draw
SCALES = (5, 10, 20)  # where none are named: what runs are trained on by default, and twice that
BY_CHANCE = 1.5  # times the variance that a mean over so few instances has by chance: above it, positions contribute
Watcher = Callable[[Tensor], Tensor | None]  # sees an activation, may give another in its place


@dataclass(frozen=True)
class Instances:
    """Token ids of one input size, the queries that count, and what the circuit reads there.

    Without a task the input size is the length of a random piece that stands there twice, as is usual for language
    models, and the queries are those of its second half.
    """

    tokens: Tensor  # [row, pos]
    scale: int
    queries: Tensor  # [query]
    task: Task | None = None

    @property
    def roles(self) -> StepRoles | None:
        """Which keys the circuit reads at the queries; None without a task."""
        return None if self.task is None else roles_in(self.task, self.scale, self.tokens)


def sample_instances(
    model: AnyModel, task: Task | None, scale: int, n_instances: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> Instances:  # fmt: skip
    """Random instances of one input size; for a model without a task, random tokens twice."""
    generator = generator or torch.Generator().manual_seed(scale)
    task = known_task(model, task)
    if task is not None:
        queries = answer_queries(task, scale)
        tokens = task.sample(scale, n_instances, generator).tokens
        return Instances(tokens, scale, torch.arange(queries.start, queries.stop), task)
    vocabulary: Any = getattr(getattr(network_of(model).model, "cfg", None), "d_vocab", None)
    if vocabulary is None:
        raise UserError("the model does not name its task or its vocabulary (cfg.d_vocab): give a task")
    piece = torch.randint(vocabulary, (n_instances, scale), generator=generator)
    return Instances(torch.cat([piece, piece], 1), scale, scale + torch.arange(scale))


def instances_at(
    model: AnyModel, task: Task | None, scales: Sequence[int] | None, n_instances: int, generator: Any
) -> Iterator[Instances]:
    """Random instances of each input size, small ones first; sizes that do not exist are refused before any work."""
    wanted = sorted(checked_scales(model, task, scales))
    return (sample_instances(model, task, n, n_instances, generator) for n in wanted)


def known_task(model: AnyModel, task: Task | None) -> Task | None:
    """The task given, or the model's own if it has one."""
    own = getattr(network_of(model).model, "task", None)
    return task_of(model, task) if task is not None or own is not None else None


def checked_scales(model: AnyModel, task: Task | None, scales: Sequence[int] | None = None) -> list[int]:
    """The input sizes asked for, each once, if the task has them and the model can process them; `SCALES` if None."""
    task = known_task(model, task)
    wanted = list(dict.fromkeys(SCALES if scales is None else scales))
    if task is None:
        if min(wanted, default=0) < 2:
            raise UserError(f"a piece that is repeated has at least 2 tokens, not {min(wanted, default='none')}")
        return wanted
    if scales is None:
        wanted = [n for n in SCALES if task.min_scale <= n <= (task.max_scale or n)]
    if not wanted:
        raise UserError("name at least one scale n")
    config = getattr(network_of(model).model, "config", None)
    for n in wanted:
        bound = min(max(n, task.min_scale), task.max_scale or max(n, task.min_scale))
        if bound != n:
            raise UserError(f"task '{task.name}' has no instances of n = {n}: the nearest is n = {bound}")
        if isinstance(config, ModelConfig):
            needed = N_INSTANCES * task.length(n) * numbers_a_token(config) * FLOAT
            within_memory(needed, f"{N_INSTANCES} inputs of n = {n}")
        try:
            exact_by_scale(model, task, [n], n_instances=1)
        except UserError as error:
            smaller = range(task.min_scale, n)
            fit = bisect_left(smaller, True, key=lambda size: not reachable(model, task, [size]))  # how many of them
            raise UserError(f"{error} (the largest n that fits is {smaller[fit - 1] if fit else 'none'})") from None
    return wanted


def as_instances(model: AnyModel, tokens: Tensor | str, scale: int | None) -> tuple[Tensor, int]:
    """Ids [row, pos] and their input size, read off by the task's rule if None."""
    network: Any = network_of(model).model
    ids = network.to_tokens(tokens) if isinstance(tokens, str) else tokens
    if scale is None:
        task = getattr(network, "task", None)
        scales = task.scale_of(ids).unique().tolist() if task is not None else [ids.shape[1]]
        if len(scales) > 1:
            raise UserError(f"instances of one size n are needed, not of {', '.join(map(str, scales))}")
        scale = int(scales[0])
    return ids, scale


def by_head_and_scale(rows: pd.DataFrame | Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A tidy table with the rows of each head together."""
    return pd.DataFrame(rows).sort_values(["layer", "head", "scale"], kind="stable", ignore_index=True)


def watch(
    model: AnyModel, tokens: Tensor, scale: int, watchers: Iterable[tuple[str, Watcher]], blocked: bool = True
) -> Tensor:
    """Run the model while each watcher sees the activation at its hook point; the logits. [row, pos, token]

    A watcher that gives a tensor puts it in the place of what it saw. Where the model can (and `blocked` is left on),
    scores and patterns come in blocks of queries, [row, head, query, key], with all keys up to the last query.
    """
    subject: Network = network_of(model)
    run: Any = subject.model
    if not hasattr(run, "run_with_hooks"):
        raise UserError("looking inside needs hooks, and the model has none (no run_with_hooks)")
    hooks = [(name, lambda value, hook, seen=seen: seen(value)) for name, seen in watchers]
    with evaluating(run), in_blocks(run) if blocked else nullcontext():
        logits: Tensor = run.run_with_hooks(tokens.to(subject.device), fwd_hooks=hooks, **subject.told(scale))
    return logits


def in_blocks(model: Any) -> AbstractContextManager[None]:
    """Meanwhile scores and patterns come in blocks of queries, where the model can."""
    return getattr(model, "blocked_attention", nullcontext)()


def first_query(block: Tensor) -> int:
    """The first query of a block [..., query, key] that has all keys up to its last query."""
    return block.shape[-1] - block.shape[-2]
