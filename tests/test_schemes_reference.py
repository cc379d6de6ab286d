"""Position embeddings against independent implementations, and against their published formulas written as loops."""

import math

import pytest
import torch
from transformers import LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotary
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers.x_transformers import AlibiPositionalBias, CoPE

from lengthlens.models.schemes import Sizes, make_scheme
from lengthlens.models.schemes.absolute import sinusoid
from lengthlens.models.schemes.distance import alibi_slopes
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.tasks import TASKS

LENGTH = 23
SIZES = Sizes(n_layers=2, n_heads=4, d_head=8, d_model=32, n_ctx=64)
TOKENS = torch.zeros(2, LENGTH, dtype=torch.long)
ALL = slice(0, LENGTH)
CAUSAL = torch.ones(LENGTH, LENGTH).tril().bool()
CPU = torch.device("cpu")


def made(name: str, options: dict | None = None, **sizes: int) -> PositionScheme:
    torch.manual_seed(0)
    scheme = make_scheme(name, options, TASKS["copy"], Sizes(**{**vars(SIZES), **sizes})).eval()
    for parameter in scheme.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    return scheme.requires_grad_(False)


def content(heads: int = 4, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 2, LENGTH, heads, width, generator=generator)
    return q, k


def bias_of(scheme: PositionScheme, layer: int = 1, scale: int | None = None) -> torch.Tensor:
    """The scores it adds, [1|row, head, query, key], zero above the diagonal."""
    q, k = content(scheme.sizes.n_heads, scheme.sizes.d_head)
    positions = scheme.positions(TOKENS, None if scale is None else torch.tensor([scale]))
    return scheme.score(layer, positions, ALL, q, k) * CAUSAL


def over_pairs(function) -> torch.Tensor:
    """function(i, j) for all causal pairs, 0 above: [head, query, key]."""
    rows = [[function(i, j) if j <= i else 0 * function(0, 0) for j in range(LENGTH)] for i in range(LENGTH)]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected.expand_as(found), atol=1e-5, rtol=1e-5)


# -- rotary ----------------------------------------------------------------------------------------------------------


def llama_config(**rope: object) -> LlamaConfig:
    parameters = {"rope_theta": 10000.0, "rope_type": "default", **rope}
    return LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=32, rope_parameters=parameters
    )


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_rope_is_llamas(base):
    q, k = content(width=16)
    cos, sin = LlamaRotaryEmbedding(llama_config(rope_theta=base))(q, torch.arange(LENGTH)[None])
    expected = llama_rotary(q, k, cos, sin, unsqueeze_dim=2)
    scheme = made("rope", {"base": base}, d_head=16)
    positions = scheme.positions(TOKENS)
    close(scheme.rotate(q, positions), expected[0])
    close(scheme.rotate(k, positions), expected[1])


def test_rope_in_adjacent_pairs_is_gptjs():
    q, _ = content()
    angle = torch.arange(LENGTH)[:, None] * 10000.0 ** (-torch.arange(0, 4, 2) / 4)
    expected = q.clone()
    expected[..., :4] = gptj_rotary(q[..., :4], angle.sin()[None], angle.cos()[None])
    scheme = made("rope", {"rotary_dim": 4, "adjacent_pairs": True})
    close(scheme.rotate(q, scheme.positions(TOKENS)), expected)


@pytest.mark.parametrize("factor", [1.0, 2.0, 5.0])
def test_position_interpolation_is_transformers_linear(factor):
    expected, _ = ROPE_INIT_FUNCTIONS["linear"](llama_config(rope_type="linear", factor=factor), CPU)
    scheme = made("rope-pi", {"scaling": factor}, d_head=16)
    close(scheme.frequencies(LENGTH, CPU), expected)


@pytest.mark.parametrize("length", [32, 64, 160])
def test_ntk_is_transformers_dynamic(length):
    """The factor that transformers derives from the length, with factor 1, is length / original length."""
    config = llama_config(rope_type="dynamic", factor=1.0)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, CPU, seq_len=length)
    close(made("rope-ntk", d_head=16).frequencies(length, CPU), expected)
    fixed = made("rope-ntk", {"scaling": length / 32}, d_head=16)
    close(fixed.frequencies(7, CPU), expected)


