"""The commands that take in what others made, and hand on what was made here."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.options import Whole, as_json, store_option
from lengthlens.commands.terminal import in_range_words, print_json, progress, stoppable
from lengthlens.errors import UserError

if TYPE_CHECKING:
    from lengthlens.runs.run import Run
    from lengthlens.runs.store import RunStore


@click.command("import")
@click.argument("source", metavar="SOURCE")
@click.option("--task", help="What a model of others is asked; see `lengthlens tasks`.")
@click.option(
    "--vocab",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON: the model's id or token for each token of the task.  [default: looked up in the model's tokenizer]",
)
@click.option("--train-max", type=Whole(1), default=10, show_default=True, help="The largest scale it was trained on.")
@click.option("--start", type=Whole(0), default=0, help="Learned positions: that of the first token.  [default: 0]")
@click.option(
    "--spread", type=Whole(0), default=0, help="Learned positions: average over random starts, up to so much further."
)
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Tells apart models of one training recipe.")
@click.option("--name", help="What it is called in studies.  [default: the name of the directory]")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where a study is written.  [default: its name, as parquet]",
)
@store_option
@as_json
def import_command(
    source: str, task: str | None, store: "RunStore", out: Path | None, as_json: bool, **how: Any
) -> None:
    """Take in a trained model of others as a run, or what `lengthlens export` wrote.

    SOURCE is a directory, or a repository owner/name on the Hugging Face Hub. It holds config.json and safetensors:
    GPT-2, Llama, Mistral, Qwen2, GPT-NeoX or BLOOM as save_pretrained writes them, or a HookedTransformer or
    TransformerBridge of TransformerLens. What has no equivalent is refused by name.
    """
    from lengthlens.models.saved import download, is_local
    from lengthlens.runs.importing import import_checkpoint
    from lengthlens.studies.sharing import is_export

    folder = Path(source) if is_local(source) else Path(download(source, None))
    if is_export(folder):
        take_back(folder, store, out, as_json)
        return
    if task is None:
        raise UserError(f"'{source}' is a model of others: say with --task what it is to be asked")
    how["name"] = how["name"] or Path(source).resolve().name
    with stoppable("the import", kept=False), progress("importing") as report:
        run = import_checkpoint(folder, task, store, report=report, **how)
    print_json(summary(run)) if as_json else show(run)


def take_back(folder: Path, store: "RunStore", out: Path | None, as_json: bool) -> None:
    """Read what was exported: a run into the store, a study into a file."""
    from lengthlens.studies.sharing import certificate_words, fetch

    found = fetch(folder, store)
    if found.kind == "study":
        out = out or Path(f"{found.name}.parquet")
        fetch(folder, into=out)
    path = str(found.run.path if found.run else out)
    if as_json:
        print_json({"kind": found.kind, "name": found.name, "path": path})
        return
    click.echo(f"{found.kind} {found.name}: {path}")
    if found.certificate:
        click.echo(f"certificate: {certificate_words(found.certificate)}")


@click.command("export")
@click.argument("what", metavar="RUN|STUDY")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What `lengthlens certify RUN --json` printed, to go with the run.",
)
@click.option("--hub", metavar="OWNER/NAME", help="Upload it to this repository of the Hugging Face Hub, too.")
@click.option("--private", is_flag=True, help="A repository that is made for it is private.")
@store_option
@as_json
def export_command(
    what: str, directory: Path, certificate: Path | None, store: "RunStore", as_json: bool, **where: Any
) -> None:
    """Write a run (a name, or how it begins) or a study (a file) into one directory that can be handed on.

    It holds safetensors, JSON and parquet, with a card that says what it is; `lengthlens import` reads it back.
    """
    from lengthlens.files import read_whole
    from lengthlens.studies.sharing import export, read_certificate

    is_study = Path(what).suffix in (".parquet", ".csv")
    if is_study and certificate:
        raise UserError(f"a certificate is about a run, and '{what}' is a study")
    said = read_certificate(read_whole(certificate), f"'{certificate}'") if certificate else None
    folder = export(what if is_study else store.find(what), directory, certificate=said, **where)
    names = sorted(path.name for path in folder.iterdir())
    print_json({"path": str(folder), "files": names}) if as_json else click.echo(f"{folder}: {', '.join(names)}")


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
    click.echo(in_range_words(config.train_max, facts["in_range_exact_match"], run))
    if source["outside"]:
        share = f"{source['outside']:.1%} of the answer tokens at n = {config.train_max}"
        click.echo(f"answers are the likeliest of the task's tokens; the source prefers another token at {share}")


SHARING_COMMANDS = (import_command, export_command)
