"""Tasks on several fields, whose scales are tuples, and the scheme whose pointers count fields and stop at marks."""

import copy
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.models.schemes.lbpe import FieldForm, field_forms, fields_in, keys_in
from lengthlens.runs.evaluation import evaluate, exact_match, instance_seed
from lengthlens.tasks import TASKS
from lengthlens.tasks.fields import FieldsTask
from lengthlens.tasks.scale import size_of
from lengthlens.tests.test_tasks import MEANING, left, right, seeded
from lengthlens.theory.verdict import verdict

NAMES = ("addition-unpadded", "addition-operands", "copy-field", "multiplication-unpadded")


def scales(task: FieldsTask, most: int = 12) -> list[int]:
    return list(task.scales_up_to(most, 3, seeded(1)))


@pytest.mark.parametrize("name", NAMES)
def test_circuit_and_meaning_agree_with_the_generator_and_a_size_is_read_off_the_marks(name: str) -> None:
    task = TASKS[name]
    tuples = {2: [(1, 40), (40, 1)], 3: [(3, 1, 2), (5, 2), (7,) * 9]}[task.usual]
    drawn = [*scales(task), *map(task.number_of, tuples)]
    batch = task.sample(drawn, None, seeded(5))
    assert task.scale_of(batch.tokens).tolist() == drawn == batch.scale.tolist()
    for scale, row in zip(drawn, batch.tokens):
        words, prompt = task.words(row), row[: task.prompt_length(scale)]
        answer = words[task.prompt_length(scale) :]
        assert task.circuit(scale).run(words) == answer == [*MEANING[name](words), "$"]
        assert task.usual > 2 or (len(left(words)), len(right(words))) == task.parts(scale)
        assert task.scale_of(prompt[None]).tolist() == [scale]
        assert torch.equal(task.parse(task.render(prompt)).tokens[0], row[: task.length(scale)])
    assert task.number_of((4,) * task.usual) == 4
    with pytest.raises(UserError, match=f"is no prompt of task '{name}'"):
        task.scale_of(torch.tensor([[task.ids[word] for word in "^ 1 =".split()]]))


def test_numbers_of_tuples() -> None:
    task = TASKS["copy-field"]
    number = task.number_of((3, 9, 2))
    assert size_of(number) == 9 and task.parts(number) == (3, 9, 2) and task.number_of((3, 9, 2)) == number
    assert task.scale_in_words(number) == "(3, 9, 2)" and task.number_of((4, 4, 4)) == 4
    assert copy.deepcopy(task).parts(copy.deepcopy(task).number_of((1, 9))) == (1, 9)
    assert copy.deepcopy(task).number_of((1, 9)) == task.number_of((1, 9))  # a copied network knows them, too
    for ask, named in (
        (lambda: type(task)().parts(number), "has not met"),  # by another task's object
        (lambda: TASKS["copy"].number_of((3, 5)), "are single numbers, not tuples such as \\(3, 5\\)"),
        (lambda: TASKS["addition-unpadded"].number_of((3, 5, 1)), "task 'addition-unpadded' has 2 fields, not 3"),
        (lambda: task.number_of((3, 0, 1)), "task 'copy-field' has no size n = 0"),
    ):
        with pytest.raises(UserError, match=named):
            ask()


@pytest.mark.parametrize("name", NAMES)
def test_a_size_is_the_largest_length(name: str) -> None:
    task, generator = TASKS[name], seeded()
    drawn = [task.parts(task.drawn_scale(7, generator)) for _ in range(200)]
    assert all(max(lengths) == 7 and 2 <= len(lengths) <= task.most_fields(7) for lengths in drawn)
    assert {length for lengths in drawn for length in lengths} == set(range(1, 8))
    assert task.longest(7) >= max(task.length(task.number_of(lengths)) for lengths in drawn)


def slow_coordinates(tokens: list[str], marks: str) -> list[tuple[int, int]]:
    """Field and offset of each token."""
    found: list[tuple[int, int]] = []
    for token in tokens:
        if token in marks:
            found.append((found[-1][0] + 1 if found else 0, 0))
        else:
            found.append((found[-1][0], found[-1][1] + 1))
    return found


def slow_key(form: FieldForm, value: int, tokens: list[str], marks: str, query: int) -> int | None:
    """The key that a pointer points at, found by going through the tokens."""
    at = slow_coordinates(tokens, marks)
    (field, offset), prompt = at[query], at[tokens.index("=")][0]
    wanted = form.along * field + form.prompt * prompt + form.field
    if wanted < 0 or wanted > field or (wanted == field and form.length):
        return None
    inside = [place for place, (own, _) in enumerate(at) if own == wanted]
    if wanted < field:
        inside.append(inside[-1] + 1)  # the mark that ends it
    place = form.offset * offset + form.length * (len(inside) - 1) + value
    if wanted == field and place > offset:
        return None
    return inside[min(max(place, 0), len(inside) - 1)]


