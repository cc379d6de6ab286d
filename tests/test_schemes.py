"""What every position embedding must keep to: the contract, its own relation, and plain answers to wrong questions."""

import copy
import itertools
import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes import SCHEMES, SchemeSpec, Sizes, make_scheme, scheme_names
from lengthlens.models.schemes.relation import CodeTable
from lengthlens.models.schemes.scheme import Positions, PositionScheme
from lengthlens.models.schemes.spec import WRAPPERS, scheme_rows
from lengthlens.models.transformer import build
from lengthlens.probes.network import probed_relation, prune
from lengthlens.runs.config import RunConfig
from lengthlens.tasks import TASKS
from lengthlens.theory.grid import verdict_grid

SIZES = Sizes(n_layers=2, n_heads=3, d_head=8, d_model=24, n_ctx=128)
COPY = TASKS["copy"]
NAMES = scheme_names()
# Small options, so that clipping, windows and thresholds are all met at the lengths of the tests.
SMALL = {
    "lbpe-marks": {"other": "each"},  # how many keys weigh as one is no matter of codes
    "relative": {"max_distance": 5},
    "shaw": {"max_distance": 5},
    "urpe": {"max_distance": 5},
    "t5": {"num_buckets": 8, "max_distance": 12},
    "fire": {"threshold": 6.0, "hidden": 8},
    "rope-pi": {"original_length": 12},
    "rope-ntk": {"original_length": 12},
    "rope-yarn": {"original_length": 12},
    "cope": {"max_position": 6},
    "rpe-square": {"max_distance": 5},
    "lbpe": {"window": 2},
}


def made(name: str, seed: int = 0, **options: object) -> PositionScheme:
    """A scheme in evaluation with random parameters."""
    torch.manual_seed(seed)
    small = SMALL.get(name.rpartition(":")[2], {})
    extra = {"range": 100} if name.startswith("randomized:") else {}
    scheme = make_scheme(name, {**small, **extra, **options}, COPY, SIZES).eval()
    for parameter in scheme.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    return scheme


