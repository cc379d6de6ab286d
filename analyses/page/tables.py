"""The tables of the page: columns, and cells that know both their text and what they are sorted by."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lengthlens.analyses.page.cells import Cell
from lengthlens.analyses.table import FACTORS

NOTHING = "–"  # in place of what is not known


@dataclass(frozen=True)
class Column:
    label: str
    numeric: bool = False
    meaning: str = ""


@dataclass(frozen=True)
class Entry:
    """What a cell of a table shows, and its place when the column is sorted; an empty key comes last."""

    text: str
    key: str


@dataclass(frozen=True)
class Line:
    cells: Sequence[Entry]
    mark: str = ""  # "main" for what the table is about, "bad" for what did not work


@dataclass(frozen=True)
class Table:
    """A table with a heading; `empty` is the sentence that stands where there are no rows."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Line] = field(default_factory=list)
    note: str = ""
    empty: str = "Nothing to show."
    folded: bool = False  # shown when asked for


def entry(value: Any, digits: int = 2) -> Entry:
    """A cell for a value of any kind.

    >>> entry(0.5), entry(None), entry(True).text
    (Entry(text='0.50', key='0.5'), Entry(text='–', key=''), 'yes')
    """
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return Entry(NOTHING, "")
    if isinstance(value, bool):
        return Entry("yes" if value else "no", str(int(value)))
    if isinstance(value, float):
        return Entry(f"{value:.{digits}f}".replace("-", "−"), f"{value:.6g}")
    return Entry(str(value), str(value))


def with_interval(value: float | None, low: float | None, high: float | None) -> Entry:
    """A number with the ends of its interval; sorted by the number.

    >>> with_interval(0.98, 0.9, 1.0).text
    '0.980 (0.900 to 1.000)'
    """
    plain = entry(value, 3)
    ends = [entry(end, 3).text for end in (low, high)]
    return plain if NOTHING in (plain.text, *ends) else Entry(f"{plain.text} ({ends[0]} to {ends[1]})", plain.key)


def frame_table(
    name: str,
    title: str,
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    *,
    intervals: Sequence[str] = (),
    main: str = "",
    note: str = "",
    empty: str = "Nothing to show.",
    folded: bool = False,
) -> Table:
    """A table of a frame's columns under the labels given; those in `intervals` have ends beside them in the frame.

    Rows where the column `main` is true are printed strongly.
    """
    heads = [
        Column(label, key in intervals or (key in frame and pd.api.types.is_numeric_dtype(frame[key])))
        for key, label in columns.items()
    ]
    rows = [
        line(
            [
                with_interval(row[key], row[f"{key}_low"], row[f"{key}_high"]) if key in intervals else row[key]
                for key in columns
            ],
            "main" if main and row[main] else "",
        )
        for row in frame.to_dict("records")
    ]
    return Table(name, title, heads, rows, note, empty, folded)


def line(values: Iterable[Any], mark: str = "") -> Line:
    """A row of plain values, or of cells made before."""
    return Line([value if isinstance(value, Entry) else entry(value) for value in values], mark)


# -- every run ---------------------------------------------------------------------------------------------------

RUN_COLUMNS = (
    Column("task"),
    Column("scheme"),
    Column("seed", True),
    Column("ended", meaning="how training ended"),
    Column("in range", True, "mean exact match over the scales that were trained on"),
    *(Column(f"at {m}×", True, f"exact match at {m} times the training range") for m in FACTORS),
    Column("ι of SRC", True, "growth of measured SRC with scale: 0 is none, 1 is linear"),
    Column("ι of LRC", True, "growth of measured LRC with scale"),
    Column("steps", True),
    Column("seconds", True, "of training"),
)


def runs_table(cells: Sequence[Cell]) -> Table:
    """Every run of the study, as it ended and as it was measured."""
    rows = [line(run_values(cell, run), "" if run["accurate"] else "bad") for cell in cells for run in cell["runs"]]
    note = "Runs with a mark at their left are not accurate in range: exact match below 0.9 at some scale."
    return Table("every-run", f"{len(rows)} runs", RUN_COLUMNS, rows, note, "The table has no run.")


def run_values(cell: Cell, run: Cell) -> list[Any]:
    return [
        cell["task"],
        cell["scheme"],
        run["seed"],
        run["status"],
        entry(run["in_range_exact_match"], 3),
        *(entry(run["at"][str(m)], 3) for m in FACTORS),
        run["iota_src"],
        run["iota_lrc"],
        entry(run["steps"], 0),
        entry(run["seconds"], 0),
    ]


# -- what did not work -------------------------------------------------------------------------------------------

FAILURE_COLUMNS = (Column("task"), Column("scheme"), Column("seed", True), Column("what happened"))


def failures_table(cells: Sequence[Cell]) -> Table:
    """Runs that failed, diverged, did not converge or are not accurate, and lengths that no scheme could process."""
    rows = [
        line([cell["task"], cell["scheme"], run["seed"], what], "bad")
        for cell in cells
        for run in cell["runs"]
        for what in troubles(run)
    ]
    note = "Runs that are not accurate in range are kept out of what predicts extrapolation, and shown here."
    empty = "Every run converged, is accurate in range and could be evaluated at every length."
    return Table("did-not-work", f"{len(rows)} things that went wrong", FAILURE_COLUMNS, rows, note, empty)


def troubles(run: Cell) -> list[str]:
    """What went wrong with a run, a sentence each."""
    found = []
    if run["status"] not in ("", "converged"):
        found.append(f"{run['status']}: {run['reason']}" if run["reason"] else run["status"])
    if run["accurate"] is False and run["status"] == "converged":
        found.append("not accurate in range: exact match below 0.9 at some scale")
    if run["accurate"] and run["status"] and not run["src"] and not run["lrc"]:
        found.append("accurate, and not probed: it has no measured complexity")
    return [*found, *([f"cannot be evaluated: {run['refused']}"] if run["refused"] else [])]