def test_pointers_point_where_slow_code_says() -> None:
    task, draw = TASKS["addition-operands"], random.Random(0)
    for scale in scales(task, 4)[-4:]:
        row = task.sample(scale, 1, seeded(6)).tokens
        words = task.words(row[0])[:-1]
        marks = torch.tensor([token in "+=;,^" for token in task.vocab])
        fields = fields_in(row[:, :-1], marks, task.ids["="])
        at = list(zip(fields.field[0].tolist(), fields.offset[0].tolist()))
        assert at == slow_coordinates(words, "+=;,^")
        pointers = [(form, value) for form in field_forms() for value in range(-2, 3)]
        forms, values = (torch.tensor(part) for part in zip(*pointers))
        keys = keys_in(fields, slice(0, len(words)), forms, values)[0]
        for query in draw.sample(range(len(words)), 12):
            found = [k if 0 <= k <= query else None for k in keys[query].tolist()]
            assert found == [slow_key(form, value, words, "+=;,^", query) for form, value in pointers]


def network(scheme: str, task: str) -> ll.models.transformer.HookedModel:
    model = ll.build(ll.ModelConfig(task=task, scheme=scheme, n_heads=2, d_model=16, score_scaling="none"))
    generator = seeded(8)
    with torch.no_grad():
        for parameter in model.pos_embed.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("scheme", ["lbpe-marks", "ideal", "lbpe", "abacus"])
@pytest.mark.parametrize("name", ["addition-unpadded", "addition-operands"])
def test_mixed_batches_equal_single_rows(scheme: str, name: str) -> None:
    task, model = TASKS[name], network(scheme, name)
    batch = task.sample(scales(task, 5)[-5:], None, seeded(9))
    together = model(batch.tokens, batch.scale)
    for row, scale in enumerate(batch.scale.tolist()):
        length = task.length(scale)
        alone = model(batch.tokens[row : row + 1, :length], scale)[0]
        assert torch.allclose(together[row, :length], alone, atol=1e-5)
        assert torch.equal(alone, model(batch.tokens[row : row + 1, :length])[0])  # read off the tokens


def test_long_inputs_give_the_same_by_their_few_named_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("lbpe-marks", "addition-operands")
    scheme = model.pos_embed
    scheme.alive &= scheme.weights().abs() > 1.5
    tokens = TASKS["addition-operands"].sample((60, 70, 40), 2, seeded(10)).tokens
    with torch.no_grad():
        quick = model(tokens)
        monkeypatch.setattr("lengthlens.models.attention.NAMED_LENGTH", tokens.shape[1] + 1)
        assert torch.allclose(quick, model(tokens), atol=1e-4)
        monkeypatch.setattr("lengthlens.models.attention.NAMED_LENGTH", 1)
        mixed = TASKS["addition-operands"].sample([(6, 7), (4, 4, 1)], None, seeded(10)).tokens
        assert torch.isfinite(model(mixed)).all()  # rows that differ take the other way


def peeking(task: FieldsTask, wrong: int = 0) -> object:
    """A model that sees the next token, and is wrong at the last one of rows with so many digits first."""

    def logits(tokens: Tensor) -> Tensor:
        ahead = torch.roll(tokens, -1, 1)
        first = (tokens == task.ids["+"]).long().argmax(1) - 1
        ahead[first == wrong, -2] = task.ids["^"]
        return torch.nn.functional.one_hot(ahead, len(task.vocab)).float()

    return logits


def test_exact_match_draws_tuples_of_a_size() -> None:
    task = TASKS["addition-unpadded"]
    (score,) = exact_match(peeking(task), task, [6], samples=300)
    assert (score.length, score.samples, score.exact_match, score.token_accuracy) == (6, 300, 1, 1)
    (score,) = exact_match(peeking(task, wrong=6), task, [6], samples=300)
    assert score.exact_match_no_end == 1 and 0.35 < score.exact_match < 0.5  # 1 − (1/2 + 1/12) = 0.417
    tuples = exact_match(peeking(task, wrong=6), task, [(6, 2), (2, 6)], samples=5)
    assert [score.exact_match for score in tuples] == [0, 1]
    with pytest.raises(UserError, match="single numbers"):
        exact_match(peeking(task), TASKS["copy"], [(6, 2)], samples=5)


def test_runs_are_evaluated_at_tuples(tmp_path: Path) -> None:
    sizes = {"train_max": 2, "steps": 4, "check_every": 2, "d_model": 16, "n_heads": 2}
    config = ll.RunConfig(task="copy-field", scheme="lbpe-marks", **sizes)
    run = ll.train(config, ll.RunStore(tmp_path)).run
    rows = evaluate(run, [3, (2,) * 5, (1, 4)], samples=6)
    assert [(row["length"], row.get("shape")) for row in rows] == [(3, None), (2, [2] * 5), (4, [1, 4])]
    assert evaluate(run, [(1, 4), 3], samples=6) == [rows[2], rows[0]]
    assert all(row in ll.RunStore(tmp_path).find(run.id).evaluation() for row in rows)
    assert instance_seed(0, (3, 5)) != instance_seed(0, (5, 3)) == instance_seed(1, (5, 3)) - (1 << 31)


@pytest.mark.parametrize("name", NAMES[:3])
def test_the_verdict_knows_tuples(name: str) -> None:
    assert verdict(name, "ideal", 5, 12, helps=False).verdict == "possible"
    found = verdict(name, "lbpe-marks", 5, 12, helps=False)
    read = {"copy-field": "f−2"}.get(name, "f−1")
    assert found.verdict == "possible" and f"field {read}, offset o+1" in str(found)
    impossible = verdict(name, "relative", 5, 12, helps=False)
    assert impossible.verdict == "impossible" and "n=(" in str(impossible)
