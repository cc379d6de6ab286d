"""The ideal position embedding: each key is marked with the slot it fills in the task's circuit, all others alike.

Nothing is written by hand for a task: the codes follow from ``task.circuit(n)``.
"""

import hashlib
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.devices import sent
from lengthlens.models.schemes.protocols import NamedKeys, pooled_keys, seen_keys
from lengthlens.models.schemes.relation import Code, Ints, Relation, by_value
from lengthlens.models.schemes.scheme import Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Circuit, Task
from lengthlens.tasks.circuit import UNUSED, Layout, Line, remembered
from lengthlens.tasks.task import circuit_of

OTHER = 0
ROLES = "roles"
TABLE_TUPLES = 8  # tuples of each size n whose roles have a row in the table, where sizes are tuples


class KeyRole(NamedTuple):
    """What a key is to a step: the operator, and the slots it fills; more than one where a step reads it twice."""

    operator: str
    slots: tuple[int, ...]


class Reads(NamedTuple):
    """All pairs (query, key) that a circuit reads, in the order of query and key, and the place of each one's role."""

    query: Tensor  # [read]
    key: Tensor  # [read]
    role: Tensor  # [read], an index into `roles`
    roles: list[KeyRole]
    slot_words: dict[str, tuple[str, ...]]  # of each operator


@remembered
def reads_at(task: Task, scale: int) -> Reads:
    return reads_of(circuit_of(task, scale))


