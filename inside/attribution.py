"""Which tokens, and apart from them which positions, determine an answer, and by how much.

Every token of an input has two *gates*: α on its embedding, and β on what its position contributes: the vector added
to it, the part of a score that a rotation makes, the bias or the factor of the scheme where it is the key. At α = β = 1
the network is unchanged. What a method attributes to a token or a position, it attributes to its gate:

- ``gradient``: the derivative of the answer by the gate (gradient × input).
- ``integrated``: integrated gradients (captum), from all gates at 0 to all at 1; they add up to the difference.
- ``lrp``: layer-wise relevance propagation. The rules below make the network a linear function of tokens, positions
  and biases with the same value, so that relevance is conserved exactly, layer by layer:

  * norms divide by a constant, activations multiply by one: relevance passes in proportion to what enters;
  * of what a head moves from key j to query i, half goes to the value moved, and half to its weight;
  * a weight's half goes to the parts of its score above their mean over all keys: content (half to the query, half to
    the key), and position (rotation, bias, factor), in proportion to their absolute size;
  * the embedding of a token and the vector of its position share what reaches them in proportion.

  What is left goes to the biases of the network and is listed apart.
- ``rollout``: attention rollout, the product over layers of mean patterns and the identity; of tokens alone, and it
  knows neither the answer nor positions.

The *answer* is the logit of a token at a query, less the mean over the vocabulary. `judge_relevance` tests how good an
attribution is.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.func import functional_call

from lengthlens.errors import UserError, unknown
from lengthlens.inside.instances import StepRoles, as_instances, checked_scales, first_query, roles_in, watch
from lengthlens.models.attention import log_temperature
from lengthlens.probes.network import AnyModel, Network, network_of, task_of
from lengthlens.runs.evaluation import evaluating
from lengthlens.tasks import Batch, Task

METHODS = ("lrp", "gradient", "integrated", "rollout")
STEPS = (32, 64, 128, 256, 512)  # of the path of integrated gradients, tried until they add up
SLOWLY = 4  # power of the time at which a gate on that path stands
COMPLETE = 0.01  # of the answer: integrated gradients that miss it by less add up
TINY = 1e-6  # a preference among keys below it is none
Hook = tuple[str, Callable[..., Any]]


@dataclass(frozen=True)
class Relevance:
    """What each token and position of some inputs contributed to an answer.

    `positions` is None for a method that does not tell. `conservation` is how far all parts together are from the
    answer (for integrated gradients, from its difference to the answer of an empty network), relative to its size.
    """

    method: str
    tokens: Tensor  # [row, pos]
    positions: Tensor | None  # [row, pos]
    bias: float  # of all rows together
    output: Tensor  # [row], the answer
    baseline: Tensor  # [row], what is left of it where nothing enters

    @property
    def conservation(self) -> float:
        """|sum of parts − answer| over |answer|, of all rows together."""
        parts = self.tokens.sum() + (0 if self.positions is None else self.positions.sum()) + self.bias
        return float((parts + self.baseline.sum() - self.output.sum()).abs() / self.output.abs().sum().clamp(min=TINY))


def relevance(
    model: AnyModel,
    tokens: str | Tensor,
    query: int | Sequence[int] | Tensor | None = None,
    target: str | int | Sequence[int] | Tensor | None = None,
    method: str = "lrp",
    *,
    scale: int | None = None,
    steps: int | None = None,
) -> Relevance:
    """What each token, and apart from that each position, contributes to an answer.

    Arguments:
        model: a HookedModel (its hook points for norms, scores and position terms are used).
        tokens: ids [row, pos] of one input size, or a text.
        query: the position whose prediction it is, one for all rows or one each; the last if None.
        target: the token predicted, by name or id, one for all rows or one each; the arg-max if None.
        method: lrp, gradient, integrated or rollout.
        scale: the input size n; read off the tokens by the task's rule if None.
        steps: of the path of integrated gradients; if None, as many as it takes for them to add up to a hundredth of
            the answer, up to 512.

    Result: a `Relevance`.

    Errors: UserError for a method that does not exist, with the nearest, a query outside the input, or another model.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> result = relevance(copy_by_hand("lbpe"), "^ 7 3 5 =")  # reads the 7, n back, by position alone
    >>> result.tokens.round().tolist(), result.positions.round().tolist(), result.conservation < 1e-6
    ([[0.0, 14.0, 0.0, 0.0, 0.0]], [[0.0, 14.0, 0.0, 0.0, 0.0]], True)
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    network: Any = network_of(model).model
    if not hasattr(network, "hook_dict") or not hasattr(network, "pos_embed"):
        raise UserError("attribution needs a model of this project, with its hook points and position embedding")
    if not network.layers[0].attn.normalization.plain and method != "gradient":
        raise UserError(f"method '{method}' has rules for softmax without a sink: method 'gradient' does without them")
    ids, scale = as_instances(model, tokens, scale)
    ids = ids.to(network_of(model).device)
    gated = Gated(network, scale, rules=method == "lrp")
    with evaluating(network):
        at = torch.as_tensor(ids.shape[1] - 1 if query is None else query, device=ids.device).expand(len(ids))
        if int(at.min()) < 0 or int(at.max()) >= ids.shape[1]:
            raise UserError(f"there is no position {int(at.max())}: the input has positions 0 to {ids.shape[1] - 1}")
        if target is None:
            target = network(ids, scale)[torch.arange(len(ids), device=ids.device), at].argmax(-1)
        target = network.to_single_token(target) if isinstance(target, str) else target
        wanted = torch.as_tensor(target, device=ids.device).expand(len(ids))
        if method == "rollout":
            return _rollout(gated, ids, at)
        with gated.installed():
            given = gated, ids, at, wanted
            return _integrated(*given, steps) if method == "integrated" else _gates(*given)


