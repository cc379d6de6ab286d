"""Learning-based position embedding (LBPE): the relation itself is learned, from a family that extrapolates.

Beside it, for comparison, a relation that is learned freely and is not made to extrapolate.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError, unknown
from lengthlens.models.devices import sent
from lengthlens.models.schemes.relation import (
    THRESHOLDS,
    WIDE,
    Code,
    CodedForm,
    LearnedEntry,
    Phi,
    Pointer,
    Relation,
    codes_of_forms,
    key_with,
    read_forms,
)
from lengthlens.models.schemes.scheme import (
    KEPT_LENGTH,
    NamedKeys,
    Positions,
    PositionScheme,
    Sizes,
    option,
    pooled_keys,
    readable,
    seen_keys,
)
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import Layout, Line

# Counted back from the query, forward from the start, and mirrored, each at small multiples of the scale. With a window
# of 3 they hold every source of every position-addressed task here (a test says so), and no source of some others.
NINE = "i-j, i-j-n, i-j-2n, j, j-n, j-2n, i+j-n, i+j-2n, i+j-3n"

EVERY = slice(None)

# What a unit of weight costs in the loss while the forms of the wide family compete. The right pointer serves every
# step of every scale for one price; several that coincide with it at some of them cost more together. Ten times as much
# keeps heads from becoming sharp: every-second, seed 0, then stays at 0.998 in range with its one pointer at +2.4.
PRICE = 3e-4
NEGLIGIBLE = 0.1  # a weight that adds less than this to a score is dropped unasked when training condenses


class LearnedRelation(PositionScheme):
    """Each head learns a bias for each small value of integer linear forms of i, j, n, and few of them survive.

    A form u = a·i + b·j + c·n + d is coded as u where |u| ≤ window, and as OTHER elsewhere. What a head adds to the
    score of a pair is Σ over forms of F · gate[form] · bias[form, code], with gates that are a softmax at `temperature`
    and no bias for OTHER. A head with its gate on i−j−n and a large bias at value 0 "attends to i−j = n" at every
    scale. (F, the number of forms, undoes that gates start at 1/F: each form begins as if it were alone, and heads
    become sharp within the steps in which the rest of the network learns.)

    Computed sparsely: at a query each (form, value) marks one key at most, so that a block of queries takes
    queries · forms · values additions whatever the number of keys; pairs that no head uses any more take none.

    ``forms=wide`` stands for all forms with factors of i and j up to 2 and of n up to 4 in size. Weights are then
    learned as they are, without gates, at a price in the loss (`PRICE`) until the learning rate begins to fall. There
    all but those go, once, that answers in range need (`condense`), and training ends with the few that are left.

    With ``other=one`` all keys that have no value, but for the first, together weigh as one key: each has log(number of
    them) taken off its score. Attention is then the same function of the keys with a value, and of what the others have
    on average, at every length. By themselves (``other=each``) the others gain weight with their number, and scores
    have to be scaled with length against it, which also sharpens heads that are meant to blend two keys.

    Among keys that weigh as one, a head can still pick one by its token, its own for instance, and that one fades as
    the others grow in number. With ``other=mean`` it cannot: they are one key of score 0 with their mean value, close
    to the paper's ideal embedding, which gives all other positions one single value. What a query mixes then follows
    from a few keys and one mean, in a time that does not depend on the length.
    """

    name = "lbpe"
    family = "learned relation"
    summary = "a learned relation: linear forms of i, j, n chosen by gates, with a bias per small value"
    relation_in_words = "the values of the surviving linear forms of i, j, n, each OTHER outside its window"
    uses_scale = True
    learns_relation = True
    remedy = "learning the relation"
    no_random = "its forms count true positions against the scale"
    no_hint = "its forms contain the scale already"

    @dataclass(frozen=True)
    class Options:
        variant: str = "forms"  # the only one; what was "mlp" is scheme lbpe-mlp. Kept: it is part of runs' names
        forms: str = option(WIDE, names={"nine": NINE})  # "wide", "nine", or a list with commas
        window: int = option(3, at_least=0, at_most=64)
        final_temperature: float = option(1.0, at_least=0.01)  # of the gates, reached at the end of training
        hidden: int = option(32, at_least=1, at_most=4096)  # means nothing here; kept for the same reason
        # Keys without a value: each by itself, all with the weight of one, or all as one key of score 0.
        other: Literal["each", "one", "mean"] = option("mean", before="each")

        def __post_init__(self) -> None:
            if self.variant == "mlp":
                raise UserError("scheme 'lbpe' with variant=mlp is a scheme of its own: 'lbpe-mlp'")
            if self.variant != "forms":
                raise unknown("option 'variant' of scheme 'lbpe'", self.variant, ["forms"])

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.form_table: Tensor  # `forms`, where the model is: nothing is sent there in a step
        self.register_buffer("form_table", None, persistent=False)
        self.forms = self._family(options)
        self.wide = self.condenses(asdict(options))
        shape = (sizes.n_layers, sizes.n_heads, len(self.forms), 2 * options.window + 1)
        self.gate_logits = None if self.wide else nn.Parameter(torch.zeros(shape[:3]))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.temperature: Tensor
        self.alive: Tensor  # which (form, value) still count, by head; `prune` switches off
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("alive", torch.ones(shape, dtype=torch.bool))
        self.trying = False  # what can go; keys without a value then weigh each
        self._known: tuple[Tensor, int | None, Hashable, Tensor | None] | None = None  # `alive`, its version, `_used`

    @property
    def forms(self) -> Sequence[Any]:
        """The forms that may be learned; others, of the same number, may be put in their place."""
        return self._forms

    @forms.setter
    def forms(self, forms: Sequence[Any]) -> None:
        device = None if self.form_table is None else self.form_table.device
        self._forms, self.form_table = forms, torch.tensor(forms, device=device)

    def _forms_on(self, device: torch.device) -> Tensor:
        """[form, number]"""
        here = device == self.form_table.device
        return self.form_table if here else sent(torch.tensor(self.forms, device="cpu"), device)

    @staticmethod
    def _family(options: Any) -> Sequence[Any]:
        """The forms that heads choose among."""
        return read_forms(options.forms)

    def anneal(self, progress: float) -> None:
        """Lower the temperature of the gates geometrically, from 1 to `final_temperature`."""
        if not self.wide and self.options.final_temperature != 1:
            self.temperature.fill_(self.options.final_temperature ** min(max(progress, 0.0), 1.0))

    def gates(self, layers: slice = EVERY) -> Tensor:
        """How much each head uses each form: sums to one; of the wide family 1 or 0. [layer, head, form]"""
        if self.gate_logits is None:
            return self.alive[layers].any(-1).to(self.bias.dtype)
        return (self.gate_logits[layers] / self.temperature).softmax(-1)

    def weights(self, layers: slice = EVERY) -> Tensor:
        """What each head adds to the score where a form has a value. [layer, head, form, value]"""
        if self.gate_logits is None:
            return self.bias[layers] * self.alive[layers]
        return len(self.forms) * self.gates(layers)[..., None] * self.bias[layers] * self.alive[layers]

    @classmethod
    def condenses(cls, options: Mapping[str, Any]) -> bool:
        return str(options["forms"]).strip() == WIDE

    def penalty(self) -> Tensor | None:
        return PRICE * self.bias.abs().sum() if self.wide else None

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        bias = self._per_row(positions, lambda scales: self._bias(layer, positions, queries, scales))
        if not self.means_others:
            return bias
        other = self._per_row(positions, lambda scales: self._others(layer, positions, queries, scales)[1])
        return bias.addcmul(other.to(bias.dtype), q.transpose(1, 2) @ k.permute(0, 2, 3, 1), value=-1)

    def _per_row(self, positions: Positions, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What `make` gives for scales, [1|row, …]."""
        return positions.per_scale(make)

    def _bias(self, layer: int, positions: Positions, queries: slice, scales: Tensor) -> Tensor:
        """[scale, head, query, key]"""
        kind, used = self._used()
        key, exists = self._pointed(positions, queries, scales, kind, used)
        every = positions.memo("weights", lambda: chosen(self.weights(), used)[:, None, :, None].unbind(), "pass")
        added = torch.where(exists, every[layer], 0)  # [scale, head, query, pointer]
        bias = added.new_zeros(*added.shape[:3], queries.stop).scatter_add(3, key.expand_as(added), added)
        return bias - self._others(layer, positions, queries, scales)[0] if self.pools_others else bias

    def _others(self, layer: int, positions: Positions, queries: slice, scales: Tensor) -> tuple[Tensor, Tensor]:
        """What is taken off the scores of keys without a value (`pooled_keys`), and which they are.

        [scale, head, query, key] each. For all layers at once, unless the sequence is long.
        """
        if positions.tokens.shape[1] > KEPT_LENGTH:
            pooled, other = self._others_in(slice(layer, layer + 1), positions, queries, scales)
            return pooled[0], other[0]
        key = ("others", queries.start, queries.stop)
        made = positions.memo(key, lambda: self._others_in(EVERY, positions, queries, scales), "pass")
        return made[0][layer], made[1][layer]

    def _others_in(self, layers: slice, positions: Positions, queries: slice, scales: Tensor) -> tuple[Tensor, Tensor]:
        """[layer, scale, head, query, key]"""
        kind, used = self._used()
        key, exists = self._pointed(positions, queries, scales, kind, used)
        counts = (exists & chosen(self.alive[layers], used)[:, None, :, None]).to(self.bias.dtype)
        valued = counts.new_zeros(*counts.shape[:4], queries.stop).scatter_add(4, key.expand_as(counts), counts)
        block = ("others seen", queries.start, queries.stop)
        seen = positions.memo(block, lambda: seen_keys(queries, key.device), square=True)
        other = (valued == 0) & seen
        return pooled_keys(other), other

    def _pointed(
        self, positions: Positions, queries: slice, scales: Tensor, kind: Hashable, used: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The key of each pointer in use at each query, and whether there is one. [scale, 1, query, pointer]"""
        return positions.memo((queries.start, queries.stop, kind), lambda: self._marked(queries, scales, used))

    def _marked(self, queries: slice, scales: Tensor, used: Tensor | None) -> tuple[Tensor, Tensor]:
        """The key of each pointer at each query, and whether there is one. [scale, 1, query, pointer]"""
        query = torch.arange(queries.start, queries.stop, device=scales.device)[:, None]
        places = torch.arange(self.bias[0, 0].numel(), device=scales.device) if used is None else used
        key = self._keys(places, query, scales[:, None, None])[:, None]
        exists = (key >= 0) & (key <= query)
        return torch.where(exists, key, 0), exists

    def _keys(self, used: Tensor, query: Tensor, scale: Tensor) -> Tensor:
        """The key that each pointer in use points at; it need not exist. [*, pointer]"""
        width = self.bias.shape[-1]
        a, b, c, d = self._forms_on(query.device)[used // width].unbind(1)
        keys: Tensor = key_with((a, b, c, d), used % width - self.options.window, query, scale)
        return keys

    def _used(self) -> tuple[Hashable, Tensor | None]:
        """The (form, value) that some head may use, as places in [form·value], and a name of that choice.

        None, named "all", is every place: where all are alive, and where the host does not know. Found again when
        `alive` changes.
        """
        if not readable(self.alive):
            return "all", None
        version = None if self.alive.is_inference() else self.alive._version  # an inference tensor has none
        known = self._known
        if known is None or version is None or known[0] is not self.alive or known[1] != version:
            places = self.alive.flatten(0, 1).flatten(1).any(0)
            used = None if bool(places.all()) else places.nonzero()[:, 0]
            known = self._known = (self.alive, version, "all" if used is None else tuple(used.tolist()), used)
        return known[2:]

    @property
    def pools_others(self) -> bool:  # type: ignore[override]
        return self.options.other != "each" and not self.trying

    @property
    def weighs_content(self) -> bool:  # type: ignore[override]
        return self.means_others

    @property
    def means_others(self) -> bool:  # type: ignore[override]
        return self.options.other == "mean" and not self.trying

    def _named(self) -> Tensor:
        """The (form, value) that make a key one of its own in some head, as places in [form·value]."""
        counts = self.alive if self.pools_others else self.weights().detach() != 0
        return counts.flatten(0, 1).flatten(1).any(0).nonzero()[:, 0]

    def named_keys(self, query: Tensor, scale: int | Tensor) -> NamedKeys:
        used = self._named().to(query.device)
        key = self._keys(used, query[:, None], torch.as_tensor(scale).view(-1, 1))
        weights, alive = self.weights().detach().flatten(2), self.alive.flatten(2)  # [layer, head, form·value]
        bias, valued = (part[:, :, None, used].expand(-1, -1, len(query), -1) for part in (weights, alive))
        return NamedKeys(key, bias, valued)

    def named_lines(self, layout: Layout) -> list[Line] | None:
        """None where a form with 2j is in use: its keys lie on a line at queries of one residue only."""
        width, window = self.bias.shape[-1], self.options.window
        pairs = [(self.forms[place // width], place % width - window) for place in self._named().tolist()]
        if any(abs(form.key) != 1 for form, _ in pairs):
            return None
        return [Line(-b * a, -b * c, b * (value - d)) for (a, b, c, d), value in pairs]

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """One component for each form that any head still uses."""
        forms = self._coded()
        if not forms:
            return torch.zeros_like(query_pos + key_pos + scale)[..., None]
        return codes_of_forms(forms, query_pos, key_pos, scale)

    def _coded(self) -> list[CodedForm]:
        """The forms that some head still uses, each with the values that count."""
        counts = self.alive.flatten(0, 1).any(0)  # [form, value]
        return [CodedForm(form, own) for form, own in zip(self.forms, counts) if bool(own.any())]

    def describe(self, code: Code) -> str:
        true = [form.says(value) for form, value in zip(self._coded(), code)]
        return " and ".join(filter(None, true)) or "no form within its window"

    def relation(self) -> Relation:
        return Relation(self.phi, self.relation_in_words, self.describe, of_head=self._phi_of)

    def _phi_of(self, layer: int, head: int) -> Phi:
        """The relation of one head: each form's value where that head uses it, else OTHER."""
        forms = [CodedForm(form, counts) for form, counts in zip(self.forms, self.alive[layer, head])]
        return lambda i, j, n: codes_of_forms(forms, i, j, n)

    def candidates(self) -> dict[str, Relation]:
        """Each form that some head still uses, alone."""
        return {str(form.form): form.relation(k) for k, form in enumerate(self._coded())}

    def pointers(self) -> list[list[Pointer]]:
        """Every (form, value) that a head may still use."""
        kinds = self.alive.flatten(0, 1).unique(dim=0)
        return [[Pointer(self.forms[f], v - self.options.window) for f, v in kind.nonzero().tolist()] for kind in kinds]

    def entries(self, threshold: float = 0.0) -> list[LearnedEntry]:
        """All (form, value) that add more than `threshold` to a head's score, or take it away; strongest first."""
        gates, weights = self.gates().tolist(), self.weights().detach()
        found = []
        for layer, head, form, value in (weights.abs() > threshold).nonzero().tolist():
            gate, bias = gates[layer][head][form], weights[layer, head, form, value].item()
            found.append(LearnedEntry(layer, head, self.forms[form], value - self.options.window, gate, bias))
        return sorted(found, key=lambda entry: -abs(entry.bias))

    def in_words(self, threshold: float = 0.5) -> str:
        """What each head uses, a line each: "layer 0 head 1 attends to i−j = n (+6.31)"."""
        return "\n".join(entry.in_words() for entry in self.entries(threshold)) or "no head uses any form"

    @torch.no_grad()
    def prune_below(self, threshold: float = 0.5) -> "LearnedRelation":
        """Keep only what adds more than `threshold` to a score, or takes it away: in the bias and in the relation.

        Softmax weights change by a factor of e^threshold at most for each (form, value) that goes. Returns itself.
        """
        self.alive &= self.weights().abs() > threshold
        return self

    def prune_while(self, holds: Callable[[], bool], thresholds: Sequence[float] = THRESHOLDS) -> float | None:
        """Prune at the largest threshold after which `holds()` is true, in-range accuracy for instance.

        Returns that threshold; None if it holds after none of them, and then nothing is pruned.
        """
        before = self.alive.clone()
        for threshold in sorted(thresholds, reverse=True):
            self.prune_below(threshold)
            if holds():
                return threshold
            self.alive.copy_(before)
        return None

    def prune(self, unchanged: Callable[[], bool]) -> Relation:
        """First the largest threshold on what a (form, value) adds to a score, then whole forms, the weakest first."""
        threshold = self.prune_while(unchanged) or 0.0
        strength = self.weights().detach().abs().amax((0, 1, 3))
        for form in strength.argsort().tolist():
            kept = self.alive[:, :, form].clone()
            self.alive[:, :, form] = False
            if kept.any() and not unchanged():
                self.alive[:, :, form] = kept
        values = {form.form: (form.counts.nonzero()[:, 0] - form.window).tolist() for form in self._coded()}
        left = "; ".join(f"{form}: {' '.join(map(str, own))}" for form, own in values.items()) or "none"
        return replace(self.relation(), words=f"surviving forms (|bias| > {threshold:g}) {left}")

    def condense(self, unchanged: Callable[[], bool]) -> None:
        """Of the wide family, keep what answers in range need. Keys that are then without a value weigh as one only
        afterwards, since the network has yet to get used to that."""
        if not self.wide:
            return
        self.trying = True
        with torch.no_grad():
            strength = self.bias.abs()
            self.alive &= strength > NEGLIGIBLE
            order = strength.amax((0, 1)).flatten().argsort()
            used = self.alive.flatten(0, 1).flatten(1).any(0)  # [form·value]
            self._drop(order[used[order]].tolist(), unchanged)
        self.trying = False

    def _drop(self, places: list[int], unchanged: Callable[[], bool]) -> None:
        """Switch off as many of these (form, value) as can go: all at once, or else of the weaker and stronger half."""
        alive = self.alive.flatten(2)  # a view
        kept = alive[:, :, places]  # a copy
        alive[:, :, places] = False
        if not places or unchanged():
            return
        alive[:, :, places] = kept
        if len(places) > 1:
            half = (len(places) + 1) // 2
            self._drop(places[:half], unchanged)
            self._drop(places[half:], unchanged)


def chosen(values: Tensor, used: Tensor | None) -> Tensor:
    """[layer, head, form, value] at the places [form·value] in use; None: at all."""
    flat = values.flatten(2)
    return flat if used is None else flat[:, :, used]


UNIT = 10.0  # positions are told to the network in tens, so that inputs of training are of order one


class FreeRelation(PositionScheme):
    """A bias that is any function of (i, j, n): a small network, with nothing built in that would make it extrapolate.

    One hidden layer over (i, j, n) for each layer of the network, one output for each head.
    """

    name = "lbpe-mlp"
    family = "learned relation"
    summary = "a bias from a small network over i, j and n: learned freely, not made to extrapolate"
    relation_in_words = "(i, j, n)"
    uses_scale = True
    hinges_on = "what its network of i, j and n makes of values never seen"
    no_random = "it is given true positions beside the scale"
    no_hint = "it is given the scale already"

    @dataclass(frozen=True)
    class Options:
        hidden: int = option(32, at_least=1, at_most=4096)  # width of the network

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        layers, hidden = sizes.n_layers, options.hidden
        self.W_in = nn.Parameter(torch.randn(layers, 3, hidden))
        self.b_in = nn.Parameter(torch.randn(layers, hidden))
        self.W_out = nn.Parameter(torch.randn(layers, hidden, sizes.n_heads) / hidden**0.5)

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.stack(torch.broadcast_tensors(query_pos, key_pos, scale), -1)

    def describe(self, code: Code) -> str:
        return f"position {code[1]} seen from {code[0]} at scale {code[2]}"

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        """The first layer is linear, so its three inputs are mapped before they are paired. [row, head, query, key]"""
        assert positions.scale is not None
        of_query, of_key, of_scale = (self.W_in[layer, part] / UNIT for part in range(3))
        query = positions.position[:, queries, None, None] * of_query  # [1|row, query, 1, hidden]
        key = positions.position[:, None, : queries.stop, None] * of_key  # [1|row, 1, key, hidden]
        shift = positions.scale[:, None, None, None] * of_scale + self.b_in[layer]  # [row, 1, 1, hidden]
        hidden = torch.tanh(query + key + shift)
        return (hidden @ self.W_out[layer]).movedim(-1, 1)
