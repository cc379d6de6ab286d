"""A study as analyses see it: what several of them need is computed once, and every figure is drawn once.

A finding is one question to a study: one class, with a figure and tables, and one line in
`lengthlens.analyses.findings`. What the study lacks is said where the figure would be.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.table import CELL, Index, MissingError, indices, of_runs, per_run
from lengthlens.analyses.tables import Table
from lengthlens.errors import unknown
from lengthlens.notebook import Share, card

Found = TypeVar("Found")


class Study:
    """The table of a study with its provenance, and the tasks that were held out: those given, else those it names.

    `rows` and `runs` have a column `label` beside those of the table: the scheme, with recipe and training range where
    a task has it with several. So (task, label) names a cell.

    >>> from lengthlens.analyses.table import as_study
    >>> study = Study(as_study(pd.DataFrame({"task": ["copy"], "scheme": "rope", "measure": "steps", "value": 9})))
    >>> study.runs["label"].tolist(), study.runs["steps"].tolist()
    (['rope'], [9.0])
    """

    def __init__(
        self, table: pd.DataFrame, about: Mapping[str, Any] | None = None, held_out: Sequence[str] | None = None
    ) -> None:
        self.about = dict(about or {})
        trained = table[table["target"] == ""]
        tasks = set(trained["task"])
        for task in held_out or ():
            if task not in tasks:
                raise unknown("task in the table", task, sorted(tasks))
        named = self.about.get("held_out", ()) if held_out is None else held_out
        self.held_out = tuple(task for task in named if task in tasks)
        several = trained.groupby(["task", "scheme"])[["recipe", "train_max"]].nunique() > 1
        self._recipes, self._ranges = (set(several.index[several[name]]) for name in ("recipe", "train_max"))
        self.table = table.assign(label=self.labels(table))
        self.missing: dict[str, str] = {}  # by finding, why there is nothing to show
        self._found: dict[Any, Any] = {}
        self._figures: dict[str, Figure] = {}

    def __repr__(self) -> str:
        runs = self.runs
        return f"Study({len(runs)} runs, {runs['task'].nunique()} tasks, {runs['scheme'].nunique()} schemes)"

    def _repr_html_(self) -> str:
        runs = self.runs
        facts = {"title": self.about.get("title"), "runs": len(runs), "held-out tasks": ", ".join(self.held_out)}
        if "exact_2" not in runs or not runs["exact_2"].notna().any():
            return card("study", facts)
        mean = runs.groupby(["task", "label"], sort=False)["exact_2"].agg(["mean", "count"]).dropna().reset_index()
        table = [
            {"task": task, "scheme": label, "exact match at 2 × the training range": Share(share), "runs": number}
            for task, label, share, number in mean.itertuples(index=False)
        ]
        return card("study", facts, table)

    def labels(self, rows: pd.DataFrame) -> list[str]:
        """The scheme and, where a task has it with several, recipe and training range, as options are written."""
        found = []
        for task, scheme, recipe, train_max in zip(*(rows[name] for name in CELL)):
            parts = [scheme, *(recipe.split(", ") if recipe and (task, scheme) in self._recipes else [])]
            parts += [f"train_max={train_max}"] if (task, scheme) in self._ranges and not pd.isna(train_max) else []
            found.append("/".join(parts))
        return found

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows that belong to runs."""
        return of_runs(self.table)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row for each run; see `lengthlens.analyses.table.per_run`."""
        found = per_run(self.table)
        return found.assign(label=self.labels(found))

    @cached_property
    def indices(self) -> list[Index]:
        """The invariance indices that its runs have."""
        return indices(self.rows)

    def once(self, compute: "Callable[[Study], Found]") -> Found:
        """What a function finds in this study, computed when it is first asked for."""
        if compute not in self._found:
            self._found[compute] = compute(self)
        found: Found = self._found[compute]
        return found

    def figure(self, finding: "Finding") -> Figure:
        """The figure of a finding, drawn and laid out once; one that says what is missing if there is nothing."""
        if finding.name not in self._figures:
            try:
                figure = finding.figure(self)
            except MissingError as missing:
                self.missing[finding.name] = str(missing)
                figure = theme.saying(f"{finding.name}: {missing}")
            with theme.style():
                for _ in range(2):  # room for the label of a colour bar is known only once its ticks have a place
                    figure.draw_without_rendering()
            figure.set_layout_engine("none")
            self._figures[finding.name] = figure
        return self._figures[finding.name]

    def tables(self, finding: "Finding") -> dict[str, Table]:
        """The tables of a finding there is something to put into, by name."""
        try:
            return finding.tables(self)
        except MissingError as missing:
            self.missing[finding.name] = str(missing)
            return {}


class Finding:
    """A question to a study. Subclasses say what they are called and show, and draw; tables they may have."""

    name: str
    title: str  # the heading of its section on the page
    shows: str  # what the figure shows, in a sentence

    def figure(self, study: Study) -> Figure:
        """The figure; `MissingError` with a sentence where the study lacks what it is made of."""
        raise NotImplementedError

    def tables(self, study: Study) -> dict[str, Table]:
        """Tables, by name of their file."""
        return {}
