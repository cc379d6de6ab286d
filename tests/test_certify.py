"""Certificates: proofs against closed forms and the models themselves; tests, and a network that beat what was there.

Kinds of steps, and networks drawn at random, are in test_certify_kinds.py.
"""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy.stats import binom

from lengthlens.errors import UserError
from lengthlens.models.by_hand import SHARP, copy_by_hand
from lengthlens.models.schemes.ideal import Ideal
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes.certify import CONFIDENCE, INSTANCES, certify, clopper_pearson, drawn_lengths
from lengthlens.probes.proof import NamedSteps, Tables, leak_bound, least_lead, steps_of
from lengthlens.runs.evaluation import exact_match
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import NINE, command, small_model

COPY = TASKS["copy"]
BACK, ZERO = 1, 3  # the form i−j−n and the place of its value 0, in a learned relation


def pointed(scheme: str, bias: float, other: str = "each") -> HookedModel:
    """The model that copies by hand, with this score for the key to be read and 0 for all others."""
    model = copy_by_hand(scheme)
    model.pos_embed.options = replace(model.pos_embed.options, other=other)
    with torch.no_grad():
        if isinstance(model.pos_embed, Ideal):
            model.pos_embed.table.fill_(bias)
        else:
            model.pos_embed.bias[..., BACK, ZERO] = bias / len(model.pos_embed.forms)
    return model


def options_of(scheme: str, other: str) -> dict[str, str]:
    return {"forms": "nine", "other": other} if scheme == "lbpe" else {"other": other}


def copies_zeros(model: HookedModel, n: int) -> bool:
    """The worst instance: where the end is to be written, ``=`` stands against 2n zeros."""
    batch = COPY.assemble(torch.zeros(1, n, dtype=torch.long), n)
    right = model(batch.tokens, batch.scale)[:, :-1].argmax(-1) == batch.tokens[:, 1:]
    return bool(right[batch.query_mask].all())


def true_length(bias: float) -> int:
    """The longest length at which it copies everything: 2n zeros weigh less than e^bias."""
    return math.ceil(math.exp(bias) / 2) - 1


@pytest.mark.parametrize("scheme", ["lbpe", "ideal"])
@pytest.mark.parametrize("bias", [5.0, *(pytest.param(bias, marks=pytest.mark.slow) for bias in (4.0, 6.5))])
def test_a_proof_reaches_the_length_at_which_the_model_fails(scheme: str, bias: float) -> None:
    model, true = pointed(scheme, bias), true_length(bias)
    found = certify(model)
    assert found.kind == "proven" and not found.limit and found.assumes == ""
    assert 0.99 * true - 1 <= found.length <= true
    assert copies_zeros(model, found.length) and copies_zeros(model, true) and not copies_zeros(model, true + 1)
    (score,) = exact_match(model, COPY, [found.length], samples=20)
    assert score.exact_match == 1


@pytest.mark.parametrize(("bias", "holds"), [(3.4, True), (3.0, False)])
def test_length_scaled_scores_hold_for_ever_if_the_bias_exceeds_the_logarithm_of_the_training_length(
    bias: float, holds: bool
) -> None:
    """The key to be read weighs (i+2)^(bias / log 25), against i others: more for ever if that power is above 1."""
    model = pointed("lbpe", bias)
    model.config = replace(model.config, score_scaling="log", train_ctx=23)
    found = certify(model, max_length=5000)
    assert found.limit == holds
    if holds:
        assert found.kind == "proven" and found.length == 5000
    else:
        failing = next(n for n in range(1, 100) if not copies_zeros(model, n))
        assert failing - 2 <= found.length < failing


@pytest.mark.parametrize("scheme", ["ideal", "lbpe"])
def test_what_weighs_as_one_never_outweighs(scheme: str) -> None:
    """All zeros together have a weight of 1, at every length, where each by itself would win in the end."""
    model = pointed(scheme, 1.0, "one")
    if scheme == "lbpe":
        model.pos_embed.prune_below(0.05)  # else keys that have a value, though it is 0, weigh each by itself
    found = certify(model, max_length=100_000)
    assert (found.kind, found.length, found.limit) == ("proven", 100_000, True)
    assert copies_zeros(model, 300) and not copies_zeros(pointed(scheme, 1.0), 300)


