"""Interchange SRC and stretching on networks built by hand, whose operators and failures are known."""

from collections.abc import Sequence

import pytest
import torch
from torch.nn.functional import one_hot

from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes.interchange import exchanged, interchange_src, known_by
from lengthlens.probes.steps import StepAt, kept_steps, place_tokens, tokens_read, twins
from lengthlens.probes.stretch import stretched_match
from lengthlens.runs.evaluation import exact_match
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import NINE

LARGEST = 4  # the n up to which the copiers below are right


def matches(model: HookedModel, scale: int) -> float:
    return exact_match(model, TASKS["copy"], [scale], samples=50)[0].exact_match


# -- interchange -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["ideal", "lbpe", "hinted:relative"])
def test_a_copier_by_position_has_one_operator_but_for_the_ends(scheme: str) -> None:
    """Codes that are declared and not used, i−j under hinted:relative, do not count."""
    found = interchange_src(copy_by_hand(scheme, 12), train_max=5)
    assert list(found.curve.values()) == [2, 3, 3, 3, 3]
    assert found.exchanged == 1.0


SHARP = 30.0
COPY = TASKS["copy"]
SIZE, STOPS = len(COPY.vocab), torch.eye(len(COPY.vocab))
STOPS[COPY.ids["="]] = torch.eye(SIZE)[COPY.ids["$"]]  # what is written for each token that is read


class Drawing:
    """A copier under (i−j, i−j−n) with weights zero, but for what is drawn in: named parts of the residual stream."""

    def __init__(self, layers: int, heads: int, units: int = 1, **parts: int) -> None:
        ends = torch.tensor([SIZE, *parts.values(), SIZE]).cumsum(0).tolist()
        self.at = dict(zip(("token", *parts, "written"), (slice(a, b) for a, b in zip([0, *ends], ends))))
        sizes = {"n_layers": layers, "n_heads": heads, "d_model": ends[-1], "d_head": SIZE + 1, "d_mlp": units}
        options = {"normalization_type": None, "act_fn": "relu", "n_ctx": 64, "attn_scale": 1.0}
        scheme = {"scheme": "hinted:relative", "scheme_options": {"max_distance": 12}}
        self.model = build(ModelConfig(task="copy", **scheme, **sizes, **options)).eval().requires_grad_(False)
        for parameter in self.model.parameters():
            parameter.zero_()
        self.model.embed.W_E[:, self.at["token"]] = torch.eye(SIZE)
        self.model.unembed.W_U[self.at["written"]] = SHARP * torch.eye(SIZE)
        self.units = [0] * layers

    def attends(self, layer: int, head: int, *, distance: int | None = None, anchored: bool = False) -> None:
        """A score for a distance, and one for i−j−n = 0."""
        scheme = self.model.pos_embed
        if distance is not None:
            scheme.inner.table[layer, head, distance] = SHARP
        if anchored:
            scheme.anchored.table[layer, head, -scheme.anchored.least] = SHARP

    def moves(self, layer: int, head: int, to: slice, what: torch.Tensor) -> None:
        attention = self.model.layers[layer].attn
        attention.W_V[head, self.at["token"], :SIZE] = torch.eye(SIZE)
        attention.W_O[head, :SIZE, to] = what

    def rests(self, layer: int, head: int, own: float) -> None:
        """Attends to ``^`` unless some other key has a score above `own`."""
        attention = self.model.layers[layer].attn
        attention.b_Q[head, SIZE] = own
        attention.W_K[head, COPY.ids["^"], SIZE] = 1.0

    def knows(self, layer: int, n: int, to: int) -> None:
        """Head n−1 writes 1 if the scale is n: unless the key with i−j−n = 0 is n back, too, it rests on ``^``."""
        self.attends(layer, n - 1, distance=n, anchored=True)
        self.rests(layer, n - 1, 1.5 * SHARP)
        self.moves(layer, n - 1, slice(to, to + 1), -one_hot(torch.tensor([COPY.ids["^"]]), SIZE).float().T)
        self.model.layers[layer].attn.b_O[to] += 1.0

    def unit(self, layer: int, to: int, plus: list[int], minus: Sequence[int] = ()) -> None:
        """An AND: 1 where all of `plus` are 1 and none of `minus` is."""
        mlp, k = self.model.layers[layer].mlp, self.units[layer]
        mlp.W_in[plus, k], mlp.b_in[k], mlp.W_out[k, to] = 1.0, 1.0 - len(plus), 1.0
        mlp.W_in[list(minus), k] = -1.0
        self.units[layer] += 1


