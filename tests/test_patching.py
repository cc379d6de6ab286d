"""Minimal pairs, patching by role and across lengths, ablation: each finds the mechanism of a network built by hand."""

import pandas as pd
import pytest
import torch

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.inside.patching import attribution_patching
from lengthlens.models.by_hand import copy_by_content, copy_by_hand, induction_by_hand
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.network import label
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import trained


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.declares_circuit])
def test_minimal_pairs_are_instances_that_differ_in_one_slot(name: str) -> None:
    task = TASKS[name]
    scale, step = max(task.min_scale, 5), 1 if task.answer_length(5) > 2 else 0
    example = task.words(task.sample(scale, 1, torch.Generator().manual_seed(0)).tokens[0])
    circuit = task.circuit(scale, example)
    slot = circuit.functions[list(circuit)[step].operator].slots[0]
    clean, other = task.minimal_pair(scale, step, slot, rows=4)
    assert len(clean) == len(other) > 0
    for one, two in zip(clean.tokens, other.tokens):
        for tokens in (one, two):
            assert task.render(task.parse(task.render(tokens)).tokens[0]) == task.render(tokens)  # it is an instance
        steps = [list(task.circuit(scale, task.words(tokens)))[step] for tokens in (one, two)]
        read = [[task.words(tokens)[s] for s in each.sources] for tokens, each in zip((one, two), steps)]
        names = circuit.functions[steps[0].operator].slots
        assert {n for n, a, b in zip(names, *read) if a != b} == {slot}
        query = steps[0].query
        assert one[query + 1] != two[query + 1]


COPIERS = {name: copy_by_hand(name) for name in ("lbpe", "ideal", "hinted:relative")}


@pytest.mark.parametrize(
    ("model", "scale", "onto"),
    [(model, *sizes) for model in COPIERS.values() for sizes in ((4, None), (3, 9), (9, 3))]
    + [(copy_by_content(), 5, None)],
)
def test_a_copier_is_recognised(model: HookedModel, scale: int, onto: int | None) -> None:
    """Its one head carries the token to the query; before it the token is at its source, after it nowhere else."""
    table = ll.patch_by_role(model, scale=scale, onto=onto, pairs=6)
    effect = table.set_index(["component", "place"])["effect"].round(4).to_dict()
    expected = {("head", "query"): 1, ("attention", "query"): 1, ("residual", "token"): 1, ("residual", "query"): 0}
    assert effect == expected and set(table["role"]) == {"token"}


def test_an_induction_head_is_recognised() -> None:
    """L1H0 carries the token to the query, and no other head; up to layer 1 it is at its source."""
    model = induction_by_hand()
    table = ll.patch_by_role(model, scale=6, pairs=8)
    of_head = table[table["component"] == "head"]
    effects = {label((row.layer, row.head)): round(row.effect, 4) for row in of_head.itertuples()}
    assert effects == {"L0H0": 0, "L0H1": 0, "L1H0": 1, "L1H1": 0}
    stream = table[table["component"] == "residual"].set_index(["layer", "place"])["effect"].round(4).to_dict()
    assert stream == {(0, "query"): 0, (1, "query"): 0, (0, "token"): 1, (1, "token"): 1}
    estimated = attribution_patching(model, scale=6, pairs=8)["effect"]
    assert (of_head["effect"].to_numpy() - estimated).abs().max() < 1e-4


def test_each_role_of_a_step_is_told_apart() -> None:
    """Running parity under the ideal relation: the symbol comes from its key, the value so far from the query."""
    table = ll.patch_by_role(trained("parity-cot_ideal"), scale=4, onto=8, pairs=8, components=["residual"])
    first = table[(table["component"] == "residual") & (table["layer"] == 0)].set_index(["role", "place"])["effect"]
    assert first["symbol", "symbol"] > 0.95 and first["so_far", "query"] > 0.95
    assert abs(first["symbol", "query"]) < 0.05 and abs(first["so_far", "symbol"]) < 0.05


