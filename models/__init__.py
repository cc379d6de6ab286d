"""Everything that yields a network: position embeddings, the hooked model, position-only linear attention."""

from lengthlens.models.config import ModelConfig
from lengthlens.models.evaluation import exact_match
from lengthlens.models.pretrained import load
from lengthlens.models.run_config import RunConfig
from lengthlens.models.runs import RunStore
from lengthlens.models.schemes import SCHEMES
from lengthlens.models.training import train
from lengthlens.models.transformer import HookedModel, build

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
