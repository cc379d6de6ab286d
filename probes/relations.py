"""Which relation a probed model goes by: the codes that its position embedding gives to pairs of positions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.codes import Ints
from lengthlens.models.schemes import PositionScheme, make_scheme

Phi: TypeAlias = Callable[[Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True)
class Relation:
    """A position relation φ(i, j; n), and how to say it.

    `of_head` gives the relation of one head, (layer, head), where heads have relations of their own.
    """

    phi: Phi
    words: str
    of_head: Callable[[int, int], Phi] | None = None

    def codes(
        self, queries: Sequence[int], keys: Sequence[int], scale: int, head: tuple[int, int] | None = None
    ) -> Ints:
        """φ at every query and key, [query, key, component].

        >>> relation_of("i-j").codes([5, 6], [0, 4], scale=3)[..., 0].tolist()
        [[5, 1], [6, 2]]
        """
        i, j, n = torch.tensor(list(queries))[:, None], torch.tensor(list(keys)), torch.tensor(scale)
        phi = self.phi if head is None or self.of_head is None else self.of_head(*head)
        with torch.no_grad():
            found = np.asarray(phi(i, j, n))
        if not np.issubdtype(found.dtype, np.integer):
            raise UserError(f"a relation gives integer codes, not {found.dtype} numbers")
        shape = (len(queries), len(keys))
        if found.ndim < 3:
            found = np.broadcast_to(found, shape)[..., None]
        return np.broadcast_to(found, (*shape, found.shape[-1])).astype(np.int64)


RelationLike: TypeAlias = str | PositionScheme | Phi | Relation


def relation_of(relation: RelationLike) -> Relation:
    """The relation meant: ``"i-j"``, ``"(i,j)"``, the name of a scheme, a scheme, or a function of (i, j, n).

    A function takes integer tensors that broadcast together and gives codes [*] or [*, component].
    """
    if isinstance(relation, Relation):
        return relation
    if isinstance(relation, PositionScheme):
        return Relation(relation.relation, relation.relation_in_words)
    if not isinstance(relation, str):
        return Relation(relation, getattr(relation, "__name__", "a function"))
    plain = relation.replace(" ", "").replace("−", "-")
    if plain == "i-j":
        return Relation(lambda i, j, n: i - j, "i−j")
    if plain == "(i,j)":
        return Relation(lambda i, j, n: torch.stack(torch.broadcast_tensors(i, j), -1), "(i, j)")
    return relation_of(make_scheme(relation))
