"""What each head attends to: by role of the circuit, by position, by content, and in words.

Everything is gathered from blocks of queries, so that memory grows with the length and not with its square.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from lengthlens.inside.instances import N_INSTANCES, Instances, by_head_and_scale, first_query, instances_at, watch
from lengthlens.models.schemes.lbpe import NINE
from lengthlens.models.schemes.relation import Pointer, marked_keys, read_forms
from lengthlens.probes.network import AnyModel, label, network_of
from lengthlens.tasks import Task

FIRST, OTHER = "first key", "other keys"  # beside the roles of the circuit
WINDOW = 3  # values of a form on either side of zero that are tried: every source of the tasks here is among them
BINS = 96  # of queries and keys in a mean pattern: finer than what is seen in a small panel
COVERS = 0.5  # least share of the answer's queries from which a pointer has to point at a key to be tried
EXPLAINS = 0.5  # least mean weight of a relation that is said to be what a head does
STEADY = 0.9  # a weight that never falls below this share of its largest is the same "at every length"
MEASURES = {
    "entropy": "entropy of the pattern at answer queries, in nats",
    "first_key": "weight on the first key",
    "previous_token": "weight on the key before the query",
    "duplicate_token": "weight on earlier keys with the query's token",
    "induction": "weight on keys after an earlier occurrence of the query's token",
    "position_share": "share of the variance of scores over keys (marks left out) that positions alone explain",
}
SAME_TOKEN, AFTER_SAME = "the query's token", "the token after an earlier one like the query's"


def attention_by_role(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] | None = None,
    *,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """How much each head attends, at the answer's queries, to the keys in each role of the circuit's step.

    Arguments:
        model: a HookedModel, or any model with `run_with_hooks` and HookedTransformer's hook names.
        task: whose circuit it is; the model's own if None.
        scales: the input sizes n; 5, 10 and 20 if None.
        rows: instances of each input size.
        generator: of the instances; one that follows from n if None.

    Result: a row for each head, input size and role, with the mean `weight`. Beside the roles there are the first key
    and all other keys where the circuit does not read them. A key that fills two slots counts in both.

    Errors: UserError for a model without hooks, and for an input size that the task does not have, with the nearest.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> attention_by_role(copy_by_hand(), scales=[4]).to_dict("records")[0]
    {'layer': 0, 'head': 0, 'scale': 4, 'role': 'token', 'weight': 1.0}
    """
    return role_table([head_statistics(model, each) for each in instances_at(model, task, scales, rows, generator)])


def heads(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] | None = None,
    *,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """Measures of every head: one tidy row for each head, input size and measure.

    Arguments: as of `attention_by_role`. A model without a task is shown random tokens twice over, and n is then the
    length of what is repeated.

    Result: columns layer, head, scale, measure, value. The measures are those of `MEASURES`: entropy and weight on the
    first key at the answer's queries; previous-token, duplicate-token and induction score at all queries that have such
    a key; and the share of the variance of scores over keys that positions explain, content explaining the rest.

    >>> from lengthlens.models.by_hand import induction_by_hand
    >>> table = heads(induction_by_hand(), scales=[6]).set_index(["layer", "head", "measure"])["value"]
    >>> [round(float(table[0, 0, name]), 2) for name in ("previous_token", "position_share")]
    [1.0, 1.0]
    """
    return measure_table([head_statistics(model, each) for each in instances_at(model, task, scales, rows, generator)])


def relations(
    model: AnyModel, task: Task | None = None, scales: Sequence[int] | None = None, *, rows: int = N_INSTANCES
) -> "list[HeadRelation]":
    """What each head attends to, as the one relation of query and key that has most of its weight, if there is one.

    Tried are the values of linear forms of i, j and n (``i−j = n``), relations of tokens, and the circuit's roles.
    Arguments as of `attention_by_role`; sizes within and beyond the training range tell i−j = n from i−j = 10.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> print(relations(copy_by_hand("lbpe"), scales=[5, 60])[0])
    L0H0 attends to i−j = n, weight 1.00 at every length up to 60
    """
    return head_relations([head_statistics(model, each) for each in instances_at(model, task, scales, rows, None)])


# -- statistics at one input size ----------------------------------------------------------------------------------


class Mean:
    """A weighted mean that grows piece by piece, in double precision."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count: Tensor = torch.zeros((), dtype=torch.double)

    def add(self, total: Tensor, count: Tensor | float) -> None:
        total = total.cpu().double()
        self.total = total if self.total is None else self.total + total
        self.count = self.count + torch.as_tensor(count, dtype=torch.double).cpu()

    @property
    def value(self) -> Tensor:
        """NaN where nothing was counted."""
        assert self.total is not None
        return self.total / torch.where(self.count > 0, self.count, torch.nan)


