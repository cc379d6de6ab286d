"""Languages as tasks on sets: after each symbol of a word, a model names all symbols that may come next.

An instance is a word between `^` and `$`. There is no ``=``: at every position from `^` on, the answer is the set of
the symbols that some word of the language has there after the same beginning, and of ``$`` if the word may end. A model
names a symbol by a logit above 0. The sets of a batch are its `targets`; `scale` is n, of which a word has `unit` times
as many symbols. Words of one length are drawn with equal chances.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.tasks.circuit import remembered
from lengthlens.tasks.task import END, Batch, Task


@dataclass(frozen=True)
class Language(Task):
    """A task on the sets of a language; a subclass draws its words and says their sets."""

    name: str  # type: ignore[misc]  # of the object: one class serves many languages
    summary: str  # type: ignore[misc]
    symbols: tuple[str, ...]
    unit: int = 1  # symbols of a word for each of n
    min_scale: int = 1
    programs: tuple[str, ...] | None = None  # type: ignore[misc]
    family = "content-addressed"
    marks = ()
    next_sets: ClassVar[bool] = True

    @abstractmethod
    def sets(self, inputs: Tensor, scale: int) -> Tensor:
        """Which symbols may come next, and last whether the word may end. [row, 1 + input, symbol + 1]"""

    def input_length(self, scale: int) -> int:
        return self.unit * scale

    def answer_length(self, scale: int) -> int:
        return self.unit * scale + 1

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        return []

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs

    def assemble(self, inputs: Tensor, scale: int) -> Batch:
        plain, sets = super().assemble(inputs, scale), self.sets(inputs, scale)
        targets = torch.zeros(*plain.tokens.shape, len(self.vocab), dtype=torch.bool, device=inputs.device)
        targets[:, :-1, : len(self.symbols)], targets[:, :-1, self.ids[END]] = sets[..., :-1], sets[..., -1]
        return Batch(plain.tokens, plain.answer_mask, plain.scale, targets)

    def scale_of(self, tokens: Tensor) -> Tensor:
        symbols = (tokens < len(self.symbols)).sum(1)
        if tokens.device.type != "meta" and bool((symbols % self.unit).any()):
            odd = int(symbols[symbols % self.unit > 0][0])
            raise UserError(f"a word of task '{self.name}' has {self.unit} symbols for each of n, so not {odd}")
        return symbols // self.unit

    def _input_places(self, scale: int) -> list[int]:
        return list(range(1, 1 + self.input_length(scale)))


@dataclass(frozen=True)
class Regular(Language):
    """The language of a complete deterministic finite automaton, which starts in state 0.

    >>> even = Regular("even", "an even number of ones", ("0", "1"), table=((0, 1), (1, 0)), accepting=(0,))
    >>> even.parse("^ 1 0 1 $").targets[0, :4, [0, 1, even.ids["$"]]].long().tolist()  # of 0, 1 and $
    [[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """

    table: tuple[tuple[int, ...], ...] = ()  # [state, symbol]: the next state
    accepting: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        states = range(len(self.table))
        for state, row in enumerate(self.table):
            for symbol, after in zip(self.symbols, (*row, *[None] * len(self.symbols))):
                if after not in states:
                    told = f"'{symbol}' leads from state {state} to {after}, and the states are 0 to {states[-1]}"
                    raise UserError(f"the automaton of '{self.name}' is incomplete: {told}")
        if not set(self.accepting) <= set(states) or not self._counts(len(self.table))[:, :1].any():
            raise UserError(f"the automaton of '{self.name}' accepts no word in its accepting states {self.accepting}")

    @remembered
    def _counts(self, length: int) -> NDArray[np.float64]:
        """How many words go on for k symbols from each state, each row up to a factor. [k, state]"""
        rows = [np.isin(np.arange(len(self.table)), self.accepting).astype(float)]
        for _ in range(length):
            total = rows[-1][np.array(self.table)].sum(1)
            rows.append(total / (total.max() or 1.0))
        return np.stack(rows)

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        length, table = self.input_length(scale), torch.tensor(self.table, device=device)
        if not self._counts(length)[length, 0]:
            raise UserError(f"task '{self.name}' has no size n = {scale}: no word has {length} symbols")
        ahead, state, symbols = torch.tensor(self._counts(length), device=device), table.new_zeros(batch), []
        for k, chance in enumerate(torch.rand(length, batch, 1, generator=generator, device=device)):
            upto = ahead[length - 1 - k][table[state]].cumsum(1)
            symbols.append((upto <= chance * upto[:, -1:]).sum(1))
            state = table[state, symbols[-1]]
        return torch.stack(symbols, 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & self.sets(inputs, scale)[:, -1, -1]

    def sets(self, inputs: Tensor, scale: int) -> Tensor:
        table, states = torch.tensor(self.table, device=inputs.device), [inputs.new_zeros(len(inputs))]
        for symbol in inputs.clamp(max=len(self.symbols) - 1).unbind(1):
            states.append(table[states[-1], symbol])
        alive = torch.tensor(self._counts(len(self.table)), device=inputs.device).sum(0) > 0
        ends = torch.isin(torch.arange(len(self.table)), torch.tensor(self.accepting)).to(inputs.device)
        state = torch.stack(states, 1)
        return torch.cat([alive[table[state]], ends[state][..., None]], 2)


@dataclass(frozen=True)
class Counted(Language):
    """Each symbol n times, in their order: ``^ a a b b $``. There is one word of each size n."""

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return (torch.arange(self.input_length(scale), device=device) // scale).repeat(batch, 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return (inputs == self.draw(scale, 1, None, inputs.device)).all(1)

    def sets(self, inputs: Tensor, scale: int) -> Tensor:
        read = torch.arange(1 + self.input_length(scale), device=inputs.device)
        admitted = (read // scale)[:, None] == torch.arange(1 + len(self.symbols), device=inputs.device)
        admitted[1 : scale + 1, :2] = True  # the first symbol may come again, or the second begin
        return admitted.expand(len(inputs), -1, -1)


def nested(name: str, summary: str, brackets: Sequence[str], depth: int) -> Regular:
    """Well-formed strings of pairs of brackets, such as "ab" and "cd", at most so deep. n is the number of pairs.

    >>> nested("two-deep", "brackets", ["()"], 2).table  # states: closed, one open, two open, and wrong
    ((1, 3), (2, 0), (3, 1), (3, 3))
    """
    kinds = range(len(brackets))
    stacks = [stack for k in range(depth + 1) for stack in product(kinds, repeat=k)]
    number = {stack: k for k, stack in enumerate(stacks)}

    def moves(stack: tuple[int, ...], kind: int) -> tuple[int, int]:
        """The state after an opening bracket, and after a closing one."""
        closed = number[stack[:-1]] if stack[-1:] == (kind,) else len(stacks)
        return number.get((*stack, kind), len(stacks)), closed

    rows = [tuple(state for kind in kinds for state in moves(stack, kind)) for stack in stacks]
    wrong = (len(stacks),) * (2 * len(brackets))
    return Regular(name, summary, tuple("".join(brackets)), 2, programs=(), table=(*rows, wrong), accepting=(0,))


BITS = ("0", "1")
LANGUAGES: tuple[Language, ...] = (
    Regular("tomita-1", "no 0", BITS, programs=("write '1|$'",), table=((1, 0), (1, 1)), accepting=(0,)),
    Regular(
        *("tomita-2", "10 again and again, n times", BITS, 2),
        programs=("table(x[i]) {'^' → 1|$, '1' → 0, '0' → 1|$}",),
        table=((2, 1), (0, 2), (2, 2)),
        accepting=(0,),
    ),
    Regular(
        *("tomita-3", "no odd run of ones before an odd run of zeros", BITS),
        programs=(),
        table=((0, 1), (2, 0), (3, 4), (2, 3), (4, 4)),
        accepting=(0, 1, 3),
    ),
    Regular(
        *("tomita-4", "no 000", BITS),
        programs=("if x[i-1] = '0': table(x[i]) {'0' → 1|$, '1' → 0|1|$}; write '0|1|$'",),
        table=((1, 0), (2, 0), (3, 0), (3, 3)),
        accepting=(0, 1, 2),
    ),
    Regular(
        *("tomita-5", "an even number of zeros and of ones, 2n together", BITS, 2),
        programs=(),
        table=((1, 2), (0, 3), (3, 0), (2, 1)),
        accepting=(0,),
    ),
    Regular(
        *("tomita-6", "as many zeros as ones, modulo 3", BITS, 1, 2),
        programs=(),
        table=((1, 2), (2, 0), (0, 1)),
        accepting=(0,),
    ),
    Regular(
        *("tomita-7", "zeros, ones, zeros, ones, each of them or none", BITS),
        programs=(),
        table=((0, 1), (2, 1), (2, 3), (4, 3), (4, 4)),
        accepting=(0, 1, 2, 3),
    ),
    Regular("aa", "a an even number of times, 2n", ("a",), 2, programs=(), table=((1,), (0,)), accepting=(0,)),
    Regular(
        *("any-0-2s", "anything, a 0, and then only 2", ("0", "1", "2")),
        programs=(
            "if x[i] = '^': write '0|1|2'; if x[i] = '0': write '0|1|2|$'; if x[i] = '1': write '0|1|2';"
            "table(last(all, x[j] < x[i])) {'0' → 0|1|2|$, '1' → 0|1|2, none → 0|1|2}",
        ),
        table=((1, 0, 0), (1, 0, 1)),
        accepting=(1,),
    ),
    *(nested(f"d-{depth}", f"n pairs of brackets, at most {depth} deep", ["ab"], depth) for depth in range(2, 13)),
    nested("dyck-2-4", "n pairs of two kinds of brackets, at most 4 deep", ["()", "[]"], 4),
    Counted("anbn", "a n times, then b n times", ("a", "b"), 2, programs=()),
    Counted("anbncn", "a, b and c, each n times", ("a", "b", "c"), 3, programs=()),
)