def test_estimates_from_gradients_rank_heads_as_patching_does() -> None:
    model, how = trained("copy_lbpe"), {"scale": 4, "onto": 8, "pairs": 12}
    table = ll.patch_by_role(model, **how, components=["head", "residual"])
    keys = ["role", "layer", "head"]
    exact = table[table["component"] == "head"].set_index(keys)["effect"]
    both = pd.DataFrame({"exact": exact, "estimated": attribution_patching(model, **how).set_index(keys)["effect"]})
    for _, part in both.groupby("role"):
        assert part["exact"].corr(part["estimated"]) > 0.8 and part["exact"].idxmax() == part["estimated"].idxmax()
    # Everything before the first layer, at every place that differs, is the clean run itself.
    assert (table[(table["layer"] == 0) & (table["place"] == "token")]["flips"] == 1).all()


def test_ablation_names_the_heads_that_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = induction_by_hand()
    for how, needed in (("zero", {"L0H0", "L0H1", "L1H0"}), ("mean", {"L0H0", "L1H0"}), ("resample", {"L0H0", "L1H0"})):
        table = ll.ablate(model, scales=[6], how=how, rows=32)
        hurt = {label((row.layer, row.head)) for row in table.itertuples() if row.layer >= 0 and row.exact_match < 1}
        assert hurt == needed, how
        assert set(map(label, ll.least_heads(model, scale=6, how=how, rows=32).heads)) == needed
    monkeypatch.setattr("lengthlens.inside.ablation.EXHAUSTIVE", 2)  # heads of many are taken away one by one
    least = ll.least_heads(model, scale=6, how="zero", rows=32)
    assert not least.exhaustive and set(map(label, least.heads)) == {"L0H0", "L0H1", "L1H0"}
    assert "no one of them can go" in str(least)


def test_ablation_by_relation_finds_what_each_head_reads() -> None:
    table = ll.ablate(
        induction_by_hand(), scales=[6], relations=["i-j-1", "i-j-2", "i-j-3"], heads=["L0H0", "L0H1"], rows=16
    )
    single = table[table["layer"] >= 0]
    hurt = {(row.relation, row.head) for row in single.itertuples() if row.exact_match < 1}
    assert hurt == {("i-j-1", 0), ("i-j-2", 1)}
    copier = ll.ablate(copy_by_hand("lbpe"), scales=[6, 9], relations=["token", "i-j-n", "i-j-1"], rows=16)
    left = copier.groupby("relation")["exact_match"].max().to_dict()
    assert left == {"token": 0, "i-j-n": 0, "i-j-1": 1}


def test_what_does_not_exist_is_answered_with_the_nearest() -> None:
    model = induction_by_hand()
    copy, parity = TASKS["copy"], TASKS["parity-cot"]
    for call, message in (
        (lambda: copy.minimal_pair(3, 9), "no step 9 at n = 3: the steps are 0 to 3"),
        (lambda: parity.minimal_pair(3, 1, "symbl"), "no slot 'symbl'"),
        (lambda: parity.minimal_pair(3, 0, "so_far"), "differ in step 0 in slot 'so_far' alone"),
        (lambda: ll.ablate(model, scales=[6], how="men"), "way to ablate 'men': did you mean 'mean'"),
        (lambda: ll.ablate(model, scales=[6], heads=["L0H7"]), "unknown head 'L0H7'"),
        (lambda: ll.ablate(model, scales=[6], relations=["tokn"]), "role or form 'tokn': did you mean 'token'"),
        (lambda: ll.ablate(model, scales=[-2]), "the nearest is n = "),
        (lambda: ll.patch_by_role(model, scale=6, roles=["tokens"]), "role 'tokens': did you mean 'token'"),
        (lambda: ll.patch_by_role(model, scale=6, components=["haed"]), "component 'haed': did you mean 'head'"),
        (lambda: ll.patch_by_role(model, scale=6, onto=9), "its steps have no counterparts"),
        (lambda: ll.patch_by_role(lambda tokens: tokens, copy), "no hooks"),
        (lambda: ll.least_heads(model, scale=6, keep=1.5), "less than the 1.5 to keep"),
    ):
        with pytest.raises(UserError, match=message):
            call()
