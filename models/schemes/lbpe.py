"""Learning-based position embedding (LBPE): the relation itself is learned, from a family that extrapolates.

`lbpe` learns which linear forms of i, j and n have which values, `lbpe-marks` which fields and offsets a query reads.
For comparison, `lbpe-mlp` learns a relation freely, with nothing that would make it extrapolate.

A *form* (`Form`, `FieldForm`) with one of its values is a *pointer*: from a query it points at one key, or at none. The
pointers of a scheme are numbered by form and value, [form·value].
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lengthlens.errors import UserError, unknown
from lengthlens.models.devices import sent
from lengthlens.models.schemes.protocols import NamedKeys, pooled_keys, seen_keys
from lengthlens.models.schemes.relation import (
    THRESHOLDS,
    WIDE,
    Code,
    CodedForm,
    Ints,
    LearnedEntry,
    Phi,
    Pointer,
    Relation,
    codes_of_forms,
    key_with,
    read_forms,
    summed,
)
from lengthlens.models.schemes.scheme import Positions, PositionScheme, Sizes, option, readable
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import Layout, Line, remembered
from lengthlens.tasks.task import END, PAD, example_of

# Counted back from the query, forward from the start, and mirrored, each at small multiples of the scale. With a window
# of 3 they hold every source of every position-addressed task here (a test says so), and no source of some others.
NINE = "i-j, i-j-n, i-j-2n, j, j-n, j-2n, i+j-n, i+j-2n, i+j-3n"

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
    have to be scaled with length against it, which also sharpens heads that have to blend two keys.

    Among keys that weigh as one, a head can still pick one by its token, say the token of the query, and that one fades
    as the others grow in number. With ``other=mean`` it cannot: they are one key of score 0 with their mean value,
    close to the paper's ideal embedding, which gives all other positions one single value. What a query mixes then
    follows from a few keys and one mean, in a time that does not depend on the length.
    """

    name = "lbpe"
    family, beyond = "learned relation", "bounded"
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
        hidden: int = option(32, at_least=1, at_most=4096)  # has no effect; it is part of names of runs, too
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
        self.wide = getattr(options, "forms", WIDE).strip() == WIDE
        shape = (sizes.n_layers, sizes.n_heads, len(self.forms), 2 * options.window + 1)
        self.gate_logits = None if self.wide else nn.Parameter(torch.zeros(shape[:3]))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.temperature: Tensor
        self.alive: Tensor  # which (form, value) still count, by head; `prune` switches off
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("alive", torch.ones(shape, dtype=torch.bool))
        self.trying = False  # what can go; keys without a value then weigh each

    @property
    def forms(self) -> Sequence[Any]:
        """The forms that may be learned; others, of the same number, may be put in their place."""
        return self._forms

    @forms.setter
    def forms(self, forms: Sequence[Any]) -> None:
        device = None if self.form_table is None else self.form_table.device
        self._forms, self.form_table = forms, torch.tensor(forms, device=device)

    def _chosen(self, places: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Form [pointer, number] and value [pointer] of pointers, places in [form·value]; None stands for all."""
        here = device == self.form_table.device
        forms = self.form_table if here else sent(torch.tensor(self.forms, device="cpu"), device)
        width = self.bias.shape[-1]
        places = torch.arange(len(forms) * width, device=device) if places is None else places
        return forms[places // width], places % width - width // 2

    @staticmethod
    def _family(options: Any) -> Sequence[Any]:
        """The forms that heads choose among."""
        return read_forms(options.forms)

    def anneal(self, progress: float) -> None:
        """Lower the temperature of the gates geometrically, from 1 to `final_temperature`."""
        if not self.wide and self.options.final_temperature != 1:
            self.temperature.fill_(self.options.final_temperature ** min(max(progress, 0.0), 1.0))

    def gates(self) -> Tensor:
        """How much each head uses each form: sums to one; of the wide family 1 or 0. [layer, head, form]"""
        if self.gate_logits is None:
            return self.alive.any(-1).to(self.bias.dtype)
        return (self.gate_logits / self.temperature).softmax(-1)

    def weights(self) -> Tensor:
        """What each head adds to the score where a form has a value. [layer, head, form, value]"""
        if self.gate_logits is None:
            return self.bias * self.alive
        return len(self.forms) * self.gates()[..., None] * self.bias * self.alive

    def penalty(self) -> Tensor | None:
        return PRICE * self.bias.abs().sum() if self.wide else None

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        bias = self._per_row(positions, lambda scales: self._bias(layer, positions, queries, scales))
        if not self.means_others:
            return bias
        other = self._per_row(positions, lambda scales: self._others(layer, positions, queries, scales)[1])
        return bias.addcmul(other.to(bias.dtype), q.transpose(1, 2) @ k.permute(0, 2, 3, 1), value=-1)

    def _per_row(self, positions: Positions, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What `make` gives for input sizes, [1|row, …]."""
        return positions.per_scale(make)

    def _bias(self, layer: int, positions: Positions, queries: slice, scales: Tensor) -> Tensor:
        """[scale, head, query, key]"""
        key, exists = self._pointed(positions, queries, scales)
        weights = positions.memo("weights", lambda: chosen(self.weights(), self._used(positions)))
        added = torch.where(exists, weights[layer][:, None], 0)  # [scale, head, query, pointer]
        bias = added.new_zeros(*added.shape[:3], queries.stop).scatter_add(3, key.expand_as(added), added)
        return bias - self._others(layer, positions, queries, scales)[0] if self.pools_others else bias

    def _others(self, layer: int, positions: Positions, queries: slice, scales: Tensor) -> tuple[Tensor, Tensor]:
        """What is taken off the scores of keys without a value (`pooled_keys`), and which they are.

        [scale, head, query, key] each.
        """

        def others() -> tuple[Tensor, Tensor]:
            key, exists = self._pointed(positions, queries, scales)
            counts = (exists & chosen(self.alive[layer], self._used(positions))[:, None]).to(self.bias.dtype)
            valued = counts.new_zeros(*counts.shape[:3], queries.stop).scatter_add(3, key.expand_as(counts), counts)
            block = "seen", queries.start, queries.stop
            other = (valued == 0) & positions.memo(block, lambda: seen_keys(queries, key.device), square=True)
            return pooled_keys(other), other

        return positions.memo(("others", layer, queries.start, queries.stop), others, square=True)

    def _pointed(self, positions: Positions, queries: slice, scales: Tensor) -> tuple[Tensor, Tensor]:
        """The key of each pointer in use at each query, and whether there is one. [scale, 1, query, pointer]"""

        def pointed() -> tuple[Tensor, Tensor]:
            query = torch.arange(queries.start, queries.stop, device=scales.device)[:, None]
            key = self._keys_in_pass(positions, queries, scales)[:, None]
            exists = (key >= 0) & (key <= query)
            return torch.where(exists, key, 0), exists

        return positions.memo((queries.start, queries.stop), pointed)

    def _keys_in_pass(self, positions: Positions, queries: slice, scales: Tensor) -> Tensor:
        """The key that each pointer in use points at from a block of queries; it need not exist.

        [scale, query, pointer]
        """
        query = torch.arange(queries.start, queries.stop, device=scales.device)[:, None]
        return self.keys_of(self._used(positions), query, scales[:, None, None])

    def keys_of(self, places: Tensor | None, query: Tensor, scale: Tensor) -> Tensor:
        """The key that pointers, places in [form·value], point at from queries at input sizes; it need not exist.

        None stands for all pointers. Queries [*, 1] and sizes broadcast. [*, pointer]
        """
        forms, value = self._chosen(places, query.device)
        a, b, c, d = forms.unbind(1)
        keys: Tensor = key_with((a, b, c, d), value, query, scale)
        return keys

    def _used(self, positions: Positions) -> Tensor | None:
        """The pointers that some head may use, as places in [form·value]; None: all, or the host does not know."""

        def used() -> Tensor | None:
            places = places_of(self.alive) if readable(self.alive) else None
            return None if places is None or len(places) == self.bias[0, 0].numel() else places

        return positions.memo("used", used)

    @property
    def pools_others(self) -> bool:
        return self.options.other != "each" and not self.trying

    @property
    def weighs_content(self) -> bool:  # type: ignore[override]
        return self.means_others

    @property
    def means_others(self) -> bool:
        return self.options.other == "mean" and not self.trying

    def _named(self) -> Tensor:
        """The pointers that tell a key from all others in some head, as places in [form·value]."""
        return places_of(self.alive if self.pools_others else self.weights().detach() != 0)

    def named_keys(self, query: Tensor, scale: int | Tensor) -> NamedKeys:
        used = self._named().to(query.device)
        return self._named_at(used, self.keys_of(used, query[:, None], torch.as_tensor(scale).view(-1, 1)))

    def _named_at(self, used: Tensor, key: Tensor) -> NamedKeys:
        """`used` pointers with their keys [query, pointer]."""
        weights, alive = self.weights().detach().flatten(2), self.alive.flatten(2)  # [layer, head, form·value]
        bias, valued = (part[:, :, None, used].expand(-1, -1, len(key), -1) for part in (weights, alive))
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
        return [CodedForm(form, each) for form, each in zip(self.forms, counts) if bool(each.any())]

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
        entries = []
        for layer, head, form, value in (weights.abs() > threshold).nonzero().tolist():
            gate, bias = gates[layer][head][form], weights[layer, head, form, value].item()
            entries.append(LearnedEntry(layer, head, self.forms[form], value - self.options.window, gate, bias))
        return sorted(entries, key=lambda entry: -abs(entry.bias))

    @torch.no_grad()
    def prune_below(self, threshold: float = 0.5) -> None:
        """Keep only what adds more than `threshold` to a score, or takes it away: in the bias and in the relation.

        Softmax weights change by a factor of e^threshold at most for each (form, value) that goes.
        """
        self.alive &= self.weights().abs() > threshold

    def prune(self, unchanged: Callable[[], bool]) -> Relation:
        """First the largest threshold on what a (form, value) adds to a score, then whole forms, the weakest first."""
        before = self.alive.clone()
        for threshold in (*THRESHOLDS[::-1], 0.0):
            self.alive.copy_(before)
            if threshold == 0:
                break
            self.prune_below(threshold)
            if unchanged():
                break
        strength = self.weights().detach().abs().amax((0, 1, 3))
        for form in strength.argsort().tolist():
            before_it = self.alive[:, :, form].clone()
            self.alive[:, :, form] = False
            if before_it.any() and not unchanged():
                self.alive[:, :, form] = before_it
        values = {form.form: (form.counts.nonzero()[:, 0] - form.window).tolist() for form in self._coded()}
        left = "; ".join(f"{form}: {' '.join(map(str, each))}" for form, each in values.items()) or "none"
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
            self._drop(order[torch.isin(order, places_of(self.alive))].tolist(), unchanged)
        self.trying = False

    def _drop(self, places: list[int], unchanged: Callable[[], bool]) -> None:
        """Switch off as many of these (form, value) as can go: all at once, or else of the weaker and stronger half."""
        alive = self.alive.flatten(2)  # a view
        before = alive[:, :, places]  # a copy
        alive[:, :, places] = False
        if not places or unchanged():
            return
        alive[:, :, places] = before
        if len(places) > 1:
            half = (len(places) + 1) // 2
            self._drop(places[:half], unchanged)
            self._drop(places[half:], unchanged)


def chosen(values: Tensor, used: Tensor | None) -> Tensor:
    """[*, form, value] at the places [form·value] in use, [*, pointer]; None: at all."""
    flat = values.flatten(-2)
    return flat if used is None else flat[..., used]


def places_of(alive: Tensor) -> Tensor:
    """Where [*, form, value] is true anywhere, as places in [form·value]."""
    return alive.flatten(-2).flatten(0, -2).any(0).nonzero()[:, 0]


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


# -- fields, read off the marks ----------------------------------------------------------------------------------------
#
# ``^ 3 5 6 + 9 4 = 2 0 7 0 $``: each mark opens a field and stands at offset 0 of it. The query ``2`` is at offset 1 of
# field 2, the prompt has P = 2 fields, and "field f−P, offset o+1" points at the 5.

COMPARED, TUPLES = 8, 8  # sizes up to which pointers are compared, and scales of each where those are tuples
WINDOW = 2  # of the constants in offsets, and nearly so in fields


class FieldForm(NamedTuple):
    """Field f' = along·f + prompt·P + field, offset o' = offset·o + length·L + value, for a query at (f, o).

    P is the number of fields of the prompt, L the offset of the mark that ends field f'. The key is held between the
    two marks of its field: beyond the last symbol it is the mark that ends it.
    """

    along: int
    prompt: int
    field: int
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.field_in_words()}, offset {summed((self.offset, 'o'), (self.length, 'L'))}"

    def field_in_words(self) -> str:
        return f"field {summed((self.along, 'f'), (self.prompt, 'P'), (self.field, ''))}"

    def says(self, value: int) -> str:
        """The key it points at with a value.

        >>> FieldForm(1, -1, 0, 1, 0).says(1), FieldForm(0, 0, 1, -1, 1).says(0)
        ('field f−P, offset o+1', 'field 1, offset L−o')
        """
        return f"{self.field_in_words()}, offset {summed((self.length, 'L'), (self.offset, 'o'), (value, ''))}"


