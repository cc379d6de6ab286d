"""A learned relation (LBPE) between fields: marks split the tokens into fields, and pointers stop at the marks.

``^ 3 5 6 + 9 4 = 2 0 7 0 $``: each mark opens a field and stands at offset 0 of it. The query ``2`` is at offset 1 of
field 2, the prompt has P = 2 fields, and "field f−P, offset o+1" points at the 5.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.models.schemes.relation import Code, Ints, Phi, Pointer, Relation
from lengthlens.models.schemes.scheme import NamedKeys, Positions, Sizes, option, readable
from lengthlens.tasks import Task
from lengthlens.tasks.circuit import Layout, remembered
from lengthlens.tasks.task import END, PAD, example_of

COMPARED, TUPLES = 8, 8  # sizes up to which pointers are compared, and scales of each where those are tuples
WINDOW = 2  # of the constants in offsets, and nearly so in fields


class FieldForm(NamedTuple):
    """Field f' = own·f + prompt·P + field, offset o' = offset·o + length·L + value, for a query at (f, o).

    P is the number of fields of the prompt, L the offset of the mark that ends field f'. The key is held between the
    two marks of its field: beyond the last symbol it is the mark that ends it.
    """

    own: int
    prompt: int
    field: int
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.field_in_words()}, offset {summed((self.offset, 'o'), (self.length, 'L'))}"

    def field_in_words(self) -> str:
        return f"field {summed((self.own, 'f'), (self.prompt, 'P'), (self.field, ''))}"

    def says(self, value: int) -> str:
        """The key it points at with a value.

        >>> FieldForm(1, -1, 0, 1, 0).says(1), FieldForm(0, 0, 1, -1, 1).says(0)
        ('field f−P, offset o+1', 'field 1, offset L−o')
        """
        return f"{self.field_in_words()}, offset {summed((self.length, 'L'), (self.offset, 'o'), (value, ''))}"


def summed(*terms: tuple[int, str]) -> str:
    """A sum in words.

    >>> summed((1, "f"), (-1, "P"), (2, "")), summed((0, "f"), (0, ""))
    ('f−P+2', '0')
    """
    text = ""
    for factor, letter in terms:
        if factor:
            sign = "−" if factor < 0 else "+" if text else ""
            text += f"{sign}{letter if abs(factor) == 1 and letter else f'{abs(factor)}{letter}'}"
    return text or "0"


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
    field, own = opens.long().cumsum(1) - 1, torch.where(opens, place, 0).cummax(1).values
    start = tokens.new_full((rows, length + 1), length).scatter(1, field, own)
    prompt = torch.where(tokens == equals, field, length).amin(1)
    return Fields(field, place - own, start, prompt)


def keys_in(fields: Fields, queries: slice, forms: Tensor, values: Tensor) -> Tensor:
    """The key that each pointer, a form [pointer, 5] and a value [pointer], points at; −1 if there is none, and it may
    lie behind the query in the query's own field. [row, query, pointer]"""

    def start_of(other: Tensor) -> Tensor:
        return fields.start.gather(1, other.flatten(1)).view(other.shape)

    field, offset = (part[:, queries, None] for part in (fields.field, fields.offset))
    return _keys(field, offset, fields.prompt[:, None, None], start_of, forms, values)


def _keys(
    field: Tensor, offset: Tensor, fields: Tensor, start_of: Callable[[Tensor], Tensor], forms: Tensor, values: Tensor
) -> Tensor:
    """The same for queries [*, 1] at an offset of a field, where the prompt has so many fields. [*, pointer]"""
    own, prompt, constant, along, length = forms.unbind(1)
    other = constant.addcmul(own, field).addcmul(prompt, fields)
    exists = (other >= 0) & (other <= field - length)  # how long the query's own field will be, nobody knows yet
    other = torch.where(exists, other, 0)
    start, end = start_of(other), start_of(other + 1)
    key = (start + values).addcmul(along, offset).addcmul(length, end - start)
    return torch.where(exists, key.clamp(min=start, max=end), -1)


def opening(task: Task) -> list[bool]:
    """Which tokens open a field, by id: marks, but for the end and the padding."""
    return [id >= len(task.symbols) and token not in (END, PAD) for id, token in enumerate(task.vocab)]


@remembered
def fields_at(task: Task, scale: int) -> Fields:
    """The fields of instances of a scale: where their marks stand follows from it."""
    return fields_in(example_of(task, scale)[None], torch.tensor(opening(task), device="cpu"), task.ids.get("=", -1))


