"""Tasks: generators, circuits and plain Python agree, samples are reproducible, and every task keeps its contract."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthlens.errors import UserError
from lengthlens.tasks import TASKS, Circuit, Operator
from lengthlens.tasks.arithmetic import ADD, multiply_step
from lengthlens.tasks.contract import check_task
from lengthlens.tasks.task import BEGIN, END, PAD

BINARY = "addition-binary"  # the one task whose answers have different lengths at one size
EVERY_TASK = pytest.mark.parametrize("name", TASKS)
ONE_ANSWER = pytest.mark.parametrize("name", [name for name, task in TASKS.items() if not task.next_sets])
ONE_WORD = ("tomita-1", "tomita-2", "aa", "anbn", "anbncn")  # for each n


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def number(digits: list[str]) -> int:
    """Digits, lowest first, as a number."""
    return int("".join(reversed(digits)))


def padded(value: int, width: int) -> list[str]:
    """A number's digits, lowest first, filled up with zeros."""
    return list(f"{value:0{width}d}"[::-1])


def left(words: list[str]) -> list[str]:
    """The prompt up to its first mark."""
    return words[1 : next(k for k, word in enumerate(words) if word in "=+*?")]


def right(words: list[str]) -> list[str]:
    """What stands between the first mark and the equals sign."""
    return words[len(left(words)) + 2 : words.index("=")]


def running_sums(words: list[str]) -> list[str]:
    """Each running sum with a digit more than the longer of its two numbers, and commas between them."""
    sums, so_far, width = [], 0, 1
    for operand in " ".join(words[1 : words.index(";")]).split(" + "):
        so_far, width = so_far + number(operand.split()), 1 + max(width, len(operand.split()))
        sums.append(" ".join(padded(so_far, width)))
    return " , ".join(sums).split()


# What each task computes, written a second time and differently: plain Python on words.
MEANING = {
    "copy": lambda w: left(w),
    "reverse": lambda w: left(w)[::-1],
    "shift": lambda w: left(w)[1:] + left(w)[:1],
    "duplicate": lambda w: left(w) * 2,
    "parity-cot": lambda w: [str(x) for x in itertools.accumulate(map(int, left(w)), lambda a, b: a ^ b)],
    "modular-sum-cot": lambda w: [str(x % 5) for x in itertools.accumulate(map(int, left(w)))],
    "parity": lambda w: [str(left(w).count("1") % 2)],
    "modular-sum": lambda w: [str(sum(map(int, left(w))) % 5)],
    "addition": lambda w: padded(number(left(w)) + number(right(w)), len(left(w)) + 1),
    "addition-unpadded": lambda w: padded(number(left(w)) + number(right(w)), 1 + max(len(left(w)), len(right(w)))),
    "addition-operands": running_sums,
    "copy-field": lambda w: " ".join(w[1 : w.index("=")]).split(" , ")[-2].split(),
    "addition-msb": lambda w: padded(number(left(w)[::-1]) + number(right(w)[::-1]), len(left(w)) + 1)[::-1],
    "multiplication": lambda w: padded(number(left(w)) * number(right(w)), 2 * len(left(w))),
    "multiplication-unpadded": lambda w: padded(number(left(w)) * number(right(w)), len(left(w)) + len(right(w))),
    "multiplication-by-digit": lambda w: padded(number(left(w)) * number(right(w)), len(left(w)) + 1),
    "sort": lambda w: sorted(left(w), key=int),
    "count": lambda w: list(("1" * left(w).count(right(w)[0])).ljust(len(left(w)), ".")),
    "majority": lambda w: [max("10", key=left(w).count)],
    "mode": lambda w: [max(sorted(set(left(w))), key=left(w).count)],
    "induction": lambda w: [w[w.index(w[w.index("=") + 1]) + 1]],
    "anti-induction": lambda w: [w[w.index(w[w.index("=") + 1]) - 1]],
    "unique-copy": lambda w: left(w),
    "unique-reverse": lambda w: left(w)[::-1],
    "unique-bigram-copy": lambda w: left(w),
    "repeat-copy": lambda w: left(w),
    "count-up": lambda w: [str(k) for k in range(int(w[1]), int(w[2]) + 1)],
    "sort-150": lambda w: sorted(left(w), key=int),
    "binary-parity": lambda w: [str(left(w).count("1") % 2)],
    "binary-majority": lambda w: [most_frequent(left(w))],
    "binary-majority-interleave": lambda w: [most_frequent(left(w)[k::3]) for k in range(3)],
    "letter-majority": lambda w: [most_frequent(left(w))],
    "right-neighbour": lambda w: [w[w.index(w[w.index("=") + 1]) + 1]],
    "left-neighbour": lambda w: [w[w.index(w[w.index("=") + 1]) - 1]],
    "addition-binary": lambda w: list(f"{int(''.join(left(w)), 2) + int(''.join(right(w)), 2):b}"),
    "flip-flop": lambda w: flipped(left(w)),
    "n-back": lambda w: [w[w.index("=") - 3]],
    "associative-recall": lambda w: stored(w),
    "mqar": lambda w: stored(w),
    "key-value-retrieval": lambda w: stored(w),
    "affine-shown": lambda w: [affine([(int(w[1]), int(w[2]))], w[4 : w.index("=")])],
    "affine-hidden": lambda w: [affine(itertools.product(range(17), range(17)), left(w))],
    "markov": lambda w: [most_frequent([b for a, b in itertools.pairwise(left(w)) if a == left(w)[-1]])],
}


