"""Models that others trained, as directories on disk: their architecture, weights and tokens in this project's terms.

A directory of Hugging Face holds config.json, weights as safetensors and perhaps a tokenizer. One of TransformerLens
holds the same with `cfg.to_dict()` as config.json and, in model.safetensors, the state dict of a HookedTransformer (up
to 3.9) or what `tl_parameters()` or `state_dict()` of a native TransformerBridge gives (from 4 on). Nothing is
unpickled and no code that came with a model is run: weights in another format are refused.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.files import read_whole, regular
from lengthlens.models.config import ModelConfig
from lengthlens.models.huggingface import ARCHITECTURES, read_huggingface
from lengthlens.models.interop import is_hooked_config, read_hooked
from lengthlens.models.saved import CONFIG, WEIGHTS, check_weights
from lengthlens.models.transformer import HookedModel
from lengthlens.tasks import Task
from lengthlens.tasks.task import BEGIN, END, PAD
from lengthlens.values import anything, map_of, parse_json, parsed

INDEX = f"{WEIGHTS}.index.json"  # names the file of each weight, where a model has several
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")  # what weights are called in formats that may run code
ENDS = {BEGIN: "bos_token_id", END: "eos_token_id", PAD: "pad_token_id"}  # of Hugging Face's configs
MOST_TOKENS = 1 << 20  # of a vocabulary
SPACES = ("", "Ġ", "▁")  # how tokenizers write the space before a word, or its absence


@dataclass(frozen=True)
class Checkpoint:
    """A trained model of someone else's.

    `fields` are those of a `ModelConfig`, `weights` have this model's names and shapes. Token ids are the model's own.
    """

    name: str  # of the directory
    kind: str  # gpt2, llama, …, or TransformerLens
    sha256: str  # of config and weights
    fields: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    vocabulary: Mapping[str, int] = field(default_factory=dict)  # the id of each token by its text; may be empty
    ends: Mapping[str, int] = field(default_factory=dict)  # ids that the config names for ``^``, ``$`` and ``_``

    @property
    def d_vocab(self) -> int:
        return len(self.weights["embed.W_E"])

    def model(self, task: Task | None = None) -> HookedModel:
        """The model, ready for evaluation: over its own ids, or (after `speaking`) over the tokens of a task."""
        model: HookedModel = HookedModel(ModelConfig(**{**self.fields, "task": task.name if task else None}), task)
        check_weights(self.weights, model.state_dict(), f"'{self.name}'")
        model.load_state_dict(dict(self.weights))
        model.eval()
        return model

    def speaking(self, task: Task, ids: Mapping[str, int]) -> "Checkpoint":
        """The same model over the tokens of a task: embedding and unembedding of these ids only, in the task's order.

        Logits are those of the source at these ids, so that an answer is the likeliest among the task's tokens.
        """
        places = torch.tensor([ids[token] for token in task.vocab])
        own = {"embed.W_E": self.weights["embed.W_E"][places], "unembed.b_U": self.weights["unembed.b_U"][places]}
        own["unembed.W_U"] = self.weights["unembed.W_U"][:, places]
        sizes = {"d_vocab": len(places), "d_vocab_out": len(places)}
        return replace(self, fields={**self.fields, **sizes}, weights={**self.weights, **own})


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The model in a local directory of Hugging Face or TransformerLens.

    What this project's model cannot represent is refused by name, and so are weights that are not safetensors.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"'{folder}' is not a directory with a model")
    config = read_json(folder / CONFIG)
    kind, read = _reader(config, folder)
    files = weight_files(folder)
    loaded: dict[str, Tensor] = {}
    for file in map(regular, files):
        loaded |= parsed(lambda file=file: load_file(file), f"'{file}'", "a safetensors file")  # type: ignore[misc]
    weights = {name: value.float() if value.is_floating_point() else value for name, value in loaded.items()}
    try:
        fields, named = read(config, weights)
    except (RuntimeError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"the weights of '{folder}' do not fit its config: {error}") from None
    plain = {name: value.contiguous() for name, value in named.items()}
    ends = {token: config[name] for token, name in ENDS.items() if type(config.get(name)) is int}
    return Checkpoint(
        folder.resolve().name, kind, digest([folder / CONFIG, *files]), fields, plain, read_vocabulary(folder), ends
    )


Reader = Callable[[Mapping[str, Any], dict[str, Tensor]], tuple[dict[str, Any], dict[str, Tensor]]]


def _reader(config: Mapping[str, Any], folder: Path) -> tuple[str, Reader]:
    if is_hooked_config(config):
        return "TransformerLens", read_hooked
    kind = str(config.get("model_type"))
    if "model_type" not in config:
        raise UserError(f"'{folder / CONFIG}' is the config of no model of Hugging Face or TransformerLens")
    if kind not in ARCHITECTURES:
        raise unknown("kind of model", kind, ARCHITECTURES)
    return kind, read_huggingface


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: one, or those that its index lists."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        listed = read_json(folder / INDEX).get("weight_map")
        names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
        if not names or any(Path(name).name != name for name in names):
            raise UserError(f"'{folder / INDEX}' lists no files of its own directory")
        return [folder / name for name in names]
    others = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if others:
        how = "save the model as safetensors (save_pretrained does)"
        raise UserError(f"'{folder}' holds its weights as {others[0]}, a format that may run code: {how}")
    raise UserError(f"'{folder}' holds no {WEIGHTS}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    found: dict[str, Any] = parse_json(read_whole(path), f"'{path}'", map_of(anything(), MOST_TOKENS))
    return found


def digest(paths: Sequence[Path]) -> str:
    """One checksum over files, in order."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def read_vocabulary(folder: Path) -> dict[str, int]:
    """The ids of a tokenizer's tokens, from tokenizer.json or vocab.json; empty without one."""
    path = next((folder / name for name in ("tokenizer.json", "vocab.json") if (folder / name).exists()), None)
    if path is None:
        return {}
    described = read_json(path)

    def tokens() -> dict[str, int]:
        if path.name == "vocab.json":
            return described
        listed: Any = (described.get("model") or {}).get("vocab") or {}
        pieces = {piece[0]: k for k, piece in enumerate(listed)} if isinstance(listed, list) else listed
        return {**pieces, **{token["content"]: token["id"] for token in described.get("added_tokens") or []}}

    found = parsed(tokens, f"'{path}'", "a tokenizer")
    if any(type(token) is not str or type(number) is not int for token, number in found.items()):
        raise UserError(f"'{path}' is not a tokenizer: it maps something else than texts to whole numbers")
    return found


