"""Certificates: against closed forms, against the models themselves, and beyond the length at which they fail."""

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from lengthlens.cli import main
from lengthlens.errors import UserError
from lengthlens.models.by_hand import SHARP, copy_by_hand
from lengthlens.models.schemes.ideal import Ideal
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes.certificate import search
from lengthlens.probes.certificate.certify import certify, steps_at
from lengthlens.probes.certificate.places import NamedSteps, Places, carried
from lengthlens.probes.certificate.proof import Tables, leak_bound, least_lead, steps_of
from lengthlens.probes.certificate.search import Game, Leak, scene
from lengthlens.runs.evaluation import exact_match
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import NINE

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


def deeper(scheme: str, bias: float, other: str = "each") -> HookedModel:
    """The same with an MLP, and a second layer that mixes everything and writes nothing."""
    model = pointed(scheme, bias)
    options = {**model.config.scheme_options, "other": other}
    deep = build(replace(model.config, n_layers=2, attn_only=False, d_mlp=4, scheme_options=options))
    with torch.no_grad():
        for parameter in deep.parameters():
            parameter.zero_()
        for name, parameter in deep.named_parameters():
            small = dict(model.named_parameters()).get(name)
            if small is not None:
                parameter[: small.shape[0]].copy_(small)
    return deep.eval()


def copies_zeros(model: HookedModel, n: int) -> bool:
    """The worst instance: where the end is to be written, ``=`` stands against 2n zeros."""
    batch = COPY.assemble(torch.zeros(1, n, dtype=torch.long), n)
    right = model(batch.tokens, batch.scale)[:, :-1].argmax(-1) == batch.tokens[:, 1:]
    return bool(right[batch.query_mask].all())


def true_length(bias: float) -> int:
    """The longest length at which it copies everything: 2n zeros weigh less than e^bias."""
    return math.ceil(math.exp(bias) / 2) - 1


# -- proofs --------------------------------------------------------------------------------------------------


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
    model = copy_by_hand(scheme)
    model = build(
        replace(
            model.config,
            n_heads=2,
            scheme_options={"forms": "nine", "other": "one"} if scheme == "lbpe" else {"other": "one"},
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4, generator=generator)
        if isinstance(model.pos_embed, LearnedRelation):
            model.pos_embed.alive.copy_(torch.rand(model.pos_embed.alive.shape, generator=generator) < 0.1)
    tables = Tables(model, COPY)
    for n in (1, 2, 9):
        batch = COPY.sample(n, 64, generator)
        logits = model(batch.tokens, batch.scale).detach()
        for step in steps_of(COPY, NamedSteps.of_scale(model.pos_embed, COPY, n)):
            here, target = step.query, batch.tokens[:, step.query + 1, None]
            lead = logits[:, here].gather(1, target) - logits[:, here].scatter(1, target, -math.inf)
            bound = least_lead(tables, step, here, here)
            assert bound <= float(lead.amin())
            assert least_lead(tables, step, here, 2 * here) <= bound + 1e-9


def test_the_least_lead_of_what_weighs_as_one_in_closed_form() -> None:
    """``=`` weighs e², ``^`` 1, and all zeros 1, the query's own among them: 30·(e²−1) / (e²+2), at every length."""
    model = pointed("ideal", 2.0, "one")
    *_, end = steps_of(COPY, NamedSteps.of_scale(model.pos_embed, COPY, 9))
    lead, tables = SHARP * (math.exp(2) - 1) / (math.exp(2) + 2), Tables(model, COPY)
    for position in (19, 5000):
        bound = least_lead(tables, end, position, position) + tables.lead_error(position)
        assert bound == pytest.approx(lead, rel=1e-3) and bound < lead  # scores may be off as well


def test_a_certificate_is_no_longer_than_what_was_asked_for() -> None:
    found = certify(copy_by_hand("ideal"), max_length=3)
    assert (found.kind, found.length, found.limit) == ("proven", 3, True)


def test_nothing_is_certified_where_nothing_is_read() -> None:
    found = certify(pointed("lbpe", 0.0))
    assert (found.kind, found.length, found.worst) == ("none", 0, {})


# -- searches ------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps: models by hand have no weak ones that would be hard to find."""
    for name, fewer in {"ROWS": 32, "WEAKEST": 16, "STEPS_EACH": 4, "SEARCHED": 24}.items():
        monkeypatch.setattr(search, name, fewer)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_search_stays_below_the_length_at_which_the_model_fails() -> None:
    """It keeps a reserve: (e⁵−2n) / (e⁵+2n) ≥ 0.2 up to n = 49, and a bit more where margins are less than full."""
    weak = certify(deeper("lbpe", 5.0), max_length=150)
    assert weak.kind == "conditional" and "searched for and not proven" in weak.assumes
    assert 40 <= weak.length <= 60 < true_length(5.0)
    assert "a leak was found" in weak.reason and weak.weakest_head == "layer 0 head 0"
    assert copies_zeros(deeper("lbpe", 5.0), weak.length)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("bias", "other"), [(30.0, "each"), (3.0, "one")])