def reads_of(circuit: Circuit) -> Reads:
    """The pairs that a circuit reads.

    Example: multiplying by a digit, ``^ 7 * 6 = 2 4 $``, the last step reads the digit both as the digit and as the
    symbol behind the number, so the role of position 3 at query 6 has the two slots 0 and 2.

    >>> from lengthlens.tasks import TASKS
    >>> reads = reads_of(TASKS["multiplication-by-digit"].circuit(1))
    >>> [reads.roles[k].slots for q, k in zip(reads.query, reads.role) if q == 6]
    [(1,), (0, 2), (3,)]
    """
    step, slot = np.nonzero(circuit.sources != UNUSED)
    query, key = circuit.query[step], circuit.sources[step, slot]
    order = np.lexsort((slot, key, query))
    step, slot, query, key = step[order], slot[order], query[order], key[order]
    first = np.flatnonzero(np.append(True, (query[1:] != query[:-1]) | (key[1:] != key[:-1])))
    last = np.append(first[1:], len(query))
    # Nearly every key fills one slot; those are told apart all at once, by operator and slot, and others one by one.
    one = last - first == 1
    width = circuit.sources.shape[1]
    number = circuit.operator[step[first]] * width + slot[first]
    distinct, of_one = np.unique(number[one], return_inverse=True)
    names = [operator.name for operator in circuit.operators]
    place = {KeyRole(names[k // width], (int(k % width),)): at for at, k in enumerate(distinct)}
    role = np.zeros_like(first)
    role[one] = of_one
    for group in np.flatnonzero(~one):
        several = KeyRole(names[circuit.operator[step[first[group]]]], tuple(slot[first[group] : last[group]].tolist()))
        role[group] = place.setdefault(several, len(place))
    pairs = (torch.from_numpy(query[first]), torch.from_numpy(key[first]), torch.from_numpy(role))
    return Reads(*pairs, list(place), {operator.name: operator.slot_words for operator in circuit.operators[::-1]})


class Ideal(PositionScheme):
    """One learned bias for each head and role of a key in the circuit's step; none for keys that are not read.

    Roles of the circuits up to scale `table_scale` have codes 1 2 3 … in the order in which they first occur, and a row
    of the table each. Where a task needs new operators at every scale, the roles beyond have no row (their bias is 0,
    like that of a row never trained), but `relation` still tells them apart, by a number made from their name.
    ``other=one`` is as in ``lbpe``.
    """

    name = "ideal"
    family, beyond = "circuit", "bounded"
    summary = "one learned bias per role of the key in the circuit's step"
    relation_in_words = "the slot that key j fills in the circuit's step at query i, else OTHER"
    uses_scale = whole_scale = True
    remedy = "the ideal relation"
    no_random = "its codes follow from the circuit's true positions"
    no_hint = "its codes are derived from the scale already"

    @dataclass(frozen=True)
    class Options:
        table_scale: int = option(20, at_least=1, at_most=200)  # beyond any training range here
        other: Literal["each", "one"] = option("each", before="each")  # keys without a value weigh each, or all as one

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        if task is None:
            raise UserError("scheme 'ideal' is derived from the circuit of a task: build the model for a task")
        if task.family == "content-addressed":
            here = f"in the content-addressed task '{task.name}' they depend on the instance's tokens"
            raise UserError(f"scheme 'ideal' needs sources that follow from position and scale, and {here}")
        self.slot_words: dict[str, tuple[str, ...]] = {}  # of each operator seen so far
        self.met: dict[int, KeyRole] = {}  # roles beyond the table, by code
        self.catalogue: dict[KeyRole, int] = {}
        drawn = torch.Generator(device="cpu").manual_seed(0)
        for scale in task.scales_up_to(max(options.table_scale, task.min_scale), TABLE_TUPLES, drawn):
            reads = self.reads(scale)
            self.slot_words = reads.slot_words | self.slot_words
            for role in reads.roles:
                self.catalogue.setdefault(role, 1 + len(self.catalogue))
        self.table = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, len(self.catalogue)))

    def reads(self, scale: int) -> Reads:
        """The pairs that are read at an input size."""
        assert self.task is not None
        return reads_at(self.task, scale)

    def code_of(self, role: KeyRole) -> int:
        """The role's place in the table; beyond it, a number above all of those that depends on the role alone.

        Of 60 bits, so that two hardly ever meet, and the same in every process.
        """
        if role in self.catalogue:
            return self.catalogue[role]
        digest = hashlib.blake2b(f"{role.operator}\n{role.slots}".encode(), digest_size=8).digest()
        return (1 << 40) + (int.from_bytes(digest) >> 4)

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(query_pos.shape, key_pos.shape, scale.shape)
        i, j, n = (each.expand(shape).flatten().cpu().numpy() for each in (query_pos, key_pos, scale))
        code = np.full(len(i), OTHER)
        for size, here in by_value(n):
            reads = self.reads(size)
            codes = np.array([self.code_of(role) for role in reads.roles])[reads.role.numpy()]
            self.met |= {self.code_of(role): role for role in reads.roles if role not in self.catalogue}
            self.slot_words = reads.slot_words | self.slot_words
            width = 1 + int(reads.query.max())  # no key is after its query
            known, asked = (reads.query * width + reads.key).numpy(), i[here] * width + j[here]
            at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
            code[here] = np.where((known[at] == asked) & (j[here] < width), codes[at], OTHER)
        return torch.from_numpy(code).view(*shape, 1).to(query_pos.device)

    def describe(self, code: Code) -> str:
        if code[0] == OTHER:
            return "a key that the step does not read"
        role = self.met.get(code[0]) or next((one for one, at in self.catalogue.items() if at == code[0]), None)
        if role is not None:
            words = self.slot_words[role.operator]
            return f"slot {' and '.join(words[slot] for slot in role.slots)} of '{role.operator}'"
        return f"a slot of an operator beyond scale {self.options.table_scale}"

    def relation(self) -> Relation:
        about = self.phi, self.relation_in_words, self.describe
        return Relation(*about, whole_scale=True, background=(OTHER,), listed=self._listed)

    def _listed(self, query: Ints, scale: Ints) -> Ints:
        return self.named_keys(torch.from_numpy(query), torch.from_numpy(scale)).key.numpy()

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        if ROLES in positions.cache:
            roles = positions.cache[ROLES][:, queries, : queries.stop]
            bias = nn.functional.pad(self.table[layer], (1, 0))[:, roles].transpose(0, 1)
            return bias if self.options.other == "each" else bias - self._pooled(roles > 0, queries)
        return positions.per_scale(lambda scales: self._bias(layer, positions, queries, scales))

    def on_the_host(self, positions: Positions) -> dict[Hashable, Tensor]:
        """The row of the table of every pair, counted from 1; 0 where it has none. [1|row, query, key]"""
        assert positions.scales is not None
        length = positions.tokens.shape[1]
        roles = torch.zeros(len(positions.scales), length, length, dtype=torch.long, device="cpu")
        for row, scale in enumerate(positions.scales):
            reads = self.reads(scale)
            inside = reads.query < length
            roles[row, reads.query[inside], reads.key[inside]] = 1 + self._rows(reads)[inside]
        return {ROLES: roles}

    def _pooled(self, valued: Tensor, queries: slice) -> Tensor:
        """[row, 1, query, key] from [row, query, key]"""
        return pooled_keys(~valued & seen_keys(queries, valued.device))[:, None]

    def _bias(self, layer: int, positions: Positions, queries: slice, scales: Tensor) -> Tensor:
        """[scale, head, query, key]. Sparse: a step reads a handful of keys, however many there are."""
        known = positions.memo((queries.start, queries.stop), lambda: self._entries(positions, queries, scales))
        place, role = known
        shape = (self.sizes.n_heads, len(scales), queries.stop - queries.start, queries.stop)
        empty = self.table.new_zeros(shape[0], math.prod(shape[1:]))
        bias = empty.index_copy(1, place, self.table[layer][:, role]).view(shape).transpose(0, 1)
        if self.options.other == "each":
            return bias
        valued = empty[0].bool().index_fill(0, place, True).view(shape[1:])
        return bias - self._pooled(valued, queries)

    def _entries(self, positions: Positions, queries: slice, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Of each pair that has a bias, its place in a block [scale, query, key], and in the table. [entry] each"""
        assert self.task is not None
        if scales.device.type == "meta":  # there is no size to read, and any will do
            sizes = [self.task.min_scale] * len(scales)
        else:  # what `per_scale` gives; if the host does not have it, it waits for the device
            sizes = scales.tolist() if positions.scales is None else sorted(set(positions.scales))
        entries = []
        for row, scale in enumerate(sizes):
            reads = self.reads(scale)
            place = self._rows(reads)
            inside = (reads.query >= queries.start) & (reads.query < queries.stop) & (place >= 0)
            query = row * (queries.stop - queries.start) + reads.query[inside] - queries.start
            entries.append(torch.stack([query * queries.stop + reads.key[inside], place[inside]]))
        place, role = sent(torch.cat(entries, 1), scales.device).unbind()
        return place, role

    def _rows(self, reads: Reads) -> Tensor:
        """The place in the table of each pair that is read, −1 if it has none. [read]"""
        return torch.tensor([self.catalogue.get(role, 0) - 1 for role in reads.roles], device="cpu")[reads.role]

    @property
    def pools_others(self) -> bool:
        return self.options.other == "one"

    def named_keys(self, query: Tensor, scale: int | Tensor) -> NamedKeys:
        scales = torch.as_tensor(scale).expand(len(query))
        distinct, table = scales.unique().tolist(), self.table.detach()
        wide = max(int(self.reads(n).query.bincount().max()) for n in distinct)  # keys that a step reads
        key, place = torch.full((len(query), wide), -1), torch.full((len(query), wide), -1)
        for n in distinct:
            reads, here = self.reads(n), (scales == n).nonzero()[:, 0]
            at = torch.searchsorted(reads.query, query[here])[:, None] + torch.arange(wide)
            place_of = at.clamp(max=len(reads.query) - 1)
            there = (at < len(reads.query)) & (reads.query[place_of] == query[here, None])
            key[here] = torch.where(there, reads.key[place_of], -1)
            place[here] = torch.where(there, self._rows(reads)[place_of], -1)
        bias = torch.where(place >= 0, table[:, :, place.clamp(min=0)], 0)
        return NamedKeys(key, bias, (place >= 0).expand(bias.shape))

    def named_lines(self, layout: Layout) -> list[Line]:
        """The sources of every step."""
        return list(dict.fromkeys(source for steps in layout.steps for source in steps.sources))