# -- methods -------------------------------------------------------------------------------------------------------


def _gates(gated: "Gated", ids: Tensor, query: Tensor, target: Tensor) -> Relevance:
    """The derivative of the answer by each gate: gradient × input, or relevance where its rules act."""
    alpha, beta = (torch.ones(ids.shape, device=ids.device, requires_grad=True) for _ in range(2))
    gamma = torch.ones((), device=ids.device, requires_grad=True)  # of the biases
    with torch.enable_grad():
        output = gated.answer(alpha, beta, ids, query, target, gamma if gated.rules else None)
        gates = [alpha, beta, gamma]
        tokens, positions, bias = torch.autograd.grad(output.sum(), gates, allow_unused=True, materialize_grads=True)
    method = "lrp" if gated.rules else "gradient"
    return Relevance(method, tokens, positions, float(bias), output.detach(), torch.zeros_like(output))


def _integrated(gated: "Gated", ids: Tensor, query: Tensor, target: Tensor, steps: int | None) -> Relevance:
    from captum.attr import IntegratedGradients  # slow to import, and only this needs it

    ones, zeros = torch.ones(ids.shape, device=ids.device), torch.zeros(ids.shape, device=ids.device)
    output, empty = (gated.answer(gate, gate, ids, query, target) for gate in (ones, zeros))

    def at_time(tokens: Tensor, positions: Tensor, *others: Tensor) -> Tensor:
        """The same path, walked slowly where hardly anything enters: there norms change fastest."""
        return gated.answer(tokens**SLOWLY, positions**SLOWLY, *others)

    for number in STEPS if steps is None else (steps,):
        with torch.enable_grad():
            tokens, positions = IntegratedGradients(at_time).attribute(
                (ones, ones), (zeros, zeros), additional_forward_args=(ids, query, target), n_steps=number,
                internal_batch_size=max(len(ids), 256),
            )  # fmt: skip
        parts = (tokens.detach().to(ones), positions.detach().to(ones))
        result = Relevance("integrated", *parts, 0.0, output, empty)
        if result.conservation <= COMPLETE:
            break
    return result


def _rollout(gated: "Gated", ids: Tensor, query: Tensor) -> Relevance:
    shares = torch.nn.functional.one_hot(query, ids.shape[1]).to(gated.network.cfg.dtype)  # [row, pos]
    for layer in reversed(range(gated.network.cfg.n_layers)):  # one pass each, so that no pattern stays in memory
        below = torch.zeros_like(shares)

        def roll(pattern: Tensor, shares: Tensor = shares, below: Tensor = below) -> None:
            here = slice(first_query(pattern), pattern.shape[-1])
            mean = pattern.mean(1)  # [row, query, key]
            passed = shares[:, here] / (mean.sum(-1) + 1)
            below[:, : here.stop] += (passed[:, None] @ mean)[:, 0]
            below[:, here] += passed

        watch(gated.network, ids, gated.scale, [(f"blocks.{layer}.attn.hook_pattern", roll)])
        shares = below
    ones = torch.ones(len(ids), device=ids.device)  # shares add up to 1, whatever the answer
    return Relevance("rollout", shares, None, 0.0, ones, torch.zeros_like(ones))


