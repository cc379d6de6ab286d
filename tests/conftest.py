"""Shared by tests: a small model of every scheme, and batches of any length with mixed scales."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lengthlens.models.config import ModelConfig
from lengthlens.models.transformer import HookedModel, build
from lengthlens.tasks import TASKS

torch.set_num_threads(1)  # tensors here are so small that threads cost more than they give

SMALL = {"task": "copy", "n_layers": 2, "n_heads": 3, "d_head": 4, "d_model": 10, "d_mlp": 12, "n_ctx": 128}


def make_small_model(scheme: str, **changes: object) -> HookedModel:
    """A small model in evaluation mode with every parameter moved off its initial value.

    Tables that begin at zero would hide a mistake in what they multiply.
    """
    model = build(ModelConfig.from_dict({**SMALL, "scheme": scheme, **changes})).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def make_mixed_batch(length: int, task: str = "copy", rows: int = 3) -> tuple[Tensor, Tensor]:
    """Ids [row, `length`] of instances of different scales, cut or padded, and their scales [row]."""
    largest = max(1, (length - 3) // 2)
    scales = torch.linspace(1, largest, rows).long()
    batch = TASKS[task].sample(scales, generator=torch.Generator().manual_seed(length))
    tokens = torch.full((rows, length), TASKS[task].pad_id)
    width = min(length, batch.tokens.shape[1])
    tokens[:, :width] = batch.tokens[:, :width]
    return tokens, scales


@pytest.fixture(scope="session")
def small_model() -> Callable[..., HookedModel]:
    """The function above; tests cannot import from this file."""
    return make_small_model


@pytest.fixture(scope="session")
def mixed_batch() -> Callable[..., tuple[Tensor, Tensor]]:
    return make_mixed_batch


@pytest.fixture
def model() -> HookedModel:
    """A small model for tests that are about the model rather than about a scheme."""
    return make_small_model("relative")
