"""Tasks on several fields of symbols with different lengths: the size of an instance is the tuple of these lengths.

Marks open and close the fields of a prompt, ``^ 3 5 6 + 9 4 = …``, and so show all lengths. Where a size has to be one
number, a tuple has a number that stands for it (`lengthlens.tasks.scale`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.tasks.arithmetic import add, carried, convolved, product_at_once, value
from lengthlens.tasks.circuit import Circuit, Operator
from lengthlens.tasks.copying import DIGITS
from lengthlens.tasks.scale import SHAPES, Ints, Lengths, Tuples, size_of
from lengthlens.tasks.task import BEGIN, END, Family, Task

MOST_FIELDS = 10_000


class FieldsTask(Task):
    """A task whose prompt has several fields. Its size is a tuple of lengths, or n for `usual` fields of n symbols.

    Where training or evaluation ask for size n, they draw among all tuples whose largest length is n (`drawn_scale`):
    one field has n symbols, the others from 1 to n, and there are from two to `most_fields(n)` fields. A subclass says
    which marks stand between the fields, and where the steps of the answer read.

    >>> from lengthlens.tasks import TASKS
    >>> batch = TASKS["copy-field"].sample((3, 1, 2), 1, torch.Generator().manual_seed(0))
    >>> TASKS["copy-field"].render(batch.tokens[0])
    '^ 4 9 3 , 0 , 3 9 = 0 $'
    """

    programs = ()
    family: ClassVar[Family] = "position-addressed"
    one_number = False
    usual: ClassVar[int] = 2
    tail: ClassVar[tuple[str, ...]] = ("=",)  # what follows the last field
    symbols: tuple[str, ...] = DIGITS

    def most_fields(self, size: int) -> int:
        """The largest number of fields that is drawn at size n."""
        return self.usual

    def separators(self, fields: int) -> list[str]:
        """The marks between the fields of the prompt."""
        return [self.marks[0]] * (fields - 1)

    # -- sizes ----------------------------------------------------------------------------------------------------

    @cached_property
    def tuples(self) -> Tuples:
        """The tuples that this task has met, and their numbers."""
        return Tuples(self.size_from)

    @staticmethod
    def size_from(lengths: Lengths) -> int:
        """The size n of a tuple: the largest length."""
        return max(lengths)

    def parts(self, scale: int) -> Lengths:
        return (scale,) * self.usual if scale < SHAPES else self.tuples.lengths(scale)

    def number_of(self, scale: int | Lengths) -> int:
        """The number of a tuple of lengths: n where all `usual` fields have n symbols."""
        lengths = self.parts(scale) if isinstance(scale, int) else scale
        if not 2 <= len(lengths) <= (self.usual if self.usual == 2 else MOST_FIELDS):
            wanted = "2" if self.usual == 2 else f"2 to {MOST_FIELDS}"
            raise UserError(f"task '{self.name}' has {wanted} fields, not {len(lengths)}")
        size = self.size_from(lengths)
        regular = size < SHAPES and self.parts(size) == tuple(lengths)
        return self.checked_scale(size if regular else self.tuples.number(lengths))

    def longest(self, size: int) -> int:
        return self.length(self.number_of((size,) * self.most_fields(size)))

    def checked_scale(self, scale: int) -> int:
        for length in self.parts(scale):
            super().checked_scale(length)
        return scale

    def drawn_scale(self, size: int, generator: torch.Generator | None) -> int:
        most = self.most_fields(super().checked_scale(size))
        fields = int(torch.randint(2, most + 1, (), generator=generator, device="cpu"))
        lengths = torch.randint(1, size + 1, (fields,), generator=generator, device="cpu")
        lengths[int(torch.randint(fields, (), generator=generator, device="cpu"))] = size
        return self.number_of(tuple(lengths.tolist()))

    def scale_of(self, tokens: Tensor) -> Tensor:
        if tokens.device.type == "meta":
            return tokens[:, 0]
        return torch.tensor([self._scale_in(row) for row in tokens.tolist()], device=tokens.device)

    def _scale_in(self, row: list[int]) -> int:
        """The size of one row of ids, by the marks of its prompt."""
        if self.ids["="] not in row:
            raise UserError(f"no '=' in the tokens, so task '{self.name}' cannot tell their size n")
        prompt = row[: row.index(self.ids["="]) + 1]
        end = len(prompt) - len(self.tail)  # of the last field
        marks = [at for at, token in enumerate(prompt[:end]) if token >= len(self.symbols)]
        lengths = np.diff([*marks, end]) - 1
        wanted = [BEGIN, *self.separators(len(lengths)), *self.tail]
        if (
            len(lengths) < 2
            or lengths.min() < 1
            or [self.vocab[prompt[at]] for at in [*marks, *range(end, len(prompt))]] != wanted
        ):
            raise UserError(f"'{self.render(torch.tensor(prompt))}' is no prompt of task '{self.name}': {self.summary}")
        return self.number_of(tuple(lengths.tolist()))

    # -- instances ------------------------------------------------------------------------------------------------

    def input_length(self, scale: int) -> int:
        return sum(self.parts(scale))

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        fields = inputs.split(self.parts(scale), 1)
        pieces: list[Tensor | str] = [fields[0]]
        for mark, field in zip(self.separators(len(fields)), fields[1:]):
            pieces += [mark, field]
        return [*pieces, *self.tail]

    def starts(self, scale: int) -> Ints:
        """The position of the mark that opens each field of the prompt, and of what follows the last. [field + 1]"""
        return np.cumsum([0, *(1 + np.array(self.parts(scale)))])


def add_fields(a: str, b: str, a_before: str, b_before: str, sum_before: str) -> str:
    """The next digit of a sum of two numbers of any lengths; a mark stands where a number has run out.

    The carry follows from the column before, as in `adding`. The sum ends once that column was beyond both numbers.

    >>> add_fields("+", "4", "3", "9", "2"), add_fields("+", "=", "+", "4", "9"), add_fields("+", "=", "+", "=", "0")
    ('5', '0', '$')
    """
    if sum_before.isdigit() and not a_before.isdigit() and not b_before.isdigit():
        return END
    column = value(a_before) + value(b_before)
    carry = sum_before.isdigit() and (column >= 10 or (column == 9 and sum_before == "0"))
    return str((value(a) + value(b) + carry) % 10)


ADD_FIELDS = Operator("add digits of fields", 5, add_fields)


def added(a: Tensor, b: Tensor, base: int = 10) -> Tensor:
    """The digits of a sum of numbers of any lengths, lowest first, end carry included. [row, a], [row, b]"""
    most = max(a.shape[1], b.shape[1])
    a, b = (torch.nn.functional.pad(x, (0, most - x.shape[1])) for x in (a, b))
    return add(a, b, base)


@dataclass(frozen=True)
class UnpaddedAddition(FieldsTask):
    """Two numbers of any lengths, lowest digit first, end carry written. 653 + 49: ``^ 3 5 6 + 9 4 = 2 0 7 0 $``."""

    name, summary = "addition-unpadded", "the sum of two numbers of any lengths, lowest digit first, end carry written"
    marks = ("+", "=")
    coupled_from = 1

    def answer_length(self, scale: int) -> int:
        return max(self.parts(scale)) + 2

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return added(*inputs.split(self.parts(scale), 1))

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        first, second, equals = self.starts(scale)
        k = np.arange(1, self.answer_length(scale) + 1)
        a, a_before = (np.minimum(first + at, second) for at in (k, k - 1))
        b, b_before = (np.minimum(second + at, equals) for at in (k, k - 1))
        query = equals + k - 1
        return Circuit.of(ADD_FIELDS, query, a, b, a_before, b_before, query)


@dataclass(frozen=True)
class UnpaddedMultiplication(FieldsTask):
    """Two numbers of any lengths, lowest digit first, nothing written on the way. 27 · 4: ``^ 7 2 * 4 = 8 0 1 $``."""

    name, summary = "multiplication-unpadded", "the product of two numbers of any lengths, lowest digit first"
    family = "growing"
    marks = ("*", "=")

    def answer_length(self, scale: int) -> int:
        return sum(self.parts(scale)) + 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        most = max(self.parts(scale))
        a, b = (torch.nn.functional.pad(x, (0, most - x.shape[1])) for x in inputs.split(self.parts(scale), 1))
        return carried(convolved(a, b))[:, : inputs.shape[1]]

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        return product_at_once(*self.parts(scale))


@dataclass(frozen=True)
class BinaryAddition(FieldsTask):
    """Binary, highest bit first, nothing padded. 5 + 3 = 8: ``^ 1 0 1 + 1 1 = 1 0 0 0 $``.

    The size n is the number of bits of both operands together. (The published length counts ``+`` and ``=`` as well,
    and is n + 2.) A first bit is 1, unless it is the only one. How long the answer is follows from the bits, so no
    circuit of positions writes it.
    """

    name, summary = "addition-binary", "the sum of two binary numbers of n bits together, highest first, without zeros"
    family = "content-addressed"
    marks = ("+", "=")
    symbols: tuple[str, ...] = ("0", "1")
    min_scale: int = 2
    answers_differ = True

    @staticmethod
    def size_from(lengths: Lengths) -> int:
        return sum(lengths)

    def parts(self, scale: int) -> Lengths:
        return (scale - scale // 2, scale // 2) if scale < SHAPES else self.tuples.lengths(scale)

    def checked_scale(self, scale: int) -> int:
        Task.checked_scale(self, size_of(scale) if min(self.parts(scale)) > 0 else 0)
        return scale

    def longest(self, size: int) -> int:
        return self.length(self.number_of((size - 1, 1)))

    def drawn_scale(self, size: int, generator: torch.Generator | None) -> int:
        first = int(torch.randint(1, self.checked_scale(size), (), generator=generator, device="cpu"))
        return self.number_of((first, size - first))

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        bits = super().draw(scale, batch, generator, device)
        bits[:, self._first_bits(scale)] = 1
        return bits

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & (inputs[:, self._first_bits(scale)] == 1).all(1)

    def _first_bits(self, scale: int) -> list[int]:
        """The places of first bits that are not the only ones."""
        first, second = self.parts(scale)
        return [place for place, length in ((0, first), (first, second)) if length > 1]

    def answer_length(self, scale: int) -> int:
        return max(self.parts(scale)) + 2

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        a, b = (bits.flip(1) for bits in inputs.split(self.parts(scale), 1))
        bits = added(a, b, 2).flip(1)
        ended = torch.nn.functional.pad(bits[:, 1:], (0, 1), value=self.ids[END])
        return torch.where(bits[:, :1] == 0, ended, bits)


def add_operand(operand: str, so_far: str, operand_before: str, so_far_before: str, sum_before: str) -> str:
    """`add_fields` where one running sum follows another: ``,`` after each sum, ``$`` after the last.

    >>> add_operand("+", ",", "+", ",", "0"), add_operand(";", ",", ";", ",", "0")
    (',', '$')
    """
    digit = add_fields(operand, so_far, operand_before, so_far_before, sum_before)
    return "," if digit == END and operand_before != ";" else digit


ADD_OPERAND = Operator("add an operand's digits", 5, add_operand)


@dataclass(frozen=True)
class RunningAddition(FieldsTask):
    """Several numbers of any lengths, added one by one to 0: ``^ 3 2 + 9 ; 0 = 3 2 0 , 2 3 0 0 $``.

    Lowest digit first, every end carry written. The zero after ``;`` is the sum so far of the first step.
    """

    name, summary = ("addition-operands", "all running sums of several numbers of any lengths, lowest digit first")
    marks = ("+", "=", ";", ",")
    usual = 3
    tail = (";", "0", "=")

    def most_fields(self, size: int) -> int:
        return max(4, size // 10)

    def sums(self, scale: int) -> Ints:
        """The number of digits of 0 and of each running sum. [1 + operand]"""
        digits = [1]
        for length in self.parts(scale):
            digits.append(max(digits[-1], length) + 1)
        return np.array(digits)

    def answer_length(self, scale: int) -> int:
        return int((1 + self.sums(scale)[1:]).sum())

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        so_far, comma = inputs.new_zeros(len(inputs), 1), inputs.new_full((len(inputs), 1), self.ids[","])
        pieces = []
        for operand in inputs.split(self.parts(scale), 1):
            so_far = added(operand, so_far)
            pieces += [so_far, comma]
        return torch.cat(pieces[:-1], 1)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        operands, digits = self.starts(scale), self.sums(scale)
        sums = operands[-1] + np.cumsum([0, *(1 + digits)])  # the mark that opens 0 and each sum, and that after all
        sources = []
        for number, length in enumerate(digits[1:]):
            k = np.arange(1, length + 2)
            a, a_before = (np.minimum(operands[number] + at, operands[number + 1]) for at in (k, k - 1))
            b, b_before = (np.minimum(sums[number] + at, sums[number + 1]) for at in (k, k - 1))
            sources.append(np.stack([a, b, a_before, b_before, sums[number + 1] + k - 1]))
        every = np.concatenate(sources, 1)
        return Circuit.of(ADD_OPERAND, every[-1], *every)


COPY_FIELD = Operator("copy from a field", 1, lambda token: token if token.isdigit() else END)


@dataclass(frozen=True)
class CopyField(FieldsTask):
    """The last field but one of several of any lengths. ``^ 3 5 6 , 9 4 , 1 = 9 4 $``."""

    name, summary = "copy-field", "the last field but one of several strings of any lengths"
    marks = (",", "=")
    usual = 3
    coupled_from = 1

    def most_fields(self, size: int) -> int:
        return max(4, size // 10)

    def answer_length(self, scale: int) -> int:
        return self.parts(scale)[-2] + 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        field: Tensor = inputs.split(self.parts(scale), 1)[-2]
        return field

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        start, _, equals = self.starts(scale)[-3:]
        k = np.arange(1, self.answer_length(scale) + 1)
        return Circuit.of(COPY_FIELD, equals + k - 1, start + k)
