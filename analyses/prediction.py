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

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from lengthlens.analyses import statistics, theme
from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.statistics import Estimate, Statistic, auc, estimate, spearman, why_undefined
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import FACTORS, MissingError, chosen_readout, indices, records
from lengthlens.analyses.tables import Table, interval, of_frame, several
from lengthlens.probes.probe import Probe
from lengthlens.probes.schema import THRESHOLDS, at_defaults
from lengthlens.runs.evaluation import ACCURATE, EXTRAPOLATES

Frame = pd.DataFrame
Row = dict[str, Any]
STRATA = ("task", "scheme", "family", "verdict", "cell")

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
    means = []
    for by in (group, pd.Series(0, index=values.index)):
        groups = values.groupby(by)
        others = (groups.transform("count") - values.notna()).astype(float)
        means.append((groups.transform("sum") - values.fillna(0)) / others.where(others > 0))
    return means[0].fillna(means[1]).round(12)  # rounding: sums in another order are not another value


def usable(runs: Frame) -> Frame:
    """The runs that say something about the conjecture: accurate in range, and evaluated beyond it."""
    result = runs[runs["accurate"] & runs[f"exact_{FACTORS[0]}"].notna()]
    if result.empty and runs["accurate"].any():
        raise MissingError(f"no run that is accurate in range was evaluated at {FACTORS[0]} times its training range")
    if result.empty:
        bar = f"exact match of at least {ACCURATE} at every scale"
        why = "so their complexity says nothing about extrapolation"
        raise MissingError(f"none of the {len(runs)} runs is accurate in range ({bar}), {why}")
    return result.reset_index(drop=True)


def known(runs: Frame, names: Sequence[str], factor: int = FACTORS[0]) -> Frame:
    """The runs of which all these predictors say something: `STRATA`, what each says, `exact` and `positive`."""
    said = {f"score_{name}": scores(runs, name, factor) for name in names}
    exact, positive = runs[f"exact_{factor}"], runs[f"extrapolates_{factor}"].fillna(False).astype(bool)
    there = np.all([each.notna() for each in (exact, *said.values())], axis=0)
    return runs[list(STRATA)].assign(**said, exact=exact, positive=positive)[there]


def too_few(judged: Frame) -> str:
    """What is missing for a statement about all runs; empty if nothing is."""
    cells = [judged["cell"][judged["positive"] == side].nunique() for side in (True, False)]
    if len(judged) >= LEAST_RUNS and min(cells) >= LEAST_CELLS:
        return ""
    return (
        f"{several(len(judged), 'run')} ({several(cells[0], 'cell')} with some that extrapolate, {cells[1]} with some "
        f"that do not) are too few: an AUC is shown from {LEAST_RUNS} runs and {LEAST_CELLS} cells of each kind on"
    )


def stated(part: Frame, statistic: Statistic, name: str, note: str = "", of_all: bool = False) -> Row:
    """How many runs of how many cells, how many of them extrapolate, a statistic of them with its interval, a note.

    A statement about all runs, `of_all`, has no number where there are too few of them, and the note says what is
    missing.
    """
    note = (why_undefined(part["positive"]) or too_few(part)) if of_all else note
    result = Estimate(np.nan) if of_all and note else estimate(statistic, part["cell"])
    size = {"runs": len(part), "groups": part["cell"].nunique(), "extrapolating": int(part["positive"].sum())}
    return {**size, **result.columns(name), "note": note or result.note}


def compared(runs: Frame, factor: int = FACTORS[0]) -> Frame:
    """Every predictor: AUC, Spearman and Kendall, each with its interval."""
    rows = []
    for name, (label, kind, _) in predictors(runs).items():
        judged = known(runs, [name], factor)
        score = judged[f"score_{name}"]
        row: Row = {"factor": factor, "predictor": name, "label": label, "kind": kind}
        row |= stated(judged, auc(score, judged["positive"]), "auc", of_all=True)
        for statistic in (spearman, statistics.kendall):
            row |= estimate(statistic(score, judged["exact"]), judged["cell"]).columns(statistic.__name__)
        constant = f"all {len(judged)} runs have the same {label}" if len(judged) > 1 and score.nunique() == 1 else ""
        why = "; ".join(text for text in (constant, row["note"]) if text)
        rows.append({**row, "note": f"no run has '{name}'" if judged.empty else why})
    return pd.DataFrame(rows)


