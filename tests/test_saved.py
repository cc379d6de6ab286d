"""Saved models come back bit for bit; damaged or hostile directories give one sentence and run nothing."""

import hashlib
import json
import pickle
import random
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

from lengthlens.errors import UserError
from lengthlens.models.config import ModelConfig
from lengthlens.models.saved import CONFIG, WEIGHTS, is_local, render
from lengthlens.models.schemes import scheme_names
from lengthlens.models.transformer import HookedModel, build
from lengthlens.tasks.copying import Copy
from lengthlens.tests.parameters import few, mixed_batch, small_model
from lengthlens.tests.test_runs import killed_after

LENGTHS = (1, 2, 22, 100)


@pytest.mark.parametrize("name", few(scheme_names(), "none", "rope", "lbpe", "hinted:relative"))
def test_bitwise_equal_logits(name: str, tmp_path: Path) -> None:
    model = small_model(name).to(torch.bfloat16 if name == "rope" else torch.float32)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]
    loaded = HookedModel.from_pretrained(tmp_path).eval()
    assert loaded.config == model.config and loaded.cfg.dtype == model.W_U.dtype
    for length in LENGTHS:
        tokens, scale = mixed_batch(length)
        assert torch.equal(loaded(tokens, scale), model(tokens, scale))


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    class Echo(Copy):
        name = "echo"

    build(ModelConfig(scheme="ideal"), Echo()).save_pretrained(tmp_path)
    assert HookedModel.from_pretrained(tmp_path, Echo()).task.name == "echo"
    with pytest.raises(UserError, match="unknown task 'echo'"):
        HookedModel.from_pretrained(tmp_path)
    with pytest.raises(UserError, match="the config is of task 'echo', and task 'copy' was given"):
        HookedModel.from_pretrained(tmp_path, Copy())


class Spy:
    """Unpickling this would leave a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def sealed(folder: Path, config: dict[str, object], weights: bytes) -> None:
    """Write config and weights with a checksum that is right, as someone with bad intent would."""
    (folder / WEIGHTS).write_bytes(weights)
    try:
        text = render(ModelConfig.from_dict(config), weights)
    except UserError:
        header = json.loads((folder / CONFIG).read_text())
        text = json.dumps({**header, "weights_bytes": len(weights), "config": config}, indent=2) + "\n"
    (folder / CONFIG).write_text(text)


def stored_config(folder: Path) -> dict[str, object]:
    config: dict[str, object] = json.loads((folder / CONFIG).read_text())["config"]
    return config


def other_bytes(folder: Path, chance: random.Random) -> None:
    """A file that has a bit flipped, and may be cut off."""
    path = folder / chance.choice([CONFIG, WEIGHTS])
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])


def wrong_shapes(folder: Path, chance: random.Random) -> None:
    state = load_file(folder / WEIGHTS)
    name = chance.choice(sorted(state))
    tensor = state.pop(name)  # and then it is missing, or of another shape or type, or under another name
    state |= chance.choice([{}, {name: torch.cat([tensor, tensor])}, {name: tensor.long()}, {name + "_": tensor}])
    sealed(folder, stored_config(folder), save_tensors(state))


def wrong_config(folder: Path, chance: random.Random) -> None:
    config = stored_config(folder)
    name = chance.choice(["n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab", "scheme", "n_ctx", "x"])
    bad = [0, -1, 10**6, 10**30, 1.5, "9", None, True, [], {"a": 1}, "learned", 3, "__import__('os')"]
    config[name] = chance.choice([value for value in bad if value != config.get(name)])
    if name in ("n_ctx", "x") and type(config[name]) is int:
        config[name] = -1
    sealed(folder, config, (folder / WEIGHTS).read_bytes())


def hostile_header(folder: Path, chance: random.Random) -> None:
    """A length of the header, or of a tensor, that no machine holds."""
    size = struct.pack("<Q", chance.choice([2**63, 2**40, 2**32, 10**8 + 1, 2**64 - 1]))
    entry = {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, chance.choice([4, 10**18])]}
    header = json.dumps({"embed.W_E": entry}).encode()
    huge = struct.pack("<Q", len(header)) + header + b"0000"
    sealed(folder, stored_config(folder), huge if chance.randrange(4) == 0 else size + chance.randbytes(99))


def pickle_in_disguise(folder: Path, chance: random.Random) -> None:
    trace = folder.parent / "trace"
    if chance.randrange(2):
        data = pickle.dumps(Spy(trace))
    else:
        torch.save({"embed.W_E": Spy(trace)}, folder / WEIGHTS)
        data = (folder / WEIGHTS).read_bytes()
    if chance.randrange(2):
        sealed(folder, stored_config(folder), data)
    else:
        (folder / chance.choice([CONFIG, WEIGHTS])).write_bytes(data)


DAMAGE = {other_bytes: 740, wrong_shapes: 100, wrong_config: 120, hostile_header: 40, pickle_in_disguise: 40}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    small_model("relative", n_layers=1).save_pretrained(folder / "good")
    return folder


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_every_damage_gives_one_sentence(damage: Callable[[Path, random.Random], None], saved: Path) -> None:
    for seed in range(DAMAGE[damage]):
        folder = saved / "damaged"
        shutil.copytree(saved / "good", folder)
        damage(folder, random.Random(seed))
        with pytest.raises(UserError) as caught:
            HookedModel.from_pretrained(folder)
        assert "\n" not in str(caught.value).strip(), f"seed {seed}"
        shutil.rmtree(folder)
    assert not (saved / "trace").exists()
    HookedModel.from_pretrained(saved / "good")


def test_the_checksum_is_over_config_and_weights(saved: Path) -> None:
    header = json.loads((saved / "good" / CONFIG).read_text())
    weights = (saved / "good" / WEIGHTS).read_bytes()
    config = ModelConfig.from_dict(header["config"])
    assert header["sha256"] == hashlib.sha256(config.to_json().encode() + b"\0" + weights).hexdigest()


@pytest.mark.parametrize("stopped", range(6))
def test_saving_over_a_model_leaves_one_or_the_other(
    stopped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before any of the files gets its name, and between them: what is there loads, and is one of both."""
    old, new = small_model("rope", d_head=4), small_model("alibi")
    with torch.no_grad():
        new.embed.W_E += 1
    old.save_pretrained(str(tmp_path))
    with killed_after(monkeypatch, stopped):
        new.save_pretrained(str(tmp_path))
    left_there = HookedModel.from_pretrained(tmp_path)
    # config.next.json, then the weights, then config.json: from the second on it is the new one
    wanted = old if stopped < 2 else new
    assert left_there.config == wanted.config and torch.equal(left_there.embed.W_E, wanted.embed.W_E)
    old.save_pretrained(str(tmp_path))  # and the next time nothing is left of it
    assert HookedModel.from_pretrained(tmp_path).config == old.config
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [CONFIG, WEIGHTS]


def test_a_local_path_never_touches_the_network(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = mock.Mock(side_effect=AssertionError("the network was touched"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved / "good", tmp_path / "runs" / "good")
    for path in (saved / "good", str(saved / "good"), "runs/good", "./runs/good"):
        assert isinstance(HookedModel.from_pretrained(path), HookedModel)
    for path in ("runs/typo", "./no/where", str(tmp_path / "typo"), "typo", Path("a/b"), "a/b/c", "~/x"):
        assert is_local(path)
        with pytest.raises(UserError, match="is not a directory with a saved model"):
            HookedModel.from_pretrained(path)
    assert not is_local("owner/name")
