"""The worst that leaked attention can do to a step, searched for by gradient descent on all that is free.

At a step of a long sequence the keys that are named hold what they hold in a short one. The rest enters a head only
through how many keys there are, the query's temperature, and which tokens (in layer 1: which residual vectors) they
have. So a step at any length is played on the named keys of a short instance: the number of other keys and the
temperature are those of the length in question, and what the other keys are is left to an adversary, for every position
by itself. True instances are among its choices (up to the bank below); most of its choices are no true instances.

In layer 1 the other keys are taken from a bank: residual vectors of positions of all kinds, with random other keys of
their own. The adversary decides how often each occurs.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from lengthlens.models.attention import Block
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.certificate.places import Places, carried
from lengthlens.probes.certificate.proof import score_table, temperature
from lengthlens.runs.trainer import leads
from lengthlens.tasks import Task

BANK = 192  # residual vectors that the rest of layer 1 is made of, or as many as there are places for symbols
ROUNDS = 40  # of gradient descent; margins found hardly fall behind
RATE = 0.5  # of Adam, on logits
FEW = 1e-6  # what stands for no other key, under a logarithm

ROWS = 2048  # instances at random from which steps are taken, and as many of long runs: rare operands occur, too
BLOCK = 64  # instances that the model is run on at once
STEPS_EACH = 8  # steps tried at each answer query of a short instance, at every length: half of them the weakest
WEAKEST = 256  # steps tried because their margin is the least, wherever they are
SEARCHED = 64  # of all of those, how many the adversary works on: mostly the worst under a random leak
RESERVE = 0.2  # share of its usual margin that every step must keep: the search may have missed the worst
RATIO = 4.0  # of the lengths that are tried
FINE = 1.1  # ratio of the longest length that holds and the least that does not, when the search ends


class Scene(NamedTuple):
    """Steps as they look from a query: the places that it names (itself first), and what each of those names."""

    position: Tensor  # [step, place] in the short instance; the first is the query
    token: Tensor  # [step, place]
    exists: Tensor  # [step, place]
    bias: Tensor  # [step, head, place], of the second layer at the query; empty in a model of one layer
    pooled: Tensor  # [step, head, place], whether it weighs together with the rest as one key there
    near: Tensor  # [step, place, name, token], one-hot: the token at each key that a place names
    near_bias: Tensor  # [step, place, head, name], of the first layer; −inf where there is no key
    near_pooled: Tensor  # [step, place, head, name], whether it weighs together with the rest as one key there
    target: Tensor  # [step], the token to be written
    scale: Tensor  # [step], of the short instance

    def rows(self, which: Tensor) -> "Scene":
        return Scene(*(part[which] for part in self))

    def at_query(self) -> "Scene":
        """The same steps without the places that the query names: all that the first layer there needs."""
        parts = ("position", "token", "exists", "near", "near_bias", "near_pooled")
        return self._replace(**{name: getattr(self, name)[:, :1] for name in parts})


class Leak(NamedTuple):
    """The adversary's choices, as logits."""

    tokens: Tensor  # [step, place, symbol], of the other keys of each place, in layer 0
    bank: Tensor  # [step, bank], of the other keys of the query, in layer 1


def scene(model: HookedModel, task: Task, places: Places, tokens: Tensor, row: Tensor, query: Tensor) -> Scene:
    """The steps at `query` [step] in the instances `row` [step] of `tokens` [row, pos]; places of one scale."""
    named, two = places.named, model.cfg.n_layers > 1
    key = named.key[query]  # [step, name]
    order = (key != query[:, None]).long().sort(dim=1, stable=True).indices  # the query itself first
    order = order if two else order[:, :1]
    position = key.gather(1, order)
    exists, position = position >= 0, position.clamp(min=0)
    bias, pooled = (  # [step, head, place]
        part[-1][:, query].gather(2, order.expand(part.shape[1], -1, -1)).transpose(0, 1)
        for part in (named.bias, named.pooled)
    )
    near_key = named.key[position]  # [step, place, name]
    near_token = tokens[row[:, None, None], near_key.clamp(min=0)]
    near_bias, near_pooled = (part[0][:, position].permute(1, 2, 0, 3) for part in (named.bias, named.pooled))
    return Scene(
        position,
        tokens[row[:, None], position],
        exists,
        bias if two else bias[..., :0],
        pooled if two else pooled[..., :0],
        torch.nn.functional.one_hot(near_token, len(task.vocab)).float(),
        near_bias.masked_fill((near_key < 0)[:, :, None], -math.inf),
        near_pooled,
        tokens[row, query + 1],
        torch.full_like(query, places.scale),
    )