def table(rows: Callable[[Any], Iterator[Row]]) -> "cached_property[Frame]":
    """A method that gives rows as a table, made when it is first asked for."""
    return cached_property(lambda self: pd.DataFrame(rows(self)))


class Prediction:
    """What predicts extrapolation in a study: tables with one row for each statement, and what to know about them.

    `runs` are those that count: accurate in range, evaluated beyond.
    """

    def __init__(self, study: Study) -> None:
        self.study, runs = study, usable(study.runs)
        runs = runs.assign(family=runs["scheme"].map(theme.family), cell=runs["row"] + " " + runs["label"])
        runs = runs.astype(dict.fromkeys(STRATA, object))  # of so few rows, texts of Arrow take longer than objects
        for name in BASE_RATES:
            for factor in FACTORS:
                runs[f"{name}_rate_{factor}"] = others_mean(runs[f"exact_{factor}"], runs[name])
        if not runs[measures(runs)].notna().any().any():
            raise MissingError("no run that is accurate in range was probed: it takes `lengthlens probe --all`")
        self.runs = runs

    @cached_property
    def predictors(self) -> Frame:
        """For each factor and predictor: AUC, Spearman and Kendall with intervals, how many runs, and a note."""
        return pd.concat([compared(self.runs, factor) for factor in FACTORS], ignore_index=True)

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

    @table
    def versus(self) -> Iterator[Row]:
        """How much higher the AUC of each measure is than that of each baseline, on the runs that have both."""
        for measure in measures(self.runs):
            for baseline in BASELINES:
                judged = known(self.runs, [measure, baseline])
                mine, theirs = (auc(judged[f"score_{name}"], judged["positive"]) for name in (measure, baseline))
                row = stated(judged, statistics.difference(mine, theirs), "difference", of_all=True)
                yield {"measure": measure, "baseline": baseline, **row}

    @table
    def within(self) -> Iterator[Row]:
        """AUC over those pairs only that share their task (scheme, family, verdict, cell).

        Within a task no task effect can help; within a scheme the scheme's own relation cannot; within a cell only the
        seed differs.
        """
        for name in predictors(self.runs):
            judged = known(self.runs, [name])
            for stratum in STRATA:
                row = stated(judged, auc(judged[f"score_{name}"], judged["positive"], judged[stratum]), "auc")
                mixed = judged.groupby(stratum)["positive"].transform("nunique") == 2
                if not mixed.any():
                    row["note"] = f"no {stratum} has runs that extrapolate and runs that do not"
                elif stratum in SAME_BY_CONSTRUCTION.get(name, ()):
                    row |= Estimate(0.5, 0.5, 0.5).columns("auc")
                    row["note"] = "the same for all that is compared, by construction"
                size = {"strata": judged.loc[mixed, stratum].nunique(), "runs": int(mixed.sum())}
                yield {"predictor": name, "within": stratum, **row, **size}

    @table
    def ranks(self) -> Iterator[Row]:
        """Spearman of each measure with exact match beyond, among the runs of each task and of each scheme."""
        for name in measures(self.runs):
            judged = known(self.runs, [name])
            for by in ("task", "scheme"):
                for group, part in judged.groupby(by):
                    row = stated(part, spearman(part[f"score_{name}"], part["exact"]), "spearman")
                    alike = {"note": "all runs alike"} if np.isnan(row["spearman"]) else {}
                    yield {"predictor": name, "by": by, "name": group, **row, **alike}

    @cached_property
    def both_ways(self) -> Frame:
        """Cells of which some seeds extrapolate and others do not, with the mean ι of both kinds."""
        rows = []
        for (task, scheme), part in self.runs.groupby(["row", "label"]):
            yes = part["extrapolates_2"].astype(bool)
            if yes.nunique() == 2:
                row = {"task": task, "scheme": scheme, "extrapolating": int(yes.sum()), "runs": len(part)}
                for name in measures(self.runs):
                    row |= {f"{name}_yes": part.loc[yes, name].mean(), f"{name}_no": part.loc[~yes, name].mean()}
                rows.append(row)
        kinds = [f"{name}_{side}" for name in measures(self.runs) for side in ("yes", "no")]
        return pd.DataFrame(rows, columns=["task", "scheme", "extrapolating", "runs", *kinds])

    @table
    def left_out(self) -> Iterator[Row]:
        """For each task a threshold chosen on all other tasks, and how well it does on this one; last, all together."""
        for name, predictor in predictors(self.runs).items():
            judged = known(self.runs, [name])
            if judged["task"].nunique() < 2:
                continue
            called = pd.Series(False, index=judged.index)
            for task, part in judged.groupby("task"):
                others = judged[judged["task"] != task]
                threshold = best_threshold(others[f"score_{name}"].to_numpy(), others["positive"].to_numpy())
                called[part.index] = part[f"score_{name}"] > threshold
                right = statistics.balanced_accuracy(called[part.index], part["positive"])
                one = "one class only: the share called right" if part["positive"].nunique() < 2 else ""
                row = stated(part, right, "balanced_accuracy", one)
                yield {"predictor": name, "task": task, "threshold": predictor.sign * threshold, **row}
            right = statistics.balanced_accuracy(called, judged["positive"])
            yield {"predictor": name, "task": "all", **stated(judged, right, "balanced_accuracy")}

    @table
    def added(self) -> Iterator[Row]:
        """What each measure adds to the verdict before training, in three ways.

        The AUC among runs with the same verdict (½ if the measure adds nothing). And a logistic regression of
        "extrapolates" on the verdict alone and on verdict and ι, each fitted on all tasks but one and judged on that
        one: the gain in AUC, and the gain in log loss per run (in nats; positive if ι helps).
        """
        for name in measures(self.runs):
            judged = known(self.runs, [name, "verdict"])
            same = auc(judged[f"score_{name}"], judged["positive"], judged["verdict"])
            mixed = (judged.groupby("verdict")["positive"].nunique() == 2).any()
            one = "" if mixed else "every verdict has one outcome only, so there is nothing left to tell"
            yield {"predictor": name, "what": "AUC among the same verdict", **stated(judged, same, "value", one)}
            alone_task = "one task only, so none can be left out" if judged["task"].nunique() < 2 else ""
            why = why_undefined(judged["positive"]) or alone_task
            gains = [statistics.mean(np.full(len(judged), np.nan))] * 2
            if not why:
                yes = judged["positive"]
                alone, both = (out_of_task(judged, ["score_verdict", *more]) for more in ([], [f"score_{name}"]))
                losses = [-np.log(np.where(yes, chance, 1 - chance)) for chance in (alone, both)]
                gains = [statistics.difference(auc(both, yes), auc(alone, yes)), statistics.mean(losses[0] - losses[1])]
            for what, gain in zip(("gain in AUC over the verdict", "gain in log loss over the verdict"), gains):
                yield {"predictor": name, "what": what, **stated(judged, gain, "value", why)}

    @cached_property
    def held_out(self) -> Frame:
        """All predictors on the tasks held out and on the others; nothing if none was held out."""
        mine = self.runs["task"].isin(self.study.held_out)
        parts = {"held out": self.runs[mine], "others": self.runs[~mine]} if self.study.held_out else {}
        tables = [compared(part).assign(tasks=name) for name, part in parts.items() if len(part)]
        return pd.concat([pd.DataFrame(), *tables], ignore_index=True)

    @table
    def sensitivity(self) -> Iterator[Row]:
        """The AUC of each index at each of the thresholds that it is stored at, on the same runs."""
        rows, runs = self.study.rows, self.runs
        for probe in indices(runs):
            stored = chosen_readout(rows[(rows["measure"] == probe.index) & rows["run"].isin(runs["run"])])
            stored = stored.sort_values(THRESHOLDS, kind="stable")
            default = at_defaults(stored, probe.defaults).index
            for _, part in stored.groupby(THRESHOLDS, sort=False, dropna=False):
                at = part[THRESHOLDS].iloc[0].dropna().items()
                value = part.groupby("run")["value"].first()
                judged = known(runs.assign(**{probe.index: runs["run"].map(value)}), [probe.index])
                row: Row = {"measure": probe.index, "threshold": " ".join(f"{name}={each:g}" for name, each in at)}
                row |= {"default": bool(probe.curve and part.index.isin(default).all())}
                row |= stated(judged, auc(judged[f"score_{probe.index}"], judged["positive"]), "auc", of_all=True)
                yield {**row, "note": why_undefined(judged["positive"]) or too_few(judged)}

    @property
    def notes(self) -> list[str]:
        """What a reader of the numbers has to know: which runs count, and what there was nothing of."""
        every, runs, held_out = self.study.runs, self.runs, self.study.held_out
        said = [
            f"{len(runs)} of {len(every)} runs count, in {several(runs['cell'].nunique(), 'cell')} of task and scheme: "
            f"{int((~every['accurate']).sum())} are not accurate in range, "
            f"{int((every['accurate'] & every['exact_2'].isna()).sum())} were not evaluated at twice it"
        ]
        absent = runs[measures(runs)].isna().sum()
        for number, names in absent[absent > 0].groupby(absent, sort=False).groups.items():
            labels = " and no ".join(predictors()[name].label for name in names)
            said.append(f"{number} of the {len(runs)} runs ha{'s' if number == 1 else 've'} no {labels}")
        if runs["exact_10"].isna().any():
            said.append(f"{int(runs['exact_10'].isna().sum())} runs were not evaluated at ten times the range")
        if why := why_undefined(runs["extrapolates_2"].astype(bool)):
            said.append(why)
        if runs["scheme"].nunique() == 1:
            said.append(f"there is one scheme only, {runs['scheme'].iloc[0]}")
        held = f"held out, so that nothing was chosen on them: {', '.join(held_out)}"
        return [*said, held if held_out else "no task was held out"]


