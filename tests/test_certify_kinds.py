"""Kinds of steps follow from lines, and no certificate goes beyond a failure: brute force, random networks."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.models.schemes.relation import Form
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes import certify as certifying
from lengthlens.probes import proof
from lengthlens.probes.certify import Certificate, certify
from lengthlens.probes.proof import NamedSteps, Settling, all_kinds, checked_layout, settling, settling_of
from lengthlens.tasks import TASKS, Task
from lengthlens.tasks.circuit import Layout, Line
from lengthlens.tasks.copying import Copy, Duplicate, Reverse, Shift
from lengthlens.tasks.scale import Ints
from lengthlens.tests.parameters import few

COPY = TASKS["copy"]
THREE = ("0", "1", "2")  # symbols: the fewer, the less there is to compute, and as much to get wrong


def copier(task: Task, scheme: str, heads: int = 1, **options: object) -> HookedModel:
    """Writes what its heads read, ``$`` for a mark, and reads nothing yet."""
    tokens, same = len(task.vocab), torch.eye(len(task.vocab))
    config = ModelConfig(
        task=task.name, scheme=scheme, scheme_options=options, n_layers=1, n_heads=heads, d_model=2 * tokens,
        d_head=tokens, attn_only=True, normalization_type=None,
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


def lured(far: int) -> HookedModel:
    """Copies, but prefers the key n + `far` back, which only long instances have."""
    model = copier(COPY, "lbpe", forms="i-j-n, i-j-n-1", window=1, other="each")
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


def test_a_wrong_key_that_only_long_instances_have_ends_the_proof() -> None:
    """The last query, 2n+1, finds a key n + 200 back from n = 199 on: first ``^``, for which ``$`` is right."""
    model, generator = lured(200), torch.Generator().manual_seed(0)
    found = certify(model, max_length=100_000)
    assert (found.kind, found.length, found.limit) == ("proven", 199, False)
    assert not fails_at(model, COPY, 199, 1, generator) and fails_at(model, COPY, 200, 1, generator)


def test_a_proof_ends_where_there_are_too_many_steps_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "MOST_STEPS", 1000)  # those of n = 1 … 43: 2 + … + 44
    found = certify(lured(200), max_length=100_000)
    assert (found.kind, found.length, found.limit) == ("proven", 43, False) and found.settled and found.settled > 200
    assert "new kinds of steps" in found.reason


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_new_once_kinds_of_steps_have_settled(seed: int) -> None:
    """Against all queries: how any two lines lie, at n and a period before, and that kinds never move to the left."""
    draw = random.Random(seed)
    factors, size = draw.choice([(-1, 0, 1), (-2, -1, 0, 1, 2, 3)]), draw.choice([3, 12, 40])
    places = [
        Line(draw.choice(factors), draw.randint(-3, 3), draw.randint(-size, size)) for _ in range(draw.randint(1, 5))
    ]
    ends = [(Line(0, 1, 1), Line(0, 2, 1)), (Line(0, 2, 2), Line(0, 3, 3)), (Line(), Line(0, 2, 1))]
    first, last = draw.choice(ends)
    settled, period = settling(places, first, last)
    lines = np.array([*places, Line(1), first, last])

    def kinds(n: int) -> dict[bytes, int]:
        """By how the lines lie, the first query of which that is so."""
        query = np.arange(first.at(0, n), last.at(0, n) + 1)
        where = lines[:, :1] * query + (lines[:, 1:2] * n + lines[:, 2:])  # [line, query]
        found = np.sign(where[:, None] - where[None]).astype(np.int8)
        return {bytes(found[:, :, k].tobytes()): int(query[k]) for k in reversed(range(len(query)))}

    for n in (*range(settled + period, settled + 3 * period), 3 * settled + 50):
        before = kinds(Settling(settled, period).alike(n))
        assert kinds(n).keys() == before.keys(), n
        assert all(query >= before[kind] for kind, query in kinds(n).items())


@pytest.mark.parametrize(
    "task", few([*(TASKS[name] for name in ("copy", "reverse", "addition")), Shift(by=7)], Shift(by=7))
)
@pytest.mark.parametrize("scheme", ["lbpe", "ideal"])
def test_every_step_is_of_a_kind_that_was_found(task: Task, scheme: str) -> None:
    """With forms that meet late, step by step: against what schemes and circuits say at each scale."""
    options = {"forms": "i-j-n, i+j-2n-20, 2i-j-3n, j-17", "window": 1, "other": "each"} if scheme == "lbpe" else {}
    model = build(ModelConfig(task=task.name, scheme=scheme, scheme_options=options), task)
    with torch.no_grad():
        for parameter in model.pos_embed.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    kinds, settled, reached = all_kinds(model.pos_embed, task, checked_layout(task), 80)
    assert reached == 80 and (scheme == "ideal" or settled > 20)
    found = {kind.step.kinds()[0][0]: kind for kind in kinds}
    for n in range(1, 81):
        steps = NamedSteps.of_size(model.pos_embed, task, n)
        rows, number = steps.kinds()
        for which, query in zip(number.tolist(), steps.query.tolist()):
            kind = found[rows[which]]
            assert kind.since <= n and kind.low <= query <= kind.high


ADDRESSED = [task for task in TASKS.values() if task.family == "position-addressed" and task.one_number]


@pytest.mark.parametrize("task", ADDRESSED, ids=lambda task: task.name)
def test_layouts_are_those_of_circuits(task: Task) -> None:
    layout = checked_layout(task)
    for n in (*range(layout.since, 40), 501):
        circuit = task.circuit(n)
        which, sources = layout.reads(circuit.query, np.full(len(circuit), n))
        assert np.array_equal(sources, circuit.sources) and (which >= 0).all()
        assert (layout.answer.at(0, n), layout.length.at(0, n)) == (task.prompt_length(n), task.length(n))


class Silent(Copy):
    """Copying that does not say where its steps are."""

    def layout(self) -> Layout | None:
        return None


class Wrong(Copy):
    """Copying that reads backwards and does not say so."""

    def sources(self, scale: int) -> Ints:
        return np.append(np.arange(scale, 0, -1), scale + 1)


def test_why_nothing_is_proven() -> None:
    apart = copier(COPY, "lbpe", forms="i-j-n, i-j", window=0, other="each")
    for model, why in (
        (copier(Silent(), "ideal"), "'copy' does not say where its steps are at every n"),
        (copier(Wrong(), "ideal"), "the layout of task 'copy' is not that of its circuit at n = 2"),
        (point(apart, [Form(997, -1, 5), BACK], [(0, 0, 1), (1, 0, 1)]), "sizes, for the factors of i in the forms"),
    ):
        found = certify(model, max_length=3)
        assert found.kind != "proven" and why in found.unproven


def test_what_rounding_can_do_is_taken_off() -> None:
    """A lead of one part in a million: there in exact arithmetic, and not to be told from rounding by the model."""
    model = copier(COPY, "ideal")
    with torch.no_grad():
        model.pos_embed.table.fill_(40.0)
        model.unembed.b_U[:] = 30 * (1 - 1e-6)
        model.unembed.b_U[COPY.ids["0"]] = 0
        model.unembed.W_U[:, 1:] = 0
        model.layers[0].attn.W_O *= torch.eye(len(COPY.vocab))[0].repeat(2)  # only zeros are written
    assert certify(model, max_length=10).kind != "proven"


def drawn(seed: int, constants: int) -> tuple[Task, HookedModel]:
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
        model = copier(task, "lbpe", heads, forms=text, window=window, other=other)
        weights = [(0, 0, strength)]
        for _ in range(draw.randint(1, 5)):
            where = draw.randrange(number), draw.randint(-window, window)
            weights.append((*where, draw.choice([-1, 1]) * draw.uniform(0, 2 * strength)))
        point(model, forms, weights)
        if heads > 1:
            point(model, forms, [(draw.randrange(number), 0, draw.uniform(0, 9))], head=1)
        if other != "each":
            model.pos_embed.prune_below(0.05)
    else:
        model = copier(task, "ideal", heads, other=other)
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
    return task, model


def first_failure(model: HookedModel, task: Task, seed: int, length: int, most: int) -> int | None:
    """An n up to `length` at which the network fails, if one is found among those up to `most` that are run."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    top = min(length, most)
    sizes = {task.min_scale, top, max(1, top - 1), *(draw.randint(1, top) for _ in range(5))}
    return next((n for n in sorted(sizes) if fails_at(model, task, n, 3, generator)), None)