class Game:
    """A model's steps at any length, with an adversary in the place of what is not named."""

    def __init__(self, model: HookedModel, task: Task, bank: Scene, mixture: Tensor, generator: Generator) -> None:
        """`bank`: the positions whose residual vectors make the rest of layer 1, and the logits of their own rest."""
        self.model, self.symbols, self.generator = model, len(task.symbols), generator
        self.blocks: list[Block] = list(model.layers)
        with torch.no_grad():
            first = self.blocks[0]
            self.qk = score_table(model)
            self.ov = torch.einsum("thd,hdm->htm", projections(first, model.embed.W_E)[2], first.attn.W_O)
        self._bank_scene, self._bank_mixture = bank, mixture
        self._banks: dict[int, tuple[Tensor, ...]] = {}

    def margins(self, steps: Scene, length: int, leak: Leak, cut: tuple[int, int] | None = None) -> Tensor:
        """By how much the right token's logit exceeds the best other one, [step]. Under `cut` (layer, head) the head's
        other keys are taken away."""
        x = self._first(steps, length, leak.tokens, cut[1] if cut and cut[0] == 0 else None)
        last = x[:, 0]
        if len(self.blocks) > 1:
            last = self._second(steps, length, x, leak.bank, cut[1] if cut and cut[0] == 1 else None)
        return leads(self.model.unembed(self.model.ln_final(last)[None])[0], steps.target)

    def _first(self, steps: Scene, length: int, mixture: Tensor, cut: int | None) -> Tensor:
        """The residual stream behind layer 0 at every place, [step, place, d_model]."""
        where = carried(steps.position, int(steps.scale[0]), length)  # [step, place], in the long sequence
        heat = temperature(self.model, where)[..., None, None]
        scores = self.qk[:, steps.token].permute(1, 2, 0, 3)  # [step, place, head, token]
        exists = steps.near_bias > -math.inf
        shared = self._shared(where[..., None], exists & ~steps.near_pooled)  # [step, place, head, 1]
        near = self._content(torch.einsum("spht,spnt->sphn", scores, steps.near), steps.near_pooled)
        near = near + steps.near_bias - steps.near_pooled * shared
        count = where + 1 - exists[:, :, 0].sum(-1)
        rest = (self._content(scores[..., : self.symbols]) - shared) * heat
        rest = _counted(rest, count[..., None, None], mixture[:, :, None], cut)
        pattern = torch.cat([near * heat, rest], -1).softmax(-1)
        named, others = pattern.split([near.shape[-1], self.symbols], -1)
        by_token = torch.einsum("sphn,spnt->spht", named, steps.near)
        by_token = by_token + torch.nn.functional.pad(others, (0, by_token.shape[-1] - self.symbols))
        mixed = torch.einsum("spht,htm->spm", by_token, self.ov)
        return after(self.blocks[0], self.model.embed.W_E[steps.token] + mixed)

    def _second(self, steps: Scene, length: int, x: Tensor, mixture: Tensor, cut: int | None) -> Tensor:
        """The residual stream behind layer 1 at the query, [step, d_model]."""
        block, scale = self.blocks[1], self.model.cfg.attn_scale
        where = carried(steps.position[:, 0], int(steps.scale[0]), length)
        heat = temperature(self.model, where)[:, None, None]
        q, k, v = projections(block, x)  # [step, place, head, d_head]
        bank_k, bank_v = self._bank(length)  # [bank, head, d_head]
        shared = self._shared(where[:, None], steps.exists[:, None] & ~steps.pooled)  # [step, head, 1]
        named = self._content(torch.einsum("shd,sphd->shp", q[:, 0], k) / scale, steps.pooled)
        named = named + steps.bias - steps.pooled * shared
        named = (named * heat).masked_fill(~steps.exists[:, None], -math.inf)
        rest = (self._content(torch.einsum("shd,bhd->shb", q[:, 0], bank_k) / scale) - shared) * heat
        count = where + 1 - steps.exists.sum(1)
        rest = _counted(rest, count[:, None, None], mixture[:, None], cut)
        pattern = torch.cat([named, rest], -1).softmax(-1)
        to_named, to_bank = pattern.split([named.shape[-1], len(bank_k)], -1)
        z = torch.einsum("shp,sphd->shd", to_named, v) + torch.einsum("shb,bhd->shd", to_bank, bank_v)
        return after(block, x[:, 0] + torch.einsum("shd,hdm->sm", z, block.attn.W_O))

    def _content(self, scores: Tensor, pooled: Tensor | None = None) -> Tensor:
        """Scores by content of keys of which these are pooled, or all: 0 for those under a scheme that means them."""
        if not self.model.pos_embed.means_others:
            return scores
        return torch.zeros_like(scores) if pooled is None else scores.masked_fill(pooled, 0)

    def _shared(self, where: Tensor, apart: Tensor) -> Tensor:
        """What is taken off the scores of pooled keys, which weigh as one: the log of their number; else 0.

        `where` [*, 1], `apart` [*, head, name] the named keys that are not in it; out [*, head, 1].
        """
        if not self.model.pos_embed.pools_others:
            return torch.zeros(())
        return (where + 1 - apart.sum(-1)).clamp(min=1).log()[..., None]

    def _bank(self, length: int) -> tuple[Tensor, ...]:
        if length not in self._banks:
            with torch.no_grad():
                x = self._first(self._bank_scene, length, self._bank_mixture, None)[:, 0]
                self._banks[length] = projections(self.blocks[1], x)[1:]
        return self._banks[length]

    def random_leak(self, steps: Scene) -> Leak:
        shapes = (*steps.token.shape, self.symbols), (len(steps.token), len(self._bank_scene.token))
        return Leak(*(any_mixture(shape, self.generator) for shape in shapes))

    def worst(self, steps: Scene, length: int) -> tuple[Tensor, Leak]:
        """The least margin that was found for each step, [step], and the leak that gives it."""
        free = Leak(*(part.requires_grad_() for part in self.random_leak(steps)))
        optimizer = torch.optim.Adam(free, lr=RATE)
        least = torch.full((len(steps.target),), math.inf)
        found = Leak(*(part.detach().clone() for part in free))
        for _ in range(ROUNDS + 1):
            margins = self.margins(steps, length, free)
            better = margins.detach() < least
            least = torch.where(better, margins.detach(), least)
            for kept, now in zip(found, free):
                kept[better] = now.detach()[better]
            optimizer.zero_grad()
            margins.sum().backward(inputs=list(free))  # weights are constants here
            optimizer.step()
        return least, found


