"""Draws the pictures of README and concepts, from the committed study and the package: python docs/images/draw.py"""

import sys
import textwrap
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import lengthlens as ll
from lengthlens.analyses import theme
from lengthlens.analyses.table import read_study

HERE = Path(__file__).resolve().parent
STUDY = HERE.parent.parent / "figures/study/study.parquet"
SHOWN = {"lbpe": theme.GREEN, "rope": theme.VERMILION}
TITLES = (
    ("1  A task", "whose answer and every step to it are known exactly"),
    ("2  A network", "learns it on short inputs, n ≤ 10, with some position embedding"),
    ("3  Probes", "count, on those inputs, how many operators it uses as n grows"),
    ("4  A finding", "growth on short inputs goes with failure on longer ones"),
)
RC = {"svg.fonttype": "path", "svg.hashsalt": "lengthlens", "font.family": "DejaVu Sans", "font.size": 8.5}


def draw() -> Figure:
    figure = Figure(figsize=(11, 3.35), facecolor="white")
    for k, (title, words) in enumerate(TITLES):
        left = 0.008 + k * 0.25
        box = FancyBboxPatch(
            (left, 0.03), 0.226, 0.94, boxstyle="round,pad=0,rounding_size=0.012", facecolor="#f6f7f9",
            edgecolor="#c9cdd3", linewidth=1, transform=figure.transFigure, zorder=-1,
        )  # fmt: skip
        figure.add_artist(box)
        figure.text(left + 0.012, 0.88, title, fontsize=12, weight="bold", color="#1d2733")
        lines = wrapped(words, 34)
        figure.text(left + 0.012, 0.845, lines, fontsize=8.5, va="top", color="#46515e", linespacing=1.35)
        if k:
            arrow = {"arrowstyle": "-|>", "mutation_scale": 16, "color": "#1d2733", "linewidth": 1.6}
            figure.add_artist(FancyArrowPatch((left - 0.024, 0.5), (left, 0.5), transform=figure.transFigure, **arrow))
    task(figure.add_axes((0.012, 0.1, 0.218, 0.55), facecolor="none"))
    network(figure.add_axes((0.305, 0.13, 0.15, 0.5), facecolor="none"))
    table = read_study(STUDY)[0]
    table = table[(table["task"] == "copy") & table["scheme"].isin(SHOWN)]
    growth(figure.add_axes((0.556, 0.21, 0.16, 0.42), facecolor="none"), table)
    finding(figure.add_axes((0.806, 0.21, 0.165, 0.42), facecolor="none"), table)
    return figure


def wrapped(words: str, width: int) -> str:
    return "\n".join(textwrap.wrap(words, width))


def task(axes) -> None:
    """An instance of copy, and which token each step of the answer reads."""
    tokens = "^ 7 3 5 = 7 3 5 $".split()
    for k, token in enumerate(tokens):
        axes.text(k, 0, token, ha="center", va="center", fontsize=13, color="#1d2733" if k < 5 else theme.BLUE)
    for step in ll.TASKS["copy"].circuit(3):
        own = step.query == 5
        axes.add_patch(
            FancyArrowPatch(
                (step.sources[0], 0.5), (step.query + 1, 0.5), connectionstyle="arc3,rad=-0.5", arrowstyle="-|>",
                mutation_scale=9, linewidth=1.8 if own else 1.0, color=theme.BLUE if own else "#b3bac3", zorder=2 + own,
            )
        )  # fmt: skip
    words = "copy, n = 3: every step reads the token\nn before its query (the last token so far)"
    axes.text(4, -1.15, words, ha="center", va="top", fontsize=8)
    axes.set(xlim=(-0.7, 8.7), ylim=(-3, 2.6))
    axes.axis("off")


def network(axes) -> None:
    """The attention of a trained head: the strongest of the model that the package brings."""
    model = ll.load("copy/lbpe")
    text = "^ 7 3 5 1 8 = 7 3 5 1 8 $"
    with torch.no_grad():
        _, cache = model.run_with_cache(text)
    heads = [cache["pattern", layer][0] for layer in range(model.cfg.n_layers)]
    strongest = max(
        (head for layer in heads for head in layer), key=lambda head: float(head[6:12, 1:7].diagonal().mean())
    )
    tokens = text.split()
    axes.imshow(strongest.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(tokens)), tokens, fontsize=6.5)
    axes.set_yticks(range(len(tokens)), tokens, fontsize=6.5)
    axes.set_xlabel("attends to")
    axes.set_ylabel("at this token")
    axes.tick_params(length=0, pad=1)


def growth(axes, table) -> None:
    """Measured SRC of three seeds each, with the default thresholds."""
    rows = table[(table["measure"] == "src") & table["head"].isna()]
    for scheme, colour in SHOWN.items():
        for _, run in rows[rows["scheme"] == scheme].groupby("run"):
            run = run.sort_values("scale")
            axes.plot(run["scale"].astype(int), run["value"], color=colour, linewidth=1.4, alpha=0.85)
    axes.set(xlabel="n, inside the training range", ylabel="measured operators", xlim=(1, 10), ylim=(0, None))
    axes.text(6.8, axes.get_ylim()[1] * 0.7, "rope", color=SHOWN["rope"], ha="right", weight="bold")
    axes.text(9.8, axes.get_ylim()[1] * 0.1, "lbpe", color=SHOWN["lbpe"], ha="right", weight="bold")
    clean(axes)


def finding(axes, table) -> None:
    """Exact match of the same runs, inside the training range and beyond."""
    rows = table[table["measure"] == "exact_match"]
    axes.axvspan(1, 10, color="#e4e8ee", linewidth=0)
    for scheme, colour in SHOWN.items():
        for _, run in rows[rows["scheme"] == scheme].groupby("run"):
            run = run.sort_values("scale")
            axes.plot(run["scale"].astype(int), run["value"], color=colour, linewidth=1.4, alpha=0.85)
    axes.set_xscale("log")
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set(xlabel="n", ylabel="exact match", xlim=(1, 100), ylim=(-0.03, 1.05))
    axes.text(3.1, 0.5, "training", ha="center", color="#46515e")
    axes.text(70, 0.87, "lbpe", color=SHOWN["lbpe"], ha="right", weight="bold")
    axes.text(70, 0.08, "rope", color=SHOWN["rope"], ha="right", weight="bold")
    clean(axes)


def clean(axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=7.5)


if __name__ == "__main__":
    with mpl.rc_context(RC):
        figure = draw()
        figure.savefig(HERE / "how-it-works.svg", metadata={"Date": None})
    sys.path.insert(0, str(HERE.parent))
    import generate

    for scheme in ("rope", "ideal"):
        generate.save(generate.draw_relation(scheme), HERE / f"relation-{scheme}.svg")
    generate.save(generate.draw_circuit(ll.TASKS["parity-cot"]), HERE / "circuit-parity-cot.svg")
