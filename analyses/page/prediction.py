"""What predicts extrapolation, as the page says it: one sentence, and the tables behind it."""

from typing import NamedTuple

import pandas as pd

from lengthlens.analyses.gallery import Gallery
from lengthlens.analyses.invariance import Invariance
from lengthlens.analyses.page.tables import Table, frame_table
from lengthlens.analyses.predictors import PREDICTORS
from lengthlens.analyses.table import FACTORS, MissingError

SIZES = {"runs": "runs", "groups": "cells", "extrapolating": "extrapolating"}
ASSOCIATION = {"auc": "AUC", "spearman": "Spearman", "kendall": "Kendall"}
READING = (
    "AUC: the chance that a run which extrapolates is ranked above one which does not; ½ is chance. "
    "In brackets 95 % intervals of a bootstrap over whole cells of task and embedding."
)


class Prediction(NamedTuple):
    """The finding in a sentence, what goes with it, and its tables."""

    finding: str
    beside: list[str]
    tables: list[Table]


def prediction(gallery: Gallery) -> Prediction:
    """What can be said of a study; where nothing can, the finding is why."""
    try:
        found = gallery.invariance
    except MissingError as missing:
        return Prediction(f"Nothing can be said yet: {missing}.", [], [])
    beside = [f"{text[:1].upper()}{text[1:]}." for text in found.notes]
    return Prediction(found.headline, beside, tables(found))


def tables(found: Invariance) -> list[Table]:
    """Measures and rivals side by side, then what could explain the measures away."""
    return [
        *(predictors_table(found.predictors, factor) for factor in FACTORS),
        *([held_out_table(found.held_out)] if len(found.held_out) else []),
        left_out_table(found.left_out),
        versus_table(found.versus),
        within_table(found.within),
        added_table(found.added),
        both_ways_table(found.both_ways),
    ]


def predictors_table(predictors: pd.DataFrame, factor: int) -> Table:
    own = predictors[predictors["factor"] == factor]
    return frame_table(
        f"predictors-{factor}",
        f"Telling runs that extrapolate to {factor} times the training range",
        own.assign(main=own["kind"] == "measure"),
        {"label": "predictor", **ASSOCIATION, **SIZES, "note": "note"},
        intervals=tuple(ASSOCIATION),
        main="main",
        note=f"Ours in bold, rivals below. {READING}",
    )


def held_out_table(held_out: pd.DataFrame) -> Table:
    return frame_table(
        "held-out",
        "On the tasks held out, and on the others",
        held_out.assign(main=held_out["kind"] == "measure"),
        {"tasks": "tasks", "label": "predictor", **ASSOCIATION, **SIZES, "note": "note"},
        intervals=tuple(ASSOCIATION),
        main="main",
        note="Neither thresholds nor the training recipe were chosen on the tasks held out.",
    )


def left_out_table(left_out: pd.DataFrame) -> Table:
    return frame_table(
        "left-out",
        "A threshold chosen on all other tasks",
        labelled(left_out).assign(main=left_out["task"] == "all"),
        {"label": "predictor", "task": "task", "balanced_accuracy": "balanced accuracy", "threshold": "threshold"}
        | {"runs": "runs", "extrapolating": "extrapolating", "note": "note"},
        intervals=("balanced_accuracy",),
        main="main",
        note="How well each predictor calls the runs of a task it was not tuned on; in bold over all tasks.",
        empty="There are fewer than two tasks, so none can be left out.",
        folded=True,
    )


def versus_table(versus: pd.DataFrame) -> Table:
    named = versus.assign(
        measure=versus["measure"].map(lambda name: PREDICTORS[name].label),
        rival=versus["rival"].map(lambda name: PREDICTORS[name].label),
    )
    return frame_table(
        "versus",
        "Our measures against each rival",
        named,
        {"measure": "measure", "rival": "rival", "difference": "AUC minus the rival’s", "runs": "runs", "note": "note"},
        intervals=("difference",),
        note="On the same runs. An interval that contains 0 means that the rival does as well.",
        folded=True,
    )


def within_table(within: pd.DataFrame) -> Table:
    return frame_table(
        "within",
        "Among runs of the same task, embedding, verdict or cell",
        labelled(within),
        {"label": "predictor", "within": "the same", "auc": "AUC", "strata": "groups", "runs": "runs", "note": "note"},
        intervals=("auc",),
        note="What differs between the groups cannot help here; within a cell only the seed differs.",
        folded=True,
    )


def added_table(added: pd.DataFrame) -> Table:
    return frame_table(
        "added",
        "What a measure adds to the verdict before training",
        labelled(added),
        {"label": "measure", "what": "what", "value": "value", "runs": "runs", "groups": "cells", "note": "note"},
        intervals=("value",),
        note="Log loss in nats per run, each task judged by what was fitted on the others.",
        folded=True,
    )


def both_ways_table(both_ways: pd.DataFrame) -> Table:
    return frame_table(
        "both-ways",
        "Cells that go both ways",
        both_ways,
        {
            "task": "task",
            "scheme": "scheme",
            "extrapolating": "extrapolating",
            "runs": "runs",
            "iota_src_yes": "ι of SRC, those that do",
            "iota_src_no": "those that do not",
            "iota_lrc_yes": "ι of LRC, those that do",
            "iota_lrc_no": "those that do not ",
        },
        note="Some seeds extrapolate and others do not: here neither task nor embedding can tell.",
        empty="In every cell all accurate runs did the same.",
    )


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(label=frame["predictor"].map(lambda name: PREDICTORS[name].label))
