"""A study as analyses see it: what several of them need is computed once, and every figure is drawn once.

A finding is one question to a study: one class, with a figure and tables, and one line in
`lengthlens.analyses.findings`. What the study lacks is said where the figure would be.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.table import CELL, MissingError, as_study, indices, of_runs, per_run, read_study
from lengthlens.analyses.tables import Table, several
from lengthlens.errors import unknown
from lengthlens.notebook import Share, card
from lengthlens.probes.probe import Probe

Result = TypeVar("Result")


class Study:
    """The table of a study with its provenance, and the tasks that were held out: those given, else those it names.

    `rows` and `runs` have two columns beside those of the table. `row` is the task, with the training range where the
    study has the task with several; `label` is the scheme, and where it has several recipes, what of them differs.
    Together they name a cell.

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
        recipes = trained.groupby(["task", "scheme"])["recipe"].unique()
        self._shared = {  # by task and scheme with several recipes: what all of them say
            cell: set.intersection(*(set(each.split(", ")) for each in own))
            for cell, own in recipes.items()
            if len(own) > 1
        }
        ranges = trained.groupby("task")["train_max"].nunique() > 1
        self._ranges = set(ranges.index[ranges])
        self.table = self.named(table)
        self.missing: dict[str, str] = {}  # by finding, why there is nothing to show
        self._computed: dict[Any, Any] = {}
        self._drawn: dict[Any, Canvas] = {}

    @classmethod
    def of(cls, given: "Study | pd.DataFrame | str | Path", held_out: Sequence[str] | None = None) -> "Study":
        """A study from what there is of it: itself, its table, or the file in which it stands."""
        if isinstance(given, Study):
            return given
        table, about = read_study(given) if isinstance(given, str | Path) else (as_study(given), {})
        return cls(table, about, held_out)

    def __repr__(self) -> str:
        runs = self.runs
        return f"Study({len(runs)} runs, {runs['task'].nunique()} tasks, {runs['scheme'].nunique()} schemes)"

    def _repr_html_(self) -> str:
        runs = self.runs
        facts = {"title": self.about.get("title"), "runs": len(runs), "held-out tasks": ", ".join(self.held_out)}
        if "exact_2" not in runs or not runs["exact_2"].notna().any():
            return card("study", facts)
        mean = runs.groupby(["row", "label"], sort=False)["exact_2"].agg(["mean", "count"]).dropna().reset_index()
        table = [
            {"task": task, "scheme": label, "exact match at 2 × the training range": Share(share), "runs": number}
            for task, label, share, number in mean.itertuples(index=False)
        ]
        return card("study", facts, table)

    def named(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame, whose columns name cells, with the columns `row` and `label`."""
        cells, rows, labels = frame[CELL].drop_duplicates(), [], []
        for task, scheme, recipe, train_max in zip(*(cells[name] for name in CELL)):
            several = task in self._ranges and not pd.isna(train_max)
            rows.append(f"{task}{theme.RANGE}{train_max})" if several else task)
            shared = self._shared.get((task, scheme))
            options = [] if shared is None else [each for each in recipe.split(", ") if each and each not in shared]
            labels.append("/".join([scheme, *options]))
        names = frame[CELL].merge(cells.assign(row=rows, label=labels), on=CELL, how="left")
        return frame.assign(row=names["row"].array, label=names["label"].array)

    @property
    def title(self) -> str:
        """What it is called: as its provenance says, else how much of what it has."""
        if self.about.get("title"):
            return str(self.about["title"])
        trained = self.table[self.table["target"] == ""]
        tasks, schemes = trained["task"].nunique(), trained["scheme"].nunique()
        return f"Length extrapolation: {several(tasks, 'task')} under {several(schemes, 'position embedding')}"

    def select(self, tasks: Iterable[str] = (), schemes: Iterable[str] = (), seeds: Iterable[int] = ()) -> "Study":
        """The part of it with these tasks, schemes and seeds; without names of a kind, all of that kind.

        A scheme is named as in the table, with its options, or without them for all of its options. Position-only
        linear attention has no tasks and no seeds, and stays.
        """
        if not (tasks or schemes or seeds):
            return self
        rows, mask = self.table, pd.Series(True, index=self.table.index)
        if names := list(tasks):
            known = rows["task"].where(rows["target"] == "").dropna()
            mask &= rows["task"].isin(chosen("task in the study", names, known)) | (rows["target"] != "")
        if names := list(schemes):
            bare = rows["scheme"].map(theme.bare)
            exact = rows["scheme"].isin(names) | rows["label"].isin(names)
            chosen("scheme in the study", names, pd.concat([rows["scheme"], rows["label"], bare]))
            loose = [name for name in names if name not in set(rows["scheme"]) | set(rows["label"])]
            mask &= exact | bare.isin(loose)
        if numbers := list(seeds):
            chosen("seed in the study", numbers, rows["seed"].dropna())
            mask &= rows["seed"].isin(numbers) | rows["seed"].isna()
        table = rows[mask].drop(columns=["row", "label"]).reset_index(drop=True)
        left = set(table.loc[table["target"] == "", "task"])
        return Study(table, self.about, [task for task in self.held_out if task in left])

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows that belong to runs."""
        return of_runs(self.table)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row for each run; see `lengthlens.analyses.table.per_run`."""
        return per_run(self.table)

    @cached_property
    def indices(self) -> list[Probe]:
        """The probes whose invariance indices its runs have."""
        return indices(self.rows)

    def once(self, compute: "Callable[[Study], Result]") -> Result:
        """What a function computes from this study, or what it misses, computed when it is first asked for."""
        if compute not in self._computed:
            try:
                self._computed[compute] = compute(self)
            except MissingError as missing:
                self._computed[compute] = missing
        result: Result | MissingError = self._computed[compute]
        if isinstance(result, MissingError):
            raise result
        return result

    def drawing(self, finding: "Finding", width: float | None = None, height: float | None = None) -> Canvas:
        """The figure of a finding with the numbers drawn, drawn once; it says what is missing if there is nothing."""
        key = finding.name, width, height
        if key not in self._drawn:
            canvas = self._drawn[key] = Canvas(width=width, height=height)
            try:
                with theme.style():
                    finding.draw(self, canvas)
            except MissingError as missing:
                self.missing[finding.name] = str(missing)
                canvas.say(f"{finding.name}: {missing}")
        return self._drawn[key]

    def tables(self, finding: "Finding") -> dict[str, Table]:
        """The tables of a finding there is something to put into, by name."""
        try:
            return self.once(finding.tables)
        except MissingError as missing:
            self.missing[finding.name] = str(missing)
            return {}


def chosen(kind: str, names: Sequence[Any], known: Iterable[Any]) -> Sequence[Any]:
    """The names, if all of them are known."""
    there = dict.fromkeys(known)
    for name in names:
        if name not in there:
            raise unknown(kind, str(name), [str(each) for each in there if each != ""])
    return names


class Finding:
    """A question to a study. Subclasses say what they are called and show, and draw; tables they may have."""

    name: str
    title: str  # the heading of its section on the page
    shows: str  # what the figure shows, in a sentence

    def draw(self, study: Study, canvas: Canvas) -> None:
        """Draw on the panels of a canvas; `MissingError` with a sentence where the study lacks what it is made of.

        The canvas has any width, or axes that a user has.
        """
        raise NotImplementedError

    def tables(self, study: Study) -> dict[str, Table]:
        """Tables, by name of their file."""
        return {}