def _in_words(row: Row) -> str:
    """The AUC with its interval: "0.971 (0.934 to 0.998)"."""
    ends = "no interval" if np.isnan(row["auc_low"]) else f"{row['auc_low']:.3f} to {row['auc_high']:.3f}"
    return f"{row['auc']:.3f} ({ends})"


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


def out_of_task(judged: Frame, features: list[str]) -> NDArray[np.float64]:
    """The chance of each run to extrapolate, by a logistic regression on the runs of all other tasks."""
    from sklearn.linear_model import LogisticRegression  # here, since a study without verdicts does not need it

    chance = np.full(len(judged), np.nan)
    x, y = judged[features].to_numpy(float), judged["positive"].to_numpy()
    for task in judged["task"].unique():
        mine = (judged["task"] == task).to_numpy()
        if len(set(y[~mine])) < 2:
            chance[mine] = np.clip(y[~mine].mean(), 0.01, 0.99)
        else:
            chance[mine] = LogisticRegression().fit(x[~mine], y[~mine]).predict_proba(x[mine])[:, 1]
    return chance.round(9)  # equal inputs are ties, whatever the last digit


# -- figures and tables ------------------------------------------------------------------------------------------

HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 0.8, "markersize": 3, "zorder": 4}
CHANCE: dict[str, Any] = {"color": "0.6", "linewidth": 0.6, "linestyle": (0, (3, 2)), "zorder": 0}
COLOURS = {"measure": theme.BLUE, "verdict": theme.GREEN, "baseline": theme.GREY}
WORDS = {
    "label": "predictor", "groups": "cells", "auc": "AUC", "spearman": "Spearman", "kendall": "Kendall", "what": "",
    "difference": "difference of AUC",
}  # fmt: skip
ASSOCIATION = "label auc spearman kendall runs groups extrapolating note"
# Parts of a prediction that are tables: columns (none: all), title, caption, and what is said where there are no rows.
PARTS = {
    "held-out": (
        f"tasks {ASSOCIATION}", "On the tasks held out, and on the others",
        "The same on the tasks that were held out, and on the others (2 × the training range).",
    ),
    "versus": (
        "measure baseline difference runs note", "Our measures against each baseline",
        "How much higher the AUC of a measure is than that of a baseline, on the runs that have both.",
    ),
    "within": (
        "predictor within auc strata runs note", "Among runs of the same task, scheme, family, verdict or cell",
        "AUC over pairs of runs of the same task, scheme, family, verdict or cell only.",
    ),
    "ranks": (
        "predictor by name spearman runs extrapolating note", "Rank correlation within each task and each scheme",
        "Spearman correlation with exact match at 2 × the training range, within each task and each scheme; 1 if less "
        "growth always goes with more.",
    ),
    "left-out": (
        "predictor task balanced_accuracy threshold runs extrapolating note", "A threshold chosen on all other tasks",
        "Leave one task out: the threshold is chosen on all other tasks, and judged on this one.",
        "There are fewer than two tasks, so none can be left out.",
    ),
    "added": (
        "predictor what value runs groups note", "What a measure adds to the verdict before training",
        "What each measure adds to the verdict before training. Gains are of a logistic regression on verdict and ι "
        "over one on the verdict alone, fitted on all tasks but one and judged on that one; log loss in nats per run.",
    ),
    "both-ways": (
        "", "Cells that go both ways",
        "Cells of which some seeds extrapolate and some do not: mean index of the ones (yes) and of the others (no).",
        "In every cell all accurate runs did the same.",
    ),
}  # fmt: skip


