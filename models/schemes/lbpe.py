"""Learning-based position embedding (LBPE): the relation itself is learned, from a family that extrapolates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.schemes.crowd import crowd
from lengthlens.models.schemes.forms import Form, marked_keys, read_forms
from lengthlens.models.schemes.free import FreeBias
from lengthlens.models.schemes.options import option
from lengthlens.models.schemes.scheme import Family, Frame, PositionScheme, Sizes
from lengthlens.tasks import Task

# Counted back from the query, forward from the start, and mirrored, each at small multiples of the scale. With a window
# of 3 they hold every source of every position-addressed task here (a test says so).
FORMS = "i-j, i-j-n, i-j-2n, j, j-n, j-2n, i+j-n, i+j-2n, i+j-3n"

EVERY = slice(None)
THRESHOLDS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)  # from hardly felt to what only a strong head adds


class Surviving(NamedTuple):
    """One (form, value) that a head goes by, and what it adds to the score there."""

    layer: int
    head: int
    form: Form
    value: int
    gate: float
    bias: float

    def in_words(self) -> str:
        verb = "reads" if self.bias > 0 else "avoids"
        return f"layer {self.layer} head {self.head} {verb} {self.form.says(self.value)} ({self.bias:+.2f})"


class LearnedRelation(PositionScheme):
    """Each head chooses among integer linear forms of i, j, n, and learns a bias for each small value of them.

    A form u = a·i + b·j + c·n + d is coded as u where |u| ≤ window, and as OTHER elsewhere. What a head adds to the
    score of a pair is Σ over forms of F · gate[form] · bias[form, code], with gates that are a softmax at `temperature`
    and no bias for OTHER. A head with its gate on i−j−n and a large bias at value 0 "reads i−j = n", at every scale.
    (F, the number of forms, undoes that gates start at 1/F: each form begins as if it were alone, and heads become
    sharp within the steps in which the rest of the network learns.)

    Computed sparsely: at a query each (form, value) marks one key at most, so that a block of queries takes
    queries · forms · values additions whatever the number of keys.

    With ``other=one`` all keys that have no value, but for the first, together weigh as one key: each has log(number of
    them) taken off its score. Attention is then the same function of the keys with a value, and of what the others have
    on average, at every length. By themselves (``other=each``) the others gain weight with their number, and scores
    have to be scaled with length against it, which also sharpens heads that are meant to blend two keys.

    With ``variant=mlp`` a small network over (i, j, n) takes the place of the forms: free, and not made to extrapolate.
    """

    name = "lbpe"
    family: Family = "learned relation"
    summary = "a learned relation: linear forms of i, j, n chosen by gates, with a bias per small value"
    relation_in_words = "the values of the surviving linear forms of i, j, n, each OTHER outside its window"
    uses_scale = True
    no_random = "its forms count true positions against the scale"
    no_hint = "its forms contain the scale already"

    @dataclass(frozen=True)
    class Options:
        variant: Literal["forms", "mlp"] = "forms"
        forms: str = FORMS
        window: int = option(3, at_least=0, at_most=64)
        final_temperature: float = option(1.0, at_least=0.01)  # of the gates, reached at the end of training
        hidden: int = option(32, at_least=1, at_most=4096)  # width of the network, for variant mlp
        # how keys without a value weigh: each by itself, or all as one
        other: Literal["each", "one"] = option("each", later=True)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.forms = read_forms(options.forms)
        heads = (sizes.n_layers, sizes.n_heads)
        if options.variant == "mlp":
            if options.other != "each":
                raise UserError("scheme 'lbpe' with variant=mlp has a bias for every key: other=one means nothing")
            self.free = FreeBias(*heads, options.hidden)
            self.relation_in_words = "(i, j, n)"
            return
        shape = (*heads, len(self.forms), 2 * options.window + 1)
        self.gate_logits = nn.Parameter(torch.zeros(shape[:3]))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.temperature: Tensor
        self.alive: Tensor  # which (form, value) still count, by head; `prune` switches off
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("alive", torch.ones(shape, dtype=torch.bool))

    def anneal(self, progress: float) -> None:
        """Lower the temperature of the gates geometrically, from 1 to `final_temperature`."""
        if self.options.variant == "forms":
            self.temperature.fill_(self.options.final_temperature ** min(max(progress, 0.0), 1.0))

    def gates(self, layers: slice = EVERY) -> Tensor:
        """How much each head goes by each form; sums to one. [layer, head, form]"""
        return (self.gate_logits[layers] / self.temperature).softmax(-1)

    def weights(self, layers: slice = EVERY) -> Tensor:
        """What each head adds to the score where a form has a value. [layer, head, form, value]"""
        return len(self.forms) * self.gates(layers)[..., None] * self.bias[layers] * self.alive[layers]

    # -- the bias ------------------------------------------------------------------------------------------------

    def score(self, layer: int, frame: Frame, rows: slice, q: Tensor, k: Tensor) -> Tensor | None:
        assert frame.scale is not None
        if self.options.variant == "mlp":
            bias: Tensor = self.free(layer, frame.position, frame.scale, rows)
            return bias
        return frame.per_scale(lambda scales: self._bias(layer, frame, rows, scales))

    def _bias(self, layer: int, frame: Frame, rows: slice, scales: Tensor) -> Tensor:
        """[scale, head, query, key]"""
        key, exists = frame.cached((rows.start, rows.stop), lambda: self._marked(rows, scales))
        weights = self.weights(slice(layer, layer + 1)).flatten(2)[:, :, None]  # [1, head, 1, form·value]
        added = torch.where(exists, weights, 0)  # [scale, head, query, form·value]
        empty = added.new_zeros(*added.shape[:3], rows.stop)
        bias = empty.scatter_add(3, key.expand_as(added), added)
        if self.options.other == "each":
            return bias
        counts = (exists & self.alive[layer].flatten(1)[:, None]).to(added.dtype)
        valued = empty.scatter_add(3, key.expand_as(counts), counts) > 0
        return bias - crowd(valued, rows)

    def _marked(self, rows: slice, scales: Tensor) -> tuple[Tensor, Tensor]:
        """The key of each (form, value) at each query, and whether there is one. [scale, 1, query, form·value]"""
        device = scales.device
        forms, query = (torch.tensor(self.forms, device=device), torch.arange(rows.start, rows.stop, device=device))
        key = marked_keys(forms, self.options.window, query, scales).flatten(2)[:, None]
        exists = (key >= 0) & (key <= query[:, None])
        return torch.where(exists, key, 0), exists

    # -- the relation --------------------------------------------------------------------------------------------

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """One component for each form that any head still goes by; OTHER is window + 1."""
        if self.options.variant == "mlp":
            all_three = 0 * (query_pos + key_pos + scale)
            return torch.stack([query_pos + all_three, key_pos + all_three, scale + all_three], -1)
        components = [
            self._code(form, counts.to(query_pos.device), query_pos, key_pos, scale)
            for form, counts in self._surviving_forms()
        ]
        if not components:
            return torch.zeros_like(query_pos + key_pos + scale)[..., None]
        return torch.stack(components, -1)

    def _surviving_forms(self) -> list[tuple[Form, Tensor]]:
        """The forms that some head goes by, each with the values that count. [value]"""
        counts = self.alive.flatten(0, 1).any(0)
        return [(form, counts[f]) for f, form in enumerate(self.forms) if bool(counts[f].any())]

    def _code(self, form: Form, counts: Tensor, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """The form's value where it counts, else OTHER."""
        window = self.options.window
        value = form.value(query_pos, key_pos, scale)
        inside = (value.abs() <= window) & counts[(value + window).clamp(0, 2 * window)]
        return torch.where(inside, value, window + 1)

    def describe(self, code: tuple[int, ...]) -> str:
        if self.options.variant == "mlp":
            return f"position {code[1]} seen from {code[0]} at scale {code[2]}"
        forms = [form for form, _ in self._surviving_forms()]
        true = [form.says(value) for form, value in zip(forms, code) if value <= self.options.window]
        return " and ".join(true) or "no form within its window"

    # -- after training ------------------------------------------------------------------------------------------

    def readable(self, threshold: float = 0.0) -> list[Surviving]:
        """All (form, value) that add more than `threshold` to a head's score, or take it away; strongest first."""
        self._only_forms("be read in words")
        gates, weights = self.gates().detach(), self.weights().detach()
        found = (weights.abs() > threshold).nonzero().tolist()
        entries = [
            Surviving(
                layer,
                head,
                self.forms[f],
                v - self.options.window,
                float(gates[layer, head, f]),
                float(weights[layer, head, f, v]),
            )
            for layer, head, f, v in found
        ]
        return sorted(entries, key=lambda entry: -abs(entry.bias))

    def in_words(self, threshold: float = 0.5) -> str:
        """What each head goes by, a line each: "layer 0 head 1 reads i−j = n (+6.31)"."""
        return "\n".join(entry.in_words() for entry in self.readable(threshold)) or "no head goes by any form"

    @torch.no_grad()
    def prune(self, threshold: float = 0.5) -> "LearnedRelation":
        """Keep only what adds more than `threshold` to a score, or takes it away: in the bias and in the relation.

        Softmax weights change by a factor of e^threshold at most for each (form, value) that goes. Returns itself.
        """
        self._only_forms("be pruned")
        self.alive &= self.weights().abs() > threshold
        return self

    def prune_while(self, holds: Callable[[], bool], thresholds: Sequence[float] = THRESHOLDS) -> float | None:
        """Prune at the largest threshold after which `holds()` is true, in-range accuracy for instance.

        Returns that threshold; None if it holds after none of them, and then nothing is pruned.
        """
        self._only_forms("be pruned")
        before = self.alive.clone()
        for threshold in sorted(thresholds, reverse=True):
            self.prune(threshold)
            if holds():
                return threshold
            self.alive.copy_(before)
        return None

    def _only_forms(self, what: str) -> None:
        if self.options.variant == "mlp":
            raise UserError(f"scheme 'lbpe' with variant=mlp has no forms, and cannot {what}")