@dataclass(frozen=True)
class HeadStatistics:
    """What all heads do on instances of one input size. Leading dimensions are [layer, head]."""

    scale: int
    measures: dict[str, Tensor]  # by name, [layer, head]
    roles: dict[str, Tensor]  # by role, [layer, head]
    pointers: dict[Pointer, Tensor]  # weight on the key that a pointer points at, [layer, head]
    content: dict[str, Tensor]  # weight on the keys with a relation of tokens, [layer, head]
    chance: dict[str, float]  # the weight that an even head has on the keys of a role or relation of tokens
    pattern: Tensor  # mean pattern at the answer's queries, at most BINS bins a side, [layer, head, query, key]


def head_statistics(model: AnyModel, instances: Instances) -> HeadStatistics:
    """The statistics of all heads, from one pass."""
    layers = network_of(model).layers(None)
    of_layers = [_LayerStatistics(instances) for _ in layers]
    watchers: list[tuple[str, Callable[[Tensor], None]]] = []
    for layer, gathered in zip(layers, of_layers):
        watchers += [(f"blocks.{layer}.attn.hook_attn_scores", gathered.see_scores)]
        watchers += [(f"blocks.{layer}.attn.hook_pattern", gathered.see_pattern)]
    watch(model, instances.tokens, instances.scale, watchers)

    def stacked(name: str) -> Tensor:
        return torch.stack([gathered.means[name].value for gathered in of_layers])

    role_names = [*(instances.roles.names if instances.roles else ()), FIRST, OTHER]
    by_role, by_pointer, by_content = (stacked(name) for name in ("roles", "pointers", "content"))
    return HeadStatistics(
        instances.scale,
        {name: stacked(name) for name in MEASURES if name != "position_share"}
        | {"position_share": torch.stack([gathered.position_share() for gathered in of_layers])},
        {name: by_role[..., k] for k, name in enumerate(role_names)},
        {pointer: by_pointer[..., k] for k, pointer in enumerate(of_layers[0].named) if of_layers[0].covers[k]},
        {SAME_TOKEN: by_content[..., 0], AFTER_SAME: by_content[..., 1]},
        dict(zip((*role_names, SAME_TOKEN, AFTER_SAME), of_layers[0].means["chance"].value.tolist())),
        stacked("mean_pattern"),
    )


