"""The figure of position-only linear attention: how complexity grows, and what that does to the error."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas, drawn
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import MissingError
from lengthlens.analyses.tables import Table, of_frame

TARGET: dict[str, Any] = {"color": "black", "linewidth": 3.2, "alpha": 0.25}
HOLLOW: dict[str, Any] = {"markerfacecolor": "white"}


@drawn
def plot_pola(canvas: Canvas, table: pd.DataFrame) -> None:
    """LRC and error against scale, from the rows of `pola_table` (of one target, and one or more schemes).

    Left, the number of distinct values that the target has, and of classes on which each scheme spends it. Right,
    the squared error as a share of the target's own energy: 0 is perfect, 1 is what a model that knows nothing
    scores. Lines are predictions; marks, where there was real training, are what gradient descent reached. The panels
    are `LRC` and `error`.
    """
    legend = _legend(table)
    axes_of = canvas.panels(["LRC", "error"], theme.PAGE, 2.2, across=2, least=2.5, more=0.2, legend=legend)
    scales = _scales(table)
    for name, axes in axes_of.items():
        (_complexity if name == "LRC" else _error)(axes, table, scales)
        axes.set_xlabel("scale n")
        middle, top = int(table["train_max"].iloc[0]) / 2, axes.get_xaxis_transform()
        axes.text(middle, 1.02, "training", ha="center", va="bottom", transform=top, fontsize=6)
    if canvas.own:
        canvas.figure.suptitle(f"Target: {table['target'].iloc[0]}", fontsize=8)


class LinearAttention(Finding):
    name, title = "pola", "Position-only linear attention"
    shows = (
        "Position-only linear attention: error and complexity against scale. A scheme without a line of LRC cannot "
        "represent the target."
    )

    def draw(self, study: Study, canvas: Canvas) -> None:
        """All targets of a study: above the error, below the complexity; lines are predicted, marks are trained.

        In a column a target is a row. The panels are `error of prefix-sum`, `LRC of prefix-sum`, …
        """
        wide = study.once(from_study)
        targets = list(wide["target"].unique())
        kinds = {"error": _error, "LRC": _complexity}
        panels = [(kind, target) for kind in kinds for target in targets]
        if canvas.narrow:
            panels.sort(key=lambda panel: targets.index(panel[1]))
        names = {f"{kind} of {target}": (kind, target) for kind, target in panels}
        legend, across = _legend(wide, True), 2 if canvas.narrow else len(targets)
        usual = theme.PAGE if len(targets) > 2 else theme.COLUMN * 1.4
        height = 1.25 if canvas.narrow else 1.4
        axes_of = canvas.panels(
            list(names), usual, height, across=across, least=1.2, more=0.2, legend=legend, sharex=True
        )
        scales = _scales(wide)
        for name, axes in axes_of.items():
            kind, target = names[name]
            kinds[kind](axes, wide[wide["target"] == target], scales)
            first = target == targets[0] or canvas.narrow or not canvas.own
            axes.set_title(theme.literal(target) if kind == "error" or canvas.narrow else "", fontsize=7)
            axes.set_ylabel({"error": "error / energy", "LRC": "LRC"}[kind] if first else "")
            axes.set_xlabel("scale n" if name in canvas.last_row else "")
            if not first:
                axes.tick_params(labelleft=False)
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


def _scales(table: pd.DataFrame) -> dict[str, float]:
    """What all panels of a row share: the largest complexity, the largest error, and the largest scale."""
    energy = table["target_energy"].where(table["target_energy"] > 0)
    errors = [table[name] / energy for name in ("predicted_error", "trained_error") if name in table]
    largest = max(table["lrc"].max(), table["lrc_under"].replace(np.inf, 0).max())
    return {"lrc": float(largest), "error": float(pd.concat(errors).max()), "scale": float(table["scale"].max())}


def _complexity(axes: Axes, table: pd.DataFrame, scales: dict[str, float]) -> None:
    """LRC of the target, and of what each scheme spends on it."""
    looks = theme.lines(table["scheme"])
    of_target = table[table["scheme"] == next(iter(looks))]
    axes.plot(of_target["scale"], of_target["lrc"], **TARGET)
    for name, look in theme.drawing_order(looks).items():
        known = table[(table["scheme"] == name) & np.isfinite(table["lrc_under"])]
        axes.plot(known["scale"], known["lrc_under"], **look | {"marker": "none"})
    axes.set_ylabel("linear representation complexity")
    if scales["lrc"] > 100:
        axes.set_yscale("log")
        axes.set_ylim(0.7, scales["lrc"] * 1.5)
    else:
        axes.set_ylim(0, scales["lrc"] * 1.1 + 0.5)
    _training_range(axes, table, scales)


def _error(axes: Axes, table: pd.DataFrame, scales: dict[str, float]) -> None:
    """The error of each scheme as a share of the target's energy; above 1 on a logarithmic scale."""
    for name, look in theme.drawing_order(theme.lines(table["scheme"])).items():
        rows = table[table["scheme"] == name]
        energy = rows["target_energy"].where(rows["target_energy"] > 0)
        axes.plot(rows["scale"], rows["predicted_error"] / energy, **look | {"marker": "none"})
        if "trained_error" in rows:
            every, share = slice(None, None, max(1, len(rows) // 12)), rows["trained_error"] / energy
            axes.plot(rows["scale"][every], share[every], **look | {"linestyle": "none"} | HOLLOW)
    axes.set_ylabel("squared error / energy of the target")
    if scales["error"] > 2.5:
        axes.set_yscale("symlog", linthresh=1, linscale=1)
        ticks = [tick for tick in (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if tick <= 1.2 * scales["error"]]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_ylim(-0.05, max(1.25 * scales["error"], 0.1))
    _training_range(axes, table, scales)


def _training_range(axes: Axes, table: pd.DataFrame, scales: dict[str, float]) -> None:
    axes.set_xlim(0, scales["scale"] * 1.02)
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
    return [*entries, *theme.thicker(table["scheme"])]
