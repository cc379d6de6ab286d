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
from lengthlens.models.schemes.contract import check_scheme
from lengthlens.models.schemes.relation import CodeTable
from lengthlens.models.schemes.scheme import Positions, PositionScheme
from lengthlens.models.schemes.spec import WRAPPERS, scheme_rows
from lengthlens.models.transformer import build
from lengthlens.probes.network import probed_relation, prune
from lengthlens.runs.config import RunConfig
from lengthlens.studies.build import scheme_label
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import EvenOdd
from lengthlens.theory.verdict import verdict_grid

SIZES = Sizes(n_layers=2, n_heads=3, d_head=8, d_model=24, n_ctx=128)
COPY = TASKS["copy"]
NAMES = scheme_names()
ROWS = {row["name"]: row for row in scheme_rows()}
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


def drawn(name: str) -> bool:
    """Whether positions are drawn at random."""
    return name.startswith(("randomized:", "continuous:"))


def small(name: str) -> dict[str, object]:
    return {**SMALL.get(name.rpartition(":")[2], {}), **({"range": 100} if drawn(name) else {})}


def made(name: str, seed: int = 0) -> PositionScheme:
    """A scheme in evaluation with random parameters."""
    torch.manual_seed(seed)
    scheme = make_scheme(name, small(name), COPY, SIZES).eval()
    for parameter in scheme.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    return scheme


