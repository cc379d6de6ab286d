"""Every figure and table of a study by name. What the study lacks is said where the figure would be."""

from collections.abc import Callable, Sequence
from functools import cached_property

import pandas as pd
from matplotlib.figure import Figure

from lengthlens.analyses import (
    extrapolation,
    front,
    growth,
    learned,
    outcome,
    pola,
    pruning,
    records,
    tables,
    theme,
    transfer,
)
from lengthlens.analyses.invariance import Invariance, invariance
from lengthlens.analyses.table import MissingError
from lengthlens.errors import Registry


class Gallery:
    """The figures and tables of one study; what several of them need is computed once.

    `missing` collects, by name, a sentence for each that has nothing to show.

    >>> from lengthlens.analyses.table import as_study
    >>> gallery = Gallery(as_study(pd.DataFrame()))
    >>> _ = gallery.figure("pola")
    >>> gallery.missing["pola"]
    'the table has no position-only linear attention: `lengthlens reproduce` adds it'
    """

    def __init__(self, table: pd.DataFrame, held_out: Sequence[str] = ()) -> None:
        self.table, self.held_out = table, tuple(held_out)
        self.missing: dict[str, str] = {}

    @cached_property
    def invariance(self) -> Invariance:
        return invariance(self.table, self.held_out)

    @cached_property
    def records(self) -> pd.DataFrame:
        return records.best(self.table)

    def figure(self, name: str) -> Figure:
        """The figure of this name; one that says what is missing where there is nothing to draw."""
        draw = FIGURES[name].draw
        try:
            return draw(self)
        except MissingError as missing:
            self.missing[name] = str(missing)
            return theme.saying(f"{name}: {missing}")

    def tables(self) -> dict[str, tables.Table]:
        """All tables there is something to put into, by name."""
        found: dict[str, tables.Table] = {}
        for name, make in TABLES.items():
            try:
                found |= make(self)
            except MissingError as missing:
                self.missing[name] = str(missing)
        return found


class Drawing:
    """How a figure is drawn, and what it shows, in a sentence."""

    def __init__(self, draw: Callable[[Gallery], Figure], shows: str) -> None:
        self.draw, self.shows = draw, shows


FIGURES: Registry[Drawing] = Registry(
    "figure",
    {
        "front": Drawing(
            lambda g: front.plot(g.invariance),
            "Growth of measured SRC inside the training range against exact match beyond it, and how well it and every "
            "rival tell the runs that extrapolate.",
        ),
        "extrapolation": Drawing(
            lambda g: extrapolation.plot(g.table), "Exact match against length, for each task and scheme."
        ),
        "invariance": Drawing(
            lambda g: front.plot_measures(g.invariance), "The three indices against exact match beyond the range."
        ),
        "sensitivity": Drawing(
            lambda g: front.plot_sensitivity(g.invariance), "How much the AUC depends on the thresholds of the probes."
        ),
        "outcome": Drawing(lambda g: outcome.plot(g.table), "The verdict before training against what training gave."),
        "pruning": Drawing(
            lambda g: pruning.plot(g.table),
            "The same trained weights with and without the biases that no answer in range needs: growth of SRC, and "
            "exact match beyond the range.",
        ),
        "growth-src": Drawing(lambda g: growth.plot(g.table, "src"), "Growth of measured SRC with scale."),
        "growth-lrc": Drawing(lambda g: growth.plot(g.table, "lrc"), "Growth of measured LRC with scale."),
        "transfer": Drawing(
            lambda g: transfer.plot(g.table), "Accuracy of readouts fitted at one scale and tested at another."
        ),
        "learned": Drawing(
            lambda g: learned.plot(g.table), "What the heads of lbpe go by, beside the relation of the task's circuit."
        ),
        "pola": Drawing(
            lambda g: pola.plot_study(g.table),
            "Position-only linear attention: error and complexity against scale. A scheme without a line of LRC cannot "
            "represent the target.",
        ),
        "records": Drawing(
            lambda g: records.plot(g.records),
            "Exact match from the training range to a thousand times beyond, every scheme at its better scaling of "
            "attention scores; a star at each goal.",
        ),
    },
)
TABLES: dict[str, Callable[[Gallery], dict[str, tables.Table]]] = {
    "predictors": lambda g: tables.invariance_tables(g.invariance),
    "cells": lambda g: {"cells": tables.cells_table(g.table)},
    "outcome": lambda g: tables.outcome_tables(outcome.outcome(g.table)),
    "pruning": lambda g: {"pruning": tables.pruning_table(g.table)},
    "transfer": lambda g: {"transfer": tables.transfer_table(g.table)},
    "learned": lambda g: {"learned": tables.learned_table(g.table)},
    "pola": lambda g: {"pola": tables.pola_table(g.table)},
    "records": lambda g: records.tables(g.records),
}
