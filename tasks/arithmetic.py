"""Tasks that compute with digits: sums modulo a number, and arithmetic on decimal numbers of n digits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lengthlens.tasks.circuit import Circuit, Layout, Line, Operator, StepRange, along
from lengthlens.tasks.copying import DIGITS
from lengthlens.tasks.scale import Ints
from lengthlens.tasks.task import BEGIN, END, Task


def value(token: str) -> int:
    """A digit's value; zero for every other token, so that sums may start at a mark."""
    return int(token) if token.isdigit() else 0


def stops_at_equals(function: Callable[..., str]) -> Callable[..., str]:
    """The same function, but it ends the answer where every argument is ``=``: no operator just for stopping."""
    return lambda *xs: END if set(xs) == {"="} else function(*xs)


def running_sum(modulus: int) -> Operator:
    """The next partial sum from a symbol and the sum so far; stops when ``=`` stands where a symbol should."""

    def add(symbol: str, so_far: str) -> str:
        return END if symbol == "=" else str((value(symbol) + value(so_far)) % modulus)

    return Operator(f"add mod {modulus}", 2, add)


def whole_sum(modulus: int, arity: int) -> Operator:
    """The sum of `arity` symbols at once: another function for every arity."""
    total = stops_at_equals(lambda *xs: str(sum(map(value, xs)) % modulus))
    return Operator(f"sum of {arity} mod {modulus}", arity, total)


@dataclass(frozen=True)
class ModularSumCoT(Task):
    """Running sum modulo 5. ``^ 3 4 1 = 3 2 3 $``. Step k reads x_k, n back, and the sum before it, itself."""

    name, summary = "modular-sum-cot", "the sum of every prefix modulo 5, as a chain of thought"
    programs = ()
    family = "position-addressed"
    symbols: tuple[str, ...] = tuple("01234")  # as many as the modulus
    coupled_from = 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs.cumsum(1) % len(self.symbols)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        k = np.arange(1, scale + 2)
        return Circuit.of(running_sum(len(self.symbols)), scale + k, k, scale + k)

    def layout(self) -> Layout | None:
        operator = running_sum(len(self.symbols)).name
        steps = StepRange(operator, Line(0, 1, 1), Line(0, 2, 1), (Line(1, -1), Line(1)))
        return Layout(along("="), Line(0, 1, 2), Line(0, 2, 3), (steps,))


@dataclass(frozen=True)
class ParityCoT(ModularSumCoT):
    """Running XOR. ``^ 1 0 1 = 1 1 0 $``."""

    name, summary = "parity-cot", "the parity of every prefix, as a chain of thought"
    symbols: tuple[str, ...] = tuple("01")


@dataclass(frozen=True)
class ModularSum(Task):
    """The sum modulo 5, in one token. ``^ 3 4 1 = 3 $``."""

    name, summary = "modular-sum", "the sum of the string modulo 5, at once"
    programs = ()
    family = "growing"
    symbols: tuple[str, ...] = tuple("01234")  # as many as the modulus

    def answer_length(self, scale: int) -> int:
        return 2

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs.sum(1, keepdim=True) % len(self.symbols)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        modulus, equals = len(self.symbols), scale + 1
        total = Circuit.of(whole_sum(modulus, scale), [equals], *np.arange(1, scale + 1)[:, None])
        return Circuit.join(total, Circuit.of(whole_sum(modulus, 1), [equals + 1], equals))


@dataclass(frozen=True)
class Parity(ModularSum):
    """XOR of all bits. ``^ 1 0 1 = 0 $``."""

    name, summary = "parity", "the parity of the string, at once"
    symbols: tuple[str, ...] = tuple("01")


# -- decimal numbers ---------------------------------------------------------------------------------------------------