@pytest.mark.parametrize("scheme", ["ideal", "lbpe"])
def test_no_instance_leads_by_less_than_the_bound(scheme: str) -> None:
    """Heads that differ in which keys have a value, all weights at random: the bound holds for every instance tried."""
    generator = torch.Generator().manual_seed(0)
    model = build(replace(copy_by_hand(scheme).config, n_heads=2, scheme_options=options_of(scheme, "one"))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4, generator=generator)
        if isinstance(model.pos_embed, LearnedRelation):
            model.pos_embed.alive.copy_(torch.rand(model.pos_embed.alive.shape, generator=generator) < 0.1)
    tables = Tables(model, COPY)
    for n in (1, 2, 9):
        batch = COPY.sample(n, 64, generator)
        logits = model(batch.tokens, batch.scale).detach()
        for step in steps_of(COPY, NamedSteps.of_size(model.pos_embed, COPY, n)):
            here, target = step.query, batch.tokens[:, step.query + 1, None]
            lead = logits[:, here].gather(1, target) - logits[:, here].scatter(1, target, -math.inf)
            bound = least_lead(tables, step, here, here)
            assert bound <= float(lead.amin())
            assert least_lead(tables, step, here, 2 * here) <= bound + 1e-9


def test_the_least_lead_of_what_weighs_as_one_in_closed_form() -> None:
    """``=`` weighs e², ``^`` 1, and all zeros 1, the query's own among them: 30·(e²−1) / (e²+2), at every length."""
    model = pointed("ideal", 2.0, "one")
    *_, end = steps_of(COPY, NamedSteps.of_size(model.pos_embed, COPY, 9))
    lead, tables = SHARP * (math.exp(2) - 1) / (math.exp(2) + 2), Tables(model, COPY)
    for position in (19, 5000):
        bound = least_lead(tables, end, position, position) + tables.lead_error(position)
        assert bound == pytest.approx(lead, rel=1e-3) and bound < lead  # scores may be off as well


def test_nothing_is_certified_where_nothing_is_read() -> None:
    found = certify(pointed("lbpe", 0.0))
    assert (found.kind, found.worst) == ("none", {}) and "can outweigh" in found.unproven


