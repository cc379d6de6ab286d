"""What is proven from the weights alone, for every instance: how much attention can leak, and that answers are right.

A *step* writes one token of an answer; its *query* is the position before that token, and its *sources* are the earlier
positions that it reads.

**Named keys.** A position embedding that adds a bias for a finite number of codes *names* a bounded number of keys at
each query. All other keys, the *rest*, have no bias: a head sees of them only what their tokens are. Here a key is
named if its code has a bias in any head, if it is the query itself, or if it holds a mark such as ``=`` (of which an
instance has a fixed number). Where all keys without a value weigh together as one (``other=one``), a key is named if
any head has a value for it, even if that is 0. The rest is then pooled in every head; a named key is pooled where a
head has no value for it. The first key never is. The *leak* is the share of attention that goes to the rest.

**Kinds of steps.** The keys that a query i names at input size n, and marks, sources and borders, all stand on *lines*
α·i + γ·n + δ. What a layer of attention can tell of positions at a query is how its lines lie: on which keys exist, and
which coincide. That is the sign of every difference of two of them, which again is such a form. Two steps with the same
signs are of the same *kind*.

At one n the form α·i + γ·n + δ changes its sign at a *cut*, the point r = −(γ·n+δ)/α on the axis of queries; a form
with α = 0 is a *wall* at one n. As n grows, cuts move with speeds −γ/α. Let A, the *period*, be the least number that
makes A·γ/α whole for all of them. Then:

    A kind of step that occurs at n occurs at n−A, too, and at n+A, unless in between a wall is passed, or at n the cut
    just below (or at) the step has another of another speed within 1 + A·|difference of speeds|.

For if there is none, moving the step along with that cut to n±A meets no other: those of the same speed move along,
all others are too far away, and their sides stay. The cut moves by a whole number, so the step stays at a whole
position, as near above the cut as before. Two cuts of different speeds are that near at finitely many n. So from some n
on, the *settled* one, every kind is one of those of A sizes in a row (`settling`), and it moves to larger positions
only: a cut slower than the first query would have met it. A kind of step is bounded at all positions from the first to
the last that it can have, so no n is left out.

**Answers.** The proof that they are right is for models in which logits are linear in what heads move: one layer of
attention, no norm, no MLP. There the right token's lead over another is a sum over heads of weighted means Σ w g / Σ w,
with one term for each key: g is what the key's token adds to the lead, and w is e^score, divided by the number of
pooled keys for those. Named keys that are the circuit's sources hold known tokens. All other keys may hold any symbol;
the least value of such a quotient is found by Dinkelbach's method, head by head.

The model is run in floating point. Its rounding is bounded, too, by the usual worst case: a chain of k operations is
off by k·u/(1−k·u) of what it would be with all signs positive, u being half the distance of 1 to the next number. The
number of keys enters k, in whatever order sums over them are taken.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes import PositionScheme
from lengthlens.models.schemes.relation import MOST_FORMS
from lengthlens.models.transformer import HookedModel
from lengthlens.tasks import Operator, Task
from lengthlens.tasks.circuit import Layout, Line, StepRange
from lengthlens.tasks.scale import Ints
from lengthlens.tasks.task import END

NONE = -1  # no such key; of tokens, any symbol
GRAIN = 2.0**30  # biases are taken as multiples of its inverse
LARGEST_BIAS = 2.0**22  # of the sum over all names, so that they are exact; e to that power is beyond any number
# Sizes n at which a task's layout is compared with its circuit: all small ones, and some that are not.
COMPARED = (*range(1, 65), 100, 128, 333, 1000, 1001, 4096)
MOST_PERIOD = 1000  # of sizes after which kinds of steps repeat; forms with factors of 1 to 4 have 12 or less
ROUNDS = 8  # of the iteration, which converges quadratically; a bound holds after any of them
MOST_CASES = 100_000  # combinations of tokens that a step may read
FINE = 1.002  # ratio of the ends of a range of positions that is not halved any more
MOST_STEPS = 300_000  # to look at, one by one: some seconds, and all of them up to n = 700 or so
ELEMENTS = 1 << 22  # numbers that a bound is computed from at once: 32 MB


# -- named keys -------------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    """The keys that queries name, each once."""

    key: Tensor  # [query, name], NONE where a query names fewer than the widest one
    bias: Tensor  # [layer, head, query, name], what the scheme adds there
    pooled: Tensor  # [layer, head, query, name], whether it is one of those that weigh together as one key
    size: Tensor  # [layer, head], the sum of all biases without their signs, at the query where that is the largest

    @property
    def exists(self) -> Tensor:
        return self.key != NONE


def named_at(scheme: PositionScheme, query: Tensor, scale: int | Tensor, marks: Tensor) -> Named:
    """What queries [query] name at one n or at one each, [query]; the marks of each, [query, mark], are among it."""
    names = scheme.named_keys(query, scale)
    assert names is not None  # other schemes are refused before
    key, bias, valued = names
    size = bias.abs().sum(3).amax(2)
    if not bool((size < LARGEST_BIAS).all()):
        raise UserError(f"biases of scheme '{scheme.name}' add up to {float(size.max()):g}: too much to be certified")
    key = torch.cat([key, marks, query[:, None]], 1)
    more = (0, key.shape[1] - bias.shape[3])
    bias, valued = (torch.nn.functional.pad(part, more) for part in (bias, valued))
    valued = valued | (not scheme.pools_others)
    key = torch.where((key >= 0) & (key <= query[:, None]), key, NONE)
    same = (key[:, :, None] == key[:, None, :]) & (key != NONE)[:, None, :]  # [query, name, name]
    again = same.tril(-1).any(2)
    # Whole numbers, which float64 adds without rounding: the same keys have the same sum wherever they are met.
    parts = bias.double().mul(GRAIN).round(), valued.double()
    total, values = (torch.einsum("qmk,lhqk->lhqm", same.double(), part) for part in parts)
    total = (total / GRAIN).to(bias.dtype)
    key, order = torch.where(again, NONE, key).sort(dim=1, descending=True)
    width = int((key != NONE).sum(1).max())
    key, order = key[:, :width], order.expand_as(total)[..., :width]
    return Named(key, total.gather(3, order), (values.gather(3, order) == 0) & (key > 0), size)


@dataclass(frozen=True, eq=False)
class NamedSteps:
    """Answer queries at any n: what each names, what is known of the tokens there, and what its step reads."""

    query: Tensor  # [step]
    scale: Tensor  # [step]
    named: Named
    token: Tensor  # [step, name], the mark that a named key holds, NONE for any symbol
    at_query: Tensor  # [step], the same for the query itself
    layout: Layout
    which: Ints  # [step], which of the layout's steps it is
    sources: Tensor  # [step, slot], NONE where it has fewer
    held: Tensor  # [step, slot], the mark there, NONE for any symbol

    @classmethod
    def at(cls, scheme: PositionScheme, task: Task, layout: Layout, query: Ints, scale: Ints) -> "NamedSteps":
        i, n = torch.from_numpy(query), torch.from_numpy(scale)
        marks = torch.stack([line.at(torch.zeros_like(n), n) for _, line in layout.marks], 1)  # [step, mark]
        ids = torch.tensor([task.ids[name] for name, _ in layout.marks])

        def mark_at(position: Tensor) -> Tensor:
            there = position[..., None] == marks.view(len(n), *[1] * (position.dim() - 1), -1)
            return torch.where(there, ids, NONE).amax(-1)

        which, sources = layout.reads(query, scale)
        if (which < 0).any():
            raise UserError(f"the layout of task '{task.name}' has no step for some query of its answer")
        read, named = torch.from_numpy(sources), named_at(scheme, i, n, marks)
        return cls(i, n, named, mark_at(named.key), mark_at(i), layout, which, read, mark_at(read))

    @classmethod
    def of_size(cls, scheme: PositionScheme, task: Task, n: int, layout: Layout | None = None) -> "NamedSteps":
        """All steps of one n, by the task's layout if that is given and says something about n, else by its circuit."""
        if layout is None or n < layout.since:
            layout = layout_of_size(task, n)
        query = np.arange(layout.first.at(0, n), layout.last.at(0, n) + 1)
        return cls.at(scheme, task, layout, query, np.full(len(query), n))

    def only(self, k: int) -> "NamedSteps":
        """One of them."""
        row = slice(k, k + 1)
        key, bias, pooled, size = self.named
        named = Named(key[row], bias[:, :, row], pooled[:, :, row], size)
        parts = self.token[row], self.at_query[row], self.layout, self.which[row], self.sources[row], self.held[row]
        return NamedSteps(self.query[row], self.scale[row], named, *parts)

    def kinds(self) -> tuple[list[bytes], Ints]:
        """The distinct kinds of steps, spelled out: all that decides what one layer does; and which is whose. [step]"""
        named, slots = self.named, self.sources.shape[1]
        exists = named.exists.numpy()
        role = (named.key[:, :, None] == self.sources[:, None]) & (self.sources >= 0)[:, None]  # [step, name, slot]
        of_key = [self.token, named.key == self.query[:, None], role.long() @ 2 ** torch.arange(slots)]
        of_head = [named.bias.double().flatten(0, 1).view(torch.long), named.pooled.flatten(0, 1).long()]
        of_key_and_head = [*(part.long()[None] for part in of_key), *of_head]
        facts = torch.cat(of_key_and_head).permute(1, 2, 0).contiguous().numpy()  # [step, name, fact]
        facts[~exists] = -1  # as bytes, after all others
        # The order of keys makes no difference, and neither does how many there are at other steps.
        keys = np.sort(facts.view(np.dtype((np.void, facts.itemsize * facts.shape[2])))[..., 0], axis=1)
        read = torch.cat([self.sources, self.query[:, None]], 1)
        first = (read[:, :, None] == read[:, None]).long().argmax(2)  # the first slot with the same source
        last = self.query == self.layout.last.at(self.query, self.scale)
        facts = torch.cat([first, self.held, self.at_query[:, None], last[:, None]], 1).numpy()
        operators = np.array([operator.encode() for operator, *_ in self.layout.steps])[self.which]
        number = exists.sum(1).tolist()
        parts = zip(operators, facts, keys, number)
        rows = [b"|".join([name, bytes(fact), bytes(key[:m])]) for name, fact, key, m in parts]
        numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        return list(numbers), np.array([numbers[row] for row in rows])