def content(rows: int, length: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Queries and keys, [row, pos, head, d_head]."""
    generator = torch.Generator().manual_seed(1)
    shape = (2, rows, length, SIZES.n_heads, SIZES.d_head)
    q, k = torch.randn(shape, generator=generator).to(device)
    return q, k


def parts(scheme: PositionScheme, positions: Positions, q: Tensor, k: Tensor, rows: slice) -> dict[str, Tensor]:
    """Whatever the scheme gives for a block of queries, by place."""
    given = {"embed": scheme.embed(positions), "embed_qk": scheme.embed_qk(positions)}
    q, k = scheme.rotate(q, positions), scheme.rotate(k, positions)
    given["dot"] = torch.einsum("bqhd,bkhd->bhqk", q[:, rows], k[:, : rows.stop])
    for layer in range(SIZES.n_layers):
        given[f"score {layer}"] = scheme.score(layer, positions, rows, q[:, rows], k[:, : rows.stop])
        given[f"factor {layer}"] = scheme.factor(layer, positions, rows)
    return {place: value for place, value in given.items() if value is not None}


# -- the contract ----------------------------------------------------------------------------------------------------


def test_names_that_stored_runs_have_stay():
    assert set(SCHEMES) >= set(
        "none learned sinusoidal shortformer rope rope-pi rope-ntk rope-yarn alibi t5 relative shaw xl kerple-log "
        "kerple-power fire cope urpe coupled abacus rpe-square ideal lbpe".split()
    )
    assert {"hinted:relative", "hinted:learned", "randomized:rope", "randomized:learned"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 2, 22, 100])
def test_shapes_and_finiteness(name, length):
    scheme = made(name)
    tokens = torch.zeros(3, length, dtype=torch.long)
    positions = scheme.positions(tokens, torch.tensor([1, 3, 9]))
    given = parts(scheme, positions, *content(3, length), slice(0, length))
    for place, value in given.items():
        assert value.isfinite().all()
        if place.startswith("embed"):
            assert value.shape in ((1, length, SIZES.d_model), (3, length, SIZES.d_model))
        else:
            assert value.shape[0] in (1, 3) and value.shape[1] in (1, SIZES.n_heads)
            assert value.shape[2:] == (length, length)


@pytest.mark.parametrize("name", NAMES)
def test_places_it_acts_in_are_those_it_names(name):
    scheme = made(name)
    positions = scheme.positions(COPY.sample(5, 2, torch.Generator()).tokens)
    q, k = content(2, 13)
    given = {place.split()[0] for place in parts(scheme, positions, q, k, slice(0, 13))} - {"dot"}
    if not torch.equal(scheme.rotate(q, positions), q):
        given.add("rotate")
    assert given == set(scheme.acts()) == set(SchemeSpec.of(name).scheme.acts())


@pytest.mark.parametrize("name", NAMES)
def test_a_block_of_queries_is_a_block_of_the_whole(name):
    scheme = made(name)
    positions = scheme.positions(COPY.sample([4, 9, 2], generator=torch.Generator()).tokens)
    q, k = content(3, 21)
    whole = parts(scheme, positions, q, k, slice(0, 21))
    for start, stop in ((0, 1), (0, 8), (5, 13), (20, 21)):
        causal = torch.arange(stop) <= torch.arange(start, stop)[:, None]
        for place, value in parts(scheme, positions, q, k, slice(start, stop)).items():
            if not place.startswith("embed"):
                expected = whole[place][:, :, start:stop, :stop]
                torch.testing.assert_close(value * causal, expected * causal, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if make_scheme(name, None, COPY).uses_scale])
def test_mixed_scales_are_single_scales_row_by_row(name):
    scheme = made(name)
    batch = COPY.sample([4, 9, 2, 9], generator=torch.Generator())
    q, k = content(4, 21)
    mixed = parts(scheme, scheme.positions(batch.tokens), q, k, slice(0, 21))
    for row in range(4):
        one = slice(row, row + 1)
        alone = parts(scheme, scheme.positions(batch.tokens[one]), q[one], k[one], slice(0, 21))
        for place, value in alone.items():
            torch.testing.assert_close(mixed[place][one], value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_scale_is_inferred_from_tokens(name):
    scheme = made(name)
    batch = COPY.sample([4, 9], generator=torch.Generator())
    q, k = content(2, 21)
    given = parts(scheme, scheme.positions(batch.tokens, batch.scale), q, k, slice(0, 21))
    for place, value in parts(scheme, scheme.positions(batch.tokens), q, k, slice(0, 21)).items():
        assert torch.equal(value, given[place])


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_gradient(name):
    scheme = made(name)
    positions = scheme.positions(COPY.sample([4, 9], generator=torch.Generator()).tokens)
    q, k = content(2, 21)
    given = parts(scheme, positions, q.requires_grad_(), k.requires_grad_(), slice(0, 21))
    causal = torch.ones(21, 21).tril()
    sum((v if p.startswith("embed") else v * causal).square().sum() for p, v in given.items()).backward()
    for parameter in scheme.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_meta_device(name, training):
    with torch.device("meta"):
        scheme = make_scheme(name, None, COPY, SIZES).train(training)
    positions = scheme.positions(COPY.sample([4, 9], generator=torch.Generator()).tokens.to("meta"))
    q, k = content(2, 21, "meta")
    given = parts(scheme, positions, q.requires_grad_(), k.requires_grad_(), slice(0, 21))
    sum(value.sum() for value in given.values()).backward()
    assert all(parameter.grad is not None for parameter in scheme.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_autocast(name):
    scheme = made(name)
    positions = scheme.positions(COPY.sample([4, 9], generator=torch.Generator()).tokens)
    q, k = content(2, 21)
    exact = parts(scheme, positions, q, k, slice(0, 21))
    with torch.autocast("cpu", torch.bfloat16):
        rough = parts(scheme, positions, q.bfloat16(), k.bfloat16(), slice(0, 21))
    for place, value in rough.items():
        spread = exact[place].abs().max() + 1
        assert ((value.float() - exact[place]).abs().max() / spread) < 0.05, place


@pytest.mark.parametrize("name", NAMES)
def test_state_and_copies(name):
    scheme = made(name)
    again = made(name, seed=1)
    again.load_state_dict(scheme.state_dict(), strict=True)
    assert again.options == scheme.options
    tokens = COPY.sample([4, 9], generator=torch.Generator()).tokens
    q, k = content(2, 21)
    for other in (again, copy.deepcopy(scheme)):
        given = parts(other, other.positions(tokens), q, k, slice(0, 21))
        for place, value in parts(scheme, scheme.positions(tokens), q, k, slice(0, 21)).items():
            assert torch.equal(given[place], value)


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_has_two_names(name):
    scheme = made(name)
    assert len(list(scheme.named_parameters(remove_duplicate=False))) == len(list(scheme.parameters()))


# -- the relation ----------------------------------------------------------------------------------------------------

SCALES = (1, 4, 7, 10)
# Stated by rank or by content: alike on average, or for the tokens that are counted from.
INEXACT = {name for name in NAMES if name.startswith("randomized:")} | {"rpe-square"}
# A code may be finer than need be for some parameters: clipped networks, and positions that differ but count alike.
COARSER = {"cope", "fire", "hinted:fire", "sinusoidal", "rope-pi", "rope-ntk", "rope-yarn"}


def treatments(scheme: PositionScheme) -> tuple[Tensor, Tensor]:
    """For every causal pair at each scale its code, and all that the scheme does to it if all tokens are the same."""
    codes, done = [], []
    for scale in SCALES:
        tokens = COPY.sample(scale, 1, torch.Generator().manual_seed(scale)).tokens
        length = tokens.shape[1]
        query, key = torch.tril_indices(length, length)
        positions = scheme.positions(tokens)
        q, k = (x[:, :1].expand(1, length, -1, -1) for x in content(1, 1))
        given = parts(scheme, positions, q, k, slice(0, length))
        columns = []
        for place, value in given.items():
            if place.startswith("embed"):
                columns += [value[0, query], value[0, key]]
            else:
                columns.append(value[0][:, query, key].T)
        done.append(torch.cat([column.detach() for column in columns], 1))
        codes.append(scheme.phi(query, key, torch.tensor(scale)))
        assert codes[-1].dtype == torch.int64 and codes[-1].shape[:-1] == query.shape
    return torch.cat(codes), torch.cat(done)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in INEXACT])
@pytest.mark.parametrize("seed", [0, 1])
def test_same_code_means_treated_alike(name, seed):
    codes, done = treatments(made("lbpe/other=each" if name == "lbpe" else name, seed))  # others weigh alike, by number
    distinct, group = codes.unique(dim=0, return_inverse=True)
    shape = (len(distinct), done.shape[1])
    index = group[:, None].expand_as(done)
    most = torch.full(shape, -torch.inf).scatter_reduce(0, index, done, "amax")
    least = torch.full(shape, torch.inf).scatter_reduce(0, index, done, "amin")
    assert (most - least).max() < 2e-4
    if name not in COARSER:  # and different codes are told apart
        assert len((most * 1e3).round().unique(dim=0)) == len(distinct)


@pytest.mark.parametrize("name", NAMES)
def test_relation_broadcasts_and_is_described(name):
    scheme = made(name)
    position = torch.arange(12)
    scales = torch.tensor([3, 5])
    block = scheme.phi(position[None, :, None], position, scales[:, None, None])
    assert block.shape[:3] == (2, 12, 12)
    for row, scale in enumerate(scales):
        for i, j in ((0, 0), (7, 2), (11, 11)):
            one = scheme.phi(torch.tensor(i), torch.tensor(j), scale)
            assert torch.equal(one, block[row, i, j])
            assert scheme.describe(tuple(one.tolist()))
    assert scheme.relation_in_words == SchemeSpec.of(name).relation_in_words


def test_relation_of_many_pairs_is_quick_and_exact():
    query = torch.randint(0, 10_000, (300_000,), generator=torch.Generator().manual_seed(0))
    key = (query * torch.rand(300_000, generator=torch.Generator().manual_seed(1))).long()
    for name in ("hinted:relative", "ideal", "lbpe", "t5"):
        assert make_scheme(name, None, COPY).phi(query, key, torch.tensor(5000)).shape[0] == 300_000


@pytest.mark.parametrize(
    "name", ["rope", "alibi", "t5", "relative", "shaw", "xl", "kerple-log", "kerple-power", "urpe"]
)
def test_relative_schemes_depend_on_distance_only(name):
    """Told that all positions are 37 further on, nothing changes between pairs."""
    scheme, tokens = made(name), torch.zeros(1, 15, dtype=torch.long)
    q, k = content(1, 15)
    here = parts(scheme, scheme.positions(tokens), q, k, slice(0, 15))
    moved = Positions(tokens, torch.arange(37, 52)[None], None, limit=60)
    for place, value in parts(scheme, moved, q, k, slice(0, 15)).items():
        torch.testing.assert_close(value.tril(), here[place].tril(), atol=1e-4, rtol=1e-4)


# -- names and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rop", "did you mean 'rope'"),
        ("hintd:relative", "did you mean 'hinted'"),
        ("hinted:relativ", "did you mean 'relative'"),
        ("hinted:none", "does not look at positions"),
        ("hinted:rope", "cancels in i−j"),
        ("hinted:ideal", "derived from the scale already"),
        ("randomized:none", "does not look at positions"),
        ("randomized:ideal", "true positions"),
        ("randomized:abacus", "given by the task"),
        ("randomized:hinted:relative", "one wrapper at a time"),
        ("shifted:rope", "where a sequence starts makes no difference"),
        ("shifted:coupled", "already moved at random"),
        ("", "unknown scheme"),
    ],
)
def test_wrong_names_are_refused_with_a_reason(name, reason):
    with pytest.raises(UserError, match=reason):
        make_scheme(name, None, COPY)


@pytest.mark.parametrize(("prefix", "inner"), itertools.product(WRAPPERS, SCHEMES))
def test_a_composition_is_made_or_refused(prefix, inner):
    name = f"{prefix}:{inner}"
    if name in NAMES:
        assert make_scheme(name, None, COPY, SIZES).name == name
    else:
        with pytest.raises(UserError, match="makes no sense"):
            make_scheme(name, None, COPY, SIZES)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("relative", {"max_distence": 3}, "did you mean 'max_distance'"),
        ("relative", {"max_distance": "three"}, "a whole number from 1 to 1000000, not 'three'"),
        ("relative", {"max_distance": 2.5}, "not 2.5"),
        ("relative", {"max_distance": 0}, "from 1 to 1000000, not 0"),
        ("relative", {"max_distance": True}, "not True"),
        ("relative", {"max_distance": [3]}, r"not \[3\]"),
        ("alibi", {"slopes": "publishd"}, "did you mean 'published'"),
        ("rope", {"base": "nan"}, "a finite number"),
        ("rope", {"rotary_dim": 3}, "must be even"),
        ("rope", {"rotary_dim": 40}, "at most d_head"),
        ("rope", {"adjacent_pairs": "maybe"}, "true or false, not 'maybe'"),
        ("t5", {"max_distance": 9}, "must be more than that"),
        ("lbpe", {"forms": "i-j, i*j"}, "no linear form"),
        ("lbpe", {"forms": "i-n"}, r"must contain j or 2j"),
        ("lbpe", {"window": 1000}, "from 0 to 64"),
        ("lbpe", {"forms": "i-j-5000n"}, "factor of more than 1000"),
        ("lbpe", {"forms": ",".join(f"i-j-{k}" for k in range(99))}, "at most 96 forms"),
        ("relative", {"max_distance": 10**12}, "from 1 to 1000000"),
        ("none", {"base": 3}, "unknown option"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(name, options, reason):
    with pytest.raises(UserError, match=reason):
        make_scheme(name, options, COPY)


def test_options_as_texts():
    texts = {"base": "500", "rotary_dim": "4", "adjacent_pairs": "true"}
    assert make_scheme("rope", texts).options == SCHEMES["rope"].Options(500.0, 4, True)
    assert make_scheme("rope", {"rotary_dim": "none"}).options == SCHEMES["rope"].Options()
    both = SchemeSpec.of("randomized:relative", {"range": "64", "max_distance": "3"})
    assert both.options == {"range": 64, "max_distance": 3, "seed": 0}


def test_listing_has_every_name():
    rows = scheme_rows()
    assert [row["name"] for row in rows] == NAMES
    assert all(row["summary"] and row["relation"] for row in rows)


# -- refusals that a scheme implies ----------------------------------------------------------------------------------


def test_learned_refuses_what_its_table_has_not():
    for name in ("learned", "shortformer", "hinted:learned"):
        scheme = make_scheme(name, None, COPY, SIZES)
        with pytest.raises(UserError, match="has 128 positions and cannot process a sequence of 129"):
            positions = scheme.positions(torch.zeros(1, 129, dtype=torch.long), torch.tensor([9]))
            scheme.embed(positions), scheme.embed_qk(positions)


def test_randomized_refuses_what_its_range_has_not():
    scheme = make_scheme("randomized:rope", {"range": 10}, COPY, SIZES)
    with pytest.raises(UserError, match="range of 10 and cannot place a sequence of 11"):
        scheme.positions(torch.zeros(1, 11, dtype=torch.long))


def test_shifted_starts_anywhere_in_training_and_at_0_after_it():
    scheme, tokens = make_scheme("shifted:learned", {"range": 8}, COPY, SIZES), torch.zeros(2, 5, dtype=torch.long)
    starts = {int(scheme.positions(tokens).position[0, 0]) for _ in range(100)}
    assert starts == {0, 1, 2, 3}
    start = scheme.positions(tokens).position  # its vectors are those of the table behind the start
    assert torch.equal(scheme.embed(replace(scheme.positions(tokens), position=start)), scheme.inner.W_pos[start])
    assert scheme.eval().positions(tokens).position.tolist() == [[0, 1, 2, 3, 4]]
    with pytest.raises(UserError, match="has 8 positions and cannot place 9"):
        scheme.positions(torch.zeros(1, 9, dtype=torch.long))


@pytest.mark.parametrize("name", ["ideal", "coupled", "abacus"])
def test_schemes_made_from_a_task_need_one(name):
    with pytest.raises(UserError, match="build the model for a task"):
        make_scheme(name)


def test_hinted_needs_a_scale():
    scheme = make_scheme("hinted:relative")
    with pytest.raises(UserError, match="needs the scale"):
        scheme.positions(torch.zeros(2, 9, dtype=torch.long))
    with pytest.raises(UserError, match="3 scales were given for 2 rows"):
        scheme.positions(torch.zeros(2, 9, dtype=torch.long), torch.tensor([1, 2, 3]))


def test_ideal_refuses_tasks_whose_sources_depend_on_tokens():
    with pytest.raises(UserError, match="content-addressed task 'sort'"):
        make_scheme("ideal", None, TASKS["sort"])


def test_coupled_refuses_tasks_that_couple_nothing():
    with pytest.raises(UserError, match="couples no positions"):
        make_scheme("coupled", None, TASKS["parity"])


# -- a scheme from outside -----------------------------------------------------------------------------------------


class Parity(PositionScheme):
    """A scheme of one's own, without an anchored form: whether i−j is even; a learned bias each."""

    name = "parity-of-distance"
    family = "relative"
    summary = "one learned bias for even and for odd distances"
    relation_in_words = "(i−j) mod 2"

    def __init__(self, sizes, options, task):
        super().__init__(sizes, options, task)
        self.table = torch.nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, 2))

    def phi(self, query_pos, key_pos, scale):
        return ((query_pos - key_pos + 0 * scale) % 2)[..., None]

    def tables(self):
        return [CodeTable(self.table, 0, self.relation_in_words)]

    def score(self, layer, positions, queries, q, k):
        return self.table[layer][:, positions.distance(queries) % 2].transpose(0, 1)


