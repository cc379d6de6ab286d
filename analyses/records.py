"""The record table: how far beyond its training lengths each scheme stays exact, over seeds, and whether goals are met.

A seed without a score because its training diverged, or because its scheme cannot process the length, counts as 0; one
that has not been run yet does not count, and the number of seeds says so.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lengthlens.analyses import theme
from lengthlens.runs.record_grid import GOAL, GOAL_SCHEME, GOALS, RECORD_TASKS, SCALINGS, SEEDS

CELL = ["task", "scheme", "score_scaling"]

# As published, for context: other sizes, formats and training lengths than here, and not run by us.
PUBLISHED = (
    {
        "work": "Position coupling (Cho et al., 2024, arXiv 2405.20671)",
        "task": "addition",
        "trained up to": "30 digits",
        "tested at": "200 digits",
        "exact match": "above 0.95 (median)",
    },
    {
        "work": "Abacus embeddings (McLeish et al., 2024, arXiv 2405.17399)",
        "task": "addition",
        "trained up to": "20 digits",
        "tested at": "100 digits",
        "exact match": "up to 0.99",
    },
)


def statistics(table: pd.DataFrame) -> pd.DataFrame:
    """Over the seeds of each task, scheme, scaling of scores and length, from the rows of `record_table`.

    `median` and `worst` are of exact match, `low` and `high` the 95 % interval of the worst seed; `exact` is the number
    of seeds that reach the goal, of `seeds` that count, of `planned`; `outcome` is what became of most of them.
    """
    rows = table.assign(counted=counted(table), scored=table["samples"].where(table["outcome"] == "scored"))
    groups = rows.sort_values("counted").groupby([*CELL, "length"])
    found = groups.agg(
        median=("counted", "median"),
        worst=("counted", "min"),
        low=("exact_match_low", lambda values: values.iloc[0]),
        high=("exact_match_high", lambda values: values.iloc[0]),
        exact=("counted", lambda values: int((values >= GOAL).sum())),
        seeds=("counted", "count"),
        planned=("seed", "size"),
        least_samples=("scored", "min"),
        most_samples=("scored", "max"),
        outcome=("outcome", lambda values: values.mode().iloc[0]),
    )
    return found.reset_index()


def counted(table: pd.DataFrame) -> pd.Series:
    """The exact match that counts for each row: see the head of this file."""
    failed = table["outcome"].isin(["refused", "diverged"])
    return table["exact_match"].mask(failed, 0.0)


def training(table: pd.DataFrame) -> pd.DataFrame:
    """Over the seeds of each task, scheme and scaling: how training ended, and what it took."""
    runs = table.drop_duplicates("run")
    runs = runs.assign(in_range=runs["in_range_exact_match"].mask(runs["status"] == "diverged", 0.0))
    return (
        runs.groupby(CELL)
        .agg(
            in_range_median=("in_range", "median"),
            in_range_worst=("in_range", "min"),
            accurate=("accurate", "sum"),
            trained=("in_range", "count"),
            steps=("steps", "median"),
            seconds=("seconds", "median"),
        )
        .reset_index()
    )


def best_scaling(found: pd.DataFrame) -> str:
    """With or without length-scaled scores: which is better, from the `statistics` of one task and scheme.

    The one with the higher median at the longest length that both have; where these are the same, by the worst seed
    there, then by the next shorter length, and so on. Only one that has been run can be chosen, if any has.
    """
    run = found[found["seeds"] > 0]
    names = [name for name in SCALINGS if name in set(run["score_scaling"])] or [SCALINGS[0]]
    lengths = [set(run.loc[run["score_scaling"] == name, "length"]) for name in names]
    common = sorted(set.intersection(*lengths), reverse=True)
    scores = run.set_index(["score_scaling", "length"])[["median", "worst"]]
    return max(names, key=lambda name: [tuple(scores.loc[(name, n)]) for n in common])


def records(table: pd.DataFrame) -> pd.DataFrame:
    """The `statistics` and `training` of each task and scheme at its best scaling of scores, in the order to show them.

    `compared` says how many scalings there were to choose from.
    """
    found = statistics(table)
    best = [
        {
            "task": task,
            "scheme": scheme,
            "score_scaling": best_scaling(rows),
            "compared": rows.loc[rows["seeds"] > 0, "score_scaling"].nunique(),
        }
        for (task, scheme), rows in found.groupby(["task", "scheme"])
    ]
    chosen = pd.DataFrame(best).merge(training(table), on=CELL).merge(found, on=CELL)
    tasks, schemes = tasks_in_order(table["task"]), schemes_in_order(table["scheme"])
    chosen["task"] = pd.Categorical(chosen["task"], tasks)
    chosen["scheme"] = pd.Categorical(chosen["scheme"], schemes)
    ordered = chosen.sort_values(["task", "scheme", "length"], ignore_index=True)
    return ordered.astype({"task": "str", "scheme": "str"})


def tasks_in_order(tasks: Sequence[str] | pd.Series) -> list[str]:
    """Tasks of the record in its order, then others.

    >>> tasks_in_order(["sort", "addition", "copy", "copy"])
    ['copy', 'addition', 'sort']
    """
    given = list(dict.fromkeys(tasks))
    return [task for task in RECORD_TASKS if task in given] + [t for t in given if t not in RECORD_TASKS]


def schemes_in_order(schemes: Sequence[str] | pd.Series) -> list[str]:
    """The scheme that the goal is about first, then as in every figure; options do not change a scheme's place.

    >>> schemes_in_order(["rope", "hinted:relative/max_distance=3", "ideal", "lbpe", "lbpe/other=one"])
    ['lbpe/other=one', 'ideal', 'lbpe', 'hinted:relative/max_distance=3', 'rope']
    """
    bases = theme.in_order(scheme.partition("/")[0] for scheme in schemes)

    def place(scheme: str) -> tuple[bool, int]:
        return scheme != GOAL_SCHEME, bases.index(scheme.partition("/")[0])

    return sorted(dict.fromkeys(schemes), key=place)


def goals(chosen: pd.DataFrame) -> pd.DataFrame:
    """Each goal of `GOALS`, and whether `GOAL_SCHEME` reaches it: every seed, and at least as many as in `SEEDS`.

    `state` is "reached", "not reached" (one seed below is enough), or "open" while seeds are yet to be run.
    """
    columns = [
        *("task", "length", "score_scaling", "median", "worst", "exact", "seeds", "planned"),
        *("low", "high", "least_samples", "most_samples"),
    ]
    rows = chosen[chosen["scheme"] == GOAL_SCHEME]
    wanted = [n in GOALS.get(task, ()) for task, n in zip(rows["task"], rows["length"])]
    found = rows.loc[wanted, columns].reset_index(drop=True)
    return found.assign(state=[goal_state(row) for row in found.to_dict("records")])


def goal_state(row: dict[Any, Any]) -> str:
    """
    >>> [goal_state({"exact": e, "seeds": s, "planned": 3}) for e, s in ((3, 3), (2, 3), (2, 2), (0, 0))]
    ['reached', 'not reached', 'open', 'open']
    """
    if row["exact"] < row["seeds"]:
        return "not reached"
    return "reached" if row["exact"] == max(row["planned"], len(SEEDS)) else "open"


def finding(chosen: pd.DataFrame) -> list[str]:
    """What the table says about the goal, a sentence for each length."""
    sentences = []
    for length, rows in goals(chosen).groupby("length"):
        reached = rows[rows["state"] == "reached"]
        said = (
            f"At n = {number(int(str(length)))}, {GOAL_SCHEME} reaches an exact match of {GOAL} with every seed "
            f"on {len(reached)} of {len(rows)} tasks"
        )
        rest = [
            f"{row['task']} {row['state']} ({row['exact']} of {row['seeds']} seeds so far)"
            if row["state"] == "open"
            else f"{row['task']} {row['state']} ({row['exact']} of {row['seeds']} seeds)"
            for row in rows[rows["state"] != "reached"].to_dict("records")
        ]
        sentences.append(f"{said}{'; ' + ', '.join(rest) if rest else ''}.")
    return sentences


def number(value: int) -> str:
    """A length or a count as it is read most easily.

    >>> number(1000), number(10000)
    ('1000', '10,000')
    """
    return f"{value:,}" if value >= 10_000 else str(value)