def test_a_search_finds_no_limit_where_there_is_none(bias: float, other: str) -> None:
    found = certify(deeper("ideal", bias, other), max_length=300)
    assert (found.kind, found.length, found.limit) == ("conditional", 300, True)
    (score,) = exact_match(deeper("ideal", bias, other), COPY, [300], samples=10)
    assert score.exact_match == 1


def test_a_model_that_errs_has_no_certificate(small_model: Callable[..., HookedModel]) -> None:
    found = certify(small_model(NINE))
    assert (found.kind, found.length) == ("none", 0)
    assert "at n = 1 the model itself is wrong" in found.reason


@pytest.mark.parametrize("other", ["each", "one", "mean"])
def test_with_the_true_other_keys_the_game_is_the_model(small_model: Callable[..., HookedModel], other: str) -> None:
    """Steps played on named keys plus a histogram (layer 0) and a bank (layer 1) give the model's own logits."""
    options = {"forms": "i-j, i-j-n, j", "window": 1, "other": other}
    model, n = small_model("lbpe", scheme_options=options), 12
    model.pos_embed.alive[1, 0, 1] = False  # heads may differ in which keys have a value
    model.pos_embed.alive[0, 1, 0] = False
    model.config = replace(model.config, score_scaling="log", train_ctx=9)
    places = Places(model.pos_embed, COPY, n)
    batch = COPY.sample(n, 1, torch.Generator().manual_seed(0))
    own = model(batch.tokens, batch.scale)[0]
    for query in places.answer_queries.tolist():
        named = set(places.named.key[query].tolist())
        rest = torch.tensor([key for key in range(query + 1) if key not in named])
        row = torch.zeros(len(rest), dtype=torch.long)
        bank = scene(model, COPY, places, batch.tokens, row, rest).at_query()
        steps = scene(model, COPY, places, batch.tokens, row[:1], torch.tensor([query]))
        histograms = rest_histograms(places, batch.tokens[0])
        game = Game(model, COPY, bank, histograms[bank.position], torch.Generator())
        leak = Leak(histograms[steps.position], torch.zeros(1, len(rest)))
        target = int(batch.tokens[0, query + 1])
        margin = own[query, target] - own[query].index_fill(0, torch.tensor(target), -math.inf).max()
        assert torch.allclose(game.margins(steps, n, leak)[0], margin, atol=1e-4)


def rest_histograms(places: Places, tokens: Tensor) -> Tensor:
    """Logarithms of how often each symbol stands at a key that a position does not name. [pos, symbol]"""
    counts = torch.zeros(places.length, len(COPY.symbols))
    for query in range(places.length):
        named = set(places.named.key[query].tolist())
        for key in range(query + 1):
            if key not in named:
                counts[query, tokens[key]] += 1
    return counts.log().nan_to_num(neginf=-1e4)


# -- leaks ---------------------------------------------------------------------------------------------------


def test_leak_bound_in_closed_form() -> None:
    """The last step at n = 100 reads ``=`` with e⁵; ``^`` and the query weigh 1 each, and the rest less than i+2."""
    bound = leak_bound(pointed("lbpe", 5.0), COPY, NamedSteps.of_scale(pointed("lbpe", 5.0).pos_embed, COPY, 20), 100)
    assert torch.allclose(bound, torch.tensor([[1 / (1 + (math.exp(5) + 2) / 203)]]))
    # As one, the rest weighs 1 at most; ``^`` stands apart, and the query is in the crowd.
    model = pointed("ideal", 5.0, "one")
    bound = leak_bound(model, COPY, NamedSteps.of_scale(model.pos_embed, COPY, 20), 100)
    assert torch.allclose(bound, torch.tensor([[1 / (1 + math.exp(5) + 1 + 1 / 203)]]))


