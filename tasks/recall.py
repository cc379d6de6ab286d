"""Tasks that keep a state or look up what was stored: flip-flops, and values by their keys."""

from abc import abstractmethod
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import ClassVar

import torch
from torch import Tensor

from lengthlens.tasks.distinct import NUMBERS, all_distinct, drawn_distinct
from lengthlens.tasks.task import Task

IGNORED = 0.8  # share of the instructions after the first that are ignored; the others are written or read


@dataclass(frozen=True)
class FlipFlop(Task):
    """The bit written last. ``^ w 1 i 0 r 1 i 0 = 1 $``. n is the number of instructions: here 4.

    Each instruction has a bit: `w` writes it, `i` ignores it, and with `r` stands the bit written last. The first
    instruction writes.
    """

    name, summary = "flip-flop", "the bit that the last of n instructions to write wrote"
    programs = ("if k = 0: last(prompt, x[j-1] = 'w'); write $",)
    family = "content-addressed"
    symbols: tuple[str, ...] = ("0", "1", "w", "r", "i")

    def input_length(self, scale: int) -> int:
        return 2 * scale

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        return [inputs, "="]

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        bits = torch.randint(2, (batch, scale), generator=generator, device=device)
        chosen = torch.rand(batch, scale, generator=generator, device=device)
        instructions = torch.where(chosen < IGNORED, 4, torch.where(chosen < (1 + IGNORED) / 2, 2, 3))
        instructions[:, 0] = 2
        bits = torch.where(instructions == 3, self._written(instructions, bits), bits)
        return torch.stack([instructions, bits], 2).flatten(1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        instructions, bits = inputs[:, ::2], inputs[:, 1::2]
        read = (instructions != 3) | (bits == self._written(instructions, bits))
        return (
            super().valid(inputs, scale) & (read & (instructions > 1) & (bits < 2)).all(1) & (instructions[:, 0] == 2)
        )

    def answer_length(self, scale: int) -> int:
        return 2

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return self._written(inputs[:, ::2], inputs[:, 1::2])[:, -1:]

    def _written(self, instructions: Tensor, bits: Tensor) -> Tensor:
        """The bit written last, at each instruction. [row, instruction]"""
        places = torch.arange(instructions.shape[1], device=instructions.device)
        return bits.gather(1, torch.where(instructions == 2, places, 0).cummax(1).values)


@dataclass(frozen=True)
class _Pairs(Task):
    """Keys, numbers that differ, with values, letters; then queries, which are some of the keys."""

    family = "content-addressed"
    marks = ("?", "=")
    symbols: tuple[str, ...] = (*NUMBERS, *ascii_lowercase)
    keys: ClassVar[int] = len(NUMBERS)  # of the symbols, the first ones
    max_scale = keys

    @abstractmethod
    def queries(self, scale: int) -> int:
        """The number of queries."""

    def input_length(self, scale: int) -> int:
        return 2 * scale + self.queries(scale)

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        return [inputs[:, : 2 * scale], "?", inputs[:, 2 * scale :], "="]

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        keys = drawn_distinct(self.keys, scale, batch, generator, device)
        values = torch.randint(self.keys, len(self.symbols), (batch, scale), generator=generator, device=device)
        asked = drawn_distinct(scale, self.queries(scale), batch, generator, device)
        return torch.cat([torch.stack([keys, values], 2).flatten(1), keys.gather(1, asked)], 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        keys, values, queries = self._parts(inputs, scale)
        known = (queries[:, :, None] == keys[:, None]).any(2).all(1) & all_distinct(queries)
        paired = (keys < self.keys).all(1) & (values >= self.keys).all(1) & all_distinct(keys)
        return super().valid(inputs, scale) & known & paired

    def answer_length(self, scale: int) -> int:
        return self.queries(scale) + 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        keys, values, queries = self._parts(inputs, scale)
        return values.gather(1, (queries[:, :, None] == keys[:, None]).to(torch.uint8).argmax(2))

    def _parts(self, inputs: Tensor, scale: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys [row, n], values [row, n] and queries [row, query]."""
        return inputs[:, : 2 * scale : 2], inputs[:, 1 : 2 * scale : 2], inputs[:, 2 * scale :]


class AssociativeRecall(_Pairs):
    """The value of the queried key. ``^ 5 a 9 c ? 5 = a $``. n is the number of pairs, at most that of the keys."""

    name, summary = "associative-recall", "the value of one key, among n pairs of a key and a value"
    programs = ("first(prompt, x[j-1] = x[i-1]) or $",)

    def queries(self, scale: int) -> int:
        return 1


class MultiQueryRecall(_Pairs):
    """The values of all keys, in the order of the queries. ``^ 5 a 9 c ? 9 5 = c a $``. n is the number of pairs."""

    name, summary = "mqar", "the values of all keys in the order of the queries, for n pairs of a key and a value"
    programs = ("first(prompt, x[j-1] = x[?+k+1]) or $",)

    def queries(self, scale: int) -> int:
        return scale


@dataclass(frozen=True)
class KeyValueRetrieval(Task):
    """The value after the queried key, with distractors between the pairs. ``^ X 5 a D D 9 c B ? 5 = a $``.

    n is the number of tokens before ``?``: here 8. Of these n // 4, and at least one, are keys, numbers that differ.
    A letter follows each. All others are capital letters.
    """

    name, summary = "key-value-retrieval", "the value of one key, among n tokens of pairs and distractors"
    programs = ("first(prompt, x[j-1] = x[i-1]) or $",)
    family = "content-addressed"
    marks = ("?", "=")
    symbols: tuple[str, ...] = (*NUMBERS, *ascii_lowercase, *ascii_uppercase)
    min_scale: int = 2
    keys: ClassVar[int] = len(NUMBERS)  # of the symbols, the first ones
    max_scale = 4 * keys + 3
    stored: ClassVar[int] = len(NUMBERS) + len(ascii_lowercase)  # keys and values

    def input_length(self, scale: int) -> int:
        return scale + 1

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        pairs = max(1, scale // 4)
        others = torch.randint(self.stored, len(self.symbols), (batch, scale), generator=generator, device=device)
        # The pairs, numbered first, and the distractors that remain change places as blocks.
        order = torch.rand(batch, scale - pairs, generator=generator, device=device).argsort(1)
        lengths = 1 + (order < pairs).long()
        starts = (lengths.cumsum(1) - lengths).gather(1, order.argsort(1)[:, :pairs])
        keys = drawn_distinct(self.keys, pairs, batch, generator, device)
        values = torch.randint(self.keys, self.stored, (batch, pairs), generator=generator, device=device)
        asked = torch.randint(pairs, (batch, 1), generator=generator, device=device)
        string = others.scatter(1, starts, keys).scatter(1, starts + 1, values)
        return torch.cat([string, keys.gather(1, asked)], 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        string, query = inputs[:, :scale], inputs[:, scale:]
        key, value = string < self.keys, (string >= self.keys) & (string < self.stored)
        paired = (key[:, :-1] == value[:, 1:]).all(1) & ~key[:, -1] & ~value[:, 0]
        places = torch.arange(scale, device=inputs.device)
        distinct = all_distinct(torch.where(key, string, -1 - places))
        as_many = key.sum(1) == max(1, scale // 4)
        asked = (key & (string == query)).any(1)
        return super().valid(inputs, scale) & paired & distinct & as_many & asked

    def answer_length(self, scale: int) -> int:
        return 2

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        place = (inputs[:, :scale] == inputs[:, scale:]).to(torch.uint8).argmax(1, keepdim=True)
        return inputs.gather(1, place + 1)