def content(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Queries and keys, [row, pos, head, d_head]."""
    generator = torch.Generator().manual_seed(1)
    shape = (2, rows, length, SIZES.n_heads, SIZES.d_head)
    q, k = torch.randn(shape, generator=generator)
    return q, k


def stream(rows: int, length: int) -> Tensor:
    """The input of a layer, [row, pos, d_model]."""
    return torch.randn(rows, length, SIZES.d_model, generator=torch.Generator().manual_seed(2))


def parts(scheme: PositionScheme, positions: Positions, q: Tensor, k: Tensor, rows: slice) -> dict[str, Tensor]:
    """Whatever the scheme gives for a block of queries, by place."""
    given = {"embed": scheme.embed(positions), "embed_qk": scheme.embed_qk(positions)}
    x = stream(*q.shape[:2]).to(q.dtype)
    for layer in range(SIZES.n_layers):
        scheme.take_in(layer, x, positions)
        given[f"read {layer}"] = positions.cache.get(("kept", layer))
        turned_q, turned_k = (scheme.rotate_in(layer, each, positions, each is k) for each in (q, k))
        given[f"dot {layer}"] = torch.einsum("bqhd,bkhd->bhqk", turned_q[:, rows], turned_k[:, : rows.stop])
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
def test_every_scheme_keeps_to_the_contract(name):
    """Shapes, blocks, gradients, mixed sizes, other devices; pairs with one code are treated alike."""
    found = check_scheme(name, COPY, {**small(name), **({"other": "each"} if name == "lbpe" else {})})
    # Positions drawn at random have codes by rank, and pairs with one code are alike on average only. The other keys of
    # lbpe weigh alike by their number, which is no matter of codes either.
    told = SchemeSpec.of(name).scheme.family != "contextual"
    assert {each.method for each in found} == ({"phi"} if drawn(name) and told else set())


@pytest.mark.parametrize("name", NAMES)
def test_places_it_acts_in_are_those_it_names(name):
    scheme = made(name)
    positions = scheme.positions(COPY.sample(5, 2, torch.Generator()).tokens)
    q, k = content(2, 13)
    given = {place.split()[0] for place in parts(scheme, positions, q, k, slice(0, 13))} - {"dot"}
    turned = [scheme.rotate_in(layer, q, positions) for layer in range(SIZES.n_layers)]
    if not all(torch.equal(each, q) for each in turned):
        given.add("rotate")
    assert given == set(scheme.acts()) == set(ROWS[name]["acts"])
    assert scheme.relation_in_words == SchemeSpec.of(name).relation_in_words


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_and_copies_and_sizes_that_are_inferred(name):
    """A scheme that has the state of another, a copy of it, and one that is told the sizes, all give the same."""
    scheme, batch, (q, k) = made(name), COPY.sample([4, 9], generator=torch.Generator()), content(2, 21)
    exact = parts(scheme, scheme.positions(batch.tokens), q, k, slice(0, 21))
    again = made(name, seed=1)
    again.load_state_dict(scheme.state_dict(), strict=True)
    for other, scale in ((again, None), (copy.deepcopy(scheme), None), (scheme, batch.scale)):
        given = parts(other, other.positions(batch.tokens, scale), q, k, slice(0, 21))
        assert all(torch.equal(given[place], value) for place, value in exact.items())
    with torch.autocast("cpu", torch.bfloat16):
        rough = parts(scheme, scheme.positions(batch.tokens), q.bfloat16(), k.bfloat16(), slice(0, 21))
    for place, value in rough.items():
        assert ((value.float() - exact[place]).abs().max() / (exact[place].abs().max() + 1)) < 0.05, place
    assert len(list(scheme.named_parameters(remove_duplicate=False))) == len(list(scheme.parameters()))


# A code may be finer than need be for some parameters: clipped networks, and positions that differ but count alike. Or
# it is stated by rank, or for the tokens that are counted from.
COARSER = {
    "cope",
    "fire",
    "hinted:fire",
    "windowed:fire",
    "sinusoidal",
    "rope-pi",
    "rope-ntk",
    "rope-yarn",
    "rpe-square",
    "lbpe",
}


def tells(name: str) -> bool:
    """Whether its codes are as coarse as can be."""
    return name not in COARSER and not drawn(name) and SchemeSpec.of(name).scheme.has_codes


@pytest.mark.parametrize("name", filter(tells, NAMES))
def test_different_codes_are_told_apart(name):
    """At several sizes, with all tokens the same: as many treatments of causal pairs as there are codes."""
    scheme, codes, done = made(name), [], []
    for n in (1, 4, 7, 10):
        tokens = COPY.sample(n, 1, torch.Generator().manual_seed(n)).tokens
        length = tokens.shape[1]
        query, key = torch.tril_indices(length, length)
        q, k = (x[:, :1].expand(1, length, -1, -1) for x in content(1, 1))
        given = parts(scheme, scheme.positions(tokens), q, k, slice(0, length))
        columns = []
        for place, value in given.items():
            vectors = place.startswith("embed")
            columns += [value[0, query], value[0, key]] if vectors else [value[0][:, query, key].T]
        done.append(torch.cat([column.detach() for column in columns], 1))
        codes.append(scheme.phi(query, key, torch.tensor(n)))
    assert len((torch.cat(done) * 1e3).round().unique(dim=0)) >= len(torch.cat(codes).unique(dim=0))


# -- names and options -----------------------------------------------------------------------------------------------


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
        ("rop", None, "did you mean 'rope'"),
        ("hintd:relative", None, "did you mean 'hinted'"),
        ("hinted:relativ", None, "did you mean 'relative'"),
        ("hinted:none", None, "does not look at positions"),
        ("hinted:rope", None, "cancels in i−j"),
        ("hinted:ideal", None, "derived from the scale already"),
        ("randomized:none", None, "does not look at positions"),
        ("randomized:ideal", None, "true positions"),
        ("randomized:abacus", None, "given by the task"),
        ("randomized:hinted:relative", None, "one wrapper at a time"),
        ("shifted:rope", None, "where a sequence starts makes no difference"),
        ("shifted:coupled", None, "already moved at random"),
        ("", None, "unknown scheme"),
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
def test_wrong_names_and_options_are_refused_with_a_sentence(name, options, reason):
    with pytest.raises(UserError, match=reason):
        make_scheme(name, options, COPY)


def test_options_as_texts():
    texts = {"base": "500", "rotary_dim": "4", "adjacent_pairs": "true"}
    assert make_scheme("rope", texts).options == SCHEMES["rope"].Options(500.0, 4, True)
    assert make_scheme("rope", {"rotary_dim": "none"}).options == SCHEMES["rope"].Options()
    both = SchemeSpec.of("randomized:relative", {"range": "64", "max_distance": "3"})
    assert both.options == {"range": 64, "max_distance": 3, "seed": 0}


def test_shifted_starts_anywhere_in_training_and_at_0_after_it():
    scheme, tokens = make_scheme("shifted:learned", {"range": 8}, COPY, SIZES), torch.zeros(2, 5, dtype=torch.long)
    starts = {int(scheme.positions(tokens).position[0, 0]) for _ in range(100)}
    assert starts == {0, 1, 2, 3}
    start = scheme.positions(tokens).position  # its vectors are those of the table behind the start
    assert torch.equal(scheme.embed(replace(scheme.positions(tokens), position=start)), scheme.inner.W_pos[start])
    assert scheme.eval().positions(tokens).position.tolist() == [[0, 1, 2, 3, 4]]
    with pytest.raises(UserError, match="has 8 positions and cannot place 9"):
        scheme.positions(torch.zeros(1, 9, dtype=torch.long))


@pytest.mark.parametrize(
    ("name", "task", "tokens", "sentence"),
    [
        *((name, None, None, "build the model for a task") for name in ("ideal", "coupled", "abacus")),
        ("ideal", "sort", None, "content-addressed task 'sort'"),
        ("coupled", "parity", None, "couples no positions"),
        *((name, "copy", (1, 129), "has 128 positions and cannot process") for name in ("learned", "hinted:learned")),
        ("randomized:rope", "copy", (1, 2049), "range of 2048 and cannot place a sequence of 2049"),
        ("hinted:relative", None, (2, 9), "needs the scale"),
    ],
)
def test_what_a_scheme_cannot_do_is_said_in_a_sentence(name, task, tokens, sentence):
    with pytest.raises(UserError, match=sentence):
        scheme = make_scheme(name, None, task and TASKS[task], SIZES)
        scheme.embed(scheme.positions(torch.zeros(tokens, dtype=torch.long), task and torch.tensor([9])))


# -- a scheme from outside -----------------------------------------------------------------------------------------


class Parity(EvenOdd):
    def tables(self):
        return [CodeTable(self.table, 0, self.relation_in_words)]


@pytest.fixture
def outside():
    SCHEMES.add(Parity.name, Parity)
    return Parity.name


def test_a_scheme_from_outside_is_one_class_and_one_line(outside):
    assert outside in scheme_names() and f"randomized:{outside}" in scheme_names()
    assert f"hinted:{outside}" not in scheme_names()
    with pytest.raises(UserError, match="it has no form that counts from the scale"):
        make_scheme(f"hinted:{outside}")
    rows = {row["name"]: row for row in scheme_rows()}
    assert list(rows) == scheme_names() and all(row["summary"] and row["relation"] for row in rows.values())
    assert rows[outside]["relation"] == "(i−j) mod 2"
    table = verdict_grid(["copy", "parity"], None, 4, 9).set_index(["task", "scheme"])
    assert table.loc[("copy", outside), "verdict"] == "impossible"
    assert table.loc[("parity", outside), "verdict"] == "task-limited"


def test_a_scheme_from_outside_can_be_pruned_like_our_own(outside):
    model = build(ModelConfig(task="copy", scheme=outside))
    found = prune(model, train_max=2)
    assert found is not None and found[1].words.endswith("(i−j) mod 2: none")
    assert probed_relation(model, COPY, 2)[1].words == "(i−j) mod 2"


# -- a name and its options as one value ---------------------------------------------------------------------------


TWO_ROWS = torch.zeros(2, 9, dtype=torch.long)
TEXTS = {
    "slopes": "transformer-lens",
    "other": "one",
    "forms": "i-j, 2j-n+1",
    "variant": "forms",
    "gate": "cable",
    "over": "alibi",
    "at": 0.5,
    "of": "alibi,none",
}  # not the default


def another(option: str, value: object) -> object:
    """A value of an option that is not this one, its default."""
    if option in TEXTS:
        return TEXTS[option]
    if isinstance(value, bool):
        return not value
    return 2 if value is None else value + 1 if isinstance(value, int) else value / 4 + 1


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_is_read_back_from_all_its_forms(name):
    """Each option by itself, with both scalings of scores: as a label, as fields of a config, as a table of TOML."""
    usual = SchemeSpec.of(name)
    assert usual.label == name
    for option, value in [("", None), *usual.options.items()]:
        options = {option: another(option, value)} if option else {}
        for scaling in ("none", "log"):
            spec = SchemeSpec.of(name, options, scaling)
            assert all(spec.options[key] == given for key, given in options.items())
            stored = json.loads(json.dumps(spec.to_dict()))
            assert spec == SchemeSpec.parse(spec.label) == SchemeSpec.of(*stored.values())
            assert spec == SchemeSpec.of({"name": name, **spec.options}, score_scaling=scaling)
            assert hash(spec) == hash(SchemeSpec.parse(spec.label)) and set(spec.identity()) <= set(spec.options)
            assert ("score_scaling" in spec.label) == (scaling != spec.usual_scaling)
            config = RunConfig("copy", spec.label)
            assert config == RunConfig("copy", **{"score_scaling": scaling, **spec.to_dict()})
            assert config.score_scaling == scaling and scheme_label(config) == spec.label


def test_options_added_later_leave_identities_and_stored_options_as_they_were():
    for name in ("lbpe", "ideal"):
        assert "other" not in SchemeSpec.of(name, {"other": "each"}).identity()
        assert SchemeSpec.of(name, {"other": "one"}).identity()["other"] == "one"
    assert SchemeSpec.of("lbpe").identity()["other"] == "mean", "a default that changed is said"
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
        (lambda: make_scheme("hinted:relative").positions(TWO_ROWS, torch.ones(3)), "3 scales were given for 2 rows"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask()
