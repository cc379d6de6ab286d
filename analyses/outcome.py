"""The verdict before training, all at once, and against what training gave: where they agree, and where they do not."""

import textwrap
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch, Rectangle

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas, drawn
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import FACTORS, MissingError, indices, records
from lengthlens.analyses.tables import Table, of_frame, spread

VERDICTS = list(theme.VERDICTS)
OUTCOMES = ("extrapolates", "does not extrapolate", "not accurate in range", "not evaluated")

# What contradicts a verdict. "Possible" promises no more than that positions do not stand in the way, so a run that
# was not even learnt in range is set apart from one that was, and failed beyond.
CONTRADICTIONS = {("possible", "does not extrapolate"), ("possible", "not accurate in range")}
CONTRADICTIONS |= {(verdict, "extrapolates") for verdict in ("impossible", "task-limited", "refused")}

# The picture of all verdicts.
FAMILIES = ("position-addressed", "growing", "content-addressed")
CELL_HEIGHT, CELL_WIDTH = 0.155, 0.27  # inches


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


class VerdictAndOutcome(Finding):
    name, title = "outcome", "Verdicts before training, against what training gave"
    shows = "The verdict before training against what training gave."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """The confusion table as a picture: runs by verdict (rows) and outcome (columns); contradictions are framed."""
        import seaborn

        counts = study.once(outcome).confusion
        totals = counts.sum(axis=1)
        axes = canvas.panel(theme.COLUMN, 0.85 + 0.3 * len(counts))
        names = [f"{name}\n({totals[name]} runs)" for name in counts.index]
        words = [textwrap.fill(name, 14) for name in counts.columns]
        # Colours end far above 1, so that no cell is too dark for black letters.
        look: dict[str, Any] = {"cmap": "Greys", "vmin": 0, "vmax": 2.4, "cbar": False, "linewidths": 2, "fmt": "d"}
        share = counts.div(totals.clip(lower=1), axis=0)
        seaborn.heatmap(share, ax=axes, annot=counts, xticklabels=words, yticklabels=names, **look)
        for y, verdict in enumerate(counts.index):
            for x, what in enumerate(counts.columns):
                if (verdict, what) in CONTRADICTIONS:
                    frame = Rectangle((x + 0.04, y + 0.06), 0.92, 0.88, fill=False, edgecolor=theme.VERMILION)
                    axes.add_patch(frame)
        axes.tick_params(length=0, rotation=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        axes.set_xlabel("framed: contradicts the verdict", color=theme.VERMILION, fontsize=6.5)
        axes.set_ylabel("")
        canvas.data |= {"": counts.rename_axis("verdict").reset_index()}

    def tables(self, study: Study) -> dict[str, Table]:
        result, title = study.once(outcome), "How runs ended, by the verdict on their cell"
        caption = f"Verdict before training against what training gave, in runs. {result.sentence}"
        counts = Table(caption, **of_frame(result.confusion.rename_axis("verdict").reset_index()), title=title)
        caption, title = "Every cell with runs that contradict its verdict.", "Where training and verdict differ"
        empty = "No run differs from the verdict on its cell."
        against = Table(caption, **of_frame(result.disagreements), title=title, empty=empty)
        return {"outcome": counts, "disagreements": against}


def outcome(study: Study) -> Outcome:
    """The verdict of every run's cell against what became of the run."""
    runs = study.runs.copy()
    if not (runs["verdict"] != "").any():
        raise MissingError("the table has no verdicts: `lengthlens reproduce` adds them, from `lengthlens verdict`")
    far = runs["extrapolates_2"]
    cases = [~runs["accurate"], far.isna(), far.fillna(False).astype(bool)]
    runs["outcome"] = np.select(cases, [OUTCOMES[2], OUTCOMES[3], OUTCOMES[0]], OUTCOMES[1])
    counted = pd.crosstab(runs["verdict"], runs["outcome"])
    shown = [name for name in VERDICTS if name in counted.index]
    others = [name for name in OUTCOMES[3:] if name in counted.columns]
    confusion = counted.reindex(index=shown, columns=[*OUTCOMES[:3], *others], fill_value=0)
    sided = runs[runs["verdict"].isin(VERDICTS[:3]) & runs["outcome"].isin(OUTCOMES[:2])]
    agree = (sided["verdict"] == "possible") == (sided["outcome"] == "extrapolates")
    return Outcome(confusion, disagreements(runs), int(agree.sum()), len(sided))


def disagreements(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each cell and outcome that contradicts its verdict, with the numbers of the seeds it concerns."""
    at, first, rows = [f"exact_{factor}" for factor in FACTORS], indices(runs)[:1], []
    for (task, scheme, verdict, what), part in runs.groupby(["row", "label", "verdict", "outcome"], sort=False):
        if (verdict, what) in CONTRADICTIONS:
            seeds = ", ".join(str(seed) for seed in part["seed"])
            cell = runs[(runs["row"] == task) & (runs["label"] == scheme)]
            numbers = [spread(part[name]) for name in ("in_range_exact_match", *at, *(each.index for each in first))]
            rows.append([task, scheme, verdict, what, seeds, len(cell), *numbers, part["reason"].iloc[0]])
    names = ["task", "scheme", "verdict", "outcome", "seeds", "of", "in range"]
    beyond = [f"exact match at {FACTORS[0]}×", f"at {FACTORS[1]}×", *(each.short for each in first)]
    return pd.DataFrame(rows, columns=[*names, *beyond, "reasons"])


@drawn
def plot_verdicts(canvas: Canvas, table: pd.DataFrame) -> None:
    """Tasks by schemes, from the rows of `verdict_grid`.

    Colour is the verdict. In an impossible cell the letters are the properties that fail: I (not isolated), S (not
    stable), C (not covered); a number says up to which n it is possible. A star says that another value of an option of
    the same scheme makes it possible. Signs and lightness carry the rest, so that it can be printed in grey.
    """
    import seaborn

    schemes = theme.schemes_in_order(table["scheme"])
    family = dict(zip(table["task"], table["task_family"]))
    tasks = sorted(family, key=lambda task: FAMILIES.index(family[task]))  # within each, in the order of the table
    legend = _verdict_legend(table)
    axes = canvas.panel(1.75 + CELL_WIDTH * len(tasks), 1.1 + CELL_HEIGHT * len(schemes), legend=legend)
    verdicts = dict(zip(zip(table["scheme"], table["task"]), records(table)))
    cells = [[verdicts.get((scheme, task)) for task in tasks] for scheme in schemes]
    fill = [[np.nan if cell is None else VERDICTS.index(cell["verdict"]) for cell in row] for row in cells]
    signs = {name: sign for name, (_, sign) in theme.VERDICTS.items()}

    def sign(cell: dict[str, Any] | None) -> str:
        if cell is None:
            return ""
        if pd.notna(cell.get("up_to")):
            return f"≤{cell['up_to']:.0f}"
        return (signs[cell["verdict"]] or cell["failing"]) + "*" * bool(cell["other_option"])

    text = [[sign(cell) for cell in row] for row in cells]
    look: dict[str, Any] = {"cmap": [colour for colour, _ in theme.VERDICTS.values()], "vmin": 0, "vmax": len(VERDICTS)}
    look |= {"cbar": False, "linewidths": 0.8, "fmt": "", "annot": np.array(text), "annot_kws": {"fontsize": 5}}
    seaborn.heatmap(np.array(fill), ax=axes, xticklabels=False, yticklabels=schemes, **look)
    axes.set_xticks(np.arange(len(tasks)) + 0.5, tasks, rotation=50, ha="left", rotation_mode="anchor")
    axes.tick_params(length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    possible = set(table.loc[table["verdict"] == "possible", "scheme"])
    for label in axes.get_yticklabels():
        label.set(rotation=0, fontweight="bold" if label.get_text() in possible else "normal")
    for at in _borders([family[task] for task in tasks]):
        axes.axvline(at, color="black", linewidth=0.8)
    for at in _borders([theme.family(name) for name in schemes]):
        axes.axhline(at, color="black", linewidth=0.5)
    first = table.iloc[0]
    axes.set_xlabel(f"trained up to n={first.train_max}, judged up to n={first.test_max}", labelpad=6)


def _borders(groups: list[str]) -> list[int]:
    """Where one group ends and the next begins."""
    return [k for k, (before, after) in enumerate(pairwise(groups), 1) if before != after]


def _verdict_legend(table: pd.DataFrame) -> list[Patch]:
    words = {
        "possible": "✓  possible (≤20: up to n = 20)",
        "impossible": "impossible under the embedding: I not isolated, S not stable, C not covered",
        "task-limited": "–  no program within the bounds of the search",
        "open": "?  open: it depends on training",
        "refused": "×  the scheme refuses the task",
    }
    shown = {name: text for name, text in words.items() if (table["verdict"] == name).any()}
    for name in shown.keys() & set(table.loc[table["other_option"].astype(bool), "verdict"]):
        shown[name] += " (* possible with another value of an option)"
    edge: dict[str, Any] = {"edgecolor": "0.6", "linewidth": 0.4}
    return [Patch(facecolor=theme.VERDICTS[name][0], label=text, **edge) for name, text in shown.items()]
