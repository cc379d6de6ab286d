"""A model that was trained elsewhere, in a study of its own: from a directory of Hugging Face to figures and a page.

A small Llama (rotary positions, RMS norm, gated MLP, keys shared by pairs of heads) learns parity with running values
in a training loop that knows nothing of lengthlens, with token ids of its own. Its directory becomes a run, which is
evaluated on longer inputs, probed and drawn like any other. Run it with ``python imported_checkpoint.py [DIRECTORY]``;
it takes about a minute, and needs transformers, which comes with lengthlens.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

import lengthlens as ll
from lengthlens.analyses.table import write_study
from lengthlens.probes.table import probe_run
from lengthlens.runs.evaluation import evaluate

TASK = ll.TASKS["parity-cot"]  # ^ 1 0 1 = 1 1 0 $
IDS = {"0": 31, "1": 32, "=": 40, "^": 1, "$": 2, "_": 0}  # what the tokens are called in the model
TRAIN_MAX = 4


def train_elsewhere(folder: Path, steps: int = 400) -> transformers.LlamaForCausalLM:
    """A model of transformers, trained with torch alone, and saved as everyone saves them."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=64, max_position_embeddings=256, **sizes, **heads)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    names = torch.tensor([IDS[token] for token in TASK.vocab])
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        batch = TASK.sample(1 + step % TRAIN_MAX, 64, generator)
        tokens = names[batch.tokens]
        logits = model(tokens).logits[:, :-1][batch.query_mask]
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:][batch.query_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    model.eval().save_pretrained(folder)
    return model


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    theirs = train_elsewhere(out / "my-llama")

    # On the command line: lengthlens import my-llama --task parity-cot --vocab ids.json --train-max 4
    (out / "ids.json").write_text(json.dumps(IDS))
    store = ll.RunStore(out / "runs")
    run = ll.import_checkpoint(out / "my-llama", TASK.name, store, vocab=out / "ids.json", train_max=TRAIN_MAX)
    print(f"{run.id}: exact match {run.status().in_range_exact_match:.3f} up to n = {TRAIN_MAX}")

    # The same numbers as the source, token by token, and hooks with the names of TransformerLens.
    batch = TASK.sample(7, 16, torch.Generator().manual_seed(1))
    names = torch.tensor([IDS[token] for token in TASK.vocab])
    with torch.no_grad():
        expected = theirs(names[batch.tokens]).logits[..., names]
    logits, cache = run.model().run_with_cache(batch.tokens)
    print(f"logits differ from the source's by at most {(logits - expected).abs().max():.1e}")
    print(f"patterns of layer 1: {list(cache['pattern', 1].shape)}")

    # Longer inputs, what is inside, and the verdict that needs no training at all.
    for row in evaluate(run, [4, 8, 20], samples=200):
        print(f"n = {row['length']}: exact match {row['exact_match']:.3f}")
    probes = probe_run(run, ["src", "stretch"])
    grows = probes[probes["measure"] == "src"].set_index("scale")["value"]
    print(f"measured SRC at n = 1 … {TRAIN_MAX}: {grows.tolist()}, with ι = {ll.invariance_index(grows.to_dict()):.2f}")
    print(ll.verdict(TASK.name, "rope", TRAIN_MAX, 20))

    table = ll.study(store, pola_targets=[])
    write_study(table, {"made": "2030-01-31"}, out / "study.parquet")
    drawn = ll.draw(table, ["extrapolation"], out=out / "figures", formats=["png"])
    print(*drawn.files, sep="\n")

    # One directory to hand on; `lengthlens import` reads it back, and so does ll.fetch("owner/name") from the Hub.
    shared = ll.export(run, out / "to-share")
    again = ll.fetch(shared, ll.RunStore(out / "elsewhere")).run
    assert again is not None and torch.equal(again.model()(batch.tokens), run.model()(batch.tokens))
    print(f"{shared}: {', '.join(sorted(path.name for path in shared.iterdir()))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("imported"))
