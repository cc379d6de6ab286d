"""Schemes whose relation is derived or learned: ``ideal`` from the circuit, ``lbpe`` over linear forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthlens.errors import UserError
from lengthlens.models.schemes import Sizes, make_scheme
from lengthlens.models.schemes.ideal import OTHER, Ideal
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.models.schemes.relation import NOWHERE, Form, marked_keys, read_form
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import NINE

SIZES = Sizes(n_layers=2, n_heads=3, d_head=8, d_model=24, n_ctx=64)
ADDRESSED = [name for name, task in TASKS.items() if task.family == "position-addressed" and task.one_number]
ADDRESSED.remove("n-back")  # which has no size 1
GROWING = [name for name, task in TASKS.items() if task.family == "growing" and task.one_number]


def filled(name: str, task: str, **options: object) -> LearnedRelation | Ideal:
    """A scheme with random parameters."""
    torch.manual_seed(0)
    scheme = make_scheme(name, options, TASKS[task], SIZES).eval()
    for parameter in scheme.parameters():
        parameter.data.normal_()
    return scheme.requires_grad_(False)


def bias_of(scheme, length: int, scale: int, layer: int = 1) -> torch.Tensor:
    """[head, query, key], zero above the diagonal."""
    positions = scheme.positions(torch.zeros(1, length, dtype=torch.long), torch.tensor([scale]))
    q = torch.zeros(1, length, SIZES.n_heads, SIZES.d_head)
    return scheme.score(layer, positions, slice(0, length), q, q)[0].tril()


@pytest.mark.parametrize("name", ["ideal", "lbpe", "lbpe-marks"])
def test_only_keys_that_a_relation_lists_have_another_code_than_its_background(name: str) -> None:
    scheme, n = filled(name, "addition"), 4
    query = np.arange(TASKS["addition"].length(n))
    for relation in [*list(scheme.candidates().values())[::7], scheme.relation()]:
        if relation.listed is not None:
            row, key = np.nonzero((relation.table(query, query, n) != relation.background).any(-1))
            listed = relation.listed(query, np.full_like(query, n))
            assert all(k in listed[i] for i, k in zip(row, key) if k <= i)


# -- ideal -----------------------------------------------------------------------------------------------------------


def roles_of(task: str, scale: int) -> dict[tuple[int, int], tuple[str, tuple[int, ...]]]:
    """For each pair that the circuit reads, the operator and all slots that the key fills: a plain loop."""
    roles: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}
    for step in TASKS[task].circuit(scale):
        for source in set(step.sources):
            slots = tuple(k for k, other in enumerate(step.sources) if other == source)
            roles[step.query, source] = (step.operator, slots)
    return roles


@pytest.mark.parametrize("task", ADDRESSED + GROWING)
def test_ideal_codes_are_the_roles_of_the_circuit(task):
    scheme = make_scheme("ideal", None, TASKS[task], SIZES)
    seen: dict[int, object] = {OTHER: None}
    for scale in (1, 2, 5, 30):
        roles, length = roles_of(task, scale), TASKS[task].length(scale)
        query, key = torch.tril_indices(length, length)
        codes = scheme.phi(query, key, torch.tensor(scale))[:, 0].tolist()
        for i, j, code in zip(query.tolist(), key.tolist(), codes):
            # One code, one role, whatever the scale.
            assert seen.setdefault(code, roles.get((i, j))) == roles.get((i, j))
    assert len(set(seen.values())) == len(seen)
    listed = {role for scale in range(1, 21) for role in roles_of(task, scale).values()}
    assert scheme.table.shape[-1] == len(listed)  # a row for each role that occurs, none for others


@pytest.mark.parametrize("task", ADDRESSED)
def test_ideal_bias_is_the_table_at_the_code(task):
    scheme = filled("ideal", task)
    for scale in (1, 3, 9):
        length = TASKS[task].length(scale)
        position = torch.arange(length)
        codes = scheme.phi(position[:, None], position, torch.tensor(scale))[..., 0]
        table = torch.cat([torch.zeros(SIZES.n_heads, 1), scheme.table[1]], 1)  # nothing for OTHER
        assert torch.equal(bias_of(scheme, length, scale), table[:, codes])


def test_ideal_tells_new_operators_apart_beyond_its_table():
    small = filled("ideal", "parity", table_scale=4)
    other = filled("ideal", "parity", table_scale=2)
    length = TASKS["parity"].length(9)
    pair = torch.tensor(10), torch.arange(1, 10), torch.tensor(9)
    codes = small.phi(*pair)[:, 0]
    assert len(codes.unique()) == 9 and int(codes.min()) > small.table.shape[-1]
    assert torch.equal(codes, other.phi(*pair)[:, 0])
    assert not bias_of(small, length, 9)[:, 10].any()
    assert small.describe((int(codes[2]),)) == "slot 3 of 'sum of 9 mod 2'"


def test_ideal_marks_a_key_that_is_read_twice():
    scheme = make_scheme("ideal", None, TASKS["multiplication-by-digit"])
    code = scheme.phi(torch.tensor(6), torch.tensor(3), torch.tensor(1))
    assert scheme.describe(tuple(code.tolist())) == "slot 'x' and 'digit' of 'multiply digit'"


def test_ideal_cuts_what_lies_beyond_the_tokens():
    scheme = filled("ideal", "copy")
    assert torch.equal(bias_of(scheme, 8, 5), bias_of(scheme, 12, 5)[:, :8, :8])
    assert torch.equal(bias_of(scheme, 20, 5)[:, :12, :12], bias_of(scheme, 12, 5))


@pytest.mark.parametrize("name", ["ideal", NINE, "hinted:relative"])
def test_twenty_thousand_tokens_block_by_block(name):
    """The last block of a long sequence: what is kept for other layers does not grow with the number of keys."""
    scheme = make_scheme(name, None, TASKS["copy"], SIZES).requires_grad_(False)
    length, block = 20_003, 16
    positions = scheme.positions(torch.zeros(1, length, dtype=torch.long), torch.tensor([10_000]))
    q = torch.zeros(1, block, SIZES.n_heads, SIZES.d_head)
    k = torch.zeros(1, 1, SIZES.n_heads, SIZES.d_head).expand(1, length, -1, -1)
    rows = slice(length - block, length)
    bias = scheme.score(1, positions, rows, q, k)
    assert bias.shape == (1, SIZES.n_heads, block, length)
    made = (each if isinstance(each, tuple) else (each,) for each in positions.made.values() if each is not None)
    kept = sum(x.nbytes for each in made for x in each)
    assert kept < 64 * 9 * 7 * block + 8 * length  # a few numbers for each query, form and value, one for each key


# -- linear forms ----------------------------------------------------------------------------------------------------

forms = st.builds(Form, st.integers(-2, 2), st.sampled_from([-2, -1, 1, 2]), st.integers(-3, 3), st.integers(-4, 4))


@given(forms)
def test_forms_are_read_as_they_are_written(form):
    assert read_form(str(form)) == form


@pytest.mark.parametrize("text", ["", "i", "3j", "i-j-", "i--j", "k-j", "i j", "i-j;n", "j^2", "i-j+n*2"])
def test_what_is_no_form_is_refused(text):
    with pytest.raises(UserError):
        read_form(text)


@given(form=forms, i=st.integers(0, 40), n=st.integers(1, 20), window=st.integers(0, 4))
def test_marked_keys_are_where_the_form_has_the_value(form, i, n, window):
    keys = marked_keys([form], window, torch.tensor([i]), torch.tensor([n]))[0, 0, 0]
    for value, key in zip(range(-window, window + 1), keys.tolist(), strict=True):
        without = form.query * i + form.scale * n + form.constant
        assert without + form.key * key == value if (value - without) % form.key == 0 else key == NOWHERE


@pytest.mark.parametrize("task", ADDRESSED)
def test_nine_forms_hold_every_source_and_one_form_and_value_says_where_a_slot_is(task):
    """At all scales and steps; rotating and doubling need one per part of the answer."""
    scheme = make_scheme(NINE, None, TASKS[task])
    for slot in range(TASKS[task].circuit(9).sources.shape[1]):
        within = []  # for each step, the forms that have a value in the window there, and the value
        for scale in (1, 2, 3, 8, 40):
            circuit = TASKS[task].circuit(scale)
            query, source = torch.from_numpy(circuit.query), torch.from_numpy(circuit.sources[:, slot])
            for code in scheme.phi(query, source, torch.tensor(scale)).tolist():
                within.append({(f, v) for f, v in enumerate(code) if v <= scheme.options.window})
        assert all(within)
        assert set.intersection(*within) or task in ("shift", "duplicate")


# -- learned relations -----------------------------------------------------------------------------------------------


def loop_bias(scheme: LearnedRelation, length: int, n: int, layer: int = 1) -> torch.Tensor:
    """The sum over forms of gate times bias, times the number of forms, pair by pair."""
    gates = torch.ones(SIZES.n_heads, len(scheme.forms))
    if scheme.gate_logits is not None:  # which the wide family has not
        gates = len(scheme.forms) * (scheme.gate_logits[layer] / scheme.temperature).softmax(-1)
    bias, window = torch.zeros(SIZES.n_heads, length, length), scheme.options.window
    for i in range(length):
        for j in range(i + 1):
            for f, (a, b, c, d) in enumerate(scheme.forms):
                u = a * i + b * j + c * n + d
                if abs(u) <= window:
                    alive = scheme.alive[layer, :, f, u + window]
                    bias[:, i, j] += gates[:, f] * scheme.bias[layer, :, f, u + window] * alive
    return bias


@settings(max_examples=15, deadline=None)
@given(
    forms=st.sampled_from(["nine", "2i-j-3n+1, i+j", "wide"]),
    length=st.integers(1, 16),
    scale=st.integers(1, 12),
    window=st.integers(0, 4),
    temperature=st.floats(0.2, 2),
)
def test_lbpe_is_the_sum_over_forms(forms, length, scale, window, temperature):
    scheme = filled("lbpe", "copy", forms=forms, window=window, other="each")
    scheme.temperature.fill_(temperature)
    scheme.alive.copy_(torch.rand(scheme.alive.shape) < 0.7)
    torch.testing.assert_close(bias_of(scheme, length, scale), loop_bias(scheme, length, scale), atol=1e-5, rtol=1e-5)


def trained_by_hand(**options: str) -> LearnedRelation:
    """Head 1 of layer 0 reads i−j = n strongly; head 2 avoids j = 1; the rest is noise."""
    chosen = {"forms": "nine", "other": "each", **options}
    scheme = make_scheme("lbpe", chosen, TASKS["copy"], SIZES).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    scheme.bias.copy_(0.1 * torch.randn(scheme.bias.shape, generator=generator) / len(scheme.forms))
    at = {str(form): k for k, form in enumerate(scheme.forms)}
    for head, form, value, bias in ((1, "i−j−n", 0, 8.0), (2, "j", 1, -4.0)):
        scheme.gate_logits[0, head, at[form]] = 6.0
        scheme.bias[0, head, at[form], value + scheme.options.window] = bias / len(scheme.forms)
    return scheme


def test_lbpe_says_what_it_learned():
    scheme = trained_by_hand()
    read, avoided = scheme.entries(0.5)
    assert (read.layer, read.head, read.form.says(read.value)) == (0, 1, "i−j = n") and 7 < read.bias < 8
    assert (avoided.layer, avoided.head, avoided.form.says(avoided.value)) == (0, 2, "j = 1") and -4 < avoided.bias < -3
    assert len(scheme.entries()) == scheme.bias.numel()


def test_pruning_leaves_a_relation_of_what_counts():
    scheme = trained_by_hand()
    everything = scheme.phi(torch.tensor(7), torch.tensor(2), torch.tensor(5))
    assert everything.shape == (len(scheme.forms),)
    before = bias_of(scheme, 13, 5, layer=0)
    scheme.prune_below(0.5)
    assert (bias_of(scheme, 13, 5, layer=0) - before).abs().max() < 0.5
    position = torch.arange(13)
    codes = scheme.phi(position[:, None], position, torch.tensor(5))
    assert codes.shape == (13, 13, 2)
    read, other = tuple(codes[7, 2].tolist()), tuple(codes[7, 3].tolist())
    assert scheme.describe(read) == "i−j = n"
    assert scheme.describe(other) == "no form within its window"
    assert {scheme.describe(tuple(c)) for c in codes.reshape(-1, 2).tolist()} == {
        "i−j = n", "j = 1", "i−j = n and j = 1", "no form within its window",
    }  # fmt: skip
    # Pruned entries stay pruned in a copy that is loaded.
    again = make_scheme(NINE, None, TASKS["copy"], SIZES)
    again.load_state_dict(scheme.state_dict())
    assert torch.equal(again.phi(position[:, None], position, torch.tensor(5)), codes)
    scheme.prune_below(9.0)
    assert scheme.phi(*torch.tensor([7, 2, 5])).tolist() == [0]


def test_all_other_keys_together_weigh_as_one_at_every_length():
    each, one = (trained_by_hand(other=how) for how in ("each", "one"))
    each.prune_below(0.5), one.prune_below(0.5)
    for scale in (5, 9, 40):
        length = 2 * scale + 3
        both = [bias_of(scheme, length, scale, layer=0)[1] for scheme in (each, one)]  # of head 1, which reads i−j = n
        query = scale + 3
        key = query - scale
        strength = float(both[0][query, key])
        alone, shared = (bias[query, : query + 1].softmax(-1)[key] for bias in both)
        assert alone == pytest.approx(1 / (1 + query * math.exp(-strength)), rel=1e-5)
        assert shared == pytest.approx(1 / (1 + 2 * math.exp(-strength)), rel=1e-5)  # the first key, and the others
    # Keys after the query are none of its others, in whatever block it is asked for.
    whole = bias_of(one, 23, 10, layer=0)
    positions = one.positions(torch.zeros(1, 23, dtype=torch.long), torch.tensor([10]))
    part = one.score(0, positions, slice(14, 19), torch.empty(0), torch.empty(0))
    assert torch.equal(part[0].tril(14), whole[:, 14:19, :19])


def test_pruning_goes_as_far_as_something_holds():
    scheme = trained_by_hand()

    def forms() -> int:
        return scheme.phi(*torch.tensor([7, 2, 5])).shape[0]

    assert scheme.prune(lambda: False).words.startswith("surviving forms (|bias| > 0)") and forms() == len(scheme.forms)
    assert "(|bias| > 3)" in scheme.prune(lambda: forms() == 2).words and forms() == 2
    assert scheme.prune(lambda: True).words.endswith("none") and scheme.entries(0.5) == []


def test_annealing_sharpens_the_gates():
    scheme = filled(NINE, "copy", final_temperature=0.05)
    start = scheme.gates()
    for progress, temperature in ((0.0, 1.0), (0.5, 0.05**0.5), (1.0, 0.05), (7.0, 0.05)):
        scheme.anneal(progress)
        assert scheme.temperature.item() == pytest.approx(temperature)
    assert scheme.gates().max(-1).values.mean() > 0.9 > start.max(-1).values.mean()
    assert torch.equal(scheme.gates().argmax(-1), start.argmax(-1))


def test_the_free_relation_is_any_function_of_three_numbers():
    net = scheme = filled("lbpe-mlp", "copy", hidden=7)
    found = bias_of(scheme, 11, 4)
    for i, j in ((0, 0), (10, 3)):
        hidden = torch.tanh(torch.tensor([i, j, 4.0]) / 10 @ net.W_in[1] + net.b_in[1])
        torch.testing.assert_close(found[:, i, j], hidden @ net.W_out[1])
    assert scheme.phi(*torch.tensor([7, 2, 5])).tolist() == [7, 2, 5]
    assert scheme.describe((7, 2, 5)) == "position 2 seen from 7 at scale 5"
    assert scheme.entries() == [] and scheme.prune(lambda: True) is None and scheme.candidates() == {}
    with pytest.raises(UserError, match="variant=mlp is a scheme of its own: 'lbpe-mlp'"):
        make_scheme("lbpe", {"variant": "mlp"}, TASKS["copy"])
    with pytest.raises(UserError, match=r"'variant' of scheme 'lbpe'.*forms"):
        make_scheme("lbpe", {"variant": "frms"}, TASKS["copy"])