@pytest.mark.parametrize("factor", [1.0, 4.0, 16.0])
@pytest.mark.parametrize("original", [32, 512, 4096])
@pytest.mark.parametrize("betas", [(32.0, 1.0), (8.0, 2.0)])
def test_yarn_is_transformers(factor, original, betas):
    between = dict(zip(("beta_fast", "beta_slow"), betas))
    config = llama_config(rope_type="yarn", factor=factor, original_max_position_embeddings=original, **between)
    frequencies, attention = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    scheme = made("rope-yarn", {"scaling": factor, "original_length": original, **between}, d_head=16)
    close(scheme.frequencies(LENGTH, CPU), frequencies)
    assert scheme.magnitude(LENGTH) == pytest.approx(attention)
    cos, _ = scheme._turn(scheme.positions(TOKENS), heads=1)
    close(cos[0, :, 0, :8], attention * (torch.arange(LENGTH)[:, None] * frequencies).cos())


@pytest.mark.parametrize("name", ["rope-pi", "rope-ntk", "rope-yarn"])
def test_stretched_rope_is_rope_up_to_its_original_length(name):
    q, _ = content()
    rope = made("rope")
    for original, same in ((LENGTH, True), (LENGTH - 1, False)):
        scheme = made(name, {"original_length": original})
        found = scheme.rotate(q, scheme.positions(TOKENS))
        assert torch.allclose(found, rope.rotate(q, rope.positions(TOKENS)), atol=1e-6) == same


# -- biases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (8, 20), (16, 64), (33, 100)])
def test_t5_is_transformers(buckets, largest):
    torch.manual_seed(0)
    config = T5Config(
        num_heads=4, relative_attention_num_buckets=buckets, relative_attention_max_distance=largest, is_decoder=True
    )
    published = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    scheme = made("t5", {"num_buckets": buckets, "max_distance": largest})
    scheme.table.data = published.relative_attention_bias.weight.data.T.clone()
    for layer in range(2):
        close(bias_of(scheme, layer), published.compute_bias(LENGTH, LENGTH).detach() * CAUSAL)
    far = torch.arange(300)
    expected = T5Attention._relative_position_bucket(-far, False, buckets, largest)
    assert torch.equal(scheme.phi(far, torch.tensor(0), torch.tensor(1))[:, 0], expected)


def test_hinted_t5_has_transformers_buckets_on_both_sides():
    scheme = made("hinted:t5")
    key = torch.arange(300)
    found = scheme.phi(torch.tensor(300), key, torch.tensor(150))[:, 1]
    assert torch.equal(found, T5Attention._relative_position_bucket(key - 150, True, 32, 128))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 7, 8, 12])
def test_alibi_is_blooms_and_x_transformers(heads):
    found = bias_of(made("alibi", n_heads=heads))
    close(found, AlibiPositionalBias(heads)(LENGTH, LENGTH) * CAUSAL)
    # Bloom leaves out what is the same for all keys of a query.
    bloom = build_alibi_tensor(torch.ones(1, LENGTH), heads, torch.float32)
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(~CAUSAL, -torch.inf)
    close((found[0] + mask).softmax(-1), (bloom + mask).softmax(-1))
    # The other rule, of TransformerLens, is one formula for all numbers of heads.
    close(alibi_slopes(heads, "transformer-lens"), torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)]))


def fire_bias(scheme: PositionScheme, i: int, j: int, n: int) -> torch.Tensor:
    c, threshold = scheme.raw_c[1].abs(), float(scheme.threshold[1])
    ratio = torch.log(c * (i - j) + 1) / (torch.log(c * max(float(i), threshold) + 1) + 1e-6)
    return torch.relu(ratio * scheme.W_in[1] + scheme.b_in[1]) @ scheme.W_out[1]


