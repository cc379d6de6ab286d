"""Training that can be put down after any evaluation step and taken up again as if nothing had happened."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lengthlens.errors import UserError
from lengthlens.models.devices import present_device, sent
from lengthlens.models.schemes import PositionScheme, schemes_in
from lengthlens.models.schemes.scheme import Positions
from lengthlens.models.transformer import HookedModel, build
from lengthlens.runs.config import RunConfig
from lengthlens.runs.evaluation import FLOAT, device_of, evaluating, numbers_a_token, right_tokens
from lengthlens.tasks import Batch, Task
from lengthlens.tasks.task import sets_of
from lengthlens.values import within_memory

CHECK_SAMPLES = 64  # of each n, for each evaluation of in-range exact match
MARGIN_PLATEAU = 0.05  # the margin is on a plateau when it grew by less than this share over `patience` evaluations
DIVERGED = 4.0  # times the loss of guessing: far above what any stumble of a healthy run reaches
CHECK_TUPLES = 4  # tuples of each size among which they are shared out, where instances have tuples of sizes
CHECK_SEED = 1 << 61  # added to the seed of the instances that are evaluated, which training does not see


class Metrics(NamedTuple):
    """What is noted every `check_every` steps."""

    step: int
    loss: float  # mean over the steps since the last evaluation
    lr: float
    in_range_exact_match: float  # mean over n up to train_max
    margin: float  # mean over instances of the least lead of a right token over the best wrong one, in logits
    tokens: int  # seen so far


def refuse_too_large(config: RunConfig) -> None:
    """Refuse, before anything is made, a run that cannot fit into memory.

    What is counted is less than what is needed: for each weight its gradient and AdamW's two moments beside it, and
    what the backward pass needs of each token of a batch.

    >>> refuse_too_large(RunConfig(task="copy", scheme="rope", d_model=1 << 18))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lengthlens.errors.UserError: a run with d_model 262144 and batches of 32 would take ...
    """
    model, task = config.model.resolved(), config.task_object
    weights = model.n_layers * model.d_model * (4 * model.n_heads * (model.d_head or 0) + 2 * (model.d_mlp or 0))
    activations = config.batch * task.length(config.train_max) * model.n_layers * numbers_a_token(model)
    what = f"a run with d_model {config.d_model} and batches of {config.batch}"
    within_memory((4 * weights + activations) * FLOAT, what)


class Trainer:
    """One run's model, optimiser and random generators.

    `advance` trains up to the next evaluation step. After it, `state` is everything that the rest of the run depends
    on, and a fresh Trainer of the same config that `load`s it continues bit for bit as this one would (on one device).
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.task = config.task_object
        self.device = present_device(config.device)
        if config.precision == "bfloat16" and self.device.type != "cuda":
            raise UserError(f"precision bfloat16 is for cuda, and this run is on {self.device.type}: use float32")
        self.model = build(config.model).to(self.device)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, config)
        self.data = torch.Generator().manual_seed(config.seed)
        self.draws = torch.Generator().manual_seed(config.seed)  # of schemes that draw positions
        for scheme in schemes_in(self.model):
            scheme.generator = self.draws
        self.compiled = compiled_loss(self.model, config) if config.compile else None
        self.history: list[Metrics] = []
        self.losses: list[Tensor] = []  # since the last evaluation
        self.step = self.tokens = 0
        self.end = config.steps  # earlier once the margin is on a plateau
        self.condensed = False  # whether the scheme was told to drop what it does not need

    @property
    def done(self) -> bool:
        return self.step >= self.end or self.diverged

    @property
    def diverged(self) -> bool:
        """Whether the last loss is no number, or far worse than guessing."""
        if not self.history:
            return False
        loss, guessing = self.history[-1].loss, math.log(len(self.task.vocab))
        return not math.isfinite(loss) or loss > DIVERGED * guessing

    def advance(self) -> Metrics:
        """Train up to the next evaluation step, and evaluate."""
        self.model.train()
        while self.steps_left:
            self.losses.append(self._step())
        return self.evaluate()

    @property
    def steps_left(self) -> int:
        """Steps up to the next evaluation."""
        since = len(self.losses)
        return min(self.end - self.step, self.config.check_every - since) if self.step < self.end else 0

    def evaluate(self) -> Metrics:
        """Note how the run is doing, and begin the cool-down once its margin is on a plateau."""
        loss = float(torch.stack(self.losses).mean())
        self.losses = []
        right, margin = check_in_range(self.model, self.task, self.config)
        self.history.append(Metrics(self.step, loss, self.rate(), right, margin, self.tokens))
        if on_plateau(self.history, self.config.patience):
            self.end = min(self.end, math.ceil(self.step / (1 - self.config.cooldown)))
        if not self.condensed and self.step >= (1 - self.config.cooldown) * self.end:
            self.condensed = True
            self.model.pos_embed.condense(lambda: check_in_range(self.model, self.task, self.config)[0] >= right)
        return self.history[-1]

    def _step(self) -> Tensor:
        batch = self.draw()
        rate = self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.model.pos_embed.anneal(self.step / self.end)
        lower = self.config.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16) if lower else nullcontext():
            if self.compiled is None:
                same = bool((batch.scale == batch.scale[0]).all())  # on the host, where nobody waits for it
                logits = self.model(batch.tokens, int(batch.scale[0]) if same else batch.scale)
                loss = answer_loss(logits, batch, self.config.label_smoothing)
            else:
                first = answer_start(batch)
                inputs, limit = loss_inputs(self, batch, first, batch.tokens.shape[1])
                loss = self.compiled({n: sent(value, self.device) for n, value in inputs.items()}, first, limit)
        price = None if self.condensed else self.model.pos_embed.penalty()
        total = loss if price is None else loss + price
        strided = torch.autograd.grad(total, self.parameters, allow_unused=True)
        gradients = [None if g is None else g.contiguous() for g in strided]  # the fused AdamW ignores strides
        for parameter, gradient in zip(self.parameters, clipped(gradients, self.config.clip)):
            parameter.grad = gradient
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    def draw(self) -> Batch:
        """Instances of one n, or of one for each row, drawn on the CPU so that every device sees the same."""
        low, high, rows = self.task.min_scale, self.config.train_max, self.config.batch
        if self.config.lengths == "one":
            scale = int(torch.randint(low, high + 1, (), generator=self.data))
            batch = self.task.sample(self.task.drawn_scale(scale, self.data), rows, self.data)
        else:
            sizes = torch.randint(low, high + 1, (rows,), generator=self.data).tolist()
            batch = self.task.sample([self.task.drawn_scale(n, self.data) for n in sizes], None, self.data)
        self.tokens += batch.tokens.numel()
        return batch

    def rate(self) -> float:
        return learning_rate(self.step, self.end, self.config)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All tensors, and all else as plain values."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for parameter, moments in self.optimizer.state.items():
            for kind, value in moments.items():
                tensors[f"optimizer.{kind}.{names[parameter]}"] = value
        tensors["generator.data"] = self.data.get_state()
        tensors["generator.draws"] = self.draws.get_state()
        facts = {"step": self.step, "end": self.end, "tokens": self.tokens, "condensed": self.condensed}
        return tensors, facts | {"looks": [list(metrics) for metrics in self.history]}

    def load(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        self.model.load_state_dict({name: tensors[f"model.{name}"] for name in self.model.state_dict()})
        kinds = sorted({name.split(".")[1] for name in tensors if name.startswith("optimizer.")})
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {k: tensors[f"optimizer.{k}.{name}"].to(self.device) for k in kinds}
        self.data.set_state(tensors["generator.data"])
        self.draws.set_state(tensors["generator.draws"])
        self.step, self.end, self.tokens = facts["step"], facts["end"], facts["tokens"]
        self.condensed = facts["condensed"]
        self.history = [Metrics(*values) for values in facts["looks"]]


def compiled_loss(model: HookedModel, config: RunConfig) -> Callable[..., Tensor]:
    """A compiled twin of `AnswerLoss`, one for each n. Hooks are not seen: evaluation and analysis use the model."""
    forget_other_graphs(repr(replace(config.model, seed=0)))
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 2 * config.train_max)
    made: Callable[..., Tensor] = torch.compile(AnswerLoss(model, config.task_object.next_sets), dynamic=False)
    return made


