"""The verdict before training against what training gave: where they agree, and every case where they do not."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lengthlens.analyses import theme
from lengthlens.analyses.statistics import spread
from lengthlens.analyses.table import MissingError, per_run

VERDICTS = ("possible", "pe-limited", "task-limited", "content-addressed", "refused")
OUTCOMES = ("extrapolates", "does not extrapolate", "not accurate in range", "not evaluated")

# What contradicts a verdict. "Possible" promises no more than that positions do not stand in the way, so a run that
# was not even learnt in range is set apart from one that was, and failed beyond.
CONTRADICTIONS = {
    ("possible", "does not extrapolate"),
    ("possible", "not accurate in range"),
    ("pe-limited", "extrapolates"),
    ("task-limited", "extrapolates"),
    ("refused", "extrapolates"),
}


@dataclass(frozen=True)
class Outcome:
    """The finding: how often each outcome followed each verdict, counted in runs, and the cells that disagree."""

    confusion: pd.DataFrame  # verdict × outcome, runs
    disagreements: pd.DataFrame  # one row for each task, scheme and outcome that contradicts the verdict
    agreeing: int  # runs whose outcome is the one that the verdict named
    judged: int  # runs on which the verdict took a side and that were accurate in range

    @property
    def sentence(self) -> str:
        if not self.judged:
            return "No run that is accurate in range has a verdict that takes a side."
        return (
            f"Of {self.judged} runs that are accurate in range and whose verdict takes a side, {self.agreeing} "
            f"({self.agreeing / self.judged:.0%}) did what it said; {len(self.disagreements)} times runs of a cell did "
            "not, or were not learnt in range although the verdict is possible."
        )


def outcome(table: pd.DataFrame) -> Outcome:
    """The verdict of every run's cell against what became of the run."""
    runs = per_run(table)
    if not (runs["verdict"] != "").any():
        raise MissingError("the table has no verdicts: `lengthlens reproduce` adds them, from `lengthlens verdict`")
    runs["outcome"] = list(map(_outcome, runs["accurate"], runs["extrapolates_2"]))
    counted = pd.crosstab(runs["verdict"], runs["outcome"])
    shown = [name for name in VERDICTS if name in counted.index]
    others = [name for name in OUTCOMES[3:] if name in counted.columns]
    confusion = counted.reindex(index=shown, columns=[*OUTCOMES[:3], *others], fill_value=0)
    sided = runs[runs["verdict"].isin(VERDICTS[:3]) & runs["outcome"].isin(OUTCOMES[:2])]
    agree = (sided["verdict"] == "possible") == (sided["outcome"] == "extrapolates")
    return Outcome(confusion, disagreements(runs), int(agree.sum()), len(sided))


def _outcome(accurate: bool, extrapolates: bool | None) -> str:
    if not accurate:
        return "not accurate in range"
    if pd.isna(extrapolates):
        return "not evaluated"
    return "extrapolates" if extrapolates else "does not extrapolate"


def disagreements(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each cell and outcome that contradicts its verdict, with the numbers of the seeds it concerns."""
    rows = []
    for (task, scheme, verdict, what), part in runs.groupby(["task", "scheme", "verdict", "outcome"], sort=False):
        if (verdict, what) not in CONTRADICTIONS:
            continue
        cell = runs[(runs["task"] == task) & (runs["scheme"] == scheme)]
        rows.append(
            {
                "task": task,
                "scheme": scheme,
                "verdict": verdict,
                "outcome": what,
                "seeds": ", ".join(str(seed) for seed in part["seed"]),
                "of": len(cell),
                "in range": spread(part["in_range_exact_match"]),
                "exact match at 2×": spread(part["exact_2"]),
                "at 10×": spread(part["exact_10"]),
                "ι of SRC": spread(part["iota_src"]),
                "reasons": part["reason"].iloc[0],
            }
        )
    names = ["task", "scheme", "verdict", "outcome", "seeds", "of", "in range", "exact match at 2×", "at 10×"]
    return pd.DataFrame(rows, columns=[*names, "ι of SRC", "reasons"])


def plot(table: pd.DataFrame) -> Figure:
    """The confusion table as a picture: runs by verdict (rows) and outcome (columns); contradictions are framed."""
    found = outcome(table).confusion
    share = found.div(found.sum(axis=1).clip(lower=1), axis=0)
    with theme.style():
        height = 0.85 + 0.3 * len(found)
        figure = Figure(figsize=(theme.COLUMN, height), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow(share.to_numpy(float), cmap="Greys", vmin=0, vmax=2.4, aspect="auto")  # never too dark for black
        for y, verdict in enumerate(found.index):
            for x, what in enumerate(found.columns):
                count = int(found.loc[verdict, what])
                axes.text(x, y, str(count), ha="center", va="center", color="black" if count else "0.6")
                if (verdict, what) in CONTRADICTIONS:
                    frame = Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False, edgecolor=theme.VERMILION)
                    axes.add_patch(frame)
        words = [name.replace("does not ", "does not\n").replace(" in range", "\nin range") for name in found.columns]
        axes.set_xticks(np.arange(len(words)), words)
        totals = found.sum(axis=1)
        axes.set_yticks(np.arange(len(found)), [f"{name}\n({totals[name]} runs)" for name in found.index])
        axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_xlabel("framed: contradicts the verdict", color=theme.VERMILION, fontsize=6.5)
    return figure