def adding(base: int) -> Operator:
    """The next digit of a sum. The carry is not written down: it follows from the column before.

    >>> adding(10).function("5", "4", "3", "9", "2")  # …3 + …9 gave 2, so one is carried
    '0'
    """

    def add_step(a: str, b: str, a_before: str, b_before: str, sum_before: str) -> str:
        if a_before == "+":  # the column before held only a carry
            return END
        column = value(a_before) + value(b_before)
        carry = column >= base or (column == base - 1 and sum_before == "0")
        return str((value(a) + value(b) + carry) % base)

    return Operator("add digits", 5, add_step)


ADD = adding(10)


def multiply_step(x: str, x_before: str, digit: str, product_before: str) -> str:
    """The next digit of a product with one digit. The carry, at most 8, follows from the column before.

    >>> multiply_step("2", "7", "6", "2")  # 7·6 = 42 gave 2, so four are carried, and 2·6 + 4 = 16
    '6'
    """
    if x_before == "*":
        return END
    before = value(x_before) * value(digit)
    carried_in = 0 if x_before == BEGIN else (value(product_before) - before) % 10
    return str((value(x) * value(digit) + (before + carried_in) // 10) % 10)


MULTIPLY = Operator("multiply digit", 4, multiply_step)


def result_digit(result: str, compute: Callable[[int, int], int], place: int, low: int) -> Operator:
    """Digit `place` of a result, from the `low` lowest digits of both numbers, lowest first; marks stand for zero."""

    def digit(*xs: str) -> str:
        a, b = (sum(value(x) * 10**k for k, x in enumerate(digits)) for digits in (xs[:low], xs[low:]))
        return str(compute(a, b) // 10 ** (place - 1) % 10)

    return Operator(f"digit {place} of the {result}", 2 * low, stops_at_equals(digit))


def written_at_once(equals: int, digits: Iterable[tuple[Operator, Ints]]) -> Circuit:
    """A step for each token of the answer, from the query at ``=`` on: its operator, and its sources."""
    steps = enumerate(digits, equals)
    return Circuit.join(*(Circuit.of(operator, [query], *sources[:, None]) for query, (operator, sources) in steps))


def product_at_once(first: int, second: int) -> Circuit:
    """The steps that write the product of numbers of so many digits: ``^``, the first, ``*``, the second, ``=``."""
    digits, star, equals = [], first + 1, first + second + 2
    for place in range(1, first + second + 1):
        low = np.arange(1, place + 1)
        # A mark where the numbers have no digit any more.
        sources = np.concatenate([np.where(low <= n, start + low, star) for start, n in ((0, first), (star, second))])
        digits.append((result_digit("product", int.__mul__, place, place), sources))
    stop = result_digit("product", int.__mul__, 1, 1), np.full(2, equals)
    return written_at_once(equals, [*digits, stop])


def convolved(a: Tensor, b: Tensor) -> Tensor:
    """Column sums of a product, [row, 2n]. Exact: sums stay below 2**53 for any n that fits into memory."""
    size = 2 * a.shape[1]
    spectrum = torch.fft.rfft(a.double(), size) * torch.fft.rfft(b.double(), size)
    columns: Tensor = torch.fft.irfft(spectrum, size)
    return columns.round().long()


def add(a: Tensor, b: Tensor, base: int = 10) -> Tensor:
    """The digits of a sum, lowest first, end carry included: [row, n] and [row, n] to [row, n+1].

    A carry leaves a column if the last column at or below it whose digits do not add up to base − 1 adds up to more.
    """
    column = a + b
    places = torch.arange(a.shape[1], device=a.device)
    decisive = torch.where(column == base - 1, -1, places).cummax(1).values
    carry = (decisive >= 0) & (column.gather(1, decisive.clamp(min=0)) >= base)
    digits = torch.nn.functional.pad(column, (0, 1))
    digits[:, 1:] += carry
    return digits % base


def carried(columns: Tensor) -> Tensor:
    """Column sums, lowest first, as digits, with carries. [row, n] to [row, n]"""
    digits, carry = torch.empty_like(columns), torch.zeros_like(columns[:, 0])
    for k in range(columns.shape[1]):
        total = columns[:, k] + carry
        digits[:, k] = total % 10
        carry = total // 10
    return digits


@dataclass(frozen=True)
class _TwoNumbers(Task):
    """A task on two numbers of n digits each, whose answer has one digit more."""

    programs = ()
    symbols: tuple[str, ...] = DIGITS

    def input_length(self, scale: int) -> int:
        return 2 * scale

    def answer_length(self, scale: int) -> int:
        return scale + 2


class Addition(_TwoNumbers):
    """Lowest digit first, end carry written. 653 + 049 = 0702: ``^ 3 5 6 + 9 4 0 = 2 0 7 0 $``."""

    name, summary = "addition", "the sum of two numbers of n digits, lowest digit first, end carry written"
    family = "position-addressed"
    marks = ("+", "=")
    coupled_from = 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return add(inputs[:, :scale], inputs[:, scale:], len(self.symbols))

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        k = np.arange(1, scale + 3)
        a, b, written = k, scale + 1 + k, 2 * scale + 2 + k
        return Circuit.of(adding(len(self.symbols)), written - 1, a, b, a - 1, b - 1, written - 1)

    def layout(self) -> Layout | None:
        sources = Line(1, -2, -1), Line(1, -1), Line(1, -2, -2), Line(1, -1, -1), Line(1)
        steps = StepRange(ADD.name, Line(0, 2, 2), Line(0, 3, 3), sources)
        return Layout(along("+", "="), Line(0, 2, 3), Line(0, 3, 5), (steps,))


class MultiplicationByDigit(_TwoNumbers):
    """Lowest digit first; the second number has one digit. 27 × 6 = 162: ``^ 7 2 * 6 = 2 6 1 $``."""

    name, summary = "multiplication-by-digit", "the product of a number of n digits and one digit, lowest digit first"
    family = "position-addressed"
    marks = ("*", "=")
    coupled_from = 1

    def input_length(self, scale: int) -> int:
        return scale + 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return carried(torch.nn.functional.pad(inputs[:, :scale] * inputs[:, scale:], (0, 1)))

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        k = np.arange(1, scale + 3)
        written = scale + 3 + k
        return Circuit.of(MULTIPLY, written - 1, k, k - 1, scale + 2, written - 1)

    def layout(self) -> Layout | None:
        sources = Line(1, -1, -2), Line(1, -1, -3), Line(0, 1, 2), Line(1)
        steps = StepRange(MULTIPLY.name, Line(0, 1, 3), Line(0, 2, 4), sources)
        return Layout(along("*", "=", gap=1), Line(0, 1, 4), Line(0, 2, 6), (steps,))


class AdditionMsb(_TwoNumbers):
    """Highest digit first, nothing written down on the way. 653 + 049 = 0702: ``^ 6 5 3 + 0 4 9 = 0 7 0 2 $``."""

    name, summary = "addition-msb", "the sum of two numbers of n digits, highest digit first"
    family = "growing"
    marks = ("+", "=")
    coupled_from = 0

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return add(inputs[:, :scale].flip(1), inputs[:, scale:].flip(1)).flip(1)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        digits = []
        for place in range(scale + 1, 0, -1):
            low = np.arange(min(place, scale))
            sources = np.concatenate([scale - low, 2 * scale + 1 - low])
            digits.append((result_digit(f"sum of {len(low)}", int.__add__, place, len(low)), sources))
        stop = result_digit("sum of 1", int.__add__, 1, 1), np.full(2, 2 * scale + 2)
        return written_at_once(2 * scale + 2, [*digits, stop])


class Multiplication(_TwoNumbers):
    """Lowest digit first, nothing written down on the way. 27 × 46 = 1242: ``^ 7 2 * 6 4 = 2 4 2 1 $``."""

    name, summary = "multiplication", "the product of two numbers of n digits, lowest digit first"
    family = "growing"
    marks = ("*", "=")

    def answer_length(self, scale: int) -> int:
        return 2 * scale + 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return carried(convolved(inputs[:, :scale], inputs[:, scale:]))

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        return product_at_once(scale, scale)