class Front(Finding):
    name, title = "front", "What predicts extrapolation?"
    shows = (
        "Growth of measured SRC inside the training range against exact match beyond it, and how well it and every "
        "baseline tell the runs that extrapolate."
    )

    def draw(self, study: Study, canvas: Canvas) -> None:
        """The panel `runs`: every run by the first index and exact match at twice the range; `auc`: every predictor.

        A mark stands for all runs of its kind at one place. Bars are 95 % intervals over resampled cells; with tasks
        held out, hollow marks below are the AUC on those alone.
        """
        result = study.once(Prediction)
        runs, high = result.runs, 2.9 if canvas.narrow else 2.45
        legend = theme.family_handles(runs)
        axes = canvas.panels(["runs", "auc"], theme.PAGE, high, across=2, least=2.5, more=0.1, legend=legend)
        if "runs" in axes:
            counted = scatter(axes["runs"], runs, study.indices[0])
            networks = "network,\naccurate" if counted == 1 else "networks,\nall accurate"
            axes["runs"].set_title(f"{counted} trained {networks} in range")
        if "auc" in axes:
            forest(axes["auc"], result, canvas.narrow)
        kept = ["run", "task", "label", "seed", study.indices[0].index, f"exact_{FACTORS[0]}"]
        canvas.data |= {"runs": runs[kept], "auc": result.predictors[result.predictors["factor"] == FACTORS[0]]}

    def tables(self, study: Study) -> dict[str, Table]:
        """Measures and baselines side by side, then what could explain the measures away."""
        result = study.once(Prediction)
        tables = {
            f"predictors-{factor}x": shown(
                result.predictors[result.predictors["factor"] == factor], ASSOCIATION,
                f"Telling runs that extrapolate to {factor} times the training range",
                f"Telling runs with exact match of at least 0.9 at {factor} × the training range from the others. "
                "Runs that are accurate in range; 95 % intervals of a bootstrap over whole cells of task and scheme.",
            )
            for factor in FACTORS
        }  # fmt: skip
        said = [{"note": note} for note in [result.headline, *result.notes]]
        tables["notes"] = Table("What to know about the numbers.", said, {"note": "note"}, title="Notes", folded=True)
        parts = {name: getattr(result, name.replace("-", "_")) for name in PARTS}
        wanted = {name: frame for name, frame in parts.items() if name != "held-out" or len(frame)}
        open_ = ("held-out", "both-ways")
        return tables | {name: shown(frame, *PARTS[name], folded=name not in open_) for name, frame in wanted.items()}