def two_tables(scheme: PositionScheme, i: int, j: int, n: int) -> torch.Tensor:
    plain, anchored = scheme.inner.table[1], scheme.anchored.table[1]
    assert anchored.shape == (4, 9)
    return plain[:, min(i - j, 4)] + anchored[:, 4 + max(-4, min(4, i - j - n))]


FORMULAS = {  # of each head at query i and key j, in layer 1
    "relative": ({"max_distance": 6}, lambda s, i, j, n: s.table[1, :, min(i - j, 6)]),
    "urpe": ({"max_distance": 6}, lambda s, i, j, n: s.table[1, :, min(i - j, 6)]),
    "hinted:relative": ({"max_distance": 4}, two_tables),
    "kerple-log": ({}, lambda s, i, j, n: -s.p()[1] * torch.log(1 + s.a()[1] * (i - j))),
    "kerple-power": ({}, lambda s, i, j, n: -s.a()[1] * (i - j) ** s.p()[1]),
    "fire": ({"threshold": 6.0, "hidden": 5}, fire_bias),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_published_formula_pair_by_pair(name):
    options, formula = FORMULAS[name]
    scheme = made(name, options)
    for n in (1, 7, 30) if "hinted" in name else (1,):
        found = scheme.factor(1, scheme.positions(TOKENS), ALL) * CAUSAL if name == "urpe" else bias_of(scheme, scale=n)
        close(found[0], over_pairs(lambda i, j, n=n: formula(scheme, i, j, n)))


def test_factors_start_at_one_and_powers_stay_below_two():
    assert (make_scheme("urpe").table == 1).all()
    power = made("kerple-power")
    assert (power.p() > 0).all() and (power.p() < 2).all() and (power.a() > 0).all()


def test_hinted_alibi_starts_with_the_same_slopes():
    scheme = make_scheme("hinted:alibi", None, TASKS["copy"], SIZES).requires_grad_(False)
    slopes = alibi_slopes(4, "published")
    close(bias_of(scheme, scale=5)[0], over_pairs(lambda i, j: -slopes * (i - j) - slopes * abs(i - j - 5)))


# -- vectors and content ---------------------------------------------------------------------------------------------


def test_sinusoids_are_the_published_ones():
    found = sinusoid(torch.arange(30), 6)
    for position in (0, 1, 29):
        for k in range(3):
            angle = position / 10000 ** (2 * k / 6)
            assert found[position, 2 * k].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert found[position, 2 * k + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_shaw_is_a_vector_on_the_key():
    """q·(k+a) minus q·k, with q divided by the square root of d_head beforehand."""
    scheme = made("shaw", {"max_distance": 6})
    q, k = content()
    vectors = scheme.vectors[1]
    expected = over_pairs(
        lambda i, j: (
            torch.einsum("bhd,bhd->bh", q[:, i], k[:, j] + vectors[min(i - j, 6)])
            - torch.einsum("bhd,bhd->bh", q[:, i], k[:, j])
        )
    )
    close(bias_of(scheme), expected)


def test_xl_is_the_published_sum():
    """(q+u)·k + (q+v)·W_R r over the square root, minus the plain q·k; q arrives divided."""
    scheme = made("xl")
    q, k = content()
    root = 8**0.5
    r = sinusoid(torch.arange(LENGTH), 32)

    def score(i: int, j: int) -> torch.Tensor:
        own = q[:, i] * root
        mapped = torch.einsum("m,hmd->hd", r[i - j], scheme.W_R[1])
        whole = ((own + scheme.u) * k[:, j]).sum(-1) + ((own + scheme.v) * mapped).sum(-1)
        return (whole - (own * k[:, j]).sum(-1)) / root

    close(bias_of(scheme), over_pairs(score))


def test_hinted_xl_meets_sinusoids_of_the_anchored_distance():
    scheme = made("hinted:xl")
    q, k = content()
    positions = scheme.positions(TOKENS, torch.tensor([4, 9]))
    found = (scheme.score(1, positions, ALL, q, k) - scheme.inner.score(1, positions, ALL, q, k)) * CAUSAL
    twin = scheme.anchored
    for row, n in enumerate((4, 9)):

        def score(i: int, j: int, row: int = row, n: int = n) -> torch.Tensor:
            mapped = torch.einsum("m,hmd->hd", sinusoid(torch.tensor(i - j - n), 32), twin.W_R[1])
            return ((q[row, i] + twin.v / 8**0.5) * mapped).sum(-1)

        close(found[row], over_pairs(score))


def test_cope_is_x_transformers():
    scheme = made("cope", {"max_position": 7})
    q, k = content()
    published = CoPE(dim=8, heads=4, max_pos=7)
    published.pos_emb.data = scheme.vectors[1]
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k).masked_fill(~CAUSAL, -torch.inf)
    close(bias_of(scheme), published(q.transpose(1, 2), logits) * CAUSAL)


def test_rpe_square_is_the_expected_bias_of_the_difference():
    scheme = made("rpe-square", {"max_distance": 5})
    q, k = (x[:1] for x in content())

    def weights(looking: torch.Tensor, upto: int) -> torch.Tensor:
        """[head, token]"""
        return torch.einsum("hd,khd->hk", looking, k[0, : upto + 1]).softmax(-1)

    def of_query(i: int) -> torch.Tensor:
        return weights(torch.einsum("hd,hde->he", q[0, i], scheme.W_query[1]), i)

    def of_key(j: int) -> torch.Tensor:
        return weights(torch.einsum("hd,hde->he", k[0, j] / 8**0.5, scheme.W_key[1]), j)

    found = scheme.score(1, scheme.positions(TOKENS[:1]), ALL, q, k)[0]
    for i, j in ((0, 0), (9, 4), (22, 0), (22, 21)):
        back = (i - torch.arange(i + 1))[:, None] - (j - torch.arange(j + 1))
        table = scheme.table[1][:, back.clamp(-5, 5) + 5]
        close(found[:, i, j], torch.einsum("hl,hlm,hm->h", of_query(i), table, of_key(j)))


def test_rpe_square_counts_from_marks():
    """Copying, the key to read is one place further in its run than the query in its own, at every scale."""
    scheme = made("rpe-square")
    for scale in (2, 5, 30):
        for step in TASKS["copy"].circuit(scale):
            code = scheme.phi(torch.tensor(step.query), torch.tensor(step.sources[0]), torch.tensor(scale))
            assert code.tolist() == [-1] or step.sources[0] == scale + 1


# -- positions that are given or drawn -------------------------------------------------------------------------------


def test_coupling_of_the_reference():
    """``653+049=2070`` with start s: s+3 s+2 s+1, s, s+3 s+2 s+1, s, s+1 … s+4; here the lowest digit comes first."""
    published = [3, 2, 1, 0, 3, 2, 1, 0, 1, 2, 3, 4]
    lowest_first = [*published[2::-1], 0, *published[6:3:-1], 0, *published[8:]]
    task = TASKS["addition"]
    scheme = make_scheme("coupled", None, task, SIZES).eval()
    start = 1
    assert scheme.ids(3)[1:-1].tolist() == [start + k for k in lowest_first]
    tokens = task.parse("^ 3 5 6 + 9 4 0 =").tokens
    close(scheme.embed(scheme.positions(tokens))[0], scheme.W_pos[scheme.ids(3)])


def test_coupled_start_is_random_in_training_only():
    task = TASKS["addition"]
    tokens = task.sample(3, 2, torch.Generator()).tokens
    scheme = make_scheme("coupled", {"max_start": 20, "max_id": 40}, task, SIZES)
    scheme.W_pos.data = torch.arange(41.0)[:, None].expand(41, SIZES.d_model).clone()
    starts = {int(scheme.embed(scheme.positions(tokens))[0, 0, 0]) for _ in range(300)}
    assert starts == set(range(1, 21))
    scheme.eval()
    assert {int(scheme.embed(scheme.positions(tokens))[0, 0, 0]) for _ in range(9)} == {1}


def test_coupled_pads_with_zero():
    task = TASKS["copy"]
    scheme = make_scheme("coupled", None, task, SIZES).train()
    batch = task.sample([2, 5], generator=torch.Generator())
    vectors = scheme.embed(scheme.positions(batch.tokens))
    padding = batch.tokens == task.pad_id
    close(vectors[padding], scheme.W_pos[0])
    assert not torch.isclose(vectors[~padding], scheme.W_pos[0]).all(-1).any()


def test_abacus_of_the_reference():
    task = TASKS["addition"]
    scheme = make_scheme("abacus", {"max_offset": 7}, task, SIZES)
    scheme.W_pos.data = torch.arange(513.0)[:, None].expand(513, SIZES.d_model).clone()
    tokens = task.parse("^ 3 5 6 + 9 4 0 =").tokens
    ids = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0])
    seen = set()
    for _ in range(100):
        found = scheme.embed(scheme.positions(tokens))[0, :, 0].long()
        offset = int(found[1]) - 1
        assert torch.equal(found, torch.where(ids == 0, 0, ids + offset))
        seen.add(offset)
    assert seen == set(range(8))
    scheme.eval()
    assert torch.equal(scheme.embed(scheme.positions(tokens))[0, :, 0].long(), ids)