@cache
def field_forms() -> tuple[FieldForm, ...]:
    """Every form with a field that is counted from the query's or from the start, less P or not, and an offset that is
    counted along with the query's or against it, or from either end.

    >>> len(field_forms()), str(field_forms()[0])
    (60, 'field f, offset o')
    """
    fields = [
        *((1, 0, -d) for d in range(4)),
        *((1, -1, d) for d in range(-WINDOW, WINDOW + 1)),
        *((0, 0, d) for d in range(3)),
        *((0, 1, -d) for d in range(1, 4)),
    ]
    offsets = (1, 0), (-1, 1), (0, 0), (0, 1)
    return tuple(FieldForm(*field, *offset) for field, offset in itertools.product(fields, offsets))


class Fields(NamedTuple):
    """Where the tokens of rows stand, by the marks among them."""

    field: Tensor  # [row, pos], counted from 0
    offset: Tensor  # [row, pos], that of the mark which opens the field is 0
    start: Tensor  # [row, field + 1], the position of the mark that opens each field; where there is none, the length
    prompt: Tensor  # [row], the number of fields before ``=``


def fields_in(tokens: Tensor, marks: Tensor, equals: int) -> Fields:
    """The fields of rows of ids [row, pos]. `marks` [token]: whether a token opens a field.

    >>> fields = fields_in(torch.tensor([[3, 0, 0, 2, 0, 2, 0]]), torch.tensor([False, False, True, True]), equals=2)
    >>> fields.field.tolist(), fields.offset.tolist(), fields.start.tolist()
    ([[0, 0, 0, 1, 1, 2, 2]], [[0, 1, 2, 0, 1, 0, 1]], [[0, 3, 5, 7, 7, 7, 7, 7]])
    """
    rows, length = tokens.shape
    place = torch.arange(length, device=tokens.device).expand(rows, -1)
    opens = marks[tokens] | (place == 0)
    field, opened = opens.long().cumsum(1) - 1, torch.where(opens, place, 0).cummax(1).values
    start = tokens.new_full((rows, length + 1), length).scatter(1, field, opened)
    prompt = torch.where(tokens == equals, field, length).amin(1)
    return Fields(field, place - opened, start, prompt)


