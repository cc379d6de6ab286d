"""Formats of tasks: what they do to the text of an instance, by plain Python, and what they cannot do."""

import copy
from collections.abc import Callable
from itertools import groupby, pairwise

import pytest
import torch

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.runs.training import train
from lengthlens.tasks import TASKS
from lengthlens.tasks.contract import check_task
from lengthlens.tests.test_tasks import seeded

NAMES = (
    *("addition/reversed", "parity/cot", "binary-majority/cot", "copy/hints", "copy/reversed/hints", "mqar/hints"),
    *("addition-binary/padded", "addition-binary/reversed", "addition-binary/padded/reversed/hints"),
    *("addition-binary/hints", "parity/cot/hints", "addition-unpadded/hints", "count-up/hints"),
)


def formatted(base: str, formats: list[str], answer: list[str], longest: int) -> list[str]:
    """The answer in the formats, hints apart."""
    if "padded" in formats:
        answer = ["0"] * (longest - len(answer)) + answer
    return answer[::-1] if "reversed" in formats else answer


@pytest.mark.parametrize("name", NAMES)
def test_a_format_changes_the_answer_and_the_hints_and_nothing_else(name: str) -> None:
    base, *formats = name.split("/")
    task, plain = TASKS[name], TASKS[base]
    assert check_task(task) == [] and task.name == name and name in TASKS and TASKS[name] is task
    for n in (task.min_scale, 5, 12):
        batch = task.sample(n, 20, seeded(n))
        assert batch.scale.tolist() == [n] * 20 == task.scale_of(batch.tokens).tolist()
        for row in batch.tokens:
            words = task.words(row)
            without = [word for word in words if not word.startswith("#")]
            start = without.index("=") + 1
            if "cot" in formats:
                bits = without[1 : start - 1]
                ends = [" ".join(["^", *bits[: k + 1], "="]) for k in range(n)]
                # No beginning of an instance need be an instance itself: a tie counts as 1 here.
                alike = "majority" if base == "binary-majority" else base
                right = [TASKS[alike].render(TASKS[alike].parse(e).tokens[0]).split()[-2] for e in ends]
            else:
                whole = plain.render(plain.parse(" ".join(without[:start])).tokens[0]).split()
                right = formatted(base, formats, whole[start:-1], plain.answer_length(n) - 1)
            assert without[start:] == [*right, "$"]
            if "hints" in formats:
                check_hints(words, reverse="reversed" in formats)


def check_hints(words: list[str], reverse: bool) -> None:
    """Before each word but marks stands a hint; in each run of the prompt they count up from the same number."""
    assert all(first.startswith("#") for first, word in pairwise(words) if word.isalnum())
    prompt, answer = words[: words.index("=")], words[words.index("=") + 1 :]
    runs = [list(run) for mark, run in groupby(prompt, lambda word: not word.lstrip("#").isalnum()) if not mark]
    hints = [[int(word[1:]) for word in run if word.startswith("#")] for run in [*runs, answer]]
    for run in hints:
        run = run[::-1] if run is hints[-1] and reverse else run
        assert run == list(range(hints[0][0], hints[0][0] + len(run)))


def test_a_chain_of_thought_of_parity_is_the_task_parity_cot() -> None:
    one, other = TASKS["parity/cot"].sample(9, 50, seeded()), TASKS["parity-cot"].sample(9, 50, seeded())
    assert torch.equal(one.tokens, other.tokens)


def test_training_knows_formats() -> None:
    config = ll.RunConfig("addition/reversed", "rope", steps=2, check_every=1, train_max=3, d_model=16, n_heads=2)
    assert "/" not in config.id and ll.RunConfig.from_json(config.to_json()) == config
    model = train(config).model
    assert model is not None and copy.deepcopy(model).predict("^ 1 2 + 3 4 =")
    assert ll.verdict("addition/reversed", "rope", 3, 6).verdict == "open"  # no program in bounds


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda: TASKS["copy/reverse"], "format 'reverse'.*did you mean 'reversed'"),
        (lambda: TASKS["coppy/hints"], "did you mean 'copy'"),
        (lambda: TASKS["copy/hints/reversed"], "in the order cot, padded, reversed, hints, not hints, reversed"),
        (lambda: TASKS["copy/cot"], "has no format 'cot'"),
        (lambda: TASKS["copy/padded"], "has no format 'padded'"),
        (lambda: TASKS["d-2/hints"], "a format needs one right token"),
        (lambda: TASKS["copy/hints"].sample(201, 1), "has no size n = 201: there are only 200 hints"),
        (lambda: TASKS["copy/hints"].parse("^ #1 7 #3 3 ="), "token 3 should be '#2', not '#3'"),
        (lambda: TASKS["copy/hints"].parse("^ 7 3 ="), "copy/hints"),
    ],
)
def test_what_cannot_be_is_one_sentence(ask: Callable[[], object], named: str) -> None:
    with pytest.raises(UserError, match=named) as refused:
        ask()
    assert "\n" not in str(refused.value)
