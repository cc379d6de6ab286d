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

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from lengthlens.analyses import theme
from lengthlens.analyses.statistics import (
    Estimate,
    auc,
    balanced_accuracy,
    columns,
    difference,
    estimate,
    kendall,
    mean,
    spearman,
    why_undefined,
)
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import (
    FACTORS,
    THRESHOLDS,
    MissingError,
    chosen_readout,
    indices,
    records,
    threshold_texts,
    usable,
)

Frame = pd.DataFrame
STRATA = ("task", "scheme", "family", "verdict", "cell")

# Where all runs of a stratum share a base rate, leaving out each run's own outcome would turn it upside down.
SAME_BY_CONSTRUCTION = {
    "family": ("family", "scheme", "cell"),
    "scheme": ("scheme", "cell"),
    "verdict": ("verdict", "cell"),
}


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
SIDES = {"possible": 1.0, "pe-limited": 0.0, "task-limited": 0.0, "refused": 0.0}


def measures() -> list[str]:
    """The indices of all probes."""
    return [each.index for each in indices()]


def predictors() -> dict[str, Predictor]:
    """The indices of all probes, of which growth counts against a run, and the baselines."""
    return {**{each.index: Predictor(each.label, "measure", -1) for each in indices()}, **BASELINES}


def labels() -> dict[str, str]:
    return {name: predictor.label for name, predictor in predictors().items()}


def scores(runs: pd.DataFrame, name: str, factor: int) -> "pd.Series[float]":
    """What a predictor says of each run, higher for "will extrapolate"; missing where it says nothing.

    A content-addressed task has no verdict on positions. Base rates are in the columns of `with_base_rates`.
    """
    if name == "verdict":
        return runs["verdict"].map(SIDES).astype(float)
    column = f"{name}_rate_{factor}" if name in BASE_RATES else name
    return predictors()[name].sign * runs[column].astype(float)


def with_base_rates(runs: pd.DataFrame, factors: Sequence[int]) -> pd.DataFrame:
    """The runs with columns family_rate_2, scheme_rate_2, …: exact match of the others, at each of the factors.

    >>> runs = pd.DataFrame({"family": ["rotary"] * 3, "scheme": ["rope"] * 3, "exact_2": [1.0, 0.0, 0.5]})
    >>> with_base_rates(runs, [2])["family_rate_2"].tolist()
    [0.25, 0.75, 0.5]
    """
    rates = {
        f"{name}_rate_{factor}": others_mean(runs[f"exact_{factor}"], runs[name])
        for name in BASE_RATES
        for factor in factors
    }
    return runs.assign(**rates)


def others_mean(values: "pd.Series[float]", group: "pd.Series[str]") -> "pd.Series[float]":
    """For each run the mean over the other runs of its group; that of all other runs if its group has no other."""

    def without_own(total: "pd.Series[float]", count: "pd.Series[int]") -> "pd.Series[float]":
        others = (count - values.notna()).astype(float)
        return (total - values.fillna(0)) / others.where(others > 0)

    grouped = values.groupby(group)
    own = without_own(grouped.transform("sum"), grouped.transform("count"))
    everyone = pd.Series(0, index=values.index)
    overall = without_own(everyone + values.sum(), everyone + values.count())
    return own.fillna(overall).round(12)  # rounding: sums in another order are not another value


