"""The invariance index; on small trained networks complexity is flat where it should be, and grows elsewhere."""

import pytest

from lengthlens.errors import UserError
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.lrc import measured_lrc
from lengthlens.probes.network import exact_by_scale
from lengthlens.probes.probe import invariance_index
from lengthlens.probes.src import measured_src
from lengthlens.runs.config import RunConfig
from lengthlens.runs.training import train
from lengthlens.tests.parameters import trained

RECIPE = {"d_model": 32, "lr": 3e-3, "check_every": 100, "cooldown": 0.3}
# The recipes of the networks in tests/fixtures/trained.
FLAT = {"seed": 0, "train_max": 7, "batch": 32, "steps": 400, "patience": 2}
GROWS = {"seed": 0, "train_max": 5, "batch": 64, "steps": 1200, "patience": 1}
NETWORKS = {
    "parity-cot_ideal": FLAT,
    "copy_lbpe": {**FLAT, "seed": 1},
    "parity-cot_learned": GROWS,
    "copy_relative": GROWS,
}


def check(name: str, model: HookedModel) -> None:
    """Accurate in range, and flat or growing as it should be."""
    train_max = NETWORKS[name]["train_max"]
    exact = exact_by_scale(model, model.task, range(1, train_max + 1))
    assert min(exact.values()) >= 0.9, exact
    src, lrc = (invariance_index(measure(model, train_max=train_max).curve) for measure in (measured_src, measured_lrc))
    if NETWORKS[name]["train_max"] == FLAT["train_max"]:
        assert src < 0.2 and lrc < 0.2, (src, lrc)
    else:
        assert src > 0.5 and lrc > 0.1, (src, lrc)


@pytest.mark.parametrize("name", NETWORKS)
def test_flat_for_what_extrapolates_and_growing_for_codes_that_longer_inputs_need_more_of(name):
    check(name, trained(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_when_trained_from_nothing(name):
    task, scheme = name.split("_")
    check(name, train(RunConfig(task=task, scheme=scheme, **NETWORKS[name], **RECIPE)).model)


@pytest.mark.parametrize(
    ("curve", "index"),
    [
        *(({n: 7 * n**power for n in range(1, 11)}, power) for power in (0, 0.5, 1, 2)),
        ({n: min(n, 4) for n in range(1, 11)}, 0),  # only the upper half counts
        (dict.fromkeys(range(1, 11), 0), 0),  # nothing measured is flat
    ],
)
def test_the_index_of_known_curves(curve, index):
    assert invariance_index(curve) == pytest.approx(index, abs=1e-9)


@pytest.mark.parametrize(("curve", "says"), [({1: 5}, "only n = 1"), ({}, "none is given")])
def test_too_little_for_an_index_is_refused(curve, says):
    with pytest.raises(UserError, match=says):
        invariance_index(curve)
