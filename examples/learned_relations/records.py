"""Records, as a plug-in: how far beyond its training lengths each scheme stays exact, and whether the goal is met.

``lengthlens figures records --plugin examples/learned_relations/records.py --table figures/records/study.parquet``

A seed without a score because its training diverged, or because its scheme cannot process the length, counts as 0; one
that was not evaluated at a length does not count there, and the number of seeds says so. Every scheme is shown at the
better of two scalings of its attention scores.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.curves import exact_multiples
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import CELL, MissingError, records
from lengthlens.analyses.tables import NOTHING, Table, of_frame
from lengthlens.models.schemes import SchemeSpec
from lengthlens.plugins.registry import register
from lengthlens.studies.presets import FEWER

GOAL = 0.99  # exact match, end token included, that every seed has to reach
GOAL_SCHEME = "lbpe"  # the learned relation, as it is by default
RECORDED = (
    "copy", "reverse", "shift", "duplicate", "parity-cot", "modular-sum-cot", "addition", "multiplication-by-digit",
)  # fmt: skip
GOALS = dict.fromkeys(RECORDED, (1000, 10_000))  # the lengths to reach, after training on lengths up to 10
SEEDS = 3  # a goal wants so many
FAR = 100  # times the training range: from there on exact match is a record
SCALED, UNSCALED = "log", "none"  # attention scores by the logarithm of the length, or not
SCALING = "/score_scaling="  # before its name in a scheme's label, where it is not the scheme's usual one
SHOWN = (20, 100, 1000, 10_000)  # lengths with a column of their own
STAR: dict[str, Any] = {"marker": "*", "markersize": 5, "color": "black", "linestyle": "none"}
MISSED = STAR | {"markerfacecolor": "white", "markeredgewidth": 0.7}

# As published (published.csv), for context: other sizes, formats and training lengths than here, and not run by us.
WORKS = ("work (arXiv)", "task", "given", "trained up to", "tested at", "exact match")

Frame = pd.DataFrame


@register
class Records(Finding):
    name, title = "records", "How far does exact match go?"
    shows = (
        "Exact match from the training range to a thousand times beyond, every scheme at its better scaling of "
        "attention scores; a star at each goal."
    )

    def draw(self, study: Study, canvas: Canvas) -> None:
        """A panel for each task, a line for each scheme at its better scaling of scores.

        Lines are medians over the seeds, bands reach down to the worst seed. A star stands at each goal, filled if
        every seed reaches it.
        """
        chosen = study.once(best)
        run = chosen[chosen["seeds"] > 0]
        curves = run.assign(scale=run["length"], mean=run["median"], low=run["worst"], high=run["median"])
        wanted = goals(chosen)
        words = {"reached": f"goal reached: {GOAL}, every seed", "not reached": "goal not reached"}
        looks = {"reached": STAR, "not reached": MISSED}
        missed = wanted["state"] != "reached"
        shown = [name for name, there in (("reached", ~missed), ("not reached", missed)) if there.any()]
        stars = [Line2D([], [], **looks[name], label=words[name]) for name in shown]
        axes_of = exact_multiples(curves, "median to worst seed", canvas, stars, top=GOAL_SCHEME)
        for axes in axes_of.values():
            axes.set_title(axes.get_title(), pad=9)  # room for the stars
        for goal in records(wanted):
            if goal["row"] in axes_of:
                axes_of[goal["row"]].plot(goal["length"], 1.1, **looks.get(goal["state"], MISSED), clip_on=False)

    def tables(self, study: Study) -> dict[str, Table]:
        return tables(study.once(best))


def outcomes(study: Study) -> Frame:
    """One row for each run and each length that its task was taken to, from the end of the training range on.

    Beside the columns of `per_run`: score_scaling, length, samples, low and high, in_range and `exact` (as the head of
    this file counts them), and `outcome`: scored, refused (the scheme cannot process the length), diverged, missing.
    """
    rows = study.rows
    scores = rows[(rows["measure"] == "exact_match") & (rows["scale"] >= rows["train_max"]).fillna(False)]
    if not (scores["scale"] >= FAR * scores["train_max"])[scores["scheme"] == GOAL_SCHEME].any():
        raise MissingError(f"no run of {GOAL_SCHEME} in the table was evaluated at {FAR} times its training range")
    scores = scores[["run", "scale", "value", "low", "high", "samples", "reason"]].rename(columns={"scale": "length"})
    lengths = scores.merge(rows[["run", "task"]].drop_duplicates())[["task", "length"]].drop_duplicates()
    runs = study.runs
    failed, diverged = runs["status"] == "failed", runs["status"] == "diverged"  # what a failed run did does not count
    runs = runs.assign(in_range=runs["in_range_exact_match"].mask(diverged, 0.0))
    runs[["in_range", "steps", "seconds"]] = runs[["in_range", "steps", "seconds"]].mask(failed)
    found = runs.drop(columns="reason").merge(lengths, on="task")
    found = found.merge(scores, on=["run", "length"], how="left")
    cases = [found["value"].notna(), found["reason"].fillna("") != "", found["status"] == "diverged"]
    found["outcome"] = np.select(cases, ["scored", "refused", "diverged"], "missing")
    found["samples"] = found["samples"].where(found["outcome"] == "scored")
    found["exact"] = found["value"].mask(found["outcome"].isin(["refused", "diverged"]), 0.0)
    parts = found["scheme"].str.partition(SCALING)
    usual = parts[0].map({scheme: SchemeSpec.parse(scheme).usual_scaling for scheme in parts[0].unique()})
    return found.assign(scheme=parts[0], score_scaling=parts[2].mask(parts[2] == "", usual))


def statistics(found: Frame) -> Frame:
    """Over the seeds of each cell, scaling of scores and length.

    `median` and `worst` are of exact match, `low` and `high` the 95 % interval of the worst seed; `exact` is the number
    of seeds that reach the goal, of `seeds` that count; `outcome` is what became of most of them.
    """
    groups = found.sort_values("exact", kind="stable").groupby([*CELL, "score_scaling", "length"])
    return groups.agg(
        median=("exact", "median"), worst=("exact", "min"), seeds=("exact", "count"),
        reaching=("exact", lambda values: int((values >= GOAL).sum())),
        low=("low", lambda values: values.iloc[0]), high=("high", lambda values: values.iloc[0]),
        least_samples=("samples", "min"), most_samples=("samples", "max"),
        outcome=("outcome", lambda values: values.mode().iloc[0]),
    ).reset_index()  # fmt: skip


def training(found: Frame) -> Frame:
    """Over the seeds of each cell and scaling of scores: how training ended, and what it took."""
    groups = found.drop_duplicates("run").groupby([*CELL, "score_scaling"])
    return groups.agg(
        in_range_median=("in_range", "median"), in_range_worst=("in_range", "min"), trained=("in_range", "count"),
        accurate=("accurate", "sum"), planned=("run", "count"), steps=("steps", "median"),
        seconds=("seconds", "median"),
    ).reset_index()  # fmt: skip


def best_scaling(found: Frame) -> str:
    """With or without length-scaled scores: which is better, from the `statistics` of one cell.

    The one with the higher median at the longest length that both have; where these are the same, by the worst seed
    there, then by the next shorter length, and so on. Only one that has been run can be chosen, if any has.
    """
    run = found[found["seeds"] > 0]
    names = [name for name in (SCALED, UNSCALED) if name in set(run["score_scaling"])] or [SCALED]
    lengths = [set(run.loc[run["score_scaling"] == name, "length"]) for name in names]
    common = sorted(set.intersection(*lengths), reverse=True)
    scores = run.set_index(["score_scaling", "length"])[["median", "worst"]]
    return max(names, key=lambda name: [tuple(scores.loc[(name, n)]) for n in common])


def best(study: Study) -> Frame:
    """The `statistics` and `training` of each cell at its better scaling of scores, in the order to show them.

    `compared` says how many scalings there were to choose from.
    """
    found = outcomes(study)
    over_seeds = statistics(found)
    chosen = [
        dict(zip(CELL, cell))
        | {"score_scaling": best_scaling(rows), "compared": rows[rows["seeds"] > 0]["score_scaling"].nunique()}
        for cell, rows in over_seeds.groupby(CELL)
    ]
    keys = [*CELL, "score_scaling"]
    merged = pd.DataFrame(chosen).merge(training(found), on=keys).merge(over_seeds, on=keys)
    merged = study.named(merged)
    tasks, schemes = theme.tasks_in_order(merged["task"]), theme.schemes_in_order(merged["scheme"])
    first = [GOAL_SCHEME] if GOAL_SCHEME in schemes else []
    order = {name: k for k, name in enumerate([*tasks, *dict.fromkeys([*first, *schemes])])}
    placed = merged.assign(**{name: merged[name].map(order) for name in CELL[:2]})
    return merged.loc[placed.sort_values([*CELL, "length"]).index].reset_index(drop=True)


def goals(chosen: Frame) -> Frame:
    """The rows of `best` at the lengths of `GOALS`, and in `state` whether `GOAL_SCHEME` reaches the goal there.

    Reached: by every seed that was evaluated there, at least `SEEDS`; not reached: one below is enough; open: fewer.
    """
    own = chosen[chosen["scheme"] == GOAL_SCHEME]
    wanted = [n in GOALS.get(task, ()) for task, n in zip(own["task"], own["length"])]
    found = own[wanted].reset_index(drop=True)
    return found.assign(state=[goal_state(row) for row in records(found)])


def goal_state(row: Mapping[str, Any]) -> str:
    """
    >>> [goal_state({"reaching": r, "seeds": s, "planned": 3}) for r, s in ((3, 3), (2, 3), (2, 2), (0, 0))]
    ['reached', 'not reached', 'open', 'open']
    """
    if row["reaching"] < row["seeds"]:
        return "not reached"
    return "reached" if row["reaching"] >= SEEDS else "open"


def sentences(chosen: Frame) -> list[str]:
    """What is to be said about the goal, a sentence for each length."""
    said = []
    for length, rows in goals(chosen).groupby("length"):
        below = records(rows[rows["state"] != "reached"])
        rest = [f"{row['task']} {row['state']} ({row['reaching']} of {row['seeds']} seeds)" for row in below]
        said.append(
            f"At n = {number(int(str(length)))}, {GOAL_SCHEME} reaches an exact match of {GOAL} with every seed on "
            f"{len(rows) - len(rest)} of {len(rows)} tasks{'; ' + ', '.join(rest) if rest else ''}."
        )
    return said


def tables(chosen: Frame) -> dict[str, Table]:
    """The goals, every scheme, and what others have published."""
    found = {"records": Table(" ".join(notes(chosen)), **of_frame(pd.DataFrame(lines(chosen))), title="Records")}
    if len(goals(chosen)):
        found["records-goals"] = Table(
            " ".join(sentences(chosen)), **of_frame(pd.DataFrame(goal_lines(chosen))), title="The goal"
        )
    published = (
        "First what was measured here, by the worst seed; n is read off the prompt. Then as published, with other "
        "sizes, formats and training lengths, and not run by us."
    )
    others = pd.read_csv(Path(__file__).with_name("published.csv"), dtype="str")
    works = of_frame(pd.concat([pd.DataFrame(own_lines(chosen), columns=list(WORKS)), others]))
    return found | {"records-published": Table(published, **works, title="As published")}


def notes(chosen: Frame) -> list[str]:
    """How to read the table, a sentence each."""
    ranges = ", ".join(map(str, sorted(chosen["train_max"].unique())))
    return [
        f"Records: trained on n ≤ {ranges}, exact match of the whole answer, end token included.",
        "Each score is the median over the seeds, with the worst seed in brackets where it differs; "
        "“in range” is the mean over the training lengths.",
        f"Instances for each run: {samples_words(chosen)}; a run with none right at a shorter length is given "
        f"{FEWER:.0%} of them.",
        "“scores” is how attention scores were scaled: by the logarithm of the length (log) or not (none), whichever "
        "has the better median at the longest length that both have; in brackets where only one has been run.",
        "A seed whose training diverged or whose scheme cannot process a length counts as 0.",
        "Steps and seconds are medians for one run.",
        "The scale n is given to `lbpe` and `ideal`: it is read off the prompt.",
        "No seed, checkpoint or stopping time was selected on inputs longer than those of training; `other=one` and "
        "`other=mean` were designed after failures at n = 1000.",
        "On these tasks it is the farthest that was found for a single forward pass of a Transformer, and not the "
        "farthest of all: others have gone farther with loops, other formats or other networks.",
    ]


def lines(chosen: Frame) -> list[dict[str, str]]:
    """The texts of one row for each cell, few columns."""
    lengths = sorted(int(n) for n in chosen["length"].unique())
    shown = [n for n in lengths if n in SHOWN] or lengths
    far = [n for n in shown if n >= FAR * chosen["train_max"].min()] or shown[-1:]
    several = chosen.groupby(["task", "scheme"])["recipe"].transform("nunique").max() > 1
    return [_line(records(rows), shown, far, several) for _, rows in chosen.groupby(CELL, sort=False)]


def _line(rows: list[dict[str, Any]], shown: Sequence[int], far: Sequence[int], several: bool) -> dict[str, str]:
    first, at, scaling = rows[0], {int(row["length"]): row for row in rows}, str(rows[0]["score_scaling"])
    reached = [f"{at[n]['reaching']}/{at[n]['seeds']}" for n in far if n in at and at[n]["seeds"]]
    return {
        "task": first["task"],
        "scheme": first["scheme"],
        **({"recipe": first["recipe"]} if several else {}),
        "scores": {0: NOTHING, 1: f"({scaling})"}.get(first["compared"], scaling),  # (): the other has not been run
        "in range": in_range_text(first),
        **{f"n = {number(n)}": score_text(at[n]) if n in at else "" for n in shown},
        f"seeds ≥ {GOAL} at {', '.join(map(number, far))}": ", ".join(reached) or NOTHING,
        "training": NOTHING if first["trained"] == 0 else f"{first['steps']:.0f} steps, {first['seconds']:.0f} s",
    }


def goal_lines(chosen: Frame) -> list[dict[str, str]]:
    """The texts of one row for each goal."""
    return [
        {
            "task": row["task"],
            "goal": f"≥ {GOAL} at n = {number(row['length'])}",
            "median (worst)": spread(row["median"], row["worst"]) if row["seeds"] else NOTHING,
            "95 % interval of the worst": NOTHING if pd.isna(low) else f"{share(low)} to {share(high)}",
            "instances": samples_text(row),
            "seeds": f"{row['reaching']} of {row['seeds']}",
            "state": row["state"],
        }
        for row in records(goals(chosen))
        for low, high in [(row["low"], row["high"])]
    ]


def own_lines(chosen: Frame) -> list[tuple[str, ...]]:
    """The rows of `GOAL_SCHEME` beside published ones: for each length that counts as far, the tasks taken to it."""
    own = chosen[(chosen["scheme"] == GOAL_SCHEME) & (chosen["seeds"] > 0)]
    far = own[own["length"] >= FAR * own["train_max"]]
    found = list[tuple[str, ...]]()
    for _, rows in far.groupby("length"):
        behind = f"{_counted(rows['seeds'])} seeds, {_counted(rows['least_samples'])} instances each"
        reached = (
            number(rows["train_max"].max()),
            number(rows["length"].max()),
            f"{share(rows['worst'].min())} ({behind})",
        )
        found.append((f"here, `{GOAL_SCHEME}`, one pass", ", ".join(rows["task"]), "the scale n", *reached))
    return found


def _counted(numbers: "pd.Series[Any]") -> str:
    """One number, or the least and the greatest: "3", "3 to 10"."""
    return " to ".join(number(n) for n in sorted({int(numbers.min()), int(numbers.max())}))


def score_text(row: Mapping[str, Any]) -> str:
    """What one cell scored at one length."""
    if row["seeds"] == 0:
        return NOTHING
    failed = row["median"] == 0 and row["outcome"] in ("refused", "diverged")
    return _of(row["outcome"] if failed else spread(row["median"], row["worst"]), row["seeds"], row["trained"])


def in_range_text(row: Mapping[str, Any]) -> str:
    """In-range exact match; a scheme that is not accurate there says with how many seeds it is."""
    if row["trained"] == 0:
        return "not trained"
    text = spread(row["in_range_median"], row["in_range_worst"])
    if row["accurate"] < row["trained"]:
        text = f"{text}, accurate {row['accurate']}/{row['trained']}"
    return _of(text, row["trained"], row["planned"])


def _of(text: str, seeds: int, expected: int) -> str:
    """The text, with the number of seeds behind it if some are missing."""
    return text if seeds == expected else f"{text}, {seeds} seed{'s' if seeds > 1 else ''}"


def samples_text(row: Mapping[str, Any]) -> str:
    """How many instances each score is of."""
    if pd.isna(row["most_samples"]):
        return NOTHING
    least, most = int(row["least_samples"]), int(row["most_samples"])
    return number(most) if least == most else f"{number(least)} to {number(most)}"


def samples_words(chosen: Frame) -> str:
    """How many instances of each length there were: "1000 at n = 20, 20 to 200 at n = 1000"."""
    groups = chosen[chosen["most_samples"].notna()].groupby("length")
    found = groups.agg(least_samples=("least_samples", "min"), most_samples=("most_samples", "max")).reset_index()
    return ", ".join(f"{samples_text(row)} at n = {number(row['length'])}" for row in records(found))


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


def number(value: int) -> str:
    """A length or a count as it is read most easily.

    >>> number(1000), number(10000)
    ('1000', '10,000')
    """
    return f"{value:,}" if value >= 10_000 else str(value)
