"""The figure of position-only linear attention: how complexity grows, and what that does to the error."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lengthlens.analyses import theme
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import MissingError
from lengthlens.analyses.tables import Table, of_frame

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
        both = figure.subplots(1, 2)
        _panels(table, *both)
        for axes in both:
            axes.set_xlabel("scale n")
            middle, top = int(table["train_max"].iloc[0]) / 2, axes.get_xaxis_transform()
            axes.text(middle, 1.02, "training", ha="center", va="bottom", transform=top, fontsize=6)
        figure.legend(handles=_legend(table), loc="outside right upper", handlelength=2.6)
        figure.suptitle(f"Target: {table['target'].iloc[0]}", fontsize=8)
    return figure


class LinearAttention(Finding):
    name, title = "pola", "Position-only linear attention"
    shows = (
        "Position-only linear attention: error and complexity against scale. A scheme without a line of LRC cannot "
        "represent the target."
    )

    def figure(self, study: Study) -> Figure:
        """All targets of a study: above the error, below the complexity; lines are predicted, marks are trained."""
        wide = study.once(from_study)
        targets = list(wide["target"].unique())
        with theme.style():
            width = theme.PAGE if len(targets) > 2 else theme.COLUMN * 1.4
            figure = Figure(figsize=(width, 3.3), layout="constrained")
            grid = figure.subplots(2, len(targets), squeeze=False, sharex=True)
            for k, target in enumerate(targets):
                own = wide[wide["target"] == target]
                _panels(own, grid[1, k], grid[0, k])
                grid[0, k].set_title(theme.literal(target), fontsize=7)
                grid[0, k].set_ylabel("" if k else "error / energy")
                grid[1, k].set(xlabel="scale n", ylabel="" if k else "LRC")
            across = 5 if width == theme.PAGE else 3
            figure.legend(handles=_legend(wide, True), loc="outside lower center", ncols=across, handlelength=2.6)
        return figure

    def tables(self, study: Study) -> dict[str, Table]:
        caption = (
            "Position-only linear attention: complexity in training and at scale N, and the error at N as a share of "
            "the target's energy, as predicted and as trained."
        )
        return {"pola": Table(caption, **of_frame(finding(study.once(from_study))), title="Complexity and error")}


def from_study(study: Study) -> pd.DataFrame:
    """The rows of a study as `pola_table` has them: target, scheme, train_max, scale, and a column for each measure."""
    rows = study.table[study.table["target"] != ""]
    if rows.empty:
        raise MissingError("the table has no position-only linear attention: `lengthlens reproduce` adds it")
    keys = ["target", "scheme", "train_max", "scale"]
    wide = rows.pivot_table(index=keys, columns="measure", values="value", aggfunc="first").reset_index()
    needed = {"pola_predicted_error", "pola_target_energy", "pola_lrc", "pola_lrc_under"} - set(wide)
    if needed:
        raise MissingError(f"the table has position-only linear attention without {', '.join(sorted(needed))}")
    wide.columns = pd.Index([str(name).removeprefix("pola_") for name in wide])
    return wide.astype({"scale": int, "train_max": int})


def finding(wide: pd.DataFrame) -> pd.DataFrame:
    """For each target and scheme: complexity in training and at the end, and the error there as a share of the energy.

    `trained` is what gradient descent reached, `predicted` what the theory says; extrapolates if the error is nil.
    """
    rows = []
    for (target, scheme), part in wide.groupby(["target", "scheme"], sort=False):
        end = part.sort_values("scale").iloc[-1]
        start = part[part["scale"] == end["train_max"]].iloc[0]
        row = {"target": target, "scheme": scheme, "trained up to": end["train_max"], "N": end["scale"]}
        for words, name in (("LRC", "lrc"), ("LRC under the scheme", "lrc_under")):
            row[words] = f"{start[name]:g} → {end[name]:g}".replace("inf", "∞")
        for words in ("predicted", "trained"):
            row[words] = end.get(f"{words}_error", np.nan) / end["target_energy"]
        rows.append(row)
    return pd.DataFrame(rows)


def _panels(table: pd.DataFrame, complexity: Axes, error: Axes) -> None:
    """LRC of the target and under each scheme, and the error of each; the training range is shaded."""
    looks = theme.lines(table["scheme"])
    of_target = table[table["scheme"] == next(iter(looks))]
    complexity.plot(of_target["scale"], of_target["lrc"], **TARGET)
    for name, look in looks.items():
        rows = table[table["scheme"] == name]
        known = rows[np.isfinite(rows["lrc_under"])]
        complexity.plot(known["scale"], known["lrc_under"], **look | {"marker": "none"})
        energy = rows["target_energy"].where(rows["target_energy"] > 0)
        error.plot(rows["scale"], rows["predicted_error"] / energy, **look | {"marker": "none"})
        if "trained_error" in rows:
            every, share = slice(None, None, max(1, len(rows) // 16)), rows["trained_error"] / energy
            error.plot(rows["scale"][every], share[every], **look | {"linestyle": "none"} | HOLLOW)
    complexity.set_ylabel("linear representation complexity")
    largest = max(table["lrc"].max(), table["lrc_under"].replace(np.inf, 0).max())
    if largest > 100:
        complexity.set_yscale("log")
    else:
        complexity.set_ylim(0, largest * 1.1 + 0.5)
    error.set_ylabel("squared error / energy of the target")
    error.set_ylim(bottom=-0.03)
    error.set_ylim(top=max(error.get_ylim()[1], 0.1))
    for axes in (complexity, error):
        axes.set_xlim(0, table["scale"].max() * 1.02)
        axes.axvspan(0, int(table["train_max"].max()), color="0.94", zorder=0, linewidth=0)


def _legend(table: pd.DataFrame, plain: bool = False) -> list[Line2D]:
    """One entry for each scheme, and what lines and marks mean; `plain` without a word on what it cannot represent."""
    trained = "trained_error" in table
    entries = [Line2D([], [], **TARGET, label="the target itself")]
    for name, look in theme.lines(table["scheme"]).items():
        infinite = table.loc[(table["scheme"] == name) & np.isinf(table["lrc_under"]), "scale"]
        refused = "" if infinite.empty else f"\n(complexity ∞ from n={infinite.min()})"
        style = look | (HOLLOW if trained else {"marker": "none"})
        entries.append(Line2D([], [], **style, label=theme.shown(name) if plain else name + refused))
    entries.append(Line2D([], [], color="black", label="line: predicted"))
    if trained:
        entries.append(Line2D([], [], color="black", linestyle="none", marker="o", **HOLLOW, label="mark: trained"))
    return entries
