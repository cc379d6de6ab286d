"""Every finding as a table for people, in Markdown and in LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lengthlens.analyses import cells, learned, outcome, pola, pruning, transfer
from lengthlens.analyses.invariance import Invariance
from lengthlens.analyses.predictors import PREDICTORS
from lengthlens.analyses.statistics import interval
from lengthlens.analyses.table import FACTORS

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "ι": r"$\iota$", "φ": r"$\varphi$", "−": "$-$",
    "×": r"$\times$", "→": r"$\to$", "∞": r"$\infty$", "≤": r"$\le$", "≥": r"$\ge$", "½": r"$\frac12$", "–": "--",
    "²": "$^2$", "<": r"$<$", ">": r"$>$", "|": r"$|$",
}  # fmt: skip
WORDS = {
    "predictor": "predictor",
    "label": "predictor",
    "groups": "cells",
    "auc": "AUC",
    "spearman": "Spearman",
    "kendall": "Kendall",
    "difference": "difference of AUC",
    "balanced_accuracy": "balanced accuracy",
    "value": "value",
    "exact_2": "exact match at 2×",
    "exact_10": "at 10×",
    "iota_src": "ι of SRC",
    "iota_lrc": "ι of LRC",
    "iota_cover": "ι of cover",
    "what": "",
}


@dataclass(frozen=True)
class Table:
    """A finding: texts in rows and columns, what they are, and what to know about them."""

    caption: str
    frame: pd.DataFrame

    def markdown(self) -> str:
        """As GitHub has it.

        >>> print(Table("Numbers", pd.DataFrame({"a|b": ["1"]})).markdown())
        Numbers
        <BLANKLINE>
        | a\\|b |
        | --- |
        | 1 |
        <BLANKLINE>
        """
        head, *rows = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in self._rows()]
        lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]
        return "\n".join([self.caption, "", *lines, ""])

    def latex(self) -> str:
        """As `booktabs` has it, with a caption; needs \\usepackage{booktabs}."""
        head, *rows = [[latex_text(str(cell)) for cell in row] for row in self._rows()]
        lines = [
            r"\begin{table}",
            rf"\caption{{{latex_text(self.caption)}}}",
            rf"\begin{{tabular}}{{{'l' * len(head)}}}",
            r"\toprule",
            rf"{' & '.join(head)} \\",
            r"\midrule",
            *(rf"{' & '.join(row)} \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join([*lines, ""])

    def _rows(self) -> list[list[Any]]:
        return [list(self.frame.columns), *self.frame.to_numpy().tolist()]


def latex_text(text: str) -> str:
    """Text with all that LaTeX would take for something else written out.

    >>> latex_text("max_distance=3, ι = 0")
    'max\\\\_distance=3, $\\\\iota$ = 0'
    """
    return "".join(LATEX.get(letter, letter) for letter in text)


def shown(frame: pd.DataFrame, columns: Sequence[str], words: Mapping[str, str] = WORDS) -> pd.DataFrame:
    """The columns as texts under their names; x with x_low and x_high becomes "0.93 [0.85, 0.99]".

    >>> frame = pd.DataFrame({"auc": [0.5], "auc_low": [0.25], "auc_high": [0.75], "runs": [3]})
    >>> shown(frame, ["auc", "runs"]).to_dict("records")
    [{'AUC': '0.500 [0.250, 0.750]', 'runs': '3'}]
    """
    texts = {}
    for column in columns:
        name = words.get(column, column.replace("_", " "))
        if f"{column}_low" in frame:
            parts = zip(frame[column], frame[f"{column}_low"], frame[f"{column}_high"])
            texts[name] = [interval(*part) for part in parts]
        else:
            texts[name] = [plain(value) for value in frame[column]]
    return pd.DataFrame(texts)


def plain(value: Any) -> str:
    """A value as a text; a dash for what is missing."""
    if pd.isna(value):
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if value.is_integer() else f"{value:.3f}"


# -- findings ----------------------------------------------------------------------------------------------------


def invariance_tables(found: Invariance) -> dict[str, Table]:
    """The finding about ι, table by table."""
    labels = {name: predictor.label for name, predictor in PREDICTORS.items()}
    tables = {}
    statistics = ["auc", "spearman", "kendall", "runs", "groups", "extrapolating", "note"]
    for factor in FACTORS:
        own = found.predictors[found.predictors["factor"] == factor]
        tables[f"predictors-{factor}x"] = Table(
            f"Telling runs with exact match of at least 0.9 at {factor} × the training length from the others. "
            "Runs that are accurate in range; 95 % intervals of a bootstrap over whole cells of task and scheme.",
            shown(own, ["label", *statistics]),
        )
    tables["notes"] = Table("What to know about the numbers.", pd.DataFrame({"note": [found.headline, *found.notes]}))
    if len(found.held_out):
        tables["held-out"] = Table(
            "The same on the tasks that were held out, and on the others (2 × the training length).",
            shown(found.held_out, ["tasks", "label", *statistics]),
        )
    tables["versus"] = Table(
        "How much higher the AUC of a measure is than that of a rival, on the runs that have both.",
        shown(_named(found.versus, labels, "measure", "rival"), ["measure", "rival", "difference", "runs", "note"]),
    )
    tables["within"] = Table(
        "AUC over pairs of runs of the same task, scheme, family, verdict or cell only.",
        shown(_named(found.within, labels), ["predictor", "within", "auc", "strata", "runs", "note"]),
    )
    tables["ranks"] = Table(
        "Spearman correlation with exact match at 2 × the training length, within each task and each scheme; "
        "1 if less growth always goes with more.",
        shown(_named(found.ranks, labels), ["predictor", "by", "name", "spearman", "runs", "extrapolating", "note"]),
    )
    tables["left-out"] = Table(
        "Leave one task out: the threshold is chosen on all other tasks, and judged on this one.",
        shown(
            _named(found.left_out, labels),
            ["predictor", "task", "balanced_accuracy", "threshold", "runs", "extrapolating", "note"],
        ),
    )
    tables["added"] = Table(
        "What each measure adds to the verdict before training. Gains are of a logistic regression on verdict and ι "
        "over one on the verdict alone, fitted on all tasks but one and judged on that one; log loss in nats per run.",
        shown(_named(found.added, labels), ["predictor", "what", "value", "runs", "groups", "note"]),
    )
    tables["sensitivity"] = Table(
        "AUC of each index at each of the thresholds it was stored at.",
        shown(
            _named(found.sensitivity, labels, "measure"),
            ["measure", "threshold", "default", "auc", "runs", "extrapolating", "note"],
        ),
    )
    tables["both-ways"] = Table(
        "Cells of which some seeds extrapolate and some do not: mean index of the ones (yes) and of the others (no).",
        shown(found.both_ways, list(found.both_ways.columns)),
    )
    return tables


def _named(frame: pd.DataFrame, labels: Mapping[str, str], *columns: str) -> pd.DataFrame:
    """The frame with predictors under their labels."""
    return frame.assign(**{column: frame[column].map(labels) for column in columns or ("predictor",)})


def cells_table(table: pd.DataFrame) -> Table:
    names = [
        "task",
        "scheme",
        "verdict",
        "runs",
        "accurate",
        "exact_2",
        "exact_10",
        "iota_src",
        "iota_lrc",
        "iota_cover",
    ]
    return Table(
        "Every cell: verdict before training, exact match beyond the training range (mean over the runs that are "
        "accurate in range), and invariance indices with Student's 95 % interval over seeds.",
        shown(cells.cell_table(table), names),
    )


def outcome_tables(found: outcome.Outcome) -> dict[str, Table]:
    return {
        "outcome": Table(
            f"Verdict before training against what training gave, in runs. {found.sentence}",
            shown(found.confusion.reset_index(), ["verdict", *found.confusion.columns]),
        ),
        "disagreements": Table(
            "Every cell with runs that contradict its verdict.",
            shown(found.disagreements, list(found.disagreements.columns)),
        ),
    }


def pruning_table(table: pd.DataFrame) -> Table:
    found = pruning.cells(table)
    return Table(
        "As trained → pruned to what answers in range need, means over seeds; nothing is trained again. "
        + pruning.pruning(table).sentence,
        shown(found, list(found.columns)),
    )


def transfer_table(table: pd.DataFrame) -> Table:
    found = transfer.summary(table)
    return Table(
        "Accuracy of readouts (sequential, one layer before the last) at the scale they were fitted at, at others in "
        "range, and beyond it; runs accurate in range.",
        shown(found, list(found.columns)),
    )


def learned_table(table: pd.DataFrame) -> Table:
    return Table(
        "What `lbpe` reads after pruning, and the relation of the task's own circuit; found: seeds that read all "
        "of it.",
        shown(learned.learned(table).cells, ["task", "scheme", "circuit", "reads", "found", "seeds"]),
    )


def pola_table(table: pd.DataFrame) -> Table:
    found = pola.finding(table)
    return Table(
        "Position-only linear attention: complexity in training and at scale N, and the error at N as a share of the "
        "target's energy, as predicted and as trained.",
        shown(found, list(found.columns)),
    )