class _LayerStatistics:
    """Gathers what the heads of one layer do, block by block."""

    def __init__(self, instances: Instances) -> None:
        self.tokens, self.queries, self.instances = instances.tokens, instances.queries, instances
        forms = read_forms(NINE)
        if instances.task is None:  # a length that the user chose means nothing to the network
            forms = tuple(form for form in forms if not form.scale)
        keys = marked_keys(forms, WINDOW, self.queries, torch.tensor([instances.scale]))[0]
        self.pointed = keys.flatten(1)  # [query, pointer]
        there = (self.pointed >= 0) & (self.pointed <= self.queries[:, None])
        self.covers = there.double().mean(0) >= COVERS  # [pointer]
        self.named = [Pointer(form, value) for form in forms for value in range(-WINDOW, WINDOW + 1)]
        self.roles = instances.roles
        self.varies = (self.tokens != self.tokens[:1]).any(0)  # at a mark, position and token are not told apart
        self.means: dict[str, Mean] = {}
        self.between, self.total = Mean(), Mean()

    def add(self, name: str, total: Tensor, count: Tensor | float) -> None:
        self.means.setdefault(name, Mean()).add(total, count)

    def answer_queries(self, block: Tensor) -> Tensor:
        """Which of the queries that count are in a block, as places in `queries`."""
        start = first_query(block)
        return ((self.queries >= start) & (self.queries < block.shape[-1])).nonzero()[:, 0]

    def see_scores(self, block: Tensor) -> None:
        """How much of the variance over keys is the same in all instances, and so due to position."""
        at, rows = self.answer_queries(block), len(block)
        query = self.queries[at]
        seen = (torch.arange(block.shape[-1]) <= query[:, None]) & self.varies[: block.shape[-1]]  # [query, key]
        at_queries = block[:, :, (query - first_query(block)).to(block.device)].cpu().double()
        scores = torch.where(seen, at_queries, 0)
        scores = torch.where(seen, scores - scores.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1), 0)
        total = scores.square().sum((0, 2, 3)) / rows  # [head]
        mean = scores.mean(0).square().sum((1, 2))
        # The mean over few instances still holds a share of what differs between them: it is taken off.
        self.between.add((rows * mean - total) / (rows - 1) if rows > 1 else mean, 1)
        self.total.add(total, 1)

    def position_share(self) -> Tensor:
        """[head]; NaN where all scores of every query are alike."""
        assert self.between.total is not None and self.total.total is not None
        return (self.between.total / torch.where(self.total.total > 0, self.total.total, torch.nan)).clamp(0, 1)

    def see_pattern(self, block: Tensor) -> None:
        weights, start = block.detach().float().cpu(), first_query(block)
        every = torch.arange(start, weights.shape[-1])
        self._tokens(weights, every)
        at = self.answer_queries(weights)
        if len(at):
            self._answers(weights[:, :, self.queries[at] - start], at)

    def _tokens(self, weights: Tensor, query: Tensor) -> None:
        """Scores that are defined at every query with a key of the kind. `weights` [row, head, query, key]"""
        same, after = self._alike(query, weights.shape[-1])
        before = (query[:, None] - 1 == torch.arange(weights.shape[-1])).expand_as(same)
        for name, mask in (("previous_token", before), ("duplicate_token", same), ("induction", after)):
            self.add(name, masked(weights, mask), float(mask.any(-1).sum()))

    def _alike(self, query: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """Earlier keys with the query's token, and keys after one. [row, query, key] each"""
        key = torch.arange(keys)
        tokens = self.tokens[:, :keys]
        same = (self.tokens[:, query, None] == tokens[:, None]) & (key < query[:, None])
        return same, torch.nn.functional.pad(same[..., :-1], (1, 0))

    def _answers(self, weights: Tensor, at: Tensor) -> None:
        """What is gathered at the answer's queries alone. `weights` [row, head, query, key]"""
        query, keys, rows = self.queries[at], weights.shape[-1], len(weights)
        each = float(rows * len(at))
        shares = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=1e-30)
        self.add("entropy", -torch.xlogy(shares, shares).sum((0, 2, 3)), each)
        self.add("first_key", weights[..., 0].sum((0, 2)), each)
        pointed = self.pointed[at]
        there = (pointed >= 0) & (pointed <= query[:, None])
        index = torch.where(there, pointed, 0).expand(*weights.shape[:2], -1, -1)
        self.add("pointers", (weights.gather(-1, index) * there).sum((0, 2)), rows * there.sum(0))
        roles, alike = self._role_masks(at, rows, keys), self._alike(query, keys)
        self.add("roles", torch.stack([masked(weights, mask) for mask in roles], -1), each)
        self.add("content", torch.stack([masked(weights, mask) for mask in alike], -1), each)
        even = [(mask.sum(-1) / (query + 1)).sum() for mask in (*roles, *alike)]
        self.add("chance", torch.stack(even), each)
        self._mean_pattern(weights.mean(0), at)

    def _role_masks(self, at: Tensor, rows: int, keys: int) -> list[Tensor]:
        """Which keys are in each role, which is the first key, which are all others. [row, query, key] each"""
        parts, query = list[Tensor](), self.queries[at]
        named = torch.zeros(rows, len(at), keys, dtype=torch.bool)
        for role in range(len(self.roles.names)) if self.roles else ():
            assert self.roles is not None
            fills = (self.roles.role[:, at] == role).expand(rows, -1, -1)  # [row, query, slot]
            mask = torch.zeros(named.shape)
            mask.scatter_add_(2, self.roles.key[:, at].expand(rows, -1, -1), fills.float())
            parts.append(mask > 0)
            named |= mask > 0
        first = ~named & (torch.arange(keys) == 0)
        return [*parts, first, ~named & ~first & (torch.arange(keys) <= query[:, None])]

    def _mean_pattern(self, mean: Tensor, at: Tensor) -> None:
        """Pooled into bins: the sum over keys of a bin, so that weight is kept. `mean` [head, query, key]"""
        length, steps = self.tokens.shape[1], len(self.queries)
        key = torch.arange(mean.shape[-1]) * min(BINS, length) // length
        query = at * min(BINS, steps) // steps
        by_key = mean.new_zeros(*mean.shape[:2], min(BINS, length)).index_add_(2, key, mean)
        by_both = mean.new_zeros(len(mean), min(BINS, steps), min(BINS, length)).index_add_(1, query, by_key)
        counts = torch.zeros(min(BINS, steps)).index_add_(0, query, torch.ones(len(at)))
        self.add("mean_pattern", by_both, counts[:, None])


def masked(weights: Tensor, mask: Tensor) -> Tensor:
    """The sum of weights [row, head, query, key] where mask [row, query, key] is true. [head]"""
    return torch.einsum("rhqk,rqk->h", weights, mask.to(weights.dtype))


# -- tables --------------------------------------------------------------------------------------------------------


def measure_table(statistics: Sequence[HeadStatistics]) -> pd.DataFrame:
    """A row for each head, input size and measure."""
    return _tidy([(each.scale, each.measures) for each in statistics], "measure", "value")