@pytest.fixture
def outside():
    SCHEMES.add(Parity.name, Parity)
    yield Parity.name
    SCHEMES.remove(Parity.name)


def test_a_scheme_from_outside_is_one_class_and_one_line(outside):
    assert outside in scheme_names() and f"randomized:{outside}" in scheme_names()
    assert f"hinted:{outside}" not in scheme_names()
    with pytest.raises(UserError, match="it has no form that counts from the scale"):
        make_scheme(f"hinted:{outside}")
    assert {row["name"]: row["relation"] for row in scheme_rows()}[outside] == "(i−j) mod 2"
    table = verdict_grid(["copy", "parity"], None, 4, 9).set_index(["task", "scheme"])
    assert table.loc[("copy", outside), "verdict"] == "impossible"
    assert table.loc[("parity", outside), "verdict"] == "task-limited"


def test_a_scheme_from_outside_can_be_pruned_like_our_own(outside):
    model = build(ModelConfig(task="copy", scheme=outside))
    found = prune(model, train_max=2)
    assert found is not None and found[1].words.endswith("(i−j) mod 2: none")
    assert probed_relation(model, COPY, 2)[1].words == "(i−j) mod 2"


# -- a name and its options as one value ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_is_read_back_from_all_its_forms(name):
    spec = SchemeSpec.of(name, SMALL.get(name.rpartition(":")[2]))
    assert spec == SchemeSpec.parse(spec.label) == SchemeSpec.of(*json.loads(json.dumps(spec.to_dict())).values())
    assert spec == SchemeSpec.of({"name": name, **spec.options}) and hash(spec) == hash(SchemeSpec.parse(spec.label))
    for scaling in ("none", "log"):
        said = SchemeSpec.of(name, spec.options, scaling)
        assert said == SchemeSpec.parse(said.label) and ("score_scaling" in said.label) == (
            scaling != spec.usual_scaling
        )
        config = RunConfig("copy", said.label)
        assert config.score_scaling == scaling and config == RunConfig("copy", **said.to_dict())
    assert SchemeSpec.of(name).label == name and set(spec.identity()) <= set(spec.options)


