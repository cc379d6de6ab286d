"""The command that looks inside a trained run: a page, and a summary on the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands import options
from lengthlens.commands.options import as_json, store_option
from lengthlens.commands.terminal import print_json, print_table, progress, stoppable

if TYPE_CHECKING:
    from lengthlens.inside.look import Inspection
    from lengthlens.runs.store import RunStore


@click.command("inspect")
@click.argument("run", metavar="RUN")
@click.option("--input", "text", help='The sequence to show, such as "^ 1 0 1 1 =".  [default: a random one]')
@click.option("--length", type=int, help="The scale n of a random sequence to show.  [default: train_max]")
@click.option(
    "--lengths",
    callback=options.numbers,
    help="Scales n at which heads are measured, such as 10,20.  [default: 1/2, 1, 2 and 5 times train_max]",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="The page to write.  [default: inspect-RUN.html]"
)
@store_option
@as_json
def inspect_command(
    run: str,
    text: str | None,
    length: int | None,
    lengths: list[int] | None,
    out: Path | None,
    store: "RunStore",
    as_json: bool,
) -> None:
    """Look inside RUN: what each head attends to and by what, at several lengths; a page and a summary."""
    from lengthlens.analyses.page.inside import inside_page
    from lengthlens.files import make_directory, write_whole
    from lengthlens.inside.look import inspect

    found = store.find(run)
    config = found.config
    with stoppable("the inspection"), progress("looking inside") as report:
        seen = inspect(
            found.model(), train_max=config.train_max, scales=lengths, text=text, length=length, report=report
        )
        report("drawing")
        title = f"Inside {config.task} under {config.scheme}"
        about = {"run": found.id, "task": config.task, "scheme": config.scheme, "trained on": f"n ≤ {config.train_max}"}
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


INSIDE_COMMANDS = (inspect_command,)
