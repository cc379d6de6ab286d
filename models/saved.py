"""Models on disk, as data: config.json and model.safetensors in a directory, and the Hugging Face Hub.

Nothing here unpickles anything. `HookedModel.from_pretrained` makes a model of what is read here.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import nn

from lengthlens.errors import UserError
from lengthlens.files import make_directory, read_whole, remove_quietly, write_whole
from lengthlens.models.config import ModelConfig
from lengthlens.values import parse_json

FORMAT = "lengthlens model"
VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
NEXT = "config.next.json"  # there only while a model is saved over another, or if that was stopped
LARGEST_CONFIG = 1 << 20  # bytes; a config of this project takes about one thousandth of it


def save(model: Any, path: str | Path) -> None:
    """Write a `HookedModel` into the directory `path`, which is made if there is none.

    Over another model: whenever it is stopped, the directory holds the one or the other.
    """
    folder, weights = Path(path), weights_of(model)
    config = render(model.config, weights).encode()
    make_directory(folder)
    over = (folder / WEIGHTS).exists()
    if over:  # so that, stopped between the two files, the new weights have their config
        write_whole(folder / NEXT, config)
    write_whole(folder / WEIGHTS, weights)
    write_whole(folder / CONFIG, config)
    if over:
        remove_quietly(folder / NEXT)


def weights_of(model: nn.Module) -> bytes:
    """The weights as the bytes of a safetensors file."""
    # Copies: safetensors refuses tensors that share storage, as those of a module with two names do.
    return save_tensors({name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()})


def render(config: ModelConfig, weights: bytes) -> str:
    """The text of config.json: what the model is, and what its weights must be, byte for byte.

    One checksum over config and weights, so that neither can be exchanged alone.
    """
    checksum = hashlib.sha256(config.to_json().encode() + b"\0" + weights).hexdigest()
    header = {"format": FORMAT, "version": VERSION, "weights_bytes": len(weights), "sha256": checksum}
    return json.dumps({**header, "config": config.to_dict()}, indent=2) + "\n"


def read_saved(path: str | Path) -> tuple[ModelConfig, bytes]:
    """Config and weights of the model that `save` wrote into a local directory.

    Raises `UserError` where there is no such directory, where a file is missing, damaged or of another version, and
    where config and weights do not belong together.

    >>> import tempfile
    >>> from lengthlens.models.transformer import build
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(build(ModelConfig(task="copy", scheme="rope")), folder)
    ...     read_saved(folder)[0].scheme
    'rope'
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"'{folder}' is not a directory with a saved model")
    try:
        return _read(folder, CONFIG)
    except UserError:
        with suppress(UserError):  # saving over another model may have been stopped between its two files
            return _read(folder, NEXT)
        raise


def _read(folder: Path, name: str) -> tuple[ModelConfig, bytes]:
    """The model of a directory whose config has this name. Links are followed: the cache of the Hub is made of them."""
    path = folder / name
    data = read_whole(path, LARGEST_CONFIG)
    header = parse_json(data, f"'{path}'")
    if not isinstance(header, dict) or header.get("format") != FORMAT or not isinstance(header.get("config"), dict):
        raise UserError(f"'{path}' is not the config of a {FORMAT}")
    if header.get("version") != VERSION:
        raise UserError(f"'{path}' is of version {header.get('version')!r}, and this code reads version {VERSION}")
    try:
        config = ModelConfig.from_dict(header["config"])
    except UserError as error:
        raise UserError(f"'{path}' is not a valid config: {error}") from None
    size = header.get("weights_bytes")
    if type(size) is not int or size < 0:
        raise UserError(f"the size of '{folder / WEIGHTS}' is not on record in {CONFIG}: {size!r}")
    weights = read_whole(folder / WEIGHTS, size)
    if len(weights) != size:
        raise UserError(f"'{folder / WEIGHTS}' is truncated: it has {len(weights)} bytes and should have {size}")
    if render(config, weights) != data.decode():
        raise UserError(f"'{folder}' was changed after it was saved: {CONFIG} and {WEIGHTS} do not belong together")
    return config, weights


def is_local(path: str | Path) -> bool:
    """Whether `path` means a place on this machine: it exists, or its parent does, or it is no ``owner/name``."""
    text = str(path)
    looks_like_repo = text.count("/") == 1 and not text.startswith((".", "/", "~")) and not text.endswith("/")
    return isinstance(path, Path) or not looks_like_repo or Path(text).exists() or Path(text).parent.exists()


def download(repo: str, patterns: Sequence[str] | None = (CONFIG, WEIGHTS)) -> str:
    """The directory with files of a repository of the Hugging Face Hub: of models or, if all are wanted, datasets."""
    from huggingface_hub import errors, snapshot_download

    wanted = None if patterns is None else list(patterns)
    try:
        try:
            return str(snapshot_download(repo, allow_patterns=wanted))
        except errors.RepositoryNotFoundError:
            if wanted is not None:
                raise
            return str(snapshot_download(repo, repo_type="dataset", allow_patterns=None))
    except (errors.HfHubHTTPError, errors.HFValidationError, errors.LocalEntryNotFoundError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"'{repo}' is neither a local directory nor a model on the Hub: {reason}") from None


def upload(folder: Path, repo: str, private: bool = False, token: str | None = None, kind: str = "model") -> str:
    """Put a directory into a repository of the Hub, which is made if there is none; the address of the commit."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    api = HfApi(token=token)
    try:
        api.create_repo(repo, private=private, repo_type=kind, exist_ok=True)
        return str(api.upload_folder(repo_id=repo, folder_path=str(folder), repo_type=kind))
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"nothing was uploaded to '{repo}' on the Hub: {reason}") from None


def refuse_not_finite(model: object) -> None:
    """Refuse a model with NaN or infinity among its weights: what it answers would mean nothing."""
    state = model.state_dict() if isinstance(model, nn.Module) else {}
    bad = [name for name, part in state.items() if part.is_floating_point() and not bool(part.isfinite().all())]
    if bad:
        raise UserError(f"weights of the model are not finite: {', '.join(bad)}")
