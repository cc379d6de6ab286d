"""Tasks: generators, circuits and plain Python agree, samples are reproducible, and every task keeps its contract."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthlens.errors import UserError
from lengthlens.tasks import TASKS, Batch, Circuit, Operator
from lengthlens.tasks.arithmetic import ADD, multiply_step
from lengthlens.tasks.contract import check_task
from lengthlens.tasks.copying import Shift
from lengthlens.tasks.task import BEGIN, END, PAD

EVERY_TASK = pytest.mark.parametrize("name", TASKS)
FAMILIES = {
    "position-addressed": (
        "copy reverse shift duplicate parity-cot modular-sum-cot addition multiplication-by-digit "
        "addition-unpadded addition-operands copy-field".split()
    ),
    "growing": "parity modular-sum addition-msb multiplication".split(),
    "content-addressed": "sort count majority mode induction anti-induction".split(),
}


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
    "multiplication-by-digit": lambda w: padded(number(left(w)) * number(right(w)), len(left(w)) + 1),
    "sort": lambda w: sorted(left(w), key=int),
    "count": lambda w: list(("1" * left(w).count(right(w)[0])).ljust(len(left(w)), ".")),
    "majority": lambda w: [max("10", key=left(w).count)],
    "mode": lambda w: [max(sorted(set(left(w))), key=left(w).count)],
    "induction": lambda w: [w[w.index(w[w.index("=") + 1]) + 1]],
    "anti-induction": lambda w: [w[w.index(w[w.index("=") + 1]) - 1]],
}


def test_names_and_families() -> None:
    assert {name: TASKS[name].family for name in TASKS} == {
        name: family for family, names in FAMILIES.items() for name in names
    }


@EVERY_TASK
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_circuit_and_meaning_agree_with_the_generator(name: str, data: st.DataObject) -> None:
    """Three independent ways to the answer: the vectorised generator, the circuit, plain Python."""
    task = TASKS[name]
    scale = data.draw(st.integers(task.min_scale, 24))
    tokens = task.sample(scale, 2, seeded(data.draw(st.integers(0, 2**32)))).tokens
    for words in map(task.words, tokens):
        answer = words[task.prompt_length(scale) :]
        assert task.circuit(scale, words).run(words[: task.prompt_length(scale)]) == answer
        assert [*MEANING[name](words), END] == answer
        assert len(words) == task.length(scale)


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


@EVERY_TASK
def test_every_symbol_is_drawn(name: str) -> None:
    """Free symbols are spread over the whole alphabet (counts within six standard deviations of uniform)."""
    task = TASKS[name]
    inputs = task.draw(8, 4000, seeded(), torch.device("cpu"))
    counts = torch.bincount(inputs.flatten(), minlength=len(task.symbols)).double()
    expected = inputs.numel() / len(task.symbols)
    assert (counts - expected).abs().max() < 6 * expected**0.5


@EVERY_TASK
def test_sizes_are_mixed_padded_and_masked(name: str) -> None:
    task = TASKS[name]
    scales = [5, 3, 7, 3]
    batch = task.sample(scales, generator=seeded())
    assert batch.scale.tolist() == scales == task.scale_of(batch.tokens).tolist()
    assert batch.tokens.shape == (4, task.length(7))
    assert batch.query_mask.sum(1).tolist() == [task.answer_length(n) for n in scales]
    assert (batch.tokens[:, 0] == task.ids[BEGIN]).all()
    for row, mask, scale in zip(batch.tokens, batch.answer_mask, scales):
        start, end = task.prompt_length(scale), task.length(scale)
        assert (row[end:] == task.ids[PAD]).all() and row[end - 1] == task.ids[END]
        assert mask.nonzero().flatten().tolist() == list(range(start, end))
        words = task.words(row)
        assert [*MEANING[name](words), END] == words[start:]


@EVERY_TASK
def test_a_seed_is_a_batch_and_the_global_generator_is_left_alone(name: str) -> None:
    task = TASKS[name]
    first, before = task.sample(7, 5, seeded(3)).tokens, torch.get_rng_state()
    task.sample([3, 4], generator=seeded(8))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(10)
    assert torch.equal(first, task.sample(7, 5, seeded(3)).tokens)
    assert not torch.equal(first, task.sample(7, 5, seeded(4)).tokens)


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


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("copy", "^ 7 x = 7 x $", "'x'"),
        ("copy", "7 3 = 7 3 $", "begins with '^'"),
        ("copy", "^ 7 3", "has a '='"),
        ("copy", "^ 7 3 = 7 4 $", "token 5 should be '3', not '4'"),
        ("copy", "^ 7 3 = 7", "7 tokens"),
        ("copy", "^ = $", "smallest is 1"),
        ("copy", "", "begins with"),
        ("sort", "^ 3 3 = 3 3 $", "distinct"),
        ("induction", "^ a b a = a b $", "not an instance"),
        ("induction", "^ b a = a b $", "not an instance"),
        ("addition", "^ 1 + 1 1 = 2 0 $", "8 tokens"),
    ],
)
def test_malformed_text_is_named(name: str, text: str, named: str) -> None:
    with pytest.raises(UserError) as error:
        TASKS[name].parse(text)
    assert named in str(error.value)


def test_bad_requests_are_named() -> None:
    with pytest.raises(UserError, match="no size n = 0: the smallest is 1"):
        TASKS["copy"].sample(0, 4)
    with pytest.raises(UserError, match="no size n = 129: the largest is 128"):
        TASKS["sort"].sample(129, 4)
    with pytest.raises(UserError, match="at least 1, not 0"):
        TASKS["copy"].sample(3, 0)
    with pytest.raises(UserError, match="no size n = 0"):
        TASKS["copy"].sample([3, 0], generator=seeded())
    with pytest.raises(UserError, match="2 sizes n were given for a batch of 3"):
        TASKS["copy"].sample([3, 4], 3)
    with pytest.raises(UserError, match="did you mean 'copy'"):
        TASKS["coppy"]
    with pytest.raises(UserError, match="needs the tokens of the instance"):
        TASKS["sort"].circuit(4)
    with pytest.raises(UserError, match="cannot tell their size"):
        TASKS["copy"].scale_of(torch.zeros(1, 4, dtype=torch.long))
    assert TASKS.get("coppy") is None


def test_published_position_coupling() -> None:
    """653 + 049 in the published layout has ids s+3 s+2 s+1 s s+3 s+2 s+1 s s+1 … s+4; ours is reversed."""
    begin, *ids = TASKS["addition"].coupling(3).tolist()
    assert ids[:4][:3][::-1] + ids[3:4] + ids[4:7][::-1] + ids[7:12] == [3, 2, 1, 0, 3, 2, 1, 0, 1, 2, 3, 4]
    assert begin == 0


@pytest.mark.parametrize("name", [name for name in FAMILIES["position-addressed"] if TASKS[name].one_number])
def test_coupled_positions_hold_equal_symbols_or_columns(name: str) -> None:
    """Every task that copies couples an answer token to a symbol equal to it."""
    task = TASKS[name]
    ids = task.coupling(6)
    assert len(ids) == task.length(6)
    if name in ("copy", "reverse", "shift", "duplicate"):
        tokens = task.sample(6, 1, seeded()).tokens[0]
        for place in range(task.prompt_length(6), task.length(6) - 1):
            partner = int((ids[: task.prompt_length(6)] == ids[place]).nonzero()[0])
            assert tokens[partner] == tokens[place]


def test_options_of_a_task() -> None:
    shift = Shift(by=2)
    words = shift.words(shift.sample(5, 1, seeded()).tokens[0])
    assert words[7:12] == words[3:6] + words[1:3]
    assert shift.circuit(5).run(words[:7]) == words[7:]


def test_circuits_refuse_to_read_the_future() -> None:
    copy = Operator("copy", 1, str)
    with pytest.raises(UserError, match="reads outside"):
        Circuit.of(copy, [3], [4])
    with pytest.raises(UserError, match="takes 1 sources, not 2"):
        Circuit.of(copy, [3], [1], [2])


@EVERY_TASK
def test_device_is_followed(name: str) -> None:
    """Every tensor is made on the device that is asked for (meta refuses to mix with the CPU)."""
    batch = TASKS[name].sample(5, 3, device="meta")
    assert isinstance(batch, Batch)
    assert {batch.tokens.device.type, batch.answer_mask.device.type, batch.scale.device.type} == {"meta"}


@pytest.mark.parametrize("name", [*FAMILIES["position-addressed"], *FAMILIES["growing"]])
def test_large_scales(name: str) -> None:
    task = TASKS[name]
    words = task.words(task.sample(300, 1, seeded()).tokens[0])
    assert [*MEANING[name](words), END] == words[task.prompt_length(300) :]
