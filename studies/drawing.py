"""Figures and tables of a study as files."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lengthlens.analyses import theme
from lengthlens.analyses.findings import findings
from lengthlens.analyses.study import Finding, Study
from lengthlens.errors import UserError, unknown
from lengthlens.files import make_directory, write_whole

FORMATS = ("pdf", "png", "svg")
TABLES = "tables"  # the name that asks for all tables


class Drawn(NamedTuple):
    """The files that were written, and by name a sentence for each figure or table that has nothing to show."""

    files: list[Path]
    missing: dict[str, str]


def draw(
    table: pd.DataFrame | Study,
    names: Sequence[str] = (),
    out: str | Path = "figures",
    formats: Sequence[str] = ("pdf", "png"),
    *,
    held_out: Sequence[str] = (),
    report: Callable[[str], None] | None = None,
) -> Drawn:
    """Write the figures and tables of a study, in seconds; the same study gives the same bytes.

    `table` is a study, as `ll.study` makes it and `read_study` reads it. `names` are findings, each with a figure and
    perhaps tables, and "tables" stands for the tables of all; no names mean everything. Figures go to `out` in each of
    the `formats` (pdf, png, svg), tables to `out`/tables in Markdown and LaTeX. Tasks `held_out` are reported on their
    own, too. `report` is told each name.

    A figure for which the study lacks something says so in its place, and in `missing`. A name or a format that does
    not exist is a `UserError`.

        table = ll.study(ll.RunStore("out/runs"))
        ll.draw(table, ["front", "tables"], out="figures", formats=["png"]).missing
    """
    check(names, formats)
    study = table if isinstance(table, Study) else Study(table, held_out=held_out)
    tell, files = report or (lambda name: None), list[Path]()
    for name, finding in findings().items():
        tell(name)
        if not names or name in names:
            files += figure_files(study, finding, Path(out), formats)
        if not names or name in names or TABLES in names:
            files += table_files(study, finding, Path(out) / TABLES)
    return Drawn(files, study.missing)


def check(names: Sequence[str], formats: Sequence[str]) -> None:
    """Refuse names and formats that do not exist."""
    for name in names:
        if name not in (*findings(), TABLES):
            raise unknown("figure", name, (*findings(), TABLES))
    for kind in formats:
        if kind not in FORMATS:
            raise unknown("format", kind, FORMATS)
    if not formats:
        raise UserError(f"give at least one format: {', '.join(FORMATS)}")


def figure_files(study: Study, finding: Finding, out: Path, formats: Sequence[str]) -> Iterator[Path]:
    """The figure in each format."""
    for kind in formats:
        path = out / f"{finding.name}.{kind}"
        theme.save(study.figure(finding), path)
        yield path


def table_files(study: Study, finding: Finding, out: Path) -> Iterator[Path]:
    """Its tables in Markdown and LaTeX."""
    for name, found in study.tables(finding).items():
        make_directory(out)
        for ending, text in (("md", found.markdown()), ("tex", found.latex())):
            path = out / f"{name}.{ending}"
            write_whole(path, text.encode())
            yield path
