"""Figures of what is seen inside a network, drawn from the tables of `lengthlens.inside`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lengthlens.analyses import theme
from lengthlens.errors import UserError
from lengthlens.inside.heads import FIRST, OTHER, Glance
from lengthlens.inside.residual import CONTINUATION, PARTS
from lengthlens.inside.subject import Head, label

COLOURS = (
    theme.BLUE, theme.VERMILION, theme.GREEN, theme.PURPLE, theme.ORANGE, theme.SKY, theme.BLACK, "#B8A04A",
)  # fmt: skip
PART_COLOURS = dict(zip(PARTS, (theme.PALE, theme.BLUE, theme.ORANGE, theme.GREY)))
SHOWN = {"entropy": "entropy (nats)", "first_key": "weight on the first key", "position_share": "position share"}
CONTINUED = {
    "in_span": "in the span of training", "size": "size, training = 1",
    "same_index": "cosine at the same index", "same_from_end": "cosine at the same\ndistance from the end",
}  # fmt: skip
MOST_ROWS = 16  # heads with a row of panels each; of more heads, one panel each
ACROSS = 4  # panels of heads in a row


def plot_patterns(glances: Sequence[Glance], train_max: int | None = None) -> Figure:
    """The mean pattern of every head at the answer's queries: a row for each head, a column for each scale.

    Where there are many heads, a panel for each, layers below each other, at the largest scale.
    """
    layers, heads = glances[0].pattern.shape[:2]
    if layers * heads > MOST_ROWS:
        with theme.style():
            figure = Figure(figsize=(theme.PAGE, theme.PAGE * layers / heads + 0.3), layout="constrained")
            for axes, pattern in zip(_grid(figure, layers, heads).flat, glances[-1].pattern.flatten(0, 1)):
                _pattern(axes, pattern.numpy())
            figure.supxlabel(f"heads; keys within each, n = {glances[-1].scale}", fontsize=7)
            figure.supylabel("layers; answer queries within each", fontsize=7)
        return figure
    with theme.style():
        rows = layers * heads
        figure = Figure(figsize=(theme.PAGE, 0.72 * rows + 0.6), layout="constrained")
        grid = _grid(figure, rows, len(glances))
        for row, (layer, head) in enumerate((a, b) for a in range(layers) for b in range(heads)):
            for column, each in enumerate(glances):
                _pattern(grid[row, column], each.pattern[layer, head].numpy())
                if row == 0:
                    beyond = train_max is not None and each.scale > train_max
                    grid[row, column].set_title(f"n = {each.scale}{', beyond training' if beyond else ''}")
            grid[row, 0].set_ylabel(label((layer, head)), rotation=0, ha="right", va="center")
        figure.supxlabel("key; down: the answer's queries", fontsize=7)
    return figure


def _grid(figure: Figure, rows: int, columns: int) -> Any:
    return figure.subplots(rows, columns, squeeze=False)


def _pattern(axes: Axes, weights: Any) -> None:
    """White is no weight, the darkest is all of it; the same in every panel."""
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color("0.7")


def plot_roles(table: pd.DataFrame, train_max: int | None = None) -> Figure:
    """Attention by role against the scale, a panel for each head; from `attention_by_role`."""
    _needs(table, ("layer", "head", "scale", "role", "weight"))
    roles = [role for role in dict.fromkeys(table["role"]) if role not in (FIRST, OTHER)]
    looks = {role: _look(k) for k, role in enumerate(roles)}
    looks |= {FIRST: {"color": theme.BLACK, "linestyle": ":", "marker": "x"}}
    looks |= {OTHER: {"color": theme.GREY, "linestyle": "--", "marker": "."}}
    groups = by_head(table)
    with theme.style():
        figure, grid = _panels(len(groups), legend=len(looks))
        for axes, (head, part) in zip(grid, groups):
            axes.set_title(label(head))
            for role, line in part.groupby("role", sort=False):
                axes.plot(line["scale"], line["weight"], **looks[str(role)], clip_on=False)
            _scales(axes, part["scale"], train_max)
            axes.set_ylim(0, 1)
        for axes in grid[max(0, len(groups) - ACROSS) : len(groups)]:
            axes.set_xlabel("scale n")
            axes.tick_params(labelbottom=True)
        figure.supylabel("weight", fontsize=7)
        handles = [Line2D([], [], **look, label=theme.literal(role)) for role, look in looks.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=2.8)
    return figure


def plot_measures(table: pd.DataFrame, train_max: int | None = None) -> Figure:
    """Entropy, weight on the first key and the share of positions in scores against the scale; from `heads`."""
    _needs(table, ("layer", "head", "scale", "measure", "value"))
    many = table[["layer", "head"]].drop_duplicates().shape[0] > MOST_ROWS
    with theme.style():
        figure = Figure(figsize=(theme.PAGE, 2.4), layout="constrained")
        for axes, (measure, words) in zip(figure.subplots(1, len(SHOWN)), SHOWN.items()):
            part = table[table["measure"] == measure]
            for (layer, head), line in by_head(part):
                axes.plot(line["scale"], line["value"], **_head_look(layer, head, many), clip_on=False)
            _scales(axes, part["scale"], train_max)
            axes.set_title(words)
            axes.set_ylim(0, None if measure == "entropy" else 1)
            axes.set_xlabel("scale n")
        _head_legend(figure, table, many)
    return figure


def plot_plane(table: pd.DataFrame, train_max: int | None = None) -> Figure:
    """Heads in the plane of positional against symbolic; from `head_plane` or `plane_over_training`.

    The mark is the largest scale in training, and the line leads to the largest scale; over training, the mark is the
    last step, and the line leads to the first.
    """
    _needs(table, ("layer", "head", "scale", "positional", "symbolic"))
    seen = table.dropna(subset=["positional", "symbolic"])
    if "step" in table:  # steps take the place of scales, counted back from the last
        seen, train_max = seen.assign(scale=1 + seen["step"].max() - seen["step"]), 1
    if seen.empty:
        return theme.saying("No head attends to the keys that were permuted.")
    many = table[["layer", "head"]].drop_duplicates().shape[0] > MOST_ROWS
    known = [n for n in seen["scale"] if train_max is None or n <= train_max]
    first = max(known, default=int(seen["scale"].min()))
    with theme.style():
        figure = Figure(figsize=(theme.COLUMN + 0.4, theme.COLUMN + 0.5), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color="0.85", linewidth=0.8, zorder=0)
        marks = seen[seen["scale"] == first]
        x, y = theme.spread_out(marks["symbolic"], marks["positional"], ((0.0, 1.0), (0.0, 1.0)))
        dx, dy = x - marks["symbolic"], y - marks["positional"]
        aside = dict(zip(zip(marks["layer"], marks["head"]), zip(dx, dy)))  # heads at one place beside each other
        for (layer, head), line in by_head(seen[seen["scale"] >= first].sort_values("scale")):
            right, up = aside.get((layer, head), (0.0, 0.0))
            look = _head_look(layer, head, many)
            axes.plot(line["symbolic"], line["positional"], **(look | {"marker": "", "linewidth": 0.8}), clip_on=False)
            hollow = {} if line["weight"].iloc[0] >= 0.05 else {"markerfacecolor": "white"}
            x, y = line["symbolic"].iloc[0] + right, line["positional"].iloc[0] + up
            axes.plot(x, y, **(look | {"linestyle": "none"} | hollow), markersize=6, clip_on=False, zorder=3)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="symbolic: the pattern follows permuted contents")
        axes.set_ylabel("positional: the pattern stays where it was")
        axes.text(0.98, 0.93, "spreads evenly", ha="right", color="0.5", fontsize=6)
        axes.text(0.02, 0.03, "needs a content at a position", color="0.5", fontsize=6)
        _head_legend(figure, table, many, columns=4)
    return figure


def plot_scores(table: pd.DataFrame, train_max: int | None = None) -> Figure:
    """What scores are made of: the share of each part, at the largest scale in training; from `score_shares`."""
    _needs(table, ("layer", "head", "scale", "part", "share"))
    known = [n for n in table["scale"] if train_max is None or n <= train_max]
    at = table[table["scale"] == max(known, default=int(table["scale"].min()))]
    shares = at.pivot_table(index=["layer", "head"], columns="part", values="share", sort=False, dropna=False)
    shares = shares[list(dict.fromkeys(at["part"]))]
    with theme.style():
        figure = Figure(figsize=(theme.PAGE * 0.75, min(0.24 * len(shares) + 1.1, 8)), layout="constrained")
        axes = figure.add_subplot()
        names = [label(head) for head in shares.index]
        if len(shares.columns) > len(COLOURS):  # many rotary pairs: a picture rather than a heap of bars
            shown = axes.imshow(shares.to_numpy(float), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
            axes.set_xlabel("rotary pair, fastest first")
            figure.colorbar(shown, ax=axes, label="share of the score's variance")
        else:
            low, high = np.zeros(len(shares)), np.zeros(len(shares))
            for colour, part in zip(COLOURS, shares):
                values = np.nan_to_num(shares[part].to_numpy(float))
                start = np.where(values < 0, low, high)
                axes.barh(range(len(shares)), values, left=start, color=colour, label=part, height=0.7)
                low, high = low + np.minimum(values, 0), high + np.maximum(values, 0)
            axes.axvline(0, color="0.3", linewidth=0.6)
            axes.set_xlabel(f"share of what tells keys apart, n = {int(at['scale'].iloc[0])}")
            figure.legend(loc="outside lower center", ncols=2 if len(shares.columns) > 4 else 4)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
    return figure


def plot_residual(table: pd.DataFrame, train_max: int | None = None) -> Figure:
    """Shares of the residual stream, and how its position part continues beyond training; from `residual_shares`."""
    _needs(table, ("hook", "scale", *PARTS, *CONTINUATION))
    hooks = list(dict.fromkeys(table["hook"]))
    scales = sorted(set(table["scale"]))
    least = min(0.0, float(np.nan_to_num(table[["in_span", "same_index", "same_from_end"]].to_numpy(float)).min()))
    with theme.style():
        width = min(theme.PAGE, 1.5 * len(hooks) + 1.2)
        figure = Figure(figsize=(max(width, theme.COLUMN), 3.6), layout="constrained")
        top, below = _rows(figure, len(hooks)), None
        for k, hook in enumerate(hooks):
            part, bottom = table[table["hook"] == hook].set_index("scale"), np.zeros(len(scales))
            axes = top[0, k]
            for name in PARTS:
                axes.bar(range(len(scales)), part[name], bottom=bottom, color=PART_COLOURS[name], width=0.8)
                bottom = bottom + part[name].to_numpy()
            axes.set_title(_site(hook))
            axes.set_xticks(range(len(scales)), [str(n) for n in scales])
            axes.set_ylim(0, 1)
            below = top[1, k]
            for place, name in enumerate(("in_span", "same_index", "same_from_end")):
                below.plot(part.index, part[name], **_look(place), clip_on=False)
            if part["in_span"].isna().all():
                below.text(0.5, 0.5, "no position part", ha="center", transform=below.transAxes, color="0.5")
            _scales(below, pd.Series(scales), train_max)
            below.set_ylim(least, 1)
            below.set_xlabel("scale n")
        top[0, 0].set_ylabel("share of mean square")
        top[1, 0].set_ylabel("position part\nagainst training")
        handles: list[Any] = [Patch(color=PART_COLOURS[name], label=name) for name in PARTS]
        lines = ("in_span", "same_index", "same_from_end")
        handles += [
            Line2D([], [], **_look(k), label=CONTINUED[name].replace("\n", " ")) for k, name in enumerate(lines)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def by_head(table: pd.DataFrame) -> list[tuple[Head, pd.DataFrame]]:
    """The rows of each head."""
    return [((int(key[0]), int(key[1])), part) for key, part in table.groupby(["layer", "head"])]  # type: ignore[call-overload]


def _rows(figure: Figure, columns: int) -> Any:
    return figure.subplots(2, columns, squeeze=False, sharey="row")


def _site(hook: str) -> str:
    """A hook point in words: "before layer 1"."""
    layer = hook.split(".")[1]
    return f"before layer {layer}" if hook.endswith("resid_pre") else f"behind layer {layer}"


def _panels(number: int, legend: int) -> tuple[Figure, list[Axes]]:
    across = min(ACROSS, number)
    down = math.ceil(number / across)
    height = 1.15 * down + 0.17 * math.ceil(legend / 4) + 0.35
    figure = Figure(figsize=(max(theme.PAGE * across / ACROSS, theme.COLUMN), height), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    for spare in grid[number:]:
        spare.set_axis_off()
    return figure, grid


def _scales(axes: Axes, scales: "pd.Series[Any]", train_max: int | None) -> None:
    """A logarithmic axis whose ticks are the scales, and the training range shaded."""
    listed = sorted(set(scales))
    axes.set_xscale("log")
    axes.set_xticks(listed, [str(n) for n in listed])
    axes.minorticks_off()
    if len(listed) > 1:
        axes.set_xlim(listed[0], listed[-1])
    if train_max is not None:
        axes.axvspan(listed[0], max(min(train_max, listed[-1]), listed[0]), color=theme.PALE, alpha=0.6, zorder=0, lw=0)


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "marker": theme.MARKERS[place % len(theme.MARKERS)]}


def _head_look(layer: int, head: int, many: bool) -> dict[str, Any]:
    """Colour by head and line by layer; where there are many heads, colour by layer."""
    if many:
        return {"color": COLOURS[layer % len(COLOURS)], "linewidth": 0.7, "marker": ".", "markersize": 2}
    own = {"linestyle": theme.LINES[layer % len(theme.LINES)], "marker": theme.MARKERS[layer % len(theme.MARKERS)]}
    return {"color": COLOURS[head % len(COLOURS)], **own}


def _head_legend(figure: Figure, table: pd.DataFrame, many: bool, columns: int = 8) -> None:
    heads = sorted(set(zip(table["layer"], table["head"])))
    if many:
        layers = sorted({layer for layer, _ in heads})
        handles = [Line2D([], [], **_head_look(layer, 0, True), label=f"layer {layer}") for layer in layers]
    else:
        handles = [Line2D([], [], **_head_look(*head, False), label=label(head)) for head in heads]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.4)


def _needs(table: pd.DataFrame, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in table:
            raise UserError(f"the table has no column '{column}': it has {', '.join(map(str, table))}")
