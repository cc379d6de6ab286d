"""Many runs as one: runs that differ in seed, learning rate or initial values only train as one stacked network.

Steps of networks as small as these take their time for the number of operations, not for their size, and a stack takes
as many as one run. Instances, weights, learning rate, clipping, stopping and log belong to each run, which becomes what
it would have become alone, but for the order of sums.
"""

import json
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lengthlens.models.devices import sent
from lengthlens.models.schemes import PositionScheme
from lengthlens.models.transformer import HookedModel
from lengthlens.runs.config import RunConfig
from lengthlens.runs.trainer import AnswerLoss, Trainer, answer_start, loss_inputs

MAY_DIFFER = ("seed", "lr", "initializer_range")  # between the runs of a stack
EPS = 1e-8  # AdamW's usual one
MOMENTS = ("exp_avg", "exp_avg_sq")


def stacks(configs: Sequence[RunConfig], most: int) -> list[list[RunConfig]]:
    """The configs, in groups of at most `most` that can be trained as one.

    >>> seeds = [RunConfig("copy", "rope", seed=seed) for seed in range(3)]
    >>> [len(group) for group in stacks([*seeds, RunConfig("copy", "alibi")], most=2)]
    [2, 1, 1]
    """
    alike: dict[str, list[RunConfig]] = {}
    for config in configs:
        free = MAY_DIFFER if config.precision == "float32" else ()
        common = {name: value for name, value in config.to_dict().items() if name not in free}
        alike.setdefault(json.dumps(common, sort_keys=True), []).append(config)
    return [group[k : k + most] for group in alike.values() for k in range(0, len(group), most)]


