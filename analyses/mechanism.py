"""Figures and tables of interventions and attributions: surgery over many runs, patching by role, relevance."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.tables import Table, of_frame
from lengthlens.errors import UserError
from lengthlens.inside.attribution import Relevance
from lengthlens.inside.healing import HEALED, IN_RANGE

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


def plot_healing(table: pd.DataFrame) -> Figure:
    """Left: exact match as runs are and with the ideal relation, by task. Right: who is healed, by the control."""
    runs = healed_runs(table)
    failing = runs[runs["own"] < HEALED]
    longest = int(runs["scale"].iloc[0])
    groups = failing["scheme"].map(theme.group)
    marks = {"label": failing["scheme"], "group": groups, "colour": groups.map(theme.colours(failing["scheme"]))}
    shown = failing.assign(**marks, task_family="position-addressed")
    with theme.style():
        figure = Figure(figsize=(theme.PAGE, 3.0), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
        tasks = theme.tasks_in_order(shown["task"])
        for place, task in enumerate(tasks):
            part = shown[shown["task"] == task].sort_values(["ideal", "own"])
            offset = np.linspace(-0.3, 0.3, len(part)) if len(part) > 1 else np.zeros(1)
            for x, (_, run) in zip(place + offset, part.iterrows()):
                colour = run["colour"]
                left.plot([x, x], [run["own"], run["ideal"]], color=colour, linewidth=0.9)
                left.plot(x, run["own"], "o", markersize=3, markerfacecolor="white", markeredgecolor=colour)
                left.plot(x, run["ideal"], "o", markersize=3.2, color=colour)
            left.text(place, 1.09, f"{int(part['healed'].sum())} of {len(part)}", ha="center", fontsize=6.5)
        left.set_xticks(range(len(tasks)), [task.replace("-", "-\n", 1) for task in tasks])
        left.set_ylim(-0.05, 1.18)
        left.set_yticks([0, 0.5, 1])
        left.set_ylabel(f"exact match at n = {longest}")
        left.set_title("open: as trained on n ≤ 10; filled: with the ideal relation", fontsize=7)
        right.set_xlim(-0.1, 1.1)
        right.set_ylim(-0.1, 1.1)
        right.axhline(HEALED, color=theme.PALE, linewidth=0.8, zorder=0)
        right.axvline(HEALED, color=theme.PALE, linewidth=0.8, zorder=0)
        theme.points(right, shown, "in_range", "ideal", ((0.0, 1.0), (0.0, 1.0)))
        right.set_xlabel("control in range:\nexact match at n = 10 with codes of n = 7")
        right.set_ylabel(f"with the ideal relation, n = {longest}")
        right.set_title("runs that fail", fontsize=7)
        figure.legend(handles=theme.family_handles(shown), loc="outside lower center", ncols=6, columnspacing=1.2)
    return figure


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


def plot_patching(table: pd.DataFrame) -> Figure:
    """A heat map for each role: effect of every head, attention layer and MLP at the query, and of the stream."""
    roles = list(dict.fromkeys(table["role"]))
    columns = [("head", "query"), ("attention", "query"), ("mlp", "query")]
    columns += [("residual", place) for place in dict.fromkeys(table[table["component"] == "residual"]["place"])]
    columns = [each for each in columns if ((table["component"] == each[0]) & (table["place"] == each[1])).any()]
    layers = int(table["layer"].max()) + 1
    names = {c: _column_names(table, *c) for c in columns}
    widths = [len(names[c]) for c in columns]
    with theme.style():
        figure = Figure(figsize=(theme.PAGE, 0.55 + len(roles) * (0.45 + 0.22 * layers)), layout="constrained")
        grid = figure.subplots(len(roles), len(columns), squeeze=False, width_ratios=[w + 0.6 for w in widths])
        for row, role in enumerate(roles):
            for column, key in enumerate(columns):
                axes, part = grid[row, column], table[table["role"] == role]
                cells = _cells(part[(part["component"] == key[0]) & (part["place"] == key[1])], layers, widths[column])
                image = axes.imshow(cells, cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto", origin="lower")
                for (y, x), value in np.ndenumerate(cells):
                    if np.isfinite(value):
                        colour = "white" if abs(value) > 0.6 else "black"
                        axes.text(
                            x,
                            y,
                            f"{round(float(value), 2) + 0.0:.2f}",
                            ha="center",
                            va="center",
                            fontsize=5.5,
                            color=colour,
                        )
                axes.set_xticks(range(widths[column]), names[key] if row == len(roles) - 1 else [])
                axes.set_yticks(range(layers), [f"layer {k}" for k in range(layers)] if column == 0 else [])
                axes.tick_params(length=0)
                if row == 0:
                    axes.set_title(
                        {"head": "heads, at the query", "residual": f"stream at\n{key[1]}"}.get(key[0], key[0])
                    )
            grid[row, 0].set_ylabel(role)
        figure.colorbar(image, ax=grid, shrink=0.8, label="effect")
    return figure


def _column_names(table: pd.DataFrame, component: str, place: str) -> list[str]:
    mine = table[(table["component"] == component) & (table["place"] == place)]
    heads = sorted(set(mine["head"]))
    return [f"H{head}" for head in heads] if component == "head" else [""]


def _cells(part: pd.DataFrame, layers: int, width: int) -> Any:
    cells = np.full((layers, width), np.nan)
    for row in part.itertuples():
        cells[int(row.layer), max(0, int(row.head))] = row.effect  # type: ignore[arg-type]
    return cells


def plot_relevance(found: Relevance, words: Sequence[str], row: int = 0, read: Sequence[int] = ()) -> Figure:
    """Relevance of each token and position of one input to the answer; keys that the circuit reads are underlined."""
    tokens = found.tokens[row].cpu().numpy()
    parts = {"tokens": tokens} | ({} if found.positions is None else {"positions": found.positions[row].cpu().numpy()})
    if len(words) != len(tokens):
        raise UserError(f"{len(words)} words were given for {len(tokens)} tokens: one for each is needed")
    most = max(float(np.abs(part).max()) for part in parts.values()) or 1.0
    with theme.style():
        width = min(theme.PAGE, max(theme.COLUMN, 0.8 + 0.26 * len(words)))
        figure = Figure(figsize=(width, 0.55 + 0.32 * len(parts)), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(np.stack(list(parts.values())), cmap=DIVERGING, vmin=-most, vmax=most, aspect="auto")
        axes.set_xticks(range(len(words)), [theme.literal(word) for word in words])
        axes.set_yticks(range(len(parts)), list(parts))
        axes.tick_params(length=0)
        for key in read:
            axes.plot([key - 0.4, key + 0.4], [len(parts) - 0.5] * 2, color="black", linewidth=2, clip_on=False)
        figure.colorbar(image, ax=axes, label=found.method)
    return figure