@lru_cache(1)  # so that nothing is done for networks like the last one, which share its graphs
def forget_other_graphs(network: str) -> None:
    """Make room for the graphs of another network: torch keeps so many of one function, and then compiles no more."""
    torch._dynamo.reset()


def make_optimizer(model: HookedModel, config: RunConfig) -> torch.optim.AdamW:
    """AdamW; position parameters at another rate, and weight decay for weight matrices only."""
    fast = {id(parameter) for parameter in fast_parameters(model.pos_embed)}
    positional = {id(parameter) for parameter in model.pos_embed.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        factor = config.pe_lr_factor if id(parameter) in fast else 1.0
        decay = config.weight_decay if parameter.dim() > 1 and id(parameter) not in positional else 0.0
        groups.setdefault((factor, decay), []).append(parameter)
    listed = [{"params": each, "factor": f, "weight_decay": d, "lr": config.lr} for (f, d), each in groups.items()]
    return torch.optim.AdamW(listed, betas=(0.9, config.beta2), fused=True)


def fast_parameters(scheme: PositionScheme) -> Iterator[nn.Parameter]:
    """Parameters that act on scores directly; vectors added to embeddings and small networks have the usual rate."""
    if "embed" in scheme.acts() or "embed_qk" in scheme.acts():
        return
    slow = {id(p) for m in scheme.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
    yield from (parameter for parameter in scheme.parameters() if id(parameter) not in slow)


def learning_rate(step: int, end: int, config: RunConfig) -> float:
    """Linear warm-up, then constant, then a cosine to zero over the last `cooldown` share of the steps before `end`.

    >>> config = RunConfig(task="copy", scheme="rope", warmup=10, cooldown=0.1)
    >>> [round(learning_rate(step, 1000, config) / config.lr, 3) for step in (0, 9, 500, 900, 950, 999)]
    [0.1, 1.0, 1.0, 1.0, 0.5, 0.0]
    """
    warm = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    left = min(1.0, (end - step) / (config.cooldown * end)) if config.cooldown else 1.0
    return config.lr * warm * 0.5 * (1 - math.cos(math.pi * left))


def answer_loss(logits: Tensor, batch: Batch, label_smoothing: float) -> Tensor:
    """Mean cross-entropy of the answer's tokens, each from the position before it; of sets, binary and not smoothed.

    Why labels are smoothed. The idea: plain cross-entropy is content with any large margin, which hides in range that
    attention leaks to keys that must not be read; smoothed labels want certain logits, so that a leak goes on
    costing. What was measured is the outcome, not that mechanism: parity-cot with the ideal scheme, train_max 10, one
    seed, initial weights of size 0.03; smoothing 0 gave exact match 0.46 at n = 50 (3200 steps), 0.02 gave 1.0 there
    and 0.22 at n = 300, 0.1 gave 1.0 at both (1200 steps).
    """
    first = answer_start(batch)
    shares = answer_shares(batch, first, logits.shape[-1], label_smoothing)
    return loss_of(logits[:, first - 1 : -1], sent(shares, logits.device), batch.targets is not None)


class AnswerLoss(nn.Module):
    """A model and the loss of a batch, as a function of tensors alone: what is stacked, compiled or captured."""

    def __init__(self, model: HookedModel, sets: bool = False) -> None:
        super().__init__()
        self.model, self.sets = model, sets

    def forward(self, inputs: dict[str, Tensor], first: int, limit: int | None) -> Tensor:
        """`inputs` are what `loss_inputs` gives; answers begin at `first` or later."""
        host: dict[Hashable, Any] = {name[5:]: value for name, value in inputs.items() if name.startswith("host.")}
        placed = inputs["tokens"], inputs["position"], inputs.get("scale")
        positions = Positions(*placed, limit, host, offset=inputs["offset"])
        return loss_of(self.model.at(positions)[:, first - 1 : -1], inputs["shares"], self.sets)


def loss_inputs(trainer: Trainer, batch: Batch, first: int, length: int) -> tuple[dict[str, Tensor], int | None]:
    """A batch and where its tokens stand, padded to a length, on the CPU; and the limit of their positions."""
    missing, scheme = length - batch.tokens.shape[1], trainer.model.pos_embed
    tokens = F.pad(batch.tokens, (0, missing), value=trainer.task.pad_id)
    drawn = scheme.positions(batch.tokens, batch.scale)  # by the batch's length before padding, as it is alone
    position = torch.cat([drawn.position, drawn.position[:, -1:].expand(-1, missing)], 1)  # padding is never looked at
    positions = replace(drawn, tokens=tokens, position=position, cache={})
    shares = answer_shares(batch, first, trainer.model.cfg.d_vocab_out, trainer.config.label_smoothing)
    inputs = {"tokens": tokens, "shares": F.pad(shares, (0, 0, 0, missing))}
    inputs |= {"position": positions.position, "offset": torch.as_tensor(positions.offset)}
    if positions.scale is not None:
        inputs["scale"] = positions.scale
    host = {f"host.{name}": value for name, value in scheme.on_the_host(positions).items()}
    return inputs | host, positions.limit


def loss_of(logits: Tensor, shares: Tensor, sets: bool = False) -> Tensor:
    """Cross-entropy with targets that are spread over tokens. Both [row, answer, token]; few operations.

    With `sets`, binary cross-entropy of each token: whether it is in the set is the sign of its share.
    """
    if sets:
        return torch.dot(F.softplus(-shares.sign() * logits.float()).flatten(), shares.abs().flatten())
    return -torch.dot(logits.float().log_softmax(-1).flatten(), shares.flatten())


def answer_start(batch: Batch) -> int:
    """Where the first answer begins."""
    return int(batch.answer_mask.to(torch.uint8).argmax(1).min())


def answer_shares(batch: Batch, first: int, d_vocab: int, label_smoothing: float) -> Tensor:
    """What each token counts in the loss, at every place from `first` on; all of it is one. [row, answer, token]

    Of a task on sets, below zero for a token that is not in the set.

    >>> from lengthlens.tasks import TASKS
    >>> batch = TASKS["copy"].sample([1, 3], generator=torch.Generator().manual_seed(0))
    >>> answer_shares(batch, 3, 14, 0.1).sum(2).mul(6).round().tolist()
    [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]]
    """
    counts = batch.answer_mask[:, first:, None] / batch.answer_mask.sum()
    if batch.targets is not None:
        signed = 2.0 * batch.targets[:, first - 1 : -1] - 1
        signed[..., [-3, -1]] = 0  # no set is about ^ and _
        return counts * signed / (d_vocab - 2)
    right = F.one_hot(batch.tokens[:, first:], d_vocab)
    return counts * ((1 - label_smoothing) * right + label_smoothing / d_vocab)


def clipped(gradients: Sequence[Tensor | None], most: float) -> Sequence[Tensor | None]:
    """Gradients, scaled in place so that their common norm is at most `most`; 0 says that it may be anything.

    >>> clipped([torch.tensor([3.0]), None, torch.tensor([4.0])], 1.0)[0]
    tensor([0.6000])
    """
    given = [gradient for gradient in gradients if gradient is not None]
    if most and given:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(given)))
        torch._foreach_mul_(given, (most / (norm + 1e-6)).clamp(max=1.0))
    return gradients


