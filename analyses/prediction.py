"""What predicts, from inputs of the training range alone, whether a run will extrapolate beyond it?

The paper conjectures that length generalization is possible if and only if complexity does not grow with scale. What we
test: over runs that are accurate in range, does the invariance index ι of a measured complexity tell those that
extrapolate (exact match of at least 0.9 at twice the training range; the same is reported at ten times) from those that
do not? It stands side by side with baselines: the verdict before training, training loss, in-range exact match, margin,
and base rates. The conjecture has support only where ι does better than every baseline, within tasks and schemes too.

Each predictor has a sign that is fixed beforehand, so that higher always means "will extrapolate". A predictor that is
right the other way round scores below one half. Base rates are the mean exact match beyond the range of all *other*
runs of the same family of schemes, or of the same scheme. They look at what the others did on long inputs, other seeds
of the same task included, which no honest prediction could; that makes them hard to beat.

Intervals are of a bootstrap over whole cells (`lengthlens.analyses.statistics`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lengthlens.analyses import statistics, theme
from lengthlens.analyses.statistics import Estimate, Statistic, auc, estimate, spearman, why_undefined
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import FACTORS, MissingError, chosen_readout, indices, records
from lengthlens.analyses.tables import several
from lengthlens.probes.schema import THRESHOLDS
from lengthlens.runs.evaluation import ACCURATE

Frame = pd.DataFrame
Row = dict[str, Any]
STRATA = ("task", "scheme", "family", "verdict", "cell")
LEFT_OUT = [*"predictor task threshold runs extrapolating note".split(), *Estimate(0).columns("balanced_accuracy")]

# A statement about all runs. With three cells of a kind, a resample of cells leaves a kind out about once in twenty
# times, as the 95 % interval allows; ten runs are what a reader would want to see before any number.
LEAST_RUNS, LEAST_CELLS = 10, 3

# Where all runs of a stratum share a base rate, leaving out each run's own outcome would turn it upside down.
SAME_BY_CONSTRUCTION = {
    "family": ("family", "scheme", "cell"), "scheme": ("scheme", "cell"), "verdict": ("verdict", "cell")
}  # fmt: skip


class Predictor(NamedTuple):
    """`kind` is "measure" (ours, in range), "verdict" (before training) or "baseline"."""

    label: str
    kind: str
    sign: int = 1


BASELINES = {
    "verdict": Predictor("verdict before training", "verdict"),
    "train_loss": Predictor("training loss", "baseline", -1),
    "in_range_exact_match": Predictor("in-range exact match", "baseline"),
    "margin": Predictor("margin", "baseline"),
    "family": Predictor("other runs of the family", "baseline"),
    "scheme": Predictor("other runs of the scheme", "baseline"),
}
BASE_RATES = ("family", "scheme")
SIDES = {"possible": 1.0, "open": 0.5, "impossible": 0.0, "task-limited": 0.0, "refused": 0.0}


def measures(runs: Frame) -> list[str]:
    """The indices that these runs have, as `per_run` has them."""
    return [each.index for each in indices(runs)]


def predictors(runs: Frame | None = None) -> dict[str, Predictor]:
    """The indices of all probes or of these runs, of which growth counts against a run, and the baselines."""
    return {**{each.index: Predictor(each.label, "measure", -1) for each in indices(runs)}, **BASELINES}


def scores(runs: Frame, name: str, factor: int) -> "pd.Series[float]":
    """What a predictor says of each run, higher for "will extrapolate"; missing where it says nothing.

    A content-addressed task has no verdict on positions. Base rates are in columns family_rate_2, scheme_rate_2, …
    """
    if name == "verdict":
        return runs["verdict"].map(SIDES).astype(float)
    column = f"{name}_rate_{factor}" if name in BASE_RATES else name
    return predictors()[name].sign * runs[column].astype(float)


def others_mean(values: "pd.Series[float]", group: "pd.Series[str]") -> "pd.Series[float]":
    """For each run the mean over the other runs of its group; that of all other runs if its group has no other.

    >>> others_mean(pd.Series([1.0, 0.0, 0.5]), pd.Series(["rotary"] * 3)).tolist()
    [0.25, 0.75, 0.5]
    """

    def without_own(groups: Any) -> "pd.Series[float]":
        others = (groups.transform("count") - values.notna()).astype(float)
        mean: pd.Series[float] = (groups.transform("sum") - values.fillna(0)) / others.where(others > 0)
        return mean

    own, overall = (without_own(values.groupby(by)) for by in (group, pd.Series(0, index=values.index)))
    return own.fillna(overall).round(12)  # rounding: sums in another order are not another value


@dataclass(frozen=True)
class Prediction:
    """The finding: tables with one row for each statement, sentences about what is missing, and one headline."""

    runs: Frame  # those that count: accurate in range, evaluated beyond
    predictors: Frame  # factor × predictor: auc, spearman, kendall with intervals, runs, groups, positives, note
    versus: Frame  # measure × baseline: the difference of their AUCs on the same runs, with its interval
    within: Frame  # predictor × stratum: AUC over pairs of runs of the same task, scheme, …
    ranks: Frame  # Spearman within each task and each scheme
    left_out: Frame  # leave-one-task-out: balanced accuracy on the task left out, and over all
    added: Frame  # what a measure adds to the verdict
    held_out: Frame  # predictors on the tasks held out, and on the others
    sensitivity: Frame  # AUC at each of the thresholds that ι was stored at
    both_ways: Frame  # cells of which some seeds extrapolate and some do not
    notes: list[str]

    @property
    def headline(self) -> str:
        """The finding in one sentence, with its interval."""
        first = records(self.predictors[self.predictors["factor"] == FACTORS[0]])
        ours = first[0]
        some = "" if ours["runs"] == len(self.runs) else f" of the {len(self.runs)}"
        cells = several(ours["groups"], "cell")
        size = f"{ours['runs']}{some} runs that are accurate in range, in {cells} of task and scheme"
        if np.isnan(ours["auc"]):
            why = ours["note"] or "it is not defined"
            return f"Whether {ours['label']} predicts extrapolation cannot be said from {size}: {why}."
        baselines = [row for row in first if row["kind"] != "measure" and not np.isnan(row["auc"])]
        best = max(baselines, key=lambda row: float(row["auc"]), default=None)
        return (
            f"Over {size}, {ours['label']} tells the {ours['extrapolating']} that extrapolate from the rest "
            f"with AUC {_in_words(ours)}"
            + (f"; the best baseline, {best['label']}, reaches {_in_words(best)}." if best else ".")
        )


def _in_words(row: Row) -> str:
    """The AUC with its interval: "0.971 (0.934 to 0.998)"."""
    ends = "no interval" if np.isnan(row["auc_low"]) else f"{row['auc_low']:.3f} to {row['auc_high']:.3f}"
    return f"{row['auc']:.3f} ({ends})"


def prediction(study: Study) -> Prediction:
    """Everything about ι and extrapolation in a study."""
    runs = usable(study.runs)
    runs = runs.assign(family=runs["scheme"].map(theme.family), cell=runs["row"] + " " + runs["label"])
    runs = runs.astype(dict.fromkeys(STRATA, object))  # of so few rows, texts of Arrow take longer than objects
    for name in BASE_RATES:
        for factor in FACTORS:
            runs[f"{name}_rate_{factor}"] = others_mean(runs[f"exact_{factor}"], runs[name])
    if not runs[measures(runs)].notna().any().any():
        raise MissingError("no run that is accurate in range was probed: it takes `lengthlens probe --all`")
    return Prediction(
        runs=runs,
        predictors=pd.concat([compared(runs, factor) for factor in FACTORS], ignore_index=True),
        versus=pd.DataFrame(versus(runs)),
        within=pd.DataFrame(within(runs)),
        ranks=pd.DataFrame(ranks(runs)),
        left_out=pd.DataFrame(left_out(runs), columns=LEFT_OUT),
        added=pd.DataFrame(added(runs)),
        held_out=by_held_out(runs, study.held_out),
        sensitivity=pd.DataFrame(sensitivity(study.rows, runs)),
        both_ways=both_ways(runs),
        notes=notes(study.runs, runs, study.held_out),
    )


def usable(runs: Frame) -> Frame:
    """The runs that say something about the conjecture: accurate in range, and evaluated beyond it."""
    found = runs[runs["accurate"] & runs[f"exact_{FACTORS[0]}"].notna()]
    if found.empty and runs["accurate"].any():
        raise MissingError(f"no run that is accurate in range was evaluated at {FACTORS[0]} times its training range")
    if found.empty:
        raise MissingError(
            f"none of the {len(runs)} runs is accurate in range (exact match of at least {ACCURATE} at every scale), "
            "so their complexity says nothing about extrapolation"
        )
    return found.reset_index(drop=True)


def known(runs: Frame, names: Sequence[str], factor: int = FACTORS[0]) -> Frame:
    """The runs of which all these predictors say something: `STRATA`, what each says, `exact` and `positive`."""
    said = {f"score_{name}": scores(runs, name, factor) for name in names}
    exact, positive = runs[f"exact_{factor}"], runs[f"extrapolates_{factor}"].fillna(False).astype(bool)
    there = np.all([each.notna() for each in (exact, *said.values())], axis=0)
    return runs[list(STRATA)].assign(**said, exact=exact, positive=positive)[there]


def too_few(own: Frame) -> str:
    """What is missing for a statement about all runs; empty if nothing is."""
    cells = [own["cell"][own["positive"] == side].nunique() for side in (True, False)]
    if len(own) >= LEAST_RUNS and min(cells) >= LEAST_CELLS:
        return ""
    return (
        f"{several(len(own), 'run')} ({several(cells[0], 'cell')} with some that extrapolate, {cells[1]} with some "
        f"that do not) are too few: an AUC is shown from {LEAST_RUNS} runs and {LEAST_CELLS} cells of each kind on"
    )


def enough(own: Frame, statistic: Statistic, name: str) -> Row:
    """As `stated`, if there are enough runs for a statement about all; else nothing, and what is missing."""
    missing = why_undefined(own["positive"]) or too_few(own)
    return stated(own, statistics.mean(np.full(len(own), np.nan)) if missing else statistic, name, missing)


def stated(own: Frame, statistic: Statistic, name: str, note: str = "") -> Row:
    """How many runs of how many cells, how many of them extrapolate, a statistic of them with its interval, a note."""
    found = estimate(statistic, own["cell"])
    size = {"runs": len(own), "groups": own["cell"].nunique(), "extrapolating": int(own["positive"].sum())}
    return {**size, **found.columns(name), "note": note or found.note}


def compared(runs: Frame, factor: int = FACTORS[0]) -> Frame:
    """Every predictor: AUC, Spearman and Kendall, each with its interval."""
    rows = []
    for name, (label, kind, _) in predictors(runs).items():
        own = known(runs, [name], factor)
        score = own[f"score_{name}"]
        row: Row = {"factor": factor, "predictor": name, "label": label, "kind": kind}
        row |= enough(own, auc(score, own["positive"]), "auc")
        for statistic in (spearman, statistics.kendall):
            row |= estimate(statistic(score, own["exact"]), own["cell"]).columns(statistic.__name__)
        constant = f"all {len(own)} runs have the same {label}" if len(own) > 1 and score.nunique() == 1 else ""
        why = "; ".join(text for text in (constant, row["note"]) if text)
        rows.append({**row, "note": f"no run has '{name}'" if own.empty else why})
    return pd.DataFrame(rows)


def versus(runs: Frame) -> Iterator[Row]:
    """How much higher the AUC of each measure is than that of each baseline, on the runs that have both."""
    for measure in measures(runs):
        for baseline in BASELINES:
            own = known(runs, [measure, baseline])
            mine, theirs = (auc(own[f"score_{name}"], own["positive"]) for name in (measure, baseline))
            found = enough(own, statistics.difference(mine, theirs), "difference")
            yield {"measure": measure, "baseline": baseline, **found}


def within(runs: Frame) -> Iterator[Row]:
    """AUC over those pairs only that share their task (scheme, family, verdict, cell).

    Within a task no task effect can help; within a scheme the scheme's own relation cannot; within a cell only the
    seed differs.
    """
    for name in predictors(runs):
        own = known(runs, [name])
        for stratum in STRATA:
            row = stated(own, auc(own[f"score_{name}"], own["positive"], own[stratum]), "auc")
            mixed = own.groupby(stratum)["positive"].transform("nunique") == 2
            if not mixed.any():
                row["note"] = f"no {stratum} has runs that extrapolate and runs that do not"
            elif stratum in SAME_BY_CONSTRUCTION.get(name, ()):
                row |= Estimate(0.5, 0.5, 0.5).columns("auc")
                row["note"] = "the same for all that is compared, by construction"
            size = {"strata": own.loc[mixed, stratum].nunique(), "runs": int(mixed.sum())}
            yield {"predictor": name, "within": stratum, **row, **size}


def ranks(runs: Frame) -> Iterator[Row]:
    """Spearman of each measure with exact match beyond, among the runs of each task and of each scheme."""
    for name in measures(runs):
        own = known(runs, [name])
        for by in ("task", "scheme"):
            for group, part in own.groupby(by):
                row = stated(part, spearman(part[f"score_{name}"], part["exact"]), "spearman")
                alike = {"note": "all runs alike"} if np.isnan(row["spearman"]) else {}
                yield {"predictor": name, "by": by, "name": group, **row, **alike}


def both_ways(runs: Frame) -> Frame:
    """Cells of which some seeds extrapolate and others do not, with ι of both kinds."""
    rows = []
    for (task, scheme), part in runs.groupby(["row", "label"]):
        yes = part["extrapolates_2"].astype(bool)
        if yes.nunique() == 2:
            row = {"task": task, "scheme": scheme, "extrapolating": int(yes.sum()), "runs": len(part)}
            for name in measures(runs):
                row |= {f"{name}_yes": part.loc[yes, name].mean(), f"{name}_no": part.loc[~yes, name].mean()}
            rows.append(row)
    kinds = [f"{name}_{side}" for name in measures(runs) for side in ("yes", "no")]
    return pd.DataFrame(rows, columns=["task", "scheme", "extrapolating", "runs", *kinds])


def left_out(runs: Frame) -> Iterator[Row]:
    """For each task: a threshold chosen on all other tasks, and how well it does on this one; last, all together."""
    for name, predictor in predictors(runs).items():
        own = known(runs, [name])
        if own["task"].nunique() < 2:
            continue
        called = pd.Series(False, index=own.index)
        for task, part in own.groupby("task"):
            others = own[own["task"] != task]
            threshold = best_threshold(others[f"score_{name}"].to_numpy(), others["positive"].to_numpy())
            called[part.index] = part[f"score_{name}"] > threshold
            right = statistics.balanced_accuracy(called[part.index], part["positive"])
            one = "one class only: the share called right" if part["positive"].nunique() < 2 else ""
            row = stated(part, right, "balanced_accuracy", one)
            yield {"predictor": name, "task": task, "threshold": predictor.sign * threshold, **row}
        right = statistics.balanced_accuracy(called, own["positive"])
        yield {"predictor": name, "task": "all", **stated(own, right, "balanced_accuracy")}


def best_threshold(score: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The threshold above which runs are best called positive (balanced accuracy); the middle one of several.

    >>> best_threshold(np.array([-2.0, -1.0, 0.0]), np.array([False, False, True]))
    -0.5
    """
    values = np.unique(score)
    between = [values[0] - 1, *((values[1:] + values[:-1]) / 2), values[-1] + 1]
    above = score > np.array(between)[:, None]
    shares = [right[:, mine].mean(1) for right, mine in ((above, positive), (~above, ~positive)) if mine.any()]
    marks = np.mean(shares, axis=0)
    best = np.flatnonzero(marks >= marks.max() - 1e-12)
    return float(between[best[(len(best) - 1) // 2]])


def added(runs: Frame) -> Iterator[Row]:
    """What each measure adds to the verdict before training, in three ways.

    The AUC among runs with the same verdict (½ if the measure adds nothing). And a logistic regression of
    "extrapolates" on the verdict alone and on verdict and ι, each fitted on all tasks but one and judged on that one:
    the gain in AUC, and the gain in log loss per run (in nats; positive if ι helps).
    """
    for name in measures(runs):
        own = known(runs, [name, "verdict"])
        same = auc(own[f"score_{name}"], own["positive"], own["verdict"])
        mixed = (own.groupby("verdict")["positive"].nunique() == 2).any()
        one = "" if mixed else "every verdict has one outcome only, so there is nothing left to tell"
        yield {"predictor": name, "what": "AUC among the same verdict", **stated(own, same, "value", one)}
        alone_task = "one task only, so none can be left out" if own["task"].nunique() < 2 else ""
        why = why_undefined(own["positive"]) or alone_task
        gains = [statistics.mean(np.full(len(own), np.nan))] * 2 if why else _gains(own, name)
        for what, gain in zip(("gain in AUC over the verdict", "gain in log loss over the verdict"), gains):
            yield {"predictor": name, "what": what, **stated(own, gain, "value", why)}


def _gains(own: Frame, name: str) -> list[Statistic]:
    """Gain in AUC and in log loss (−log of the chance of what happened) of verdict and ι over the verdict alone."""
    positive = own["positive"]
    alone, both = (out_of_task(own, ["score_verdict", *more]) for more in ([], [f"score_{name}"]))
    losses = [-np.log(np.where(positive, chance, 1 - chance)) for chance in (alone, both)]
    return [statistics.difference(auc(both, positive), auc(alone, positive)), statistics.mean(losses[0] - losses[1])]


def out_of_task(own: Frame, features: list[str]) -> NDArray[np.float64]:
    """The chance of each run to extrapolate, by a logistic regression on the runs of all other tasks."""
    from sklearn.linear_model import LogisticRegression  # here, since a study without verdicts does not need it

    chance = np.full(len(own), np.nan)
    x, y = own[features].to_numpy(float), own["positive"].to_numpy()
    for task in own["task"].unique():
        mine = (own["task"] == task).to_numpy()
        if len(set(y[~mine])) < 2:
            chance[mine] = np.clip(y[~mine].mean(), 0.01, 0.99)
        else:
            chance[mine] = LogisticRegression().fit(x[~mine], y[~mine]).predict_proba(x[mine])[:, 1]
    return chance.round(9)  # equal inputs are ties, whatever the last digit


def by_held_out(runs: Frame, held_out: Sequence[str]) -> Frame:
    """All predictors on the tasks held out and on the others; nothing if none was held out."""
    mine = runs["task"].isin(held_out)
    parts = {"held out": runs[mine], "others": runs[~mine]} if held_out else {}
    found = [compared(part).assign(tasks=name) for name, part in parts.items() if len(part)]
    return pd.concat([pd.DataFrame(), *found], ignore_index=True)


def sensitivity(rows: Frame, runs: Frame) -> Iterator[Row]:
    """The AUC of each index at each of its stored thresholds, on the same runs."""
    for each in indices(runs):
        stored = chosen_readout(rows[(rows["measure"] == each.index) & rows["run"].isin(runs["run"])])
        stored = stored.sort_values(THRESHOLDS, kind="stable")
        default = set(threshold_texts(rows[rows["measure"] == each.curve].drop_duplicates(THRESHOLDS)))
        for threshold, part in stored.groupby(threshold_texts(stored), sort=False):
            value = part.groupby("run")["value"].first()
            own = known(runs.assign(**{each.index: runs["run"].map(value)}), [each.index])
            row = {"measure": each.index, "threshold": threshold, "default": threshold in default}
            row |= enough(own, auc(own[f"score_{each.index}"], own["positive"]), "auc")
            yield {**row, "note": why_undefined(own["positive"]) or too_few(own)}


def threshold_texts(rows: Frame) -> "pd.Series[str]":
    """The thresholds of each row as a text.

    >>> rows = pd.DataFrame({"tolerance": [0.5, np.nan], "influence": [np.nan, 0.25], "fidelity": [np.nan, 0.9]})
    >>> threshold_texts(rows.assign(bar=np.nan)).tolist()
    ['tolerance=0.5', 'influence=0.25 fidelity=0.9']
    """
    texts = [
        " ".join(f"{name}={value:g}" for name, value in zip(THRESHOLDS, row) if not np.isnan(value))
        for row in rows[THRESHOLDS].to_numpy(float)
    ]
    return pd.Series(texts, index=rows.index, dtype="str")


def notes(every: Frame, runs: Frame, held_out: Sequence[str]) -> list[str]:
    """What a reader of the numbers has to know: which runs count, and what there was nothing of."""
    said = [
        f"{len(runs)} of {len(every)} runs count, in {several(runs['cell'].nunique(), 'cell')} of task and scheme: "
        f"{int((~every['accurate']).sum())} are not accurate in range, "
        f"{int((every['accurate'] & every['exact_2'].isna()).sum())} were not evaluated at twice it"
    ]
    absent: dict[int, list[str]] = {}
    for name in measures(runs):
        absent.setdefault(int(runs[name].isna().sum()), []).append(predictors()[name].label)
    for number, labels in absent.items():
        if number:
            said.append(
                f"{number} of the {len(runs)} runs ha{'s' if number == 1 else 've'} no {' and no '.join(labels)}"
            )
    if runs["exact_10"].isna().any():
        said.append(f"{int(runs['exact_10'].isna().sum())} runs were not evaluated at ten times the range")
    if why := why_undefined(runs["extrapolates_2"].astype(bool)):
        said.append(why)
    if runs["scheme"].nunique() == 1:
        said.append(f"there is one scheme only, {runs['scheme'].iloc[0]}")
    held = f"held out, so that nothing was chosen on them: {', '.join(held_out)}"
    return [*said, held if held_out else "no task was held out"]
