"""The command that makes the page of a study."""

from pathlib import Path

import click

from lengthlens.commands.terminal import progress

table_file = click.option(
    "--table",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The study, as `lengthlens reproduce` writes it (.parquet or .csv).",
)


@click.command()
@table_file
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report/index.html"),
    show_default=True,
    help="The page: one file, which needs nothing else.",
)
@click.option(
    "--held-out", default="", metavar="TASKS", help="Tasks to report on their own too, with commas."
)
def report(table: Path, out: Path, held_out: str) -> None:
    """Make one page of a study: the finding, the figures, and every cell to look into."""
    from lengthlens.analyses.report import page
    from lengthlens.models.files import make_directory, write_whole
    from lengthlens.probes.study import read_study

    found, provenance = read_study(table)
    with progress("report") as tell:
        tell("drawing")
        text = page(found, provenance, names(held_out))
    make_directory(out.parent)
    write_whole(out, text.encode())
    click.echo(out)


def names(text: str) -> list[str]:
    """Names with commas between them.

    >>> names("copy, reverse"), names("")
    (['copy', 'reverse'], [])
    """
    return [name.strip() for name in text.split(",") if name.strip()]


REPORT_COMMANDS = (report,)
