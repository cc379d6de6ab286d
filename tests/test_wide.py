"""The wide family of forms: what it holds, how it is thinned out in training, and the tasks that it is tried on."""

import numpy as np
import pytest
import torch

from lengthlens.models.schemes import Sizes, make_scheme
from lengthlens.models.schemes.lbpe import NEGLIGIBLE, PRICE, LearnedRelation, places_of
from lengthlens.models.schemes.relation import Form, key_with, wide_forms
from lengthlens.runs.config import RunConfig
from lengthlens.runs.trainer import Trainer
from lengthlens.tasks import TASKS
from lengthlens.tasks.contract import check_task
from lengthlens.tests.parameters import NINE
from lengthlens.theory.verdict import verdict

SIZES = Sizes(n_layers=2, n_heads=2, d_head=4, d_model=8, n_ctx=64)


@pytest.fixture(autouse=True)
def unforeseen() -> None:
    """The further tasks are known while a test of this file runs."""
    from lengthlens.examples.learned_relations import unforeseen as module
    from lengthlens.plugins.registry import register

    for each in (*module.BY_HAND, *map(module.DrawnTask, (0, 1, 3, 5))):
        register(each)


def wide(task: str = "copy", **options: object) -> LearnedRelation:
    scheme = make_scheme("lbpe", {"forms": "wide", **options}, TASKS[task], SIZES)
    assert isinstance(scheme, LearnedRelation)
    with torch.no_grad():
        scheme.bias.normal_(generator=torch.Generator().manual_seed(0))
    return scheme


def place(scheme: LearnedRelation, form: Form, value: int) -> int:
    return scheme.forms.index(form) * (2 * scheme.options.window + 1) + value + scheme.options.window


def test_the_family_is_every_small_form_once() -> None:
    """Two forms mark the same keys only if one is a multiple of the other."""
    factors = np.array(wide_forms())[:, :3]
    assert len(factors) == 75 and set(np.abs(factors).max(0)) == {2, 4}
    for a in range(-2, 3):
        for b in (-2, -1, 1, 2):
            for c in range(-4, 5):
                same = (np.cross(factors, [a, b, c]) == 0).all(1)  # a multiple of it
                assert same.sum() == 1, (a, b, c)


def test_named_keys_are_those_of_the_scores_and_lines_are_only_of_whole_forms() -> None:
    scheme = wide()
    scheme.alive.fill_(False)
    half, back = Form(1, -2, 0), Form(1, -1, -1)
    scheme.alive.flatten(2)[0, 0, [place(scheme, half, 0), place(scheme, back, 1)]] = True
    named = scheme.named_keys(torch.tensor([8, 9]), 4)
    assert sorted(named.key[0].tolist()) == [3, 4] and sorted(named.key[1].tolist()) == [-1, 4]
    layout = TASKS["copy"].layout()
    assert scheme.named_lines(layout) is None
    scheme.alive.flatten(2)[0, 0, place(scheme, half, 0)] = False
    (line,) = scheme.named_lines(layout) or []
    assert line.at(9, 4) == key_with(back, 1, 9, 4)


def test_condensing_keeps_what_is_needed_and_nothing_else() -> None:
    scheme = wide(other="one")
    needed = [place(scheme, Form(1, -1, -1), 0), place(scheme, Form(2, -1, -4), 1), place(scheme, Form(1, -2, 0), -1)]
    with torch.no_grad():
        scheme.bias.flatten(2)[:, :, needed] = 2 * NEGLIGIBLE  # weaker than most
    asked = []

    def unchanged() -> bool:
        asked.append(scheme.trying)
        return bool(scheme.alive.flatten(2)[:, :, needed].all())

    scheme.condense(unchanged)
    assert places_of(scheme.alive).tolist() == sorted(needed)
    assert not scheme.trying and all(asked), "others weigh each while it is tried, and as one afterwards"
    assert len(asked) < 80, "not one by one"


def test_only_the_wide_family_has_a_price_and_condenses() -> None:
    scheme, listed = wide(), make_scheme(NINE, {}, TASKS["copy"], SIZES)
    price = scheme.penalty()
    torch.testing.assert_close(price, PRICE * scheme.bias.abs().sum())
    listed.condense(lambda: pytest.fail("nothing to ask for"))
    assert listed.penalty() is None


def test_training_condenses_once_where_the_rate_begins_to_fall_and_resumes_as_if_nothing_had_happened() -> None:
    tiny = {"steps": 8, "check_every": 2, "train_max": 2, "batch": 2, "d_model": 8, "n_heads": 2, "warmup": 0}
    config = RunConfig("copy", "lbpe", {"forms": "wide", "other": "one"}, score_scaling="none", **tiny)
    whole, other = Trainer(config), Trainer(config)
    used = []
    while not whole.done:
        whole.advance()
        places = places_of(whole.model.pos_embed.alive)
        used.append(525 if places is None else len(places))
        if whole.step == 4:
            assert whole.condensed
            tensors, facts = whole.state()
            other.load({name: tensor.clone() for name, tensor in tensors.items()}, facts)
    assert used[0] == 525 and used[1] == used[2] == used[3] < 525, used
    while not other.done:
        other.advance()
    for one, two in zip(whole.model.state_dict().values(), other.model.state_dict().values()):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("name", "scheme", "answer"),
    [
        ("palindrome-completion", "lbpe", "possible"),
        ("first-difference", "lbpe", "possible"),
        ("addition-base-7", "lbpe", "possible"),
        ("every-second", "lbpe/forms=wide", "possible"),
        ("every-second", NINE, "impossible"),
        ("interleave", "lbpe/forms=wide", "possible"),
        *((f"drawn-{seed}", "lbpe/forms=wide", "possible") for seed in (0, 1, 3, 5)),
    ],
)
def test_what_a_family_of_forms_holds(name: str, scheme: str, answer: str) -> None:
    assert check_task(TASKS[name]) == []
    largest = 8 if name.startswith("drawn") else 6
    assert verdict(TASKS[name], scheme, largest, 2 * largest, helps=False).verdict == answer