def keys_in(fields: Fields, queries: slice | Tensor, forms: Tensor, values: Tensor) -> Tensor:
    """The key that each pointer, a form [pointer, 5] and a value [pointer], points at; −1 if there is none, and it may
    lie after the query, in the field of the query. [row, query, pointer]"""
    field, offset = (part[:, queries, None] for part in (fields.field, fields.offset))
    along_field, prompt, constant, along, length = forms.unbind(1)
    other = constant.addcmul(along_field, field).addcmul(prompt, fields.prompt[:, None, None])
    exists = (other >= 0) & (other <= field - length)  # how long the field of the query will be, nobody knows yet
    other = torch.where(exists, other, 0)
    start, end = (fields.start.gather(1, each.flatten(1)).view(each.shape) for each in (other, other + 1))
    key = (start + values).addcmul(along, offset).addcmul(length, end - start)
    return torch.where(exists, key.clamp(min=start, max=end), -1)


def opening(task: Task) -> list[bool]:
    """Which tokens open a field, by id: marks, but for the end and the padding."""
    return [id >= len(task.symbols) and token not in (END, PAD) for id, token in enumerate(task.vocab)]


@remembered
def fields_at(task: Task, scale: int) -> Fields:
    """The fields of instances of a scale: where their marks stand follows from it."""
    return fields_in(example_of(task, scale)[None], torch.tensor(opening(task), device="cpu"), task.ids.get("=", -1))