def copier_by_state(by_first: Sequence[int]) -> HookedModel:
    """The state says the scale, if it is one of `by_first`; then the token i−j = n is read, else that of i−j−n = 0."""
    own = Drawing(2, LARGEST + 1, (LARGEST + 1) * SIZE, known=LARGEST, read=(LARGEST + 1) * SIZE)
    known, read, written = (own.at[name].start for name in ("known", "read", "written"))
    for n in by_first:
        own.knows(0, n, known + n - 1)
    for head in range(LARGEST + 1):
        at = read + head * SIZE
        own.attends(1, head, distance=head + 1 if head < LARGEST else None, anchored=head == LARGEST)
        own.moves(1, head, slice(at, at + SIZE), torch.eye(SIZE))
        for token, what in enumerate(STOPS.argmax(1).tolist()):
            if head == LARGEST:
                own.unit(1, written + what, [at + token], [known + n - 1 for n in by_first])
            elif head + 1 in by_first:
                own.unit(1, written + what, [at + token, known + head])
    return own.model


def copier_by_scale() -> HookedModel:
    """Each scale has a code of its own for tokens, known by heart: written in the first layer, undone in the second."""
    own = Drawing(2, LARGEST + 1, LARGEST * SIZE, known=LARGEST, again=LARGEST, read=SIZE, coded=SIZE)
    known, again, read, coded, written = (own.at[name].start for name in ("known", "again", "read", "coded", "written"))
    own.attends(0, LARGEST, anchored=True)
    own.moves(0, LARGEST, own.at["read"], torch.eye(SIZE))
    for n in range(1, LARGEST + 1):
        own.knows(0, n, known + n - 1)
        own.knows(1, n, again + n - 1)
        for token, what in enumerate(STOPS.argmax(1).tolist()):
            own.unit(0, coded + (token + n) % SIZE, [read + token, known + n - 1])
            own.unit(1, written + what, [coded + (token + n) % SIZE, again + n - 1])
    return own.model


def copier_by_sum() -> HookedModel:
    """Neither part is enough: i−j says the farther the better, i−j−n that no key beyond n back counts."""
    own = Drawing(1, 1)
    own.model.pos_embed.inner.table[0, 0] = SHARP * torch.arange(own.model.pos_embed.inner.table.shape[-1])
    own.model.pos_embed.anchored.table[0, 0, 1 - own.model.pos_embed.anchored.least :] = -1000.0
    own.moves(0, 0, own.at["written"], STOPS)
    return own.model


def copier_by_heads() -> HookedModel:
    """A head for each scale, which reads the key with i−j = n and i−j−n = 0, and rests if there is none."""
    own = Drawing(1, LARGEST)
    for n in range(1, LARGEST + 1):
        own.attends(0, n - 1, distance=n, anchored=True)
        own.rests(0, n - 1, 1.5 * SHARP)
        own.moves(0, n - 1, own.at["written"], STOPS * (torch.arange(SIZE) != COPY.ids["^"])[:, None])
    own.model.layers[0].attn.b_O[own.at["written"].start] = 0.1  # what is left of attention does not decide
    return own.model


def by_kind(model: HookedModel) -> dict[str, list[int]]:
    """Classes up to each scale of first steps (at ``=``), last ones (they write ``$``) and all between."""
    assert all(matches(model, n) == 1.0 for n in range(1, LARGEST + 1))
    steps = interchange_src(model, train_max=LARGEST).steps
    place = steps["place"].where(steps["place"] < steps["scale"], -1).clip(upper=1)
    kind = place.map({0: "first", 1: "inner", -1: "last"})
    first = steps.assign(kind=kind).drop_duplicates(["class_scale", "class_place"])
    return {
        name: [int((own["class_scale"] <= n).sum()) for n in range(1, LARGEST + 1)]
        for name, own in first.groupby("kind")
    }