def any_mixture(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Logits of mixtures from nearly even to nearly pure."""
    spread = torch.rand(*shape[:-1], 1, generator=generator) * 6
    return torch.randn(shape, generator=generator) * spread


def projections(block: Block, x: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values, [*, head, d_head] each."""
    attn, y = block.attn, block.ln1(x)
    maps = (attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V)
    return tuple(torch.einsum("...m,hmd->...hd", y, w) + b for w, b in maps)


def after(block: Block, x: Tensor) -> Tensor:
    """The residual stream behind a block, from that with what its heads wrote."""
    x = x + block.attn.b_O
    out: Tensor = x if block.cfg.attn_only else x + block.mlp(block.ln2(x))
    return out


def _counted(scores: Tensor, count: Tensor, mixture: Tensor, cut: int | None) -> Tensor:
    """Scores [*, head, kind] of the other keys with the logarithm of how many are of each kind; none for a cut head."""
    scores = scores + (count.clamp(min=FEW).log() + mixture.log_softmax(-1))
    return scores if cut is None else scores.index_fill(-2, torch.tensor([cut]), -math.inf)


class Weakest(NamedTuple):
    """The step with the least margin at a length."""

    margin: float
    step: str
    head: str  # the one whose leak costs it the most


class Climb:
    """Looks for the largest length at which every step keeps a reserve. What was found is in its fields."""

    def __init__(
        self, model: HookedModel, task: Task, scales: list[int], seed: int, tell: Callable[[str], None]
    ) -> None:
        """`scales` have, all together, every kind of step that there is at the lengths to be asked about."""
        self.model, self.task, self.scales, self.tell = model, task, scales, tell
        self.screened = 0  # short instances that the model itself was run on
        self.wrong = 0  # those on which it errs: then nothing is worth a climb
        self.weakest: dict[int, Weakest] = {}  # by length
        self.usual = math.inf  # margin of most steps of short instances
        self.games: list[tuple[Game, Scene]] = [self._game(scale, seed) for scale in scales]

    def up_to(self, first: int, limit: int) -> tuple[int, int | None]:
        """The largest length that holds, `first` taken for granted, and the least one that was seen not to.

        Lengths are tried in equal ratios up to one that does not hold, then between.
        """
        reached, failed = first, None
        while reached < limit if failed is None else failed > FINE * reached + 1:
            length = min(round(RATIO * reached), limit) if failed is None else round(math.sqrt(reached * failed))
            if self._holds(length):
                reached = length
            else:
                failed = length
        return reached, failed

    def _holds(self, length: int) -> bool:
        self.tell(f"the worst leak at n = {length}")
        found = []
        for game, steps in self.games:
            with torch.no_grad():
                tried = game.margins(steps, length, game.random_leak(steps))
            # For the adversary: three in four the worst under a random leak, the others any.
            others = torch.randperm(len(tried), generator=game.generator)[: SEARCHED // 4]
            chosen = steps.rows(torch.cat([tried.argsort()[: 3 * SEARCHED // 4], others]).unique())
            margins, leak = game.worst(chosen, length)
            at = margins.argmin()[None]
            found.append(self._in_words(game, chosen.rows(at), Leak(*(part[at] for part in leak)), length))
        self.weakest[length] = min(found)
        return self.weakest[length].margin >= RESERVE * self.usual

    def _game(self, scale: int, seed: int) -> tuple[Game, Scene]:
        """Steps at every answer query of instances of a scale, and an adversary with a bank of all other positions."""
        self.tell(f"weak steps at n = {scale}")
        generator = Generator().manual_seed(seed + scale)
        places = Places(self.model.pos_embed, self.task, scale)
        tokens = instances(self.task, scale, ROWS, generator)
        first, told = places.first_answer, torch.tensor([scale])
        with torch.no_grad():
            logits = [self.model(rows[:, :-1], told)[:, first - 1 :] for rows in tokens.split(BLOCK)]
        margins = leads(torch.cat(logits), tokens[:, first:])  # of the model itself, [row, answer]
        self.screened += len(tokens)
        self.wrong += int((margins <= 0).any(1).sum())
        self.usual = min(self.usual, float(margins.median()))
        symbols = places.symbol.nonzero()[:, 0]
        more = torch.randint(len(symbols), (max(0, BANK - len(symbols)),), generator=generator)
        anywhere = torch.cat([symbols, symbols[more]])  # every kind of place there is
        anyone = torch.randint(len(tokens), anywhere.shape, generator=generator)
        bank = scene(self.model, self.task, places, tokens, anyone, anywhere).at_query()
        mixture = any_mixture((len(anywhere), 1, len(self.task.symbols)), generator)
        row, answer = weak_steps(margins, generator)
        steps = scene(self.model, self.task, places, tokens, row, places.answer_queries[answer])
        return Game(self.model, self.task, bank, mixture, generator), steps

    @torch.no_grad()
    def _in_words(self, game: Game, step: Scene, leak: Leak, length: int) -> Weakest:
        heads = itertools.product(range(self.model.cfg.n_layers), range(self.model.cfg.n_heads))
        layer, head = max(heads, key=lambda cut: float(game.margins(step, length, leak, cut)))
        scale = int(step.scale)
        number = int(step.position[0, 0]) + 2 - self.task.prompt_length(scale)
        token, total = self.task.vocab[int(step.target)], self.task.answer_length(scale)
        words = f"n = {length}, the step that writes '{token}' where answer token {number} of {total} is at n = {scale}"
        return Weakest(float(game.margins(step, length, leak)), words, f"layer {layer} head {head}")


def instances(task: Task, scale: int, rows: int, generator: Generator) -> Tensor:
    """Instances at random, and as many of long runs of the same symbol. [row, pos]"""
    tokens = task.sample(scale, rows, generator).tokens
    drawn = task.draw(scale, rows, generator, torch.device("cpu"))
    again = torch.rand(drawn.shape, generator=generator) < torch.rand(rows, 1, generator=generator)
    source = torch.where(again, 0, torch.arange(drawn.shape[1])).cummax(1).values
    runs = drawn.gather(1, source)
    return torch.cat([tokens, task.assemble(runs[task.valid(runs, scale)], scale).tokens])


def weak_steps(margins: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Rows and answer tokens: the weakest of all, the weakest of each answer token, and any of each. [step] both"""
    rows, answers = margins.shape
    of_all = margins.flatten().argsort()[:WEAKEST]
    of_each = margins.argsort(0)[: STEPS_EACH // 2]
    chance = torch.randint(rows, (STEPS_EACH - len(of_each), answers), generator=generator)
    row = torch.cat([of_each, chance])
    place = torch.cat([of_all, (row * answers + torch.arange(answers)).flatten()]).unique()
    return place // answers, place % answers
