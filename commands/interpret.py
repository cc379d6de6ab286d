"""The commands that look inside a trained run, operate on its position codes, patch it, and explain its answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands import options
from lengthlens.commands.options import OutFile, as_json, store_option
from lengthlens.commands.terminal import print_json, print_table, progress, save_figure, stoppable
from lengthlens.errors import UserError

if TYPE_CHECKING:
    from lengthlens.inside.look import Inspection
    from lengthlens.runs.store import RunStore


@click.command("inspect")
@click.argument("run", metavar="RUN")
@click.option("--input", "text", help='The sequence to show, such as "^ 1 0 1 1 =".  [default: a random one]')
@click.option(
    "--length",
    type=options.Whole(0, options.MOST_SCALE),
    help="The scale n of a random sequence to show.  [default: train_max]",
)
@click.option(
    "--lengths",
    callback=options.numbers,
    help="Scales n at which heads are measured, such as 10,20.  [default: 1/2, 1, 2 and 5 times train_max]",
)
@click.option("--out", type=OutFile(), help="The page to write.  [default: inspect-RUN.html]")
@click.option("--step", type=options.Whole(0), help="Look at the checkpoint of this training step (`train --keep`).")
@store_option
@as_json
def inspect_command(
    run: str,
    text: str | None,
    length: int | None,
    lengths: list[int] | None,
    out: Path | None,
    step: int | None,
    store: "RunStore",
    as_json: bool,
) -> None:
    """Look inside RUN: what each head attends to and by what, at several lengths; a page and a summary."""
    from lengthlens.analyses.page.inside import inside_page
    from lengthlens.files import make_directory, write_whole
    from lengthlens.inside.look import inspect

    found = store.find(run)
    config = found.config
    with stoppable("the inspection", kept=False), progress("looking inside") as report:
        seen = inspect(
            found.model(step=step),
            train_max=config.train_max,
            scales=lengths,
            text=text,
            length=length,
            checkpoints=found if found.checkpoints and step is None else None,
            report=report,
        )
        report("drawing")
        title = f"Inside {config.task} under {config.scheme}"
        about = {"run": found.id, "task": config.task, "scheme": config.scheme, "trained on": f"n ≤ {config.train_max}"}
        about |= {} if step is None else {"checkpoint": f"training step {step}"}
        page = inside_page(seen, found.id, title, about)
    path = Path(f"inspect-{found.id}.html") if out is None else out
    make_directory(path.parent)
    write_whole(path, page.encode())
    if as_json:
        print_json({"run": found.id, "page": str(path), "heads": seen.summary()})
    else:
        show(found.id, seen)
    click.echo(f"page: {path}", err=True)


def show(run: str, seen: "Inspection") -> None:
    """Exact match, then what each head does in words and in a few numbers."""
    click.echo(click.style(run, bold=True))
    whole = seen.ablation.drop_duplicates("scale") if len(seen.ablation) else seen.ablation
    if len(whole):
        scores = ", ".join(f"{value:.2f} at n = {n}" for n, value in zip(whole["scale"], whole["whole"]))
        click.echo(f"exact match: {scores}")
    rows: list[dict[str, Any]] = seen.summary()
    for row in rows:
        click.echo(f"{row['head']} {row['attends_to']}")
    click.echo("")
    print_table([{key.replace("_", " "): row[key] for key in row if key != "attends_to"} for row in rows])


@click.command("surgery")
@click.argument("run", metavar="[RUN]", required=False)
@click.option(
    "--lengths", callback=options.numbers, help="Scales n beyond training.  [default: 2 and 4 times train_max]"
)
@click.option("--all", "every", is_flag=True, help="Every run of the store that is accurate in range; needs --out.")
@click.option("--table", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Draw from this table.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where table and figure of --all go.")
@options.width_option
@store_option
@as_json
def surgery_command(
    run: str | None,
    lengths: list[int] | None,
    every: bool,
    table: Path | None,
    out: Path | None,
    width: float | None,
    store: "RunStore",
    as_json: bool,
) -> None:
    """Give RUN the ideal relation, and see whether that heals it on long inputs; with --all, a study of all runs."""
    from lengthlens.probes.surgery import SurgeryProbe, healing
    from lengthlens.studies.build import surgery_study
    from lengthlens.studies.drawing import draw

    if (run is not None) + every + (table is not None) != 1:
        raise UserError("name a RUN, or say --all, or --table with a table that was made before")
    if run is not None:
        found = store.find(run)
        scales = lengths or SurgeryProbe.scales(found.config.train_max)
        with stoppable("the surgery", kept=False), progress("operating"):
            rows = healing(found.model(), scales=scales, train_max=found.config.train_max)
        print_json(rows.to_dict("records")) if as_json else print_table(rows.to_dict("records"))  # type: ignore[arg-type]
        return
    if out is None:
        raise UserError("--all and --table need --out, the directory for table and figure")
    with stoppable("the study"), progress("operating") as report:
        study = surgery_study(store, out / "surgery.csv", lengths, report=report) if table is None else table
        drawn = draw(study, ["healing"], out, width=width)
    for sentence in drawn.missing.values():
        click.echo(sentence, err=True)
    files = [str(path) for path in drawn.files]
    print_json(files) if as_json else click.echo("\n".join(files))


@click.command("patch")
@click.argument("run", metavar="RUN")
@click.option(
    "--length",
    type=options.Whole(0, options.MOST_SCALE),
    help="The scale n that activations are taken from.  [default: train_max]",
)
@click.option(
    "--onto",
    type=options.Whole(0, options.MOST_SCALE),
    help="The scale n of the run that is patched.  [default: the same]",
)
@click.option("--roles", callback=options.names, help="Slots of the step, with commas.  [default: all]")
@options.plot_file
@options.width_option
@store_option
@as_json
def patch_command(
    run: str,
    length: int | None,
    onto: int | None,
    roles: list[str] | None,
    plot: Path | None,
    width: float | None,
    store: "RunStore",
    as_json: bool,
) -> None:
    """Say which layer and head of RUN carries what each slot of a step reads, within one length or across two."""
    from lengthlens.inside.patching import patch_by_role

    found = store.find(run)
    with stoppable("patching", kept=False), progress("patching"):
        scale = found.config.train_max if length is None else length
        table = patch_by_role(found.model().eval(), None, scale, onto, roles=roles or None)
    rows: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    print_json(rows) if as_json else print_table(rows)
    if plot is not None:
        from lengthlens.analyses.inside import plot_patching

        save_figure(plot_patching(table, width=width), plot)


@click.command("attribute")
@click.argument("run", metavar="RUN")
@click.option("--input", "text", required=True, help='The input up to the query, such as "^ 1 0 1 1 =".')
@click.option("--method", default="lrp", show_default=True, help="lrp, gradient, integrated or rollout.")
@options.plot_file
@options.width_option
@store_option
@as_json
def attribute_command(
    run: str, text: str, method: str, plot: Path | None, width: float | None, store: "RunStore", as_json: bool
) -> None:
    """Say to which tokens, and to which positions, RUN owes the token that it predicts behind an input."""
    from lengthlens.inside.attribution import relevance

    found = relevance(store.find(run).model().eval(), text, method=method)
    words = text.split()
    positions = [None] * len(words) if found.positions is None else found.positions[0].tolist()
    parts = zip(words, found.tokens[0].tolist(), positions)
    rows = [{"position": k, "token": w, "of token": t, "of position": p} for k, (w, t, p) in enumerate(parts)]
    print_json(rows) if as_json else print_table(rows)
    if plot is not None:
        from lengthlens.analyses.inside import plot_relevance

        save_figure(plot_relevance(found, words, width=width), plot)


INTERPRET_COMMANDS = (inspect_command, surgery_command, patch_command, attribute_command)
