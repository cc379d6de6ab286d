"""Tasks that sum symbols modulo a number: one step at a time as a chain of thought, or all at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lengthlens.tasks.circuit import Circuit, Layout, Line, Operator, StepRange, along
from lengthlens.tasks.task import END, Task


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
