"""What each head attends to: by role of the circuit, by position, by content, in words, and when keys are permuted.

Everything is gathered from blocks of queries, so that memory grows with the length and not with its square.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.inside.instances import (
    BY_CHANCE,
    N_INSTANCES,
    Instances,
    by_head_and_scale,
    first_query,
    instances_at,
    watch,
)
from lengthlens.models.schemes.lbpe import NINE
from lengthlens.models.schemes.relation import Pointer, marked_keys, read_forms
from lengthlens.probes.network import AnyModel, label, network_of
from lengthlens.runs.run import Run
from lengthlens.tasks import Task

FIRST, OTHER = "first key", "other keys"  # beside the roles of the circuit
WINDOW = 3  # values of a form on either side of zero that are tried: every source of the tasks here is among them
BINS = 96  # of queries and keys in a mean pattern: finer than what is seen in a small panel
COVERS = 0.5  # least share of the answer's queries from which a pointer has to point at a key to be tried
EXPLAINS = 0.5  # least weight of a relation, counted from chance, that is named as what a head does
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
    statistics = [head_statistics(model, each) for each in instances_at(model, task, scales, rows, generator)]
    return head_table(statistics, "role")


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
    statistics = [head_statistics(model, each) for each in instances_at(model, task, scales, rows, generator)]
    return head_table(statistics, "measure")


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
    stacked = {name: torch.stack([each.mean(name) for each in of_layers]) for name in of_layers[0].sums}
    between, total = stacked["variance_between"], stacked["variance"]
    measures = {name: stacked[name] for name in MEASURES if name != "position_share"}
    # NaN where all scores of every query are alike
    measures["position_share"] = (between / torch.where(total > 0, total, torch.nan)).clamp(0, 1)
    first = of_layers[0]
    roles = [*(first.roles.names if first.roles else ()), FIRST, OTHER]
    return HeadStatistics(
        instances.scale,
        measures,
        {name: stacked["roles"][..., k] for k, name in enumerate(roles)},
        {pointer: stacked["pointers"][..., k] for k, pointer in enumerate(first.pointers) if first.covers[k]},
        {SAME_TOKEN: stacked["content"][..., 0], AFTER_SAME: stacked["content"][..., 1]},
        dict(zip((*roles, SAME_TOKEN, AFTER_SAME), first.mean("chance").tolist())),
        stacked["pattern"],
    )


class _LayerStatistics:
    """What the heads of one layer do, summed over blocks of queries in double precision."""

    def __init__(self, instances: Instances) -> None:
        self.tokens, self.queries, self.roles = instances.tokens, instances.queries, instances.roles
        forms = read_forms(NINE)
        if instances.task is None:  # a length that the user chose means nothing to the network
            forms = tuple(form for form in forms if not form.scale)
        keys = marked_keys(forms, WINDOW, self.queries, torch.tensor([instances.scale]))[0]
        self.pointed = keys.flatten(1)  # [query, pointer]
        self.exists = (self.pointed >= 0) & (self.pointed <= self.queries[:, None])
        self.covers = self.exists.double().mean(0) >= COVERS  # [pointer]
        self.pointers = [Pointer(form, value) for form in forms for value in range(-WINDOW, WINDOW + 1)]
        self.varies = (self.tokens != self.tokens[:1]).any(0)  # at a mark, position and token are not told apart
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(self, name: str, total: Tensor, count: Tensor | float) -> None:
        self.sums[name] = self.sums.get(name, 0) + total.cpu().double()
        self.counts[name] = self.counts.get(name, 0) + torch.as_tensor(count, dtype=torch.double).cpu()

    def mean(self, name: str) -> Tensor:
        """NaN where nothing was counted."""
        return self.sums[name] / torch.where(self.counts[name] > 0, self.counts[name], torch.nan)

    def answer_queries(self, block: Tensor) -> Tensor:
        """Which of the answer's queries are in a block, as indices into `queries`."""
        return ((self.queries >= first_query(block)) & (self.queries < block.shape[-1])).nonzero()[:, 0]

    def see_scores(self, block: Tensor) -> None:
        """How much of the variance over keys is the same in all instances, and so due to position."""
        query, rows = self.queries[self.answer_queries(block)], len(block)
        seen = (torch.arange(block.shape[-1]) <= query[:, None]) & self.varies[: block.shape[-1]]  # [query, key]
        scores = torch.where(seen, block[:, :, (query - first_query(block)).to(block.device)].cpu().double(), 0)
        scores = torch.where(seen, scores - scores.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1), 0)
        total = scores.square().sum((0, 2, 3)) / rows  # [head]
        mean = scores.mean(0).square().sum((1, 2))
        # The mean over few instances still holds a share of what differs between them: it is taken off.
        self.add("variance_between", (rows * mean - total) / (rows - 1) if rows > 1 else mean, 1)
        self.add("variance", total, 1)

    def see_pattern(self, block: Tensor) -> None:
        """Scores that are defined at every query with a key of the kind, then what is gathered at answer queries."""
        weights, start = block.detach().float().cpu(), first_query(block)
        query = torch.arange(start, weights.shape[-1])
        same, after = self._alike(query, weights.shape[-1])
        before = (query[:, None] - 1 == torch.arange(weights.shape[-1])).expand_as(same)
        for name, mask in (("previous_token", before), ("duplicate_token", same), ("induction", after)):
            self.add(name, masked(weights, mask), float(mask.any(-1).sum()))
        at = self.answer_queries(weights)
        if len(at):
            self._see_answers(weights[:, :, self.queries[at] - start], at)

    def _alike(self, query: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """Earlier keys with the query's token, and keys after one. [row, query, key] each"""
        tokens = self.tokens[:, :keys]
        same = (self.tokens[:, query, None] == tokens[:, None]) & (torch.arange(keys) < query[:, None])
        return same, torch.nn.functional.pad(same[..., :-1], (1, 0))

    def _see_answers(self, weights: Tensor, at: Tensor) -> None:
        """Weights [row, head, query, key] of the answer's queries number `at`."""
        query, keys, rows = self.queries[at], weights.shape[-1], len(weights)
        each = float(rows * len(at))
        shares = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=1e-30)
        self.add("entropy", -torch.xlogy(shares, shares).sum((0, 2, 3)), each)
        self.add("first_key", weights[..., 0].sum((0, 2)), each)
        exists = self.exists[at]
        index = torch.where(exists, self.pointed[at], 0).expand(*weights.shape[:2], -1, -1)
        self.add("pointers", (weights.gather(-1, index) * exists).sum((0, 2)), rows * exists.sum(0))
        roles, alike = self._role_masks(at, rows, keys), self._alike(query, keys)
        self.add("roles", torch.stack([masked(weights, mask) for mask in roles], -1), each)
        self.add("content", torch.stack([masked(weights, mask) for mask in alike], -1), each)
        even = [(mask.sum(-1) / (query + 1)).sum() for mask in (*roles, *alike)]
        self.add("chance", torch.stack(even), each)
        # The mean pattern, pooled into bins: the sum over keys of a bin, so that no weight is lost.
        mean, length, steps = weights.mean(0), self.tokens.shape[1], len(self.queries)  # mean [head, query, key]
        down, across = min(BINS, steps), min(BINS, length)
        by_key = mean.new_zeros(*mean.shape[:2], across).index_add_(2, torch.arange(keys) * across // length, mean)
        bins = at * down // steps
        by_both = mean.new_zeros(len(mean), down, across).index_add_(1, bins, by_key)
        self.add("pattern", by_both, torch.bincount(bins, minlength=down)[:, None])

    def _role_masks(self, at: Tensor, rows: int, keys: int) -> list[Tensor]:
        """Which keys are in each role, which is the first key, which are all others. [row, query, key] each"""
        masks = list[Tensor]()
        if self.roles is not None:
            key = self.roles.key[:, at].expand(rows, -1, -1)  # [row, query, slot]
            for role in range(len(self.roles.names)):
                fills = (self.roles.role[:, at] == role).expand(rows, -1, -1)
                masks.append(torch.zeros(rows, len(at), keys).scatter_add_(2, key, fills.float()) > 0)
        none = ~torch.stack([torch.zeros(rows, len(at), keys, dtype=torch.bool), *masks]).any(0)
        key = torch.arange(keys)
        return [*masks, none & (key == 0), none & (key > 0) & (key <= self.queries[at][:, None])]


def masked(weights: Tensor, mask: Tensor) -> Tensor:
    """The sum of weights [row, head, query, key] where mask [row, query, key] is true. [head]"""
    return torch.einsum("rhqk,rqk->h", weights, mask.to(weights.dtype))


# -- tables --------------------------------------------------------------------------------------------------------


def head_table(statistics: Sequence[HeadStatistics], what: Literal["measure", "role"]) -> pd.DataFrame:
    """A row for each head, input size and measure, or role."""
    value = "value" if what == "measure" else "weight"
    rows: list[dict[str, Any]] = [
        {"layer": layer, "head": head, "scale": each.scale, what: name, value: round(number, 6)}
        for each in statistics
        for name, table in (each.measures if what == "measure" else each.roles).items()
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
    candidates: list[tuple[float, str, str, dict[int, float], float]] = []
    kinds: tuple[tuple[str, Callable[[HeadStatistics], dict[Any, Tensor]]], ...] = (
        ("position", lambda each: each.pointers),
        ("content", lambda each: each.content),
        ("role", lambda each: {name: each.roles[name] for name in each.roles if name not in (FIRST, OTHER)}),
    )
    for place, (kind, of) in enumerate(kinds):
        for key in of(statistics[0]):
            if all(key in of(each) and not of(each)[key][layer, head].isnan() for each in statistics):
                weights = {each.scale: float(of(each)[key][layer, head]) for each in statistics}
                pairs = [(weights[each.scale], each.chance.get(key, 0.0)) for each in statistics]
                excess = [(weight - chance) / (1 - chance) if chance < 1 else 0.0 for weight, chance in pairs]
                rank = round(sum(excess) / len(excess) - 0.02 * place, 3)
                words = f"the circuit's source '{key}'" if kind == "role" else str(key)
                candidates.append((rank, words, kind, weights, max(excess)))
    _, words, kind, weights, most = max(candidates, key=lambda each: each[0])  # the first of equals: simpler forms
    keys = {each.scale: float(each.measures["entropy"][layer, head].exp()) for each in statistics}
    return HeadRelation(layer, head, words, kind, weights, keys, most)


# -- the plane of positional against symbolic --------------------------------------------------------------------------
#
# What becomes of a head's pattern when the contents of its keys are permuted? The key vectors of a head are split
# into a part that follows from the position (their mean over instances there) and the rest, their content. In the
# prompt, contents are permuted among positions while position parts stay, and the query is left alone. A *positional*
# head attends to the same positions as before (its pattern is invariant), a *symbolic* one follows the contents to
# where they stand now (equivariant). Both similarities lie between 0 and 1 and are a point in a plane: a head that
# spreads evenly is near (1, 1), one that needs a content at a certain position near (0, 0).

N_PERMUTED = 128  # instances of each input size; more than elsewhere, since position parts are means over them
CLEAR = 0.2  # by which one similarity exceeds the other in a head that is called positional or symbolic
ALIKE = 0.8  # from which both are high: permuting makes no difference, since the head spreads
ELSEWHERE = 0.05  # least share of a head's weight on the permuted keys for it to be called anything
KINDS = {
    "positional": "follows positions", "symbolic": "follows contents", "even": "spreads evenly", "mixed": "in between",
    "elsewhere": "attends elsewhere",
}  # fmt: skip


def head_plane(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] | None = None,
    *,
    rows: int = N_PERMUTED,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """How positional and how symbolic each head is.

    Arguments as of `attention_by_role`. At least two instances are needed, to know the position part of a key.

    Result: a row for each head and input size: `positional` and `symbolic`, similarities between 0 and 1; `weight`, how
    much of the head's attention is on permuted keys; and `kind`, one of `KINDS`: positional, symbolic, even (both are
    high), mixed, or elsewhere, for a head that does not attend to these keys.

    >>> from lengthlens.models.by_hand import copy_by_content, copy_by_hand
    >>> head_plane(copy_by_hand(), scales=[6])[["positional", "symbolic", "kind"]].values.tolist()
    [[1.0, 0.0, 'positional']]
    >>> head_plane(copy_by_content(), scales=[6])[["positional", "symbolic", "kind"]].values.tolist()
    [[0.0, 1.0, 'symbolic']]
    """
    if rows < 2:
        raise UserError(f"the position part of a key is a mean over instances: rows must be at least 2, not {rows}")
    rows_of_heads = []
    for instances in instances_at(model, task, scales, rows, generator):
        for layer in network_of(model).layers(None):
            for head, values in enumerate(zip(*(x.tolist() for x in _similarities(model, instances, layer)))):
                point = dict(zip(("positional", "symbolic", "weight"), (round(x, 4) + 0.0 for x in values)))
                about = {"layer": layer, "head": head, "scale": instances.scale}
                rows_of_heads.append({**about, **point, "kind": kind_of(**point)})
    return by_head_and_scale(rows_of_heads)


def plane_over_training(
    checkpoints: Run | Mapping[int, AnyModel], task: Task | None = None, scale: int | None = None
) -> pd.DataFrame:
    """The plane at several moments of a training: `head_plane` at one input size, with a column `step` in front.

    Arguments:
        checkpoints: a run that was trained with `keep`, or models by training step.
        task: the task; the models' own if None.
        scale: the input size n; the largest in the run's training if None, 10 for models.

    Errors: UserError where there are no checkpoints, with what to do.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> table = plane_over_training({0: copy_by_hand(), 100: copy_by_hand()}, scale=3)
    >>> table["step"].tolist(), table["kind"].tolist()
    ([0, 100], ['positional', 'positional'])
    """
    models: Mapping[int, AnyModel] = {} if isinstance(checkpoints, Run) else checkpoints
    if isinstance(checkpoints, Run):
        scale = scale or checkpoints.config.train_max
        models = {step: checkpoints.model(step=step) for step in checkpoints.checkpoints}
        if models and (end := checkpoints.status()).has_model:  # the end of training alone is no course
            models = models | {end.steps: checkpoints.model()}
    if not models:
        why = "no checkpoints were kept, so that there is no course of training to follow"
        raise UserError(f"{why}: train with keep=[0, 200, …], or --keep")
    tables = [head_plane(model, task, [scale or 10]).assign(step=step) for step, model in sorted(models.items())]
    joined = pd.concat(tables, ignore_index=True)
    return joined[["step", *(name for name in joined if name != "step")]]


def kind_of(positional: float, symbolic: float, weight: float) -> str:
    """What a head is called by its place in the plane, one of `KINDS`.

    >>> kind_of(0.9, 0.2, 0.8), kind_of(0.9, 0.9, 0.8), kind_of(0.3, 0.3, 0.8), kind_of(0.9, 0.2, 0.01)
    ('positional', 'even', 'mixed', 'elsewhere')
    """
    if not weight >= ELSEWHERE:
        return "elsewhere"
    if abs(positional - symbolic) >= CLEAR:
        return "positional" if positional > symbolic else "symbolic"
    return "even" if min(positional, symbolic) >= ALIKE else "mixed"


def _similarities(model: AnyModel, instances: Instances, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Invariance, equivariance, and the weight on permuted keys, of each head of a layer. [head] each"""
    rows, queries = len(instances.tokens), instances.queries
    varies = (instances.tokens != instances.tokens[:1]).any(0).nonzero()[:, 0]
    places = varies[varies < int(queries[0])]  # before all queries, and with different tokens
    if len(places) < 2:
        raise UserError(f"there are fewer than two free keys to permute at n = {instances.scale}: take a larger one")
    # Random permutations that leave nothing in its place, since all places are in one cycle. [row, place]
    order = torch.rand(rows, len(places), generator=torch.Generator().manual_seed(layer)).argsort(1)
    cycles = torch.empty_like(order).scatter_(1, order, order.roll(-1, 1))
    sums: list[Tensor] = []  # one for each block, [4, head]

    def permute(keys: Tensor) -> Tensor:
        """[row, pos, head, d_head], first the rows as they are, then those to be permuted."""
        position = _position_part(keys[:rows, places])  # [place, head, d_head]
        content = keys[rows:, places] - position
        index = cycles.to(keys.device)[..., None, None].expand_as(content)
        changed = keys.clone()
        changed[rows:, places] = position + content.gather(1, index)
        return changed

    def compare(block: Tensor) -> None:
        start = first_query(block)
        at = queries[(queries >= start) & (queries < block.shape[-1])] - start
        weights = block[:, :, at.to(block.device)].abs().double().cpu()[..., places]  # [row, head, query, place]
        before, after = weights[:rows], weights[rows:]
        moved = before.gather(-1, cycles[:, None, None].expand_as(before))  # where the contents went
        kept, followed = (torch.minimum(each, after).sum((0, 2, 3)) for each in (before, moved))
        most = torch.maximum(before.sum(-1), after.sum(-1)).sum((0, 2))
        sums.append(torch.stack([kept, followed, most, before.sum((0, 2, 3))]))

    hooks = [(f"blocks.{layer}.attn.hook_k", permute), (f"blocks.{layer}.attn.hook_pattern", compare)]
    watch(model, instances.tokens.repeat(2, 1), instances.scale, hooks)
    kept, followed, most, weight = torch.stack(sums).sum(0)
    return kept / most, followed / most, weight / (rows * len(queries))


def _position_part(keys: Tensor) -> Tensor:
    """What follows from the place in keys [row, place, head, d_head]. [place, head, d_head]

    The mean over instances at each place, drawn towards the mean of all places as far as its differences could come
    from drawing so few instances: where they do not exceed that, nothing follows from the place. (By F, the variance of
    the means in units of what chance gives them; a share 1/F of it is chance.)
    """
    means = keys.mean(0)
    centre = means.mean(0)
    chance = keys.var(0).sum(-1).mean(0) / len(keys)  # [head]
    f = (means - centre).square().sum(-1).sum(0) / (len(means) - 1) / chance.clamp(min=1e-30)
    kept = torch.where(f > BY_CHANCE, 1 - 1 / f.clamp(min=1), 0)
    return centre + kept[:, None] * (means - centre)
