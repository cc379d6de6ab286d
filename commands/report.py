"""The command that makes the page of a study."""

from pathlib import Path

import click

from lengthlens.commands.progress import progress
from lengthlens.commands.studies import held_out_tasks, opened, table_file


@click.command()
@table_file
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report/index.html"),
    show_default=True,
    help="The page: one file, which needs nothing else.",
)
@held_out_tasks
def report(tables: tuple[Path, ...], out: Path, held_out: str | None) -> None:
    """Make one page of a study: the finding, the figures, and every cell to look into."""
    from lengthlens.analyses.page import page
    from lengthlens.files import make_directory, write_whole

    study = opened(tables, held_out)
    with progress("report") as tell:
        tell("drawing")
        text = page(study)
    make_directory(out.parent)
    write_whole(out, text.encode())
    click.echo(out)


REPORT_COMMANDS = (report,)