@pytest.mark.parametrize("name", ["abacus", "coupled"])
def test_ids_past_the_table_are_refused(name):
    scheme = make_scheme(name, {"max_id": 8}, TASKS["copy"], SIZES).eval()
    scheme.embed(scheme.positions(TASKS["copy"].sample(6, 1, torch.Generator()).tokens))
    with pytest.raises(ValueError, match="has position ids up to 8"):
        scheme.embed(scheme.positions(TASKS["copy"].sample(9, 1, torch.Generator()).tokens))


def test_random_positions_are_drawn_in_order_without_replacement():
    scheme = make_scheme("randomized:alibi", {"range": 60}, None, SIZES)
    scheme.generator = torch.Generator().manual_seed(3)
    draws = torch.stack([scheme.positions(TOKENS).position[0] for _ in range(3000)])
    assert (draws[:, 1:] > draws[:, :-1]).all() and draws.min() >= 0 and draws.max() == 59
    # Ordered draws: the mean of rank r of T out of 0 … L−1 is (r+1)(L+1)/(T+1) − 1, so gaps depend on i−j alone.
    expected = torch.arange(1, LENGTH + 1) * 61 / (LENGTH + 1) - 1
    assert (draws.float().mean(0) - expected).abs().max() < 0.5
    spread = [(draws[:, i] - draws[:, i - 4]).float().var().item() for i in range(4, LENGTH)]
    assert max(spread) / min(spread) < 1.25


def test_random_positions_repeat_in_evaluation():
    scheme = make_scheme("randomized:rope", {"range": 60}, None, SIZES).eval()
    first = scheme.positions(TOKENS).position
    assert torch.equal(first, scheme.positions(TOKENS).position)
    other = make_scheme("randomized:rope", {"range": 60, "seed": 1}, None, SIZES).eval()
    assert not torch.equal(first, other.positions(TOKENS).position)
    assert not torch.equal(first, scheme.train().positions(TOKENS).position)


def test_random_positions_reach_every_part():
    """What a randomized scheme adds is what the scheme adds between the drawn positions."""
    scheme = made("randomized:relative", {"range": 50})
    position = scheme.positions(TOKENS).position[0].tolist()
    table = scheme.inner.table[1]
    close(bias_of(scheme)[0], over_pairs(lambda i, j: table[:, min(position[i] - position[j], 128)]))
    learned = made("randomized:learned", {"range": 50})
    positions = learned.positions(TOKENS)
    assert learned.inner.W_pos.shape[0] == 50
    close(learned.embed(positions), learned.inner.W_pos[positions.position])
