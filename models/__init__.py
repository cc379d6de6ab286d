"""Everything that yields a network: position embeddings, the hooked model, position-only linear attention."""

from lengthlens.models.config import ModelConfig
from lengthlens.models.pretrained import load
from lengthlens.models.schemes import SCHEMES
from lengthlens.models.transformer import HookedModel, build

__all__ = ["SCHEMES", "HookedModel", "ModelConfig", "build", "load"]
