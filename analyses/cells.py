"""One row for each cell, a task under a scheme: what was said before training, measured in range, and seen beyond."""

import numpy as np
import pandas as pd

from lengthlens.analyses import theme
from lengthlens.analyses.table import FACTORS, INDICES, per_run
from lengthlens.probes.invariance import over_seeds


def cell_table(table: pd.DataFrame) -> pd.DataFrame:
    """Means over the runs of each cell. Indices are of runs that are accurate in range, with Student's 95 % interval.

    Columns: task, scheme, verdict, runs, accurate, exact_2, exact_10 (means over the accurate runs), and for each index
    its mean, _low and _high.
    """
    runs = per_run(table)
    rows = []
    for task in theme.tasks_in_order(runs["task"]):
        own = runs[runs["task"] == task]
        for scheme in theme.in_order(own["scheme"]):
            part = own[own["scheme"] == scheme]
            good = part[part["accurate"]]
            row = {"task": task, "scheme": scheme, "verdict": part["verdict"].iloc[0], "runs": len(part)}
            row |= {"accurate": len(good)}
            row |= {f"exact_{factor}": good[f"exact_{factor}"].mean() for factor in FACTORS}
            for name in INDICES:
                found = over_seeds(good[name].to_numpy(dtype=float))
                row |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
            rows.append(row)
    return pd.DataFrame(rows)


def matrix(table: pd.DataFrame, column: str = "exact_2") -> pd.DataFrame:
    """Tasks by schemes of one column of `cell_table`; missing where there is no such cell or no accurate run."""
    cells = cell_table(table)
    wide = cells.pivot(index="scheme", columns="task", values=column)
    return wide.reindex(index=theme.in_order(cells["scheme"]), columns=theme.tasks_in_order(cells["task"])).astype(
        np.float64
    )