def affine(rules: Iterable[tuple[int, int]], terms: list[str]) -> str:
    """The next term by every rule that the terms follow; they agree."""
    numbers = [int(term) for term in terms]
    fitting = [(a, b) for a, b in rules if all((a * x + b) % 17 == y for x, y in itertools.pairwise(numbers))]
    (after,) = {(a * numbers[-1] + b) % 17 for a, b in fitting}
    return str(after)


def most_frequent(words: list[str]) -> str:
    """The word that occurs most often; a tie fails."""
    (winner, most), *others = Counter(words).most_common()
    assert all(number < most for _, number in others)
    return winner


def flipped(words: list[str]) -> list[str]:
    """The bit written last; what is read is that bit."""
    state = None
    for instruction, bit in zip(words[::2], words[1::2]):
        state = bit if instruction == "w" else state
        assert state is not None and bit == state if instruction == "r" else bit in "01"
    return [str(state)]


def stored(words: list[str]) -> list[str]:
    """The word after each queried number; there is exactly one."""
    string = left(words)
    assert all(string.count(query) == 1 for query in right(words))
    return [string[string.index(query) + 1] for query in right(words)]


# What more must hold of the prompt, of tasks that say more than which symbols there are.
PROMPTS = {
    **dict.fromkeys(["unique-copy", "unique-reverse", "sort", "sort-150"], lambda w: distinct(left(w))),
    **dict.fromkeys(["right-neighbour", "left-neighbour"], lambda w: distinct(left(w))),
    "unique-bigram-copy": lambda w: distinct(list(itertools.pairwise(left(w)))),
    "associative-recall": lambda w: distinct(left(w)[::2]) and len(right(w)) == 1,
    "mqar": lambda w: set(left(w)[::2]) == set(right(w)) and distinct(right(w)),
    "key-value-retrieval": lambda w: re.fullmatch(r"([A-Z]|\d+ [a-z]| )+", " ".join(left(w))) is not None,
    "addition-binary": lambda w: all(len(bits) == 1 or bits[0] == "1" for bits in (left(w), right(w))),
}


def distinct(words: list[Any]) -> bool:
    return len(set(words)) == len(words)


@ONE_ANSWER
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_circuit_and_meaning_agree_with_the_generator(name: str, data: st.DataObject) -> None:
    """Three independent ways to the answer: the vectorised generator, the circuit, plain Python."""
    task = TASKS[name]
    scale = data.draw(st.integers(task.min_scale, 24) | st.just(120))
    tokens = task.sample(scale, 2, seeded(data.draw(st.integers(0, 2**32)))).tokens
    for words in map(task.words, tokens):
        answer = words[task.prompt_length(scale) :]
        if task.declares_circuit:
            assert task.circuit(scale, words).run(words[: task.prompt_length(scale)]) == answer
        assert [*MEANING[name](words), END] == answer
        assert PROMPTS.get(name, bool)(words)
        assert task.length(scale) - (name == BINARY) <= len(words) <= task.length(scale)


