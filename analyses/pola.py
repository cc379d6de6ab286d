"""The figure of position-only linear attention: how complexity grows, and what that does to the error."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lengthlens.analyses import theme

TARGET: dict[str, Any] = {"color": "black", "linewidth": 3.2, "alpha": 0.25}
HOLLOW: dict[str, Any] = {"markerfacecolor": "white"}


def plot(table: pd.DataFrame) -> Figure:
    """LRC and error against scale, from the rows of `pola_table` (of one target, and one or more schemes).

    Left, the number of distinct values that the target has, and of classes on which each scheme spends it. Right,
    the squared error as a share of the target's own energy: 0 is perfect, 1 is what a model that knows nothing
    scores. Lines are predictions; marks, where there was real training, are what gradient descent reached.
    """
    with theme.style():
        figure = Figure(figsize=(theme.PAGE, 2.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        _complexity(left, table)
        _error(right, table)
        train_max = int(table["train_max"].iloc[0])
        for axes in (left, right):
            axes.set_xlabel("scale n")
            axes.set_xlim(0, table["scale"].max() * 1.02)
            axes.axvspan(0, train_max, color="0.94", zorder=0, linewidth=0)
            top = axes.get_xaxis_transform()
            axes.text(train_max / 2, 1.02, "training", ha="center", va="bottom", transform=top, fontsize=6)
        figure.legend(handles=_legend(table), loc="outside right upper", handlelength=2.6)
        figure.suptitle(f"Target: {table['target'].iloc[0]}", fontsize=8)
    return figure


def _complexity(axes: Axes, table: pd.DataFrame) -> None:
    schemes = theme.in_order(table["scheme"])
    of_target = table[table["scheme"] == schemes[0]]
    axes.plot(of_target["scale"], of_target["lrc"], **TARGET)
    for name in schemes:
        rows = table[table["scheme"] == name]
        known = rows[np.isfinite(rows["lrc_under"])]
        axes.plot(known["scale"], known["lrc_under"], **theme.line(name) | {"marker": "none"})
    axes.set_ylabel("linear representation complexity")
    largest = max(table["lrc"].max(), table["lrc_under"].replace(np.inf, 0).max())
    if largest > 100:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, largest * 1.1 + 0.5)


def _error(axes: Axes, table: pd.DataFrame) -> None:
    for name in theme.in_order(table["scheme"]):
        rows = table[table["scheme"] == name]
        energy = rows["target_energy"].where(rows["target_energy"] > 0)
        style = theme.line(name)
        axes.plot(rows["scale"], rows["predicted_error"] / energy, **style | {"marker": "none"})
        if "trained_error" in rows:
            every = slice(None, None, max(1, len(rows) // 16))
            share = rows["trained_error"] / energy
            axes.plot(rows["scale"][every], share[every], **style | {"linestyle": "none"} | HOLLOW)
    axes.set_ylabel("squared error / energy of the target")
    axes.set_ylim(bottom=-0.03)
    axes.set_ylim(top=max(axes.get_ylim()[1], 0.1))


def _legend(table: pd.DataFrame) -> list[Line2D]:
    """One entry for each scheme, and what lines and marks mean."""
    trained = "trained_error" in table
    entries = [Line2D([], [], **TARGET, label="the target itself")]
    for name in theme.in_order(table["scheme"]):
        style = theme.line(name) | HOLLOW if trained else theme.line(name) | {"marker": "none"}
        entries.append(Line2D([], [], **style, label=_label(name, table[table["scheme"] == name])))
    entries.append(Line2D([], [], color="black", label="line: predicted"))
    if trained:
        entries.append(
            Line2D([], [], color="black", linestyle="none", marker="o", **HOLLOW, label="mark: trained")
        )
    return entries


def _label(name: str, rows: pd.DataFrame) -> str:
    """The scheme, and from where on it cannot represent the target."""
    broken = rows[np.isinf(rows["lrc_under"])]
    return name if broken.empty else f"{name}\n(complexity ∞ from n={broken['scale'].min()})"
