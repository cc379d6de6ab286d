"""Figures and tables of interventions and attributions: surgery over many runs, patching by role, relevance."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import LETTER, Canvas, drawn, legend_height
from lengthlens.analyses.inside import LEAST
from lengthlens.analyses.tables import Table, of_frame
from lengthlens.errors import UserError
from lengthlens.inside.attribution import Relevance
from lengthlens.probes.surgery import HEALED, IN_RANGE

DIVERGING = "RdBu"  # blue carries the clean answer, red works against it


def healed_runs(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each run of a study of surgery: its exact match under each surgery at the largest scale.

    Columns besides those of the run: own, ideal, ideal_one, displaced, none, in_range, healed, cause.
    """
    known = table[table["reason"] == ""]
    if known.empty:
        raise UserError("the table has no run with an ideal relation: nothing to show")
    longest = int(known["scale"].max())
    at = known[(known["scale"] == longest) | (known["surgery"] == IN_RANGE)]
    about = ["run", "task", "scheme", "seed", "cause"]
    wide = at.pivot(index=about, columns="surgery", values="exact_match").reset_index()
    names = {"ideal, others as one": "ideal_one", IN_RANGE: "in_range"}
    wide = wide.rename(columns=names).rename_axis(columns=None).assign(scale=longest)
    return wide.assign(healed=(wide["own"] < HEALED) & (wide["ideal"] >= HEALED))


@drawn
def plot_healing(canvas: Canvas, table: pd.DataFrame) -> None:
    """Which failing runs the ideal relation heals.

    Panels: `tasks`, exact match as runs are and with the ideal relation, by task; `control`, the same by the control in
    range.
    """
    runs = healed_runs(table)
    failing = runs[runs["own"] < HEALED]
    longest = int(runs["scale"].iloc[0])
    groups = failing["scheme"].map(theme.group)
    marks = {"label": failing["scheme"], "group": groups, "colour": groups.map(theme.colours(failing["scheme"]))}
    shown = failing.assign(**marks, task_family="position-addressed")
    handles = theme.family_handles(shown)
    below = legend_height([str(each.get_label()) for each in handles], canvas.width(theme.PAGE))
    panels = canvas.panels(
        ["tasks", "control"], theme.PAGE, 2.55, across=2, least=2.5, more=below + 0.1, ratios=[1.25, 1]
    )
    if "tasks" in panels:
        _by_task(panels["tasks"], shown, longest, canvas.narrow)
    if "control" in panels:
        axes = panels["control"]
        axes.set_xlim(-0.1, 1.1)
        axes.set_ylim(-0.1, 1.1)
        axes.axhline(HEALED, color=theme.PALE, linewidth=0.8, zorder=0)
        axes.axvline(HEALED, color=theme.PALE, linewidth=0.8, zorder=0)
        theme.points(axes, shown, "in_range", "ideal", ((0.0, 1.0), (0.0, 1.0)))
        axes.set_xlabel("control in range:\nexact match at n = 10 with codes of n = 7")
        axes.set_ylabel(f"with the ideal relation, n = {longest}")
        axes.set_title("runs that fail", fontsize=7)
    canvas.legend(handles)


def _by_task(axes: Axes, shown: pd.DataFrame, longest: int, narrow: bool) -> None:
    tasks = theme.tasks_in_order(shown["task"])
    for place, task in enumerate(tasks):
        part = shown[shown["task"] == task].sort_values(["ideal", "own"])
        offset = np.linspace(-0.3, 0.3, len(part)) if len(part) > 1 else np.zeros(1)
        for x, (_, run) in zip(place + offset, part.iterrows()):
            colour = run["colour"]
            axes.plot([x, x], [run["own"], run["ideal"]], color=colour, linewidth=0.9)
            axes.plot(x, run["own"], "o", markersize=3, markerfacecolor="white", markeredgecolor=colour)
            axes.plot(x, run["ideal"], "o", markersize=3.2, color=colour)
        axes.text(place, 1.09, f"{int(part['healed'].sum())} of {len(part)}", ha="center", fontsize=6.5)
    axes.set_xticks(range(len(tasks)), [task.replace("-", "-\n", 2 if narrow else 1) for task in tasks])
    axes.set_ylim(-0.05, 1.18)
    axes.set_yticks([0, 0.5, 1])
    axes.set_ylabel(f"exact match at n = {longest}")
    axes.set_title("open: as trained on n ≤ 10; filled: with the ideal relation", fontsize=7)


