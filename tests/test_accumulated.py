"""Position embeddings of content, other normalisations and a scheme for each layer, against references and loops."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Llama4TextConfig, SmolLM3Config
from x_transformers.x_transformers import (
    DataDependentAlibi,
    PolarEmbedding,
    RotaryEmbedding,
    apply_polar_pos_emb,
    apply_rotary_pos_emb,
)

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.models.config import LensConfig, ModelConfig
from lengthlens.models.normalization import Normalization, broken_sticks, entmax
from lengthlens.models.schemes import Positions, PositionScheme, Sizes, make_scheme
from lengthlens.models.schemes.contract import check_scheme
from lengthlens.models.transformer import HookedModel, build
from lengthlens.probes.certify import covered
from lengthlens.probes.stretch import stretched_match
from lengthlens.probes.surgery import surgery
from lengthlens.probes.table import probe_model
from lengthlens.runs.stack import Stack
from lengthlens.runs.trainer import Trainer
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import small, small_model

LENGTH, H, D = 70, 3, 8  # two chunks of path
SIZES = Sizes(n_layers=2, n_heads=H, d_head=D, d_model=24, n_ctx=512)
ALL = slice(0, LENGTH)
KINDS = ("ssmax", "entmax", "asentmax", "stick-breaking")


def made(name: str, options: dict[str, Any] | None = None) -> PositionScheme:
    torch.manual_seed(0)
    scheme = make_scheme(name, options, TASKS["copy"], SIZES).eval()
    for parameter in scheme.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return scheme


def drawn(length: int = LENGTH) -> list[Tensor]:
    """Queries and keys [row, pos, head, d_head], and the input [row, pos, d_model], all with gradients."""
    generator = torch.Generator().manual_seed(1)
    qk = torch.randn(2, 2, length, H, D, generator=generator)
    return [each.requires_grad_() for each in (*qk, torch.randn(2, length, 24, generator=generator))]


def scores(scheme: PositionScheme, given: list[Tensor], blocks: int = 1) -> tuple[Tensor, Any]:
    """q·k with all that the scheme does to it, [row, head, query, key], zero above the diagonal; and what it read."""
    q, k, x = given
    positions = scheme.positions(torch.zeros(x.shape[:2], dtype=torch.long))
    scheme.take_in(1, x, positions)
    q, k = scheme.rotate_in(1, q, positions), scheme.rotate_in(1, k, positions, keys=True)
    rows, length = [], x.shape[1]
    step = -(-length // blocks)
    for start in range(0, length, step):
        block = slice(start, min(start + step, length))
        bias = scheme.score(1, positions, block, q[:, block], k[:, : block.stop])
        content = torch.einsum("bqhd,bkhd->bhqk", q[:, block], k[:, : block.stop])
        row = (content if bias is None else content + bias).tril(start)
        rows.append(F.pad(row, (0, length - block.stop)))
    return torch.cat(rows, 2), positions.cache.get(("kept", 1))


def same(scheme: PositionScheme, formula: Callable[[Tensor, Tensor, Any], Tensor], length: int = LENGTH) -> None:
    """Scores and gradients for q, k and the layer's input are those of a formula, in one block and in several."""
    for blocks in (1, 4):
        one, other = drawn(length), drawn(length)
        found, _ = scores(scheme, one, blocks)
        read = scores(scheme, other)[1]
        wanted = formula(other[0], other[1], read)
        torch.testing.assert_close(found, wanted.tril(), atol=1e-5, rtol=1e-5)
        weight = torch.linspace(-1, 1, wanted.numel()).view(wanted.shape).tril()
        used = [k for k in range(3) if k < 2 or read is not None]
        gradients = [
            torch.autograd.grad((value * weight).sum() / LENGTH, [leaves[k] for k in used])
            for value, leaves in ((found, one), (wanted, other))
        ]
        for mine, theirs in zip(*gradients):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


