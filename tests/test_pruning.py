"""Pruning to what answers in range need: what stays, what it does to SRC, and to inputs that are longer."""

import pytest
import torch

from lengthlens.analyses.interventions import pruning
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import MissingError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.schemes import Sizes, make_scheme
from lengthlens.models.schemes.relation import LevelledTable
from lengthlens.probes.lrc import measured_lrc
from lengthlens.probes.network import exact_by_scale, prune
from lengthlens.probes.src import measured_src
from lengthlens.probes.table import probe_model
from lengthlens.tasks import TASKS
from lengthlens.tests.synthetic import synthetic_study

COPY = TASKS["copy"]
SIZES = Sizes(n_layers=2, n_heads=3, d_model=12, d_head=4, n_ctx=64)


@pytest.mark.parametrize("name", ["relative", "t5", "hinted:relative", "hinted:t5"])
def test_tables_are_all_that_the_scheme_adds_to_a_score(name):
    scheme = make_scheme(name, {"max_distance": 20} if "t5" in name else {"max_distance": 3}, COPY, SIZES)
    scheme.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for table in scheme.tables():
        table.values.copy_(torch.randn(table.values.shape, generator=generator))
    n, position = 5, torch.arange(12)
    positions = scheme.positions(torch.zeros(1, 12, dtype=torch.long), torch.tensor([n]))
    q = torch.zeros(1, 12, SIZES.n_heads, SIZES.d_head)
    codes = scheme.phi(position[:, None], position, torch.tensor(n))
    below = torch.ones(12, 12).tril().bool()
    for layer in range(SIZES.n_layers):
        added = scheme.score(layer, positions, slice(0, 12), q, q)[0]
        from_tables = torch.zeros_like(added)
        for k, table in enumerate(scheme.tables()):
            values = table.values if table.values.ndim == 2 else table.values[layer]
            from_tables += values[:, (codes[..., k] - table.first).clamp(min=0)]
        assert torch.allclose(added[:, below], from_tables[:, below], atol=1e-6)


def with_leftovers(far: float):
    """A copier by hand: the key with i−j−n = 0 has a score of 30; beside it, small biases for i−j, and one far out."""
    model = copy_by_hand("hinted:relative", 12)
    plain = model.pos_embed.inner.table
    with torch.no_grad():
        plain += 0.3 * torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
        plain[..., 12] = far
    return model


def test_what_no_answer_needs_goes_and_codes_become_few():
    model = with_leftovers(0.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    subject, relation = prune(model, COPY, 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "min(i−j, max_distance): none; clip(i−j−n, ±max_distance): 0" in relation.words
    assert list(measured_src(model, COPY, 4).curve.values()) == [1, 2, 3, 4]
    assert list(measured_src(subject, COPY, 4, relation=relation).curve.values()) == [1, 1, 1, 1]
    assert list(measured_lrc(subject, COPY, 4, relation=relation).curve.values()) == [1, 1, 1, 1]


def test_what_harms_only_beyond_the_range_goes_with_it():
    # From n = 12 on the key to read has i−j = 12 or more, and loses 40: more than the 30 it has. Up to n = 4 none has.
    model = with_leftovers(-40.0)
    subject, _ = prune(model, COPY, 4)
    assert exact_by_scale(model, COPY, [4])[4] == exact_by_scale(subject, COPY, [4])[4] == 1
    assert exact_by_scale(model, COPY, [20])[20] < 0.01
    assert exact_by_scale(subject, COPY, [20])[20] == 1


def test_entries_that_are_needed_stay_and_those_alike_share_a_code():
    scheme = make_scheme("relative", {"max_distance": 5}, COPY, SIZES).requires_grad_(False)
    scheme.table[...] = torch.tensor([0.0, 0.1, 9.0, 0.2, -7.0, 0.1])
    levelled = LevelledTable(scheme.tables()[0])
    levelled.where(levelled.distance <= 1.0)
    assert levelled.in_words() == "min(i−j, max_distance): 2 4"
    codes = levelled.codes(torch.arange(-1, 6), levelled.level[0, 0])
    assert codes.tolist() == [-1, 6, 6, 2, 6, 4, 6]  # keys after the query keep a code of their own
    assert scheme.table[1, 2].tolist() == pytest.approx([0.1, 0.1, 9.0, 0.1, -7.0, 0.1])


def test_there_is_nothing_to_prune_without_tables_and_the_table_says_so():
    model = copy_by_hand("ideal")
    assert prune(model, COPY, 4) is None
    rows = probe_model(model, COPY, 4, ["pruned"])
    said = rows[rows["measure"] == "pruned"]
    assert said["value"].isna().all() and said["reason"].str.startswith("nothing to prune").all()


def test_rows_of_a_pruned_copy():
    rows = probe_model(with_leftovers(-40.0), COPY, 4, ["pruned"])
    exact = rows[rows["measure"] == "pruned_exact_match"].set_index("scale")["value"]
    assert exact.to_dict() == {8: 1.0, 40: 1.0}
    assert rows[rows["measure"] == "pruned"]["value"].tolist() == [0.0]
    assert rows[rows["measure"] == "pruned_src"]["value"].tolist() == [1, 1, 1, 1]


def test_the_finding_counts_failed_runs_by_what_pruning_made_of_them():
    table = synthetic_study(tasks=["copy", "parity-cot"], schemes=["hinted:relative/max_distance=12", "relative"])
    found = pruning(Study(table))
    flattened, growing = found.failed()
    assert set(flattened["label"]) == {"hinted:relative/max_distance=12"}
    assert set(growing["label"]) == {"relative"}
    assert (flattened["exact_2_after"] == 1).all()
    failed = len(flattened)
    assert f"of {failed} runs that had failed at 2 × the training range and whose SRC became flat" in found.sentence
    assert f", {failed} (1.00 [" in found.sentence and ", 0 (0.00 [" in found.sentence


def test_runs_whose_codes_are_those_of_the_pruned_copy_are_left_out():
    table = synthetic_study(tasks=["copy"], schemes=["relative"], seeds=1)
    same = table.assign(
        relation=table["relation"].mask(table["measure"].isin(["src", "pruned"]), "forms that are left")
    )
    assert len(pruning(Study(table)).runs) == 1
    with pytest.raises(MissingError, match="than its pruned copy"):
        pruning(Study(same))


def test_a_study_that_was_not_pruned_says_so():
    table = synthetic_study(tasks=["copy"], schemes=["rope"], seeds=1)
    with pytest.raises(MissingError, match="no run in the table was pruned"):
        pruning(Study(table))


def test_a_task_that_ends_before_the_copy_would_be_tried_is_probed_all_the_same(monkeypatch):
    monkeypatch.setattr(type(COPY), "max_scale", 10)
    rows = probe_model(with_leftovers(0.0), COPY, 4, ["pruned"])
    assert rows.loc[rows["measure"] == "pruned_exact_match", "scale"].tolist() == [8]