class Indices(Finding):
    name, title = "invariance", "Every invariance index against extrapolation"
    shows = "Each index against exact match beyond the range."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """A panel for each index, by its measure: `iota_src`, …"""
        result = study.once(Prediction)
        runs, names = result.runs, [each.index for each in study.indices]
        legend = theme.family_handles(runs)
        axes_of = canvas.panels(
            names, theme.PAGE, 2.05, across=len(names), least=1.9, more=0.1, legend=legend, sharey=True
        )
        for probe in study.indices:
            if (axes := axes_of.get(probe.index)) is not None:
                scatter(axes, runs, probe)
                axes.set_ylabel(axes.get_ylabel() if probe.index in canvas.first_column else "")
                judged = result.predictors[result.predictors["predictor"] == probe.index].iloc[0]
                auc = "not stated" if np.isnan(judged["auc"]) else f"{judged['auc']:.3f}"
                axes.set_title(f"AUC {auc}, {judged['runs']} networks", fontsize=7)
        canvas.data |= {"": runs[["run", "task", "label", "seed", *names, f"exact_{FACTORS[0]}"]]}


class Sensitivity(Finding):
    name, title = "sensitivity", "How much it depends on the thresholds"
    shows = "How much the AUC depends on the thresholds of the probes."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """AUC of each index at each of its thresholds; the default is filled."""
        result = study.once(Prediction).sensitivity
        if result["auc"].isna().all():
            why = result["note"].max() or "no index is stored"
            raise MissingError(f"the AUC is undefined at every threshold: {why}")
        axes = canvas.panel(theme.COLUMN * 1.15, min(0.7 + 0.145 * len(result), theme.PAGE_HEIGHT))
        for y, row in enumerate(records(result)):
            bar(axes, y, row, theme.BLUE, markerfacecolor=theme.BLUE if row["default"] else "white")
        short = result["measure"].map({each.index: each.short for each in study.indices})
        axes.set_yticks(range(len(result)), list(map(theme.literal, short + ", " + result["threshold"])))
        axes.set_ylim(len(result) - 0.4, -0.6)
        axes.set_xlim(min(0.5, np.floor(float(result[["auc", "auc_low"]].min().min()) * 10) / 10), 1)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("AUC of ι\nfilled: the default thresholds")
        canvas.data |= {"": result}

    def tables(self, study: Study) -> dict[str, Table]:
        columns, title = "measure threshold default auc runs extrapolating note", "AUC at each of the thresholds"
        caption = "AUC of each index at each of the thresholds it was stored at."
        return {"sensitivity": shown(study.once(Prediction).sensitivity, columns, title, caption, folded=True)}