def role_table(statistics: Sequence[HeadStatistics]) -> pd.DataFrame:
    """A row for each head, input size and role."""
    return _tidy([(each.scale, each.roles) for each in statistics], "role", "weight")


def _tidy(tables: Sequence[tuple[int, dict[str, Tensor]]], name: str, value: str) -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {"layer": layer, "head": head, "scale": scale, name: key, value: round(number, 6)}
        for scale, values in tables
        for key, table in values.items()
        for layer, of_heads in enumerate(table.tolist())
        for head, number in enumerate(of_heads)
    ]
    return by_head_and_scale(rows)


class HeadRelation(NamedTuple):
    """The relation of query and key that has most of a head's weight, with that weight by input size."""

    layer: int
    head: int
    relation: str  # "i−j = n"; a relation of tokens, or a role of the circuit, where that says more
    kind: str  # position, content or role
    weights: dict[int, float]
    keys: dict[int, float]  # over how many keys a head of that entropy spreads, by input size
    best: float  # the largest of the weights, counted from what an even head has: 0 is chance, 1 is all

    @property
    def explains(self) -> bool:
        """Whether it has at least half of the weight at some input size, beyond what an even head has."""
        return self.best >= EXPLAINS

    def __str__(self) -> str:
        """In words.

        >>> str(HeadRelation(0, 1, "i−j = n", "position", {5: 0.98, 60: 0.98}, {5: 1, 60: 1}, 0.98))
        'L0H1 attends to i−j = n, weight 0.98 at every length up to 60'
        """
        return f"{label((self.layer, self.head))} {self.words}"

    @property
    def words(self) -> str:
        scales, weights = list(self.weights), list(self.weights.values())
        if not self.explains:
            last = scales[-1]
            return (
                f"spreads over about {self.keys[last]:.0f} keys at n = {last}; "
                f"the best single relation, {self.relation}, has weight {max(weights):.2f} at most"
            )
        if len(weights) == 1:
            return f"attends to {self.relation}, weight {weights[0]:.2f} at n = {scales[0]}"
        if min(weights) >= STEADY * max(weights):
            least = f"{min(weights):.2f}"
            return f"attends to {self.relation}, weight {least} at every length up to {scales[-1]}"
        course = ", ".join(f"{weight:.2f}" for weight in weights)
        held = [str(scale) for scale, weight in self.weights.items() if weight >= EXPLAINS]
        only = f", half or more at n = {', '.join(held)} only" if len(held) < len(scales) else ""
        return f"attends to {self.relation}, weight {course} at n = {', '.join(map(str, scales))}{only}"


def head_relations(statistics: Sequence[HeadStatistics]) -> list[HeadRelation]:
    """Of every head, the relation that has the most weight on average over the input sizes.

    Positions go before tokens and roles where they explain as much: they are the stronger statement.
    """
    layers, heads = statistics[0].pattern.shape[:2]
    return [_relation(statistics, layer, head) for layer in range(layers) for head in range(heads)]


def _relation(statistics: Sequence[HeadStatistics], layer: int, head: int) -> HeadRelation:
    candidates: list[tuple[float, str, str, list[float], float]] = []
    kinds: tuple[tuple[str, Callable[[HeadStatistics], dict[Any, Tensor]]], ...] = (
        ("position", lambda each: each.pointers),
        ("content", lambda each: each.content),
        ("role", lambda each: {name: each.roles[name] for name in each.roles if name not in (FIRST, OTHER)}),
    )
    for place, (kind, of) in enumerate(kinds):
        for key in of(statistics[0]):
            weights = [float(of(each)[key][layer, head]) if key in of(each) else float("nan") for each in statistics]
            if not any(weight != weight for weight in weights):  # NaN: the key does not exist at some input size
                excess = [_above_chance(w, each.chance.get(key, 0.0)) for w, each in zip(weights, statistics)]
                rank = round(sum(excess) / len(excess) - 0.02 * place, 3)
                words = f"the circuit's source '{key}'" if kind == "role" else str(key)
                candidates.append((rank, kind, words, weights, max(excess)))
    best = max(candidates, key=lambda each: each[0])  # the first of equals: forms are in the order of simplicity
    keys = {each.scale: float(each.measures["entropy"][layer, head].exp()) for each in statistics}
    by_scale = dict(zip((each.scale for each in statistics), best[3]))
    return HeadRelation(layer, head, best[2], best[1], by_scale, keys, best[4])


def _above_chance(weight: float, chance: float) -> float:
    """A weight counted from what chance gives: 0 is chance, 1 is all.

    >>> _above_chance(0.75, 0.5)
    0.5
    """
    return (weight - chance) / (1 - chance) if chance < 1 else 0.0