def healing_tables(table: pd.DataFrame) -> dict[str, Table]:
    """By the control in range, and run by run."""
    runs = healed_runs(table)
    failing = runs[runs["own"] < HEALED]
    kinds = failing.assign(control=np.where(failing["in_range"] >= HEALED, "unharmed in range", "harmed in range"))
    rows = []
    for (control, cause), part in kinds.groupby(["control", "cause"]):
        about = {"control": control, "cause": cause or "–", "runs": len(part), "healed": int(part["healed"].sum())}
        as_one = {"healed_as_one": int((part["ideal_one"] >= HEALED).sum())}
        rows.append({**about, **as_one, "displaced": int((part["displaced"] >= HEALED).sum())})
    words = {"cause": "cause by stretching", "healed_as_one": "healed, others as one", "displaced": "healed, displaced"}
    count = f"Runs that are accurate on n ≤ 10 and fail at n = {int(runs['scale'].iloc[0])}"
    summary = Table(f"{count}: which the ideal relation heals.", **of_frame(pd.DataFrame(rows), **words))
    columns = ["task", "scheme", "seed", "own", "ideal", "ideal_one", "displaced", "none", "in_range", "cause"]
    each = runs[columns].sort_values(["task", "scheme", "seed"])
    also = {"ideal_one": "ideal, others as one", "in_range": "borrowed in range"}
    return {
        "healing": summary,
        "healing-runs": Table("Exact match at the largest scale under each surgery.", **of_frame(each, **also)),
    }


@drawn
def plot_patching(canvas: Canvas, table: pd.DataFrame) -> None:
    """A heat map for each role: effect of every head, attention layer and MLP at the query, and of the stream.

    Panels are named by role, component and place: ``token: head at query``.
    """
    roles = list(dict.fromkeys(table["role"]))
    columns = [("head", "query"), ("attention", "query"), ("mlp", "query")]
    columns += [("residual", place) for place in dict.fromkeys(table[table["component"] == "residual"]["place"])]
    columns = [each for each in columns if ((table["component"] == each[0]) & (table["place"] == each[1])).any()]
    layers = int(table["layer"].max()) + 1
    heads = {key: _column_names(table, *key) for key in columns}
    where = {f"{role}: {part} at {place}": (role, (part, place)) for role in roles for part, place in columns}
    panels = canvas.panels(
        list(where), theme.PAGE, 0.45 + 0.22 * layers, across=len(columns), least=LEAST, more=0.55,
        ratios=[len(heads[key]) + 0.6 for key in columns],
    )  # fmt: skip
    for name, axes in panels.items():
        role, key = where[name]
        part = table[(table["role"] == role) & (table["component"] == key[0]) & (table["place"] == key[1])]
        cells = _cells(part, layers, len(heads[key]))
        image = axes.imshow(cells, cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto", origin="lower")
        for (y, x), value in np.ndenumerate(cells):
            if np.isfinite(value):
                look: dict[str, Any] = {
                    "color": "white" if abs(value) > 0.6 else "black",
                    "fontsize": 4 if canvas.narrow else 5.5,
                }
                axes.text(x, y, f"{round(float(value), 2) + 0.0:.2f}", ha="center", va="center", **look)
        last, first = name in canvas.last_row, name in canvas.first_column
        axes.set_xticks(range(len(heads[key])), heads[key] if last else [])
        axes.set_yticks(range(layers), [f"layer {k}" for k in range(layers)] if first else [])
        axes.tick_params(length=0)
        if role == roles[0] or not canvas.own:
            turned: dict[str, Any] = {"rotation": 90, "fontsize": 6} if canvas.narrow else {}
            axes.set_title(
                {"head": "heads, at\nthe query", "residual": f"stream at\n{key[1]}"}.get(key[0], key[0]), **turned
            )
        if first:
            axes.set_ylabel(role)
    if canvas.own:
        canvas.figure.colorbar(image, ax=list(panels.values()), shrink=0.8, label="effect")


def _column_names(table: pd.DataFrame, component: str, place: str) -> list[str]:
    mine = table[(table["component"] == component) & (table["place"] == place)]
    heads = sorted(set(mine["head"]))
    return [f"H{head}" for head in heads] if component == "head" else [""]


def _cells(part: pd.DataFrame, layers: int, width: int) -> Any:
    cells = np.full((layers, width), np.nan)
    for row in part.itertuples():
        cells[int(row.layer), max(0, int(row.head))] = row.effect  # type: ignore[arg-type]
    return cells


@drawn
def plot_relevance(canvas: Canvas, found: Relevance, words: Sequence[str]) -> None:
    """Relevance of each token and position of one input, the first, to the answer."""
    tokens = found.tokens[0].cpu().numpy()
    parts = {"tokens": tokens} | ({} if found.positions is None else {"positions": found.positions[0].cpu().numpy()})
    if len(words) != len(tokens):
        raise UserError(f"{len(words)} words were given for {len(tokens)} tokens: one for each is needed")
    most = max(float(np.abs(part).max()) for part in parts.values()) or 1.0
    wide = min(theme.PAGE, max(theme.COLUMN, 0.8 + 0.26 * len(words)))
    axes = canvas.panel(wide, 0.55 + 0.32 * len(parts))
    image = axes.imshow(np.stack(list(parts.values())), cmap=DIVERGING, vmin=-most, vmax=most, aspect="auto")
    fits = (canvas.width(wide) - 1.2) / len(words) / LETTER  # letters of 7 points between two words
    size = min(7.0, 7 * fits / max(len(word) for word in words))
    axes.set_xticks(range(len(words)), [theme.literal(word) for word in words], fontsize=max(size, 4))
    axes.set_yticks(range(len(parts)), list(parts))
    axes.tick_params(length=0)
    canvas.figure.colorbar(image, ax=axes, label=found.method)
