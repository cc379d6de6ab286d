"""What was made quick gives what the slow way gave: logits at some queries, covers, counts."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes import scheme_names
from lengthlens.models.schemes.spec import scheme_for
from lengthlens.models.transformer import build
from lengthlens.probes.lrc import MeasuredLrc
from lengthlens.probes.network import Network
from lengthlens.probes.table import plain_rows, probe_model
from lengthlens.probes.transfer import cover_number
from lengthlens.tasks import TASKS

NUMBERS = Path(__file__).parent / "fixtures" / "probe_numbers.json"  # of commit 5a1f19e, before probes were made quick


@pytest.mark.parametrize("scheme", scheme_names())
def test_logits_at_some_queries_are_those_of_the_whole_sequence(scheme):
    task = TASKS["addition"]
    if scheme_for(task, scheme, {})[0] is None:
        pytest.skip("the scheme refuses the task")
    model = build(ModelConfig(task="addition", scheme=scheme, d_model=16, n_heads=2, score_scaling="log")).eval()
    tokens = task.sample(3, 5, torch.Generator().manual_seed(0)).tokens
    with torch.no_grad():
        whole = model(tokens, 3)
        torch.testing.assert_close(model(tokens, 3, queries=slice(4, 9)), whole[:, 4:9], rtol=1e-4, atol=1e-5)
    subject, query = Network(model), torch.tensor([9, 4, 4, 12, 9])
    torch.testing.assert_close(subject.logits(tokens, 3, slice(4, 9)), whole[:, 4:9], rtol=1e-4, atol=1e-5)
    assert subject.next_tokens(tokens, 3, query).equal(whole[torch.arange(5), query].argmax(-1))


def networks():
    yield "copy by hand, hinted:relative", copy_by_hand("hinted:relative", 12)
    yield "copy by hand, lbpe", copy_by_hand("lbpe")
    small = {"d_model": 16, "n_heads": 2, "initializer_range": 0.7, "seed": 1}
    for task, scheme in (("parity-cot", "hinted:relative"), ("addition", "rpe-square"), ("copy", "randomized:rope")):
        yield f"{task}, {scheme}", build(ModelConfig(task=task, scheme=scheme, **small))


@pytest.mark.slow
def test_probes_give_the_numbers_that_they_gave_before_they_were_quick():
    columns, expected = (found := json.loads(NUMBERS.read_text()))["columns"], found["rows"]
    probes = ["lrc", "src", "transfer", "pruned", "relation", "interchange", "marks"]
    for name, model in networks():
        table = probe_model(model, train_max=4, measures=probes, beyond=[6])
        rows = [[row[column] for column in columns] for row in plain_rows(table)]
        assert len(rows) == len(expected[name])
        for row, before in zip(rows, expected[name]):
            numbers = [isinstance(cell, float) for cell in before]
            assert [c for c, n in zip(row, numbers) if not n] == [c for c, n in zip(before, numbers) if not n]
            for cell, known, number in zip(row, before, numbers):
                # A readout's fit ends where it is told to, so that rounding shows in its accuracy: one instance of 128.
                near = 0.01 if row[0] == "transfer" else 1e-5
                assert not number or cell == pytest.approx(known, abs=near), (name, row, before)


def test_cover_numbers_are_the_least_by_trying_all():
    rng = np.random.default_rng(0)
    for _ in range(200):
        decodes = rng.random((rng.integers(1, 7), rng.integers(1, 9))) < rng.uniform(0.1, 0.7)
        possible = decodes[:, decodes.any(0)]
        nothing = np.zeros(possible.shape[1], dtype=bool)
        chosen = (some for k in range(len(decodes) + 1) for some in itertools.combinations(possible, k))
        sizes = (len(some) for some in chosen if np.any([*some, nothing], axis=0).all())
        assert cover_number(decodes) == next(sizes) + int((~decodes.any(0)).sum())


def fewest_points(low, high):
    """The least number of points such that every interval [low, high] holds one: all sets of ends are tried."""
    sets = (points for size in range(len(high) + 1) for points in itertools.combinations(high, size))
    return len(next(s for s in sets if all(any(a <= p <= b for p in s) for a, b in zip(low, high))))


def test_lrc_counts_are_the_fewest_points_code_by_code():
    rng = np.random.default_rng(1)
    size, scales = 300, range(1, 6)
    weights = pd.DataFrame(
        {
            **{name: rng.integers(0, high, size) for name, high in (("layer", 2), ("head", 2), ("code", 6))},
            "scale": rng.integers(1, 6, size),
            "weight": rng.normal(size=size),
            "leverage": rng.uniform(0, 9, size),
            "unexplained": rng.uniform(0, 0.3, size),
        }
    )
    cells = itertools.product((0, 1), (0, 1), scales)
    found = MeasuredLrc(weights, pd.DataFrame(cells, columns=["layer", "head", "scale"]).assign(value=1.0), "")
    reach = np.sqrt((0.25 + weights["unexplained"]) / weights["leverage"])
    low, high = weights["weight"] - reach, weights["weight"] + reach
    for layer, head, scale, count in found.counts(0.5).itertuples(index=False):
        mine = (weights["layer"] == layer) & (weights["head"] == head) & (weights["scale"] <= scale)
        mine &= (low > 0) | (high < 0)
        parts = weights[mine].groupby("code").indices.values()
        assert count == sum(fewest_points(low[mine].to_numpy()[k], high[mine].to_numpy()[k]) for k in parts)