def check_in_range(model: HookedModel, task: Task, config: RunConfig) -> tuple[float, float]:
    """Exact match and margin, both averaged over n up to train_max, on instances that training does not see."""
    device, generator = device_of(model), torch.Generator().manual_seed(CHECK_SEED + config.seed)
    shares, margins = [], []
    with evaluating(model):
        for scale in task.scales_up_to(config.train_max, CHECK_TUPLES, generator):
            batch = task.sample(scale, CHECK_SAMPLES // (1 if task.one_number else CHECK_TUPLES), generator)
            logits = model(batch.tokens, scale)
            first = answer_start(batch)
            logits, answer = logits[:, first - 1 : -1], sent(batch.tokens[:, first:], device)
            right = answer[..., None]
            others = logits.scatter(-1, right, -math.inf)
            lead = logits.gather(-1, right)[..., 0] - others.amax(-1)  # over the best wrong token, [row, answer]
            if batch.targets is not None:  # over 0, of the least clear token
                signed = sent(batch.targets[:, first - 1 : -1], device) * 2.0 - 1
                lead = sets_of(logits * signed).amin(-1)
            lead = lead.masked_fill(~sent(batch.answer_mask[:, first:], device), math.inf)  # after a shorter answer
            shares.append(right_tokens(logits, batch).all(1).float())
            margins.append(lead.min(1).values)
    exact, margin = torch.stack([torch.stack(shares), torch.stack(margins)]).cpu().double().mean(2).mean(1).tolist()
    return exact, margin


def on_plateau(history: list[Metrics], patience: int) -> bool:
    """Whether exact match has been 1 for `patience` evaluations while the margin hardly grew: a plateau.

    >>> history = [Metrics(100 * k, 0.1, 1e-3, 1.0, margin, 0) for k, margin in enumerate([5.0, 8.0, 8.1, 8.2])]
    >>> on_plateau(history, 3), on_plateau(history, 4)
    (True, False)
    """
    last = history[-patience:]
    if len(last) < patience or any(metrics.in_range_exact_match < 1 for metrics in last):
        return False
    return last[-1].margin <= last[0].margin * (1 + MARGIN_PLATEAU)
