"""Readouts fitted at one scale and tested at another: heat maps for every task and scheme."""

from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import MissingError, chosen_readout, measured
from lengthlens.analyses.tables import Table, of_frame

CELL = 0.75  # inches of a heat map with the gap behind it
MARGIN, NAME = 1.9, 22  # inches beside them, and letters that fit there: longer names of schemes take several lines
NARROW_MARGIN = 1.25  # in a column, where the scale of colours is below
NARROW_NAME = 16  # letters that fit there
LINE = 0.11  # inches of a line of letters in the margin
SIDE, GAP = 0.94, 0.03  # of a map, and of the gap before what lies beyond the training range; in cells
LETTERS = 16  # of a task's name that fit above an inch of maps
SMALL = 0.5  # inches of a map in which no sentence fits
COLOURS = "cividis"  # even in lightness, and the same to readers with colour blindness

LOOK: dict[str, Any] = {"cmap": COLOURS, "norm": Normalize(0, 1), "interpolation": "none", "origin": "lower"}


class ReadoutTransfer(Finding):
    name, title = "transfer", "Do readouts transfer between scales?"
    shows = "Accuracy of readouts fitted at one scale and tested at another."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """A heat map for each scheme (row) and task (column): fitted at the scale on the left, tested at that below.

        All maps lie on one picture with gaps between them; a thin gap sets off the scales beyond the training range.
        """
        found = study.once(accuracies)
        if found.empty:
            raise MissingError("the table has no transfer of readouts in a run that is accurate in range")
        schemes, tasks = theme.schemes_in_order(found["label"]), theme.tasks_in_order(found["row"])
        fits, tests = sorted(found["fit_scale"].unique()), sorted(found["scale"].unique())
        margin = NARROW_MARGIN if canvas.narrow else MARGIN
        cell = min(CELL, (canvas.width(theme.PAGE) - margin) / len(tasks))
        high = (1.35 if canvas.narrow else 0.8) + cell * len(schemes)
        axes = canvas.panel(margin + cell * len(tasks), high)
        for y, scheme in enumerate(schemes):
            for x, task in enumerate(tasks):
                own = found[(found["label"] == scheme) & (found["row"] == task)]
                _map(axes, own, fits, tests, x, y, cell)
        _frame(axes, schemes, tasks, fits, tests, cell)
        figure, scale = canvas.figure, ScalarMappable(Normalize(0, 1), COLOURS)
        if canvas.narrow:
            shown = figure.colorbar(scale, ax=axes, location="bottom", shrink=0.8, aspect=25, pad=0.02)
        else:
            height = min(1.0, 2.0 / figure.get_figheight())
            shown = figure.colorbar(scale, ax=axes, shrink=height, aspect=15, pad=0.02)
        shown.set_label("accuracy of the readout")
        shown.outline.set_visible(False)
        canvas.data |= {"": found.rename(columns={"row": "task", "label": "scheme"})}

    def tables(self, study: Study) -> dict[str, Table]:
        caption = (
            "Accuracy of readouts (sequential, one layer before the last) at the scale they were fitted at, at others "
            "in range, and beyond it; runs accurate in range."
        )
        found = summary(study.once(accuracies)).rename(columns={"row": "task", "label": "scheme"})
        return {"transfer": Table(caption, **of_frame(found), title="Accuracy of readouts", folded=True)}