@pytest.mark.parametrize(
    ("model", "ends", "inner"),
    [
        (copier_by_state(()), [1, 1, 1, 1], [0, 1, 1, 1]),  # by the second part alone: 1
        (copier_by_state((1, 2, 3, 4)), [1, 2, 3, 4], [0, 1, 2, 3]),  # by the first: n
        (copier_by_state((2, 4)), [1, 2, 2, 3], [0, 1, 2, 3]),  # even scales by the first, odd ones by the second
        (copier_by_sum(), [1, 1, 1, 1], [0, 1, 1, 1]),  # both are needed, and their sum is one rule
        (copier_by_scale(), [1, 2, 3, 4], [0, 1, 2, 3]),  # memorises each scale: n
    ],
    ids=["second part", "first part", "either", "sum of both", "memorised"],
)  # fmt: skip
def test_copiers_under_distance_and_scale_have_the_operators_they_were_built_with(
    model: HookedModel, ends: list[int], inner: list[int]
) -> None:
    assert by_kind(model) == {"first": ends, "inner": inner, "last": ends}


def test_a_copier_that_memorises_each_n_fails_with_states_of_smaller_inputs() -> None:
    assert interchange_src(copier_by_scale(), train_max=LARGEST).exchanged <= 0.5


def test_what_heads_memorise_is_not_in_the_states_and_stretching_finds_it() -> None:
    """Exchanging states cannot see a head for each scale: the scores pick it. Stretched, no head fits."""
    model = copier_by_heads()
    assert by_kind(model) == {"first": [1, 1, 1, 1], "inner": [0, 1, 1, 1], "last": [1, 1, 1, 1]}
    found = stretched_match(model, train_max=LARGEST, scales=[8])
    assert (found.at(8), matches(model, 8), found.cause) == (0.0, 0.0, "parts never together")
    assert found.parts == {"min(i−j, max_distance)": 0.0, "clip(i−j−n, ±max_distance)": 1.0}


def test_each_step_is_in_one_class_whose_first_step_is_its_own() -> None:
    steps = interchange_src(copy_by_hand(), train_max=4).steps
    own = steps[(steps["scale"] == steps["class_scale"]) & (steps["place"] == steps["class_place"])]
    assert len(own) == len(steps.drop_duplicates(["class_scale", "class_place"])) == 3
    assert (steps["class_scale"] <= steps["scale"]).all()


@pytest.mark.parametrize("name", ["addition", "multiplication-by-digit", "parity-cot", "reverse"])
def test_twins_are_instances_of_the_task_with_the_wanted_tokens(name: str) -> None:
    task, generator = TASKS[name], torch.Generator().manual_seed(1)
    wanted = tokens_read(task.circuit(6), 2, task.sample(6, 40, generator).tokens)
    tokens, found = twins(task, StepAt(4, 1), wanted, generator)
    assert found.any() and (tokens_read(task.circuit(4), 1, tokens)[found] == wanted[found]).all()
    assert all(bool((task.parse(task.render(row)).tokens[0] == row).all()) for row in tokens[found])
    wanted[:, 1] = task.ids["="]  # which no symbol can be
    assert not twins(task, StepAt(4, 1), wanted, generator)[1].any()


def test_what_has_no_twins_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="'sort' follow from its tokens"):
        interchange_src(copy_by_hand(), TASKS["sort"])
    with pytest.raises(UserError, match=r"agreement must be above 0 and at most 1, not 1\.5"):
        interchange_src(copy_by_hand(), agreement=1.5)
    with pytest.raises(UserError, match="follow from its tokens"):  # and no marks that could be moved
        known_by(copy_by_hand(), TASKS["sort"])


# -- stretching --------------------------------------------------------------------------------------------------


def test_a_copier_by_its_own_relation_is_predicted_to_copy_at_any_length() -> None:
    for scheme in ("ideal", "lbpe", "hinted:relative"):
        found = stretched_match(copy_by_hand(scheme), train_max=5, scales=[10, 50])
        assert (found.at(10), found.at(50), found.fails_at, found.cause) == (1.0, 1.0, None, None)


def test_a_distance_that_was_never_trained_is_the_codes_fault() -> None:
    """The score of the right key is taken away again at every distance above 10: fine up to n = 10, wrong beyond."""
    model = copy_by_hand("hinted:relative", 12)
    with torch.no_grad():
        model.pos_embed.inner.table[..., 11:] = -60.0
    found = stretched_match(model, train_max=10, scales=[15, 20])
    assert matches(model, 10) == 1.0 and matches(model, 20) == 0.0
    assert found.fails_at == 15 and found.at(20) < 0.1
    assert (found.cause, found.interval) == ("parts never together", (15, 15))
    assert found.at_fault.startswith("distance 12") and "from the scale, distance 0" in found.at_fault


