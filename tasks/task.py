"""The contract of a task: instances of any size n, drawn in bulk, and the circuit that computes their answers."""

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.tasks.circuit import Circuit as Circuit
from lengthlens.tasks.circuit import Layout, Memo, remembered
from lengthlens.tasks.circuit import Operator as Operator  # known from here, too, as is Step
from lengthlens.tasks.circuit import Step as Step
from lengthlens.tasks.scale import SHAPES, Ints, Lengths

Family = Literal["position-addressed", "growing", "content-addressed"]
BEGIN, END, PAD = "^", "$", "_"
PAIR_TRIES = 8  # draws of instances among which a minimal pair is sought


@dataclass(frozen=True)
class Batch:
    """Instances as token ids.

    `tokens` [row, pos], `answer_mask` [row, pos] true at the answer's tokens (end token included, padding never),
    `scale` [row], the size n of each. Of a task on sets (`Task.next_sets`), `targets` [row, pos, token]: the set of
    tokens that may come next; None for all others.
    """

    tokens: Int[Tensor, "row pos"]
    answer_mask: Bool[Tensor, "row pos"]
    scale: Int[Tensor, "row"]
    targets: Bool[Tensor, "row pos token"] | None = None

    @property
    def query_mask(self) -> Bool[Tensor, "row query"]:
        """True at position i when token i+1 belongs to the answer: where a model must predict. [row, pos-1]"""
        return self.answer_mask[:, 1:]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __getitem__(self, rows: slice) -> "Batch":
        targets = None if self.targets is None else self.targets[rows]
        return Batch(self.tokens[rows], self.answer_mask[rows], self.scale[rows], targets)


