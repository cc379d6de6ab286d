"""Figures of the inside of a network, drawn from the tables of `lengthlens.inside`.

Each takes, by name, `ax` (axes that you have, or a dictionary of them by the names of the panels), `width` and `height`
in inches, and `legend`; and gives the Matplotlib figure. A part of a table can be drawn, too, such as some heads:
``plot_roles(table[table["layer"] == 1], width=3.3)``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import LETTER, Canvas, drawn
from lengthlens.errors import UserError
from lengthlens.inside.attribution import Relevance
from lengthlens.inside.heads import FIRST, OTHER, HeadStatistics
from lengthlens.inside.residual import PARTS
from lengthlens.probes.network import Head, label

COLOURS = (
    theme.BLUE, theme.VERMILION, theme.GREEN, theme.PURPLE, theme.ORANGE, theme.SKY, theme.BLACK, "#B8A04A",
)  # fmt: skip
PART_COLOURS = dict(zip(PARTS, (theme.PALE, theme.BLUE, theme.ORANGE, theme.GREY)))
SHOWN = {"entropy": "entropy (nats)", "first_key": "weight on the first key", "position_share": "position share"}
CONTINUED = {
    "in_span": "in the span of training", "size": "size, training = 1",
    "same_index": "cosine at the same index", "same_from_end": "cosine as far from the end",
}  # fmt: skip
MOST_ROWS = 16  # heads with a row of panels each; of more heads, one panel each
ACROSS = 4  # panels of heads in a row
LEAST = 0.3  # inches of a small panel of a grid, which keeps its rows and columns at any width


@drawn
def plot_patterns(canvas: Canvas, statistics: Sequence[HeadStatistics], train_max: int | None = None) -> None:
    """The mean pattern of every head at the answer's queries: a row for each head, a column for each n.

    Where there are many heads, a panel for each, layers below each other, at the largest n. Panels are named
    ``L0H3, n = 10``.
    """
    layers, heads = statistics[0].pattern.shape[:2]
    every, many = [(a, b) for a in range(layers) for b in range(heads)], layers * heads > MOST_ROWS
    shown = [(head, each) for head in every for each in (statistics[-1:] if many else statistics)]
    names = [f"{label(head)}, n = {each.scale}" for head, each in shown]
    across, each_high = (heads, theme.PAGE / heads) if many else (len(statistics), 0.72)
    panels = canvas.panels(names, theme.PAGE, each_high, across=across, least=LEAST, more=0.5, most=math.inf)
    for name, (head, each) in zip(names, shown):
        if (axes := panels.get(name)) is not None:  # white is no weight, the darkest is all of it, in every panel
            pattern = each.pattern[head].numpy()
            axes.imshow(pattern, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set(visible=True, color="0.7")
            beyond = train_max is not None and each.scale > train_max
            if not canvas.own:
                axes.set_title(name)
            elif not many and head == every[0]:
                axes.set_title(f"n = {each.scale}{', beyond training' if beyond and not canvas.narrow else ''}")
            if canvas.own and not many and name in canvas.first_column:
                axes.set_ylabel(label(head), rotation=0, ha="right", va="center")
    if canvas.own:
        heads_across = f"heads; keys within each, n = {statistics[-1].scale}"
        canvas.figure.supxlabel(heads_across if many else "key; down: the answer's queries", fontsize=7)
        canvas.figure.supylabel("layers; answer queries within each" if many else "", fontsize=7)


@drawn
def plot_roles(canvas: Canvas, table: pd.DataFrame, train_max: int | None = None) -> None:
    """Attention by role against n, a panel for each head, by its name; from `attention_by_role`."""
    roles = [role for role in dict.fromkeys(table["role"]) if role not in (FIRST, OTHER)]
    looks = {role: _look(k) for k, role in enumerate(roles)}
    looks |= {FIRST: {"color": theme.BLACK, "linestyle": ":", "marker": "x"}}
    looks |= {OTHER: {"color": theme.GREY, "linestyle": "--", "marker": "."}}
    groups = {label(head): part for head, part in by_head(table)}
    wide = max(theme.PAGE * min(ACROSS, len(groups)) / ACROSS, theme.COLUMN)
    legend = [Line2D([], [], **look, label=theme.literal(role)) for role, look in looks.items()]
    panels = canvas.panels(
        list(groups), wide, 1.15, across=ACROSS, least=1.2, more=0.2, legend=legend, sharex=True, sharey=True
    )
    for name, axes in panels.items():
        axes.set_title(name)
        for role, line in groups[name].groupby("role", sort=False):
            axes.plot(line["scale"], line["weight"], **looks[str(role)], clip_on=False)
        _scales(axes, groups[name]["scale"], train_max)
        axes.set_ylim(0, 1)
    canvas.label("input size n", "weight")


@drawn
def plot_measures(canvas: Canvas, table: pd.DataFrame, train_max: int | None = None) -> None:
    """Entropy, weight on the first key and the share of positions in scores against n; from `heads`.

    Panels: entropy, first_key, position_share.
    """
    legend, many = _head_handles(table)
    panels = canvas.panels(list(SHOWN), theme.PAGE, 1.8, across=3, least=1.5, more=0.2, legend=legend)
    for measure, axes in panels.items():
        part = table[table["measure"] == measure]
        for (layer, head), line in by_head(part):
            axes.plot(line["scale"], line["value"], **_head_look(layer, head, many), clip_on=False)
        _scales(axes, part["scale"], train_max)
        axes.set_title(SHOWN[measure])
        axes.set_ylim(0, None if measure == "entropy" else 1)
        axes.set_xlabel("input size n")


@drawn
def plot_plane(canvas: Canvas, table: pd.DataFrame, train_max: int | None = None) -> None:
    """Heads in the plane of positional against symbolic; from `head_plane` or `plane_over_training`.

    The mark is the largest n in training, and the line leads to the largest n; over training, the mark is the last
    step, and the line leads to the first.
    """
    seen = table.dropna(subset=["positional", "symbolic"])
    if "step" in table:  # steps take the place of n, counted back from the last
        seen, train_max = seen.assign(scale=1 + seen["step"].max() - seen["step"]), 1
    if seen.empty:
        canvas.say("No head attends to the keys that were permuted.")
        return
    legend, many = _head_handles(table)
    first = _in_range(seen, train_max)
    wide = theme.COLUMN + 0.4
    axes = canvas.panel(wide, canvas.width(wide) - 0.1, legend=legend)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="symbolic: the pattern follows permuted contents")
    axes.set_ylabel("positional: the pattern stays where it was")
    axes.plot([0, 1], [0, 1], color="0.85", linewidth=0.8, zorder=0)
    marks = seen[seen["scale"] == first]
    aside = dict(zip(zip(marks["layer"], marks["head"]), zip(*theme.jitter(axes, len(marks)))))
    for (layer, head), line in by_head(seen[seen["scale"] >= first].sort_values("scale")):
        right, up = aside.get((layer, head), (0.0, 0.0))
        look = _head_look(layer, head, many)
        axes.plot(line["symbolic"], line["positional"], **(look | {"marker": "", "linewidth": 0.8}), clip_on=False)
        hollow = {} if line["weight"].iloc[0] >= 0.05 else {"markerfacecolor": "white"}
        x, y = line["symbolic"].iloc[0] + right, line["positional"].iloc[0] + up
        axes.plot(x, y, **(look | {"linestyle": "none"} | hollow), markersize=6, clip_on=False, zorder=3)
    axes.text(0.98, 0.93, "spreads evenly", ha="right", color="0.5", fontsize=6)
    axes.text(0.02, 0.03, "needs a content at a position", color="0.5", fontsize=6)


@drawn
def plot_scores(canvas: Canvas, table: pd.DataFrame, train_max: int | None = None) -> None:
    """What scores are made of: the share of each part, at the largest n in training; from `score_shares`."""
    at = table[table["scale"] == _in_range(table, train_max)]
    shares = at.pivot_table(index=["layer", "head"], columns="part", values="share", sort=False, dropna=False)
    shares = shares[list(dict.fromkeys(at["part"]))]
    names, wide = [label(head) for head in shares.index], theme.PAGE * 0.75
    many = len(shares.columns) > len(COLOURS)
    legend = [] if many else [Patch(color=colour, label=str(part)) for colour, part in zip(COLOURS, shares)]
    axes = canvas.panel(wide, min(0.24 * len(shares) + 0.5, 8), legend=legend)
    if many:  # many rotary pairs: a picture rather than a heap of bars
        shown = axes.imshow(shares.to_numpy(float), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        axes.set_xlabel("rotary pair, fastest first")
        canvas.figure.colorbar(shown, ax=axes, label="share of the score's variance")
    else:
        low, high = np.zeros(len(shares)), np.zeros(len(shares))
        for colour, part in zip(COLOURS, shares):
            values = np.nan_to_num(shares[part].to_numpy(float))
            start = np.where(values < 0, low, high)
            axes.barh(range(len(shares)), values, left=start, color=colour, height=0.7)
            low, high = low + np.minimum(values, 0), high + np.maximum(values, 0)
        axes.axvline(0, color="0.3", linewidth=0.6)
        axes.set_xlabel(f"share of what tells keys apart, n = {int(at['scale'].iloc[0])}")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


@drawn
def plot_residual(canvas: Canvas, table: pd.DataFrame, train_max: int | None = None) -> None:
    """Shares of the residual stream, and how its position part continues beyond training; from `residual_shares`.

    Panels: ``before layer 0`` and so on for the shares, and ``before layer 0, continued`` for the position part.
    """
    sites = {  # by name in words: "before layer 1"
        f"{'before' if hook.endswith('resid_pre') else 'after'} layer {hook.split('.')[1]}": hook
        for hook in dict.fromkeys(table["hook"])
    }
    scales, lines = sorted(set(table["scale"])), ("in_span", "same_index", "same_from_end")
    least = min(0.0, float(np.nan_to_num(table[list(lines)].to_numpy(float)).min()))
    handles: list[Any] = [Patch(color=PART_COLOURS[name], label=name) for name in PARTS]
    handles += [Line2D([], [], **_look(k), label=CONTINUED[name]) for k, name in enumerate(lines)]
    wide = max(min(theme.PAGE, 1.5 * len(sites) + 1.2), theme.COLUMN)
    names = [*sites, *(f"{site}, continued" for site in sites)]
    panels = canvas.panels(names, wide, 1.35, across=len(sites), least=0.8, more=0.2, legend=handles)
    for name, axes in panels.items():
        part = table[table["hook"] == sites[name.partition(",")[0]]].set_index("scale")
        begins = name in canvas.first_column
        if name in sites:
            bottom = np.zeros(len(scales))
            for kind in PARTS:
                axes.bar(range(len(scales)), part[kind], bottom=bottom, color=PART_COLOURS[kind], width=0.8)
                bottom = bottom + part[kind].to_numpy()
            axes.set_title(name.replace("layer", "\nlayer") if canvas.narrow else name)
            axes.set_xticks(range(len(scales)), [str(n) for n in scales])
            axes.set_ylim(0, 1)
            axes.set_ylabel("share of mean square" if begins else "")
        else:
            for place, kind in enumerate(lines):
                axes.plot(part.index, part[kind], **_look(place), clip_on=False)
            if part["in_span"].isna().all():
                where: dict[str, Any] = {"ha": "center", "va": "center", "transform": axes.transAxes}
                axes.text(0.5, 0.5, "no position\npart", **where, color="0.5")
            _scales(axes, pd.Series(scales), train_max)
            axes.set_ylim(least, 1)
            axes.set_ylabel("position part\nagainst training" if begins else "")
            axes.set_xlabel("input size n")
        if not begins:
            axes.tick_params(labelleft=False)


def by_head(table: pd.DataFrame) -> list[tuple[Head, pd.DataFrame]]:
    """The rows of each head."""
    return [((int(key[0]), int(key[1])), part) for key, part in table.groupby(["layer", "head"])]  # type: ignore[call-overload]


def _in_range(table: pd.DataFrame, train_max: int | None) -> int:
    """The largest n in training; the smallest of the table if none is."""
    return max((n for n in table["scale"] if train_max is None or n <= train_max), default=int(table["scale"].min()))


def _scales(axes: Axes, scales: "pd.Series[Any]", train_max: int | None) -> None:
    """A logarithmic axis whose ticks are the input sizes n, and the training range shaded."""
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
    by_layer = {"linestyle": theme.LINES[layer % len(theme.LINES)], "marker": theme.MARKERS[layer % len(theme.MARKERS)]}
    return {"color": COLOURS[head % len(COLOURS)], **by_layer}


def _head_handles(table: pd.DataFrame) -> tuple[list[Line2D], bool]:
    """What the legend shows, and whether heads are so many that it names layers."""
    heads = sorted(set(zip(table["layer"], table["head"])))
    if many := len(heads) > MOST_ROWS:
        layers = sorted({layer for layer, _ in heads})
        return [Line2D([], [], **_head_look(layer, 0, True), label=f"layer {layer}") for layer in layers], many
    return [Line2D([], [], **_head_look(*head, False), label=label(head)) for head in heads], many


# -- interventions and attributions ------------------------------------------------------------------------------

DIVERGING = "RdBu"  # blue carries the clean answer, red works against it


@drawn
def plot_patching(canvas: Canvas, table: pd.DataFrame) -> None:
    """A heat map for each role: effect of every head, attention layer and MLP at the query, and of the residual stream.

    Panels are named by role, component and place: ``token: head at query``.
    """
    roles = list(dict.fromkeys(table["role"]))
    parts = {(str(a), str(b)): part for (a, b), part in table.groupby(["component", "place"], sort=False)}
    columns = sorted(parts, key=lambda key: ("head", "attention", "mlp", "residual").index(key[0]))
    layers = int(table["layer"].max()) + 1
    heads = {key: [f"H{k}" if key[0] == "head" else "" for k in sorted(set(parts[key]["head"]))] for key in columns}
    where = {f"{role}: {part} at {place}": (role, (part, place)) for role in roles for part, place in columns}
    panels = canvas.panels(
        list(where), theme.PAGE, 0.45 + 0.22 * layers, across=len(columns), least=LEAST, more=0.55,
        ratios=[len(heads[key]) + 0.6 for key in columns],
    )  # fmt: skip
    for name, axes in panels.items():
        role, key = where[name]
        cells = np.full((layers, len(heads[key])), np.nan)
        for row in parts[key][parts[key]["role"] == role].itertuples():
            cells[row.layer, max(0, row.head)] = row.effect
        image = axes.imshow(cells, cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto", origin="lower")
        for (y, x), value in np.ndenumerate(cells):
            if np.isfinite(value):
                text = axes.text(x, y, f"{round(float(value), 2) + 0.0:.2f}", ha="center", va="center")
                text.set(color="white" if abs(value) > 0.6 else "black", fontsize=4 if canvas.narrow else 5.5)
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


@drawn
def plot_relevance(canvas: Canvas, result: Relevance, words: Sequence[str]) -> None:
    """Relevance of each token and position of one input, the first, to the answer."""
    tokens = result.tokens[0].cpu().numpy()
    parts = {"tokens": tokens} | ({} if result.positions is None else {"positions": result.positions[0].cpu().numpy()})
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
    canvas.figure.colorbar(image, ax=axes, label=result.method)