def shown(frame: Frame, columns: str, title: str, caption: str, empty: str = Table.empty, **more: Any) -> Table:
    """A table of a prediction, predictors under their labels; what stands out are our measures, and all tasks."""
    labels = {name: predictor.label for name, predictor in predictors().items()}
    named = {name: frame[name].map(labels) for name in ("predictor", "measure", "baseline") if name in frame}
    strong = frame["kind"] == "measure" if "kind" in frame else frame.get("task", "") == "all"
    sides = {f"{each.index}_{side}": f"{each.short}, {side}" for each in indices() for side in ("yes", "no")}
    given = of_frame(frame.assign(**named, strong=strong), columns.split() or list(map(str, frame)), **WORDS | sides)
    return Table(caption, **given, title=title, empty=empty, strong="strong", **more)


def scatter(axes: Axes, runs: pd.DataFrame, probe: Probe) -> int:
    """Every run that has it: its index against exact match at twice the training range; how many."""
    judged = runs[np.isfinite(runs[probe.index].astype(float))]
    axes.set(xlabel=f"{probe.label} (in range)", ylabel=f"exact match at\n{FACTORS[0]} × training range")
    axes.set_ylim(-0.06, 1.06)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if judged.empty:
        axes.text(0.5, 0.5, f"no run has\n{probe.label}", ha="center", va="center", transform=axes.transAxes)
    else:
        low, high = min(0.0, float(judged[probe.index].min())), max(1.0, float(judged[probe.index].max()))
        edge = 0.05 * (high - low)
        axes.set_xlim(low - edge, high + edge)
        axes.axhline(EXTRAPOLATES, **CHANCE)
        small: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 5.5, "color": "0.45"}
        axes.text(high + edge, EXTRAPOLATES - 0.015, "extrapolates above", **small)
        theme.points(axes, judged, probe.index, f"exact_{FACTORS[0]}")
    return int(runs[probe.index].notna().sum())