# -- the network with gates ------------------------------------------------------------------------------------------


class Gated:
    """A network whose tokens and positions have gates while they are `installed`; see the top of this file.

    Scores come in blocks of queries, and again for the gradient, so that memory grows with the length, not its square.
    """

    alpha: Tensor  # [row, pos], of tokens
    beta: Tensor  # [row, pos], of positions

    def __init__(self, network: Any, scale: int, rules: bool) -> None:
        self.network, self.scale, self.rules = network, scale, rules

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Gates, and with `rules` the rules of relevance, act in the block; gradients are to be taken there, too."""
        with self.network.blocked_attention(), self.network.hooks(fwd_hooks=self._hooks()):
            yield

    def answer(
        self, alpha: Tensor, beta: Tensor, ids: Tensor, query: Tensor, target: Tensor, gamma: Tensor | None = None
    ) -> Tensor:
        """The answer under gates [row, pos]. [row]"""
        self.alpha, self.beta = (gate.to(self.network.cfg.dtype) for gate in (alpha, beta))
        weights = {}
        if gamma is not None:  # on what is added to all that passes; the scheme's parameters have their gates
            biases = re.compile(r"(?!pos_embed)(.*\.)?b(_[^.]*)?")
            named = self.network.named_parameters()
            weights = {name: gamma * each for name, each in named if biases.fullmatch(name)}
        logits = functional_call(self.network, weights, (ids, self.scale))
        rows = torch.arange(len(ids), device=ids.device)
        at = logits[rows, query]
        unused = 0 * (alpha.sum(1) + beta.sum(1))  # a scheme without positions has no other use for their gates
        answer: Tensor = at[rows, target] - at.mean(-1) + unused
        return answer

    def _hooks(self) -> list[Hook]:
        known, hooks = self.network.hook_dict, list[Hook]()

        def add(name: str, function: Callable[..., Any]) -> None:
            if name in known:
                hooks.append((name, lambda value, hook: function(value)))

        add("hook_embed", lambda x: x * self.alpha[..., None])
        for name in ("hook_pos_embed", "hook_qk_embed"):
            add(name, lambda x: x * self.beta[..., None])
        if self.rules:
            add("ln_final.hook_scale", torch.detach)
        for layer in range(self.network.cfg.n_layers):
            attention = _Attention(self, layer)
            for part, function in attention.hooks().items():
                add(f"blocks.{layer}.attn.{part}", function)
            if self.rules:
                for norm in ("ln1", "ln2"):
                    add(f"blocks.{layer}.{norm}.hook_scale", torch.detach)
                mlp = _Mlp()
                for part in ("hook_pre", "hook_pre_linear"):
                    add(f"blocks.{layer}.mlp.{part}", mlp.entered.append)
                add(f"blocks.{layer}.mlp.hook_post", mlp.passed)
        return hooks


class _Mlp:
    """Relevance passes an activation in proportion; of a product of two, half to each."""

    def __init__(self) -> None:
        self.entered: list[Tensor] = []  # what enters the activation, and what it is multiplied by

    def passed(self, post: Tensor) -> Tensor:
        """`post`, as a constant times what entered, wherever that is not 0."""
        parts = []
        for part in self.entered:
            here = part.abs() > TINY**2
            parts.append(torch.where(here, part * (post / torch.where(here, part, 1)).detach(), post.detach()))
        self.entered.clear()
        return torch.stack(parts).mean(0)


class _Attention:
    """The gates and rules of one attention layer; sees its activations in the order in which they arise.

    Scores and patterns [row, head, query, key] are those of a block of queries, with all keys up to its last.
    """

    def __init__(self, gated: Gated, layer: int) -> None:
        network = gated.network
        self.qkv: dict[str, Tensor] = {}
        self.gated, self.rules = gated, gated.rules
        self.rotates = f"blocks.{layer}.attn.hook_rot_q" in network.hook_dict
        self.factors = "factor" in network.pos_embed.acts_in(layer)
        self.scale, config = network.cfg.attn_scale, network.config
        scaled = config.score_scaling == "log" and network.pos_embed.spreads_in(layer)
        self.scaled = config.train_ctx if scaled else None
        self.bias: Tensor | None = None
        # By the first query of a block: what the heads give, by the rules. None once that is joined: blocks are then
        # repeated for the gradient, and a reference to any of them would hold them all in memory.
        self.moved: dict[int, Tensor] | None = None

    def hooks(self) -> dict[str, Callable[..., Any]]:
        watched: dict[str, Callable[..., Any]] = {"hook_pos_score": self.gate_bias}
        if self.rotates or self.rules:
            watched |= {f"hook_{name}": partial(self.keep, name) for name in "qkv"}
        if self.rotates or self.rules or self.factors:
            watched["hook_attn_scores"] = self.gate_rotation
        if self.factors or self.rules:
            watched["hook_pattern"] = self.gate_factor
        return watched | ({"hook_z": self.joined} if self.rules else {})

    def keep(self, name: str, value: Tensor) -> None:
        self.qkv[name] = value
        self.moved = {}

    def over_keys(self, values: Tensor) -> Tensor:
        """Values [row, head, query, key] times the gate of each key's position."""
        return values * self.gated.beta[:, None, None, : values.shape[-1]]

    @property
    def temperature(self) -> Tensor | float:
        """Of the queries of the block."""
        if self.scaled is None:
            return 1.0
        q = self.qkv["q"]
        return log_temperature(q.shape[1], self.scaled, q.device)[self.block, None]

    def gate_bias(self, bias: Tensor) -> Tensor:
        self.bias = bias.detach()
        return self.over_keys(bias)

    def content(self, q: Tensor, k: Tensor) -> Tensor:
        """The part of the scores that tokens make. [row, head, query, key]"""
        q, k = q[:, self.block] / self.scale, k[:, : self.block.stop]
        product: Tensor = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * self.temperature
        return product

    def gate_rotation(self, scores: Tensor) -> Tensor:
        self.block = slice(first_query(scores), scores.shape[-1])
        self.later = scores.isneginf()
        if self.rotates:
            content = self.content(self.qkv["q"], self.qkv["k"])
            turned = torch.where(self.later, 0, scores) - content
            self.turned = turned.detach()
            scores = (content + self.over_keys(turned)).masked_fill(self.later, -math.inf)
        self.plain = scores.softmax(-1)
        return scores

    def gate_factor(self, pattern: Tensor) -> Tensor:
        if self.factors:
            here = self.plain > 0
            self.factor = torch.where(here, pattern / torch.where(here, self.plain, 1), 1)
            pattern = self.plain * (1 + self.over_keys(self.factor - 1))
        if self.rules:
            moved = self.mixed(pattern.detach())
            if self.moved is not None:
                self.moved[self.block.start] = moved
        return pattern

    def joined(self, z: Tensor) -> Tensor:
        """What the heads give at all queries, in place of what they would give. [row, query, head, d_head]"""
        assert self.moved is not None
        whole = torch.cat([self.moved[start] for start in sorted(self.moved)], 2).transpose(1, 2)
        self.moved = None
        return whole

    def mixed(self, weights: Tensor) -> Tensor:
        """What the heads give in a block, half of it attributed to values and half to the scores of their weights."""
        q, k = self.qkv["q"], self.qkv["k"]
        parts = [(self.content(q, k.detach()) + self.content(q.detach(), k)) / 2]
        if self.rotates:
            parts.append(self.over_keys(self.turned))
        if self.bias is not None:
            parts.append(self.over_keys(self.bias * self.temperature))
            self.bias = None
        if self.factors:
            parts.append(self.over_keys(self.factor.abs().clamp(min=TINY).log().detach()))
        seen = (~self.later).sum(-1, keepdim=True)
        above = []  # each part less its mean over the keys that a query sees
        for part in parts:
            part = torch.where(self.later, 0, part)
            above.append(torch.where(self.later, 0, part - part.sum(-1, keepdim=True) / seen))
        size = torch.stack([part.detach().abs() for part in above]).sum(0)
        half = torch.where(size > TINY, 0.5, 0.0)
        owed = sum(part.detach().sign() * part for part in above) / size.clamp(min=TINY)  # 1, where there is a size
        values = self.qkv["v"][:, : self.block.stop].transpose(1, 2)
        moved: Tensor = (weights * (1 - half)) @ values + (weights * half * owed) @ values.detach()
        return moved  # [row, head, query, d_head]


