"""Interventions on tokens: which keys a step depends on, and what it does with other tokens in their place.

*Influence* is how much the prediction at a query changes when an earlier token is replaced. *Roles* are the keys that
a step depends on, by code; tokens are put in the roles to see what the step computes from them.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lengthlens.models.schemes.relation import Ints
from lengthlens.probes.subject import Subject, answer_queries
from lengthlens.tasks import Task

Code: TypeAlias = tuple[int, ...]
Support: TypeAlias = tuple[int, ...]  # the tokens that occur at a position in real instances
Key: TypeAlias = tuple[tuple[int, ...], ...]  # for each code of a signature, the tokens there, in order of id

ROWS = 64  # means of influence are then within about 0.05, far from the threshold for keys that matter
KEYS_AT_ONCE = 8  # distributions over large vocabularies take memory
ASSIGNMENTS = 64  # of tokens to the roles of a signature; all of them where there are no more
SUPPORT_ROWS = 256  # instances from which the tokens that occur at a position are read


# -- influence -------------------------------------------------------------------------------------------------------


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


# -- roles -----------------------------------------------------------------------------------------------------------


class Role(NamedTuple):
    """Sources that a readout by codes cannot tell apart, and all keys it could take for them."""

    code: Code
    support: Support
    sources: int  # how many of the keys are sources
    keys: tuple[int, ...]  # all keys with the code and the support


@dataclass(frozen=True)
class Roles:
    """The sources of one step, by role."""

    sources: tuple[int, ...]
    roles: tuple[Role, ...]

    @classmethod
    def of(cls, codes: Ints, occurring: Sequence[Support], query: int, sources: Sequence[int]) -> "Roles":
        """From the codes [key, component] and supports of the keys that the query sees.

        The query's own token has a code of its own, whatever the relation: it is in the residual stream without any
        attention. Sources at which instances of the scale all have the same token are left out where there are others:
        replacing it makes an input that is no instance, and so shows what disturbs a model, not what it reads.
        """
        own = (1, *(0 for _ in codes[query]))
        names = [((0, *map(int, codes[key])), occurring[key]) for key in range(query)] + [(own, occurring[query])]
        sources = [source for source in sources if len(occurring[source]) > 1] or sources
        roles = [
            Role(*name, sum(names[s] == name for s in sources), tuple(k for k, n in enumerate(names) if n == name))
            for name in sorted({names[source] for source in sources})
        ]
        return cls(tuple(sources), tuple(roles))

    @property
    def signature(self) -> tuple[Code, ...]:
        """The codes of the sources, in order, each as often as it occurs."""
        return tuple(role.code for role in self.roles for _ in range(role.sources))


def supports(task: Task, scale: int, generator: torch.Generator | None) -> list[Support]:
    """The tokens that occur at each position of instances of a scale."""
    tokens = task.sample(scale, SUPPORT_ROWS, generator).tokens
    return [tuple(column.unique().tolist()) for column in tokens.T]


def assignments(roles: Roles) -> Tensor:
    """Tokens for the sources, in the order of roles. [assignment, source]

    The same for every step with the same codes and supports, so that steps can be compared. If there are too many,
    each role is given a few of its tokens, the same few for each of its sources, and of those all combinations, or
    random ones where these are still too many.
    """
    alphabets = [role.support for role in roles.roles for _ in range(role.sources)]
    rng = np.random.default_rng(_seed(roles))
    if np.prod([float(len(a)) for a in alphabets]) > ASSIGNMENTS:
        size = max(2, int(ASSIGNMENTS ** (1 / sum(len(a) > 1 for a in alphabets)) + 1e-9))
        alphabets = _thinned(roles, size, rng)
    if np.prod([float(len(a)) for a in alphabets]) <= ASSIGNMENTS:
        rows = list(itertools.product(*alphabets))  # one empty row where nothing is read
        return torch.tensor(rows, dtype=torch.long).view(len(rows), len(alphabets))
    return torch.from_numpy(np.stack([rng.choice(a, ASSIGNMENTS) for a in alphabets], 1))


def _thinned(roles: Roles, size: int, rng: np.random.Generator) -> list[Support]:
    """At most `size` tokens for each source; roles with the same support share them."""
    chosen: dict[Support, Support] = {}
    for role in roles.roles:
        few = rng.choice(role.support, min(size, len(role.support)), replace=False)
        chosen.setdefault(role.support, tuple(sorted(map(int, few))))
    return [chosen[role.support] for role in roles.roles for _ in range(role.sources)]


def _seed(roles: Roles) -> int:
    """A number that depends on codes and supports alone, the same in every process."""
    named = [(role.code, role.support, role.sources) for role in roles.roles]
    return int.from_bytes(hashlib.blake2b(repr(named).encode(), digest_size=8).digest())


def placed(roles: Roles, given: Tensor, base: Tensor, generator: torch.Generator | None) -> Tensor:
    """Every assignment inside every base instance, each role's tokens at random among its keys.

    `given` [assignment, source] and `base` [base, pos] to [assignment·base, pos].
    """
    tokens = base.repeat(len(given), 1, 1)  # [assignment, base, pos]
    column = 0
    for role in roles.roles:
        order = torch.rand(*tokens.shape[:2], len(role.keys), generator=generator).argsort(-1)
        where = torch.tensor(role.keys)[order[..., : role.sources]]
        what = given[:, None, column : column + role.sources].expand(where.shape)
        tokens.scatter_(2, where, what)
        column += role.sources
    return tokens.flatten(0, 1)


def keys_of(roles: Roles, given: Tensor) -> list[Key]:
    """What a readout by codes sees of each assignment: for each code the tokens there, as a bag."""
    signature = roles.signature
    columns = [[k for k, own in enumerate(signature) if own == code] for code in dict.fromkeys(signature)]
    return [tuple(tuple(sorted(row[k] for k in group)) for group in columns) for row in given.tolist()]
