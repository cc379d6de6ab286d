"""Checkpoints of others compute here what they compute there, become runs, and what has no equivalent is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

import lengthlens as ll
from lengthlens.errors import UserError
from lengthlens.models.foreign import Checkpoint, read_checkpoint, token_ids
from lengthlens.models.transformer import HookedModel, with_weights
from lengthlens.probes.probe import PROBES
from lengthlens.probes.table import probe_run
from lengthlens.runs.evaluation import evaluate, instance_seed, right_tokens, score_of
from lengthlens.runs.importing import source_of
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import command, shaken

HOOKED = Path(__file__).parent / "fixtures" / "hooked39"  # made with TransformerLens 3.9, by make.py there
HOOKED_CASES = sorted(path.stem for path in HOOKED.glob("*.json"))
assert len(HOOKED_CASES) == 15
WEIGHTS = "model.safetensors"
VOCAB = 23
LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
WIDE = {**LLAMA, "head_dim": 8}
NEOX = {
    "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"vocab_size": VOCAB, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 64}
BLOOM = {"vocab_size": VOCAB, "hidden_size": 20, "n_layer": 2, "n_head": 5}  # 5 is no power of two: two rules of slopes
THETA = {"rope_theta": 500.0, "rope_type": "default"}
LINEAR = {"rope_theta": 500.0, "rope_type": "linear", "factor": 4.0}
YARN = {"rope_theta": 500.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2-untied": ("GPT2", {**GPT2, "tie_word_embeddings": False, "n_inner": 20, "activation_function": "gelu"}),
    "gpt2-unscaled": ("GPT2", {**GPT2, "scale_attn_weights": False, "activation_function": "relu"}),
    "llama": ("Llama", LLAMA),
    "llama-tied": ("Llama", {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "rope_parameters": THETA}),
    "llama-wide-heads": ("Llama", {**WIDE, "num_key_value_heads": 6, "hidden_act": "gelu_pytorch_tanh"}),
    "llama-linear": ("Llama", {**WIDE, "rope_parameters": LINEAR}),
    "llama-yarn": ("Llama", {**WIDE, "rope_parameters": YARN}),
    "mistral": ("Mistral", {**LLAMA, "sliding_window": None}),
    "qwen2": ("Qwen2", LLAMA),
    "neox": ("GPTNeoX", NEOX),
    "neox-sequential": ("GPTNeoX", {**NEOX, "use_parallel_residual": False, "attention_bias": False}),
    "neox-all-turns": ("GPTNeoX", {**NEOX, "rope_parameters": {**THETA, "partial_rotary_factor": 1.0}}),
    "bloom": ("Bloom", BLOOM),
    "bloom-untied": ("Bloom", {**BLOOM, "tie_word_embeddings": False}),
}


def source(kind: str, settings: Mapping[str, Any]) -> Any:
    """A model of transformers whose parameters are all random: biases of zero would hide mistakes."""
    config = getattr(transformers, f"{kind}Config")(**{"bos_token_id": None, "eos_token_id": None, **settings})
    config._attn_implementation = "eager"  # the one that shows patterns
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    return shaken(getattr(transformers, f"{kind}{suffix}")(config).eval(), seed=0)


def model_of(folder: Path) -> HookedModel:
    found = read_checkpoint(folder)
    return with_weights(ll.ModelConfig(**found.fields), found.weights, f"'{found.name}'").eval()


def saved(folder: Path, kind: str, settings: Mapping[str, Any], **how: Any) -> Any:
    model = source(kind, settings)
    model.save_pretrained(folder, **how)
    return model


def some_tokens(vocab: int = VOCAB, length: int = 40) -> Tensor:
    return torch.randint(vocab, (2, length), generator=torch.Generator().manual_seed(2))


# -- the same numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_logits_residual_stream_and_patterns(case: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, *CASES[case])
    model = model_of(tmp_path)
    tokens = some_tokens()
    with torch.no_grad():
        expected = theirs(tokens, output_hidden_states=True, output_attentions=True)
    logits, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(tokens), logits, atol=1e-5, rtol=0)  # the fused way, without hooks
    torch.testing.assert_close(model.folded()(tokens), logits, atol=1e-4, rtol=0)
    for layer in range(model.cfg.n_layers):
        torch.testing.assert_close(cache["resid_pre", layer], expected.hidden_states[layer], atol=1e-5, rtol=0)
        torch.testing.assert_close(cache["pattern", layer], expected.attentions[layer], atol=1e-5, rtol=0)


def test_several_files_and_half_precision(tmp_path: Path) -> None:
    source(*CASES["llama"]).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), tmp_path)


def test_configs_of_earlier_versions_of_transformers(tmp_path: Path) -> None:
    """rope_theta, rope_scaling, rotary_pct and the names without a prefix: as files on the Hub often have them."""
    theirs = saved(tmp_path / "llama", "Llama", {**WIDE, "rope_parameters": LINEAR})
    rewrite(tmp_path / "llama", rope_parameters=None, rope_theta=500.0, rope_scaling={"type": "linear", "factor": 4.0})
    assert_same(theirs, tmp_path / "llama")
    partial = {**THETA, "partial_rotary_factor": 0.5}
    theirs = saved(tmp_path / "neox", "GPTNeoX", {**NEOX, "rope_parameters": partial})
    rewrite(tmp_path / "neox", rope_parameters=None, rotary_emb_base=500, rotary_pct=0.5)
    assert_same(theirs, tmp_path / "neox")
    theirs = saved(tmp_path / "gpt2", "GPT2", GPT2)
    weights = load_file(tmp_path / "gpt2" / WEIGHTS)
    bare = {name.removeprefix("transformer."): value for name, value in weights.items()}
    bare |= {"h.0.attn.bias": torch.ones(1, 1, 8, 8)}  # a mask that older files carry along
    save_file(bare, tmp_path / "gpt2" / WEIGHTS)
    assert_same(theirs, tmp_path / "gpt2")


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def assert_same(theirs: Any, folder: Path) -> None:
    with torch.no_grad():
        expected = theirs(some_tokens())
    expected = getattr(expected, "logits", expected)
    torch.testing.assert_close(model_of(folder)(some_tokens()), expected, atol=1e-5, rtol=0)


# -- TransformerLens ------------------------------------------------------------------------------------------------


def fixture(case: str) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by what they are and their name, and the config."""
    tensors: dict[str, dict[str, Tensor]] = {"": {}, "weights": {}, "activations": {}}
    for key, value in load_file(HOOKED / f"{case}.safetensors").items():
        kind, _, name = key.rpartition("/")
        tensors[kind][name] = value
    return tensors, json.loads((HOOKED / f"{case}.json").read_text())