# -- the finding ------------------------------------------------------------------------------------------------


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
    notes: list[str] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The finding in one sentence, with its interval."""
        return headline(self)


def prediction(study: Study) -> Prediction:
    """Everything about ι and extrapolation in a study."""
    runs = usable(study.runs)
    runs = with_base_rates(runs.assign(family=runs["scheme"].map(theme.family)), FACTORS)
    runs["cell"] = runs["task"] + " " + runs["label"]
    if not runs[measures()].notna().any().any():
        raise MissingError("no run that is accurate in range was probed: it takes `lengthlens probe --all`")
    return Prediction(
        runs=runs,
        predictors=pd.concat([compared(runs, factor) for factor in FACTORS], ignore_index=True),
        versus=versus(runs),
        within=within(runs),
        ranks=ranks(runs),
        left_out=left_out(runs),
        added=added(runs),
        held_out=by_held_out(runs, study.held_out),
        sensitivity=sensitivity(study.rows, runs),
        both_ways=both_ways(runs),
        notes=notes(study.runs, runs, study.held_out),
    )


# -- side by side ------------------------------------------------------------------------------------------------


def known(runs: Frame, names: Sequence[str], factor: int = FACTORS[0]) -> Frame:
    """The runs of which all these predictors say something, with columns for what they say, `exact` and `positive`."""
    found = runs.assign(
        **{f"score_{name}": scores(runs, name, factor) for name in names},
        exact=runs[f"exact_{factor}"],
        positive=runs[f"extrapolates_{factor}"],
    )
    found = found.dropna(subset=["exact", *(f"score_{name}" for name in names)])
    return found.assign(positive=found["positive"].astype(bool))


def compared(runs: Frame, factor: int = FACTORS[0]) -> Frame:
    """Every predictor: AUC, Spearman and Kendall, each with its interval."""
    return pd.DataFrame([{"factor": factor, **judged(runs, name, factor)} for name in predictors()])


def judged(runs: Frame, name: str, factor: int) -> dict[str, Any]:
    own = known(runs, [name], factor)
    score, groups = own[f"score_{name}"], own["cell"]
    apart = estimate(auc(score, own["positive"]), groups) if len(own) else Estimate(np.nan)
    row = {
        "predictor": name,
        "label": predictors()[name].label,
        "kind": predictors()[name].kind,
        "runs": len(own),
        "groups": groups.nunique(),
        "extrapolating": int(own["positive"].sum()),
        **columns("auc", apart),
    }
    for label, statistic in (("spearman", spearman), ("kendall", kendall)):
        found = estimate(statistic(score, own["exact"]), groups) if len(own) else Estimate(np.nan)
        row |= columns(label, found)
    constant = (
        f"all {len(own)} runs have the same {predictors()[name].label}" if len(own) > 1 and score.nunique() == 1 else ""
    )
    why = "; ".join(text for text in (why_undefined(own["positive"]), constant, apart.note) if text)
    return {**row, "note": f"no run has '{name}'" if own.empty else why}


def versus(runs: Frame) -> Frame:
    """How much higher the AUC of each measure is than that of each baseline, on the runs that have both."""
    rows = []
    for measure in measures():
        for baseline in BASELINES:
            own = known(runs, [measure, baseline])
            mine, theirs = (auc(own[f"score_{name}"], own["positive"]) for name in (measure, baseline))
            found = estimate(difference(mine, theirs), own["cell"]) if len(own) else Estimate(np.nan)
            row = {"measure": measure, "baseline": baseline, "runs": len(own), **columns("difference", found)}
            rows.append({**row, "note": why_undefined(own["positive"]) or found.note})
    return pd.DataFrame(rows)


# -- within tasks, schemes, verdicts -----------------------------------------------------------------------------


def within(runs: Frame) -> Frame:
    """AUC over those pairs only that share their task (scheme, family, verdict, cell).

    Within a task no task effect can help; within a scheme the scheme's own relation cannot; within a cell only the
    seed differs.
    """
    rows = []
    for name in predictors():
        own = known(runs, [name])
        for stratum in STRATA:
            statistic = auc(own[f"score_{name}"], own["positive"], own[stratum])
            found = estimate(statistic, own["cell"]) if len(own) else Estimate(np.nan)
            mixed = own.groupby(stratum)["positive"].transform("nunique") == 2
            row = {"predictor": name, "within": stratum, "strata": own.loc[mixed, stratum].nunique()}
            note = found.note
            if not mixed.any():
                note = f"no {stratum} has runs that extrapolate and runs that do not"
            elif stratum in SAME_BY_CONSTRUCTION.get(name, ()):
                found, note = Estimate(0.5, 0.5, 0.5), "the same for all that is compared, by construction"
            rows.append({**row, "runs": int(mixed.sum()), **columns("auc", found), "note": note})
    return pd.DataFrame(rows)


def ranks(runs: Frame) -> Frame:
    """Spearman of each measure with exact match beyond, among the runs of each task and of each scheme."""
    rows = []
    for name in measures():
        own = known(runs, [name])
        for by in ("task", "scheme"):
            for group, part in own.groupby(by):
                found = estimate(spearman(part[f"score_{name}"], part["exact"]), part["cell"])
                constant = "all runs alike" if np.isnan(found.value) else found.note
                rows.append(
                    {"predictor": name, "by": by, "name": group, "runs": len(part)}
                    | {"extrapolating": int(part["positive"].sum()), **columns("spearman", found), "note": constant}
                )
    names = ["predictor", "by", "name", "runs", "extrapolating", *columns("spearman", Estimate(0)), "note"]
    return pd.DataFrame(rows, columns=names)


def both_ways(runs: Frame) -> Frame:
    """Cells of which some seeds extrapolate and others do not, with ι of both kinds."""
    rows = []
    for (task, scheme), part in runs.groupby(["task", "label"]):
        yes = part["extrapolates_2"].astype(bool)
        if yes.nunique() == 2:
            row = {"task": task, "scheme": scheme, "extrapolating": int(yes.sum()), "runs": len(part)}
            for name in measures():
                row |= {f"{name}_yes": part.loc[yes, name].mean(), f"{name}_no": part.loc[~yes, name].mean()}
            rows.append(row)
    kinds = [f"{name}_{side}" for name in measures() for side in ("yes", "no")]
    return pd.DataFrame(rows, columns=["task", "scheme", "extrapolating", "runs", *kinds])


# -- leave one task out ------------------------------------------------------------------------------------------


def left_out(runs: Frame) -> Frame:
    """For each task: a threshold chosen on all other tasks, and how well it does on this one; last, all together."""
    rows = [row for name in predictors() for row in _left_out(runs, name)]
    names = ["predictor", "task", "runs", "extrapolating", "threshold"]
    return pd.DataFrame(rows, columns=[*names, *columns("balanced_accuracy", Estimate(0)), "note"])


def _left_out(runs: Frame, name: str) -> list[dict[str, Any]]:
    own = known(runs, [name])
    if own["task"].nunique() < 2:
        return []
    rows, called = [], pd.Series(False, index=own.index)
    for task, part in own.groupby("task"):
        others = own[own["task"] != task]
        threshold = best_threshold(others[f"score_{name}"].to_numpy(), others["positive"].to_numpy())
        called[part.index] = part[f"score_{name}"] > threshold
        found = estimate(balanced_accuracy(called[part.index], part["positive"]), part["cell"])
        one = "one class only: the share called right" if part["positive"].nunique() < 2 else found.note
        row = {"predictor": name, "task": task, "threshold": predictors()[name].sign * threshold, "note": one}
        rows.append({**row, **_size(part), **columns("balanced_accuracy", found)})
    found = estimate(balanced_accuracy(called, own["positive"]), own["cell"])
    rows.append({"predictor": name, "task": "all", **_size(own), **columns("balanced_accuracy", found)})
    return [{"threshold": np.nan, "note": found.note, **row} for row in rows]


def _size(part: Frame) -> dict[str, int]:
    return {"runs": len(part), "extrapolating": int(part["positive"].sum())}


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


# -- beyond the verdict ------------------------------------------------------------------------------------------


def added(runs: Frame) -> Frame:
    """What each measure adds to the verdict before training, in three ways.

    The AUC among runs with the same verdict (½ if the measure adds nothing). And a logistic regression of
    "extrapolates" on the verdict alone and on verdict and ι, each fitted on all tasks but one and judged on that one:
    the gain in AUC, and the gain in log loss per run (in nats; positive if ι helps).
    """
    rows = []
    for name in measures():
        own = known(runs, [name, "verdict"])
        about = {"predictor": name, "runs": len(own), "groups": own["cell"].nunique()}
        same = auc(own[f"score_{name}"], own["positive"], own["verdict"])
        mixed = own.groupby("verdict")["positive"].transform("nunique") == 2 if len(own) else own["positive"]
        found = estimate(same, own["cell"]) if len(own) else Estimate(np.nan)
        note = found.note if mixed.any() else "every verdict has one outcome only, so there is nothing left to tell"
        rows.append({**about, "what": "AUC among the same verdict", **columns("value", found), "note": note})
        for what, (gain, why) in _gains(own, name).items():
            rows.append({**about, "what": what, **columns("value", gain), "note": why or gain.note})
    return pd.DataFrame(rows)


def _gains(own: Frame, name: str) -> dict[str, tuple[Estimate, str]]:
    """Gain in AUC and in log loss of verdict and ι over the verdict alone, out of task."""
    texts = ("gain in AUC over the verdict", "gain in log loss over the verdict")
    why = why_undefined(own["positive"])
    if not why and own["task"].nunique() < 2:
        why = "one task only, so none can be left out"
    if why:
        return {text: (Estimate(np.nan), why) for text in texts}
    alone = out_of_task(own, ["score_verdict"])
    both = out_of_task(own, ["score_verdict", f"score_{name}"])
    apart = difference(auc(both, own["positive"]), auc(alone, own["positive"]))
    loss = mean(_losses(alone, own["positive"]) - _losses(both, own["positive"]))
    return {text: (estimate(each, own["cell"]), "") for text, each in zip(texts, (apart, loss))}


def out_of_task(own: Frame, features: list[str]) -> NDArray[np.float64]:
    """The chance of each run to extrapolate, by a logistic regression on the runs of all other tasks."""
    chance = np.full(len(own), np.nan)
    x, y = own[features].to_numpy(float), own["positive"].to_numpy()
    for task in own["task"].unique():
        mine = (own["task"] == task).to_numpy()
        if len(set(y[~mine])) < 2:
            chance[mine] = np.clip(y[~mine].mean(), 0.01, 0.99)
        else:
            chance[mine] = LogisticRegression().fit(x[~mine], y[~mine]).predict_proba(x[mine])[:, 1]
    return chance.round(9)  # equal inputs are ties, whatever the last digit


def _losses(chance: NDArray[np.float64], positive: "pd.Series[bool]") -> NDArray[np.float64]:
    """−log of the chance that was given to what happened."""
    losses: NDArray[np.float64] = -np.log(np.where(positive, chance, 1 - chance))
    return losses


# -- held out, and thresholds ------------------------------------------------------------------------------------


def by_held_out(runs: Frame, held_out: Sequence[str]) -> Frame:
    """All predictors on the tasks held out and on the others; nothing if none was held out."""
    parts = []
    if held_out:
        mine = runs["task"].isin(held_out)
        for name, part in (("held out", runs[mine]), ("others", runs[~mine])):
            parts.append(compared(part).assign(tasks=name) if len(part) else pd.DataFrame())
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def sensitivity(rows: Frame, runs: Frame) -> Frame:
    """The AUC of each index at each of its stored thresholds, on the same runs."""
    found = []
    for each in indices():
        measure = each.index
        stored = chosen_readout(rows[(rows["measure"] == measure) & rows["run"].isin(runs["run"])])
        curve = set(threshold_texts(rows[rows["measure"] == each.curve].drop_duplicates(THRESHOLDS)))
        stored = stored.sort_values(THRESHOLDS, kind="stable")
        for threshold, part in stored.groupby(threshold_texts(stored), sort=False):
            value = part.groupby("run")["value"].first()
            own = known(runs.assign(**{measure: runs["run"].map(value)}), [measure])
            apart = (
                estimate(auc(own[f"score_{measure}"], own["positive"]), own["cell"]) if len(own) else Estimate(np.nan)
            )
            row = {"measure": measure, "threshold": threshold, "default": threshold in curve}
            found.append({**row, **_size(own), **columns("auc", apart), "note": why_undefined(own["positive"])})
    names = ["measure", "threshold", "default", "runs", "extrapolating", *columns("auc", Estimate(0)), "note"]
    return pd.DataFrame(found, columns=names)


# -- in words ----------------------------------------------------------------------------------------------------


def notes(every: Frame, runs: Frame, held_out: Sequence[str]) -> list[str]:
    """What a reader of the numbers has to know: which runs count, and what there was nothing of."""
    said = [
        f"{len(runs)} of {len(every)} runs count, in {runs['cell'].nunique()} cells of task and scheme: "
        f"{int((~every['accurate']).sum())} are not accurate in range, "
        f"{int((every['accurate'] & every['exact_2'].isna()).sum())} were not evaluated at twice it"
    ]
    for name in measures():
        absent = int(runs[name].isna().sum())
        if absent:
            said.append(f"{absent} of the {len(runs)} runs have no {predictors()[name].label}")
    if runs["exact_10"].isna().any():
        said.append(f"{int(runs['exact_10'].isna().sum())} runs were not evaluated at ten times the range")
    if why := why_undefined(runs["extrapolates_2"].astype(bool)):
        said.append(why)
    if runs["scheme"].nunique() == 1:
        said.append(f"there is one scheme only, {runs['scheme'].iloc[0]}")
    if held_out:
        said.append(f"held out, so that nothing was chosen on them: {', '.join(held_out)}")
    else:
        said.append("no task was held out")
    return said


def headline(found: Prediction) -> str:
    first = records(found.predictors[found.predictors["factor"] == FACTORS[0]])
    ours = first[0]
    size = f"{ours['runs']} runs in {ours['groups']} cells of task and scheme, all accurate in range"
    if np.isnan(ours["auc"]):
        why = ours["note"] or "it is not defined"
        return f"Whether {ours['label']} predicts extrapolation cannot be said from {size}: {why}."
    text = (
        f"Over {size}, {ours['label']} tells the {ours['extrapolating']} that extrapolate from the rest "
        f"with AUC {in_words(ours, 'auc')}"
    )
    baselines = [row for row in first if row["kind"] != "measure" and not np.isnan(row["auc"])]
    best = max(baselines, key=lambda row: float(row["auc"]), default=None)
    return text + (f"; the best baseline, {best['label']}, reaches {in_words(best, 'auc')}." if best else ".")


def in_words(row: dict[str, Any], name: str) -> str:
    """An estimate with its interval: "0.971 (0.934 to 0.998)"."""
    if np.isnan(row[name]):
        return "undefined"
    if np.isnan(row[f"{name}_low"]):
        return f"{row[name]:.3f} (no interval)"
    return f"{row[name]:.3f} ({row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f})"
