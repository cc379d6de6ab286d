"""Verdicts before training against what training gave, as the page says it."""

from collections.abc import Sequence

import pandas as pd

from lengthlens.analyses.outcome import Outcome, outcome
from lengthlens.analyses.page.cells import Cell
from lengthlens.analyses.page.tables import Table, frame_table
from lengthlens.analyses.table import MissingError


def verdict_tables(found: Outcome | None) -> list[Table]:
    """How often which outcome followed which verdict, and every cell that went against its own."""
    if found is None:
        return [Table("confusion", "Verdicts and outcomes", [], [], empty="The table has no verdict on any run.")]
    counted = found.confusion.rename_axis("verdict").reset_index()
    return [
        frame_table(
            "confusion",
            "How runs ended, by the verdict on their cell",
            counted,
            {name: name for name in counted.columns},
            note=found.sentence,
        ),
        frame_table(
            "disagreements",
            "Where training went against the verdict",
            found.disagreements,
            {name: "of seeds" if name == "of" else name for name in found.disagreements.columns},
            note="Content may help a network out where positions do not, and training may fail to find what exists.",
            empty="No run went against the verdict on its cell.",
        ),
    ]


def outcome_of(table: pd.DataFrame) -> Outcome | None:
    """The finding, if the table has verdicts and runs."""
    try:
        return outcome(table)
    except MissingError:
        return None


def mark_surprises(cells: Sequence[Cell], found: Outcome | None) -> None:
    """Say in each cell how it went against its verdict; nothing where it did not."""
    rows = [] if found is None else found.disagreements.to_dict("records")
    for cell in cells:
        own = [row for row in rows if (row["task"], row["scheme"]) == (cell["task"], cell["scheme"])]
        cell["surprise"] = " ".join(
            f"Against it: {row['outcome']} (seed {row['seeds']}, of {row['of']} seeds)." for row in own
        )