# -- schemes of content ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", ["forgetting", "data-alibi"])
def test_fox_is_the_data_dependent_alibi_of_x_transformers(gate: str) -> None:
    scheme = made("fox", {"gate": gate})
    theirs = DataDependentAlibi(24, H)
    theirs.to_forget_gates[0].load_state_dict(scheme.gate[1].state_dict())
    one, other = drawn(), drawn()
    bias = scores(scheme, one)[0] - scores(made("none"), one)[0]
    wanted = theirs(other[2]).tril()
    torch.testing.assert_close(bias, wanted, atol=2e-5, rtol=1e-5)
    own, reference = (torch.autograd.grad(b.mean(), each[2])[0] for b, each in ((bias, one), (wanted, other)))
    torch.testing.assert_close(own, reference, atol=1e-5, rtol=1e-4)
    start = make_scheme("fox", {"gate": gate}, TASKS["copy"], SIZES).gate[0].bias
    assert (start == {"forgetting": 0, "data-alibi": 5}[gate]).all(), "what tells the two apart"


def between(values: Tensor, i: int, j: int) -> Tensor:
    """The sum of what tokens after j, up to i, contribute. [row, head, …]"""
    return values[:, j + 1 : i + 1].sum(1)


def pair_by_pair(pair: Callable[[int, int], Tensor], length: int) -> Tensor:
    """[row, head] for each causal pair, as [row, head, query, key]."""
    zero = 0 * pair(0, 0)
    rows = [torch.stack([pair(i, j) if j <= i else zero for j in range(length)], -1) for i in range(length)]
    return torch.stack(rows, -2)


def test_cable_adds_the_softplus_of_the_other_sign() -> None:
    scheme = made("fox", {"gate": "cable"})

    def cable(q: Tensor, k: Tensor, gate: Tensor) -> Tensor:
        return pair_by_pair(lambda i, j: (q[:, i] * k[:, j]).sum(-1) + between(gate, i, j), 23)

    same(scheme, cable, 23)
    x = drawn()[2]
    kept = scheme.read(1, x, scheme.positions(torch.zeros(2, LENGTH, dtype=torch.long)))
    torch.testing.assert_close(kept, -F.softplus(x @ scheme.gate[1].weight.T + scheme.gate[1].bias))


def test_wall_is_the_published_sum() -> None:
    def wall(q: Tensor, k: Tensor, gate: Tensor) -> Tensor:
        running = gate.cumsum(1)
        decay = (running[:, :, None] - running[:, None]).clamp(max=0).exp()  # [row, query, key, head, d_head]
        return torch.einsum("bqhd,bkhd,bqkhd->bhqk", q, k, decay)

    same(made("wall", {"start": 1.0}), wall)


@pytest.mark.parametrize("forgets", [False, True])
def test_path_is_a_product_of_reflections(forgets: bool) -> None:
    def path(q: Tensor, k: Tensor, read: Tensor) -> Tensor:
        u, forgotten = read[..., :D], read[..., D:].sum(-1)
        columns = []
        for j in range(LENGTH):  # each key goes through the tokens after it
            key, column = k[:, j], [torch.zeros(2, H)] * j
            for i in range(j, LENGTH):
                key = key if i == j else key - u[:, i] * (u[:, i] * key).sum(-1, keepdim=True)
                column.append((q[:, i] * key).sum(-1) + between(forgotten, i, j))
            columns.append(torch.stack(column, -1))
        return torch.stack(columns, -1)

    scheme = made("path", {"forgets": forgets})
    same(scheme, path)
    strength = scores(scheme, drawn())[1][..., :D].square().sum(-1)
    assert strength.min() > 0 and strength.max() < 2 + 1e-5, "the length of u is the square root of β"


