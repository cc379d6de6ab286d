"""What is attacked: a small store, a study, a saved model, a sweep file, a config of TransformerLens."""

import json
from pathlib import Path

import pandas as pd
import torch

from lengthlens.analyses.table import write_study
from lengthlens.models.pretrained import save
from lengthlens.probes.table import probe_run
from lengthlens.runs.config import RunConfig
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import Session, train
from lengthlens.studies.build import study
from lengthlens.studies.reproduce import write_stamp

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
    write_stamp(folder, "made of this", [folder / "study.parquet"])


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
