"""Looking inside takes memory that grows with the length of an input, not with its square; blocks change nothing."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lengthlens as ll
from lengthlens.inside import heads
from lengthlens.inside.instances import watch
from lengthlens.models import schemes
from lengthlens.models.transformer import HookedModel
from lengthlens.tasks import TASKS
from lengthlens.tests.parameters import small_model

COPY = TASKS["copy"]


def instances(scale: int) -> Tensor:
    return COPY.sample(scale, 2, torch.Generator().manual_seed(0)).tokens[:, : scale + 2]  # up to "="


def owed(model: HookedModel, scale: int, method: str, steps: int | None = None, **how: Any) -> list[Tensor]:
    with ll.surgery(model, **how) if how else nullcontext():
        result = ll.relevance(model, instances(scale), method=method, scale=scale, steps=steps)
    return [result.tokens, *([] if result.positions is None else [result.positions])]


def operated(model: HookedModel, scale: int, **how: Any) -> Tensor:
    with ll.surgery(model, **how), torch.no_grad():
        return model(COPY.sample(scale, 2, torch.Generator().manual_seed(0)).tokens, scale)


METHODS: dict[str, Callable[[HookedModel, int], Any]] = {
    "heads": lambda model, n: ll.heads(model, scales=[n], rows=2),
    "roles": lambda model, n: ll.attention_by_role(model, scales=[n], rows=2),
    "plane": lambda model, n: ll.head_plane(model, scales=[n], rows=2),
    "scores": lambda model, n: ll.score_shares(model, scales=[n], rows=2),
    "residual": lambda model, n: ll.residual_shares(model, scales=[n], rows=2),
    "ablate": lambda model, n: ll.ablate(model, scales=[n], rows=2, heads=["L0H0"]),
    "hide": lambda model, n: ll.ablate(model, scales=[n], rows=2, heads=["L0H0"], relations=["token", "i-j-n"]),
    "patch": lambda model, n: ll.patch_by_role(model, scale=n, pairs=1, steps=1, components=["head"]),
    "attribution": lambda model, n: ll.attribution_patching(model, scale=n, pairs=1, steps=1),
    "shift": lambda model, n: operated(model, n, shift=2),
    "ideal": lambda model, n: operated(model, n, codes="ideal", codes_of=6),
    "ideal as one": lambda model, n: operated(model, n, codes="ideal", codes_of=6, other="one"),
    "lrp": lambda model, n: owed(model, n, "lrp"),
    "gradient": lambda model, n: owed(model, n, "gradient"),
    "integrated": lambda model, n: owed(model, n, "integrated", 2),
    "rollout": lambda model, n: owed(model, n, "rollout"),
    "lrp, shifted": lambda model, n: owed(model, n, "lrp", shift=2, heads=["L0H0"]),
    "lrp, ideal": lambda model, n: owed(model, n, "lrp", codes="ideal", codes_of=6),
}
SCHEMES = ("relative", "rope", "urpe")  # added to scores, turning, and a factor behind the softmax


def with_blocks(model: HookedModel, elements: int) -> HookedModel:
    for block in model.layers:
        block.attn.block_elements = elements
    return model


class Peak(TorchDispatchMode):
    """The most bytes that tensors made meanwhile had at one moment."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self.gone, storage._cdata)
        self.most = max(self.most, self.now)
        return made

    def gone(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)


def growth(model: HookedModel, method: Callable[[HookedModel, int], Any]) -> float:
    """How much more memory twice the length takes."""
    most = []
    for scale in (16, 32):
        gc.collect()
        with Peak() as peak:
            method(model, scale)
        most.append(peak.most)
    return most[1] / most[0]


@pytest.mark.slow  # every operation is watched
@pytest.mark.parametrize("scheme", SCHEMES)
def test_memory_grows_with_the_length_and_not_with_its_square(scheme: str, monkeypatch) -> None:
    """Twice the length takes at most twice the memory. What is bounded by a number has a smaller one here, so that it
    shows at lengths that are tested quickly."""
    monkeypatch.setattr(schemes.scheme, "KEPT_LENGTH", 8)
    monkeypatch.setattr(heads, "BINS", 8)
    model = with_blocks(small_model(scheme, n_ctx=128), 600)
    several = list(METHODS)[:-2] if scheme == "relative" else ("ablate", "scores", "lrp", "gradient")
    found = {name: growth(model, METHODS[name]) for name in several}
    assert {name: ratio for name, ratio in found.items() if ratio > 2.2} == {}  # a tenth for what is not collected yet
    whole = growth(model, lambda model, n: model.run_with_cache(COPY.sample(n, 2, torch.Generator()).tokens, n))
    assert whole > 2.4, "and whole patterns would show"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_blocks_change_nothing(scheme: str) -> None:
    sizes: list[int] = []
    same = {"heads", "roles", "scores", "hide", "attribution", "ideal", "ideal as one", "lrp", "gradient"}
    for name in [*same, "integrated", "rollout", *list(METHODS)[-2:]]:
        whole, parts = (METHODS[name](with_blocks(small_model(scheme), size), 9) for size in (1 << 22, 200))
        if isinstance(whole, pd.DataFrame):
            pd.testing.assert_frame_equal(whole, parts, atol=1e-4)
        else:
            torch.testing.assert_close(whole, parts, atol=1e-4, rtol=1e-4)
    hooks = [("blocks.0.attn.hook_pattern", lambda block: sizes.append(block.numel()))]
    watch(with_blocks(small_model(scheme), 200), COPY.sample(9, 2, torch.Generator()).tokens, 9, hooks)
    assert len(sizes) > 5 and max(sizes) <= 200, "and they are as small as asked for"