@pytest.mark.parametrize("case", HOOKED_CASES)
def test_a_hooked_transformer_of_version_3_9(case: str, tmp_path: Path) -> None:
    """Logits and every activation from a state dict, and logits from files."""
    tensors, config = fixture(case)
    tokens, logits, expected = tensors[""]["tokens"], tensors[""]["logits"], tensors["activations"]
    hooked_folder(tmp_path, tensors["weights"], config)
    model = HookedModel.from_hooked_state_dict(tensors["weights"], config)
    for same in (model, model_of(tmp_path)):
        torch.testing.assert_close(same(tokens), logits, atol=1e-5, rtol=0)
    for flag in ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_attn_in"):
        setattr(model.cfg, flag, config[flag])
    _, cache = model.run_with_cache(tokens)
    # What shortformer adds is not part of the residual stream, so it has another name here; a norm of the embedding is
    # part of its table.
    embedding = {"embed.ln.hook_scale", "embed.ln.hook_normalized"}
    assert expected.keys() - cache.keys() <= ({"hook_pos_embed"} if "shortformer" in case else embedding)
    for name in expected.keys() & cache.keys():
        value = expected[name]
        if name.endswith(("hook_k", "hook_v", "hook_rot_k")):  # heads share them there, and do not here
            value = value.repeat_interleave(model.cfg.n_heads // value.shape[2], 2)
        torch.testing.assert_close(cache[name], value, atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gated_mlp": True}, "has no weights 'blocks.0.mlp.W_gate'"),
        ({"use_qk_norm": True}, "use_qk_norm=True has no equivalent"),
        ({"num_experts": 4}, "num_experts=4 has no equivalent"),
        ({"output_logits_soft_cap": 30.0}, "output_logits_soft_cap=30.0 has no equivalent"),
        ({"use_local_attn": True}, "use_local_attn=True has no equivalent"),
        ({"final_rms": True}, "final_rms and normalization_type 'LN' has no equivalent"),
        ({"positional_embedding_type": "relative_positional_bias"}, "those that do: standard, rotary, shortformer"),
        ({"act_fn": "solu_ln"}, "act_fn must be one of"),
        ({"n_layers": 3}, "has no weights 'blocks.2.attn.W_K'"),
        ({"n_layers": 1}, "has weights 'blocks.1.attn.W_K', which the model does not have"),
        ({"d_mlp": 9}, r"'blocks.0.mlp.W_in' of shape \[8, 32\], and the model needs \[8, 9\]"),
    ],
)
def test_what_a_hooked_transformer_has_and_this_model_has_not(change: dict[str, object], sentence: str) -> None:
    tensors, config = fixture("standard")
    with pytest.raises(UserError, match=sentence):
        HookedModel.from_hooked_state_dict(tensors["weights"], {**config, **change})