def test_a_weak_score_is_lost_among_many_keys() -> None:
    """The right key weighs e³ ≈ 20 other keys: enough among 22, not among 200."""
    model = copy_by_hand("lbpe")
    with torch.no_grad():
        model.pos_embed.bias *= 3.0 / model.pos_embed.weights().max()
    found = stretched_match(model, train_max=10, scales=[20, 100])
    assert matches(model, 10) > 0.9 and matches(model, 100) == 0.0
    assert found.at(20) > 0.9 and found.at(100) < 0.1
    assert found.fails_at == 100 and found.cause == "attention spreads"


@pytest.mark.parametrize(
    ("task", "scheme", "scale", "cause", "words"),
    [
        ("copy", "learned", 10, "codes never trained", "position 3 seen from 13"),  # vectors of positions
        ("copy", "shifted:learned", 10, "codes trained for other keys", "position 1 seen from 11"),
        ("copy", "shifted:learned", 20, "codes never trained", "distance 20"),  # training draws where a sequence starts
        ("copy", "randomized:relative", 20, "codes trained for other keys", "20 places back"),
        ("copy", "coupled", 10, "codes never trained", "position ids that differ by 10"),
        ("copy", "hinted:learned", 10, "codes never trained", "position 3 seen from 13"),
        ("copy", "hinted:t5", 40, "codes never trained", "distance 40 to 45"),  # a bucket
        ("copy", "relative", 10, "codes trained for other keys", "distance 10"),
        ("copy", "hinted:relative", 10, "parts never together", "distance 10; from the scale, distance 0"),
        ("copy", NINE, 10, "parts never together", "i−j = n and j = 1 and i+j = n+2"),
        ("parity", "relative", 10, "operator rows never seen", "sum of 10 mod 2"),
    ],
)
def test_the_cause_names_codes_of_every_kind(task: str, scheme: str, scale: int, cause: str, words: str) -> None:
    """An untrained network fails whatever is done, so that what was trained decides what is said."""
    model = build(ModelConfig(task=task, scheme=scheme, n_layers=1)).eval()
    found = stretched_match(model, train_max=5, scales=[scale], rows=4)
    assert (found.cause, found.at_fault) == (cause, words)


@pytest.mark.parametrize("name", ["copy", "reverse", "addition", "parity-cot", "shift"])
def test_some_placement_keeps_the_sources_of_every_step(name: str) -> None:
    task = TASKS[name]
    few, many = task.circuit(8), task.circuit(20)
    kept = torch.stack([kept_steps(few, many, places) for places in place_tokens(task, 8, 20)])
    assert kept.any(0).all()
    for places in place_tokens(task, 8, 20):
        assert (places.diff() > 0).all() and places[0] == 0 and places[-1] == task.length(20) - 1


def test_stretching_to_the_same_n_changes_nothing() -> None:
    assert stretched_match(copier_by_scale(), train_max=LARGEST, scales=[LARGEST]).at(LARGEST) == 1.0


# -- marks -------------------------------------------------------------------------------------------------------


def test_a_copier_by_position_does_not_look_for_the_mark() -> None:
    found = known_by(copy_by_hand("lbpe"), train_max=5)
    assert (found["by_code"] == 1).all() and (found["by_content"] == 0).all() and set(found["mark"]) == {"="}


def test_a_copier_that_looks_for_the_mark_is_found_out() -> None:
    """It copies n back and, in its last step, writes ``$`` if there is a ``=`` anywhere."""
    task = TASKS["copy"]

    def model(tokens: torch.Tensor, scale: int) -> torch.Tensor:
        written = tokens.roll(scale, 1)
        last = torch.arange(tokens.shape[1]) == 2 * scale + 1
        there = (tokens == task.ids["="]).any(1, keepdim=True)
        return one_hot(torch.where(last & there, task.ids["$"], written), len(task.vocab)).float()

    found = known_by(model, task, train_max=4)
    assert (found["by_content"] == 1).all() and (found["by_code"] == 0).all()


def test_exchanged_inputs_tell_code_and_content_apart() -> None:
    task = TASKS["addition"]
    for scale, place in ((2, 0), (3, 3), (3, 4)):
        for mark, tokens, by_code, by_content in exchanged(task, scale, place, torch.Generator().manual_seed(0)):
            assert (by_code != by_content).all() and mark in "^+="
            marks = tokens.sort(1).values[:, -4:]  # marks have the largest ids: none is lost or added
            assert (marks == torch.tensor([task.ids[each] for each in "+=^$"])).all()
