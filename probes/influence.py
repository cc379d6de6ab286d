"""Influence: how much the prediction at a query changes when an earlier token is replaced."""

import torch
from torch import Tensor

from lengthlens.probes.subject import Subject, answer_queries
from lengthlens.tasks import Task

ROWS = 64  # means are then within about 0.05, far from the threshold for keys that matter
KEYS_AT_ONCE = 8  # distributions over large vocabularies take memory


def influence(
    subject: Subject, task: Task, scale: int, rows: int = ROWS, generator: torch.Generator | None = None
) -> Tensor:
    """Mean total-variation change of the next-token distribution at each answer query, for each key. [query, key]

    In random instances the token at the key is replaced by another: a symbol by another symbol, a mark by a symbol; the
    scale is told. Total variation is ½ Σ |p − p'|: 1 if the prediction changes altogether. Keys behind the query
    have none. Example: copying ``^ 7 3 = 7``, replacing the 3 changes what follows for sure, replacing 7 does not.
    """
    tokens = task.sample(scale, rows, generator).tokens
    queries = answer_queries(task, scale)
    keys = queries.stop  # the last token is seen by no query
    at = slice(queries.start, queries.stop)
    before = subject.logits(tokens.to(subject.device), scale, at).softmax(-1)
    changes = []
    for changed in replaced(task, tokens, keys, generator).split(KEYS_AT_ONCE):  # [key, row, pos]
        after = subject.logits(changed.flatten(0, 1).to(subject.device), scale, at).softmax(-1)
        changes.append((after.view(-1, *before.shape) - before).abs().sum(-1).mean(1) / 2)
    change = torch.cat(changes)  # [key, query]
    sees = torch.arange(keys, device=change.device) <= torch.tensor(queries, device=change.device)[:, None]
    return torch.where(sees, change.T, 0.0).cpu()


def replaced(task: Task, tokens: Tensor, keys: int, generator: torch.Generator | None) -> Tensor:
    """The instances again for each key, with the token there replaced. [row, pos] to [key, row, pos]"""
    symbols, (rows, length) = len(task.symbols), tokens.shape
    shift = 1 + torch.randint(max(1, symbols - 1), (keys, rows), generator=generator)
    any_symbol = torch.randint(symbols, (keys, rows), generator=generator)
    old = tokens.T[:keys]
    new = torch.where(old < symbols, (old + shift) % symbols, any_symbol)
    here = torch.eye(keys, length, dtype=torch.bool)[:, None]
    return torch.where(here, new[..., None], tokens)