# -- how good is an attribution? -----------------------------------------------------------------------------------

N_INSTANCES = 24
DELETED = 8  # tokens taken away, one after the other: more than any step here reads


def judge_relevance(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] = (10,),
    *,
    methods: Sequence[str] = METHODS,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """Judge methods of attribution on a model's answers, one random step of each instance, by three tests.

    - *Conservation*: how far the parts are from the answer, relative to it. 0 is exact.
    - *Deletion*: tokens are replaced by those of another instance, the most relevant first; the area under the
      probability of the answer, beside that of a random order. The lower, the better the order.
    - *Sources*: among as many tokens as the circuit's step reads, the most relevant ones, the share that it reads; the
      same by relevance of positions, where the method tells. Beside it the share that a random choice has.

    Arguments:
        model: a HookedModel.
        task: the task; the model's own if None.
        scales: the input sizes n of the instances.
        methods: among lrp, gradient, integrated and rollout.
        rows: instances of each input size.
        generator: of instances, steps and random orders; seed 0 if None.

    Result: a row for each n and method: conservation, deletion, deletion_random, sources, position_sources (NaN where
    the method does not tell), sources_random.

    Errors: UserError for a method or input size that does not exist, with the nearest.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> judge_relevance(copy_by_hand("lbpe"), scales=[5], methods=["lrp"], rows=8).round(2)["sources"].tolist()
    [1.0]
    """
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    task, subject = task_of(model, task), network_of(model)
    generator, table = generator or torch.Generator().manual_seed(0), []
    for scale in checked_scales(model, task, scales):
        batch = task.sample(scale, rows, generator)
        roles = roles_in(task, scale, batch.tokens)
        step = torch.randint(len(roles.query), (rows,), generator=generator)
        case = _Case(subject, batch, scale, roles, step)
        chance = case.area(torch.rand(batch.tokens.shape, generator=generator))
        for method in methods:
            result = relevance(model, batch.tokens, case.query, method=method, scale=scale)
            positions = result.positions if result.positions is not None and bool(result.positions.any()) else None
            table.append(
                {
                    "scale": scale,
                    "method": method,
                    "conservation": result.conservation,
                    "deletion": case.area(result.tokens.cpu()),
                    "deletion_random": chance,
                    "sources": case.sources_among(result.tokens.cpu()),
                    "position_sources": float("nan") if positions is None else case.sources_among(positions.cpu()),
                    "sources_random": float((case.read.sum(1) / case.seen.sum(1)).mean()),
                }
            )
    return pd.DataFrame(table)


