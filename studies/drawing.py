"""Figures and tables of a study as files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lengthlens.analyses.canvas import save
from lengthlens.analyses.findings import findings
from lengthlens.analyses.study import Study
from lengthlens.analyses.tables import Table
from lengthlens.errors import UserError, unknown
from lengthlens.files import make_directory, write_whole

FORMATS = ("pdf", "png", "svg", "pgf")
TABLES = "tables"  # the name that asks for all tables


class Drawn(NamedTuple):
    """The files that were written, and by name a sentence for each figure or table that has nothing to show."""

    files: list[Path]
    missing: dict[str, str]


def draw(
    table: pd.DataFrame | Study | str | Path,
    names: Sequence[str] = (),
    out: str | Path = "figures",
    formats: Sequence[str] = ("pdf", "png"),
    *,
    held_out: Sequence[str] = (),
    width: float | None = None,
    height: float | None = None,
    tasks: Sequence[str] = (),
    schemes: Sequence[str] = (),
    seeds: Sequence[int] = (),
    csv: bool = False,
    report: Callable[[str], None] | None = None,
) -> Drawn:
    """Write the figures and tables of a study, in seconds; the same study gives the same bytes.

    `table` is a study, as `ll.study` makes it, or its file. `names` are findings, each with a figure and
    perhaps tables, and "tables" stands for the tables of all; no names mean everything. Figures go to `out` in each of
    the `formats` (pdf, png, svg, pgf), `width` inches wide and `height` high (as usual if None), and with `csv` the
    numbers that each shows beside it; tables go to `out`/tables in Markdown, LaTeX and csv. Only `tasks`, `schemes` and
    `seeds` that are named count, all if none are. Tasks `held_out` are reported on their own, too. `report` is told
    each name.

    A figure for which the study lacks something is left out, and drawn as a sentence if it was asked for by name; the
    sentence is in `missing`, too. A name or a format that does not exist is a `UserError`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     drawn = draw("figures/study/study.parquet", ["extrapolation"], folder, formats=["png"], tasks=["copy"])
    >>> [path.name for path in drawn.files], drawn.missing
    (['extrapolation.png', 'cells.md', 'cells.tex', 'cells.csv'], {})
    """
    check_names(names, formats)
    study = Study.of(table, held_out or None).select(tasks, schemes, seeds)
    tell, files = report or (lambda name: None), list[Path]()
    for name, finding in findings(None if names else study).items():
        tell(name)
        if not names or name in names:
            drawing = study.drawing(finding, width, height)
            for kind in formats if names or name not in study.missing else ():
                files.append(Path(out) / f"{finding.name}.{kind}")
                save(drawing.figure, files[-1])
            for part, numbers in drawing.data.items() if csv else ():
                files.append(Path(out) / f"{'-'.join(filter(None, [finding.name, part]))}.csv")
                write_whole(files[-1], numbers.to_csv(index=False, lineterminator="\n").encode())
        if not names or name in names or TABLES in names:
            files += write_tables(study.tables(finding), Path(out) / TABLES)
    return Drawn(files, study.missing)


def write_tables(tables: Mapping[str, Table], folder: Path) -> list[Path]:
    """Write each table under its name, in Markdown, LaTeX and csv; the files."""
    files = []
    make_directory(folder)
    for name, table in tables.items():
        for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
            files.append(folder / f"{name}.{ending}")
            write_whole(files[-1], text.encode())
    return files


def check_names(names: Sequence[str], formats: Sequence[str]) -> None:
    """Refuse names and formats that do not exist."""
    for kind, given, known in (("figure", names, (*findings(), TABLES)), ("format", formats, FORMATS)):
        for name in given:
            if name not in known:
                raise unknown(kind, name, known)
    if not formats:
        raise UserError(f"give at least one format: {', '.join(FORMATS)}")
