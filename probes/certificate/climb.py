"""How far a model's steps stand the worst leak that is found: length by length, up to the first that they do not."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from lengthlens.models.transformer import HookedModel
from lengthlens.probes.certificate.places import Places
from lengthlens.probes.certificate.search import BANK, Game, Leak, Scene, any_mixture, scene
from lengthlens.tasks import Task

ROWS = 2048  # instances at random from which steps are taken, and as many of long runs: rare operands occur, too
BLOCK = 64  # instances that the model is run on at once
STEPS_EACH = 8  # steps tried at each answer query of a short instance, at every length: half of them the weakest
WEAKEST = 256  # steps tried because their margin is the least, wherever they are
SEARCHED = 64  # of all of those, how many the adversary works on: mostly the worst under a random leak
RESERVE = 0.2  # share of its usual margin that every step must keep: the search may have missed the worst
RATIO = 4.0  # of the lengths that are looked at
FINE = 1.1  # ratio of the longest length that holds and the least that does not, when the search ends


class Weakest(NamedTuple):
    """The step with the least margin at a length."""

    margin: float
    step: str
    head: str  # the one whose leak costs it the most


class Climb:
    """Looks for the largest length at which every step keeps a reserve. What was found is in its fields."""

    def __init__(self, model: HookedModel, task: Task, settled: int, seed: int, tell: Callable[[str], None]) -> None:
        self.model, self.task, self.tell = model, task, tell
        self.screened = 0  # short instances that the model itself was run on
        self.wrong = 0  # those on which it errs: then nothing is worth a climb
        self.weakest: dict[int, Weakest] = {}  # by length
        self.usual = math.inf  # margin of most steps of short instances
        self.games: list[tuple[Game, Scene]] = [self._game(scale, seed) for scale in (settled, settled + 1)]

    @property
    def steps(self) -> int:
        """How many steps were tried at each length."""
        return sum(len(steps.target) for _, steps in self.games)

    def up_to(self, first: int, limit: int) -> tuple[int, int | None]:
        """The largest length that holds, `first` taken for granted, and the least one that was seen not to."""
        reached, failed = first, None
        with constant(self.model):
            for length in lengths_between(first, limit):
                if not self._holds(length):
                    failed = length
                    break
                reached = length
            while failed is not None and failed > FINE * reached + 1:
                middle = round(math.sqrt(reached * failed))
                reached, failed = (middle, failed) if self._holds(middle) else (reached, middle)
        return reached, failed

    def _holds(self, length: int) -> bool:
        self.tell(f"the worst leak at n = {length}")
        found = []
        for game, steps in self.games:
            tried = game.tried(steps, length)
            chosen = steps.rows(worth_a_search(tried, game.generator))
            margins, leak = game.worst(chosen, length)
            at = margins.argmin()[None]
            found.append(self._in_words(game, chosen.rows(at), Leak(*(part[at] for part in leak)), length))
        self.weakest[length] = min(found)
        return self.weakest[length].margin >= RESERVE * self.usual

    # -- steps ---------------------------------------------------------------------------------------------------

    def _game(self, scale: int, seed: int) -> tuple[Game, Scene]:
        """Steps at every answer query of instances of a scale, and an adversary with a bank of all other positions."""
        self.tell(f"weak steps at n = {scale}")
        generator = torch.Generator().manual_seed(seed + scale)
        places = Places(self.model.pos_embed, self.task, scale)
        tokens = instances(self.task, scale, ROWS, generator)
        margins = true_margins(self.model, tokens, scale, places.first_answer)
        self.screened += len(tokens)
        self.wrong += int((margins <= 0).any(1).sum())
        self.usual = min(self.usual, float(margins.median()))
        symbols = places.symbol.nonzero()[:, 0]
        anywhere = symbols[torch.randint(len(symbols), (BANK,), generator=generator)]
        anyone = torch.randint(len(tokens), (BANK,), generator=generator)
        bank = scene(self.model, self.task, places, tokens, anyone, anywhere).at_query()
        mixture = any_mixture((BANK, 1, len(self.task.symbols)), generator)
        row, answer = weak_steps(margins, generator)
        steps = scene(self.model, self.task, places, tokens, row, places.answer_queries[answer])
        return Game(self.model, self.task, bank, mixture, generator), steps

    # -- words ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _in_words(self, game: Game, step: Scene, leak: Leak, length: int) -> Weakest:
        heads = [(layer, h) for layer in range(self.model.cfg.n_layers) for h in range(self.model.cfg.n_heads)]
        without = [float(game.margins(step, length, leak, cut)) for cut in heads]
        layer, head = heads[max(range(len(heads)), key=without.__getitem__)]
        scale = int(step.scale)
        number = int(step.position[0, 0]) + 2 - self.task.prompt_length(scale)
        token, total = self.task.vocab[int(step.target)], self.task.answer_length(scale)
        words = f"n = {length}, the step that writes '{token}' where answer token {number} of {total} is at n = {scale}"
        return Weakest(float(game.margins(step, length, leak)), words, f"layer {layer} head {head}")


def lengths_between(first: int, last: int) -> Iterator[int]:
    """Lengths behind `first` in equal ratios, and `last`.

    >>> list(lengths_between(10, 1000))
    [40, 160, 640, 1000]
    """
    length = first
    while (length := round(length * RATIO)) < last:
        yield length
    yield last


def instances(task: Task, scale: int, rows: int, generator: torch.Generator) -> Tensor:
    """Instances at random, and as many of long runs of the same symbol. [row, pos]"""
    tokens = task.sample(scale, rows, generator).tokens
    drawn = task.draw(scale, rows, generator, torch.device("cpu"))
    again = torch.rand(drawn.shape, generator=generator) < torch.rand(rows, 1, generator=generator)
    source = torch.where(again, 0, torch.arange(drawn.shape[1])).cummax(1).values
    runs = drawn.gather(1, source)
    return torch.cat([tokens, task.assemble(runs[task.valid(runs, scale)], scale).tokens])


@torch.no_grad()
def true_margins(model: HookedModel, tokens: Tensor, scale: int, first_answer: int) -> Tensor:
    """By how much the model's right logit leads at each answer token of instances of a scale. [row, answer]"""
    margins = []
    for rows in tokens.split(BLOCK):
        logits = model(rows[:, :-1], torch.tensor([scale]))[:, first_answer - 1 :]
        right = rows[:, first_answer:, None]
        margins.append(logits.gather(2, right)[..., 0] - logits.scatter(2, right, -math.inf).amax(2))
    return torch.cat(margins)


def weak_steps(margins: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows and answer tokens: the weakest of all, the weakest of each answer token, and any of each. [step] both"""
    rows, answers = margins.shape
    of_all = margins.flatten().argsort()[:WEAKEST]
    of_each = margins.argsort(0)[: STEPS_EACH // 2]
    chance = torch.randint(rows, (STEPS_EACH - len(of_each), answers), generator=generator)
    row = torch.cat([of_each, chance])
    place = torch.cat([of_all, (row * answers + torch.arange(answers)).flatten()]).unique()
    return place // answers, place % answers


def worth_a_search(margins: Tensor, generator: torch.Generator) -> Tensor:
    """Steps for the adversary: three in four the worst under a random leak, the others any. [step]"""
    worst = margins.argsort()[: 3 * SEARCHED // 4]
    others = torch.randperm(len(margins), generator=generator)[: SEARCHED // 4]
    chosen: Tensor = torch.cat([worst, others]).unique()
    return chosen


@contextmanager
def constant(model: HookedModel) -> Iterator[None]:
    """Parameters as constants while the adversary's choices are being improved."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
