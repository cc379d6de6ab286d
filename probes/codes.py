"""Position codes from elsewhere: the same scheme at other positions, or pair by pair at those of a shorter input.

Both are position embeddings made from another one, `inner`, without parameters. The code of a pair of a query and a key
is what the scheme makes of it (i−j, say); steps, queries and sources are explained in `lengthlens.probes.steps`.

- `Moved`: every token stands at another position (shifted, shuffled, clamped, spread over a longer input), or the
  scheme is told another n.
- `Borrowed`: the *ideal relation*, filled with what `inner` gives in range. Every step of the circuit at n has a
  counterpart at a size m of the training range: a step of the same operator whose sources lie in the same parts of the
  input. A query is coded as its counterpart, a source as the source in the same slot there, the token at the query as
  itself, and any other key as a key that the counterpart does not read, in the same part of the input and, if that can
  be, as far from the query. So every pair has a code that was trained, and pairs in the same role have the same ones at
  every length; what tokens say, and how many keys there are, stays as it is. With ``other="one"`` keys that share a
  counterpart weigh together as one, as sharply as at m, so that attention does not spread either.

Worked example: copying at n = 40 with codes of m = 10. The query of answer token 21 reads the key 40 back. Under a
scheme of distances it now sees that key at distance 10, as at m = 10, and no other key at that distance.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.attention import per_head
from lengthlens.models.schemes.scheme import Positions, PositionScheme
from lengthlens.probes.steps import edge
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import Step

Places = Callable[[Tensor], Tensor]  # ids [row, pos] to the position at which each token is to stand, [pos]
ROWS_KEPT = 512  # queries whose keys' counterparts are remembered: all would be the square of the length
NEAR = 3  # other keys so near to the query keep their distance from it: what marks a token's neighbours stays


class Derived(PositionScheme):
    """A scheme made from another, `inner`, whose parameters it shares."""

    def __init__(self, inner: PositionScheme) -> None:
        super().__init__(inner.sizes, inner.options, inner.task)
        self.name, self.family, self.summary = inner.name, inner.family, inner.summary
        self.uses_scale, self.weighs_content = inner.uses_scale, inner.weighs_content
        self.relation_in_words = inner.relation_in_words
        self.wrapped = (inner,)  # a tuple, so that it is no part of this module and keeps its name

    @property
    def inner(self) -> PositionScheme:
        return self.wrapped[0]

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.inner.phi(query_pos, key_pos, scale)

    def acts(self) -> list[str]:  # type: ignore[override]
        return self.inner.acts()

    def acts_in(self, layer: int) -> list[str]:
        return self.inner.acts_in(layer)

    def refuse_content(self, wanted: str) -> None:
        """Schemes that find positions by content have none that could be replaced."""
        if self.inner.family == "contextual" or not self.inner.has_codes:
            raise UserError(f"scheme '{self.name}' counts tokens by their content, so that it has no {wanted}")
        if not self.inner.acts():
            raise UserError(f"scheme '{self.name}' contributes nothing, so that it has no {wanted}")


class Moved(Derived):
    """Another scheme, with tokens at other positions, or told another n.

    `places` says where they stand; without it they stay. `scale` is the n that the scheme is told. With `stand_in` they
    stand within that input, which may be longer than theirs.
    """

    def __init__(
        self, inner: PositionScheme, places: Places | None, scale: int | None, stand_in: Tensor | None = None
    ) -> None:
        super().__init__(inner)
        self.refuse_content("positions to replace")
        if scale is not None and not inner.uses_scale and stand_in is None:
            raise UserError(f"scheme '{inner.name}' does not look at n, so that another n changes nothing")
        self.places, self.scale, self.stand_in = places, scale, stand_in

    def positions(self, tokens: Tensor, scale: Tensor | None = None) -> Positions:
        place = torch.arange(tokens.shape[1]) if self.places is None else self.places(tokens)
        place = place.to(tokens.device)
        if int(place.min()) < 0:
            raise UserError(f"a token would stand at position {int(place.min())}: the first position is 0")
        if self.inner.uses_scale and self.scale is None:
            scale = self.inner.known_scale(tokens, scale)
        told = scale if self.scale is None else torch.tensor([self.scale], device=tokens.device)
        # The input within which tokens stand: this one, as long as need be, or the one given.
        longer = max(int(place.max()) + 1, tokens.shape[1])
        padding = 0 if self.task is None else self.task.pad_id
        around = torch.nn.functional.pad(tokens, (0, longer - tokens.shape[1]), value=padding)
        if self.stand_in is not None:
            around = self.stand_in.to(tokens.device)
        whole = self.inner.positions(around, told)
        limit = whole.limit or around.shape[1]
        at = replace(whole, position=whole.position[:, place], limit=limit, cache={}, made={})
        return Positions(tokens, at.position, whole.scale, cache={"whole": whole, "at": at, "place": place})

    def embed(self, positions: Positions) -> Tensor | None:
        return self._placed(self.inner.embed(positions.cache["whole"]), positions)

    def embed_qk(self, positions: Positions) -> Tensor | None:
        return self._placed(self.inner.embed_qk(positions.cache["whole"]), positions)

    def _placed(self, vectors: Tensor | None, positions: Positions) -> Tensor | None:
        return None if vectors is None else vectors[:, positions.cache["place"]]

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        return self.inner.rotate_in(layer, x, positions.cache["at"], keys)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        if self.inner.weighs_content:
            return self.inner.score(layer, positions.cache["at"], queries, q, k)
        return self._block(lambda whole, asked: self.inner.score(layer, whole, asked, q, k), positions, queries)

    def factor(self, layer: int, positions: Positions, queries: slice) -> Tensor | None:
        return self._block(lambda whole, asked: self.inner.factor(layer, whole, asked), positions, queries)

    @staticmethod
    def _block(
        give: Callable[[Positions, slice], Tensor | None], positions: Positions, queries: slice
    ) -> Tensor | None:
        """What `give` has for the places of a block of queries and of all keys up to its end. [*, query, key]"""
        place = positions.cache["place"]
        of_query, of_key = place[queries], place[: queries.stop]
        asked = slice(int(of_query.min()), 1 + int(of_key.max()))
        values = give(positions.cache["whole"], asked)
        return None if values is None else values[..., (of_query - asked.start)[:, None], of_key]


# -- the ideal relation -------------------------------------------------------------------------------------------


class Counterparts:
    """Where queries of an instance of n = `long`, and the keys seen from them, stand in one of n = `short`.

    By the roles that the circuit gives them. Where `displaced`, each source changes places with the key before it
    (after it, if that is a source or none).

    >>> from lengthlens.tasks import TASKS
    >>> shorter = Counterparts(TASKS["copy"], 40, 10)
    >>> shorter.query[41 + 20], shorter.keys(slice(61, 62))[0][0, 21]  # 40 back at n = 40, and 10 back at n = 10
    (tensor(16), tensor(6))
    """

    def __init__(self, task: Task, long: int, short: int, displaced: bool = False) -> None:
        if task.family == "content-addressed":
            raise UserError(f"the sources of '{task.name}' follow from its tokens, so that it has no ideal relation")
        self.displaced = displaced
        self.long, self.short = _parts(task, long), _parts(task, short)
        self.of_query = _queries(task, self.long, self.short)
        self.query = torch.tensor(self.of_query)  # [query]
        self._row = lru_cache(maxsize=ROWS_KEPT)(self._made_row)

    def keys(self, queries: slice) -> tuple[Tensor, Tensor]:
        """For a block of queries: the counterpart of every key up to its end, and how many keys of the query share it.

        [query, key] each; after a query they mean nothing.
        """
        rows = [self._row(i) for i in range(queries.start, queries.stop)]
        key, number = (torch.zeros(len(rows), queries.stop, dtype=torch.long) for _ in range(2))
        for place, row in enumerate(map(torch.tensor, rows)):
            key[place, : len(row)] = row
            number[place, : len(row)] = row.bincount()[row]
        return key, number.clamp(min=1).float()

    def _made_row(self, i: int) -> list[int]:
        """The counterpart of each key that query i sees."""
        (of_long, long_steps), (of_short, short_steps), i_short = self.long, self.short, self.of_query[i]
        step, twin = long_steps.get(i), short_steps.get(i_short)
        slots = dict(zip(step.sources, twin.sources)) if step and twin else {}
        read = set(twin.sources) if twin else set()
        near = {
            j: i_short - (i - j)
            for j in range(max(0, i - NEAR, i - i_short), i + 1)
            if j not in slots and i_short - (i - j) not in read and of_long[j] == of_short[i_short - (i - j)]
        }
        key, far = [0] * (i + 1), defaultdict[int, list[int]](list)
        for j in range(i + 1):
            if j in slots or j in near:
                key[j] = slots[j] if j in slots else near[j]
            else:
                far[of_long[j]].append(j)
        for part, keys in far.items():
            seen = [p for p in range(i_short + 1) if p not in read]
            alike = [p for p in seen if of_short[p] == part]
            free = [p for p in alike if p not in near.values()] or alike or seen or [i_short]
            for rank, j in enumerate(keys):
                key[j] = free[spread(rank, len(keys), len(free))]
        if self.displaced:
            for j in slots:
                if (beside := next((k for k in (j - 1, j + 1) if 0 <= k <= i and k not in slots), None)) is not None:
                    key[j], key[beside] = key[beside], key[j]
        return key


counterparts = lru_cache(maxsize=64)(Counterparts)


def spread(rank: int, of: int, over: int) -> int:
    """A place among `over` for number `rank` of `of`, in order; the first and last ones, which are often special, stay.

    >>> [spread(rank, 12, 6) for rank in range(12)]
    [0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 5]
    """
    ends = edge(over)
    if rank < ends or of <= over:
        return min(rank, over - 1)
    if rank >= of - ends:
        return over - (of - rank)
    return ends + (rank - ends) * (over - 2 * ends) // (of - 2 * ends)


def _parts(task: Task, scale: int) -> tuple[list[int], dict[int, Step]]:
    """Which part of an instance each position belongs to, marks and runs of symbols in order; and its steps."""
    tokens = task.sample(task.checked_scale(scale), 1, torch.Generator().manual_seed(0)).tokens[0]
    parts, part, before = [], -1, None
    for token in tokens.tolist():
        symbol = token < len(task.symbols)
        part += not (symbol and before)
        before = symbol
        parts.append(part)
    return parts, {step.query: step for step in task.circuit(scale)}


def _queries(
    task: Task, long: tuple[list[int], dict[int, Step]], short: tuple[list[int], dict[int, Step]]
) -> list[int]:
    """The counterpart of each query: in the same part, and where it is a step, one of the same kind; in order."""

    def kinds(parts: list[int], steps: dict[int, Step]) -> dict[Any, list[int]]:
        members = defaultdict(list)
        for i, part in enumerate(parts):
            step = steps.get(i)
            same = tuple(s == i for s in step.sources) if step else ()
            members[part, step and (step.operator, tuple(parts[s] for s in step.sources), same)].append(i)
        return members

    of_long, of_short = kinds(*long), kinds(*short)
    query = [0] * len(long[0])
    for kind, members in of_long.items():
        twins = of_short.get(kind)
        if not twins:
            raise UserError(
                f"'{task.name}' has steps at the larger n that have no counterpart at the smaller one, "
                f"so that there are no codes to borrow: such as the one at position {members[0]}"
            )
        for rank, i in enumerate(members):
            query[i] = twins[spread(rank, len(members), len(twins))]
    return query


class Borrowed(Derived):
    """The ideal relation with the values that another scheme has in range; see the top of this file.

    `most` is the n whose codes are borrowed; shorter inputs keep their codes. `temperature` gives what scores of each
    query are multiplied by, at a length (None: nothing), which matters for ``other="one"``. `inputs` is filled by
    whoever runs the model: what each layer's attention is made from, before its norm, [row, pos, d_model].
    """

    def __init__(
        self,
        inner: PositionScheme,
        most: int,
        blocks: list[Any],
        other: Literal["each", "one"] = "each",
        temperature: Callable[[int], Tensor] | None = None,
        displaced: bool = False,
    ) -> None:
        super().__init__(inner)
        self.other, self.temperature, self.displaced = other, temperature, displaced
        self.refuse_content("codes that the ideal relation could take the place of")
        if inner.task is None:
            raise UserError("the ideal relation is derived from the circuit of a task: build the model for a task")
        self.most, self.blocks = most, tuple(blocks)
        self.inputs: dict[int, Tensor] = {}
        self.idle = False  # whether the last input keeps its codes, so that nothing is to be changed
        self.moves_keys = not {"embed", "embed_qk", "rotate"}.isdisjoint(inner.acts())

    def acts(self) -> list[str]:  # type: ignore[override]
        return self._places(self.inner.acts())

    def acts_in(self, layer: int) -> list[str]:
        return self._places(self.inner.acts_in(layer))

    def _places(self, acts: list[str]) -> list[str]:
        return acts if self.idle else [*dict.fromkeys([*(act for act in acts if act != "rotate"), "score"])]

    def positions(self, tokens: Tensor, scale: Tensor | None = None) -> Positions:
        assert self.task is not None
        scales = torch.unique(self.task.scale_of(tokens) if scale is None else scale)
        if len(scales) > 1:
            raise UserError(f"the ideal relation is given to inputs of one n at a time, not {scales.tolist()}")
        long = int(scales)
        short = min(long, self.most)
        shorter = counterparts(self.task, long, short, self.displaced)
        length = tokens.shape[1]
        if length > len(shorter.query):
            raise UserError(f"an input of n = {long} has {len(shorter.query)} tokens, not {length}")
        device = tokens.device
        instance = self.task.sample(short, 1, torch.Generator().manual_seed(0)).tokens.to(device)
        codes = self.inner.positions(instance, torch.tensor([short], device=device))
        self.idle = long == short and not self.displaced
        cache: dict[Hashable, Any] = {"short": codes, "query": shorter.query[:length].to(device), "pairs": shorter}
        return Positions(tokens, codes.position[:, cache["query"]], codes.scale, cache=cache)

    def embed(self, positions: Positions) -> Tensor | None:
        return self._of_query(self.inner.embed(positions.cache["short"]), positions)

    def embed_qk(self, positions: Positions) -> Tensor | None:
        return self._of_query(self.inner.embed_qk(positions.cache["short"]), positions)

    @staticmethod
    def _of_query(vectors: Tensor | None, positions: Positions) -> Tensor | None:
        return None if vectors is None else vectors[:, positions.cache["query"]]

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        """Done pair by pair in `score`, but where codes stay."""
        return self.inner.rotate_in(layer, x, positions.cache["short"], keys) if self.idle else x

    def factor(self, layer: int, positions: Positions, queries: slice) -> Tensor | None:
        short = positions.cache["short"]
        return self._gathered(self.inner.factor(layer, short, slice(0, short.tokens.shape[1])), positions, queries)

    @staticmethod
    def _gathered(values: Tensor | None, positions: Positions, queries: slice) -> Tensor | None:
        """From values of all pairs of the short instance, those of the counterparts. [*, query, key]"""
        if values is None:
            return None
        key = positions.cache["pairs"].keys(queries)[0].to(values.device)
        return values[..., positions.cache["query"][queries, None], key]

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        short = positions.cache["short"]
        if self.idle:
            return self.inner.score(layer, short, queries, q, k)
        plain = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
        if self.moves_keys or self.inner.weighs_content:
            wanted = self._pair_by_pair(layer, positions, queries, q, k)
        else:
            bias = self.inner.score(layer, short, slice(0, short.tokens.shape[1]), q, k)
            borrowed = self._gathered(bias, positions, queries)
            if self.other == "each":
                return borrowed
            wanted = plain if borrowed is None else plain + borrowed
        return (wanted if self.other == "each" else self._as_one(wanted, positions, queries)) - plain

    def _as_one(self, wanted: Tensor, positions: Positions, queries: slice) -> Tensor:
        """Scores with which keys of one counterpart weigh as one, as sharp as there, whatever multiplies them later."""
        number: Tensor = positions.cache["pairs"].keys(queries)[1].to(wanted.device)
        if self.temperature is None:
            return wanted - number.log()
        here = self.temperature(positions.tokens.shape[1])[queries, None]
        there = self.temperature(positions.cache["short"].tokens.shape[1])[positions.cache["query"][queries], None]
        return (wanted * there - number.log()) / here

    def _pair_by_pair(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor:
        """The score of each query and key at their counterparts. [row, head, query, key]

        For each position of the short instance, all keys are tried there; each pair takes the one it needs.
        """
        short, key = positions.cache["short"], positions.cache["pairs"].keys(queries)[0].to(q.device)
        query = positions.cache["query"][queries]
        if self.moves_keys:
            wanted = torch.zeros(len(q), q.shape[2], *key.shape, dtype=q.dtype, device=q.device)
            turned = self.inner.rotate_in(layer, q, self._ids(short, query)).transpose(1, 2)
            for place in torch.unique(key).tolist():
                moved = self._keys_at(layer, positions, place, k)
                wanted = torch.where(key == place, turned @ moved.permute(0, 2, 3, 1), wanted)
        else:
            wanted = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
        if "score" not in self.inner.acts():
            return wanted
        return wanted + torch.cat(
            [self._bias(layer, short, *pair, q[:, i : i + 1], k) for i, pair in enumerate(zip(query, key))], 2
        )

    def _ids(self, short: Positions, place: Tensor) -> Positions:
        """Positions [1, *] that have the ids of these places of the short instance."""
        limit = short.limit or short.tokens.shape[1]
        return replace(short, position=short.position[:, place], limit=limit, cache={}, made={})

    def _keys_at(self, layer: int, positions: Positions, place: int, k: Tensor) -> Tensor:
        """All keys as if they stood at one place of the short instance. [row, key, head, d_head]"""
        short, block, number = positions.cache["short"], self.blocks[layer], k.shape[1]
        added, added_qk = self.inner.embed(short), self.inner.embed_qk(short)
        if added is not None:
            x = self.inputs[layer][:, :number] + added[:, place, None] - positions.cache["added"][:, :number]
            k = per_head(block.ln1.forward(x), block.attn.W_K, block.attn.b_K)
        if added_qk is not None:
            there = added_qk[:, place, None] - added_qk[:, positions.cache["query"][:number]]
            k = k + per_head(there, block.attn.W_K, torch.zeros_like(block.attn.b_K))
        ids = self._ids(short, torch.full((number,), place, device=k.device))
        return self.inner.rotate_in(layer, k, ids, keys=True)

    def _bias(self, layer: int, short: Positions, query: Tensor, key: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """What the scheme adds to the scores of one query, which stands at `query` and sees keys at `key` [key].

        Keys and the query form one sequence of given position ids, the query last. [row, head, 1, key]
        """
        number = k.shape[1]
        ids = short.position[:, torch.cat([key, query[None]])]
        limit = short.limit or short.tokens.shape[1]
        where = Positions(ids.new_zeros(1, number + 1), ids, short.scale, limit=limit, scales=short.scales)
        keys = torch.nn.functional.pad(k, (0, 0, 0, 0, 0, 1))
        bias = self.inner.score(layer, where, slice(number, number + 1), q, keys)
        assert bias is not None
        return bias[..., :number].expand(len(q), q.shape[2], -1, -1)