class _Case:
    """Instances with one step each, and what is to be explained there: the model's answer."""

    def __init__(self, subject: Network, batch: Batch, scale: int, roles: StepRoles, step: Tensor) -> None:
        self.subject, self.tokens, self.scale = subject, batch.tokens, scale
        self.query, self.rows = roles.query[step], torch.arange(len(step))
        of_row = self.rows if len(roles.key) > 1 else torch.zeros_like(self.rows)
        self.read = torch.zeros(self.tokens.shape, dtype=torch.bool)  # the sources of each row's step
        for key, role in zip(roles.key[of_row, step].T, roles.role[of_row, step].T):
            self.read[self.rows[role >= 0], key[role >= 0]] = True
        self.seen = torch.arange(self.tokens.shape[1]) <= self.query[:, None]
        self.answer = self._logits(self.tokens).argmax(-1)

    def _logits(self, tokens: Tensor) -> Tensor:
        return self.subject.logits(tokens.to(self.subject.device), self.scale)[self.rows, self.query].cpu()

    def _order(self, relevance: Tensor) -> Tensor:
        """The positions that the query sees, the most relevant first, then all others. [row, pos]"""
        return relevance.masked_fill(~self.seen, -torch.inf).argsort(1, descending=True)

    def area(self, relevance: Tensor) -> float:
        """The mean probability of the answer while the most relevant tokens are replaced, one by one."""
        tokens, other, probabilities = self.tokens.clone(), self.tokens.roll(1, 0), []
        for place in self._order(relevance)[:, :DELETED].T:
            tokens[self.rows, place] = other[self.rows, place]
            probabilities.append(self._logits(tokens).softmax(-1)[self.rows, self.answer].mean())
        return float(torch.stack(probabilities).mean())

    def sources_among(self, relevance: Tensor) -> float:
        """The share of sources among as many of the most relevant tokens."""
        rank, number = self._order(relevance).argsort(1), self.read.sum(1, keepdim=True)
        return float((((rank < number) & self.read).sum(1, keepdim=True) / number).mean())
