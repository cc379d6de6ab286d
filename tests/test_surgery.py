"""Position surgery: what changes nothing changes no bit, and codes that are replaced do what they are known to do."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.models.by_hand import SHARP, copy_by_content, copy_by_hand, induction_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes.spec import SchemeSpec, scheme_names
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes.codes import counterparts
from lengthlens.probes.network import exact_by_scale
from lengthlens.probes.steps import place_tokens
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import few, small_model

COPY = TASKS["copy"]
TRAINED = 5  # the one scale at which the copiers below are right
FAMILIES = {name: SchemeSpec.of(name).scheme.family for name in scheme_names()}
CONTEXTUAL = tuple(name for name, family in FAMILIES.items() if family in ("contextual", "accumulated"))
BY_TOKENS = ("abacus", "lbpe-marks", *CONTEXTUAL)


def instances(scale: int, rows: int = 3, task: str = "copy") -> Tensor:
    return TASKS[task].sample(scale, rows, torch.Generator().manual_seed(scale)).tokens


def exact(model: HookedModel, scale: int) -> float:
    return exact_by_scale(model, COPY, [scale], n_instances=32)[scale]


@pytest.mark.parametrize("scheme", few(scheme_names(), "none", "rope", "lbpe", "hinted:relative"))
def test_surgery_that_changes_nothing_changes_no_bit(scheme: str) -> None:
    model, tokens = small_model(scheme), instances(5)
    before, names = model(tokens), list(model.state_dict())
    nothing: list[dict[str, Any]] = [{}, {"codes": copy.deepcopy(model)}]
    nothing += [{"codes": copy.deepcopy(model), "layers": [1], "heads": [0, 2]}, {"codes": model.pos_embed}]
    if scheme not in ("none", *CONTEXTUAL):
        nothing += [{"clamp": 100}, {"places": range(tokens.shape[1])}, {"codes": "ideal"}, {"clamp": 99, "heads": [1]}]
    if model.pos_embed.uses_scale:
        nothing += [{"scale": 5}]
    for asked in nothing:
        with ll.surgery(model, **asked):
            assert torch.equal(model(tokens), before), asked
    assert torch.equal(model(tokens), before) and list(model.state_dict()) == names


@pytest.mark.parametrize("scheme", ["rope", "learned", "relative"])
def test_model_is_itself_again_after_an_error(scheme: str) -> None:
    model, tokens = small_model(scheme), instances(5)
    before, hooks = model(tokens), list(model.hook_dict)
    with pytest.raises(RuntimeError, match="stop"), ll.surgery(model, "rope"), ll.surgery(model, "sinusoidal"):
        assert not torch.equal(model(tokens), before)
        raise RuntimeError("stop")
    assert torch.equal(model(tokens), before) and list(model.hook_dict) == hooks


@pytest.mark.parametrize("scheme", [name for name in scheme_names() if name not in ("none", *BY_TOKENS)])
def test_places_are_those_of_a_longer_input(scheme: str) -> None:
    """Tokens at places of a longer input give what that input gives with all other keys masked out."""
    own = {"scheme_options": {"other": "each"}} if scheme == "lbpe" else {}  # others that are masked out still count
    model, tokens = small_model(scheme, **own), instances(5)
    places = torch.tensor([0, 1, 3, 4, 5, 8, 9, 11, 12, 14, 15, 18, 19])
    longer = torch.randint(10, (3, 20), generator=torch.Generator().manual_seed(0))
    longer[:, places] = tokens
    hidden = ~torch.isin(torch.arange(20), places)

    def masked(scores: Tensor, hook: Any) -> Tensor:
        kept = scores.masked_fill(hidden, -torch.inf)
        return torch.where(torch.eye(20, dtype=torch.bool) & hidden, 0, kept)  # a query without keys is not defined

    hooks = [(f"blocks.{layer}.attn.hook_attn_scores", masked) for layer in range(2)]
    expected = model.run_with_hooks(longer, 8, fwd_hooks=hooks)[:, places]
    told = {"scale": 8} if model.pos_embed.uses_scale else {}
    with ll.surgery(model, places=[*places.tolist()], **told):
        assert torch.allclose(model(torch.cat([tokens], 1)), expected, atol=1e-5)


def test_every_move_is_what_it_says() -> None:
    """Against a table of position vectors whose rows are moved by hand."""
    model, tokens = small_model("learned"), instances(5)
    table, length = model.W_pos.detach().clone(), tokens.shape[1]
    order = torch.randperm(length - 1, generator=torch.Generator().manual_seed(7)) + 1
    stretched = next(place_tokens(COPY, 5, 8))
    moves: list[tuple[dict[str, Any], Tensor]] = [
        ({"shift": 4}, torch.arange(length) + 4),
        ({"clamp": 6}, torch.arange(length).clamp(max=6)),
        ({"shuffle": 7}, torch.cat([torch.zeros(1, dtype=torch.long), order])),
        ({"stretch": 8}, stretched),
        ({"shift": 2, "clamp": 9}, (torch.arange(length) + 2).clamp(max=9)),
    ]
    for asked, place in moves:
        with ll.surgery(model, **asked):
            found = model(tokens)
        with torch.no_grad():
            model.W_pos[:length] = table[place]
            assert torch.allclose(found, model(tokens), atol=1e-6), asked
            model.W_pos.copy_(table)


def test_a_copier_believes_the_scale_it_is_told() -> None:
    """It attends to i−j = n: told m, it writes the token m back."""
    model, tokens = copy_by_hand("lbpe"), instances(6)
    for told in (1, 2, 4):
        with ll.surgery(model, scale=told):
            written = model(tokens).argmax(-1)[:, told + 1 :]
        back = tokens[:, 1:-told]
        expected = torch.where(back == COPY.ids["="], COPY.ids["$"], back)
        assert torch.equal(written, expected)


@pytest.mark.parametrize("scheme", "relative alibi t5 shaw xl rope kerple-log kerple-power urpe".split())
def test_schemes_of_distance_do_not_feel_a_shift(scheme: str) -> None:
    model, tokens = small_model(scheme), instances(5)
    with ll.surgery(model, shift=9):
        moved = model(tokens)
    assert torch.allclose(moved, model(tokens), atol=1e-5)


def copier_at(scheme: str) -> HookedModel:
    """Copies at one scale, TRAINED, by attending to the key that far back, and to the same distance at every scale."""
    tokens, length = len(COPY.vocab), 16 if scheme == "learned" else 0
    same, back = torch.eye(len(COPY.vocab)), TRAINED
    size = {"n_layers": 1, "n_heads": 2, "d_model": 2 * tokens + 64, "d_head": 64, "train_ctx": COPY.length(TRAINED)}
    model: HookedModel = build(
        ModelConfig("copy", scheme, attn_only=True, normalization_type=None, n_ctx=64, **size)
    ).eval()
    attention, scheme_object, scale = model.layers[0].attn, model.pos_embed, model.cfg.attn_scale
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, :tokens] = same
        attention.W_V[0, :tokens, :tokens] = same
        written = same.clone()
        written[COPY.ids["="]] = same[COPY.ids["$"]]
        attention.W_O[0, :tokens, tokens : 2 * tokens] = SHARP * written
        model.unembed.W_U[tokens : 2 * tokens] = same
        if scheme == "relative":
            scheme_object.table[0, 0, back] = SHARP
        elif scheme == "shaw":
            attention.b_Q[0], scheme_object.vectors[0, back] = SHARP * scale, torch.ones(64) / 64
        elif scheme == "rope":  # a query turned back by as many positions meets such a key unturned
            angle = back * scheme_object.frequencies(0, torch.device("cpu"))
            attention.b_K[0] = torch.cat([torch.ones(32), torch.zeros(32)])
            attention.b_Q[0] = SHARP * scale * torch.cat([angle.cos(), -angle.sin()])
        elif length:  # position vectors are one-hot; the query's is moved back
            scheme_object.W_pos[:, 2 * tokens :] = torch.eye(64)
            attention.W_K[0, 2 * tokens :] = torch.eye(64)
            attention.W_Q[0, 2 * tokens :] = SHARP * scale * torch.eye(64).roll(-back, 1)
    return model


@pytest.mark.parametrize("scheme", ["relative", "shaw", "rope", "learned"])
def test_the_ideal_relation_heals_a_copier_of_one_scale(scheme: str) -> None:
    model = copier_at(scheme)
    assert exact(model, TRAINED) == 1 and exact(model, 2 * TRAINED) == 0
    for surgery in ({}, {"heads": ["L0H0"]}, {"other": "one"}):
        with ll.surgery(model, "ideal", **surgery):
            assert exact(model, TRAINED) == exact(model, 2 * TRAINED) == exact(model, 13) == 1, surgery
    for surgery in ({"codes": "displaced"}, {"codes": "ideal", "heads": [1]}, {"codes": "none"}):
        with ll.surgery(model, **surgery):
            assert exact(model, 2 * TRAINED) == 0, surgery


def test_displaced_codes_move_what_is_copied() -> None:
    """With the code of the source on the key before it, that key's token is written."""
    model, tokens = copier_at("relative"), instances(10)
    with ll.surgery(model, "displaced"):
        written = model(tokens).argmax(-1)[:, 12:21]
    assert torch.equal(written, tokens[:, 1:10])