def test_options_added_later_are_no_part_of_an_identity_as_it_was_before():
    for name in ("lbpe", "ideal"):
        assert "other" not in SchemeSpec.of(name, {"other": "each"}).identity()
        assert SchemeSpec.of(name, {"other": "one"}).identity()["other"] == "one"
    assert SchemeSpec.of("lbpe").identity()["other"] == "mean", "a default that changed is said"


def test_options_stored_before_one_was_added_mean_what_they_did():
    stored = {"variant": "forms", "forms": "i-j", "window": 3, "final_temperature": 1.0, "hidden": 32}
    assert SchemeSpec.of("lbpe", stored).options["other"] == "each"
    assert SchemeSpec.of("lbpe", {"window": 3}).options["other"] == "mean"


def test_a_long_text_has_a_short_name():
    spec = SchemeSpec.parse("lbpe/forms=nine")
    assert spec.options["forms"].count(",") == 8 and spec.label == "lbpe/forms=nine"
    assert SchemeSpec.of("lbpe", {"forms": spec.options["forms"]}) == SchemeSpec.parse(spec.label)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: SchemeSpec.parse("rope/base"), "'base' in 'rope/base' is no option: write scheme/option=value"),
        (lambda: SchemeSpec.parse("rope/score_scaling=lgo"), "'score_scaling' of scheme 'rope'.*did you mean 'log'"),
        (lambda: RunConfig("copy", "rope/score_scaling=none", score_scaling="log"), "score_scaling is given twice"),
        (lambda: SchemeSpec.parse("rope/bas=3"), "unknown option of scheme 'rope' 'bas': did you mean 'base'"),
        (lambda: SchemeSpec.of("rope", 3), "scheme_options must map names to values, not 3"),
        (lambda: SchemeSpec.of(3), "a scheme is a name or a table with a name, not 3"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask()