def hooked_folder(folder: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    save_file({name: value.detach().contiguous().clone() for name, value in weights.items()}, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(dict(config), default=str))


NATIVE = {
    "learned": {},
    "rotary": {"positional_embedding_type": "rotary", "rotary_dim": 4},
    "gated": {"positional_embedding_type": "rotary", "gated_mlp": True, "n_key_value_heads": 2, "act_fn": "silu",
              "normalization_type": "RMS", "final_rms": True},
    "attention only": {"attn_only": True},
}  # fmt: skip


@pytest.mark.parametrize("case", NATIVE)
def test_a_native_bridge_of_version_4(case: str, tmp_path: Path) -> None:
    sizes = {"n_layers": 2, "n_heads": 4, "d_head": 6, "d_model": 24, "d_mlp": 20, "d_vocab": VOCAB, "n_ctx": 64}
    about = {"act_fn": "gelu", "normalization_type": "LN", "architecture": "TransformerLensNative", **NATIVE[case]}
    bridge = shaken(TransformerBridge.boot_native(TransformerBridgeConfig(**sizes, **about)).eval(), seed=0)
    hooked_folder(tmp_path, bridge.tl_parameters(), bridge.cfg.to_dict())
    assert_same(bridge, tmp_path)


def test_a_bridge_around_a_model_of_transformers(tmp_path: Path) -> None:
    theirs = saved(tmp_path / "gpt2", *CASES["gpt2"])
    bridge = TransformerBridge.boot_transformers(str(tmp_path / "gpt2"), hf_model=theirs, device="cpu", tokenizer=None)
    hooked_folder(tmp_path / "bridge", bridge.tl_parameters(), bridge.cfg.to_dict())
    assert_same(theirs, tmp_path / "bridge")
    hooked_folder(tmp_path / "state", bridge.state_dict(), bridge.cfg.to_dict())
    with pytest.raises(UserError, match=r"has the layout of its model: save bridge.tl_parameters\(\) instead"):
        read_checkpoint(tmp_path / "state")


@pytest.mark.parametrize(
    ("case", "change", "sentence"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True has no equivalent"),
        ("gpt2", {"activation_function": "quick_gelu"}, "activation='quick_gelu' has no equivalent"),
        ("gpt2", {"model_type": "gemma2"}, "unknown kind of model 'gemma2'.*gpt2, llama"),
        ("gpt2", {"model_type": "mixtral"}, "unknown kind of model 'mixtral'"),
        ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config="),
        ("gpt2", {"n_layer": 3}, r"no weights 'h.2.ln_1.weight', which its config asks for"),
        ("llama-tied", {"tie_word_embeddings": False}, "no weights 'lm_head.weight', so it gives no logits"),
        ("gpt2", {"n_layer": 1}, r"has weights 'h.1.attn.c_attn.bias', which have no equivalent"),
        ("gpt2", {"n_layer": "two"}, r"has n_layer='two', no size"),
        ("gpt2", {"n_head": 5}, "do not fit its config"),
        ("llama", {"mlp_bias": True}, "mlp_bias=True"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_type='llama3'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
        ("llama", {"num_local_experts": 8}, "num_local_experts=8"),
        ("mistral", {"sliding_window": 16}, "sliding_window=16"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types="),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
    ],
)
def test_what_has_no_equivalent_is_refused_by_name(
    case: str, change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    saved(tmp_path, *CASES[case])
    rewrite(tmp_path, **change)
    with pytest.raises(UserError, match=sentence):
        read_checkpoint(tmp_path)


ELSEWHERE = json.dumps({"weight_map": {"wte.weight": "../elsewhere.safetensors"}})


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("pytorch_model.bin", "", r"pytorch_model.bin, a format that may run code"),
        ("other", "", r"holds no model.safetensors"),
        (WEIGHTS, "nothing", "not a safetensors file"),
        (f"{WEIGHTS}.index.json", ELSEWHERE, "lists no files of this directory"),
        ("config.json", "{", "is not JSON"),
        ("config.json", "[]", "values by name"),
        ("config.json", "{}", "config of no model of Hugging Face"),
    ],
)
def test_files_that_are_refused(file: str, text: str, sentence: str, tmp_path: Path) -> None:
    saved(tmp_path, *CASES["gpt2"])
    (tmp_path / WEIGHTS).unlink()
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_checkpoint(tmp_path)


# -- tokens --------------------------------------------------------------------------------------------------------


PARITY = TASKS["parity-cot"]  # tokens: 0 1 = ^ $ _


LITERAL = {"0": 0, "1": 1, "=": 2, "^": 3, "$": 4}
SPACED = {"0": 9, "Ġ0": 1, "Ġ1": 2, "Ġ=": 3}  # all with a space, since "1" is not there without
WORDS = {"zero": 7, "one": 8}
GIVEN = {"0": "zero", "1": "one", "=": 3, "^": 4, "$": 5, "unknown to the task": 6}


@pytest.mark.parametrize(
    ("vocabulary", "d_vocab", "ends", "given", "ids"),
    [
        ({}, 6, {}, {}, PARITY.ids),
        (SPACED, 10, {"^": 4, "$": 5}, {}, {"0": 1, "1": 2, "=": 3, "^": 4, "$": 5, "_": 5}),
        (LITERAL, 10, {"^": 8, "$": 9}, {}, {**LITERAL, "_": 4}),
        (WORDS, 12, {}, GIVEN, {"0": 7, "1": 8, "=": 3, "^": 4, "$": 5, "_": 5}),
        ({}, 7, {}, {}, r"ids of 0 1 = \^ \$ are not known \('theirs' has no tokenizer\)"),
        ({"0": 0}, 10, {"^": 8, "$": 9}, {}, r"of 0 1 = are not known \('theirs' has a tokenizer without them\)"),
        ({"0": 0, "1": 1, "=": 2}, 10, {"^": 1, "$": 4}, {}, r"tokens '1' and '\^' have one id of 'theirs', 1"),
        (WORDS, 12, {}, {**GIVEN, "0": "nought"}, "'0' is mapped to 'nought', and 'theirs' needs an id below 12 or a"),
        (WORDS, 12, {}, {**GIVEN, "0": 12}, "'0' is mapped to 12, and 'theirs' needs an id below 12"),
    ],
)
def test_ids_of_tokens(vocabulary: Any, d_vocab: int, ends: Any, given: Any, ids: dict[str, int] | str) -> None:
    """From the task, a tokenizer, the config or the user; or the sentence that says why not."""
    theirs = Checkpoint("theirs", "gpt2", "", {}, {"embed.W_E": torch.zeros(d_vocab, 4)}, vocabulary, ends)
    if isinstance(ids, dict):
        assert token_ids(theirs, PARITY, given) == ids
    else:
        with pytest.raises(UserError, match=ids):
            token_ids(theirs, PARITY, given)


@pytest.mark.parametrize("kind", ["word level", "unigram"])
def test_files_of_tokenizers(kind: str, tmp_path: Path) -> None:
    saved(tmp_path, "GPT2", {**GPT2, "bos_token_id": 20, "eos_token_id": 21})
    words = ["▁0", "▁1", "▁="]
    ids = {word: number for number, word in enumerate(words)}
    unigram = models.Unigram([(word, -1.0) for word in words], unk_id=0)
    tokenizer = Tokenizer(unigram if kind == "unigram" else models.WordLevel(ids, unk_token="0"))
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    theirs = read_checkpoint(tmp_path)
    assert theirs.vocabulary == {**ids, "<pad>": 3}
    assert token_ids(theirs, PARITY) == {"0": 0, "1": 1, "=": 2, "^": 20, "$": 21, "_": 21}


# -- runs ----------------------------------------------------------------------------------------------------------

IDS = {"0": 5, "1": 11, "=": 3, "^": 19, "$": 7}
THEIR_IDS = torch.tensor([{**IDS, "_": IDS["$"]}[token] for token in PARITY.vocab])


def imported(tmp_path: Path, case: str = "gpt2", **how: Any) -> tuple[Any, ll.RunStore, Any]:
    theirs = saved(tmp_path / case, *CASES[case])
    store = ll.RunStore(tmp_path / "runs")
    how = {"vocab": IDS, "train_max": 4, **how}
    return theirs, store, ll.import_checkpoint(tmp_path / case, "parity-cot", store, **how)


def their_logits(theirs: Any, tokens: Tensor, start: int = 0) -> Tensor:
    """Of the task's tokens, asked of the source with its own ids. [row, pos, token]"""
    places = {} if start == 0 else {"position_ids": torch.arange(start, start + tokens.shape[1])[None]}
    with torch.no_grad():
        logits: Tensor = theirs(THEIR_IDS[tokens], **places).logits
    return logits[..., THEIR_IDS]


@pytest.mark.parametrize("case", ["gpt2", "llama", "neox", "bloom"])
def test_a_run_answers_as_the_source_does(case: str, tmp_path: Path) -> None:
    theirs, store, run = imported(tmp_path, case)
    assert run.id.startswith("parity-cot_") and run.status().status == "not-converged" and store.check() == []
    batch = PARITY.sample(9, 8, torch.Generator().manual_seed(0))
    torch.testing.assert_close(run.model()(batch.tokens), their_logits(theirs, batch.tokens), atol=1e-5, rtol=0)
    (row,) = [row for row in run.evaluation() if row["length"] == 4]
    drawn = PARITY.sample(4, 200, torch.Generator().manual_seed(instance_seed(0, 4)))
    expected = score_of(4, right_tokens(their_logits(theirs, drawn.tokens), drawn))
    assert row["exact_match"] == expected.exact_match and row["token_accuracy"] == expected.token_accuracy
    assert store.table()["imported"].tolist() == [case] * 4
    drawn = PARITY.sample(4, 64, torch.Generator().manual_seed(0))
    with torch.no_grad():
        best = theirs(THEIR_IDS[drawn.tokens]).logits[:, :-1].argmax(-1)[drawn.query_mask]
    outside = float((~torch.isin(best, THEIR_IDS)).double().mean())  # how often it prefers a token of no meaning here
    assert source_of(run)["outside"] == pytest.approx(outside, abs=1e-9) and (outside > 0) == (case != "llama")


def test_an_imported_run_is_one_run(tmp_path: Path) -> None:
    _, store, run = imported(tmp_path)
    again = ll.import_checkpoint(tmp_path / "gpt2", "parity-cot", store, vocab=IDS, train_max=4)
    assert again.id == run.id and len(list(store.runs())) == 1
    other = ll.import_checkpoint(tmp_path / "gpt2", "parity-cot", store, vocab={**IDS, "0": 6}, train_max=4)
    assert other.id != run.id
    assert ll.RunConfig.from_json(run.config.to_json()) == run.config
    with pytest.raises(UserError, match="is an imported model, which is not trained here"):
        ll.train(run.config)
    assert ll.train(run.config, store).status == run.status()


def test_positions_that_start_later(tmp_path: Path) -> None:
    theirs, _, run = imported(tmp_path, start=13)
    batch = PARITY.sample(5, 8, torch.Generator().manual_seed(0))
    assert run.config.spec.label == "learned/start=13"
    expected = their_logits(theirs, batch.tokens, start=13)
    torch.testing.assert_close(run.model()(batch.tokens), expected, atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="has 64 positions and cannot process a sequence of 63 that starts at 13"):
        ll.exact_match(run.model(), PARITY, [30])
    with pytest.raises(UserError, match=r"scheme 'rope' counts by differences of positions: only learned .* a start"):
        imported(tmp_path, "llama", start=3)


def test_exact_match_is_averaged_over_random_starts(tmp_path: Path) -> None:
    """Token accuracy of the run is the mean over eight starts, each on its eighth of the instances."""
    theirs, _, run = imported(tmp_path, start=3, spread=40)
    scheme = run.model().pos_embed
    starts = []
    for scheme.placement in range(8):
        starts.append(3 + scheme.offset(PARITY.length(4)))
    assert len(set(starts)) > 4 and min(starts) >= 3 and max(starts) <= 43
    (row,) = [row for row in run.evaluation() if row["length"] == 4]
    drawn = PARITY.sample(4, 200, torch.Generator().manual_seed(instance_seed(0, 4)))
    shares = []
    for start, tokens in zip(starts, drawn.tokens.split(25)):
        right = their_logits(theirs, tokens, start)[:, 5:-1].argmax(-1) == tokens[:, 6:]
        shares.append(right.double().mean())
    assert row["token_accuracy"] == pytest.approx(float(torch.stack(shares).mean()), abs=1e-9)
    (small,) = ll.exact_match(run.model(), PARITY, [4], samples=200, memory=1)  # blocks of one row
    assert small.token_accuracy == row["token_accuracy"]


def test_the_command(tmp_path: Path) -> None:
    saved(tmp_path / "theirs", *CASES["llama"])
    (tmp_path / "vocab.json").write_text(json.dumps(IDS))
    words = ["import", str(tmp_path / "theirs"), "--task", "parity-cot", "--store", str(tmp_path / "runs")]
    failed = command(*words)
    assert failed.exit_code == 2 and "give a JSON file that maps every token" in failed.output
    words += ["--vocab", str(tmp_path / "vocab.json"), "--train-max", "3", "--name", "tiny llama"]
    done = command(*words)
    assert done.exit_code == 0 and "llama model 'tiny llama' with scheme rope" in done.output
    assert "0 5  1 11  = 3  ^ 19  $ 7  _ 7" in done.output and "exact match, mean over n up to 3: 0.0000" in done.output
    assert json.loads(command(*words, "--json").output)["source"]["kind"] == "llama"


@pytest.mark.slow
def test_every_probe_and_figure_takes_an_imported_run(tmp_path: Path) -> None:
    """On random weights: each probe gives numbers or a sentence, and each figure is drawn or says what it lacks."""
    _, store, run = imported(tmp_path, "neox", train_max=2)
    evaluate(run, [2, 4], samples=10)
    table = probe_run(run, force=True)
    for probe in PROBES.values():
        rows = table[table["measure"].isin(probe.measures)]
        assert rows["value"].notna().any() or (rows["reason"] != "").all(), probe.name
    certificate = ll.certify(run, max_length=4)
    assert certificate.kind == "none" and "scheme 'rope' is not covered" in certificate.unproven
    study = ll.study(store, pola_targets=[])
    assert set(study.loc[study["run"] == run.id, "recipe"]) == {"imported neox"}
    drawn = ll.draw(study, out=tmp_path / "figures", formats=["png"])
    assert any(path.name == "extrapolation.png" for path in drawn.files)
    assert all(len(sentence) > 20 for sentence in drawn.missing.values())
