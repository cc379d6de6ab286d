"""On small trained runs that are accurate in range: complexity is flat where it should be, and grows elsewhere."""

import pytest

from lengthlens.models.transformer import HookedModel
from lengthlens.probes.invariance import invariance_index
from lengthlens.probes.lrc import measured_lrc
from lengthlens.probes.src import measured_src
from lengthlens.probes.subject import exact_by_scale
from lengthlens.runs.config import RunConfig
from lengthlens.runs.training import train

RECIPE = {"d_model": 32, "lr": 3e-3, "check_every": 100, "cooldown": 0.3}


def trained(task: str, scheme: str, train_max: int, **settings: int) -> HookedModel:
    config = RunConfig(task=task, scheme=scheme, train_max=train_max, **RECIPE, **settings)
    model = train(config).model
    assert model is not None and model.task is not None
    exact = exact_by_scale(model, model.task, range(1, train_max + 1))
    assert min(exact.values()) >= 0.9, exact
    return model


@pytest.mark.parametrize(("task", "scheme", "seed"), [("parity-cot", "ideal", 0), ("copy", "lbpe", 1)])
def test_flat_for_the_ideal_and_for_a_learned_relation(task, scheme, seed):
    model = trained(task, scheme, 7, seed=seed, batch=32, steps=400, patience=2)
    for curve in (measured_src(model, train_max=7).curve, measured_lrc(model, train_max=7).curve):
        assert invariance_index(curve) < 0.2, curve


@pytest.mark.parametrize(("task", "scheme"), [("parity-cot", "learned"), ("copy", "relative")])
def test_grows_for_codes_that_longer_inputs_need_more_of(task, scheme):
    model = trained(task, scheme, 5, seed=0, batch=64, steps=1200, patience=1)
    assert invariance_index(measured_src(model, train_max=5).curve) > 0.5
    assert invariance_index(measured_lrc(model, train_max=5).curve) > 0.1