def bar(axes: Axes, y: float, row: Row, colour: str, **mark: Any) -> None:
    """An AUC with its interval."""
    axes.plot([row["auc_low"], row["auc_high"]], [y, y], color=colour, linewidth=1.6, solid_capstyle="butt")
    axes.plot(row["auc"], y, "o", color=colour, markersize=4, clip_on=False, zorder=4, **mark)


def forest(axes: Axes, result: Prediction, narrow: bool = False) -> None:
    """AUC of each predictor with its interval, ours above and baselines below; in a column names stand above bars."""
    table = result.predictors[result.predictors["factor"] == FACTORS[0]].reset_index(drop=True)
    held = (
        result.held_out[result.held_out["tasks"] == "held out"].set_index("predictor") if len(result.held_out) else None
    )
    if table["auc"].isna().all():
        axes.set_axis_off()
        why = textwrap.fill(f"The AUC is not stated: {table['note'].iloc[0]}.", 40)
        axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color="#555555")
        return
    for y, row in enumerate(records(table)):
        colour = COLOURS[row["kind"]]
        if np.isnan(row["auc"]):
            axes.text(0.5, y, row["note"], fontsize=5.5, color="0.45", ha="center", va="center")
            continue
        bar(axes, y, row, colour)
        if held is not None:
            below = y + (0.15 if narrow else 0.3)
            axes.plot(held["auc"][row["predictor"]], below, "D", **HOLLOW, markeredgecolor=colour, clip_on=False)
        label = interval(row["auc"], row["auc_low"], row["auc_high"])
        if narrow:
            axes.text(0, y - 0.42, row["label"], fontsize=6, va="center", transform=axes.get_yaxis_transform())
            axes.text(1, y - 0.42, label, fontsize=6, ha="right", va="center", transform=axes.get_yaxis_transform())
        else:
            axes.text(1.04, y, label, fontsize=6, va="center", transform=axes.get_yaxis_transform())
    axes.axvline(0.5, **CHANCE)
    axes.set_yticks(np.arange(len(table)), table["label"] if not narrow else [""] * len(table))
    axes.set_ylim(len(table) - 0.4, -0.6 - 0.2 * narrow)
    lowest = min(table["auc_low"].min(), table["auc"].min(), held["auc"].min() if held is not None else 1)
    axes.set_xlim(min(0.3, np.floor(lowest * 10) / 10), 1.0)
    far = int(result.runs[f"extrapolates_{FACTORS[0]}"].sum())
    axes.set_title(f"How well each number tells the\n{far} that extrapolate from the rest")
    axes.set_xlabel("AUC, 95 % interval over cells" + ("\n◇ on held-out tasks" if held is not None else ""))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