def test_others_that_weigh_as_one_do_not_spread() -> None:
    """A source with e² times the weight of any other key is lost among 100 keys, and not among those of scale 5."""
    model = copier_at("relative")
    with torch.no_grad():
        model.pos_embed.table[0, 0, TRAINED] = 2.0
    assert exact(model, TRAINED) == 1
    with ll.surgery(model, "ideal"):
        assert exact(model, 30) < 0.5
    with ll.surgery(model, "ideal", other="one"):
        assert exact(model, 30) == 1


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.family == "position-addressed"])
def test_counterparts_keep_roles_and_order(name: str) -> None:
    task = TASKS[name]
    found, short_steps = counterparts(task, 12, 7), {step.query: step for step in task.circuit(7)}
    key = found.keys(slice(0, task.length(12)))[0]
    assert torch.equal(found.keys(slice(9, 12))[0], key[9:12, :12])
    for step in task.circuit(12):
        twin = short_steps[int(found.query[step.query])]
        assert twin.operator == step.operator
        assert tuple(key[step.query, list(step.sources)].tolist()) == twin.sources
        others = [j for j in range(step.query + 1) if j not in step.sources]
        assert not set(key[step.query, others].tolist()) & set(twin.sources)
    same = counterparts(task, 7, 7)
    length = task.length(7)
    assert torch.equal(same.query, torch.arange(length))
    assert torch.equal(same.keys(slice(0, length))[0].tril(), torch.arange(length).expand(length, -1).tril())


