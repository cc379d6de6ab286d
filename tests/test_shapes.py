"""Shapes in signatures are checked in tests: a wrong one is caught."""

import pytest
import torch
from jaxtyping import TypeCheckError

from lengthlens.runs.evaluation import right_tokens
from lengthlens.tasks import TASKS
from lengthlens.tasks.task import Batch


def test_a_wrong_shape_is_caught() -> None:
    batch = TASKS["copy"].sample(2, 3, torch.Generator().manual_seed(0))
    assert right_tokens(torch.zeros(*batch.tokens.shape, 14), batch).shape == (3, 3)
    with pytest.raises(TypeCheckError):
        right_tokens(torch.zeros(3, 14), batch)
    with pytest.raises(TypeCheckError):
        Batch(batch.tokens, batch.answer_mask[:, 1:], batch.scale)
    with pytest.raises(TypeCheckError):
        TASKS["copy"].scale_of(batch.tokens[0])