def layout_of_size(task: Task, n: int) -> Layout:
    """What a task's circuit says at one n, as a layout of that n alone."""
    any_row = torch.zeros(1, task.input_length(n), dtype=torch.long)
    tokens = task.assemble(any_row, n).tokens[0]
    marks = (tokens[:-1] >= len(task.symbols)).nonzero()[:, 0].tolist()

    def at(position: int) -> Line:
        return Line(constant=position)

    steps = [StepRange(s.operator, at(s.query), at(s.query), tuple(map(at, s.sources))) for s in task.circuit(n)]
    named = tuple((task.vocab[int(tokens[mark])], at(mark)) for mark in marks)
    return Layout(named, at(task.prompt_length(n)), at(len(tokens)), tuple(steps), n)


def checked_layout(task: Task) -> Layout:
    """The layout of a task, if it has one and its circuit, marks and lengths agree with it."""
    layout = task.layout()
    if layout is None:
        raise UserError(f"task '{task.name}' does not say where its steps are at every n (`Task.layout`)")
    largest = math.inf if task.max_scale is None else task.max_scale
    for n in COMPARED:
        if max(layout.since, task.min_scale) <= n <= largest and not _agrees(task, layout, n):
            raise UserError(f"the layout of task '{task.name}' is not that of its circuit at n = {n}")
    return layout