def test_only_the_head_that_attends_by_position_needs_its_codes() -> None:
    """An induction head: L0H0 and L0H1 attend by position, layer 1 by content."""
    model, task = induction_by_hand(), TASKS["induction"]
    tokens = task.sample(6, 16, torch.Generator().manual_seed(0)).tokens
    before = model(tokens)
    with ll.surgery(model, "none", layers=[1]):
        assert torch.equal(model(tokens), before)
    broken = {}
    for head in ("L0H0", "L0H1"):
        with ll.surgery(model, "none", heads=[head]):
            broken[head] = (model(tokens).argmax(-1) != before.argmax(-1))[:, -3:-1].any(0).tolist()
    assert broken == {"L0H0": [True, False], "L0H1": [False, True]}  # the answer needs 1 back, its end 2 back


@pytest.mark.parametrize("own", ["relative", "rope", "learned", "shortformer", "urpe"])
@pytest.mark.parametrize("other", ["none", "relative", "rope", "learned", "shortformer", "urpe", "hinted:alibi"])
def test_another_scheme_acts_as_in_a_model_of_its_own(own: str, other: str) -> None:
    model, donor, tokens = small_model(own), small_model(other), instances(5)
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("pos_embed")}
    donor.load_state_dict(weights, strict=False)
    with ll.surgery(model, donor):
        assert torch.allclose(model(tokens), donor(tokens), atol=1e-5)
        assert "hook_pos_embed" in model.hook_dict or "embed" not in donor.pos_embed.acts()


@pytest.mark.parametrize(
    ("scheme", "asked", "says"),
    [
        ("rope", {"scale": 7}, "does not look at n"),
        ("cope", {"shift": 1}, "counts tokens by their content"),
        ("rpe-square", {"codes": "ideal"}, "counts tokens by their content"),
        ("none", {"shift": 1}, "contributes nothing"),
        ("relative", {"heads": ["L0H9"]}, "unknown head 'L0H9'"),
        ("relative", {"heads": [7]}, "unknown head 'L0H7'"),
        ("relative", {"layers": [4]}, "there is no layer 4: the nearest is 1"),
        ("relative", {"codes": "alibbi"}, "did you mean 'alibi'"),
        ("relative", {"codes": 7}, "codes come from"),
        ("relative", {"places": [1, 2]}, "2 places were given for 13 tokens"),
        ("relative", {"shift": -3}, "the first position is 0"),
        ("relative", {"stretch": 3}, "does not fit"),
        ("learned", {"shift": 200}, "128 positions"),
        ("relative", {"codes": copy_by_hand("lbpe")}, "made for n_layers=1"),
        ("relative of sort", {"codes": "ideal", "codes_of": 3}, "follow from its tokens"),
        ("relative of parity", {"codes": "ideal", "codes_of": 3}, "no counterpart"),
    ],
)
def test_what_has_no_meaning_is_said_in_one_sentence(scheme: str, asked: dict[str, Any], says: str) -> None:
    scheme, _, task = scheme.partition(" of ")
    model = small_model(scheme, task=task or "copy")
    with pytest.raises(UserError, match=says) as error, ll.surgery(model, **asked):
        model(instances(5, task=task or "copy"))
    assert "\n" not in str(error.value)


def test_a_model_without_positions_has_none_to_change() -> None:
    for model, says in ((lambda tokens: tokens, "no position embedding"), (copy_by_content(), "contributes nothing")):
        with pytest.raises(UserError, match=says), ll.surgery(model, "ideal"):
            pass
