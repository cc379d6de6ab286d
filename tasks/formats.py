"""The same task in another format, so that what a format does can be told from what the task needs.

A format is an option after the task's name: ``addition/reversed``, ``parity/cot``, ``copy/hints``. Several may follow.

- `cot`: the answers to all beginnings of the prompt, as a chain of thought; of a tie, what `answer` says.
- `padded`: zeros before a short answer, where answers of one size n have different lengths.
- `reversed`: the answer backwards.
- `hints`: before each symbol of prompt and answer an index hint, the same for symbols that belong together
  (`Task.coupled_answer`). The first hint is drawn anew for each instance, so that training sees all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.plugins.registry import Extensible, Origin
from lengthlens.tasks.task import END, PAD, Task

FORMATS = ("cot", "padded", "reversed", "hints")  # in the order in which they are applied
HINTS = tuple(f"#{k}" for k in range(200))
KEPT = ("symbols", "marks", "min_scale", "max_scale", "one_number", "parts", "number_of", "drawn_scale")


class Formatted(Task):
    """A task in other formats.

    >>> from lengthlens.tasks import TASKS
    >>> both = Formatted(TASKS["copy"], ["reversed", "hints"])
    >>> both.name, both.render(both.parse("^ #5 7 #6 3 =").tokens[0])
    ('copy/reversed/hints', '^ #5 7 #6 3 = #6 3 #5 7 $')
    """

    family = "content-addressed"

    def __init__(self, task: Task, formats: Sequence[str]) -> None:
        for each in formats:
            if each not in FORMATS:
                raise unknown("format", each, FORMATS)
        if list(formats) != [each for each in FORMATS if each in formats]:
            raise UserError(
                f"formats are written once each, in the order {', '.join(FORMATS)}, not {', '.join(formats)}"
            )
        task.refuse_sets("a format")
        for each in (*KEPT, *(["most_fields"] if not task.one_number else [])):
            setattr(self, each, getattr(task, each))  # numbers, and methods of the task about its sizes
        self.task, self.formats = task, formats
        self.hints = HINTS if "hints" in self.formats else ()
        self.symbols = (*task.symbols, *self.hints)
        about = {"name": "/".join([task.name, *self.formats]), "summary": f"{task.summary}: {', '.join(self.formats)}"}
        vars(self).update(about)
        if "cot" in formats and any((task.input_length(n), task.answer_length(n)) != (n, 2) for n in (5, 6)):
            raise UserError(f"task '{task.name}' has no format 'cot': it gives not one token for a string of n symbols")
        if "padded" in self.formats and not task.answers_differ:
            raise UserError(f"task '{task.name}' has no format 'padded': its answers of one size n have one length")

    # -- sizes -------------------------------------------------------------------------------------------------------

    def checked_scale(self, scale: int) -> int:
        if self.hints and self._number_of_hints(self.task.checked_scale(scale)) > len(self.hints):
            size = self.scale_in_words(scale)
            raise UserError(f"task '{self.name}' has no size n = {size}: there are only {len(self.hints)} hints")
        return self.task.checked_scale(scale)

    def longest(self, size: int) -> int:
        kind: Any = type(self.task)
        longest: int = kind.longest(self, size)
        return longest

    def scale_of(self, tokens: Tensor) -> Tensor:
        number, added = len(self.task.symbols), len(self.hints)
        hint = (tokens >= number) & (tokens < number + added)
        plain = torch.where(hint, self.task.pad_id, torch.where(tokens < number, tokens, tokens - added))
        return self.task.scale_of(plain.gather(1, hint.long().sort(dim=1, stable=True).indices))

    def _indices(self, scale: int) -> tuple[list[int], list[int]]:
        """The index of each symbol in its run of the prompt, and of each token of the answer."""
        number = self._unhinted_length(scale)
        prompt = self.task.prompt(torch.empty(0, self.task.input_length(scale), dtype=torch.long), scale)
        runs = [k for piece in prompt if isinstance(piece, Tensor) for k in range(piece.shape[1])]
        try:
            coupled = [int(k) - 1 for k in self.task.coupled_answer(scale)[:number]]
        except UserError:
            coupled = list(range(number))
        if len(coupled) < number or "cot" in self.formats:
            coupled = list(range(number))
        return runs, coupled[::-1] if "reversed" in self.formats else coupled

    def _number_of_hints(self, scale: int) -> int:
        return 1 + max(index for indices in self._indices(scale) for index in indices)

    # -- instances ---------------------------------------------------------------------------------------------------

    def _unhinted_length(self, scale: int) -> int:
        """The number of tokens of the answer, without ``$`` and hints."""
        return scale - self.min_scale + 1 if "cot" in self.formats else self.task.answer_length(scale) - 1

    def input_length(self, scale: int) -> int:
        return self.task.input_length(scale) + bool(self.hints)

    def answer_length(self, scale: int) -> int:
        return self._unhinted_length(scale) * (1 + bool(self.hints)) + 1

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        inputs = self.task.draw(scale, batch, generator, device)
        if not self.hints:
            return inputs
        room = len(self.hints) - self._number_of_hints(scale) + 1
        first = torch.randint(room, (batch, 1), generator=generator, device=device)
        return torch.cat([len(self.task.symbols) + first, inputs], 1)  # the first hint, and what the task draws

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        if not self.hints:
            return self.task.valid(inputs, scale)
        first = inputs[:, 0] - len(self.task.symbols)
        room = (first >= 0) & (first <= len(self.hints) - self._number_of_hints(scale))
        return room & self.task.valid(inputs[:, 1:], scale)

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        if not self.hints:
            return self.task.prompt(inputs, scale)
        pieces = self.task.prompt(inputs[:, 1:], scale)
        return [
            piece if isinstance(piece, str) else self._hinted(piece, list(range(piece.shape[1])), inputs[:, :1])
            for piece in pieces
        ]

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        free = inputs[:, 1:] if self.hints else inputs
        if "cot" in self.formats:
            ends = range(self.min_scale, scale + 1)
            answer = torch.cat([self.task.answer(free[:, :k], k) for k in ends], 1)
        else:
            answer = self.task.answer(free, scale)
        answer = torch.where(answer < len(self.task.symbols), answer, answer + len(self.hints))
        places = torch.arange(answer.shape[1], device=answer.device)
        length = self._written(answer).sum(1, keepdim=True)
        if "padded" in self.formats:
            missing = answer.shape[1] - length
            answer = torch.where(places < missing, 0, answer.gather(1, (places - missing).clamp(min=0)))
            length = length + missing
        if "reversed" in self.formats:
            answer = answer.gather(1, torch.where(places < length, length - 1 - places, places))
        return self._hinted(answer, self._indices(scale)[1], inputs[:, :1]) if self.hints else answer

    def _written(self, answer: Tensor) -> Tensor:
        """Which tokens are before the end of a short answer."""
        return (answer != self.ids[END]) & (answer != self.ids[PAD])

    def _hinted(self, tokens: Tensor, indices: list[int], first: Tensor) -> Tensor:
        """Each token with its hint before it; the end of a short answer has none. [row, token] to [row, 2 · token]"""
        index = torch.tensor(indices, dtype=torch.long, device=tokens.device).expand_as(tokens)
        # In a form of the prompt, free symbols are below 0: there, other hints than the first count as marks.
        hints = torch.where((first >= 0) | (index == 0), first + index, len(self.task.symbols))
        written = self._written(tokens)
        pairs = torch.where(written, hints, tokens), torch.where(written, tokens, self.pad_id)
        return torch.stack(pairs, 2).flatten(1)


class Tasks(Extensible[Task]):
    """Tasks by name, and by name with formats after slashes."""

    def __init__(self, kind: str, entries: Mapping[str, Task]) -> None:
        super().__init__(kind, entries)
        self._formatted: dict[str, Formatted] = {}

    def __getitem__(self, name: str) -> Task:
        plain, *formats = name.split("/")
        task = super().__getitem__(plain)
        if not formats:
            return task
        if (made := self._formatted.get(name)) is None or made.task is not task:
            made = self._formatted[name] = Formatted(task, formats)
        return made

    def __contains__(self, name: object) -> bool:
        plain, *formats = name.split("/") if isinstance(name, str) else [name]
        return super().__contains__(plain) and formats == [each for each in FORMATS if each in formats]

    def origin(self, name: str) -> Origin | None:
        return super().origin(name.split("/")[0])
