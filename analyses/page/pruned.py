"""Runs before and after pruning, as the page shows them."""

import pandas as pd

from lengthlens.analyses import pruning
from lengthlens.analyses.page.tables import Table, frame_table
from lengthlens.analyses.table import MissingError

NAME, TITLE = "pruned-cells", "As trained → pruned, means over seeds"


def pruned_table(table: pd.DataFrame) -> Table:
    """The finding as the note of its table; where nothing was pruned, a sentence."""
    try:
        found, sentence = pruning.cells(table), pruning.pruning(table).sentence
    except MissingError as missing:
        return Table(NAME, TITLE, [], [], "", f"Nothing to show: {missing}.")
    note = (
        "The same weights, but for biases that no answer in the training range needs: those are levelled. Nothing is "
        f"trained again, and no longer input is looked at. {sentence}"
    )
    return frame_table(NAME, TITLE, found, {name: str(name) for name in found.columns}, note=note)
