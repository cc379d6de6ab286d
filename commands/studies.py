"""What the commands that read a study have in common: which file, and which of its tasks were held out."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lengthlens.analyses.study import Study

table_file = click.option(
    "--table",
    "tables",
    required=True,
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The study, as `lengthlens reproduce` writes it (.parquet or .csv). Given several times: all of them as one.",
)
held_out_tasks = click.option(
    "--held-out",
    metavar="TASKS",
    help="Tasks on which nothing was chosen, with commas: reported apart, too.  [default: as the study says]",
)


def opened(tables: Sequence[Path], held_out: str | None) -> "Study":
    """A study, or several as one, with the tasks held out: those asked for, else those that it names."""
    from lengthlens.analyses.study import Study
    from lengthlens.analyses.table import joined, read_study

    table, about = joined({str(path): read_study(path) for path in tables})
    return Study(table, about, None if held_out is None else listed(held_out))


def listed(text: str) -> list[str]:
    """Names with commas between them.

    >>> listed("pdf, png"), listed("")
    (['pdf', 'png'], [])
    """
    return [name.strip() for name in text.split(",") if name.strip()]
