"""Kinds of steps follow from lines, and no certificate goes beyond a failure: brute force, random networks."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from lengthlens.errors import UserError
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.models.schemes.relation import Form
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes.certificate import certify as certifying
from lengthlens.probes.certificate import proof, search
from lengthlens.probes.certificate.certify import Certificate, certify, stages
from lengthlens.probes.certificate.kinds import Cuts, Witnesses, named_places
from lengthlens.probes.certificate.places import NamedSteps, checked_layout
from lengthlens.probes.certificate.proof import all_kinds
from lengthlens.tasks import TASKS, Task
from lengthlens.tasks.circuit import Layout, Line
from lengthlens.tasks.copying import Copy, Duplicate, Reverse, Shift
from lengthlens.tasks.scale import Ints
from lengthlens.tests.parameters import few

COPY = TASKS["copy"]
THREE = ("0", "1", "2")  # symbols: the fewer, the less there is to compute, and as much to get wrong


# -- networks by hand ----------------------------------------------------------------------------------------------


def copier(task: Task, scheme: str, heads: int = 1, layers: int = 1, **options: object) -> HookedModel:
    """Writes what its heads read, ``$`` for a mark, and reads nothing yet. A second layer, and MLPs, do nothing."""
    tokens, same = len(task.vocab), torch.eye(len(task.vocab))
    config = ModelConfig(
        task=task.name, scheme=scheme, scheme_options=options, n_layers=layers, n_heads=heads, d_model=2 * tokens,
        d_head=tokens, d_mlp=2, attn_only=layers == 1, normalization_type=None,
    )  # fmt: skip
    model = build(config, task).eval()
    written = same.clone()
    written[[task.ids["="], task.ids["^"]]] = same[task.ids["$"]]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, :tokens] = same
        model.layers[0].attn.W_V[0, :tokens] = same
        model.layers[0].attn.W_O[0, :, tokens:] = 30 * written
        model.unembed.W_U[tokens:] = same
    return model


def point(model: HookedModel, forms: list[Form], weights: list[tuple[int, int, float]], head: int = 0) -> HookedModel:
    """Let a head of the first layer add (form, value, score)."""
    scheme = model.pos_embed
    assert isinstance(scheme, LearnedRelation) and len(forms) == len(scheme.forms)
    scheme.forms = tuple(forms)  # constants may be larger than those that are read
    with torch.no_grad():
        for form, value, score in weights:
            scheme.bias[0, head, form, scheme.options.window + value] += score  # all gates are 1 / number of forms
    return model


BACK = Form(1, -1, -1)  # i−j−n, which copying reads at 0


def lured(far: int, layers: int = 1) -> HookedModel:
    """Copies, but prefers the key n + `far` back, which only long instances have."""
    model = copier(COPY, "lbpe", layers=layers, forms="i-j-n, i-j-n-1", window=1, other="each")
    return point(model, [BACK, BACK._replace(constant=-far)], [(0, 0, 30.0), (1, 0, 60.0)])


def fails_at(model: HookedModel, task: Task, n: int, rows: int, generator: torch.Generator) -> bool:
    """Whether some instance of a scale is answered wrong: random ones, and one for each symbol alone."""
    size = (len(task.symbols), task.input_length(n))
    alike = torch.arange(len(task.symbols))[:, None].expand(size)
    batch = task.assemble(torch.cat([alike, task.draw(n, rows, generator, torch.device("cpu"))]), n)
    for part in range(0, len(batch), 2):  # two at a time: long ones take memory
        tokens = batch.tokens[part : part + 2]
        with torch.no_grad():
            right = model(tokens, batch.scale[part : part + 2])[:, :-1].argmax(-1) == tokens[:, 1:]
        if not bool(right[batch.query_mask[part : part + 2]].all()):
            return True
    return False


# -- the counterexample --------------------------------------------------------------------------------------------


def test_a_wrong_key_that_only_long_instances_have_ends_the_proof() -> None:
    """The last query, 2n+1, finds a key n + 900 back from n = 899 on: first ``^``, for which ``$`` is right."""
    model, generator = lured(900), torch.Generator().manual_seed(0)
    found = certify(model, max_length=100_000)
    assert (found.kind, found.length, found.limit) == ("proven", 899, False)
    assert not fails_at(model, COPY, 899, 1, generator) and fails_at(model, COPY, 900, 1, generator)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps: networks by hand have no weak ones that would be hard to find."""
    for name, fewer in {"ROWS": 24, "WEAKEST": 8, "STEPS_EACH": 2, "SEARCHED": 16, "ROUNDS": 15}.items():
        monkeypatch.setattr(search, name, fewer)
    monkeypatch.setattr(certifying, "SHORT_ROWS", 6)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("far", "least", "reason"), [(900, 250, "there may be new kinds of steps"), (100, 99, "the model itself is wrong")]
)
def test_and_the_conditional_certificate(far: int, least: int, reason: str) -> None:
    """It ends where the model errs, or where kinds of steps may change at scales that are too long to look at."""
    found = certify(lured(far, layers=2), max_length=100_000)
    assert found.kind == "conditional" and not found.limit and reason in found.reason
    assert least <= found.length < far


