"""What was made quick gives what the slow way gave: logits at some queries, covers, counts, verdicts, the index."""

import itertools
import json
import os
import subprocess
import sys
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
from lengthlens.runs.config import RunConfig
from lengthlens.runs.index import RunIndex, listed_at_once, state_of
from lengthlens.runs.run import Status
from lengthlens.runs.store import RunStore
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import hitting_points

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
        chosen = (some for k in range(len(decodes) + 1) for some in itertools.combinations(possible, k))
        sizes = (len(some) for some in chosen if _all(some, possible))
        assert cover_number(decodes) == next(sizes) + int((~decodes.any(0)).sum())


def _all(some, possible):
    return bool(np.any(np.array([*some, np.zeros(possible.shape[1])]), axis=0).all())


def test_lrc_counts_are_hitting_points_code_by_code():
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
        assert count == sum(hitting_points(low[mine].to_numpy()[k], high[mine].to_numpy()[k]) for k in parts)


# -- what was read of a store is kept, and never believed over the files ---------------------------------------------


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = RunStore(tmp_path / "runs")
    for seed in range(3):
        run = made.create(RunConfig(task="copy", scheme="rope", seed=seed))
        with run.locked():
            run.set_status(Status("diverged", seed))
        old(run.path)
    return made


def old(path):
    """As if it had been written an hour ago: what is only just written is never kept."""
    for file in path.iterdir():
        os.utime(file, (1e9, 1e9))


def settle(monkeypatch):
    """Times of change cannot be set back, so that the clock goes ahead."""
    monkeypatch.setattr("lengthlens.runs.index.time.time", lambda: 4e9)


def test_a_listing_is_kept_and_follows_every_change_of_a_file(store, monkeypatch):
    assert listed_at_once(store.path) is None
    rows = store.listing()
    assert listed_at_once(store.path) is None  # too new to be believed
    settle(monkeypatch)
    assert store.listing() == rows == listed_at_once(store.path)
    first, second, third = store.runs()
    with second.locked():
        second.set_status(Status("failed", 7, reason="why"))
    assert listed_at_once(store.path) is None
    assert [row["status"] for row in store.listing()] == ["diverged", "failed", "diverged"]
    (third.path / "status.json").write_bytes(b"{}")  # damaged: said every time, never kept
    for _ in range(2):
        assert [row["status"] for row in store.listing()] == ["diverged", "failed", "unreadable"]
    for file in third.path.iterdir():
        file.unlink()
    third.path.rmdir()
    assert [row["run"] for row in store.listing()] == [first.id, second.id]
    assert list(RunIndex(store.path).kept) == [first.id, second.id]


def test_a_run_under_way_is_not_kept(store, monkeypatch):
    settle(monkeypatch)
    run = next(store.runs())
    with run.locked():
        run.set_status(Status("running"))
        assert store.listing()[0]["status"] == "running"
    assert store.listing()[0]["status"] == "interrupted" and run.id not in RunIndex(store.path).kept


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"runs": 3}', b"\xff"])
def test_a_damaged_or_foreign_cache_is_made_again(store, monkeypatch, damage):
    settle(monkeypatch)
    rows = store.listing()
    path = RunIndex(store.path).path
    sound = path.read_bytes()
    path.write_bytes(damage)
    assert store.listing() == rows and json.loads(path.read_bytes()) == json.loads(sound)
    path.write_bytes(sound.replace(b'"format": 1', b'"format": 0'))
    assert listed_at_once(store.path) is None and store.listing() == rows


def test_the_state_of_a_run_differs_with_every_file_it_follows_from(store):
    run = next(store.runs())
    for name in ("manifest.json", "config.json", "status.json", "evaluation.json"):
        before, path = state_of(store.path, run.id), run.path / name
        path.write_bytes((path.read_bytes() if path.exists() else b"") + b" ")
        assert state_of(store.path, run.id) != before


# -- what is imported --------------------------------------------------------------------------------------------


def loaded(code, *names):
    """Which of these modules are there after some code, in a process of its own."""
    asked = f"{code}\nimport sys\nprint([name for name in {names!r} if name in sys.modules])"
    return eval_list(subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout)


def eval_list(text):
    return json.loads(text.replace("'", '"'))


def test_a_listing_of_runs_does_not_even_need_torch(store, monkeypatch):
    settle(monkeypatch)
    store.listing()
    words = ["runs", "--store", str(store.path)]
    listing = "import lengthlens\nfrom click.testing import CliRunner\nfrom lengthlens.cli import main\n"
    listing += f"assert CliRunner().invoke(main, {words!r}).output.count('diverged') == 3"
    assert loaded(listing, "torch", "pandas") == []