def exceeded(seeds: range, constants: int, most: int) -> Iterator[tuple[int, Certificate, int | None]]:
    """For each network: what is known of it, and a failure within what is proven, if one is found."""
    for seed in seeds:
        task, model = drawn(seed, constants)
        found = certify(model, max_length=20 * most, task=task)
        proven = found.kind == "proven"
        yield seed, found, first_failure(model, task, seed, found.length, most) if proven else None


@pytest.fixture
def short_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of networks about which nothing is proven: these are about those of which something is."""
    monkeypatch.setattr(certifying, "INSTANCES", 20)


@pytest.mark.usefixtures("short_tests")
@pytest.mark.parametrize(
    ("seeds", "constants", "most"),
    [
        (range(8, 15), 100, 60),
        pytest.param(range(1000, 1400), 100, 200, marks=pytest.mark.slow),
        pytest.param(range(1400, 1500), 300, 350, marks=pytest.mark.slow),
    ],
)
def test_no_proof_exceeds_a_failure(seeds: range, constants: int, most: int) -> None:
    """Nor a test; and so many have a proof, and so many end, that this says much."""
    found = list(exceeded(seeds, constants, most))
    assert [(seed, each.length, failed) for seed, each, failed in found if failed is not None] == []
    assert all(each.length < min(each.failed) for _, each, _ in found if each.failed)
    proven = [each for _, each, _ in found if each.kind == "proven"]
    assert len(proven) >= 0.3 * len(found) and any(not each.limit and each.length > 8 for each in proven)


@pytest.mark.slow
@pytest.mark.usefixtures("short_tests")
def test_a_rule_that_looked_at_some_sizes_fails_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: what is tested for is there to be found."""
    monkeypatch.setattr(proof, "settling_of", lambda *of: settling_of(*of)._replace(since=16))
    assert certify(lured(200), max_length=100_000).length == 100_000
    assert any(failed is not None for *_, failed in exceeded(range(40), constants=100, most=200))


def test_a_model_on_another_device_is_copied_to_the_cpu_and_left_where_it_is() -> None:
    """As far as it can be seen without one: the config says where the model is, and tables are made from a copy."""
    model = lured(20)
    own = certify(model, max_length=100)
    model.cfg.device = torch.device("cuda")
    assert certify(model, max_length=100) == own and own.length == 19
    assert model.cfg.device.type == "cuda"