def attacked(layers: int) -> HookedModel:
    """Copies by hand, but not where position 299 … 304 counts: a network that a search of the worst leak certified.

    A second head attends evenly to all keys, so that ``^`` has the weight 1 / (i+1). An MLP fires where that is between
    1/306 and 1/300. With one layer it writes ``$`` there; with two it leaves a mark, and a head of the second layer
    attends to it and writes ``$`` ever after.
    """
    hand, tokens = copy_by_hand("lbpe"), len(COPY.vocab)
    weight, mark, wrong = hand.cfg.d_model, hand.cfg.d_model + 1, tokens + COPY.ids["$"]
    sizes = {"n_layers": layers, "n_heads": 2, "d_model": hand.cfg.d_model + 2, "d_mlp": 4}
    model = build(replace(hand.config, attn_only=False, act_fn="relu", **sizes)).eval()
    rises, falls = (1 / 305.9, 1 / 305.1), (1 / 300.9, 1 / 300.1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for name, parameter in hand.named_parameters():
            model.get_parameter(name)[tuple(map(slice, parameter.shape))] = parameter
        first, last = model.layers[0], model.layers[-1].attn
        first.attn.W_V[1, COPY.ids["^"], 0] = first.attn.W_O[1, 0, weight] = 1
        for unit, (edge, (low, high)) in enumerate(zip((*rises, *falls), (rises, rises, falls, falls))):
            first.mlp.W_in[weight, unit] = 1 / (high - low)
            first.mlp.b_in[unit] = -edge / (high - low)
        first.mlp.W_out[:, mark if layers > 1 else wrong] = torch.tensor([1.0, -1, -1, 1]) * (1 if layers > 1 else 1000)
        if layers > 1:
            last.b_Q[0, 0] = 1000 * model.cfg.attn_scale
            last.W_K[0, mark, 0] = last.W_V[0, mark, 0] = 1
            last.W_O[0, 0, wrong] = 1000
    return model


@pytest.mark.parametrize("layers", [1, 2])
def test_a_test_does_not_exceed_a_failure_that_a_search_for_the_worst_leak_did_not_see(layers: int) -> None:
    model = attacked(layers)
    scores = [score.exact_match for score in exact_match(model, COPY, [10, 149, 150, 256, 1000], samples=3)]
    assert scores == [1, 1, 0, 0, 2 - layers]
    found = certify(model, seed=layers)
    assert found.kind == "tested" and not found.limit and 130 < found.length <= 149 < min(found.failed)
    assert found.reason.startswith(f"at n = {min(found.failed)}, on") and "norm and MLP" in found.unproven
    assert max(found.tried) > 900 and found.length == max(n for n in found.tried if n < min(found.failed))
    assert found.error_bound == clopper_pearson(sum(found.failed.values()), INSTANCES) and "certif" not in found.assumes
    near = certify(model, max_length=140, seed=layers)
    assert near.limit and near.failed == {} and max(near.tried) == near.length and near.leak == found.leak
    said = (
        f"0 of {INSTANCES} instances were wrong, at lengths drawn evenly in log n from 1 to 140 (seed {layers}): with"
    )
    assert near.assumes == f"{said} 95 % confidence, at most 1 % of all instances at lengths so drawn are wrong"


def test_the_bound_in_closed_form() -> None:
    """None wrong: (1−p)^m = 5 %; all but one: 1−p^m = 5 %; else the binomial distribution says so."""
    for of in (1, 20, 300, 5000):
        assert clopper_pearson(0, of) == pytest.approx(1 - 0.05 ** (1 / of))
        assert clopper_pearson(of - 1, of) == pytest.approx(0.95 ** (1 / of))
        assert clopper_pearson(of, of) == 1
        for wrong in range(1, of, max(1, of // 7)):
            assert binom.cdf(wrong, of, clopper_pearson(wrong, of)) == pytest.approx(1 - CONFIDENCE)
    for share in (0.003, 0.05, 0.4):  # the bound is above the truth in 95 % of tests, or more
        covered = [clopper_pearson(wrong, 300) >= share for wrong in range(301)]
        assert sum(binom.pmf(range(301), 300, share)[covered]) >= 0.95


def test_lengths_are_drawn_evenly_in_their_logarithm() -> None:
    drawn = Counter(drawn_lengths(2, 50, 200_000, torch.Generator().manual_seed(0)))
    assert (min(drawn), max(drawn)) == (2, 50)
    for n in (2, 3, 10, 50):
        chance = math.log((n + 1) / n) / math.log(51 / 2)
        assert drawn[n] / 200_000 == pytest.approx(chance, abs=4 * math.sqrt(chance / 200_000))


def test_networks_that_no_proof_covers_are_tested() -> None:
    """Each with a sentence that says why; these are not trained, and fail at once."""
    for model, why in (
        (small_model("lbpe"), "a form with 2j that is still in use names keys at every second query"),
        (small_model("rope", d_head=4), "scheme 'rope' is not covered: only schemes such as lbpe"),
        (small_model("lbpe-mlp"), "scheme 'lbpe-mlp' is not covered"),
        (small_model("lbpe", scheme_options={"forms": "nine", "other": "one"}, score_scaling="log"), "with other=one"),
        (small_model(NINE, task="parity"), "task 'parity' is not covered"),
        (small_model(NINE, n_layers=3), "one layer of attention without norm and MLP"),
        (small_model("learned", n_ctx=16), "scheme 'learned' is not covered"),
        (small_model("lbpe-marks"), "named_lines"),
        (small_model("ideal", task="copy-field"), "task 'copy-field' is not"),  # its sizes are tuples
    ):
        found = certify(model, max_length=12)
        assert (found.kind, found.length, found.limit) == ("none", 0, False) and why in found.unproven
        assert sum(found.failed.values()) > 100 and found.error_bound and bool(found.leak) == ("norm" in why)
        assert certify(model, max_length=12).failed == found.failed != certify(model, max_length=12, seed=1).failed


def test_refusals_in_a_sentence() -> None:
    model = copy_by_hand("lbpe")
    with pytest.raises(UserError, match="max_length must be at least 1, not 0"):
        certify(model, max_length=0)
    with pytest.raises(UserError, match="built for task 'copy', not for 'reverse'"):
        certify(copy_by_hand("ideal"), task=TASKS["reverse"])
    with pytest.raises(UserError, match=r"an instance of n = 1000000000 would take .* GiB of memory"):
        certify(attacked(1), max_length=10**9)
    for hook in (
        lambda: model.add_hook("blocks.0.attn.hook_pattern", lambda value, hook: value),
        lambda: model.layers[0].attn.register_forward_pre_hook(lambda module, given: None),
        lambda: model.register_forward_hook(lambda module, given, result: result),
    ):
        handle = hook()
        with pytest.raises(UserError, match=r"the model has a forward hook .*: only a model without hooks"):
            certify(model)
        handle.remove() if handle else model.reset_hooks()
    assert certify(model).kind == "proven"
    with torch.no_grad():
        model.unembed.W_U[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"weights of the model are not finite: unembed\.W_U"):
        certify(model)


def test_leak_bound_in_closed_form() -> None:
    """The last step at n = 100 reads ``=`` with e⁵; ``^`` and the query weigh 1 each, and the rest less than i+2."""
    bound = leak_bound(pointed("lbpe", 5.0), COPY, COPY.layout(), 100)
    assert torch.allclose(bound, torch.tensor([1 / (1 + (math.exp(5) + 2) / 203)]))
    # As one, the rest weighs 1 at most; ``^`` stands apart, and the query is in the crowd.
    bound = leak_bound(pointed("ideal", 5.0, "one"), COPY, COPY.layout(), 100)
    assert torch.allclose(bound, torch.tensor([1 / (1 + math.exp(5) + 1 + 1 / 203)]))


@pytest.mark.parametrize(
    ("scheme", "scaling", "other"),
    [(scheme, *how) for scheme in ("lbpe", "ideal") for how in (("none", "each"), ("log", "each"), ("none", "one"))]
    + [("lbpe", "none", "mean")],
)
def test_no_head_leaks_more_than_its_bound(scheme: str, scaling: str, other: str) -> None:
    model = small_model(scheme, score_scaling=scaling, train_ctx=9, scheme_options=options_of(scheme, other))
    if isinstance(model.pos_embed, LearnedRelation):
        some = torch.rand(model.pos_embed.alive.shape, generator=torch.Generator().manual_seed(1)) < 0.2
        model.pos_embed.alive.copy_(some)
    for n in (3, 12, 40):
        steps = NamedSteps.of_size(model.pos_embed, COPY, n)
        batch = COPY.sample(n, 16, torch.Generator().manual_seed(n))
        _, cache = model.run_with_cache(batch.tokens[:, :-1], batch.scale)
        length = batch.tokens.shape[1] - 1
        unnamed = torch.ones(len(steps.query), length + 1, dtype=torch.bool)
        unnamed.scatter_(1, torch.where(steps.named.exists, steps.named.key, length), False)
        leaked = (cache["pattern", 0][:, :, steps.query] * unnamed[:, :-1]).sum(-1)  # [row, head, step]
        assert (leaked.amax((0, 2)) <= leak_bound(model, COPY, COPY.layout(), n) + 1e-6).all()


def test_the_command_says_it_all(tmp_path: object) -> None:
    def run(*words: str) -> str:
        result = command(*words, "--store", str(tmp_path))
        assert result.exit_code == 0, result.output
        return result.stdout

    run("train", "--task", "copy", "--scheme", "lbpe", "--steps", "4", "--train-max", "2",
        "--set", "batch=2", "--set", "d_model=8", "--set", "check_every=2", "--quiet")  # fmt: skip
    text = run("certify", "copy", "--max-length", "20")
    assert "nothing is proven, and no length passed the test: at n = 1, on" in text and "why not proven:" in text
    facts = json.loads(run("certify", "copy", "--json", "--max-length", "20"))
    assert (facts["length"], facts["kind"]) == (0, "none") and sum(facts["tried"].values()) == INSTANCES