# -- lines ---------------------------------------------------------------------------------------------------------


def signs(cuts: Cuts, query: Ints, scale: Ints) -> list[bytes]:
    """On which side of every cut and wall each step is."""
    lines = np.concatenate([cuts.lines, cuts.walls])
    found = np.sign(lines[:, 0] * query[:, None] + lines[:, 1] * scale[:, None] + lines[:, 2]).astype(np.int8)
    return [bytes(row) for row in found]


@pytest.mark.parametrize("seed", range(12))
def test_every_kind_has_witnesses_where_it_begins_and_ends(seed: int) -> None:
    """Against all queries of all scales: every combination of signs is witnessed, within its scales and positions."""
    draw = random.Random(seed)
    factors, size = draw.choice([(-1, 0, 1), (-2, -1, 0, 1, 2, 3)]), draw.choice([3, 12, 40])
    places = [
        Line(draw.choice(factors), draw.randint(-3, 3), draw.randint(-size, size)) for _ in range(draw.randint(1, 5))
    ]
    ends = [(Line(0, 1, 1), Line(0, 2, 1)), (Line(0, 2, 2), Line(0, 3, 3)), (Line(), Line(0, 2, 1))]
    first, last = draw.choice(ends)
    cuts, start, limit = Cuts(places, first, last), draw.randint(1, 3), draw.choice([30, 70])
    query, scale, top = cuts.witnesses(start, limit)
    begins, low, high = dict[bytes, int](), dict[bytes, int](), dict[bytes, int]()
    for row, i, n in zip(signs(cuts, query, scale), query.tolist(), scale.tolist()):
        begins[row], low[row] = min(n, begins.get(row, n)), min(i, low.get(row, i))
        high[row] = max(i if n < top else 10**9, high.get(row, 0))
    changes, before = set(cuts.changes(start).tolist()), dict[int, set[bytes]]()
    for n in range(start, limit + 1):
        here = np.arange(first.at(0, n), last.at(0, n) + 1)
        rows = signs(cuts, here, np.full(len(here), n))
        assert all(begins[row] <= n and low[row] <= i <= high[row] for row, i in zip(rows, here.tolist()))
        before[n] = set(rows)
        if n >= start + cuts.period and n not in changes:
            assert before[n] == before[n - cuts.period]


