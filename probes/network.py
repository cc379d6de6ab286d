"""A network as the probes see it: tokens of one scale in, logits or hooked activations out."""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.models.layers import watched
from lengthlens.models.schemes.relation import Relation, numbered
from lengthlens.models.schemes.scheme import scheme_of
from lengthlens.models.schemes.spec import RelationLike, relation_of
from lengthlens.probes.probe import OURS, Probe, Row
from lengthlens.runs.evaluation import device_of, evaluating, right_tokens, score_of, takes
from lengthlens.tasks import Batch, Task

if TYPE_CHECKING:
    from lengthlens.probes.table import Context

# Tokens of one forward pass: large enough that overhead does not count, small enough for a processor's cache.
CHUNK_TOKENS = 1 << 14
PRUNING_INSTANCES = 256  # of each n, on which nothing may change
PREFIX = 8  # tokens on which a scheme is asked where they stand


class Network:
    """Any model that can be asked for logits, and, if it has hooks, for activations.

    `model` is a HookedModel of this project, another model with `run_with_cache` (a TransformerBridge, say), or a
    plain function from ids [row, pos] to logits [row, pos, token]. Whoever has a parameter `scale` is told the scale
    of the instances, so that tokens may be replaced without hiding it. Nothing here has gradients, and a model that
    has a training mode is taken out of it meanwhile.

    >>> logits = Network(lambda tokens: torch.nn.functional.one_hot(tokens, 14).float()).logits
    >>> logits(torch.tensor([[3, 1]]), scale=1).argmax(-1)
    tensor([[3, 1]])
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self.takes_scale = takes(model, "scale")
        self.takes_queries = takes(model, "queries")  # and so need not compute the rest
        self.device = device_of(model)

    def logits(
        self, tokens: Int[Tensor, "row pos"], scale: int, at: slice = slice(None)
    ) -> Float[Tensor, "row some_pos token"]:
        """[row, pos] to [row, pos, token], at some of the positions."""
        start, stop, _ = at.indices(tokens.shape[1])
        with evaluating(self.model):
            if not self.takes_queries:
                parts, which = [self.model(part, **self._scale(scale))[:, start:stop] for part in chunks(tokens)], None
            else:
                seen, asked = tokens[:, :stop] if self._looks_back else tokens, {"queries": slice(start, stop)}
                rows, which = map(torch.from_numpy, numbered(seen.numpy())) if self._shares else (seen, None)
                parts = [self.model(part, **self._scale(scale), **asked) for part in chunks(rows)]
            found = torch.cat(parts).float()
            return found if which is None else found[which]

    def next_tokens(self, tokens: Int[Tensor, "row pos"], scale: int, query: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
        """The arg-max next token of each row at its own `query` [row], which is on the CPU. [row]"""
        found = torch.empty(len(tokens), dtype=torch.long, device=self.device)
        for at in query.unique().tolist():
            mine = (query == at).nonzero()[:, 0].to(self.device)
            found[mine] = self.logits(tokens[mine], scale, slice(at, at + 1))[:, 0].argmax(-1)
        return found

    @property
    def _shares(self) -> bool:
        """Whether equal rows are computed once: no hook tells them apart, and no GPU has to be waited for."""
        model: Any = self.model
        return self.device.type == "cpu" and not watched(*getattr(model, "hook_dict", {}).values())

    @cached_property
    def _looks_back(self) -> bool:
        """Whether what follows a query makes no difference: positions are 0 1 2 …, however long the input is."""
        scheme = scheme_of(self.model)
        if scheme is None:
            return False
        tokens, scale = (torch.ones(1, size, dtype=torch.long, device=self.device) for size in (PREFIX, 1))
        try:
            place = scheme.positions(tokens, scale[0]).position
        except UserError:  # a scheme under surgery may take inputs of its task alone
            return False
        return torch.equal(place, torch.arange(PREFIX, device=place.device)[None])

    def activations(
        self, tokens: Int[Tensor, "row pos"], scale: int, names: Sequence[str]
    ) -> dict[str, Float[Tensor, "row pos *rest"]]:
        """What each hook point sees, by name, [row, pos, …]."""
        return self.logits_and_activations(tokens, scale, names)[1]

    def logits_and_activations(
        self, tokens: Int[Tensor, "row pos"], scale: int, names: Sequence[str]
    ) -> tuple[Float[Tensor, "row pos token"], dict[str, Float[Tensor, "row pos *rest"]]]:
        """Both, of one pass."""
        run, caches, logits = self._run_with_cache(), [], []
        with evaluating(self.model):
            for part in chunks(tokens):
                try:
                    found, cache = run(part, names_filter=list(names), **self._scale(scale))
                except KeyError:
                    found, cache = None, {}  # a name that is none is an error for one library and nothing for another
                for name in names:
                    if name not in cache:
                        raise unknown("hook point", name, run(part[:1], **self._scale(scale))[1].keys())
                caches.append(cache)
                logits.append(found)
        seen = {name: torch.cat([cache[name] for cache in caches]).float() for name in names}
        return torch.cat(logits).float(), seen

    def layers(self, chosen: Sequence[int] | None) -> list[int]:
        """The layers asked for, or all of them, of a model that has hooks."""
        self._run_with_cache()
        count: Any = getattr(getattr(self.model, "cfg", None), "n_layers", None)
        if chosen is None and count is None:
            raise UserError("the model does not say how many layers it has (cfg.n_layers): name the layers")
        for layer in chosen or ():
            if count is not None and not 0 <= layer < count:
                raise UserError(f"there is no layer {layer}: the model has layers 0 to {count - 1}")
        return list(range(count) if chosen is None else chosen)

    def _run_with_cache(self) -> Any:
        run = getattr(self.model, "run_with_cache", None)
        if run is None:
            raise UserError("this probe needs activations, and the model has no hooks (no run_with_cache)")
        return run

    def _scale(self, scale: int) -> dict[str, int]:
        return {"scale": scale} if self.takes_scale else {}


AnyModel: TypeAlias = Callable[..., Any] | Network


def chunks(tokens: Tensor) -> list[Tensor]:
    return list(tokens.split(max(1, CHUNK_TOKENS // tokens.shape[1])))


def network_of(model: AnyModel) -> Network:
    return model if isinstance(model, Network) else Network(model)


def task_of(model: AnyModel, task: Task | None) -> Task:
    """The task given, or the one that the model was built for."""
    own = getattr(network_of(model).model, "task", None) if task is None else task
    if not isinstance(own, Task):
        raise UserError("the model does not name its task: give it, e.g. task=TASKS['copy']")
    return own


def scales_up_to(task: Task, train_max: int) -> range:
    """Every scale of the task up to `train_max`."""
    task.checked_scale(train_max)
    return range(task.min_scale, train_max + 1)


def answer_queries(task: Task, scale: int) -> range:
    """The positions at which a token of the answer is predicted.

    >>> from lengthlens.tasks import TASKS
    >>> answer_queries(TASKS["copy"], 2)  # ^ 7 3 = 7 3 $
    range(3, 6)
    """
    return range(task.prompt_length(scale) - 1, task.length(scale) - 1)


def exact_by_scale(
    model: AnyModel, task: Task, scales: Sequence[int], n_instances: int = 256, generator: Generator | None = None
) -> dict[int, float]:
    """Exact match on random instances of each n."""
    network, generator = network_of(model), generator or Generator().manual_seed(0)
    return {scale: exact_of(network, task, scale, task.sample(scale, n_instances, generator)) for scale in scales}


def exact_of(network: Network, task: Task, scale: int, batch: Batch) -> float:
    """The share of these instances of one n with every answer token right, in one teacher-forced pass."""
    queries = answer_queries(task, scale)
    logits = network.logits(batch.tokens.to(network.device), scale, slice(queries.start, queries.stop))
    return score_of(scale, right_tokens(logits, batch)).exact_match


def reachable(model: AnyModel, task: Task, scales: Sequence[int]) -> list[int]:
    """The sizes n among these that the task has and the model can process."""
    reached: list[int] = []
    for scale in scales:
        with suppress(UserError):
            reached += exact_by_scale(model, task, [scale], n_instances=1)
    return reached


def largest_within(task: Task, length: int) -> int:
    """The largest scale whose instances have at most so many tokens; the smallest, if none has.

    >>> from lengthlens.tasks import TASKS
    >>> largest_within(TASKS["copy"], 10)  # ^ 1 2 3 = 1 2 3 $ has nine
    3
    """
    scale = task.min_scale
    while task.length(scale + 1) <= length:
        scale += 1
    return int(scale)


# -- heads and hook points by name -------------------------------------------------------------------------------------

Head: TypeAlias = tuple[int, int]  # (layer, head)


def label(head: Head) -> str:
    """A head's name, as TransformerLens writes it.

    >>> label((0, 3))
    'L0H3'
    """
    return f"L{head[0]}H{head[1]}"


def all_heads(model: AnyModel) -> list[Head]:
    """Every head of a model that says how many it has."""
    cfg: Any = getattr(network_of(model).model, "cfg", None)
    if not hasattr(cfg, "n_layers") or not hasattr(cfg, "n_heads"):
        raise UserError("the model does not say how many heads it has (cfg.n_layers, cfg.n_heads)")
    return [(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]


def head_named(model: AnyModel, name: str | Head) -> Head:
    """The head of a name such as ``L0H3``, or of a pair (layer, head).

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> head_named(copy_by_hand(), "L0H0")
    (0, 0)
    """
    heads = {label(head): head for head in all_heads(model)}
    name = name if isinstance(name, str) else label(name)
    if name not in heads:
        raise unknown("head", name, heads)
    return heads[name]


def hook_named(model: AnyModel, name: str) -> str:
    """The name itself, if the model has a hook point of this name."""
    hooks = getattr(network_of(model).model, "hook_dict", None)
    if hooks is None:
        raise UserError("this needs activations, and the model has no hooks (no hook_dict)")
    if name not in hooks:
        raise unknown("hook point", name, hooks)
    return name


# -- what position biases it needs ------------------------------------------------------------------------------------


def own_relation(
    model: AnyModel, task: Task, train_max: int, relation: RelationLike | None = None
) -> tuple[Network, Relation]:
    """What to probe, and the relation it uses.

    A relation that is given is taken as it is. Otherwise it is that of the model's own scheme, as the scheme states it
    (content-addressed ones state an approximation, in their words). A scheme that learns its relation has small gates
    left over from training that no answer depends on, and each would add codes: so they are switched off in a copy,
    as many as leave every answer in the training range as it is, and that copy is probed in its place.
    """
    subject = network_of(model)
    if relation is not None:
        return subject, relation_of(relation)
    scheme = scheme_of(subject.model)
    if scheme is None:
        raise UserError("the model's relation is not known: give one, e.g. relation='i-j' or relation='(i,j)'")
    pruned = prune(subject, task, train_max) if scheme.learns_relation else None
    return pruned or (subject, scheme.relation())


def prune(model: AnyModel, task: Task | None = None, train_max: int = 10) -> tuple[Network, Relation] | None:
    """A copy of a trained model without what its answers in range do not need, and the relation that is left.

    Arguments:
        model: a model of this project; it is not changed.
        task: the model's own if None.
        train_max: exact match at every scale up to here, on the same instances, stays what it was.

    Returns the copy (its `model` is the network) and its `Relation`, whose `words` say what stays; None where the
    scheme has nothing that can go. It can be had for ``lbpe``, for schemes with a bias for each code (``relative``,
    ``t5``, and ``hinted:`` of them), and for any scheme of your own with `tables` or `prune`. Raises `UserError` for a
    model whose task is not known.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> copy, relation = prune(copy_by_hand("hinted:relative", 12), train_max=3)
    >>> relation.words.partition(" in ")[2]
    'min(i−j, max_distance): none; clip(i−j−n, ±max_distance): 0'
    """
    task = task_of(model, task)
    trial = Network(copy.deepcopy(network_of(model).model))
    scheme = scheme_of(trial.model)
    if scheme is None:
        return None
    scales = scales_up_to(task, train_max)
    generator = Generator().manual_seed(0)
    batches = {scale: task.sample(scale, PRUNING_INSTANCES, generator) for scale in scales}
    before = {scale: exact_of(trial, task, scale, batch) for scale, batch in batches.items()}

    def unchanged() -> bool:
        return all(exact_of(trial, task, scale, batches[scale]) == before[scale] for scale in reversed(scales))

    relation = scheme.prune(unchanged)
    return None if relation is None else (trial, relation)


class RelationProbe(Probe):
    """The relation that the heads learned, pruned, where the scheme learns one: a row for each form and value.

    The strongest come first; `value` is the bias, `form` the linear form and `form_value` its value.
    """

    name, measures = "relation", ("relation",)
    words = OURS["relation"].words

    def rows(self, context: "Context") -> list[Row]:
        own = scheme_of(context.subject.model)
        if own is None or not own.learns_relation or context.pruned is None:
            return []
        subject, relation = context.pruned
        scheme = scheme_of(subject.model) or own
        rows = []
        for layer, head, form, value, _, bias in scheme.entries():
            row = {"measure": "relation", "layer": layer, "head": head, "relation": relation.words}
            rows.append({**row, "form": str(form), "form_value": value, "value": round(bias, 6)})
        return rows