def token_ids(checkpoint: Checkpoint, task: Task, given: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The model's id of each of the task's tokens.

    `given` says it, by id or by the text of a token of the model's tokenizer; what it leaves out is guessed. Symbols
    and marks are looked up in the tokenizer, all as they are or all with a space before them. ``^``, ``$`` and ``_``
    are tokens of these texts or, where the tokenizer has none or the task's own ids are not known, the ids that the
    config names as beginning, end and padding. A model with exactly as many ids as the task has tokens, and no
    tokenizer, is taken to use the task's own ids.
    """
    found = _guessed(checkpoint, task)
    for token, value in (given or {}).items():
        if token in task.ids:
            found[token] = _id_of(value, token, checkpoint)
    found.setdefault(PAD, found.get(END, 0))  # padding stands behind the answer, where nothing looks at it
    missing = [token for token in task.vocab if token not in found]
    if missing:
        known = "no tokenizer" if not checkpoint.vocabulary else "a tokenizer without them"
        raise UserError(
            f"the model's ids of {' '.join(missing)} are not known ('{checkpoint.name}' has {known}): give a JSON file "
            f"that maps every token of task '{task.name}' to an id or a token of the model"
        )
    ids = {token: found[token] for token in task.vocab}
    _check_distinct(ids, checkpoint)
    return ids


def _guessed(checkpoint: Checkpoint, task: Task) -> dict[str, int]:
    known, payload = checkpoint.vocabulary, (*task.symbols, *task.marks)
    if not known and checkpoint.d_vocab == len(task.vocab):
        return dict(task.ids)
    found = {token: number for token, number in checkpoint.ends.items() if number < checkpoint.d_vocab}
    if BEGIN in known and END in known:
        found |= {token: known[token] for token in ENDS if token in known}
    for space in SPACES:
        if all(space + token in known for token in payload):
            return found | {token: known[space + token] for token in payload}
    return found


def _id_of(value: Any, token: str, checkpoint: Checkpoint) -> int:
    number = checkpoint.vocabulary.get(value) if isinstance(value, str) else value
    if type(number) is not int or not 0 <= number < checkpoint.d_vocab:
        wanted = f"an id below {checkpoint.d_vocab}" + (" or a token of its tokenizer" if checkpoint.vocabulary else "")
        raise UserError(f"token '{token}' is mapped to {value!r}, and '{checkpoint.name}' needs {wanted}")
    return number


def _check_distinct(ids: Mapping[str, int], checkpoint: Checkpoint) -> None:
    """Two tokens with one id could not be told apart; only padding may share one."""
    owner: dict[int, str] = {}
    for token, number in ids.items():
        if not 0 <= number < checkpoint.d_vocab:
            raise UserError(f"token '{token}' has id {number}, and '{checkpoint.name}' has {checkpoint.d_vocab} ids")
        if token != PAD and owner.setdefault(number, token) != token:
            raise UserError(f"tokens '{owner[number]}' and '{token}' have one id of '{checkpoint.name}', {number}")
