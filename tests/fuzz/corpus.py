"""What is attacked: a store, studies and their files, a model saved, exported and imported, configs of others."""

import json
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import save_file

from lengthlens.analyses.table import write_study
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.saved import save
from lengthlens.probes.certify import certify
from lengthlens.probes.table import probe_run
from lengthlens.runs.config import RunConfig
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import Session, train
from lengthlens.studies.build import study
from lengthlens.studies.reproduce import write_stamp
from lengthlens.studies.sharing import export

TINY = {"n_heads": 2, "d_model": 8, "steps": 4, "batch": 2, "train_max": 2, "check_every": 2, "warmup": 1}
GRID = """tasks = ["copy", "parity-cot"]
schemes = ["rope", { name = "hinted:relative", max_distance = 3 }]
seeds = [0, 1]
lengths = [4, 8]
samples = 10
[settings]
steps = 2
train_max = 2
"""
STUDY = """title = "Which?"
tasks = ["copy", "parity-cot"]
schemes = ["rope", { name = "relative", max_distance = 3 }]
held_out = ["copy"]
probes = ["lrc"]
figures = ["tables"]
[instances]
100 = 20
[more_lengths]
copy = [1000]
[[grids]]
seeds = 2
settings = { score_scaling = "none" }
"""
GPT2 = {"model_type": "gpt2", "n_embd": 6, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 11}
HOOKED = {
    "n_layers": 1, "n_heads": 2, "d_model": 8, "d_head": 4, "d_vocab": 11, "n_ctx": 16, "d_mlp": 16, "act_fn": "gelu",
    "positional_embedding_type": "rotary", "rotary_base": 10000, "rotary_dim": 4, "normalization_type": "LN",
    "eps": 1e-5, "attn_only": False, "use_attn_scale": True, "attn_scale": 2.0, "d_vocab_out": 11, "seed": 0,
}  # fmt: skip


def make(folder: Path) -> None:
    """A finished and probed run, one that was interrupted, and all that can be made of them."""
    torch.set_num_threads(1)
    store = RunStore(folder / "runs")
    finished = train(RunConfig.from_dict({"task": "copy", "scheme": "relative", **TINY}), store)
    assert finished.run is not None and finished.model is not None
    probe_run(finished.run, ["lrc"], force=True)
    interrupt(RunConfig.from_dict({"task": "copy", "scheme": "rope", **TINY}), store)
    save(finished.model, folder / "model")
    about = {"made": "2030-01-31", "command": "none", "machine": "none", "versions": {"torch": "0"}}
    table = study(store, [finished.run], pola_targets=[])
    write_study(table, {**about, "held_out": ["copy"], "configs": {}}, folder / "study.parquet")
    pd.DataFrame(table).to_csv(folder / "study.csv", index=False)
    (folder / "grid.toml").write_text(GRID)
    (folder / "hooked.json").write_text(json.dumps(HOOKED))
    (folder / "study.toml").write_text(STUDY)
    export(finished.run, folder / "exported", certificate=certify(copy_by_hand("lbpe"), max_length=20))
    import_of_others(folder / "imported")
    write_stamp(folder, "made of this", [folder / "study.parquet"])


def make_bundles(made: Path, folder: Path) -> None:
    """What `export` writes: a run, a run with a certificate, and a study."""
    folder.mkdir()
    run = RunStore(made / "runs").find("copy_relative")
    export(run, folder / "run")
    export(run, folder / "certificate", certificate=certify(copy_by_hand("lbpe"), max_length=20))
    export(made / "study.parquet", folder / "study")


def import_of_others(folder: Path) -> None:
    """A checkpoint as Hugging Face writes it: config, weights, tokenizer."""
    shapes = {"wte.weight": (11, 6), "wpe.weight": (16, 6), "h.0.attn.c_attn.weight": (6, 18)}
    shapes |= {"h.0.attn.c_attn.bias": (18,), "h.0.attn.c_proj.weight": (6, 6), "h.0.attn.c_proj.bias": (6,)}
    shapes |= {"h.0.mlp.c_fc.weight": (6, 24), "h.0.mlp.c_fc.bias": (24,), "h.0.mlp.c_proj.weight": (24, 6)}
    norms = {f"{name}.{part}": (6,) for name in ("h.0.ln_1", "h.0.ln_2", "ln_f") for part in ("weight", "bias")}
    folder.mkdir()
    every = {**shapes, **norms, "h.0.mlp.c_proj.bias": (6,)}
    save_file({name: torch.ones(shape) for name, shape in every.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(GPT2))
    vocabulary = {"model": {"vocab": {str(k): k for k in range(9)}}, "added_tokens": [{"content": "^", "id": 9}]}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))


def interrupt(config: RunConfig, store: RunStore) -> None:
    """Train a run up to its first checkpoint."""

    def stop(progress: object) -> None:
        if session.run.has("checkpoint.safetensors"):
            raise KeyboardInterrupt

    run = store.create(config)
    with run.locked():
        session = Session(run, 0.0)
        try:
            session.train(config, [stop])
        except KeyboardInterrupt:
            return
