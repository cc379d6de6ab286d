"""The commands that take in what others made."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.options import as_json, store_option
from lengthlens.commands.terminal import print_json, progress, stoppable

if TYPE_CHECKING:
    from lengthlens.runs.run import Run
    from lengthlens.runs.store import RunStore


@click.command("import")
@click.argument("directory", metavar="DIR")
@click.option("--task", required=True, help="What the model is asked; see `lengthlens tasks`.")
@click.option(
    "--vocab",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON: the model's id or token for each token of the task.  [default: looked up in the model's tokenizer]",
)
@click.option("--train-max", type=int, default=10, show_default=True, help="The largest scale it was trained on.")
@click.option("--start", type=int, default=0, show_default=True, help="Learned positions: that of the first token.")
@click.option(
    "--spread", type=int, default=0, help="Learned positions: average over random starts, up to so much further."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Tells apart models of one training recipe.")
@click.option("--name", help="What it is called in studies.  [default: the name of DIR]")
@store_option
@as_json
def import_command(directory: str, task: str, store: "RunStore", as_json: bool, **how: Any) -> None:
    """Take in a trained model of Hugging Face or TransformerLens as a run.

    DIR holds config.json and safetensors: GPT-2, Llama, Mistral, Qwen2, GPT-NeoX or BLOOM as save_pretrained writes
    them, or a HookedTransformer or TransformerBridge of TransformerLens. What has no equivalent is refused by name.
    """
    from lengthlens.runs.importing import import_checkpoint

    with stoppable("the import"), progress("importing") as report:
        run = import_checkpoint(directory, task, store, report=report, **how)
    print_json(summary(run)) if as_json else show(run)


def summary(run: "Run") -> dict[str, Any]:
    """What is known of an imported run, in plain values."""
    from dataclasses import asdict

    from lengthlens.runs.importing import source_of

    return {"run": run.id, **asdict(run.status()), "source": source_of(run), "path": str(run.path)}


def show(run: "Run") -> None:
    facts = summary(run)
    source, config = facts["source"], run.config
    tokens = "  ".join(f"{token} {number}" for token, number in source["tokens"].items())
    click.echo(f"{run.id}: {source['kind']} model '{source['name']}' with scheme {config.spec.label}")
    click.echo(f"ids of the task's tokens: {tokens}")
    click.echo(f"exact match up to n = {config.train_max}: {facts['in_range_exact_match']:.4f}")
    if source["outside"]:
        share = f"{source['outside']:.1%} of the answer tokens at n = {config.train_max}"
        click.echo(f"answers are the likeliest of the task's tokens; the source prefers another token at {share}")


SHARING_COMMANDS = (import_command,)
