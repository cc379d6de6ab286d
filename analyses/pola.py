"""The figure of position-only linear attention: how complexity grows, and what that does to the error."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas, drawn
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import MissingError
from lengthlens.analyses.tables import Table, of_frame

TARGET: dict[str, Any] = {"color": "black", "linewidth": 3.2, "alpha": 0.25}
HOLLOW: dict[str, Any] = {"markerfacecolor": "white"}


@drawn
def plot_pola(canvas: Canvas, table: pd.DataFrame) -> None:
    """LRC and error against the input size, from the rows of `pola_table` (of one target, and one or more schemes).

    LRC is the number of distinct values that the target has, and of classes that each scheme has for them. The squared
    error is a share of the target's own energy: 0 is perfect, 1 is what a model that knows nothing scores. Lines are
    predictions; marks, where there was real training, are what gradient descent reached. The panels are `LRC` and
    `error`.
    """
    target = str(table["target"].iloc[0])
    _panels(canvas, table, {"error": ("error", target), "LRC": ("LRC", target)}, 2.1)


class LinearAttention(Finding):
    name, title = "pola", "Position-only linear attention"
    shows = (
        "Position-only linear attention: error and complexity against the input size. A scheme without a line of LRC "
        "cannot represent the target."
    )

    def draw(self, study: Study, canvas: Canvas) -> None:
        """A row for each target of a study; the panels are `error of prefix-sum`, `LRC of prefix-sum`, …"""
        wide = study.once(from_study)
        targets = dict.fromkeys(wide["target"])
        _panels(canvas, wide, {f"{kind} of {each}": (kind, each) for each in targets for kind in ("error", "LRC")}, 1.2)
        canvas.data |= {"": wide}

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


def _panels(canvas: Canvas, table: pd.DataFrame, names: dict[str, tuple[str, str]], height: float) -> None:
    """The panels by name, each the error or the LRC of a target; those of one kind share their limits."""
    known = table["target_energy"].where(table["target_energy"] > 0)
    shares = {name: table[name] / known for name in ("predicted_error", "trained_error") if name in table}
    table = table.assign(**shares)
    most = {"error": float(pd.concat(shares.values()).max())}
    most["LRC"] = float(max(table["lrc"].max(), table["lrc_under"].replace(np.inf, 0).max()))
    wide = theme.COLUMN * 1.5
    axes_of = canvas.panels(
        list(names), wide, height, across=2, least=1.2, more=0.2, legend=_legend(table), sharex=True
    )
    for name, axes in axes_of.items():
        kind, target = names[name]
        {"error": _error, "LRC": _complexity}[kind](axes, table[table["target"] == target], most[kind])
        axes.set_title(theme.literal(target), fontsize=7)
        axes.set_xlabel("input size n" if name in canvas.last_row else "")
        axes.set_xlim(0, float(table["scale"].max()) * 1.02)
        axes.axvspan(0, int(table["train_max"].max()), color="0.94", zorder=0, linewidth=0)


def _complexity(axes: Axes, table: pd.DataFrame, most: float) -> None:
    """LRC of the target, and of what each scheme has for it."""
    looks = theme.lines(table["scheme"])
    of_target = table[table["scheme"] == next(iter(looks))]
    axes.plot(of_target["scale"], of_target["lrc"], **TARGET)
    for name, look in theme.drawing_order(looks).items():
        known = table[(table["scheme"] == name) & np.isfinite(table["lrc_under"])]
        axes.plot(known["scale"], known["lrc_under"], **look | {"marker": "none"})
    axes.set_ylabel("LRC")
    if most > 100:
        axes.set_yscale("log")
        axes.set_ylim(0.7, most * 1.5)
    else:
        axes.set_ylim(0, most * 1.1 + 0.5)


def _error(axes: Axes, table: pd.DataFrame, most: float) -> None:
    """The error of each scheme as a share of the target's energy; above 1 on a logarithmic scale."""
    for name, look in theme.drawing_order(theme.lines(table["scheme"])).items():
        rows = table[table["scheme"] == name]
        axes.plot(rows["scale"], rows["predicted_error"], **look | {"marker": "none"})
        if "trained_error" in rows:
            some = rows[:: max(1, len(rows) // 12)]
            axes.plot(some["scale"], some["trained_error"], **look | {"linestyle": "none"} | HOLLOW)
    axes.set_ylabel("error / energy")
    if most > 2.5:
        axes.set_yscale("symlog", linthresh=1, linscale=1)
        ticks = [tick for tick in (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if tick <= 1.2 * most]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_ylim(-0.05, max(1.25 * most, 0.1))


def _legend(table: pd.DataFrame) -> list[Artist]:
    """One entry for each scheme, and what lines and marks mean."""
    trained = "trained_error" in table
    entries: list[Artist] = [Line2D([], [], **TARGET, label="the target itself")]
    several = table["target"].nunique() > 1
    for name, look in theme.lines(table["scheme"]).items():
        infinite = table.loc[(table["scheme"] == name) & np.isinf(table["lrc_under"]), "scale"]
        refused = "" if several or infinite.empty else f"\n(complexity ∞ from n={infinite.min()})"
        style = look | (HOLLOW if trained else {"marker": "none"})
        entries.append(Line2D([], [], **style, label=theme.shown(name) + refused))
    entries.append(Line2D([], [], color="black", label="line: predicted"))
    if trained:
        entries.append(Line2D([], [], color="black", linestyle="none", marker="o", **HOLLOW, label="mark: trained"))
    return [*entries, Patch(color="0.94", label="training range"), *theme.thicker(table["scheme"])]