class LearnedFields(LearnedRelation):
    """`lbpe` whose pointers count fields and offsets instead of positions, read off the marks among the tokens.

    A query at offset o of field f may attend to field f−2 or f−P or 0 or P−1 …, at offset o+1 or L−o or 1 or L …
    (`field_forms`), where L is where that field ends: 60 forms, each with constants from −window to window. A pointer
    stops at the marks that bound its field, so that an operand that has run out is seen to have run out. No form is
    chosen for a task; of pointers that cannot be told apart on its prompts, one is there. Price, `condense` and what is
    the words are those of ``forms=wide``.
    """

    name = "lbpe-marks"
    summary = "a learned relation: fields and offsets, counted from the marks among the tokens"
    relation_in_words = "the surviving pointers at fields and offsets, each at the key or not"
    uses_scale = False
    remedy = "learning the relation of fields"
    no_random = "it counts true positions from the marks among the tokens"
    no_hint = "it reads the marks that tell the scale"

    @dataclass(frozen=True)
    class Options:
        window: int = option(WINDOW, at_least=0, at_most=16)
        other: Literal["each", "one", "mean"] = "one"  # keys without a value: as in ``lbpe``

    options: Options  # type: ignore[assignment]

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        if task is None:
            raise UserError(f"scheme '{self.name}' reads the marks of a task: build the model for a task")
        super().__init__(sizes, options, task)  # type: ignore[arg-type]
        self.equals = task.ids.get("=", -1)
        self.marks: Tensor
        self.register_buffer("marks", torch.tensor(opening(task)), persistent=False)
        self.alive &= self._different(task).view(self.alive.shape[2:]).to(self.alive.device)

    def _different(self, task: Task) -> Tensor:
        """Which pointers are there: one of those that are the same from all answer queries of the task. [form·value]

        Where a prompt always has two fields, f−2 and f−P are one. The plainest stays, the first of small value.
        """
        each = []
        for scale in task.scales_up_to(COMPARED, TUPLES, torch.Generator(device="cpu").manual_seed(0)):
            fields, start = fields_at(task, scale), task.prompt_length(scale) - 1
            queries = slice(start, fields.field.shape[1] - 1)
            key = keys_in(fields, queries, *self._chosen(None, fields.field.device))[0]
            query = torch.arange(queries.start, queries.stop, device="cpu")[:, None]
            each.append(torch.where(key <= query, key, -1))
        keys, width = torch.cat(each).numpy(), self.bias.shape[-1]
        order = np.argsort(np.abs(np.arange(keys.shape[1]) % width - width // 2), kind="stable")
        first = order[np.unique(keys[:, order], axis=1, return_index=True)[1]]
        there = torch.zeros(keys.shape[1], dtype=torch.bool, device="cpu")
        there[first[(keys[:, first] >= 0).any(0)]] = True
        return there

    @staticmethod
    def _family(options: Any) -> tuple[FieldForm, ...]:
        return field_forms()

    def _per_row(self, positions: Positions, make: Callable[[Tensor], Tensor]) -> Tensor:
        return make(positions.tokens)

    def _keys_in_pass(self, positions: Positions, queries: slice, scales: Tensor) -> Tensor:
        """[1|row, query, pointer]"""
        return keys_in(self.fields(positions), queries, *self._chosen(self._used(positions), scales.device))

    def fields(self, positions: Positions) -> Fields:
        """The fields of the rows of a pass; of the first alone where the host sees that all have the same."""

        def fields() -> Fields:
            tokens = positions.tokens
            if len(tokens) > 1 and readable(tokens):
                opening = torch.where(self.marks[tokens], tokens, -1)
                tokens = tokens[:1] if bool((opening == opening[:1]).all()) else tokens
            return fields_in(tokens, self.marks, self.equals)

        return positions.memo("fields", fields)

    # -- what theory and probes ask: by scale, since where the marks of an instance stand follows from it ----------

    def keys_of(self, places: Tensor | None, query: Tensor, scale: Tensor) -> Tensor:
        """The same, [step, pointer], for queries and sizes [step, 1]; −1 after the instance."""
        assert self.task is not None and places is not None
        query, size = query[:, 0], scale.expand_as(query)[:, 0]
        keys, pointers = query.new_full((len(query), len(places)), -1), self._chosen(places, places.device)
        for n in size.unique().tolist():
            fields = fields_at(self.task, n)
            here = ((size == n) & (query < fields.field.shape[1])).nonzero()[:, 0]
            keys[here] = keys_in(fields, query[here], *pointers)[0]
        return keys

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """One component for each pointer that any head still uses: whether it points at the key."""
        return self.codes_at(places_of(self.alive).cpu(), query_pos, key_pos, scale)

    def codes_at(self, places: Tensor, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        i, j, n = (each.cpu() for each in torch.broadcast_tensors(query_pos, key_pos, scale))
        keys = self.keys_of(places, i.flatten()[:, None], n.flatten()[:, None])
        codes = (keys == j.flatten()[:, None]).long().view(*i.shape, len(places))
        given: Tensor = codes if len(places) else codes.new_zeros(*i.shape, 1)
        return given.to(query_pos.device)

    def describe(self, code: Code) -> str:
        pointers = [self._pointer(place) for place in places_of(self.alive).cpu().tolist()]
        return " and ".join(str(one) for one, here in zip(pointers, code) if here) or "no pointer's key"

    def relation(self) -> Relation:
        return Relation(self.phi, self.relation_in_words, self.describe, whole_scale=True, of_head=self._phi_of)

    def _phi_of(self, layer: int, head: int) -> Phi:
        places = places_of(self.alive).cpu()
        of_head = self.alive[layer, head].flatten().cpu()[places].long()
        return lambda i, j, n: self.codes_at(places, i, j, n) * of_head

    def _pointer(self, place: int) -> "FieldPointer":
        width = self.bias.shape[-1]
        return FieldPointer(self.forms[place // width], place % width - width // 2, self, place)

    def candidates(self) -> dict[str, Relation]:
        """Each pointer that some head still uses, alone."""
        pointers = [self._pointer(place) for place in places_of(self.alive).cpu().tolist()]
        return {str(pointer): pointer.relation(k) for k, pointer in enumerate(pointers)}

    def pointers(self) -> list[list[Pointer]]:
        kinds = self.alive.flatten(0, 1).unique(dim=0)
        return [[self._pointer(place) for place in places_of(kind[None]).tolist()] for kind in kinds]

    def names_in(self, positions: Positions, queries: slice) -> NamedKeys | None:
        fields, used = self.fields(positions), self._named()
        if len(fields.field) > 1:
            return None
        return self._named_at(used, keys_in(fields, queries, *self._chosen(used, fields.field.device))[0])

    def named_lines(self, layout: Layout) -> None:
        """Its keys lie on no lines: they stop at marks."""
        return


class FieldPointer(Pointer):
    """A form of fields with a value: from a query it points at one key, or at none."""

    scheme: LearnedFields
    place: int  # in [form·value]

    def __new__(cls, form: FieldForm, value: int, scheme: LearnedFields, place: int) -> "FieldPointer":
        made = super().__new__(cls, form, value)  # type: ignore[arg-type]
        made.scheme, made.place = scheme, place
        return made

    @staticmethod
    def keys(pointers: "Sequence[FieldPointer]", query: Ints, scale: Ints) -> Ints:  # type: ignore[override]
        places = torch.tensor([one.place for one in pointers], device="cpu")
        steps = (torch.from_numpy(each)[:, None] for each in (query, scale))
        return np.asarray(pointers[0].scheme.keys_of(places, *steps))

    def relation(self, component: int) -> Relation:
        """Whether it points at a key."""

        def describe(code: Code) -> str:
            return str(self) if code[0] else f"no key of {self}"

        phi = partial(self.scheme.codes_at, torch.tensor([self.place], device="cpu"))
        about, listed = (phi, str(self), describe), partial(self.keys, [self])
        return Relation(*about, whole_scale=True, background=(0,), listed=listed, component=component)
