"""What tests share: schemes, small runs and models, mixed batches, the command, and which values `make test` tries."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors import safe_open
from torch import Tensor, nn

import lengthlens as ll
from lengthlens.cli import main
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.models.transformer import HookedModel, build
from lengthlens.tasks import TASKS

NINE = "lbpe/forms=nine/other=each"  # the learned relation with few forms, which trains in few steps

TINY = {"train_max": 3, "batch": 4, "d_model": 16, "n_heads": 2, "check_every": 3, "steps": 40}


def small(scheme: str, **changes: object) -> ll.RunConfig:
    """A run that takes no time, of a task that the scheme can serve."""
    task = "addition" if scheme in ("coupled", "abacus") else "copy"
    return ll.RunConfig.from_dict({"task": task, "scheme": scheme, **TINY, **changes})


def few(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values for `parametrize`: the `quick` ones as they are, all others marked slow.

    >>> [each.values if hasattr(each, "values") else each for each in few("abc", "b")]
    [('a',), 'b', ('c',)]
    """
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


def command(*words: str) -> Result:
    """What `lengthlens` does with these words."""
    return CliRunner().invoke(main, words)


SIZES = {"task": "copy", "n_layers": 2, "n_heads": 3, "d_head": 4, "d_model": 10, "d_mlp": 12, "n_ctx": 128}


def small_model(scheme: str, **changes: object) -> HookedModel:
    """A small model in evaluation mode, shaken."""
    return shaken(build(ModelConfig.from_dict({**SIZES, "scheme": scheme, **changes})).eval())


def shaken(model: Any, seed: int = 1) -> Any:
    """With every parameter moved off its initial value: tables of zeros would hide a mistake in what they multiply."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


TRAINED = Path(__file__).parent / "fixtures" / "trained"  # by the recipes of test_probes_growth


def trained(name: str) -> HookedModel:
    """A small network that was trained until it was accurate in range, by task and scheme: "copy_lbpe"."""
    with safe_open(TRAINED / f"{name}.safetensors", "pt") as file:
        config, state = file.metadata()["config"], {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    model = build(ModelConfig.from_dict(json.loads(config))).eval()
    model.load_state_dict(state)
    return model


def mixed_batch(length: int) -> tuple[Tensor, Tensor]:
    """Ids [row, `length`] of three instances of copying of different n, cut or padded, and their n [row]."""
    task, scales = TASKS["copy"], torch.linspace(1, max(1, (length - 3) // 2), 3).long()
    tokens = torch.full((3, length), task.pad_id)
    drawn = task.sample(scales, generator=torch.Generator().manual_seed(length)).tokens[:, :length]
    tokens[:, : drawn.shape[1]] = drawn
    return tokens, scales


class EvenOdd(PositionScheme):
    """A scheme of one's own, without an anchored form: a learned bias for even and one for odd distances."""

    name, family = "even-odd", "relative"
    summary, relation_in_words = "one learned bias for even distances, one for odd", "(i−j) mod 2"

    def __init__(self, sizes: Any, options: object, task: Any) -> None:
        super().__init__(sizes, options, task)
        self.table = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, 2))

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return ((query_pos - key_pos + 0 * scale) % 2)[..., None]

    def score(self, layer: int, positions: Any, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        return self.table[layer][:, positions.distance(queries) % 2].transpose(0, 1)
