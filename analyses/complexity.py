"""The sequential representation complexity of tasks, drawn over the scale."""

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lengthlens.analyses import theme


def plot_src(rows: list[dict[str, Any]]) -> Figure:
    """SRC against n from the rows of `lengthlens.tasks.complexity.src_rows`: declared, and searched where it was.

    A scale at which no operators of the arity suffice has infinite SRC and is marked at the upper edge.
    """
    table = pd.DataFrame(rows)
    with theme.style():
        figure = Figure(figsize=(theme.COLUMN, 2.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(table["scale"], table["declared"], color=theme.BLUE, marker="o", label="declared (upper bound)")
        top = 1.25 * max(2.0, float(table["declared"].max()))
        if "searched" in table:
            finite = table[table["searched"] < math.inf]
            arity = int(table["arity"].iloc[0])
            label = f"searched, arity ≤ {arity}"
            axes.plot(finite["scale"], finite["searched"], "s--", color=theme.VERMILION, label=label)
            beyond = table.loc[table["searched"] == math.inf, "scale"]
            if len(beyond):
                infinite = [top * 0.97] * len(beyond)
                axes.plot(beyond, infinite, "^", color=theme.VERMILION, clip_on=False, label="searched: infinite")
        axes.set(
            title=f"{table['task'].iloc[0]}", xlabel="scale n", ylabel="distinct operators at scales ≤ n", ylim=(0, top)
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="best")
    return figure
