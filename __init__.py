"""lengthlens: why a Transformer that is perfect on short inputs fails, or does not fail, on long ones.

``import lengthlens as ll`` gives the names in ``__all__``; each is imported when it is first used. Rooms, in the order
in which one may import another: tasks, models, theory, runs, probes, inside, analyses, studies, commands.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lengthlens.analyses.findings import draw, plot
    from lengthlens.inside.ablation import ablate, least_heads
    from lengthlens.inside.attribution import judge_relevance, relevance
    from lengthlens.inside.heads import attention_by_role, head_plane, heads, plane_over_training, relations
    from lengthlens.inside.look import inspect, look_at
    from lengthlens.inside.patching import attribution_patching, patch_by_role
    from lengthlens.inside.residual import residual_parts, residual_shares
    from lengthlens.inside.scores import score_parts, score_shares
    from lengthlens.models.config import ModelConfig
    from lengthlens.models.schemes.spec import SCHEMES
    from lengthlens.models.transformer import HookedModel, build
    from lengthlens.plugins.registry import register
    from lengthlens.probes.certify import certify
    from lengthlens.probes.interchange import interchange_src, known_by
    from lengthlens.probes.lrc import measured_lrc
    from lengthlens.probes.network import prune
    from lengthlens.probes.probe import invariance_index
    from lengthlens.probes.src import measured_src
    from lengthlens.probes.stretch import stretched_match
    from lengthlens.probes.surgery import healing, surgery
    from lengthlens.probes.transfer import readout_transfer
    from lengthlens.runs.config import RunConfig
    from lengthlens.runs.evaluation import exact_match
    from lengthlens.runs.importing import import_checkpoint
    from lengthlens.runs.store import RunStore, load
    from lengthlens.runs.sweep import sweep
    from lengthlens.runs.training import train
    from lengthlens.studies.build import study
    from lengthlens.studies.checking import check
    from lengthlens.studies.reproduce import reproduce
    from lengthlens.studies.sharing import export, fetch
    from lengthlens.tasks import TASKS
    from lengthlens.theory.verdict import verdict

# Without it cuBLAS refuses to be deterministic, and it is read once, at the first product of a process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Where each public name lives. torch and TransformerLens take seconds to import, and a listing does without them.
HOMES = {
    "TASKS": "tasks",
    "SCHEMES": "models.schemes.spec",
    "HookedModel": "models.transformer",
    "ModelConfig": "models.config",
    "build": "models.transformer",
    "register": "plugins.registry",
    "RunConfig": "runs.config",
    "train": "runs.training",
    "RunStore": "runs.store",
    "exact_match": "runs.evaluation",
    "import_checkpoint": "runs.importing",
    "load": "runs.store",
    "sweep": "runs.sweep",
    "verdict": "theory.verdict",
    "measured_src": "probes.src",
    "measured_lrc": "probes.lrc",
    "interchange_src": "probes.interchange",
    "known_by": "probes.interchange",
    "stretched_match": "probes.stretch",
    "readout_transfer": "probes.transfer",
    "invariance_index": "probes.probe",
    "prune": "probes.network",
    "certify": "probes.certify",
    "surgery": "probes.surgery",
    "inspect": "inside.look",
    "heads": "inside.heads",
    "attention_by_role": "inside.heads",
    "relations": "inside.heads",
    "head_plane": "inside.heads",
    "plane_over_training": "inside.heads",
    "score_parts": "inside.scores",
    "score_shares": "inside.scores",
    "residual_parts": "inside.residual",
    "residual_shares": "inside.residual",
    "look_at": "inside.look",
    "check": "studies.checking",
    "ablate": "inside.ablation",
    "least_heads": "inside.ablation",
    "patch_by_role": "inside.patching",
    "attribution_patching": "inside.patching",
    "relevance": "inside.attribution",
    "judge_relevance": "inside.attribution",
    "healing": "probes.surgery",
    "study": "studies.build",
    "reproduce": "studies.reproduce",
    "draw": "analyses.findings",
    "plot": "analyses.findings",
    "export": "studies.sharing",
    "fetch": "studies.sharing",
}

__all__ = [
    "SCHEMES", "TASKS", "HookedModel", "ModelConfig", "RunConfig", "RunStore", "__version__", "ablate",
    "attention_by_role", "attribution_patching", "build", "certify", "check", "draw", "exact_match", "export", "fetch",
    "head_plane", "heads", "healing", "import_checkpoint", "inspect", "interchange_src", "invariance_index",
    "judge_relevance", "known_by", "least_heads", "load", "look_at", "measured_lrc", "measured_src", "patch_by_role",
    "plane_over_training", "plot", "prune", "readout_transfer", "register", "relations", "relevance", "reproduce",
    "residual_parts", "residual_shares", "score_parts", "score_shares", "stretched_match", "study", "surgery", "sweep",
    "train", "verdict",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("lengthlens")
    if name not in HOMES:
        raise AttributeError(f"module 'lengthlens' has no attribute '{name}'")
    return getattr(import_module(f"lengthlens.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
