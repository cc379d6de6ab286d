"""Everything that yields a network: position embeddings, the hooked model, position-only linear attention, runs."""

from typing import TYPE_CHECKING

from lengthlens.lazy import lazily
from lengthlens.models.schemes import SCHEMES

if TYPE_CHECKING:
    from lengthlens.models.config import ModelConfig
    from lengthlens.models.evaluation import exact_match
    from lengthlens.models.pretrained import load
    from lengthlens.models.run_config import RunConfig
    from lengthlens.models.runs import RunStore
    from lengthlens.models.training import train
    from lengthlens.models.transformer import HookedModel, build

# TransformerLens takes seconds to import, and position embeddings do without it.
__getattr__ = lazily(
    "lengthlens.models",
    {
        "HookedModel": "transformer",
        "ModelConfig": "config",
        "RunConfig": "run_config",
        "RunStore": "runs",
        "build": "transformer",
        "exact_match": "evaluation",
        "load": "pretrained",
        "train": "training",
    },
)

__all__ = [
    "SCHEMES",
    "HookedModel",
    "ModelConfig",
    "RunConfig",
    "RunStore",
    "build",
    "exact_match",
    "load",
    "train",
]
