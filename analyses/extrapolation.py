"""Exact match against length: the figure that shows whether a model goes beyond what it was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure


def plot_exact_match(rows: Sequence[Mapping[str, Any]], train_max: int, title: str) -> Figure:
    """Exact match with its interval, with and without the end token; the training range is shaded.

    `rows` as `lengthlens evaluate --json` prints them; lengths that the scheme cannot process are left out.
    """
    scored = sorted((row for row in rows if not row.get("reason")), key=lambda row: row["length"])
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    lengths = [row["length"] for row in scored]
    axes.axvspan(min([1, *lengths]), train_max, color="0.92", label=f"trained on (n ≤ {train_max})")
    axes.fill_between(
        lengths,
        [row["exact_match_low"] for row in scored],
        [row["exact_match_high"] for row in scored],
        alpha=0.25,
    )
    axes.plot(lengths, [row["exact_match"] for row in scored], marker="o", label="exact match")
    axes.plot(lengths, [row["exact_match_no_end"] for row in scored], "--", label="without the end token")
    axes.set(xlabel="length n", ylabel="exact match", ylim=(-0.03, 1.03), xscale="log", title=title)
    axes.legend(frameon=False)
    return figure
