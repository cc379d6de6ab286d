"""The picture of all verdicts: tasks by schemes."""

from itertools import groupby

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lengthlens.analyses import theme

FAMILIES = ("position-addressed", "growing", "content-addressed")
ROW, COLUMN = 0.155, 0.27  # inches of a cell


def plot(table: pd.DataFrame) -> Figure:
    """Tasks by schemes, from the rows of `verdict_grid`.

    Colour is the verdict. In a pe-limited cell the letters are the properties that fail: I (not isolated), S (not
    stable), C (not covered), with a star where another value of an option of the same scheme makes it possible. Signs
    and lightness carry the rest, so that it can be printed in grey.
    """
    schemes = theme.in_order(table["scheme"])
    tasks = _tasks(table)
    with theme.style():
        size = (1.75 + COLUMN * len(tasks), 1.7 + ROW * len(schemes))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        for row in table.itertuples():
            failing = f"{row.failing}*" if row.other_option else str(row.failing)
            _cell(axes, tasks.index(str(row.task)), schemes.index(str(row.scheme)), str(row.verdict), failing)
        _frame(axes, table, tasks, schemes)
        first = table.iloc[0]
        axes.set_xlabel(f"trained up to n={first.train_max}, judged up to n={first.test_max}", labelpad=6)
        figure.legend(handles=_legend(table), loc="outside lower center", ncols=2, handlelength=1.4)
    return figure


def _tasks(table: pd.DataFrame) -> list[str]:
    """Tasks by family, in the order of the table within each."""
    family = dict(zip(table["task"], table["task_family"]))
    return sorted(family, key=lambda task: FAMILIES.index(family[task]))


def _cell(axes: Axes, x: int, y: int, verdict: str, failing: str) -> None:
    fill, ink, sign = theme.VERDICTS[verdict]
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="white", linewidth=0.8))
    text = failing if verdict == "pe-limited" else sign
    axes.text(x + 0.5, y + 0.53, text, color=ink, ha="center", va="center", fontsize=5)


def _frame(axes: Axes, table: pd.DataFrame, tasks: list[str], schemes: list[str]) -> None:
    axes.set_xlim(0, len(tasks))
    axes.set_ylim(len(schemes), 0)
    axes.set_xticks([k + 0.5 for k in range(len(tasks))], tasks, rotation=50, ha="left", rotation_mode="anchor")
    axes.set_yticks([k + 0.5 for k in range(len(schemes))], schemes)
    axes.tick_params(length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)
    for label, name in zip(axes.get_yticklabels(), schemes):
        label.set_fontweight("bold" if (table[table["scheme"] == name]["verdict"] == "possible").any() else "normal")
    family = dict(zip(table["task"], table["task_family"]))
    for at in _borders([family[task] for task in tasks]):
        axes.axvline(at, color="black", linewidth=0.8)
    for at in _borders([theme.family(name) for name in schemes]):
        axes.axhline(at, color="black", linewidth=0.5)


def _borders(groups: list[str]) -> list[int]:
    """Where one group ends and the next begins."""
    sizes = [len(list(members)) for _, members in groupby(groups)]
    return [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]


def _legend(table: pd.DataFrame) -> list[Patch]:
    words = {
        "possible": "✓  possible",
        "pe-limited": "limited by the embedding: I not isolated, S not stable, C not covered\n"
        "(* possible with another value of its clip)",
        "task-limited": "–  limited by the task: its complexity grows",
        "content-addressed": "·  sources follow from content, not position",
        "refused": "×  the scheme refuses the task",
    }
    shown = [name for name in words if (table["verdict"] == name).any()]
    return [
        Patch(facecolor=theme.VERDICTS[name][0], edgecolor="0.6", linewidth=0.4, label=words[name]) for name in shown
    ]