class Task(ABC):
    """A function from strings to strings, at every size n, which is the argument `scale` of its methods.

    An instance is ``^ prompt … = answer … $``. Token ids: the symbols first (so the digit d has id d), then the task's
    marks, then ``^ $ _`` for begin, end and padding. The size is read off the tokens by where the marks of the prompt
    stand, whatever the prompt is (`scale_of`).

    A subclass sets `name`, `family`, `summary` and `symbols`, and writes `answer`, and `circuit` if positions say what
    a step reads; the rest has defaults that fit a task on one string of n symbols. `lengthlens.tasks.copying.Copy` is
    the smallest example.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    summary: ClassVar[str]
    symbols: tuple[str, ...]
    marks: ClassVar[tuple[str, ...]] = ("=",)
    one_number: ClassVar[bool] = True  # whether its sizes are numbers, and not tuples of lengths (`FieldsTask`)
    min_scale: int = 1
    max_scale: int | None = None
    coupled_from: ClassVar[int | None] = None  # of the first answer token in `coupled_answer`, if they count up
    # Programs that compute the answer, as text, the best one first; none beside the circuit if empty; sought if None.
    programs: ClassVar[tuple[str, ...] | None] = None
    answers_differ: ClassVar[bool] = False  # whether answers of one size have different lengths
    next_sets: ClassVar[bool] = False  # whether a set of tokens is right at each position, and not one token

    @abstractmethod
    def answer(self, inputs: Int[Tensor, "row input"], scale: int) -> Int[Tensor, "row answer"]:
        """The answer without the end token, [row, answer]. A shorter one has ``$`` after it, and then padding."""

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        """The steps that write the answer. A content-addressed task needs the `tokens` of the instance."""
        raise UserError(f"task '{self.name}' declares no circuit")

    @property
    def declares_circuit(self) -> bool:
        return type(self).circuit is not Task.circuit

    def refuse_sets(self, what: str) -> None:
        """An error if this is a task on sets, for something that needs one right token at each place."""
        if self.next_sets:
            raise UserError(f"{what} needs one right token at each place, and task '{self.name}' asks for sets of them")

    # -- what a subclass may override -----------------------------------------------------------------------------

    def input_length(self, scale: int) -> int:
        """The number of free symbols of an instance."""
        return scale

    def answer_length(self, scale: int) -> int:
        """The number of tokens of the answer, ``$`` included; of the longest, where they differ."""
        return scale + 1

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        """The prompt after ``^``, in pieces: columns of ids [row, *], or the text of a mark.

        n symbols, the first mark, then the rest, and ``=`` if that is not the first: ``3 =``, ``3 + 4 =``, ``c a = a``.
        """
        pieces: list[Tensor | str] = [inputs[:, :scale], self.marks[0]]
        if inputs.shape[1] > scale:
            pieces.append(inputs[:, scale:])
        return pieces if self.marks[0] == "=" else [*pieces, "="]

    def draw(
        self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device
    ) -> Int[Tensor, "row input"]:
        """The free symbols of random instances, from which the rest follows. [row, input]"""
        shape = (batch, self.input_length(scale))
        return torch.randint(len(self.symbols), shape, generator=generator, device=device)

    def redrawn(self, draw: Callable[[int], Tensor], scale: int, batch: int) -> Int[Tensor, "row input"]:
        """What `draw` gives for so many rows; rows that make no instance are drawn again."""
        inputs = draw(batch)
        while inputs.device.type != "meta" and bool((wrong := ~self.valid(inputs, scale)).any()):
            inputs[wrong] = draw(int(wrong.sum()))
        return inputs

    def valid(self, inputs: Int[Tensor, "row input"], scale: int) -> Bool[Tensor, "row"]:
        """Which rows of free symbols [row, input] make an instance, [row]."""
        return (inputs < len(self.symbols)).all(1)

    def layout(self) -> Layout | None:
        """What `prompt`, `answer_length` and `circuit` give, at all sizes at once; None if no lines say it."""
        return None

    def coupled_answer(self, scale: int) -> Ints:
        """For each answer token the index, in its run of the prompt, of the symbol it belongs with. [answer]"""
        if self.coupled_from is not None:
            return self.coupled_from + np.arange(self.answer_length(scale))
        raise UserError(f"task '{self.name}' couples no positions: its answer tokens belong with no one symbol each")

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        """Every token as text; its place is its id."""
        return (*self.symbols, *self.marks, BEGIN, END, PAD)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: k for k, token in enumerate(self.vocab)}

    @cached_property
    def memo(self) -> Memo:
        """Results of `remembered` functions."""
        return Memo()

    @property
    def pad_id(self) -> int:
        return self.ids[PAD]

    # -- instances -----------------------------------------------------------------------------------------------

    def length(self, scale: int) -> int:
        """The number of tokens of an instance, begin and end included."""
        return self.prompt_length(scale) + self.answer_length(scale)

    def prompt_length(self, scale: int) -> int:
        """The number of tokens before the answer, ``^`` included."""
        return self._prompt_of(torch.empty(0, self.input_length(scale), dtype=torch.long), scale).shape[1]

    def prompt_form(self, scale: int) -> Int[Tensor, "pos"]:
        """The prompt without its free symbols: the ids of its marks, and −1−k where free symbol k stands. [pos]"""
        return self._prompt_of(-1 - torch.arange(self.input_length(scale))[None], scale)[0]

    def _prompt_of(self, inputs: Tensor, scale: int) -> Tensor:
        """The prompt as ids, ``^`` included. [row, prompt]"""
        pieces, shape = [BEGIN, *self.prompt(inputs, scale)], (len(inputs), 1)
        return torch.cat([inputs.new_full(shape, self.ids[p]) if isinstance(p, str) else p for p in pieces], 1)

    def sample(
        self,
        scale: int | Lengths | Sequence[int | Lengths] | Tensor,
        batch: int | None = None,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
    ) -> Batch:
        """Random instances: of one size, or, if `scale` lists one per row, of mixed sizes, padded at the end.

        Where sizes are tuples (`one_number` is false), a tuple is one size.

        >>> from lengthlens.tasks import TASKS
        >>> batch = TASKS["copy"].sample([1, 3], generator=torch.Generator().manual_seed(0))
        >>> batch.tokens.shape, batch.scale.tolist(), batch.answer_mask.sum(1).tolist()
        (torch.Size([2, 9]), [1, 3], [2, 4])
        """
        device = torch.device(device)
        if isinstance(scale, tuple) and not self.one_number:
            scale = self.number_of(scale)
        if isinstance(scale, int):
            if batch is None or batch < 1:
                raise UserError(f"the batch size must be at least 1, not {batch}")
            return self.assemble(self.draw(self.checked_scale(scale), batch, generator, device), scale)
        listed = scale.tolist() if isinstance(scale, Tensor) else [self.number_of(each) for each in scale]
        if not listed or (batch is not None and batch != len(listed)):
            raise UserError(f"{len(listed)} sizes n were given for a batch of {batch}: one for each row is needed")
        scales = torch.tensor(listed, device=device)
        shape = (len(listed), max(self.length(self.checked_scale(each)) for each in set(listed)))
        tokens = torch.full(shape, self.pad_id, device=device)
        answer_mask = torch.zeros(shape, dtype=torch.bool, device=device)
        targets = torch.zeros(*shape, len(self.vocab), dtype=torch.bool, device=device) if self.next_sets else None
        for each in sorted(set(listed), key=self.parts):  # one draw for each; rows keep their places
            rows = (scales == each).nonzero().squeeze(1)
            part = self.sample(each, len(rows), generator, device)
            tokens[rows, : part.tokens.shape[1]] = part.tokens
            answer_mask[rows, : part.tokens.shape[1]] = part.answer_mask
            if targets is not None and part.targets is not None:
                targets[rows, : part.tokens.shape[1]] = part.targets
        return Batch(tokens, answer_mask, scales, targets)

    def assemble(self, inputs: Int[Tensor, "row input"], scale: int) -> Batch:
        """The instances that follow from their free symbols."""
        prompt = self._prompt_of(inputs, scale)
        (rows, start), device = prompt.shape, inputs.device
        tokens = torch.empty(rows, start + self.answer_length(scale), dtype=torch.long, device=device)
        answer = self.answer(inputs, scale)
        ended = (answer == self.ids[END]).any(1)  # before the last place
        tokens[:, :start], tokens[:, start:-1] = prompt, answer
        tokens[:, -1] = torch.where(ended, self.pad_id, self.ids[END])
        answer_mask = torch.arange(tokens.shape[1], device=device).ge(start) & (tokens != self.pad_id)
        return Batch(tokens, answer_mask, torch.full((rows,), scale, device=device))

    def parts(self, scale: int) -> Lengths:
        """The lengths of the tuple that a number stands for; of a plain size, n alone."""
        return (scale,)

    def number_of(self, scale: int | Lengths) -> int:
        """A size as a number. A tuple, of a task that has them, gets one that stands for it."""
        if not isinstance(scale, int):
            raise UserError(f"the sizes of task '{self.name}' are single numbers, not tuples such as {scale}")
        return scale

    def scale_in_words(self, scale: int) -> str:
        """A size as it is printed: n, or a tuple of lengths."""
        return str(scale if scale < SHAPES else self.parts(scale))

    def longest(self, size: int) -> int:
        """The number of tokens of the longest instance of a size n."""
        return self.length(size)

    def drawn_scale(self, size: int, generator: torch.Generator | None) -> int:
        """n itself; of a task with tuples, the number of a random tuple whose largest length is n."""
        return size

    def scales_up_to(self, size: int, tuples: int, generator: torch.Generator | None) -> Iterator[int]:
        """All sizes up to n; of a task with tuples, so many random tuples for each n."""
        for n in self._scales(size + 1 - self.min_scale):
            yield from [n] if self.one_number else (self.drawn_scale(n, generator) for _ in range(tuples))

    def checked_scale(self, scale: int) -> int:
        """The size itself, if the task has instances of it."""
        if scale < self.min_scale:
            raise UserError(f"task '{self.name}' has no size n = {scale}: the smallest is {self.min_scale}")
        if self.max_scale is not None and scale > self.max_scale:
            raise UserError(f"task '{self.name}' has no size n = {scale}: the largest is {self.max_scale}")
        return scale

    def scale_of(self, tokens: Int[Tensor, "row pos"]) -> Int[Tensor, "row"]:
        """The size of each row of ids [row, pos], read off where the marks of its prompt stand. [row]

        If the first position of some mark grows with n, that position decides; else the whole form of the prompt.
        """
        mark = self._telling_mark
        if mark is None:
            return torch.tensor([self._scale_by_form(row) for row in tokens.cpu()], device=tokens.device)
        marked = tokens == self.ids[mark]
        place = marked.to(torch.uint8).argmax(1)
        if tokens.device.type == "meta":
            return place
        if not bool(marked.any(1).all()):
            raise UserError(f"no '{mark}' in the tokens, so task '{self.name}' cannot tell their size n")
        places, of_row = torch.unique(place, return_inverse=True)
        return torch.tensor([self._scale_at(p) for p in places.tolist()], device=tokens.device)[of_row]

    def _scales(self, most: int) -> range:
        """The smallest sizes, at most so many."""
        end = self.min_scale + most
        return range(self.min_scale, end if self.max_scale is None else min(end, self.max_scale + 1))

    @cached_property
    def _telling_mark(self) -> str | None:
        """A mark whose first position in the prompt grows with n, if there is one."""
        for mark in self.marks:
            places = [self._first_place(mark, n) for n in self._scales(6)]
            if places[0] >= 0 and all(one < other for one, other in itertools.pairwise(places)):
                return mark
        return None

    def _first_place(self, mark: str, scale: int) -> int:
        """Where a mark first stands in the prompt; −1 if nowhere."""
        marked = self.prompt_form(scale) == self.ids[mark]
        return int(marked.to(torch.uint8).argmax()) if bool(marked.any()) else -1

    @remembered
    def _scale_at(self, place: int) -> int:
        """The size at which the telling mark first stands at a position."""
        mark, scales = str(self._telling_mark), self._scales(place + 1)
        at = bisect.bisect_left(scales, place, key=lambda n: self._first_place(mark, n))
        if at == len(scales) or self._first_place(mark, scales[at]) != place:
            raise UserError(f"no instance of task '{self.name}' has its first '{mark}' at position {place}")
        return scales[at]

    def _scale_by_form(self, row: Tensor) -> int:
        """The one size whose prompt a row of ids begins with."""
        matching = []
        for n in self._scales(len(row)):
            form = self.prompt_form(n)
            if len(form) <= len(row):
                head, free = row[: len(form)], form < 0
                if bool(torch.where(free, head < len(self.symbols), head == form).all()):
                    matching.append(n)
        if len(matching) != 1:
            fits = f"prompts of n = {matching[0]} and {matching[1]}" if matching else "no prompt of any size"
            raise UserError(f"'{self.render(row)}' fits {fits} of task '{self.name}': it must override scale_of")
        return matching[0]

    def run_index(self, tokens: Int[Tensor, "row pos"]) -> Int[Tensor, "row pos"]:
        """The place of each symbol in its run of symbols, counted from 1; 0 for every other token. [row, pos]

        These are the position ids of scheme ``abacus``.

        >>> from lengthlens.tasks import TASKS
        >>> TASKS["addition"].run_index(TASKS["addition"].parse("^ 3 5 6 + 9 4 0 =").tokens).tolist()
        [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0]]
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        symbol = tokens < len(self.symbols)
        last_other = torch.where(symbol, -1, places).cummax(1).values
        return torch.where(symbol, places - last_other, 0)

    def coupling(self, scale: int) -> Int[Tensor, "pos"]:
        """Position ids that positions with the same part in the task share: those of scheme ``coupled``. [pos]

        In the prompt, the place in the run of symbols; in the answer, the place of the symbol it belongs with.
        """
        answer = torch.from_numpy(self.coupled_answer(self.checked_scale(scale)))
        prompt = self._prompt_of(torch.zeros(1, self.input_length(scale), dtype=torch.long), scale)
        return torch.cat([self.run_index(prompt)[0], answer])

    def words(self, tokens: Tensor) -> list[str]:
        """One row of ids as texts, padding left out."""
        return [self.vocab[k] for k in tokens.tolist() if k != self.pad_id]

    def render(self, tokens: Tensor) -> str:
        """One row of ids as a line: ``^ 7 3 = 7 3 $``."""
        return " ".join(self.words(tokens))

    def parse(self, text: str) -> Batch:
        """The instance that a line spells, as a batch of one row; a prompt alone is completed with its answer.

        >>> from lengthlens.tasks import TASKS
        >>> TASKS["parity-cot"].render(TASKS["parity-cot"].parse("^ 1 0 1 =").tokens[0])
        '^ 1 0 1 = 1 1 0 $'
        """
        words = text.split()
        for word in words:
            if word not in self.vocab[:-1]:  # padding is last
                allowed = " ".join(self.vocab[:-1])
                raise UserError(f"'{word}' is not a token of task '{self.name}', whose tokens are: {allowed}")
        if words[:1] != [BEGIN]:
            raise UserError(f"an instance of task '{self.name}' begins with '{BEGIN}', not {text!r}")
        mark, tokens = self._telling_mark, torch.tensor([[self.ids[word] for word in words]])
        if mark is not None and mark not in words:
            raise UserError(f"an instance of task '{self.name}' has a '{mark}', and {text!r} has none")
        scale = self.checked_scale(int(self.scale_of(tokens)))
        start, full = self.prompt_length(scale), None
        if len(words) >= start:
            inputs = tokens[:, self._input_places(scale)]
            if not bool(self.valid(inputs, scale).all()):
                raise UserError(f"'{' '.join(words)}' is not an instance of task '{self.name}': {self.summary}")
            full = self.assemble(inputs, scale)
        length = self.length(scale) if full is None else len(self.words(full.tokens[0]))
        if full is None or len(words) not in (start, length):
            raise UserError(
                f"an instance of task '{self.name}' with n = {scale} has {length} tokens "
                f"({start} without its answer), not {len(words)}"
            )
        for place, (right, word) in enumerate(zip(self.words(full.tokens[0]), words)):
            if right != word:
                raise UserError(f"'{' '.join(words)}': token {place} should be '{right}', not '{word}'")
        return full

    def _input_places(self, scale: int) -> list[int]:
        """Where each free symbol stands, the first time if it stands there twice. [input]"""
        form = self.prompt_form(scale).tolist()
        try:
            return [form.index(-1 - k) for k in range(self.input_length(scale))]
        except ValueError:
            why = "does not show every free symbol as it is"
            raise UserError(f"the prompt of task '{self.name}' {why}: it must override parse") from None

    def minimal_pair(
        self, scale: int, step: int, slot: str | None = None, rows: int = 1, generator: torch.Generator | None = None
    ) -> tuple[Batch, Batch]:
        """Pairs of instances that are as alike as can be and differ in the answer token number `step`.

        They differ in one free symbol, or in two that change places, and in what follows from it. With a `slot`, by its
        name, the token read in that slot differs; those in the other slots, and at the query, are the same.

        >>> from lengthlens.tasks import TASKS
        >>> clean, other = TASKS["parity-cot"].minimal_pair(3, 1, "symbol", generator=torch.Generator().manual_seed(0))
        >>> TASKS["parity-cot"].render(clean.tokens[0]), TASKS["parity-cot"].render(other.tokens[0])
        ('^ 0 1 1 = 0 1 0 $', '^ 0 0 1 = 0 0 1 $')
        """
        if not 0 <= step < self.answer_length(self.checked_scale(scale)):
            last = self.answer_length(scale) - 1
            raise UserError(f"task '{self.name}' has no step {step} at n = {scale}: the steps are 0 to {last}")
        generator = generator or torch.Generator().manual_seed(0)
        answer, pairs = self.prompt_length(scale) + step, list[tuple[Tensor, Tensor]]()
        for _ in range(PAIR_TRIES):
            inputs = self.draw(scale, rows, generator, torch.device("cpu"))
            more = torch.randint(1, max(2, len(self.symbols)), inputs.shape, generator=generator)
            partner = torch.randint(inputs.shape[1], inputs.shape, generator=generator)
            one, near = self.assemble(inputs, scale).tokens, partial(self._neighbours, inputs, more, partner, scale)
            differs, unlike = list[Tensor](), list[Tensor]()  # [row] each, by candidate
            for candidate in range(2 * inputs.shape[1]):
                other = near(candidate)
                differs.append(other[:, answer] != one[:, answer])
                unlike.append((other != one).sum(1))
            fits = torch.stack(differs, 1)
            chosen = fits.nonzero()[torch.randperm(int(fits.sum()), generator=generator)]
            order = torch.stack(unlike, 1)[chosen[:, 0], chosen[:, 1]].argsort(stable=True)
            for row, candidate in chosen[order].tolist():  # the most alike first
                if len(pairs) == rows:
                    break
                pair = one[row], near(candidate)[row]
                if slot is None or self._differ_in(slot, scale, step, *pair):
                    pairs.append(pair)
        if not pairs:
            where = "" if slot is None else f" in slot '{slot}'"
            raise UserError(f"no two instances of '{self.name}' at n = {scale} differ in step {step}{where} alone")
        clean, corrupted = (torch.stack(part) for part in zip(*pairs))
        mask = torch.arange(clean.shape[1]).ge(self.prompt_length(scale)).expand(len(clean), -1)
        return tuple(Batch(part, mask, torch.full((len(part),), scale)) for part in (clean, corrupted))  # type: ignore[return-value]

    def _neighbours(self, inputs: Tensor, more: Tensor, partner: Tensor, scale: int, candidate: int) -> Tensor:
        """Instances with one symbol replaced or, from the second half of the candidates on, exchanged with its partner.

        Rows that would be no instances stay as they are. Tokens [row, pos].
        """
        number = inputs.shape[1]
        place, near = [candidate % number], inputs.clone()
        if candidate < number:
            near[:, place] = (inputs[:, place] + more[:, place]) % len(self.symbols)
        else:
            near[:, place] = inputs.gather(1, partner[:, place])
            near.scatter_(1, partner[:, place], inputs[:, place])
        near = torch.where(self.valid(near, scale)[:, None], near, inputs)
        return self.assemble(near, scale).tokens

    def _differ_in(self, slot: str, scale: int, step: int, one: Tensor, other: Tensor) -> bool:
        """Whether what a step reads differs in one slot alone, and the token at its query only if the slot reads it."""
        steps = [list(self.circuit(scale, self.words(tokens)))[step] for tokens in (one, other)]
        names = self.circuit(scale, self.words(one)).functions[steps[0].operator].slots
        if slot not in names:
            raise UserError(f"step {step} of task '{self.name}' has no slot '{slot}': the slots are {', '.join(names)}")
        if steps[0].operator != steps[1].operator or len(steps[0].sources) != len(steps[1].sources):
            return False
        differs = [int(one[a]) != int(other[b]) for a, b in zip(steps[0].sources, steps[1].sources)]
        at_query = any(differs[k] for k, source in enumerate(steps[0].sources) if source == steps[0].query)
        same_query = at_query or int(one[steps[0].query]) == int(other[steps[1].query])
        return same_query and {names[k] for k, unlike in enumerate(differs) if unlike} == {slot}

    def every_instance(self, scale: int, at_most: int) -> Batch | None:
        """All instances of a size, or None if there are more than `at_most` strings of free symbols."""
        base, digits = len(self.symbols), self.input_length(self.checked_scale(scale))
        if base**digits > at_most:
            return None
        rows = np.arange(base**digits)
        inputs = torch.from_numpy(rows[:, None] // base ** np.arange(digits)[::-1] % base)
        return self.assemble(inputs[self.valid(inputs, scale)], scale)


def sets_of(values: Tensor) -> Tensor:
    """Of a value for each token, those of the symbols and, last, of ``$``: what a set is about. [*, token]

    >>> sets_of(torch.arange(5)).tolist()  # two symbols, and ^ $ _
    [0, 1, 3]
    """
    return torch.cat([values[..., :-3], values[..., -2:-1]], -1)


@remembered
def circuit_of(task: Task, scale: int) -> Circuit:
    """The circuit at a size, of a task whose sources follow from positions."""
    return task.circuit(task.checked_scale(scale))


@remembered
def example_of(task: Task, scale: int) -> Int[Tensor, "pos"]:
    """The tokens of an instance: which of them are symbols follows from the size, so any shows it. [pos]"""
    with torch.device("cpu"):
        return task.sample(scale, 1, torch.Generator("cpu").manual_seed(0), "cpu").tokens[0]


def step_rows(task: Task, text: str) -> list[dict[str, Any]]:
    """One row for each answer token of the instance that `text` spells: what writes it, from which positions.

    >>> from lengthlens.tasks import TASKS
    >>> step_rows(TASKS["parity-cot"], "^ 1 1 =")[1]
    {'query': 4, 'writes': '0', 'operator': 'add mod 2', 'slots': 'symbol, so far', 'reads': '1 1', 'sources': '2 4'}
    """
    batch = task.parse(text)
    words = task.words(batch.tokens[0])
    circuit = task.circuit(int(batch.scale), words)
    return [
        {
            "query": step.query,
            "writes": words[step.query + 1],
            "operator": step.operator,
            "slots": ", ".join(circuit.functions[step.operator].slots).replace("_", " "),
            "reads": " ".join(words[s] for s in step.sources),
            "sources": " ".join(map(str, step.sources)),
        }
        for step in circuit
    ]
