"""The record table to read: as Markdown for a README, as LaTeX for a paper, as cells for a terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lengthlens.analyses.records import PUBLISHED, finding, goals, number
from lengthlens.runs.record_grid import GOAL, GOAL_SCHEME, HOPELESS, SEEDS

SHOWN = (20, 100, 1000, 10_000)  # lengths with a column of their own; the csv has all
NOTHING = "–"

Cells = dict[str, str]


def share(value: float) -> str:
    """A share to three digits, never rounded up to one that was not reached.

    >>> share(1.0), share(0.9996), share(0.3333), share(0.0)
    ('1.000', '0.999', '0.333', '0.000')
    """
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def spread(median: float, worst: float) -> str:
    """Median, and the worst seed behind it where it differs.

    >>> spread(1.0, 0.97), spread(1.0, 1.0)
    ('1.000 (0.970)', '1.000')
    """
    return share(median) if share(worst) == share(median) else f"{share(median)} ({share(worst)})"


def score_cell(row: Mapping[Any, Any]) -> str:
    """What one task and scheme scored at one length, from a row of `records`."""
    if row["seeds"] == 0:
        return NOTHING
    failed = row["median"] == 0 and row["outcome"] in ("refused", "diverged")
    text = row["outcome"] if failed else spread(row["median"], row["worst"])
    return _of(text, row["seeds"], row["trained"])


def _of(text: str, seeds: int, expected: int) -> str:
    """The text, with the number of seeds behind it if some are still missing."""
    return text if seeds == expected else f"{text}, {seeds} seed{'s' if seeds > 1 else ''}"


def in_range_cell(row: Mapping[Any, Any]) -> str:
    """In-range exact match; a scheme that is not accurate there says with how many seeds it is."""
    if row["trained"] == 0:
        return "not trained"
    text = spread(row["in_range_median"], row["in_range_worst"])
    if row["accurate"] < row["trained"]:
        text = f"{text}, accurate {row['accurate']}/{row['trained']}"
    return _of(text, row["trained"], row["planned"])


def cells(chosen: pd.DataFrame) -> list[Cells]:
    """One row for each task and scheme, from `records`, few columns."""
    lengths = shown(chosen)
    far = [n for n in lengths if n >= 1000] or lengths[-1:]
    return [_line(rows, lengths, far) for _, rows in chosen.groupby(["task", "scheme"], sort=False)]


def shown(chosen: pd.DataFrame) -> list[int]:
    """The lengths with a column: those of `SHOWN`, or all where there is none of them."""
    lengths = sorted(int(n) for n in chosen["length"].unique())
    return [n for n in lengths if n in SHOWN] or lengths


def _line(rows: pd.DataFrame, lengths: Sequence[int], far: Sequence[int]) -> Cells:
    found = {int(row["length"]): row for row in rows.to_dict("records")}
    first = rows.to_dict("records")[0]
    reached = [f"{found[n]['exact']}/{found[n]['seeds']}" for n in far if n in found and found[n]["seeds"]]
    return {
        "task": first["task"],
        "scheme": first["scheme"],
        "scores": scaling_cell(first),
        "in range": in_range_cell(first),
        **{f"n = {number(n)}": score_cell(found[n]) if n in found else "" for n in lengths},
        f"seeds ≥ {GOAL} at {', '.join(map(number, far))}": ", ".join(reached) or NOTHING,
        "training": training_cell(first),
    }


def scaling_cell(row: Mapping[Any, Any]) -> str:
    """Which scaling of scores is shown; in brackets where the other has not been run."""
    texts = {0: NOTHING, 1: f"({row['score_scaling']})"}
    return texts.get(row["compared"], str(row["score_scaling"]))


def training_cell(row: Mapping[Any, Any]) -> str:
    return NOTHING if row["trained"] == 0 else f"{row['steps']:.0f} steps, {row['seconds']:.0f} s"


def goal_cells(chosen: pd.DataFrame) -> list[Cells]:
    """One row for each goal."""
    return [
        {
            "task": row["task"],
            "goal": f"≥ {GOAL} at n = {number(row['length'])}",
            "median (worst)": spread(row["median"], row["worst"]) if row["seeds"] else NOTHING,
            "95 % interval of the worst": NOTHING
            if pd.isna(row["low"])
            else f"{share(row['low'])} to {share(row['high'])}",
            "instances": samples_cell(row),
            "seeds": f"{row['exact']} of {row['seeds']}",
            "": row["state"],
        }
        for row in goals(chosen).to_dict("records")
    ]


def samples_cell(row: Mapping[Any, Any]) -> str:
    """How many instances each score is of."""
    if pd.isna(row["most_samples"]):
        return NOTHING
    least, most = int(row["least_samples"]), int(row["most_samples"])
    return number(most) if least == most else f"{number(least)} to {number(most)}"


def samples_words(chosen: pd.DataFrame) -> str:
    """How many instances of each length there were: "1000 at n = 20, 20 to 200 at n = 1000"."""
    groups = chosen[chosen["most_samples"].notna()].groupby("length")
    found = groups.agg(least_samples=("least_samples", "min"), most_samples=("most_samples", "max"))
    rows = found.reset_index().to_dict("records")
    return ", ".join(f"{samples_cell(row)} at n = {number(row['length'])}" for row in rows)


def notes(chosen: pd.DataFrame, train_max: int, machine: str) -> list[str]:
    """How to read the table, a sentence each."""
    return [
        f"Trained on n ≤ {train_max} with one recipe for all; exact match of the whole answer, end token included.",
        "Each score is the median over the seeds, with the worst seed in brackets where it differs; "
        "“in range” is the mean over the training lengths.",
        f"Instances for each run: {samples_words(chosen)}; a run with none right at a shorter length is given "
        f"{HOPELESS:.0%} of them.",
        "“scores” is how attention scores were scaled: by the logarithm of the length (log) or not (none), whichever "
        "has the better median at the longest length that both have; in brackets where only one has been run.",
        "A seed whose training diverged or whose scheme cannot process a length counts as 0.",
        f"Steps and seconds are medians for one run on one core; table made on a machine with {machine}.",
    ]


# -- Markdown ----------------------------------------------------------------------------------------------------


def markdown(chosen: pd.DataFrame, train_max: int, machine: str) -> str:
    """The page of records."""
    parts = [
        f"# Records: trained on n ≤ {train_max}",
        *finding(chosen),
        *([_goal_part(chosen)] if len(goals(chosen)) else []),
        "## All schemes",
        markdown_table([_strong(row) for row in cells(chosen)]),
        "\n".join(f"- {note}" for note in notes(chosen, train_max, machine)),
        "## Published, for context",
        "As published, with other sizes, formats and training lengths than here, and not run by us:",
        markdown_table(PUBLISHED),
    ]
    return "\n\n".join(parts) + "\n"


def _goal_part(chosen: pd.DataFrame) -> str:
    seeds = f"every seed, {len(SEEDS)} of {len(SEEDS)}"
    return f"## Goals: `{GOAL_SCHEME}`, {seeds}\n\n{markdown_table(goal_cells(chosen))}"


def _strong(row: Cells) -> Cells:
    """The scheme that the goals are about in bold."""
    return {**row, "scheme": f"**{row['scheme']}**"} if row["scheme"] == GOAL_SCHEME else row


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """
    >>> print(markdown_table([{"task": "copy", "n = 20": "1.000"}]))
    | task | n = 20 |
    |---|---|
    | copy | 1.000 |
    """
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(rows[0]), *texts[1:]])


# -- LaTeX -------------------------------------------------------------------------------------------------------


def latex(chosen: pd.DataFrame, train_max: int, machine: str) -> str:
    """The table of all schemes for a paper (needs booktabs), and the notes as comments above it."""
    frame = pd.DataFrame(cells(chosen))
    frame["task"] = frame["task"].mask(frame["task"].duplicated(), "")
    body = frame.to_latex(index=False, escape=True)
    comments = [f"% {line}" for line in [*finding(chosen), *notes(chosen, train_max, machine)]]
    return "\n".join([*comments, body.replace("≥", r"$\geq$").replace("–", "--")])
