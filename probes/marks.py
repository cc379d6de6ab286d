"""Marks: does a network know a source by its token or by its code? An input on which the two disagree tells.

The source of some steps is a mark: copying ends where it meets ``=``. The network may attend there since the position
is right, whatever stands there, or since it looks for that token, wherever it is. In all inputs of the task both are
true.

We define, for a step with a mark among its sources, the *exchanged* input: that mark and a symbol of the prompt which
the step does not read change places, and the scale is given as it was. What the operator makes of the tokens at the
positions of the circuit is the answer by *code*; what it makes of the tokens as they were, the mark among them, is the
answer by *content*. Inputs on which both are the same tell nothing and do not count.

Worked example: ``^ 7 3 = 7 3`` becomes ``^ 7 = 3 7 3``. A copier by position now finds 3 where ``=`` was and writes 3;
one that looks for ``=`` at the end writes ``$``.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.probes.interchange import sources_of
from lengthlens.probes.network import Network, network_of, scales_up_to, task_of
from lengthlens.tasks import Task

ROWS = 16  # instances of each step and place that the mark is moved to
PLACES = 3  # that a mark is moved to, at random
COLUMNS = ("scale", "place", "operator", "mark", "by_code", "by_content", "inputs")


class Exchanged(NamedTuple):
    """Inputs of one step with a mark elsewhere, and what either way of knowing it would write."""

    tokens: Tensor  # [row, pos]
    by_code: Tensor  # [row]
    by_content: Tensor  # [row]


def known_by(
    model: Callable[..., Any] | Network,
    task: Task | None = None,
    train_max: int = 10,
    *,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """For each step with a mark among its sources, how often the answer follows the code and how often the content.

    Arguments:
        model: a model that is told the scale, or does not look at it.
        task: the task; the model's own if None.
        train_max: the largest scale looked at.
        generator: of the instances; seed 0 if None.

    Result: a row for each step and mark, with the columns scale, place (of the answer token), operator, mark, by_code,
    by_content (shares; what is missing to 1 is some other token) and inputs, how many told the two apart.

    Errors: UserError for a content-addressed task, and where no source is a mark.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> known_by(copy_by_hand("ideal"), train_max=4)[["by_code", "by_content"]].mean().tolist()
    [1.0, 0.0]
    """
    task, subject = task_of(model, task), network_of(model)
    if task.family == "content-addressed":
        raise UserError(f"the sources of '{task.name}' follow from its tokens, so that all are known by content")
    generator = generator or torch.Generator().manual_seed(0)
    rows = []
    for scale in scales_up_to(task, train_max):
        circuit = task.circuit(scale)
        for place, query in enumerate(circuit.query.tolist()):
            for mark, inputs in exchanged(task, scale, place, generator):
                number = len(inputs.tokens)
                at = torch.full((number,), query)
                found = subject.next_tokens(inputs.tokens.to(subject.device), scale, at).cpu()
                shares = [float((found == wanted).double().mean()) for wanted in inputs[1:]]
                operator = circuit.operators[circuit.operator[place]].name
                rows.append((scale, place, operator, mark, *shares, number))
    if not rows:
        raise UserError(
            f"no step of '{task.name}' up to n={train_max} has a mark among its sources that could be moved"
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def exchanged(task: Task, scale: int, place: int, generator: torch.Generator) -> Iterator[tuple[str, Exchanged]]:
    """Inputs of a step for each mark among its sources, if any tells code and content apart."""
    circuit = task.circuit(scale)
    operator = circuit.operators[circuit.operator[place]]
    batch = task.sample(scale, ROWS * PLACES, generator).tokens
    sources, prompt = sources_of(circuit, place), task.prompt_length(scale)
    for source in sorted(set(sources)):
        mark, others = (
            task.vocab[int(batch[0, source])],
            [k for k in range(prompt) if int(batch[0, k]) < len(task.symbols) and k not in sources],
        )
        if mark in task.symbols or source >= prompt or not others:
            continue
        to = torch.tensor(others)[torch.randint(len(others), (len(batch),), generator=generator)]
        row, moved = torch.arange(len(batch)), batch.clone()
        moved[row, source], moved[row, to] = batch[row, to], batch[:, source]
        by_code, by_content = (_written(task, operator.function, tokens[:, sources]) for tokens in (moved, batch))
        tells = by_code != by_content
        if tells.any():
            yield mark, Exchanged(moved[tells], by_code[tells], by_content[tells])


def _written(task: Task, function: Callable[..., str], tokens: Tensor) -> Tensor:
    """What an operator makes of tokens [row, source]. [row]"""
    return torch.tensor([task.ids[function(*task.words(row))] for row in tokens])
