"""What may tell, before looking at long inputs, whether a run will extrapolate: our indices, and dull rivals.

Each predictor has a sign that is fixed beforehand, so that higher always means "will extrapolate": growth counts
against a run, so does a high loss, and a large margin for it. A predictor that is right the other way round scores
below one half.

Two rivals are base rates: the mean exact match beyond the range of all *other* runs of the same family of schemes, or
of the same scheme. They look at what the others did on long inputs, other seeds of the same task included, which no
honest prediction could; that makes them hard to beat.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from lengthlens.errors import Registry


class Predictor(NamedTuple):
    """`kind` is "measure" (ours, in range), "verdict" (before training) or "control"."""

    label: str
    kind: str
    sign: int = 1


PREDICTORS: Registry[Predictor] = Registry(
    "predictor",
    {
        "iota_src": Predictor("ι of measured SRC", "measure", -1),
        "iota_lrc": Predictor("ι of measured LRC", "measure", -1),
        "iota_cover": Predictor("ι of cover number", "measure", -1),
        "verdict": Predictor("verdict before training", "verdict"),
        "train_loss": Predictor("training loss", "control", -1),
        "in_range_exact_match": Predictor("in-range exact match", "control"),
        "margin": Predictor("margin", "control"),
        "family": Predictor("other runs of the family", "control"),
        "scheme": Predictor("other runs of the scheme", "control"),
    },
)
BASE_RATES = ("family", "scheme")
SIDES = {"possible": 1.0, "pe-limited": 0.0, "task-limited": 0.0, "refused": 0.0}


def scores(runs: pd.DataFrame, name: str, factor: int) -> "pd.Series[float]":
    """What a predictor says of each run, higher for "will extrapolate"; missing where it says nothing.

    A content-addressed task has no verdict on positions. Base rates are in the columns of `with_base_rates`.
    """
    if name == "verdict":
        return runs["verdict"].map(SIDES).astype(float)
    column = f"{name}_rate_{factor}" if name in BASE_RATES else name
    return PREDICTORS[name].sign * runs[column].astype(float)


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