def accuracies(study: Study) -> pd.DataFrame:
    """The finding: mean accuracy over seeds of readouts fitted at one scale and tested at another; accurate runs only.

    Of the sequential readout one layer before the last. Columns: row, label, fit_scale, scale, accuracy, control,
    runs, train_max; the control is the same fit to shuffled labels.
    """
    rows = chosen_readout(measured(study.rows, "transfer"))
    rows = rows[rows["accurate"].fillna(True)]
    grouped = rows.groupby(["row", "label", "fit_scale", "scale"])
    found = grouped.agg(accuracy=("value", "mean"), control=("control", "mean"), runs=("run", "nunique"))
    return found.assign(train_max=grouped["train_max"].max()).reset_index()


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """For each cell: how well readouts of another scale in range decode, and those in range decode beyond it."""
    beyond = (found["scale"] > found["train_max"]).fillna(False)
    other = found["fit_scale"] != found["scale"]
    parts = {"own scale": ~other, "another scale in range": other & ~beyond, "beyond the range": beyond}
    keys = ["row", "label"]
    columns = {name: found[mask].groupby(keys)["accuracy"].mean() for name, mask in parts.items()}
    columns["shuffled labels"] = found.groupby(keys)["control"].mean()
    return pd.DataFrame({**columns, "runs": found.groupby(keys)["runs"].max()}).reset_index()


def _map(axes: Axes, own: pd.DataFrame, fits: list[int], tests: list[int], x: int, y: int, cell: float) -> None:
    """One heat map in its square, a part of it beside the other where it goes beyond the training range."""
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 5}
    if own.empty:
        words = "no accurate\nrun" if cell > SMALL else "–"
        axes.text(x + SIDE / 2, y + SIDE / 2, words, **middle)
        return
    values = np.full((len(fits), len(tests)), np.nan)
    values[np.searchsorted(fits, own["fit_scale"]), np.searchsorted(tests, own["scale"])] = own["accuracy"]
    known = own["train_max"].dropna()
    border = int(np.searchsorted(tests, known.max(), side="right")) if len(known) else len(tests)
    width = (SIDE - GAP) / len(tests)
    for first, last, shift in ((0, border, 0.0), (border, len(tests), GAP)):
        if last > first:
            box = (x + first * width + shift, x + last * width + shift, y + SIDE, y)
            image = AxesImage(axes, **LOOK, extent=box)  # `imshow` would look at all the others each time
            image.set_data(values[:, first:last])
            axes.add_image(image)


def _frame(axes: Axes, schemes: list[str], tasks: list[str], fits: list[int], tests: list[int], cell: float) -> None:
    """Names of tasks above and of schemes at the right; the smallest and largest scale at the lower left map."""
    axes.set_aspect("equal")
    axes.set_xlim(-0.02, len(tasks))
    axes.set_ylim(len(schemes), -0.02)
    axes.set_xticks([x + SIDE / 2 for x in range(len(tasks))], list(map(theme.literal, tasks)))
    axes.set_yticks([y + SIDE / 2 for y in range(len(schemes))], [_short(name, cell) for name in schemes])
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False, right=True, labelright=True)
    axes.tick_params(left=False, labelleft=False)
    if max(map(len, tasks)) > LETTERS * cell:
        axes.tick_params(axis="x", labelrotation=40)
        for label in axes.get_xticklabels():
            label.set(ha="left", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    bottom, half, gap = len(schemes) - 1 + SIDE, 0.5 * SIDE, 0.02 / cell  # gaps are so many inches
    small: dict[str, Any] = {"fontsize": 5, "clip_on": False}
    for x, n in ((0.03, tests[0]), (SIDE - 0.03, tests[-1])):
        axes.text(x, bottom + gap, str(n), ha="center", va="top", **small)
    for y, n in ((bottom, fits[0]), (bottom - SIDE, fits[-1])):
        axes.text(-gap, y, str(n), ha="right", va="bottom" if n == fits[0] else "top", **small)
    axes.text(half, bottom + 5 * gap, "tested at n", ha="center", va="top", **small)
    axes.text(-6 * gap, bottom - half, "fitted at n", ha="right", va="center", rotation=90, **small)


def _short(scheme: str, cell: float) -> str:
    """The name of a scheme in lines that fit beside a map; what does not fit ends in dots."""
    lines = wrap(theme.shown(scheme), NAME if cell > SMALL else NARROW_NAME)
    room = max(1, int(cell / LINE))
    return "\n".join(lines if len(lines) <= room else [*lines[: room - 1], lines[room - 1] + " …"])