@pytest.mark.parametrize(
    ("scheme", "scaling", "other"),
    [
        *(
            (scheme, *how)
            for scheme in ("lbpe", "ideal")
            for how in (("none", "each"), ("log", "each"), ("none", "one"))
        ),
        ("lbpe", "none", "mean"),
    ],
)
def test_no_head_leaks_more_than_its_bound(
    small_model: Callable[..., HookedModel], scheme: str, scaling: str, other: str
) -> None:
    model = small_model(
        scheme,
        score_scaling=scaling,
        train_ctx=9,
        scheme_options={"forms": "nine", "other": other} if scheme == "lbpe" else {"other": other},
    )
    if isinstance(model.pos_embed, LearnedRelation):
        some = torch.rand(model.pos_embed.alive.shape, generator=torch.Generator().manual_seed(1)) < 0.2
        model.pos_embed.alive.copy_(some)
    for n in (3, 12, 40):
        places = Places(model.pos_embed, COPY, n)
        batch = COPY.sample(n, 16, torch.Generator().manual_seed(n))
        _, cache = model.run_with_cache(batch.tokens[:, :-1], batch.scale)
        unnamed = torch.ones(places.length, places.length + 1, dtype=torch.bool)
        unnamed.scatter_(1, torch.where(places.named.exists, places.named.key, places.length), False)
        bound = leak_bound(model, COPY, steps_at(model, COPY, COPY.layout(), n), n)
        for layer in range(2):
            leaked = (cache["pattern", layer] * unnamed[:, :-1]).sum(-1)[:, :, places.answer_queries]
            assert (leaked.amax((0, 2)) <= bound[layer] + 1e-6).all()


# -- places --------------------------------------------------------------------------------------------------


def test_positions_keep_their_places_near_borders() -> None:
    assert carried(torch.arange(100), 40, 40).tolist() == list(range(100))
    assert carried(torch.tensor([0, 39, 40, 45, 81]), 40, 10**6).tolist() == [
        0,
        10**6 - 1,
        10**6,
        10**6 + 5,
        2 * 10**6 + 1,
    ]


# -- what it cannot do ---------------------------------------------------------------------------------------


def test_refusals_in_a_sentence(small_model: Callable[..., HookedModel]) -> None:
    with pytest.raises(UserError, match="a form with 2j that is still in use names keys at every second query"):
        certify(small_model("lbpe"))
    with pytest.raises(UserError, match="scheme 'rope' cannot be certified: only schemes such as lbpe"):
        certify(small_model("rope", d_head=4))
    with pytest.raises(UserError, match="scheme 'lbpe-mlp' cannot be certified"):
        certify(small_model("lbpe-mlp"))
    with pytest.raises(UserError, match="'lbpe' with other=one can be certified without length-scaled scores"):
        certify(small_model("lbpe", scheme_options={"forms": "nine", "other": "one"}, score_scaling="log"))
    with pytest.raises(UserError, match="task 'parity' is growing"):
        certify(small_model(NINE, task="parity"))
    with pytest.raises(UserError, match="one or two layers can be certified, not of 3"):
        certify(small_model(NINE, n_layers=3))
    with pytest.raises(UserError, match="max_length must be at least 1, not 0"):
        certify(small_model(NINE), max_length=0)


def test_the_command_says_it_all(tmp_path: object) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(main, [*words, "--store", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result.stdout

    run("train", "--task", "copy", "--scheme", "lbpe", "--steps", "4", "--train-max", "2",
        "--set", "batch=2", "--set", "d_model=8", "--set", "check_every=2", "--quiet")  # fmt: skip
    text = run("certify", "copy", "--max-length", "50")
    assert "no length is certified: at n = 1 the model itself is wrong" in text
    assert "layer 1 head 3" in text and "n=10000" in text
    facts = json.loads(run("certify", "copy", "--json"))
    assert facts["length"] == 0 and facts["kind"] == "none" and set(facts["leak"]) == {"10", "100", "1000", "10000"}
