"""Readout transfer and its cover number."""

import itertools

import numpy as np
import pytest
import torch

from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import build
from lengthlens.probes.transfer import cover_number, readout_transfer

HOOK = "blocks.0.hook_resid_post"


def test_a_perfect_copier_needs_one_readout_for_symbols_and_one_for_the_end():
    found = readout_transfer(copy_by_hand(), train_max=4, beyond=[8])
    for readout in ("linear", "sequential"):
        assert set(found.cover(HOOK, readout).values()) == {2}
        symbols = np.array([q < 2 * n + 1 for n, q in found.fit_steps.itertuples(index=False)])
        far = (found.test_steps["scale"] == 8).to_numpy(copy=True)
        far[np.flatnonzero(far)[-1]] = False
        assert found.accuracy[HOOK, readout][np.ix_(symbols, far)].min() > 0.95  # beyond the range, too
        assert found.control[HOOK, readout][np.ix_(symbols, far)].mean() < 0.3


def test_table_by_scale_has_a_control_beside_every_accuracy():
    found = readout_transfer(copy_by_hand(), train_max=3, estimator="ridge", readouts=["linear"], labels="true")
    table = found.by_scale()
    assert set(table.columns) == {"hook", "readout", "fit_scale", "scale", "accuracy", "control"}
    assert len(table) == 9
    row = table[(table["fit_scale"] == 2) & (table["scale"] == 3)].iloc[0]
    rows = (found.fit_steps["scale"] == 2).to_numpy()
    columns = (found.test_steps["scale"] == 3).to_numpy()
    assert row["accuracy"] == pytest.approx(found.accuracy[HOOK, "linear"][np.ix_(rows, columns)].mean())


def test_cover_number_is_the_least():
    rng = np.random.default_rng(0)
    for _ in range(50):
        decodes = rng.random((6, 7)) < 0.4
        alone = int((~decodes.any(0)).sum())
        rest = decodes[:, decodes.any(0)]
        least = next(
            k for k in range(7) if any(rest[list(c)].any(0).all() for c in itertools.combinations(range(6), k))
        )
        assert cover_number(decodes) == alone + least


def test_refusals_in_a_sentence():
    model = build(ModelConfig(task="copy", scheme="learned", n_ctx=16))
    with pytest.raises(UserError, match=r"did you mean 'blocks\.0\.hook_resid_post'"):
        readout_transfer(model, train_max=3, hooks=["blocks.0.hook_resid_pots"])
    with pytest.raises(UserError, match="16 positions and cannot process a sequence of 43"):
        readout_transfer(model, train_max=3, beyond=[20])
    with pytest.raises(UserError, match="8 rows are too few"):
        readout_transfer(model, train_max=3, rows=8)
    with pytest.raises(UserError, match="did you mean 'linear'"):
        readout_transfer(model, train_max=3, readouts=["liner"])


def test_the_same_generator_gives_the_same_matrix():
    first, second = (
        readout_transfer(copy_by_hand(), train_max=3, generator=torch.Generator().manual_seed(5)) for _ in range(2)
    )
    assert all(np.array_equal(first.accuracy[k], second.accuracy[k]) for k in first.accuracy)