def _agrees(task: Task, layout: Layout, n: int) -> bool:
    circuit, told = task.circuit(n), layout_of_size(task, n)
    which, sources = layout.reads(circuit.query, np.full(len(circuit), n))
    marks, marks_told = (sorted((name, line.at(0, n)) for name, line in each.marks) for each in (layout, told))
    return (
        marks == marks_told
        and (layout.answer.at(0, n), layout.length.at(0, n)) == (told.answer.constant, told.length.constant)
        and bool((which >= 0).all())
        and np.array_equal(sources, circuit.sources)
        and [layout.steps[k].operator for k in which] == [circuit.operators[k].name for k in circuit.operator]
    )


# -- kinds ------------------------------------------------------------------------------------------------------------


class Settling(NamedTuple):
    """Every kind of step at any n from `since` on is one of the sizes `since` to `since` + `period` − 1."""

    since: int
    period: int

    def alike(self, n: int) -> int:
        """A size whose kinds of steps are those of n.

        >>> Settling(7, 2).alike(5), Settling(7, 2).alike(10)
        (5, 8)
        """
        return min(n, self.since + (n - self.since) % self.period)


def settling(places: Iterable[Line], first: Line, last: Line, start: int = 1) -> Settling:
    """From which n on no kind of step is new, where steps are at the queries from `first` to `last`.

    `places` are all lines on which something stands: keys, marks, borders; `start` is the least n of which that is so.

    Example: queries n+1 … 2n+1 that name the key n back, beside ``^`` at 0 and ``=`` at n+1. At n = 1 there are a first
    and a last query; at n = 2 there is one between for the first time, and nothing is new after that. The rule says
    so from n = 3 on: the cuts at n+1 and 2n+1 are n apart, which is more than 1 + 1 then.

    >>> settling([Line(1, -1), Line(), Line(0, 1, 1)], Line(0, 1, 1), Line(0, 2, 1))
    Settling(since=3, period=1)
    """
    if not 0 <= first.scale <= last.scale:
        raise UserError("queries must move on with n for kinds of steps to settle")
    distinct = np.array(sorted({*places, Line(1), first, last}))  # [place, 3]
    forms = (distinct[:, None] - distinct).reshape(-1, 3)
    # By their sign alone: without a common factor, the first factor positive, each once. [form, 3]
    forms = forms[forms[:, :2].any(1)]
    forms = forms // np.gcd.reduce(forms, axis=1)[:, None]
    forms = np.unique(forms * np.sign(np.where(forms[:, 0] != 0, forms[:, 0], forms[:, 1]))[:, None], axis=0)
    cuts = forms[forms[:, 0] > 0]  # [cut, 3]: α, γ, δ
    period = math.lcm(*(int(a // math.gcd(a, c)) for a, c, _ in cuts.tolist()))
    if period > MOST_PERIOD:
        raise UserError(
            f"kinds of steps repeat only every {period} sizes, for the factors of i in the forms: where that is more "
            f"than {MOST_PERIOD} nothing is proven about long instances"
        )
    ends = [start - 1, *(period - d // c for a, c, d in forms.tolist() if a == 0 and c > 0)]  # a wall is at n = −d/c
    for a, c, d in cuts:
        # r − r' = (speed·n + offset) / (a·a'), to be compared with 1 + period·|speed| / (a·a')
        speed, offset = cuts[:, 1] * a - c * cuts[:, 0], cuts[:, 2] * a - d * cuts[:, 0]
        meets = speed != 0
        reach = a * cuts[:, 0] + np.abs(speed) * period
        ends += ((reach - offset * np.sign(speed))[meets] // np.abs(speed[meets])).tolist()
    return Settling(max(ends) + 1, period)


def settling_of(scheme: PositionScheme, task: Task, layout: Layout) -> Settling:
    """Of a layer of attention: it sees keys that the query names, marks, sources, and borders of operators."""
    named = scheme.named_lines(layout)
    assert named is not None  # other schemes are refused before
    lines = {Line(), layout.answer, *named, *(line for _, line in layout.marks)}
    for steps in layout.steps:
        lines |= {steps.first, steps.last, *steps.sources}
    return settling(lines, layout.first, layout.last, max(layout.since, task.min_scale))


# -- leaks -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def leak_bound(model: HookedModel, task: Task, layout: Layout, length: int) -> Tensor:
    """An upper bound on the share of attention of the first layer that goes to keys without a name. [head]

    It holds at every answer query of every instance of input size `length`. At a query with token q let x be the
    largest score of a symbol, and x + δ_m the least score of the named key m. There are fewer than i+2 other keys, and
    all scores are multiplied by the temperature s(i), so the share is at most 1 / (1 + Σ_m e^{s(i)·δ_m} / (i+2)). Each
    term is a power of i+2 under length-scaled scores, and falls with i otherwise: over the answer's queries it is least
    at an end. Where other keys weigh together as one, and scores are not scaled, they have e^x at most, however many
    they are: the number i+2 then stands only below named keys that are pooled themselves. Where other keys are one of
    score 0, so is x.

    In the first layer scores are known from the tokens. Of later layers nothing is known: a norm leaves vectors of
    length √d_model, and the bound that follows from that alone is 1 in every trained network that was tried.

    Example: one head, no content, one named key with a bias of 5, no scaling, n = 100. The last query is i = 201; it
    attends to ``=``, and names ``^`` and itself, without a bias: at most 1 / (1 + (e⁵ + 1 + 1) / 203) = 0.57 leaks.
    """
    scheme, ends = model.pos_embed, torch.tensor([task.prompt_length(length) - 1, task.length(length) - 2])
    steps = NamedSteps.of_size(scheme, task, settling_of(scheme, task, layout).alike(length), layout)
    heat, number = temperature(model, ends), torch.log(ends + 2.0)
    token, symbols = torch.arange(model.cfg.d_vocab), len(task.symbols)
    key, mark = steps.named.key, steps.at_query[:, None]
    occurs = torch.where(mark < 0, token < symbols, token == mark)  # [query, token], at the query itself
    # The score of every token as a key for every token as a query: [head, query token, key token].
    attn, y = model.layers[0].attn, model.layers[0].ln1(model.embed.W_E)
    q, k = (torch.einsum("tm,hmd->htd", y, w) + b[:, None] for w, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K)))
    table = q @ k.transpose(1, 2) / model.cfg.attn_scale
    most, lowest = (part[:, None, :, None] for part in (table[..., :symbols].amax(-1), table[..., :symbols].amin(-1)))
    of_mark = table[:, :, steps.token.clamp(min=0)].transpose(1, 2)
    least = torch.where((steps.token < 0)[:, None], lowest, of_mark)  # a symbol may be any: [head, query, token, name]
    least = torch.where((key == steps.query[:, None])[:, None], table[:, token, token][:, None, :, None], least)
    pooled = steps.named.pooled[0][:, :, None]
    if scheme.means_others:  # others have score 0
        least, most = torch.where(pooled, 0.0, least), torch.zeros(())
    gap = (least + steps.named.bias[0][:, :, None] - most).masked_fill((key < 0)[:, None], -math.inf)
    # Whether a named key loses weight against the rest as that grows in number.
    fades = (pooled if scheme.pools_others else torch.ones_like(pooled)).to(gap.dtype)
    kept = (gap[..., None] * heat - fades[..., None] * number).amin(-1).exp().sum(-1)  # [head, query, token]
    return torch.where(occurs, 1 / (1 + kept), 0.0).amax((1, 2))


def temperature(model: HookedModel, position: Tensor) -> Tensor:
    """What the scores of a query at a position are multiplied by."""
    if model.config.score_scaling == "none":
        return torch.ones(position.shape, dtype=position.dtype if position.is_floating_point() else None)
    return torch.log(position + 2.0) / math.log(model.config.train_ctx + 2)


# -- right answers -----------------------------------------------------------------------------------------------------


class ProofStep(NamedTuple):
    """An answer query: what it names, and all that the circuit may find there."""

    query: int
    key: Tensor  # [name]
    bias: Tensor  # [head, name]
    pooled: Tensor  # [head, name], whether it weighs together with the rest as one key
    token: Tensor  # [case, name], −1 where it may be any symbol
    target: Tensor  # [case]
    size: Tensor  # [head], of the biases that the scheme adds up, without their signs


def steps_of(task: Task, steps: NamedSteps) -> Iterator[ProofStep]:
    """Steps with all combinations of tokens that they may read."""
    symbols, functions = range(len(task.symbols)), dict[str, Operator]()
    for k, (query, scale) in enumerate(zip(steps.query.tolist(), steps.scale.tolist())):
        read = [s for s in steps.sources[k].tolist() if s >= 0]
        marks = dict(zip([*read, query], [*steps.held[k].tolist(), int(steps.at_query[k])]))  # −1 for any symbol
        choices = [symbols if mark < 0 else [mark] for mark in marks.values()]
        if math.prod(map(len, choices)) > MOST_CASES:
            raise UserError(f"a step of task '{task.name}' may read more than {MOST_CASES} combinations of tokens")
        cases = list(itertools.product(*choices))
        operator = steps.layout.steps[steps.which[k]].operator
        if operator not in functions:
            functions |= task.circuit(scale).functions
        function, place = functions[operator].function, [list(marks).index(s) for s in read]
        target = torch.tensor([task.ids[function(*(task.vocab[case[at]] for at in place))] for case in cases])
        last = query == int(steps.layout.last.at(query, scale))
        if not bool(((target == task.ids[END]) if last else (target < len(symbols))).all()):
            raise UserError(f"operator '{operator}' of task '{task.name}' may write a mark where a symbol is due")
        exists = steps.named.exists[k]
        key = steps.named.key[k][exists]
        token = steps.token[k][exists].repeat(len(cases), 1)
        for position, column in zip(marks, torch.tensor(cases).T):
            token[:, key == position] = column[:, None]
        bias, pooled = (part[0][:, k][:, exists] for part in (steps.named.bias, steps.named.pooled))
        yield ProofStep(query, key, bias, pooled, token, target, steps.named.size[0])


class Tables:
    """What a model of one layer of attention alone does with tokens, in float64, and how it rounds."""

    @torch.no_grad()
    def __init__(self, model: HookedModel, task: Task) -> None:
        attn, self.symbols = model.layers[0].attn, len(task.symbols)
        self.pools, self.means = model.pos_embed.pools_others, model.pos_embed.means_others
        self.heat = partial(temperature, model)
        E, U, out = (part.double() for part in (model.embed.W_E, model.unembed.W_U, attn.W_O))
        b_O, b_U = attn.b_O.double(), model.unembed.b_U.double()
        weights = [
            (w.double(), b.double()[:, None])
            for w, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
        ]
        q, k, v = (torch.einsum("tm,hmd->htd", E, w) + b for w, b in weights)
        self.scores = q @ k.transpose(1, 2) / model.cfg.attn_scale  # [head, query token, key token]
        self.logits = torch.einsum("htd,hdm->htm", v, out) @ U  # [head, token, logit]
        self.alone = (E + b_O) @ U + b_U  # [token, logit]
        # The same with all signs positive, at most over tokens.
        q, k, v = (torch.einsum("tm,hmd->htd", E.abs(), w.abs()) + b.abs() for w, b in weights)
        self.score_size = (q @ k.transpose(1, 2)).amax((1, 2)) / model.cfg.attn_scale  # [head]
        moved = torch.einsum("htd,hdm->htm", v, out.abs()).amax(1).sum(0)
        self.logit_size = float(((E.abs().amax(0) + moved + b_O.abs()) @ U.abs() + b_U.abs()).max())
        number = torch.finfo(model.cfg.dtype)
        self.unit, self.tiny = number.eps / 2, number.tiny
        cfg = model.cfg  # chains: operations of which a score or a logit is the result, exp and gates included
        self.score_chain = 2 * cfg.d_model + cfg.d_head + 64
        self.logit_chain = 2 * cfg.d_model + cfg.n_heads * cfg.d_head + 64

    def score_error(self, step: ProofStep, last: Tensor) -> Tensor:
        """By how much a score may be off, and the exponent that is made of it, up to a position. [head, range]"""
        size = (self.score_size + step.size.double())[:, None] + torch.log(last.double() + 2)
        names = step.bias.shape[1]
        return 2 * (self._off(self.score_chain + names) * size + MOST_FORMS / GRAIN) * self.heat(last.double())

    def lead_error(self, last: int) -> float:
        """By how much the lead of a token may be off, weights apart, at positions up to `last`.

        Softmax sums over all keys, and so does the mean of the values: one chain as long as there are keys for each.
        Weights may vanish below the smallest number there is.
        """
        return 4 * self.logit_size * (self._off(2 * (last + 1) + self.logit_chain) + (last + 1) * self.tiny)

    def _off(self, chain: int) -> float:
        return chain * self.unit / (1 - chain * self.unit) if chain * self.unit < 0.5 else math.inf


@torch.no_grad()
def least_lead(tables: Tables, step: ProofStep, first: int, last: int) -> float:
    """A lower bound on the lead of the right token at a step, for every instance, at any position from first to last.

    It holds for the model as it is run: what rounding can do is taken off.
    """
    names, tokens, logits = len(step.key) + 1, *tables.alone.shape
    block = max(1, ELEMENTS // (names * tokens * logits))
    cases = range(0, len(step.target), block)
    parts = [step._replace(token=step.token[c : c + block], target=step.target[c : c + block]) for c in cases]
    ends = torch.tensor([first, last])
    return min(_least_lead(tables, part, ends) for part in parts) - tables.lead_error(last)


def _least_lead(tables: Tables, step: ProofStep, ends: Tensor) -> float:
    ends = ends.double()
    heat = tables.heat(ends)  # [2]
    rest = (ends + 1 - len(step.key)).clamp(min=0)  # how many other keys
    here = step.token[:, (step.key == step.query).nonzero()[0, 0]]  # [case], at the query itself
    right = step.target[:, None]
    total = tables.alone[here].gather(1, right) - tables.alone[here]  # [case, logit]
    token = torch.arange(len(tables.alone))
    any_symbol = token < tables.symbols
    possible = torch.where(step.token[..., None] < 0, any_symbol, token == step.token[..., None])
    off = tables.score_error(step, ends[1:])[:, 0].exp()  # [head]
    for head, scores in enumerate(tables.scores):
        gain = tables.logits[head][:, step.target].T[:, None] - tables.logits[head].T[None]  # [case, logit, token]
        content = scores[here][:, None]
        if tables.means:
            content, scores = torch.where(step.pooled[head][:, None], 0.0, content), torch.zeros_like(scores)
        named = content + step.bias[head].double()[:, None]  # [case, name, token]
        top = named.masked_fill(~possible, -math.inf).amax((1, 2), keepdim=True)
        low, high = _weights(named - top, heat)
        other_low, other_high = _weights((scores[here] - top[..., 0])[:, None], heat)
        count = torch.ones_like(rest)
        if tables.pools:
            count = (ends + 1 - (~step.pooled[head]).sum()).clamp(min=1)  # pooled keys
        each = rest / count
        share = torch.where(step.pooled[head], 1 / count[:, None], 1.0)[..., None]  # [2, name, 1]
        low = torch.cat([low * share.amin(0), other_low * each.min()], 1) / off[head]
        high = torch.cat([high * share.amax(0), other_high * each.max()], 1) * off[head]
        may = torch.cat([possible, any_symbol.expand(len(here), 1, -1)], 1)
        total = total + _least_mean(low, high, may, gain)
    return float(total.scatter(1, right, math.inf).min())


def _weights(score: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
    """e^(heat·score) at its least and greatest while heat goes from one end to the other."""
    both = (heat.view(2, *[1] * score.dim()) * score).exp()
    return both.amin(0), both.amax(0)


def _least_mean(low: Tensor, high: Tensor, may: Tensor, gain: Tensor) -> Tensor:
    """The least of Σ w g / Σ w where each key chooses one of the tokens it `may` hold, and w between its bounds.

    `low`, `high`, `may` [case, key, token], `gain` [case, logit, token]; out [case, logit]. With F(ρ) = min Σ w·(g−ρ)
    the least mean is at least ρ + F(ρ) / Σ low, for any ρ.
    """
    low, high, may, gain = low[:, None], high[:, None], may[:, None], gain[:, :, None]  # [case, logit, key, token]
    least_sum = low.masked_fill(~may, math.inf).amin(-1).sum(-1)
    rho = gain.masked_fill(~may, -math.inf).amax((2, 3))
    bound = torch.full_like(rho, -math.inf)
    for _ in range(ROUNDS):
        excess = gain - rho[..., None, None]
        weight = torch.where(excess < 0, high, low)
        least, which = (weight * excess).masked_fill(~may, math.inf).min(-1)
        short = least.sum(-1)
        bound = torch.maximum(bound, rho + short.clamp(max=0) / least_sum)
        rho = rho + short / weight.gather(-1, which[..., None])[..., 0].sum(-1)
    return bound


@dataclass(frozen=True)
class Kind:
    """A kind of step, and where it may occur: at sizes from `since` on, at positions from `low` to `high`."""

    step: NamedSteps  # one of it
    since: int
    low: int
    high: int


def all_kinds(scheme: PositionScheme, task: Task, layout: Layout, limit: int) -> tuple[list[Kind], int, int]:
    """Every kind of step at an n up to `limit`, the earliest first; the n from which on none is new; and `limit`, or a
    smaller one up to which these are all kinds if there are more than `MOST_STEPS` steps to look at.

    Every step of every n is looked at until none is new. From there on a kind may occur at any position up to the last.
    """
    settled, period = settling_of(scheme, task, layout)
    kinds, looked_at = dict[bytes, Kind](), 0
    for n in range(task.min_scale, min(limit, settled + period - 1) + 1):
        steps = NamedSteps.of_size(scheme, task, n, layout)
        looked_at += len(steps.query)
        if looked_at > MOST_STEPS:
            return list(kinds.values()), settled, n - 1
        rows, number = steps.kinds()
        for k, row in enumerate(rows):
            at = np.flatnonzero(number == k)
            low, high = int(steps.query[at[0]]), int(steps.query[at[-1]])
            kind = kinds.get(row) or Kind(steps.only(at[0]), n, low, high)
            highest = max(kind.high, task.length(limit) - 2 if n >= settled else high)
            kinds[row] = Kind(kind.step, kind.since, min(kind.low, low), highest)
    return list(kinds.values()), settled, limit


class Proof(NamedTuple):
    """What is proven: up to which n the right token leads at every step of every instance."""

    length: int  # below the task's smallest n if nothing is
    step: ProofStep | None  # the one that is not certain beyond; None if the limit was reached
    least: float  # a bound on all leads up to there
    settled: int  # the n from which on no kind of step is new


def proof(model: HookedModel, task: Task, layout: Layout, limit: int) -> Proof:
    """The largest n up to `limit` at which the right token leads at every step of every instance."""
    kinds, settled, end = all_kinds(model.pos_embed, task, layout, limit)
    tables, weakest, least = Tables(model, task), None, math.inf
    for kind in kinds:
        if kind.since > end:
            break
        last = min(kind.high, task.length(end) - 2)
        (step,) = steps_of(task, kind.step)
        good, lead = certain_up_to(tables, step, kind.low, last)
        least = min(least, lead)
        if good < last:
            weakest = step
            # Sizes before it occurs, and those that have no position after the last at which it is certain.
            more = bisect_right(range(kind.since, end + 1), good, key=lambda n: task.length(n) - 2)
            end = kind.since - 1 + more
    return Proof(end, weakest, least, settled)


def certain_up_to(tables: Tables, step: ProofStep, first: int, last: int) -> tuple[int, float]:
    """The last position up to which a step's right token leads wherever it may be, and the least lead on the way.

    Ranges of positions are halved where the bound for all of a range at once fails.
    """
    least, at, ends = math.inf, first, [last]
    while ends:
        end = ends[-1]
        lead = least_lead(tables, step, at, end)
        if lead > 0:
            least, at = min(least, lead), end + 1
            ends.pop()
        elif end <= at * FINE:
            return at - 1, least
        else:
            ends.append(max(at, min(end - 1, math.isqrt(at * end))))
    return last, least