def test_selective_rope_turns_by_running_sums() -> None:
    scheme = made("selective-rope")
    one, length = drawn(23), 23
    found, angle = scores(scheme, one)
    angles = angle.detach().cumsum(1).double()  # [row, pos, head, pair]
    q, k = (torch.complex(x[..., : D // 2].double(), x[..., D // 2 :].double()) for x in one[:2])
    q, k = (x * torch.polar(torch.ones_like(angles), angles) for x in (q, k))
    wanted = torch.einsum("bqhd,bkhd->bhqk", q, k.conj()).real.tril()
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    weight, x = scheme.mix[1].weight, one[2]
    parts = F.normalize(x.unflatten(-1, (H, -1)), dim=-1).flatten(2)
    low = parts @ scheme.angle[1][0].weight.T @ scheme.angle[1][1].weight.T
    t = length - 1
    mixed = sum(low[:, t - 3 + w] * weight[:, w] for w in range(4)).unflatten(-1, (H, -1))
    torch.testing.assert_close(angle[:, t], mixed * 500000.0 ** (-torch.arange(0, D, 2) / D))


def test_grape_additive_sums_along_the_path() -> None:
    scheme = made("grape-additive")

    def grape(q: Tensor, k: Tensor, p: Tensor) -> Tensor:
        hat = p / (p.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()
        a, b, t = hat[..., :4], hat[..., 4:], torch.arange(23.0)[None, :, None, None]
        turned = torch.cat([a * t.cos() + b * t.sin(), b * t.cos() - a * t.sin()], -1)
        edge = F.logsigmoid(torch.einsum("bihd,bthd->bith", p, turned) / 8) * scheme.slope

        def pair(i: int, j: int) -> Tensor:
            return (q[:, i] * k[:, j]).sum(-1) + edge[:, i, j + 1 : i + 1].sum(1)

        return pair_by_pair(pair, 23)

    same(scheme, grape, 23)


# -- rotations, and a network over biases ----------------------------------------------------------------------------


def test_pope_is_the_polar_embedding_of_x_transformers() -> None:
    scheme = made("pope")
    theirs = PolarEmbedding(D, H)
    theirs.learned_bias.data = scheme.delta[1][:, None].detach()

    def polar(q: Tensor, k: Tensor, _: object) -> Tensor:
        angle, bias = theirs(torch.arange(LENGTH))
        turned = apply_polar_pos_emb(q.transpose(1, 2), angle), apply_polar_pos_emb(k.transpose(1, 2), angle + bias)
        return turned[0] @ turned[1].transpose(-1, -2)

    same(scheme, polar)


def test_xpos_is_that_of_x_transformers() -> None:
    theirs = RotaryEmbedding(D, use_xpos=True)

    def xpos(q: Tensor, k: Tensor, _: object) -> Tensor:
        angle, scale = theirs(torch.arange(LENGTH))
        turned = apply_rotary_pos_emb(q.transpose(1, 2), angle, scale)
        return turned @ apply_rotary_pos_emb(k.transpose(1, 2), angle, scale**-1).transpose(-1, -2)

    same(made("xpos", {"adjacent_pairs": True}), xpos)


def test_multiplicative_grape_starts_as_rope_and_learns_its_angles() -> None:
    given = drawn(23)
    start, rope = (make_scheme(name, None, TASKS["copy"], SIZES) for name in ("grape-multiplicative", "rope"))
    torch.testing.assert_close(scores(start, given)[0], scores(rope, given)[0], atol=1e-5, rtol=1e-5)
    scheme = made("grape-multiplicative")
    frequency = scheme.log_frequency[1].weight[:, 0].exp()

    def turned(q: Tensor, k: Tensor, _: object) -> Tensor:
        q, k = (torch.complex(x[..., : D // 2], x[..., D // 2 :]) for x in (q, k))
        distance = torch.arange(23.0)[:, None] - torch.arange(23.0)
        phase = torch.polar(torch.ones(23, 23, D // 2), distance[..., None] * frequency)
        return torch.einsum("bqhd,bkhd,qkd->bhqk", q, k.conj(), phase).real

    same(scheme, turned, 23)


@pytest.mark.parametrize("over", ["alibi", "kerple-log", "fire"])
def test_dape_is_a_network_of_all_heads_at_a_pair(over: str) -> None:
    scheme = made("dape", {"over": over})
    positions = scheme.positions(torch.zeros(2, 23, dtype=torch.long))

    def dape(q: Tensor, k: Tensor, _: object) -> Tensor:
        bias = scheme.bias.score(1, positions, slice(0, 23), q, k).expand(2, -1, -1, -1)
        content = torch.einsum("bqhd,bkhd->bhqk", q, k)
        first, last = scheme.network[1][0], scheme.network[1][2]
        both = torch.stack([*content.unbind(1), *bias.unbind(1)], -1)
        hidden = both @ first.weight.T + first.bias
        return content + bias + (torch.where(hidden > 0, hidden, 0.01 * hidden) @ last.weight.T).movedim(-1, 1)

    same(scheme, dape, 23)


# -- normalisations --------------------------------------------------------------------------------------------------


def test_entmax_has_known_values_and_gradients() -> None:
    """α = 2 is the projection on the simplex and α = 1.5 has a closed form, both by sorting; softmax is the limit."""
    z = 2 * torch.randn(64, 40, generator=torch.Generator().manual_seed(0))
    ranked, k = z.sort(descending=True).values, torch.arange(1, 41)
    tau = (ranked.cumsum(-1) - 1) / k
    size = (ranked > tau).sum(-1, keepdim=True)
    torch.testing.assert_close(entmax(z, torch.tensor(2.0)), (z - tau.gather(1, size - 1)).clamp(min=0))
    half = ranked / 2
    mean, square = half.cumsum(-1) / k, half.square().cumsum(-1) / k
    tau = mean - ((1 - k * (square - mean**2)) / k).clamp(min=0).sqrt()
    size = (tau <= half).sum(-1, keepdim=True)
    wanted = (z / 2 - tau.gather(1, size - 1)).clamp(min=0) ** 2
    torch.testing.assert_close(entmax(z, torch.tensor(1.5)), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(entmax(z, torch.tensor(1.001)), z.softmax(-1), atol=3e-3, rtol=0)
    alpha = torch.tensor(1.3, requires_grad=True)
    z = z[:4].clone().requires_grad_()
    weight = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
    by_z, by_alpha = torch.autograd.grad((entmax(z, alpha) * weight).sum(), [z, alpha])
    with torch.no_grad():
        moved = [(entmax(z, alpha + step) * weight).sum() / 0.004 for step in (0.002, -0.002)]
        torch.testing.assert_close(by_alpha, moved[0] - moved[1], atol=1e-3, rtol=1e-3)
        p = entmax(z, alpha)
        s = torch.where(p > 0, p ** (2 - alpha), 0)  # the Jacobian is diag(s) − s sᵀ / Σ s
        torch.testing.assert_close(
            by_z, s * weight - s * (s * weight).sum(1, True) / s.sum(1, True), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("keys", [2, 30, 3000])
@pytest.mark.parametrize("size", [0.05, 1.0, 30.0])
def test_entmax_adds_up_whatever_the_scores(keys: int, size: float) -> None:
    z = size * torch.randn(20, keys, generator=torch.Generator().manual_seed(0))
    for alpha in (1.05, 1.5, 1.95):
        torch.testing.assert_close(entmax(z, torch.tensor(alpha)).sum(-1), torch.ones(20), atol=1e-3, rtol=0)


def test_sticks_are_broken_from_the_nearest_key_back() -> None:
    z = torch.randn(1, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    found = broken_sticks(z + torch.full((9, 9), -torch.inf).triu(1))
    for i in range(9):
        left = torch.ones(2)
        for j in range(i - 1, -1, -1):
            torch.testing.assert_close(found[0, :, i, j], left * z[0, :, i, j].sigmoid())
            left = left * (1 - z[0, :, i, j].sigmoid())
        assert (found[0, :, i, i:] == 0).all()
    torch.testing.assert_close(found[:, :, 5:], broken_sticks((z + torch.full((9, 9), -torch.inf).triu(1))[:, :, 5:]))


def network(kind: str, scheme: str = "alibi", **more: Any) -> HookedModel:
    model = build(ModelConfig(task="copy", scheme=scheme, attn_normalization=kind, d_model=24, n_heads=3, **more))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def watched_patterns(model: HookedModel, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the first layer: its input, the scores, the pattern."""
    names = ["blocks.0.ln1.hook_normalized", "blocks.0.attn.hook_attn_scores", "blocks.0.attn.hook_pattern"]
    _, cache = model.run_with_cache(tokens, names_filter=names)
    normalized = cache[names[0]] * model.blocks[0].ln1.w + model.blocks[0].ln1.b
    return normalized, cache[names[1]], cache[names[2]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_multiplies_scores_is_the_formula(kind: str) -> None:
    tokens = TASKS["copy"].sample(9, 2, torch.Generator().manual_seed(0)).tokens
    model = network(kind, "alibi")
    plain = build(ModelConfig(task="copy", scheme="alibi", d_model=24, n_heads=3)).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    x, found, pattern = watched_patterns(model, tokens)
    bare, part = watched_patterns(plain, tokens)[1], model.blocks[0].attn.normalization
    i = torch.arange(tokens.shape[1])
    times: Any = 1.0
    if kind == "ssmax":
        times = part.a[:, None, None] * (i + 1.0).log()[:, None]
    if kind == "asentmax":
        beta, gamma = F.softplus(x @ part.W_beta), 2 * torch.tanh(x @ part.W_gamma)
        times = (1 + beta * (i + 2.0).log()[:, None] ** gamma).transpose(1, 2)[..., None]
    seen = torch.ones(len(i), len(i)).tril().bool()
    torch.testing.assert_close(
        *((s.where(seen, 0) if k else (s * times).where(seen, 0)) for k, s in enumerate((bare, found)))
    )
    total = pattern.sum(-1)
    if kind == "stick-breaking":
        assert (total[..., 0] == 0).all() and (total < 1 + 1e-5).all()
    else:
        torch.testing.assert_close(total, torch.ones_like(total), atol=1e-4, rtol=0)
    assert (pattern * ~seen == 0).all()


@pytest.mark.parametrize("scheme", ["rope", "alibi", "urpe", "fox", "windowed:rope", "layers(rope,none)"])
@pytest.mark.parametrize("kind", [*KINDS, "sink"])
def test_every_way_of_attention_agrees_under_every_normalisation(kind: str, scheme: str) -> None:
    """All scores at once, in blocks with and without gradients, with queries of the end alone, and in generation."""
    model = network("softmax", scheme, attn_sink=True) if kind == "sink" else network(kind, scheme)
    tokens = TASKS["copy"].sample(40, 2, torch.Generator().manual_seed(0)).tokens
    for block in model.layers:
        block.attn.block_elements = 2 * 3 * 20 * tokens.shape[1]
    explicit = model.run_with_cache(tokens)[0]
    close = {"atol": 1e-4, "rtol": 1e-3}
    torch.testing.assert_close(model(tokens), explicit, **close)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), explicit, **close)
        torch.testing.assert_close(model(tokens, queries=slice(60, 70)), explicit[:, 60:70], **close)
        torch.testing.assert_close(model(tokens[:, :50]), explicit[:, :50], **close)
        written = model.generate(tokens[:, :50], 2)
        assert torch.equal(model(written)[:, 49:-1].argmax(-1), written[:, 50:])
    seen: list[Tensor] = []
    with model.blocked_attention():
        model.zero_grad()
        hooks = [("blocks.1.attn.hook_pattern", lambda pattern, hook: seen.append(pattern.detach()))]
        model.run_with_hooks(tokens, fwd_hooks=hooks).square().mean().backward()
        blocked = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert len(seen) > 1
    model.zero_grad()
    model(tokens).square().mean().backward()
    assert blocked.keys() == {name for name, p in model.named_parameters() if p.grad is not None}
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(blocked[name], p.grad, atol=1e-4, rtol=1e-3, msg=name)


def test_a_sink_takes_weight_and_gives_no_value() -> None:
    """As a key with a learned score and the value 0, for each head (gpt-oss)."""
    scores = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    config = ModelConfig(d_vocab=3, n_heads=2, attn_sink=True).resolved()
    part = Normalization(LensConfig.of(config))
    part.sink.data = torch.tensor([0.5, -1.0])
    weights = scores.exp() / (scores.exp().sum(-1, keepdim=True) + part.sink.exp()[:, None, None])
    torch.testing.assert_close(part(scores), weights)


def test_normalisations_are_told_in_configs_and_change_no_earlier_name() -> None:
    plain, other = ll.RunConfig("copy", "rope"), ll.RunConfig("copy", "rope", attn_normalization="ssmax")
    assert "attn_normalization" not in plain.to_dict() and plain.id != other.id
    assert plain.score_scaling == "log" and other.score_scaling == "none", "ssmax scales by itself"
    assert ll.RunConfig.from_json(other.to_json()) == other and other.model.attn_normalization == "ssmax"
    with pytest.raises(UserError, match="one of softmax, ssmax, entmax, asentmax, stick-breaking"):
        ModelConfig(task="copy", attn_normalization="sparsemax")
    with pytest.raises(UserError, match="stick-breaking leaves some anyway"):
        ModelConfig(task="copy", attn_normalization="stick-breaking", attn_sink=True)
    model = network("entmax", "lbpe", score_scaling="none")
    with pytest.raises(UserError, match="attn_normalization entmax is not covered"):
        covered(model, TASKS["copy"])
    with pytest.raises(UserError, match="rules for softmax"):
        ll.relevance(model, "^ 7 3 =")
    with pytest.raises(UserError, match="stretched under softmax"):
        stretched_match(model, train_max=3)
    with pytest.raises(UserError, match="cannot be folded where"):
        network("asentmax", "rope").folded()


@pytest.mark.parametrize("how", [*({"attn_normalization": kind} for kind in KINDS), {"attn_sink": True}])
def test_a_stack_learns_what_each_run_learns(how: dict[str, Any]) -> None:
    runs = [[Trainer(small("rope", steps=4, seed=seed, device="cpu", **how)) for seed in (0, 1)] for _ in range(2)]
    for trainer in runs[0]:
        while not trainer.done:
            trainer.advance()
    stack = Stack(runs[1])
    while stack.trainers:
        stack.advance()
    for one, other in zip(*runs):
        for (name, weight), learned in zip(one.model.named_parameters(), other.parameters):
            if not name.endswith("b_K"):
                torch.testing.assert_close(learned, weight, atol=2e-5, rtol=1e-3, msg=name)


# -- layers, windows and recipes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SmolLM3Config(num_hidden_layers=10), Llama4TextConfig(num_hidden_layers=10)])
def test_layers_are_those_of_smollm3_and_llama_4(config: Any) -> None:
    scheme = make_scheme("layers", None, TASKS["copy"], Sizes(n_layers=10))
    assert [bool(scheme.acts_in(layer)) for layer in range(10)] == [bool(rope) for rope in config.no_rope_layers]


def test_a_layer_does_what_its_scheme_does_alone() -> None:
    tokens = TASKS["copy"].sample(6, 2, torch.Generator().manual_seed(0)).tokens
    both = small_model("layers(alibi,fox,none,fox)", n_layers=4)
    assert both.config.scheme == "layers" and both.config.spec.label == "layers(alibi,fox,none,fox)"
    fox = both.pos_embed.each[1]
    assert fox.sizes.n_layers == 2, "tables for the layers that use them"
    one = build(ModelConfig.from_dict({**both.config.to_dict(), "scheme": "fox", "scheme_options": {}, "n_layers": 2}))
    one.pos_embed.load_state_dict(fox.state_dict())
    residual = both(tokens, stop_at_layer=3)
    for k in (0, 1):
        one.blocks[k].load_state_dict(both.blocks[1 + 2 * k].state_dict())
    torch.testing.assert_close(
        one(residual, start_at_layer=1, stop_at_layer=2, tokens=tokens),
        both(residual, start_at_layer=3, stop_at_layer=4, tokens=tokens),
    )
    hooks = {name for name in both.hook_dict if name.endswith(("hook_gate", "hook_pos_score"))}
    assert hooks == {f"blocks.{k}.attn.{name}" for k in (1, 3) for name in ("hook_gate", "hook_pos_score")} | {
        "blocks.0.attn.hook_pos_score"
    }


def test_a_window_shows_the_nearest_keys_and_does_not_scale_their_scores() -> None:
    """SWAN and RNoPE-SWA: scores grow with the log of the position where a layer sees everything, and only there."""
    scheme = "layers(windowed:rope/window=3,none)"
    plain, scaled = (small_model(scheme, score_scaling=s, train_ctx=4) for s in ("none", "log"))
    tokens = TASKS["copy"].sample(6, 1, torch.Generator().manual_seed(0)).tokens
    distance = torch.arange(15)[:, None] - torch.arange(15)
    names = [f"blocks.{k}.attn.hook_{what}" for k in (0, 1) for what in ("pattern", "attn_scores")]
    own, other = (model.run_with_cache(tokens, names_filter=names)[1] for model in (plain, scaled))
    assert ((own[names[0]] > 0) == (distance >= 0) & (distance < 3)).all()
    assert ((own[names[2]] > 0) == (distance >= 0)).all()
    torch.testing.assert_close(own[names[1]], other[names[1]])
    assert not torch.allclose(own[names[3]].tril(), other[names[3]].tril())


def test_dropped_rotations_are_gone_after_training_and_stay_gone(tmp_path: Any) -> None:
    config = small("dropped:rope/at=0.5", steps=6, check_every=3, device="cpu")
    trainer, turned = Trainer(config), []
    while not trainer.done:
        trainer.model.train()
        turned.append(int(trainer.model.pos_embed.alive))
        trainer._step()
    assert turned == [1, 1, 1, 1, 0, 0], "told at the beginning of a step"
    model = trainer.model.eval()
    bare = build(ModelConfig.from_dict({**config.model.to_dict(), "scheme": "none", "scheme_options": {}})).eval()
    bare.load_state_dict(model.state_dict(), strict=False)
    tokens = TASKS["copy"].sample(9, 2, torch.Generator().manual_seed(0)).tokens
    torch.testing.assert_close(model(tokens), bare(tokens), atol=1e-6, rtol=1e-6)
    model.save_pretrained(tmp_path)
    again = ll.load(str(tmp_path))
    torch.testing.assert_close(again(tokens), bare(tokens), atol=1e-6, rtol=1e-6)
    assert model.pos_embed.relation().codes([5, 6], [1, 6], 3).tolist() == [[0], [0]]


def test_continuous_positions_are_numbers_in_order() -> None:
    scheme, tokens = make_scheme("continuous:alibi", {"range": 50}, TASKS["copy"], SIZES), torch.zeros(2, 23).long()
    position = scheme.positions(tokens).position[0]
    assert (position.diff() > 0).all() and position.min() >= 0 and position.max() < 50
    assert (position != position.round()).any() and not torch.equal(position, scheme.positions(tokens).position[0])
    assert torch.equal(scheme.eval().positions(tokens).position, scheme.positions(tokens).position)
    bias = scheme.score(0, scheme.positions(tokens), slice(0, 23), *drawn(23)[:2])
    position = scheme.positions(tokens).position[0]
    wanted = -scheme.inner.slope[0][:, None, None] * (position[:, None] - position)
    torch.testing.assert_close(bias[0].tril(), wanted.tril())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("layers(rope,learned)", "concern a layer alone, which 'learned' does not"),
        ("layers(lbpe,none)", "which 'lbpe' does not"),
        ("layers(rope,randomized:alibi)", "which 'randomized:alibi' does not"),
        ("layers(rop,none)", "unknown scheme 'rop'"),
        ("windowed:learned", "a window is a layer's"),
        ("windowed:ideal", "made to look for keys wherever they are"),
        ("dropped:alibi", "only a plain rotation vanishes"),
        ("continuous:t5", "no place between two whole positions"),
        ("hinted:fox", "nothing to anchor at the scale"),
    ],
)
def test_compositions_that_make_no_sense_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(ModelConfig(task="copy", scheme=name))


# -- what asks for codes ---------------------------------------------------------------------------------------------

NO_CODES = ("fox", "path", "wall", "selective-rope", "grape-additive")


@pytest.mark.parametrize("name", NO_CODES)
def test_where_codes_are_asked_for_one_sentence_is_the_answer(name: str) -> None:
    verdict = ll.verdict("copy", name, train_max=5, test_max=20)
    assert verdict.verdict == "open" and "add up to, which no positions tell" in verdict.reasons[0]
    model = small_model(name, score_scaling="none")
    table = probe_model(model, train_max=3, measures=["src", "lrc"])
    reasons = table[table["measure"].isin(["src", "lrc"])]["reason"]
    assert len(reasons) == 2 and reasons.str.contains("gives pairs no codes").all()
    assert (probe_model(model, train_max=3, measures=["src"]).query("measure == 'iota_src'")).empty
    for asked in ({"shift": 2}, {"codes": "ideal", "codes_of": 2}):
        with pytest.raises(UserError, match="counts tokens by their content"), surgery(model, **asked):
            pass
    assert stretched_match(model, train_max=3, scales=[6]).at(6) <= 1


@pytest.mark.parametrize("name", [*NO_CODES, "pope", "layers(fox,none)"])
def test_surgery_puts_one_scheme_in_the_place_of_another(name: str) -> None:
    """Itself changes nothing; in all layers it is the other network; in one layer, that layer's part."""
    model, alibi = small_model(name), small_model("alibi")
    tokens = TASKS["copy"].sample(4, 2, torch.Generator().manual_seed(0)).tokens
    clean, hooks = model(tokens), set(model.hook_dict)
    with surgery(model, codes=model):
        torch.testing.assert_close(model(tokens), clean)
    alibi.load_state_dict(model.state_dict(), strict=False)
    with surgery(model, codes="alibi"):
        torch.testing.assert_close(model(tokens), alibi(tokens))
    assert set(model.hook_dict) == hooks
    with surgery(alibi, codes=model):
        torch.testing.assert_close(alibi(tokens), clean)
    with surgery(alibi, codes=model, layers=[0], heads=[1]):
        assert not torch.allclose(alibi(tokens), clean)


class Peeking(PositionScheme):
    """Its gate is that of the token after."""

    name, family = "peeking", "accumulated"
    summary, relation_in_words, has_codes = "peeks", "none", False

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return (query_pos - key_pos + 0 * scale)[..., None]

    def read(self, layer: int, x: Tensor, positions: Positions) -> Tensor:
        return x.roll(-1, 1)[..., : self.sizes.n_heads]

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor:
        gate = positions.kept(layer).transpose(1, 2)
        return gate[:, :, queries, None] - gate[:, :, None, : queries.stop]


def test_a_scheme_that_peeks_at_later_tokens_fails_the_contract() -> None:
    ll.register(Peeking)
    found = check_scheme("peeking", TASKS["copy"])
    assert [each.method for each in found] == ["read"] and "a scheme must not look ahead" in found[0].what
    with pytest.raises(UserError, match="does not keep to its contract"):
        ll.train(ll.RunConfig("copy", "peeking", train_max=2, steps=1), None)


@pytest.mark.parametrize("name", NO_CODES)
def test_a_gate_can_be_changed_by_a_hook(name: str) -> None:
    """A token whose contribution is taken away counts for nothing between keys before and queries after it."""
    model = small_model(name)
    tokens = TASKS["copy"].sample(5, 2, torch.Generator().manual_seed(0)).tokens

    def without(gate: Tensor, hook: object) -> Tensor:
        gate = gate.clone()
        gate[:, 4] = 0
        return gate

    hook = "blocks.0.attn.hook_gate"
    clean = model(tokens)
    with torch.no_grad():
        changed = model.run_with_hooks(tokens, fwd_hooks=[(hook, without)])
    torch.testing.assert_close(changed[:, :4], clean[:, :4])
    assert not torch.allclose(changed[:, 5:], clean[:, 5:], atol=1e-4)
    assert math.isfinite(float(changed.sum()))