@pytest.mark.parametrize(
    "task", few([*(TASKS[name] for name in ("copy", "reverse", "addition")), Shift(by=7)], Shift(by=7))
)
@pytest.mark.parametrize("scheme", ["lbpe", "ideal"])
def test_every_step_is_of_a_kind_that_was_found(task: Task, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With forms that meet late, step by step: against what schemes and circuits say at each scale."""
    monkeypatch.setattr(proof, "BLOCK", 100)  # kinds are put together from many blocks
    options = {"forms": "i-j-n, i+j-2n-20, 2i-j-3n, j-17", "window": 1, "other": "each"} if scheme == "lbpe" else {}
    model = build(ModelConfig(task=task.name, scheme=scheme, scheme_options=options), task)
    with torch.no_grad():
        for parameter in model.pos_embed.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    found, layout = dict[bytes, proof.Kind](), checked_layout(task)
    collected = proof._collect
    monkeypatch.setattr(proof, "_collect", lambda into, *rest: collected(found, *rest))
    all_kinds(model, task, layout, 80)
    for n in range(1, 81):
        steps = NamedSteps.of_scale(model.pos_embed, task, n)
        rows, number = steps.kinds()
        for which, query in zip(number.tolist(), steps.query.tolist()):
            kind = found[rows[which]]
            assert kind.since <= n and kind.low <= query <= kind.high


@pytest.mark.parametrize("task", [task for task in TASKS.values() if task.layout()], ids=lambda task: task.name)
def test_layouts_are_those_of_circuits(task: Task) -> None:
    layout = checked_layout(task)
    for n in (*range(layout.since, 40), 501):
        circuit = task.circuit(n)
        which, sources = layout.reads(circuit.query, np.full(len(circuit), n))
        assert np.array_equal(sources, circuit.sources) and (which >= 0).all()
        assert (layout.answer.at(0, n), layout.length.at(0, n)) == (task.prompt_length(n), task.length(n))


def test_every_position_addressed_task_of_one_scale_has_a_layout() -> None:
    assert {name for name, task in TASKS.items() if task.layout()} == {
        name for name, task in TASKS.items() if task.family == "position-addressed" and task.one_number
    }


# -- no proof where it cannot be computed --------------------------------------------------------------------------


class Silent(Copy):
    """Copying that does not say where its steps are."""

    def layout(self) -> Layout | None:
        return None


class Wrong(Copy):
    """Copying that reads backwards and does not say so."""

    def sources(self, scale: int) -> Ints:
        return np.append(np.arange(scale, 0, -1), scale + 1)


def test_refusals_in_a_sentence() -> None:
    with pytest.raises(UserError, match="'copy' does not say where its steps are at every scale"):
        certify(copier(Silent(), "ideal"))
    with pytest.raises(UserError, match="the layout of task 'copy' is not that of its circuit at scale 2"):
        certify(copier(Wrong(), "ideal"))
    with pytest.raises(UserError, match=r"repeat only every \d+ scales"):
        certify(
            point(
                copier(COPY, "lbpe", forms="i-j-n, i-j", window=0, other="each"),
                [Form(997, -1, 5), BACK],
                [(0, 0, 1), (1, 0, 1)],
            )
        )
    with pytest.raises(UserError, match="built for task 'copy', not for 'reverse'"):
        certify(copier(COPY, "ideal"), task=TASKS["reverse"])
    broken = copier(COPY, "ideal")
    with torch.no_grad():
        broken.unembed.W_U[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"weights of the model are not finite: unembed\.W_U"):
        certify(broken)


def test_what_rounding_can_do_is_taken_off() -> None:
    """A lead of one part in a million: there in exact arithmetic, and not to be told from rounding by the model."""
    model = copier(COPY, "ideal")
    with torch.no_grad():
        model.pos_embed.table.fill_(40.0)
        model.unembed.b_U[:] = 30 * (1 - 1e-6)
        model.unembed.b_U[COPY.ids["0"]] = 0
        model.unembed.W_U[:, 1:] = 0
        model.layers[0].attn.W_O *= torch.eye(len(COPY.vocab))[0].repeat(2)  # only zeros are written
    assert certify(model, max_length=10).kind == "none"


# -- random networks -----------------------------------------------------------------------------------------------


@dataclass
class Drawn:
    """A network at random, and scales at which something may go wrong."""

    task: Task
    model: HookedModel
    scales: list[int]


def drawn(seed: int, constants: int, layers: int = 1) -> Drawn:
    """A copier of some kind with lures: keys at random lines, far or near, wanted or avoided, in one head or two."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    by_form = draw.random() < 0.7
    tasks: list[Task] = [Copy(THREE), Reverse(THREE)]
    if not by_form:
        tasks += [Shift(THREE, by=draw.choice([1, 2, min(constants, 60)])), Duplicate(THREE)]
    task, heads = draw.choice(tasks), draw.choice([1, 1, 2])
    other = draw.choice(["each", "each", "one"])
    other = "mean" if other == "one" and by_form and seed % 2 else other
    strength = draw.choice([draw.uniform(1, 9), draw.uniform(9, 40)])
    if by_form:
        number, window = draw.randint(2, 4), draw.randint(0, 2)
        lures = [
            Form(draw.choice([1, 1, 1, 0, -1, 2]), draw.choice([1, -1]), draw.choice([0, -1, -1, -2, 1]),
                 draw.choice([-1, -1, 1]) * draw.randint(0, constants))
            for _ in range(number - 1)
        ]  # fmt: skip
        forms = [BACK if isinstance(task, Copy) else Form(1, 1, -2, -1), *lures]
        text = ", ".join(f"j-{k}" for k in range(number))  # as many as there will be
        model = copier(task, "lbpe", heads, layers, forms=text, window=window, other=other)
        weights = [(0, 0, strength)]
        for _ in range(draw.randint(1, 5)):
            weights.append(
                (
                    draw.randrange(number),
                    draw.randint(-window, window),
                    draw.choice([-1, 1]) * draw.uniform(0, 2 * strength),
                )
            )
        point(model, forms, weights)
        if heads > 1:
            point(model, forms, [(draw.randrange(number), 0, draw.uniform(0, 9))], head=1)
        if other != "each":
            model.pos_embed.prune_below(0.05)
    else:
        model = copier(task, "ideal", heads, layers, other=other)
        with torch.no_grad():
            model.pos_embed.table[0, 0] = strength
    noise = draw.choice([0.0, 0.0, 0.1, 0.5])
    with torch.no_grad():
        attn = model.layers[0].attn
        for part in (attn.W_Q, attn.W_K, attn.W_V):
            part += noise * torch.randn(part.shape, generator=generator)
        if heads > 1:  # writes a little of everything
            attn.W_O[1] += noise * torch.randn(attn.W_O[1].shape, generator=generator)
    if other == "each" and draw.random() < 0.3:
        model.config = replace(model.config, score_scaling="log", train_ctx=23)
    layout = task.layout()
    assert layout is not None
    named = model.pos_embed.named_lines(layout) or []
    changes = Cuts(named_places(layout, named, layers), layout.first, layout.last).changes(layout.since)
    return Drawn(task, model, changes.tolist())


def first_failure(each: Drawn, seed: int, length: int, most: int, tries: int) -> int | None:
    """A scale up to `length` at which the network fails, if one is found among those up to `most` that are run."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    top = min(length, most)
    scales = {each.task.min_scale, top, max(1, top - 1), *(draw.randint(1, top) for _ in range(2))}
    near = [n for n in each.scales if n <= top]
    scales |= {*draw.sample(near, min(tries, len(near))), *near[-2:]}
    return next((n for n in sorted(scales) if fails_at(each.model, each.task, n, 3, generator)), None)


def certified(each: Drawn, limit: int) -> Certificate:
    return certify(each.model, max_length=limit, task=each.task)


def exceeded(
    seeds: range, constants: int, most: int, tries: int, layers: int = 1
) -> Iterator[tuple[int, Certificate, int | None]]:
    for seed in seeds:
        each = drawn(seed, constants, layers)
        try:
            found = certified(each, 20 * most)
        except UserError:  # refused, in a sentence: that is no certificate
            continue
        yield seed, found, first_failure(each, seed, found.length, most, tries) if found.length else None


def assert_none_exceeded(found: list[tuple[int, Certificate, int | None]], proven: float) -> None:
    """No failure within a certificate; and so many have one, and so many end, that this says something."""
    assert [(seed, each.length, failed) for seed, each, failed in found if failed is not None] == []
    lengths = [each.length for _, each, _ in found]
    assert sum(length > 0 for length in lengths) >= proven * len(found)
    assert any(not each.limit and each.length > 8 for _, each, _ in found)


@pytest.mark.slow
def test_no_certificate_exceeds_a_failure() -> None:
    assert_none_exceeded(list(exceeded(range(15), constants=300, most=350, tries=3)), proven=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "constants", "most"),
    [(range(1000, 1300), 300, 350), (range(1300, 1450), 1000, 700), (range(1450, 1500), 5000, 2500)],
)
def test_no_certificate_exceeds_a_failure_in_500_networks(seeds: range, constants: int, most: int) -> None:
    """Constants up to 5000, and run up to n = 2500: fewer of those, which take seconds each."""
    assert_none_exceeded(list(exceeded(seeds, constants, most, tries=3)), proven=0.3)


@pytest.mark.usefixtures("quick")
def test_no_conditional_certificate_exceeds_a_failure() -> None:
    found = list(exceeded(range(2), constants=150, most=200, tries=2, layers=2))
    assert all(failed is None for _, _, failed in found)
    assert any(each.length for _, each, _ in found), "something must be certified for this to say something"


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_no_conditional_certificate_exceeds_a_failure_in_40_networks() -> None:
    assert_none_exceeded(list(exceeded(range(100, 140), constants=1000, most=1000, tries=3, layers=2)), proven=0.3)


def believed(cuts: Cuts, start: int, limit: int) -> Witnesses:
    """The rule that was: look at scales up to 128, and at 500 and 501, and take it that nothing new comes."""
    query, scale = cuts.slices(np.array([n for n in (*range(start, 129), 500, 501) if n <= limit]))
    return Witnesses(query, scale, min(100, limit))


@pytest.mark.slow
def test_the_rule_that_looked_at_some_scales_fails_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: what is tested for is there to be found."""
    monkeypatch.setattr(Cuts, "witnesses", believed)
    assert certify(lured(900), max_length=100_000).length == 100_000
    found = exceeded(range(40), constants=300, most=350, tries=3)
    assert any(failed is not None for _, _, failed in found)


def test_a_model_on_another_device_is_copied_to_the_cpu_and_left_where_it_is() -> None:
    """As far as it can be seen without one: the config says where the model is, and tables are made from a copy."""
    model = lured(20)
    own = certify(model, max_length=100)
    model.cfg.device = torch.device("cuda")
    assert certify(model, max_length=100) == own and own.length == 19
    assert model.cfg.device.type == "cuda"


def test_stages_cover_all_scales() -> None:
    model = lured(100, layers=2)
    layout = checked_layout(COPY)
    found, settled = stages(model, COPY, layout, 5000)
    assert [each.first for each in found[1:]] == [each.last + 1 for each in found[:-1]]
    assert (found[0].first, found[-1].last) == (1, 5000) and 100 < settled < 400
    assert any(not each.alone and each.last < 100 for each in found) and not found[-1].alone