def test_carries_follow_from_the_column_before() -> None:
    """All columns with all carries in, against plain addition and multiplication of two columns."""
    for a, b, a_low, b_low, low_carry in itertools.product(range(10), range(10), range(10), range(10), (0, 1)):
        low = a_low + b_low + low_carry
        expected = str((a + b + low // 10) % 10)
        assert ADD.function(str(a), str(b), str(a_low), str(b_low), str(low % 10)) == expected
    for x, x_low, digit, low_carry in itertools.product(range(10), range(10), range(10), range(9)):
        low = x_low * digit + low_carry
        expected = str((x * digit + low // 10) % 10)
        assert multiply_step(str(x), str(x_low), str(digit), str(low % 10)) == expected


@ONE_ANSWER
def test_every_symbol_is_drawn(name: str) -> None:
    """Free symbols are spread over the whole alphabet (counts within six standard deviations of uniform).

    Where symbols have different parts, such as keys and values, all of them occur.
    """
    task = TASKS[name]
    inputs = task.draw(8, 4000, seeded(), torch.device("cpu"))
    counts = torch.bincount(inputs.flatten(), minlength=len(task.symbols)).double()
    expected = inputs.numel() / len(task.symbols)
    uneven = task.name in ("count-up", "flip-flop", "associative-recall", "mqar", "key-value-retrieval", BINARY)
    assert counts.min() > 0 if uneven else (counts - expected).abs().max() < 6 * expected**0.5


@EVERY_TASK
def test_sizes_are_mixed_padded_and_masked(name: str) -> None:
    task, scales = TASKS[name], [5, 3, 7, 3]
    batch, elsewhere = task.sample(scales, generator=seeded()), task.sample(5, 3, device="meta")
    assert batch.scale.tolist() == scales == task.scale_of(batch.tokens).tolist()
    lengths = [task.answer_length(n) for n in scales]
    assert name == BINARY or batch.query_mask.sum(1).tolist() == lengths
    for row, mask, scale in zip(batch.tokens, batch.answer_mask, scales):
        start, end = task.prompt_length(scale), task.length(scale)
        end -= int(name == BINARY and row[end - 1] == task.ids[PAD])  # without carry
        assert row[0] == task.ids[BEGIN] and row[end - 1] == task.ids[END] and (row[end:] == task.ids[PAD]).all()
        assert mask.nonzero().flatten().tolist() == list(range(start, end))
        assert task.next_sets or [*MEANING[name](task.words(row)), END] == task.words(row)[start:]
    # Every tensor is made on the device that is asked for: meta refuses to mix with the CPU.
    assert {each.device.type for each in (elsewhere.tokens, elsewhere.answer_mask, elsewhere.scale)} == {"meta"}


@EVERY_TASK
def test_a_seed_is_a_batch_and_the_global_generator_is_left_alone(name: str) -> None:
    first, before = TASKS[name].sample([3, 7], generator=seeded(3)).tokens, torch.get_rng_state()
    assert torch.equal(first, TASKS[name].sample([3, 7], generator=seeded(3)).tokens)
    assert name in ONE_WORD or not torch.equal(first, TASKS[name].sample([3, 7], generator=seeded(4)).tokens)
    assert torch.equal(before, torch.get_rng_state())


@EVERY_TASK
def test_every_task_keeps_its_contract(name: str) -> None:
    """Among other things: one operator's name is one function at all sizes, and text and tokens are each other's."""
    assert check_task(TASKS[name]) == []


@EVERY_TASK
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_parsing_anything_else_is_refused(name: str, data: st.DataObject) -> None:
    """Random words either spell an instance exactly or raise a one-line error; nothing else happens."""
    task = TASKS[name]
    text = " ".join(data.draw(st.lists(st.sampled_from([*task.vocab, "?!"]), max_size=14)))
    try:
        batch = task.parse(text)
    except UserError as error:
        assert "\n" not in str(error)
        assert task.name in str(error) or "should be" in str(error)
    else:
        assert task.render(batch.tokens[0]).startswith(text)


COPY, SORT, ONE_SLOT = TASKS["copy"], TASKS["sort"], Operator("copy", 1, str)


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda: COPY.parse("^ 7 x = 7 x $"), "'x'"),
        (lambda: COPY.parse("7 3 = 7 3 $"), "begins with '\\^'"),
        (lambda: COPY.parse("^ 7 3"), "has a '='"),
        (lambda: COPY.parse("^ 7 3 = 7 4 $"), "token 5 should be '3', not '4'"),
        (lambda: COPY.parse("^ 7 3 = 7"), "7 tokens"),
        (lambda: COPY.parse("^ = $"), "no instance of task .copy. has its first .=. at position 1"),
        (lambda: COPY.parse(""), "begins with"),
        (lambda: SORT.parse("^ 3 3 = 3 3 $"), "distinct"),
        (lambda: TASKS["induction"].parse("^ a b a = a b $"), "not an instance"),
        (lambda: TASKS["induction"].parse("^ b a = a b $"), "not an instance"),
        (lambda: TASKS["addition"].parse("^ 1 + 1 1 = 2 0 $"), "8 tokens"),
        (lambda: COPY.sample(0, 4), "no size n = 0: the smallest is 1"),
        (lambda: SORT.sample(129, 4), "no size n = 129: the largest is 128"),
        (lambda: COPY.sample(3, 0), "at least 1, not 0"),
        (lambda: COPY.sample([3, 0], generator=seeded()), "no size n = 0"),
        (lambda: COPY.sample([3, 4], 3), "2 sizes n were given for a batch of 3"),
        (lambda: TASKS["coppy"], "did you mean 'copy'"),
        (lambda: SORT.circuit(4), "needs the tokens of the instance"),
        (lambda: COPY.scale_of(torch.zeros(1, 4, dtype=torch.long)), "cannot tell their size"),
        (lambda: Circuit.of(ONE_SLOT, [3], [4]), "reads outside"),
        (lambda: Circuit.of(ONE_SLOT, [3], [1], [2]), "takes 1 sources, not 2"),
    ],
)
def test_bad_requests_are_named(ask: Callable[[], object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        ask()


@pytest.mark.parametrize("name", ["copy", "reverse", "shift", "duplicate"])
def test_coupled_positions_hold_equal_symbols(name: str) -> None:
    task = TASKS[name]
    ids, tokens, start = task.coupling(6), task.sample(6, 1, seeded()).tokens[0], task.prompt_length(6)
    for place in range(start, task.length(6) - 1):
        assert tokens[int((ids[:start] == ids[place]).nonzero()[0])] == tokens[place]