class AllFields:
    """Those of the scales that were asked for last, one behind the other."""

    def __init__(self, task: Task) -> None:
        self.task, self.scales = task, np.zeros(0, dtype=np.int64)

    def at(self, query: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        """Field, offset, fields of the prompt, place of the first start, and whether it is inside. [step, 1] each"""
        numbers = scale.numpy()
        place = np.searchsorted(self.scales, numbers)
        if not len(self.scales) or (self.scales[np.minimum(place, len(self.scales) - 1)] != numbers).any():
            self._ask(np.unique(numbers))
            place = np.searchsorted(self.scales, numbers)
        which = torch.from_numpy(place)
        first, length = self.first[which], self.length[which]
        inside = query < length
        at = first + torch.where(inside, query, 0)
        starts = first + which  # each scale has one more than it has positions
        return tuple(part[:, None] for part in (self.field[at], self.offset[at], self.prompt[which], starts, inside))

    def _ask(self, scales: Ints) -> None:
        self.scales = scales
        each = [fields_at(self.task, scale) for scale in self.scales.tolist()]
        self.field, self.offset, self.start = (torch.cat([own[k][0] for own in each]) for k in range(3))
        self.prompt = torch.cat([own.prompt for own in each])
        self.length = torch.tensor([own.field.shape[1] for own in each], device="cpu")
        self.first = self.length.cumsum(0) - self.length


@remembered
def all_fields(task: Task) -> AllFields:
    return AllFields(task)


class LearnedFields(LearnedRelation):
    """`lbpe` whose pointers count fields and offsets instead of positions, read off the marks among the tokens.

    A query at offset o of field f may attend to field f−2 or f−P or 0 or P−1 …, at offset o+1 or L−o or 1 or L …
    (`field_forms`), where L is where that field ends: 60 forms, each with constants from −window to window. A pointer
    stops at the marks that bound its field, so that an operand that has run out is seen to have run out. No form is
    chosen for a task; of pointers that cannot be told apart on its prompts, one is there. Price, `condense` and what is
    said in words are those of ``forms=wide``.
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

        Where a prompt always has two fields, f−2 and f−P are one. The plainest is kept, the first of small value.
        """
        found = []
        for scale in task.scales_up_to(COMPARED, TUPLES, torch.Generator(device="cpu").manual_seed(0)):
            fields, start = fields_at(task, scale), task.prompt_length(scale) - 1
            queries = slice(start, fields.field.shape[1] - 1)
            key = keys_in(fields, queries, *self._chosen(None, fields.field.device))[0]
            query = torch.arange(queries.start, queries.stop, device="cpu")[:, None]
            found.append(torch.where(key <= query, key, -1))
        keys, width = torch.cat(found).numpy(), self.bias.shape[-1]
        order = np.argsort(np.abs(np.arange(keys.shape[1]) % width - width // 2), kind="stable")
        first = order[np.unique(keys[:, order], axis=1, return_index=True)[1]]
        there = torch.zeros(keys.shape[1], dtype=torch.bool, device="cpu")
        there[first[(keys[:, first] >= 0).any(0)]] = True
        return there

    @staticmethod
    def _family(options: Any) -> tuple[FieldForm, ...]:
        return field_forms()

    @classmethod
    def condenses(cls, options: Mapping[str, Any]) -> bool:
        return True

    def _per_row(self, positions: Positions, make: Callable[[Tensor], Tensor]) -> Tensor:
        return make(positions.tokens)

    def _pointed(
        self, positions: Positions, queries: slice, scales: Tensor, kind: Any, used: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """[1|row, 1, query, pointer]"""

        def made() -> tuple[Tensor, Tensor]:
            fields = positions.memo("fields", lambda: self.fields(positions.tokens), "pass")
            key = keys_in(fields, queries, *self._chosen(used, fields.field.device))[:, None]
            exists = (key >= 0) & (key <= torch.arange(queries.start, queries.stop, device=key.device)[:, None])
            return torch.where(exists, key, 0), exists

        return positions.memo((queries.start, queries.stop, kind), made, "pass")

    def _chosen(self, used: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Form [pointer, 5] and value [pointer] of the places [form·value] in use."""
        width = self.bias.shape[-1]
        places = torch.arange(len(self.forms) * width, device=device) if used is None else used
        return self._forms_on(device)[places // width], places % width - width // 2

    def fields(self, tokens: Tensor) -> Fields:
        """The fields of rows of ids [row, pos]; of the first alone where the host sees that all have the same."""
        if len(tokens) > 1 and readable(tokens):
            opening = torch.where(self.marks[tokens], tokens, -1)
            tokens = tokens[:1] if bool((opening == opening[:1]).all()) else tokens
        return fields_in(tokens, self.marks, self.equals)

    # -- what theory and probes ask: by scale, since where the marks of an instance stand follows from it ----------

    def _keys_of_steps(self, places: Tensor, query: Tensor, scale: Tensor) -> Tensor:
        """The key of pointers, places in [form·value], at queries and scales, [step] each; −1 behind the instance.

        [step, pointer]
        """
        assert self.task is not None
        fields = all_fields(self.task)
        field, offset, prompt, first, inside = fields.at(query, scale)
        about = prompt, lambda other: fields.start[first + other]
        return torch.where(inside, _keys(field, offset, *about, *self._chosen(places, places.device)), -1)

    def _places(self, alive: Tensor) -> Tensor:
        """Where [*, form, value] is true anywhere, as places in [form·value]."""
        return alive.flatten(-2).flatten(0, -2).any(0).nonzero()[:, 0].cpu()

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        """One component for each pointer that any head still uses: whether it points at the key."""
        return self._codes(self._places(self.alive), query_pos, key_pos, scale)

    def _codes(self, places: Tensor, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        i, j, n = (each.cpu() for each in torch.broadcast_tensors(query_pos, key_pos, scale))
        keys = self._keys_of_steps(places, i.flatten(), n.flatten())
        codes = (keys == j.flatten()[:, None]).long().view(*i.shape, len(places))
        found: Tensor = codes if len(places) else codes.new_zeros(*i.shape, 1)
        return found.to(query_pos.device)

    def describe(self, code: Code) -> str:
        pointers = [self._pointer(place) for place in self._places(self.alive).tolist()]
        return " and ".join(str(own) for own, here in zip(pointers, code) if here) or "no pointer's key"

    def relation(self) -> Relation:
        return Relation(self.phi, self.relation_in_words, self.describe, whole_scale=True, of_head=self._phi_of)

    def _phi_of(self, layer: int, head: int) -> Phi:
        places = self._places(self.alive)
        own = self.alive[layer, head].flatten().cpu()[places].long()
        return lambda i, j, n: self._codes(places, i, j, n) * own

    def _pointer(self, place: int) -> "FieldPointer":
        width = self.bias.shape[-1]
        return FieldPointer(self.forms[place // width], place % width - width // 2, self, place)

    def candidates(self) -> dict[str, Relation]:
        """Each pointer that some head still uses, alone."""
        pointers = [self._pointer(place) for place in self._places(self.alive).tolist()]
        return {str(pointer): pointer.relation(k) for k, pointer in enumerate(pointers)}

    def pointers(self) -> list[list[Pointer]]:
        kinds = self.alive.flatten(0, 1).unique(dim=0)
        return [[self._pointer(place) for place in self._places(kind[None]).tolist()] for kind in kinds]

    def named_keys(self, query: Tensor, scale: int | Tensor) -> NamedKeys:
        used = self._named().cpu()
        return self._named_at(used, self._keys_of_steps(used, query, torch.as_tensor(scale).expand(len(query))))

    def names_in(self, positions: Positions, queries: slice) -> NamedKeys | None:
        fields, used = positions.memo("fields", lambda: self.fields(positions.tokens), "pass"), self._named()
        if len(fields.field) > 1:
            return None
        return self._named_at(used, keys_in(fields, queries, *self._chosen(used, fields.field.device))[0])

    def _named_at(self, used: Tensor, key: Tensor) -> NamedKeys:
        weights, alive = self.weights().detach().flatten(2), self.alive.flatten(2)  # [layer, head, form·value]
        bias, valued = (part[:, :, None, used].expand(-1, -1, len(key), -1) for part in (weights, alive))
        return NamedKeys(key, bias, valued)

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
        return np.asarray(pointers[0].scheme._keys_of_steps(places, torch.from_numpy(query), torch.from_numpy(scale)))

    def relation(self, component: int) -> Relation:
        """Whether it points at a key."""

        def listed(query: Ints, scale: Ints) -> tuple[Ints, Ints]:
            key = self.keys([self], query, scale)[:, 0]
            row = np.flatnonzero((key >= 0) & (key <= query))
            return row, key[row]

        def describe(code: Code) -> str:
            return str(self) if code[0] else f"no key of {self}"

        phi = partial(self.scheme._codes, torch.tensor([self.place], device="cpu"))
        about = phi, str(self), describe
        return Relation(*about, whole_scale=True, listed=listed, background=(0,), component=component)
