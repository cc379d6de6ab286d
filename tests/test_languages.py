"""Languages: words and sets against recognisers written another way, and the loss, score and refusals of sets."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import cache, reduce

import pytest
import torch
from torch.nn import functional as F

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.probes.table import probe_model
from lengthlens.runs.evaluation import exact_match, right_tokens, score_of
from lengthlens.runs.stack import Stack
from lengthlens.runs.trainer import Trainer, answer_loss, check_in_range
from lengthlens.tasks import TASKS
from lengthlens.tasks.languages import LANGUAGES, Language, Regular
from lengthlens.tests.test_tasks import seeded


def looks_like(pattern: str) -> Callable[[str], bool]:
    return lambda word: re.fullmatch(pattern, word) is not None


def nested(pairs: str, depth: int) -> Callable[[str], bool]:
    """D_0 is empty, D_k any number of brackets around D_(k−1): the definition, as a regular expression."""
    return looks_like(reduce(lambda inner, _: f"(?:{pairs.replace('.', inner)})*", range(depth), ""))


ODD_BEFORE_ODD = looks_like("(|[01]*0)1(11)*(0[01]*1)?0(00)*(|1[01]*)")
IN_LANGUAGE = {
    "tomita-1": looks_like("1*"),
    "tomita-2": looks_like("(10)*"),
    "tomita-3": lambda word: not ODD_BEFORE_ODD(word),
    "tomita-4": lambda word: "000" not in word,
    "tomita-5": lambda word: word.count("0") % 2 == word.count("1") % 2 == 0,
    "tomita-6": lambda word: (word.count("0") - word.count("1")) % 3 == 0,
    "tomita-7": looks_like("0*1*0*1*"),
    "aa": looks_like("(aa)*"),
    "any-0-2s": looks_like("[012]*02*"),
    **{f"d-{depth}": nested("a.b", depth) for depth in range(2, 13)},
    "dyck-2-4": nested(r"\(.\)|\[.\]", 4),
    "anbn": lambda word: len(word) > 1 and word == "a" * word.count("b") + "b" * word.count("a"),
    "anbncn": lambda word: word != "" and word == "".join(each * (len(word) // 3) for each in "abc"),
}
LONGEST = {1: 12, 2: 12, 3: 9, 4: 8}  # of the words that are listed, by the number of symbols
EVERY_LANGUAGE = pytest.mark.parametrize("name", IN_LANGUAGE)


@cache
def words_of(name: str) -> list[str]:
    """All words up to a length."""
    symbols, lengths = TASKS[name].symbols, range(LONGEST[len(TASKS[name].symbols)] + 1)
    return [w for k in lengths for w in map("".join, itertools.product(symbols, repeat=k)) if IN_LANGUAGE[name](w)]


@EVERY_LANGUAGE
def test_words_are_in_the_language_and_sets_are_those_of_all_continuations(name: str) -> None:
    """Brute force: a symbol is admissible if any listed word goes on with it, and so is the end if the word is one."""
    task, longest = TASKS[name], LONGEST[len(TASKS[name].symbols)]
    deepest = longest // (3 if name == "anbncn" else 2) - 1  # so that what may follow is among the words
    for n in range(task.min_scale, 9):
        batch = task.sample(n, 40, seeded(n))
        assert batch.targets is not None and not batch.targets[:, -1].any()
        for row, sets in zip(batch.tokens, batch.targets):
            word = "".join(task.words(row)[1:-1])
            assert IN_LANGUAGE[name](word) and int(task.scale_of(row[None])) == n
            for k in range(min(len(word), deepest) + 1):
                begun = [other for other in words_of(name) if other.startswith(word[:k])]
                wanted = {other[k] if len(other) > k else "$" for other in begun}
                assert {task.vocab[token] for token in sets[k].nonzero()[:, 0].tolist()} == wanted, (word, k)


@pytest.mark.parametrize("name", ["tomita-3", "tomita-7", "d-2", "dyck-2-4", "any-0-2s"])
def test_words_of_one_length_are_drawn_with_equal_chances(name: str) -> None:
    task, n = TASKS[name], 3
    every = [word for word in words_of(name) if len(word) == task.length(n) - 2]
    drawn = Counter("".join(task.words(row)[1:-1]) for row in task.sample(n, 200 * len(every), seeded()).tokens)
    assert set(drawn) == set(every) and all(abs(drawn[word] - 200) < 6 * math.sqrt(200) for word in every)


def one_hot_sets(task: Language, n: int = 4) -> tuple[torch.Tensor, ll.tasks.Batch]:
    """Logits that are right about every set."""
    batch = task.sample(n, 5, seeded())
    assert batch.targets is not None
    return batch.targets * 4.0 - 2.0, batch


def test_the_loss_is_binary_cross_entropy_over_symbols_and_end_where_words_are() -> None:
    task = TASKS["d-3"]
    batch = task.sample([2, 4, 3], generator=seeded())
    logits, total, count = torch.randn(*batch.tokens.shape, len(task.vocab), generator=seeded(1)), 0.0, 0
    assert batch.targets is not None
    for row, n in enumerate(batch.scale.tolist()):
        for k, token in itertools.product(range(2 * n + 1), ["a", "b", "$"]):
            wanted = batch.targets[row, k, task.ids[token]].float()
            total += float(F.binary_cross_entropy_with_logits(logits[row, k, task.ids[token]], wanted))
            count += 1
    assert float(answer_loss(logits, batch, 0.1)) == pytest.approx(total / count, rel=1e-5)


def test_exact_match_needs_every_set_and_tells_the_end_from_the_content() -> None:
    task = TASKS["tomita-4"]
    logits, batch = one_hot_sets(task)
    assert right_tokens(logits, batch).all()
    for token, whole, content in (("$", 0.8, 1.0), ("0", 0.8, 0.8), ("^", 1.0, 1.0), ("_", 1.0, 1.0)):
        wrong = logits.clone()
        wrong[2, 1, task.ids[token]] *= -1
        for given in (wrong, wrong[:, :-1]):  # at all positions, or at the queries alone
            score = score_of(4, right_tokens(given, batch))
            assert (score.exact_match, score.exact_match_no_end) == (whole, content), token


def test_a_language_is_learned_alone_and_in_a_stack_and_scored_at_any_n() -> None:
    config = ll.RunConfig(
        task="tomita-4", scheme="relative", train_max=5, steps=150, check_every=150, d_model=32, n_heads=2, lr=3e-3
    )
    alone, other = Trainer(config), Trainer(config)
    assert alone.advance().in_range_exact_match > 0.9
    assert Stack([other]).advance() == [other]
    assert other.history[-1].loss == pytest.approx(alone.history[-1].loss, rel=1e-3)
    share, margin = check_in_range(alone.model, alone.task, config)
    assert share == alone.history[-1].in_range_exact_match and (margin > 0 or share < 1)
    (score,) = exact_match(alone.model, alone.task, [5], samples=50)
    assert score.exact_match > 0.9
    with pytest.raises(UserError, match="a prediction needs one right token at each place, and task 'tomita-4' asks"):
        alone.model.predict("^ 0 1 $")
    with pytest.raises(UserError, match="a probe needs one right token"):
        probe_model(alone.model, train_max=4, measures=["src"])


BITS = ("0", "1")


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda: Regular("odd", "odd", BITS, table=((1,), (0, 1)), accepting=(1,)), "'1' leads from state 0 to None"),
        (lambda: Regular("odd", "odd", BITS, table=((1, 2), (0, 1)), accepting=(1,)), "'1' leads from state 0 to 2"),
        (lambda: Regular("odd", "odd", BITS, table=((0, 0), (1, 1)), accepting=(1,)), "'odd' accepts no word"),
        (lambda: Regular("odd", "odd", BITS, table=((0, 0),), accepting=(1,)), "'odd' accepts no word"),
        (
            lambda: Regular("even", "aa", ("a",), table=((1,), (0,)), accepting=(0,)).sample(3, 1),
            "no word has 3 symbols",
        ),
        (lambda: TASKS["d-2"].parse("^ a b a $"), "has 2 symbols for each of n, so not 3"),
        (lambda: TASKS["d-2"].parse("^ a a a b b b $"), "is not an instance of task 'd-2'"),
        (lambda: TASKS["d-2"].parse("^ a b"), "has 4 tokens"),
        (lambda: TASKS["anbn"].parse("^ a b a b $"), "is not an instance of task 'anbn'"),
        (lambda: TASKS["tomita-6"].sample(1, 1), "no size n = 1"),
        (lambda: TASKS["tomita-1"].circuit(3), "task 'tomita-1' declares no circuit"),
        (lambda: TASKS["unique-copy"].sample(151, 1), "no size n = 151: the largest is 150"),
    ],
)
def test_what_no_language_can_serve_is_one_sentence(ask: Callable[[], object], named: str) -> None:
    with pytest.raises(UserError, match=named) as refused:
        ask()
    assert "\n" not in str(refused.value)


def test_every_language_is_registered_and_has_a_recogniser() -> None:
    assert [language.name for language in LANGUAGES] == [*IN_LANGUAGE]
    assert [name for name, task in TASKS.items() if task.next_sets] == [*IN_LANGUAGE]
