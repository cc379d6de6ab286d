"""What the residual stream says: mean, position part, content part and remainder, and how the position part goes on.

At one input size, an activation at position i with token t is split exactly:

    x = mean + position(i) + content(t) + remainder

The mean is over all instances and positions; the position part is the mean at position i, less that; the content part
is the mean over all places with token t of what is left; the remainder (what tokens elsewhere, or position and token
together, contribute) is the rest. The parts are orthogonal on average, so that their mean squares add up to that of x.
Positions whose token is the same in every instance, such as those of ``^`` and ``=``, are left out: there, token and
position are one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.inside.instances import BY_CHANCE, checked_scales, sample_instances
from lengthlens.probes.network import AnyModel, hook_named, network_of
from lengthlens.tasks import Task

N_INSTANCES = 128  # of the variance between them, 1/128 is taken for position
PARTS = ("mean", "position", "content", "remainder")
CONTINUATION = ("in_span", "size", "same_index", "same_from_end")
IN_SPAN = 0.99  # of the position part's variance in range, which the directions that it is counted to use hold


@dataclass(frozen=True)
class ResidualParts:
    """An activation in parts. `parts` gives them as tensors that broadcast to [row, place, d] and add up to it."""

    places: Tensor  # [place], the positions that are looked at
    activation: Tensor  # [row, place, d]
    tokens: Tensor  # [row, place]
    mean: Tensor  # [d]
    position: Tensor  # [place, d]
    content: Tensor  # [token, d]; 0 for a token that does not occur

    @property
    def parts(self) -> dict[str, Tensor]:
        content = self.content[self.tokens]
        remainder = self.activation - self.mean - self.position - content
        return dict(zip(PARTS, (self.mean, self.position, content, remainder)))

    @property
    def has_position(self) -> bool:
        """Whether the position part is larger than what the mean over so few instances has by chance."""
        chance = float(self.activation.var(0).sum(-1).mean()) / len(self.activation)
        return float(self.position.square().sum(-1).mean()) > BY_CHANCE * chance

    @property
    def shares(self) -> dict[str, float]:
        """The share of the mean square of the activation that each part has; they add up to 1."""
        squares = {name: float(part.square().sum(-1).mean()) for name, part in self.parts.items()}
        whole = float(self.activation.square().sum(-1).mean())
        return {name: square / whole if whole else float("nan") for name, square in squares.items()}


def split(activation: Tensor, tokens: Tensor) -> ResidualParts:
    """The parts of an activation [row, pos, d] on tokens [row, pos].

    >>> parts = split(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]), torch.tensor([[0, 0], [1, 1]]))
    >>> parts.mean.tolist(), parts.position.flatten().tolist(), parts.content.flatten().tolist()
    ([2.5], [-0.5, 0.5], [-1.0, 1.0])
    """
    places = (tokens != tokens[:1]).any(0).nonzero()[:, 0].cpu()
    if not len(places):
        raise UserError("no token differs between the instances, so that content cannot be told from position")
    x, tokens = activation.cpu()[:, places].double(), tokens.cpu()[:, places]
    mean = x.mean((0, 1))
    position = x.mean(0) - mean
    left = (x - mean - position).flatten(0, 1)
    content = torch.zeros(int(tokens.max()) + 1, x.shape[-1], dtype=x.dtype).index_add_(0, tokens.flatten(), left)
    counts = torch.bincount(tokens.flatten(), minlength=len(content)).clamp(min=1)
    return ResidualParts(places, x, tokens, mean, position, content / counts[:, None])


def residual_parts(
    model: AnyModel,
    task: Task | None = None,
    scale: int = 10,
    hook: str = "blocks.0.hook_resid_post",
    *,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> ResidualParts:
    """The activation at one hook point in parts: mean, position, content, remainder.

    Arguments:
        model: a HookedModel, or any model with `run_with_cache`.
        task: whose instances are shown; the model's own if None.
        scale: the input size n of all of them.
        hook: any hook point [row, pos, d]; the residual stream after the first layer by default.
        rows: instances.
        generator: of the instances; one that follows from n if None.

    Result: a `ResidualParts`. Errors: UserError for a hook point or input size that does not exist, with the nearest.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> {name: round(share, 1) for name, share in residual_parts(copy_by_hand(), hook="hook_embed").shares.items()}
    {'mean': 0.1, 'position': 0.0, 'content': 0.9, 'remainder': 0.0}
    """
    (scale,) = checked_scales(model, task, [scale])
    instances = sample_instances(model, task, scale, rows, generator)
    hook_named(model, hook)
    subject = network_of(model)
    seen = subject.activations(instances.tokens.to(subject.device), scale, [hook])[hook]
    if seen.dim() != 3:
        raise UserError(f"hook point '{hook}' has shape {list(seen.shape)}, and [row, pos, d] is needed")
    return split(seen, instances.tokens)


def residual_shares(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] | None = None,
    *,
    train_max: int | None = None,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """The share of each part at every layer and input size, and how the position part continues beyond training.

    Arguments as of `attention_by_role`; `train_max` is the largest n in training, the smallest of `scales` if None.

    Result: one row for each hook point (before each layer, and after the last) and input size, with the shares `mean`,
    `position`, `content` and `remainder`, which add up to 1, and, compared with the position part at `train_max`:

    - `in_span`: how much of the position part's variance lies in the directions that hold 99 % of it in training; 1
      says that it only uses directions that later layers know;
    - `size`: its mean square, in units of that in training;
    - `same_index`, `same_from_end`: the mean cosine with the position vector of the same index, or of the same number
      of positions before the last, each less the mean of those that are compared.

    These four are missing where the position part in training is no larger than the drawing of instances makes it.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> table = residual_shares(copy_by_hand(), scales=[5, 10])
    >>> table[["hook", "scale"]].values.tolist()[:2], bool((abs(table[list(PARTS)].sum(axis=1) - 1) < 1e-6).all())
    ([['blocks.0.hook_resid_pre', 5], ['blocks.0.hook_resid_pre', 10]], True)
    """
    wanted = sorted(checked_scales(model, task, scales))
    subject = network_of(model)
    layers = subject.layers(None)
    hooks = [*(f"blocks.{layer}.hook_resid_pre" for layer in layers), f"blocks.{layers[-1]}.hook_resid_post"]

    def parts_at(n: int) -> dict[str, ResidualParts]:
        instances = sample_instances(model, task, n, rows, generator)
        seen = subject.activations(instances.tokens.to(subject.device), n, hooks)
        return {hook: split(seen[hook], instances.tokens) for hook in hooks}

    trained = parts_at(checked_scales(model, task, [wanted[0] if train_max is None else train_max])[0])
    rows_of_hooks: list[dict[str, Any]] = []
    for n in wanted:
        parts = parts_at(n)
        for hook in hooks:
            known = trained[hook].has_position
            compared = continuation(trained[hook], parts[hook]) if known else dict.fromkeys(CONTINUATION, float("nan"))
            rows_of_hooks.append({"hook": hook, "scale": n, **parts[hook].shares, **compared})
    rows_of_hooks.sort(key=lambda row: hooks.index(row["hook"]))
    return pd.DataFrame(rows_of_hooks)


def continuation(trained: ResidualParts, longer: ResidualParts) -> dict[str, float]:
    """How a position part compares with that at the training length.

    >>> line = torch.arange(8.0)[None, :, None] * torch.tensor([1.0, 0.0])
    >>> tokens = torch.stack([torch.arange(8) % 2, 1 - torch.arange(8) % 2])
    >>> compared = continuation(split(line[:, :4].repeat(2, 1, 1), tokens[:, :4]), split(line.repeat(2, 1, 1), tokens))
    >>> [round(compared[name], 3) for name in ("in_span", "size", "same_index")]
    [1.0, 4.2, 1.0]
    """
    _, sizes, directions = torch.linalg.svd(trained.position, full_matrices=False)
    held = sizes.square().cumsum(0) / sizes.square().sum().clamp(min=1e-30)
    basis = directions[: int((held < IN_SPAN).sum()) + 1]
    size, before = (float(part.position.square().sum(-1).mean()) for part in (longer, trained))
    inside = float((longer.position @ basis.T).square().sum(-1).mean())

    def cosine(same: Tensor) -> float:
        """The mean cosine of the position vectors of the same places [place, place], each less the mean of these."""
        a, b = trained.position[same.any(1)], longer.position[same.any(0)]
        if len(a) < 2:
            return float("nan")
        return float(torch.nn.functional.cosine_similarity(a - a.mean(0), b - b.mean(0), dim=-1).mean())

    one, other = trained.places, longer.places
    return {
        "in_span": inside / size if size else float("nan"),
        "size": size / before if before else float("nan"),
        "same_index": cosine(one[:, None] == other),
        "same_from_end": cosine((one - one[-1])[:, None] == other - other[-1]),
    }
