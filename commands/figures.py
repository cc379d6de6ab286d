"""The command that redraws every figure and table of a study, in seconds."""

from pathlib import Path

import click

from lengthlens.commands.options import as_json
from lengthlens.commands.progress import progress
from lengthlens.commands.studies import held_out_tasks, listed, opened, table_file
from lengthlens.commands.terminal import print_json


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@table_file
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("figures"),
    show_default=True,
    help="Where to; tables go into its folder tables.",
)
@click.option("--formats", default="pdf,png", show_default=True, help="Of figures, with commas.")
@held_out_tasks
@as_json
def figures(
    names: tuple[str, ...], tables: tuple[Path, ...], out: Path, formats: str, held_out: str | None, as_json: bool
) -> None:
    """Redraw every figure and table of a study, or only those NAMEs. The same study gives the same bytes."""
    from lengthlens.studies.drawing import check, draw

    kinds = listed(formats)
    check(names, kinds)
    study = opened(tables, held_out)
    with progress("drawing") as report:
        drawn = draw(study, names, out, kinds, report=report)
    for name, sentence in drawn.missing.items():
        click.echo(f"{name}: {sentence}", err=True)
    if as_json:
        print_json({"written": [str(path) for path in drawn.files], "missing": drawn.missing})
    else:
        click.echo(f"{len(drawn.files)} files in {out}")


FIGURE_COMMANDS = (figures,)