class Stack:
    """Trainers whose networks are trained as one. Weights and moments are here until `put_back` returns them."""

    def __init__(self, trainers: Iterable[Trainer]) -> None:
        self.trainers = list(trainers)
        first = self.trainers[0]
        self.device, self.config = first.device, first.config
        self.loss = AnswerLoss(first.model, first.task.next_sets)
        for block in first.model.layers:
            block.attn.explicit = True  # torch cannot map the fused kernel over models
        named = dict(self.loss.named_parameters())
        self.names, self.shapes = list(named), [each.shape for each in named.values()]
        self.sizes = [each.numel() for each in named.values()]
        of = {id(p): group for group in first.optimizer.param_groups for p in group["params"]}
        groups = [of[id(each)] for each in named.values()]
        self.factor, self.decay = (self._spread([g[key] for g in groups]) for key in ("factor", "weight_decay"))
        self.anneals = type(first.model.pos_embed).anneal is not PositionScheme.anneal
        self.price = Price(first.model) if first.model.pos_embed.penalty() is not None else None
        self._gather()

    def _spread(self, numbers: Sequence[float]) -> Tensor:
        """A number of each parameter for each of its entries. [entry]"""
        parts = [torch.full((size,), number, device=self.device) for size, number in zip(self.sizes, numbers)]
        return torch.cat(parts)

    @torch.no_grad()
    def _gather(self) -> None:
        """Everything of all runs that are left, [run, entry] each."""
        self.weights = torch.stack([_flat(t.parameters) for t in self.trainers]).requires_grad_()
        self.moments = []
        for kind in MOMENTS:
            of_runs = [
                [t.optimizer.state[p].get(kind, torch.zeros_like(p)) for p in t.parameters] for t in self.trainers
            ]
            self.moments.append(torch.stack([_flat(each) for each in of_runs]))
        self._look_again()

    def _look_again(self) -> None:
        """What may change at an evaluation: buffers, and which runs still pay for what they may not need."""
        self.buffers = self._buffers()
        self.pays = sent(torch.tensor([float(not trainer.condensed) for trainer in self.trainers]), self.device)

    def _buffers(self) -> dict[str, Tensor]:
        every = [dict(t.model.named_buffers()) for t in self.trainers]
        return {f"model.{name}": torch.stack([each[name] for each in every]) for name in every[0]}

    @torch.no_grad()
    def put_back(self, trainer: Trainer) -> None:
        """Give a trainer its weights and moments."""
        row = self.trainers.index(trainer)
        parts = [each[row].split(self.sizes) for each in (self.weights, *self.moments)]
        for parameter, shape, weight, *moments in zip(trainer.parameters, self.shapes, *parts):
            parameter.copy_(weight.view(shape))
            state = {kind: moment.view(shape).clone() for kind, moment in zip(MOMENTS, moments)}
            state["step"] = torch.tensor(float(trainer.step), device=self.device)
            trainer.optimizer.state[parameter] = state

    def advance(self) -> list[Trainer]:
        """Train up to the next evaluation of one of the runs, and evaluate those that are there; these."""
        for trainer in self.trainers:
            trainer.model.train()
        for _ in range(min(trainer.steps_left for trainer in self.trainers)):
            losses = self._step()
            for trainer, loss in zip(self.trainers, losses):
                trainer.losses.append(loss)
        there = [trainer for trainer in self.trainers if not trainer.steps_left]
        for trainer in there:
            self.put_back(trainer)
            trainer.evaluate()
        if self.price is not None:
            self._look_again()
        if any(trainer.done for trainer in there):
            for trainer in self.trainers:
                self.put_back(trainer)
            self.trainers = [trainer for trainer in self.trainers if not trainer.done]
            if self.trainers:
                self._gather()
        return there

    def _step(self) -> Tensor:
        """One step of every run; their losses, [run]."""
        losses = self.train_on(*self.inputs())
        for trainer in self.trainers:
            trainer.step += 1
        return losses

    def inputs(self) -> tuple[dict[str, Tensor], Tensor, int, int | None]:
        """Instances of every run and where they stand, and its arithmetic of this step, on the device: [run, …] each;
        where answers begin, and the limit of positions."""
        batches = [trainer.draw() for trainer in self.trainers]
        length, first = max(batch.tokens.shape[1] for batch in batches), min(map(answer_start, batches))
        if self.anneals:
            for trainer in self.trainers:
                trainer.model.pos_embed.anneal(trainer.step / trainer.end)
            self.buffers = self._buffers()
        of_runs, limits = zip(*(loss_inputs(*each, first, length) for each in zip(self.trainers, batches)))
        inputs = {}  # [run, …]; what some runs have once and others for each row becomes one for each row
        for name in of_runs[0]:
            parts = [each[name] for each in of_runs]
            rows = max(len(part) if part.dim() else 0 for part in parts)
            parts = [part.expand(rows, *part.shape[1:]) if part.dim() else part for part in parts]
            inputs[name] = sent(torch.stack(parts), self.device)
        beta2 = self.config.beta2
        rates = [(t.rate(), 1 - 0.9 ** (t.step + 1), (1 - beta2 ** (t.step + 1)) ** 0.5) for t in self.trainers]
        return inputs, sent(torch.tensor(rates), self.device), first, limits[0]

    def train_on(self, inputs: dict[str, Tensor], rates: Tensor, first: int, limit: int | None) -> Tensor:
        """Loss, gradient and update: operations on the device alone, as many for any number of runs."""
        parts = self.weights.split(self.sizes, 1)
        weights = {n: part.view(-1, *shape) for n, shape, part in zip(self.names, self.shapes, parts)}

        def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], inputs: dict[str, Tensor]) -> Tensor:
            of_run: Tensor = functional_call(self.loss, (weights, buffers), (inputs, first, limit))
            return of_run

        losses: Tensor = vmap(loss)(weights, self.buffers, inputs)
        total = losses.sum()
        if (price := self.price) is not None:
            total = total + self.pays @ vmap(lambda *state: functional_call(price, state, ()))(weights, self.buffers)
        (gradient,) = torch.autograd.grad(total, self.weights)
        self._update(gradient, rates)
        return losses.detach()

    @torch.no_grad()
    def _update(self, gradient: Tensor, rates: Tensor) -> None:
        """AdamW with the learning rate, and the norm at which gradients are clipped, of each run."""
        config, (average, square) = self.config, self.moments
        if config.clip:
            gradient *= (config.clip / (torch.linalg.vector_norm(gradient, dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
        lr, first, second = rates[:, None].unbind(-1)  # [run, 1] each
        pace = lr * self.factor  # [run, entry]
        self.weights.mul_(1 - pace * self.decay)
        average.lerp_(gradient, 0.1)
        square.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
        self.weights.sub_(pace / first * average / (square.sqrt() / second + EPS))


class Price(nn.Module):
    """What a model's scheme adds to the loss, under the names that `AnswerLoss` has."""

    def __init__(self, model: HookedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> Tensor | None:
        return self.model.pos_embed.penalty()


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts])
