"""A network as the probes see it: tokens of one n in, logits or activations out. Its heads by name, its pruned copy.

Any model will do that maps ids [row, pos] to logits [row, pos, token]. What the probes know about it in addition (its
task, its scheme, its hook points, its heads) is asked here, and a sentence says what is missing.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.models.schemes.relation import Relation
from lengthlens.models.schemes.scheme import PositionScheme, scheme_of
from lengthlens.models.schemes.spec import RelationLike, relation_of
from lengthlens.runs.evaluation import device_of, evaluating, refuse_looking_ahead, right_tokens, score_of, takes
from lengthlens.tasks import Batch, Task

# Tokens of one forward pass: large enough that overhead does not count, small enough for a processor's cache.
CHUNK_TOKENS = 1 << 14
PRUNING_INSTANCES = 256  # of each n, on which nothing may change


class Network:
    """Any model that can be asked for logits, and, if it has hooks, for activations.

    `model` is a HookedModel of this project, another model with `run_with_cache` (a TransformerBridge, say), or a
    plain function from ids [row, pos] to logits [row, pos, token]. A model with a parameter `scale` is told n, so that
    tokens may be replaced without hiding it. Nothing here has gradients, and a model that has a training mode is taken
    out of it meanwhile.

    >>> logits = Network(lambda tokens: torch.nn.functional.one_hot(tokens, 14).float()).logits
    >>> logits(torch.tensor([[3, 1]]), n=1).argmax(-1)
    tensor([[3, 1]])
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self.takes_scale = takes(model, "scale")
        self.takes_queries = takes(model, "queries")  # and so need not compute the logits of others
        self.device = device_of(model)

    def told(self, n: int) -> dict[str, int]:
        """How the model is told n, if it asks."""
        return {"scale": n} if self.takes_scale else {}

    def logits(
        self, tokens: Int[Tensor, "row pos"], n: int, at: slice = slice(None)
    ) -> Float[Tensor, "row some_pos token"]:
        """[row, pos] to [row, pos, token], at some of the positions."""
        start, stop, _ = at.indices(tokens.shape[1])
        asked, cut = {}, slice(start, stop)
        if self.takes_queries:
            asked, cut = {"queries": cut}, slice(None)
        with evaluating(self.model):
            parts = [self.model(part, **self.told(n), **asked)[:, cut] for part in chunks(tokens)]
        return torch.cat(parts).float()

    def next_tokens(self, tokens: Int[Tensor, "row pos"], n: int, query: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
        """The arg-max next token of each row at the `query` of that row [row], which is on the CPU. [row]"""
        written = torch.empty(len(tokens), dtype=torch.long, device=self.device)
        for at in query.unique().tolist():
            mine = (query == at).nonzero()[:, 0].to(self.device)
            written[mine] = self.logits(tokens[mine], n, slice(at, at + 1))[:, 0].argmax(-1)
        return written

    def activations(
        self, tokens: Int[Tensor, "row pos"], n: int, names: Sequence[str]
    ) -> dict[str, Float[Tensor, "row pos *rest"]]:
        """What each hook point sees, by name, [row, pos, …]."""
        return self.logits_and_activations(tokens, n, names)[1]

    def logits_and_activations(
        self, tokens: Int[Tensor, "row pos"], n: int, names: Sequence[str]
    ) -> tuple[Float[Tensor, "row pos token"], dict[str, Float[Tensor, "row pos *rest"]]]:
        """Both, of one pass."""
        run, caches, logits = self._run_with_cache(), [], []
        with evaluating(self.model):
            for part in chunks(tokens):
                try:
                    out, cache = run(part, names_filter=list(names), **self.told(n))
                except KeyError:
                    out, cache = None, {}  # a name that is none is an error for one library and nothing for another
                for name in names:
                    if name not in cache:
                        raise unknown("hook point", name, run(part[:1], **self.told(n))[1].keys())
                caches.append(cache)
                logits.append(out)
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


AnyModel: TypeAlias = Callable[..., Any] | Network


def chunks(tokens: Tensor) -> list[Tensor]:
    return list(tokens.split(max(1, CHUNK_TOKENS // tokens.shape[1])))


def network_of(model: AnyModel) -> Network:
    return model if isinstance(model, Network) else Network(model)


def task_of(model: AnyModel, task: Task | None) -> Task:
    """The task given, or the one that the model was built for."""
    task = getattr(network_of(model).model, "task", None) if task is None else task
    if not isinstance(task, Task):
        raise UserError("the model does not name its task: give it, e.g. task=TASKS['copy']")
    return task


def sizes_up_to(task: Task, train_max: int) -> range:
    """Every n of the task up to `train_max`."""
    task.checked_scale(train_max)
    return range(task.min_scale, train_max + 1)


def largest_within(task: Task, length: int) -> int:
    """The largest n whose instances have at most so many tokens; the smallest n if none has.

    >>> from lengthlens.tasks import TASKS
    >>> largest_within(TASKS["copy"], 10)  # ^ 1 2 3 = 1 2 3 $ has nine
    3
    """
    n = task.min_scale
    while task.length(n + 1) <= length:
        n += 1
    return int(n)


def answer_queries(task: Task, n: int) -> range:
    """The positions at which a token of the answer is predicted.

    >>> from lengthlens.tasks import TASKS
    >>> answer_queries(TASKS["copy"], 2)  # ^ 7 3 = 7 3 $
    range(3, 6)
    """
    return range(task.prompt_length(n) - 1, task.length(n) - 1)


def exact_by_scale(
    model: AnyModel, task: Task, sizes: Sequence[int], n_instances: int = 256, generator: Generator | None = None
) -> dict[int, float]:
    """Exact match on random instances of each n."""
    network, generator = network_of(model), generator or Generator().manual_seed(0)
    return {n: exact_of(network, task, n, task.sample(n, n_instances, generator)) for n in sizes}


def exact_of(network: Network, task: Task, n: int, batch: Batch) -> float:
    """The share of these instances of one n with every answer token right, in one teacher-forced pass."""
    queries = answer_queries(task, n)
    refuse_looking_ahead(network.model, batch, network.told(n))
    logits = network.logits(batch.tokens.to(network.device), n, slice(queries.start, queries.stop))
    return score_of(n, right_tokens(logits, batch)).exact_match


def reachable(model: AnyModel, task: Task, sizes: Sequence[int]) -> list[int]:
    """The sizes n among these that the task has and the model can process."""
    reached: list[int] = []
    for n in sizes:
        with suppress(UserError):
            reached += exact_by_scale(model, task, [n], n_instances=1)
    return reached


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
#
# Training leaves biases that no answer in the training range depends on. They do no harm there. On longer inputs they
# meet others in combinations that were never seen. So everything that can go without changing exact match at any n of
# the training range, on the same instances, is switched off in a copy. What stays names the codes that the model
# depends on. Nothing is trained, and no input is longer than those of training.
#
# Worked example: ``hinted:relative`` with max_distance 12 has a table for min(i−j, 12) and one for clip(i−j−n, ±12). On
# copying, only the second one at 0 is needed. With both, the key to read has the codes (1, 0), (2, 0), … (n, 0), a new
# one for each n; without the first, one code at every n.


def prune(model: AnyModel, task: Task | None = None, train_max: int = 10) -> tuple[Network, Relation] | None:
    """A copy of a trained model without what its answers in range do not need, and the relation that is left.

    Arguments:
        model: a model of this project; it is not changed.
        task: that of the model if None.
        train_max: exact match at every n up to here, on the same instances, stays what it was.

    Result: the copy (its `model` is the network) and its `Relation`, whose `words` say what stays; None where the
    scheme has nothing that can go. ``lbpe`` can be pruned, schemes with a bias for each code (``relative``, ``t5``, and
    ``hinted:`` of them), and any scheme of your own with `tables` or `prune`.

    Errors: UserError for a model whose task is not known.

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
    generator = Generator().manual_seed(0)
    batches = {n: task.sample(n, PRUNING_INSTANCES, generator) for n in sizes_up_to(task, train_max)}
    before = {n: exact_of(trial, task, n, batch) for n, batch in batches.items()}

    def unchanged() -> bool:
        return all(exact_of(trial, task, n, batches[n]) == before[n] for n in reversed(batches))

    relation = scheme.prune(unchanged)
    return None if relation is None else (trial, relation)


def probed_relation(
    model: AnyModel, task: Task, train_max: int, relation: RelationLike | None = None
) -> tuple[Network, Relation]:
    """The network to probe, and the relation under which its codes are counted.

    A relation that is given is taken as it is. Otherwise it is that of the model's scheme, as the scheme states it
    (content-addressed ones state an approximation, in their words). A scheme that learns its relation has small gates
    left over from training that no answer depends on, and each of them would add codes. So its pruned copy is probed.
    """
    network = network_of(model)
    if relation is not None:
        return network, relation_of(relation)
    scheme = scheme_of(network.model)
    if scheme is None:
        raise UserError("the model's relation is not known: give one, e.g. relation='i-j' or relation='(i,j)'")
    if not scheme.has_codes:
        raise UserError(no_codes(scheme))
    pruned = prune(network, task, train_max) if scheme.learns_relation else None
    return pruned or (network, scheme.relation())


def no_codes(scheme: PositionScheme) -> str:
    return f"scheme '{scheme.name}' gives pairs no codes: it depends on {scheme.hinges_on} (relation='i-j' takes these)"


@dataclass(frozen=True)
class Context:
    """One network while it is probed: what several probes need is computed once.

    Probes draw instances from one `generator`, one after the other in the order of `PROBES`, after `exact`.
    """

    subject: Network
    task: Task
    train_max: int
    generator: torch.Generator
    layers: Sequence[int] | None = None  # of lrc and transfer; all, if None
    beyond: Sequence[int] = ()  # sizes n beyond the training range at which transfer is tested, too
    relation: RelationLike | None = None  # gives codes in the place of the model's relation

    @property
    def range(self) -> tuple[Task, int]:
        """The task, and the largest n of training."""
        return self.task, self.train_max

    @cached_property
    def exact(self) -> dict[int, float]:
        """Exact match at every n of the training range."""
        return exact_by_scale(self.subject, self.task, sizes_up_to(*self.range), generator=self.generator)

    @property
    def uncoded(self) -> str:
        """Why nothing can be counted by codes; nothing if it can."""
        scheme = scheme_of(self.subject.model)
        return no_codes(scheme) if self.relation is None and scheme is not None and not scheme.has_codes else ""

    @cached_property
    def coded(self) -> tuple[Network, Relation]:
        """The network on which codes are counted, and the relation that gives them; see `probed_relation`."""
        return probed_relation(self.subject, *self.range, self.relation)

    @cached_property
    def pruned(self) -> tuple[Network, Relation] | None:
        """A copy without what answers in range do not need, and the relation left; None where nothing can go."""
        known = self.relation is None and scheme_of(self.subject.model) is not None and not self.uncoded
        if known and self.coded[0] is not self.subject:
            return self.coded  # codes are counted on the pruned copy already
        return prune(self.subject, *self.range)
