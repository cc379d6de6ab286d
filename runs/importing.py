"""Checkpoints of others as runs: evaluated, probed and drawn like those that were trained here."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.foreign import Checkpoint, read_checkpoint, read_json, token_ids
from lengthlens.models.saved import weights_of
from lengthlens.models.schemes import SchemeSpec
from lengthlens.models.transformer import HookedModel, with_weights
from lengthlens.runs.config import RunConfig
from lengthlens.runs.evaluation import evaluating, in_range_rows
from lengthlens.runs.run import MODEL, VERSIONS, Run
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import FINISH, judged, library_versions
from lengthlens.tasks import TASKS, Task
from lengthlens.values import anything, map_of

SOURCE = "import.json"  # what is known of where an imported model comes from
OUTSIDE_ROWS = 64  # instances on which the source is asked for tokens outside of the task


def import_checkpoint(
    path: str | Path,
    task: str,
    store: RunStore,
    *,
    vocab: Mapping[str, Any] | str | Path | None = None,
    train_max: int = RunConfig.train_max,
    start: int = 0,
    spread: int = 0,
    seed: int = 0,
    name: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Run:
    """A model that someone else trained, as a run in a store.

    Arguments:
        path: a local directory of Hugging Face (GPT-2, Llama, Mistral, Qwen2, GPT-NeoX, BLOOM) or of TransformerLens.
        task: the name of the task that the model is to be asked; it is evaluated on n up to `train_max` at once.
        store: where the run is kept. A model that was imported before is given back.
        vocab: the model's id, or the text of its token, for each token of the task; by name, or in a JSON file. What
            it leaves out is looked up in the model's tokenizer.
        train_max: the largest n that the model was trained on, as far as is known.
        start: for learned positions, the position of the first token.
        spread: for learned positions, how much further the first token may stand: exact match is then averaged over
            several random starts.
        seed: tells apart models of one training recipe, as in runs of this project.
        name: what the model is called in studies; the name of the directory if not given.
        report: is told what is being done.

    Result: a run. Its model has embeddings of the task's tokens only, so that an answer is the likeliest among them;
    the run's import.json says how often the source would have preferred another token.

    Errors: UserError for weights that are not safetensors, for what this model cannot represent (by name), and for
    tokens whose ids are not known.

    >>> from tempfile import TemporaryDirectory
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> folder, ids = TemporaryDirectory(), {token: k for k, token in enumerate(TASKS["copy"].vocab)}
    >>> small = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_head=2, n_layer=1))
    >>> small.save_pretrained(f"{folder.name}/small")
    >>> run = import_checkpoint(f"{folder.name}/small", "copy", RunStore(f"{folder.name}/runs"), vocab=ids, train_max=2)
    >>> run.model()("^ 7 3 =").shape  # with the hooks of any other model here
    torch.Size([1, 4, 14])
    """
    asked: Task = TASKS[task]
    tell = report or (lambda text: None)
    tell("reading the checkpoint")
    source = read_checkpoint(path)
    mapping = read_json(Path(vocab)) if isinstance(vocab, str | Path) else vocab
    ids = token_ids(source, asked, mapping)
    restricted = source.restricted_to(asked, ids)
    known: dict[str, Any] = {"score_scaling": "none", **restricted.fields}
    moved = {key: value for key, value in (("start", start), ("spread", spread)) if value}
    if not moved.keys() <= SchemeSpec.of(known["scheme"]).options.keys():
        options = " and a ".join(moved)
        raise UserError(
            f"scheme '{known['scheme']}' counts by differences of positions: only learned positions have a {options}"
        )
    known["scheme_options"] = {**known.get("scheme_options", {}), **moved}
    of_run = {f.name for f in fields(RunConfig)} & known.keys()
    origin = {"name": name or source.name, "kind": source.kind, "sha256": source.sha256, "tokens": dict(ids)}
    origin["model"] = {key: value for key, value in known.items() if key not in of_run}
    about = {"task": task, "train_max": train_max, "seed": seed, "imported": origin}
    config = RunConfig.from_dict({**{key: known[key] for key in of_run}, **about})
    model = with_weights(config.model, restricted.weights, f"'{path}'", asked)
    run = store.create(config)
    with run.locked():
        if not run.status().finished:  # the status is written last: once it says so, all else is there
            rows = in_range_rows(model.eval(), config, tell)
            run.write(MODEL, weights_of(model))
            run.write_json(SOURCE, {**config.imported, "outside": share_outside(model, source, ids, train_max)})
            run.write_json(VERSIONS, library_versions())
            run.add_evaluation(rows)
            run.set_status(judged(rows, steps=0))
            run.log(FINISH, step=0)
    return run


def share_outside(model: HookedModel, source: Checkpoint, ids: Mapping[str, int], scale: int) -> float:
    """How often, at answer tokens of one n, the source finds a token likeliest that is none of the task's."""
    task = model.task
    assert task is not None
    batch = task.sample(task.checked_scale(scale), OUTSIDE_ROWS, torch.Generator().manual_seed(0))
    with evaluating(model):
        _, cache = model.run_with_cache(batch.tokens, scale, names_filter="unembed.hook_in")
    queries: Tensor = cache["unembed.hook_in"][:, :-1][batch.query_mask]  # [answer token, d_model]
    logits = queries @ source.weights["unembed.W_U"] + source.weights["unembed.b_U"]
    inside = torch.tensor(sorted(set(ids.values())))
    return float((~torch.isin(logits.argmax(-1), inside)).double().mean())


def source_of(run: Run) -> dict[str, Any]:
    """What is known of where an imported model comes from; empty for a run that was trained here."""
    if not run.has(SOURCE):
        return {}
    source: dict[str, Any] = run.read_json(SOURCE, map_of(anything()))
    return source
