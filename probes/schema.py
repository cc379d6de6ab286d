"""A measurement is a row: the columns that it may have, and the thresholds at which complexities are counted.

The table of a run has `PROBE_COLUMNS`, that of a study `STUDY_COLUMNS`, in this order. Tables by hand may lack most of
them. Everything that computes, labels or compares a threshold takes it from here, so that a row never says another
threshold than the one it was counted at. Nothing heavy is imported.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Threshold(NamedTuple):
    """A number that decides what counts, its column, and where the index is reported to show what depends on it."""

    column: str
    default: float
    tried: tuple[float, ...] = ()


# How much of a head's output two weights may differ by and still count as one: half of its size, a quarter of its
# energy. Fixed on parity-cot and copy (ideal, lbpe, learned, relative, three seeds each): at 0.3 the count of 3 of 12
# invariant runs rose by one, at a weight that just failed to accept 0.
TOLERANCE = Threshold("tolerance", 0.5, (0.3, 0.5, 0.7))
# The influence above which a key is a source. Fixed on parity-cot and copy: sources there have an influence of 0.4 and
# more, other keys of less than 0.2. Not beyond 0.4: a mark that stands for 0 in a running sum has an influence of one
# half, since half of the symbols that replace it change the sum.
INFLUENCE = Threshold("influence", 0.25, (0.1, 0.25, 0.4))
# The share of trials in which one operator must explain two steps. Fixed on copy and parity-cot.
FIDELITY = Threshold("fidelity", 0.9, (0.8, 0.9, 0.97))
# The accuracy at which a readout decodes a step.
BAR = Threshold("bar", 0.9, (0.8, 0.9, 0.97))
THRESHOLDS = [threshold.column for threshold in (TOLERANCE, INFLUENCE, FIDELITY, BAR)]


def at_defaults(rows: "pd.DataFrame", defaults: Mapping[str, float]) -> "pd.DataFrame":
    """The rows that were counted at these thresholds, given by column; a row that names no threshold is one of them.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"bar": [0.8, 0.9, None], "value": [1, 2, 3]})
    >>> at_defaults(rows, {"bar": 0.9})["value"].tolist()
    [2, 3]
    """
    for column, default in defaults.items():
        rows = rows[rows[column].fillna(default) == default]  # exact: what is stored is the same constant
    return rows


class Column(NamedTuple):
    """The type of a column, as pandas names it, and what the column holds."""

    kind: str
    words: str


IDENTITY = {
    "run": Column("str", "id of the run; empty for what belongs to a cell (a task under a scheme) and not to a run"),
    "task": Column("str", "the task; empty for position-only linear attention"),
    "target": Column("str", "of position-only linear attention: what attention should compute"),
    "scheme": Column("str", "the scheme, with those of its options that are not the default"),
    "recipe": Column("str", "what else of the run's configuration is not the default: n_layers=4, steps=10"),
    "seed": Column("Int64", "seed of the run"),
    "train_max": Column("Int64", "the largest n in training"),
}
MEASUREMENT = {
    "measure": Column("str", "what was measured, see below"),
    "layer": Column("Int64", "of which layer"),
    "head": Column("Int64", "of which head"),
    "readout": Column("str", "of which readout"),
    "fit_scale": Column("Int64", "the n at which a readout was fitted"),
    "scale": Column("Int64", "the n at which it was measured"),
    "value": Column("float64", "the number"),
    "low": Column("float64", "lower end of its 95 % interval"),
    "high": Column("float64", "upper end of its 95 % interval"),
    "samples": Column("Int64", "from how many instances"),
    "control": Column("float64", "the same number for its control"),
    "tolerance": Column(
        "float64", "threshold of measured LRC: relative difference up to which two weights count as one"
    ),
    "influence": Column("float64", "threshold of measured SRC: least influence of a source"),
    "fidelity": Column("float64", "threshold of measured SRC: share of steps that a readout must explain"),
    "bar": Column("float64", "threshold of readout transfer: accuracy from which a readout decodes a step"),
    "accurate": Column("boolean", "whether the run's exact match is at least 0.9 at every n of training"),
    "relation": Column("str", "the relation under which codes were counted, in words"),
    "form": Column("str", "of a learned relation: a linear form of i, j and n"),
    "form_value": Column("Int64", "the value of the form that `value` is the bias of"),
}
OUTCOME = {
    "status": Column("str", "how training ended: converged, not-converged, diverged, failed, …"),
    "verdict": Column("str", "the verdict before training"),
    "reason": Column("str", "why: of a verdict, of a failed run, of a missing value"),
}

COLUMNS = {**IDENTITY, **MEASUREMENT, **OUTCOME}
STUDY_COLUMNS = {name: column.kind for name, column in COLUMNS.items()}
# A probed run is accurate or not, and a row that has no value says why.
PROBE_COLUMNS = {name: STUDY_COLUMNS[name] for name in (*MEASUREMENT, "reason")} | {"accurate": "bool"}
