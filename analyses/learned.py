"""What networks learned: the relation that heads attend by, and readouts that hold at other input sizes.

A *relation* tells which keys j a query i may single out at input size n. A scheme that learns it adds a bias for every
value u of some linear forms of i, j and n; "form = u" is an *equation*, such as i−j = n. A *readout* is a linear map
from the residual stream to what a step of the task's circuit computes; it is fitted at one n and tested at others.
"""

from collections import defaultdict
from dataclasses import dataclass
from textwrap import fill, wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import MissingError, chosen_readout, measured, records
from lengthlens.analyses.tables import Table, of_frame
from lengthlens.models.schemes.lbpe import NINE
from lengthlens.models.schemes.relation import WIDE, read_form, read_forms
from lengthlens.tasks import TASKS

SCALES = range(3, 9)  # enough for a form that is constant by chance at one n to differ at another
WINDOW = 3  # of values of a form, as `lbpe` has it
ROOM = 1.2  # inches beside the map, for names of runs
MOST, MOST_NARROW = 14, 8  # equations that a page and a column have room for; the rest are counted
COLOURS = "cividis"  # even in lightness, and the same to readers with colour blindness
MAP, LINE = 0.75, 0.11  # inches: of the map of one cell at most, and of a line of letters beside it
MARGIN, NARROW_MARGIN = 1.9, 1.25  # inches beside all maps; in a column the scale of colours is below


@dataclass(frozen=True)
class Learned:
    """Equations of the circuit and those that heads attend to, by cell and by run.

    `cells` has a row for each task and scheme: circuit, attends to, found (seeds that attend to every equation of the
    circuit but the query's own token, which a network has anyway), seeds. `equations` has a row for each run and
    equation: the strongest bias of any head.
    """

    cells: pd.DataFrame
    equations: pd.DataFrame


def circuit_equations(task: str) -> list[str]:
    """Where the sources of a task lie, as the fewest equations that cover all steps of a slot; empty if none do.

    >>> circuit_equations("parity-cot"), circuit_equations("reverse"), circuit_equations("shift")
    (['i−j = n', 'i−j = 0'], ['i+j = 2n+1'], ['i−j = n−1', 'i−j = n', 'i−j = 2n−1'])
    """
    if task not in TASKS or TASKS[task].family != "position-addressed":
        return []
    sources: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for n in SCALES:
        for step in TASKS[task].circuit(n):
            for slot, source in enumerate(step.sources):
                sources[step.operator, slot].append((step.query, source, n))
    return list(dict.fromkeys(text for own in sources.values() for text in covering(np.array(own))))


def covering(sources: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> list[str]:
    """Equations of which at every source (i, j, n) one holds: each time the one that holds at most of what is left.

    Of the nine usual forms, or where those do not do, of the wide family.
    """
    for forms in map(read_forms, (NINE, WIDE)):
        texts, left = list[str](), sources
        while len(left):
            i, j, n = left.T
            tried = [
                (form, value, form.query * i + form.key * j + form.scale * n + form.constant == value)
                for form in forms
                for value in sorted(range(-WINDOW, WINDOW + 1), key=abs)
            ]
            form, value, holds = max(tried, key=lambda each: int(each[2].sum()))  # the first of the best
            if not holds.any():
                break
            texts.append(form.says(value))
            left = left[~holds]
        else:
            return texts
    return []


class LearnedRelations(Finding):
    name, title = "learned", "Which relations were learned?"
    shows = "What the heads of lbpe attend to, beside the relation of the task's circuit."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """A row for each run, a column for each equation: the strongest bias of any head; the circuit's are framed."""
        import seaborn

        equations = study.once(learned).equations
        order = theme.tasks_in_order(equations["row"])
        circuits = {row: circuit_equations(row.partition(theme.RANGE)[0]) for row in order}
        # The equations of the circuits first, then the strongest, as far as there is room.
        shown = list(dict.fromkeys(equation for each in circuits.values() for equation in each))
        strength = equations["bias"].abs().groupby(equations["equation"]).max()
        others = [each for each in strength.sort_values(ascending=False, kind="stable").index if each not in shown]
        room = max(0, (MOST_NARROW if canvas.narrow else MOST) - len(shown))
        shown, rest = [*shown, *others[:room]], len(others[room:])
        runs = equations[["row", "label", "seed", "run"]].drop_duplicates("run")
        runs = runs.assign(place=runs["row"].map(order.index)).sort_values(["place", "label", "seed"])
        values = equations.pivot_table(index="run", columns="equation", values="bias")
        values = values.reindex(index=runs["run"], columns=shown)
        high = (2.1 if canvas.narrow else 1.25) + 0.13 * len(runs)
        axes = canvas.panel(theme.PAGE, min(high, theme.PAGE_HEIGHT))
        # Colours are for tasks that have a relation to learn; other biases may be beyond them.
        positional = [bool(circuits[row]) for row in runs["row"]]
        limit = _strongest(values[positional] if any(positional) else values)
        bar: dict[str, Any] = {"location": "bottom", "aspect": 25} if canvas.narrow else {"aspect": 15, "shrink": 0.8}
        bar |= {"label": "bias on the score\n(attends to +, avoids −)", "pad": 0.02}
        bar |= {"extend": "both" if limit < _strongest(values) else "neither"}
        several = runs["label"].nunique() > 1
        names = [
            f"{theme.literal(row['row'])}{', ' + theme.shown(row['label']) if several else ''}, seed {row['seed']}"
            for row in records(runs)
        ]
        look: dict[str, Any] = {"cmap": "PuOr_r", "vmin": -limit, "vmax": limit, "linewidths": 0.4, "cbar_kws": bar}
        seaborn.heatmap(values, ax=axes, yticklabels=names, xticklabels=False, **look)
        axes.set_facecolor("0.95")
        for y, row in enumerate(runs["row"]):
            for x in (shown.index(equation) for equation in circuits[row] if equation in shown):
                axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="black", linewidth=0.9))
        slanted: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(np.arange(len(shown)) + 0.5, list(map(theme.literal, shown)), **slanted)
        axes.tick_params(length=0)
        more = f"; {rest} weaker equations are left out" if rest else ""
        words = f"key j that query i attends to at input size n; framed: in the task's circuit{more}"
        axes.set(ylabel="", xlabel=fill(words, int((canvas.width(theme.PAGE) - ROOM) * 16)))
        canvas.data |= {"": equations.rename(columns={"row": "task", "label": "scheme"})}

    def tables(self, study: Study) -> dict[str, Table]:
        caption = (
            "What `lbpe` attends to after pruning, and the relation of the task's own circuit; found: seeds that "
            "attend to all of it."
        )
        return {"learned": Table(caption, **of_frame(study.once(learned).cells), title="Learned relations")}


def learned_equations(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a study that are of a learned relation, with a column `equation`: "i−j = n"."""
    rows = rows[rows["form"] != ""]
    return rows.assign(equation=[read_form(form).says(int(u)) for form, u in zip(rows["form"], rows["form_value"])])


def learned(study: Study) -> Learned:
    """What the heads of each run attend to after pruning, beside the circuit."""
    rows = learned_equations(study.rows)
    if rows.empty:
        raise MissingError("no run in the table has a learned relation: train some with a scheme that learns it: lbpe")
    strongest = rows.assign(strength=rows["value"].abs()).sort_values("strength", ascending=False, kind="stable")
    keys = ["row", "label", "seed", "run", "equation"]
    equations = strongest.drop_duplicates(["run", "equation"])[[*keys, "value"]].rename(columns={"value": "bias"})
    heads = rows.groupby(["run", "equation"]).size().rename("heads")
    equations = equations.join(heads, on=["run", "equation"]).sort_values(keys).reset_index(drop=True)
    cells = [_cell(str(task), str(scheme), part) for (task, scheme), part in equations.groupby(["row", "label"])]
    return Learned(pd.DataFrame(cells), equations)


def _cell(task: str, scheme: str, part: pd.DataFrame) -> dict[str, object]:
    circuit = circuit_equations(task.partition(theme.RANGE)[0])
    needed = set(circuit) - {"i−j = 0"}
    attended = part[part["bias"] > 0]
    per_seed = attended.groupby("run")["equation"].agg(set)
    counts = attended.groupby("equation")["run"].nunique().sort_values(ascending=False, kind="stable")
    seeds = part["run"].nunique()
    return {
        "task": task,
        "scheme": scheme,
        "circuit": "; ".join(circuit) or "none that positions tell",
        "attends to": "; ".join(f"{equation} ({count} of {seeds})" for equation, count in counts.items()) or "nothing",
        "found": int(sum(needed <= each for each in per_seed)) if needed else pd.NA,
        "seeds": seeds,
    }


def _strongest(values: pd.DataFrame) -> float:
    return max(1.0, float(np.nanmax(np.abs(values.to_numpy()), initial=1.0)))


# -- readouts --------------------------------------------------------------------------------------------------------


class ReadoutTransfer(Finding):
    name, title = "transfer", "Do readouts transfer between scales?"
    shows = "Accuracy of readouts fitted at one input size and tested at another."

    def draw(self, study: Study, canvas: Canvas) -> None:
        """A heat map for each scheme (row) and task (column): n in the fit upwards, n in the test to the right.

        All are parts of one map. A thin white line in each is the end of the training range.
        """
        import seaborn

        means = study.once(accuracies)
        if means.empty:
            raise MissingError("the table has no transfer of readouts in a run that is accurate in range")
        schemes, tasks = theme.schemes_in_order(means["label"]), theme.tasks_in_order(means["row"])
        fits, tests = sorted(means["fit_scale"].unique()), sorted(means["scale"].unique())
        values = means.pivot(index=["label", "fit_scale"], columns=["row", "scale"], values="accuracy")
        upwards = pd.MultiIndex.from_product([schemes, fits[::-1]])
        values = values.reindex(index=upwards, columns=pd.MultiIndex.from_product([tasks, tests]))
        margin = NARROW_MARGIN if canvas.narrow else MARGIN
        side = min(MAP, (canvas.width(theme.PAGE) - margin) / len(tasks))
        high = (1.55 if canvas.narrow else 1.0) + side * len(schemes)
        axes = canvas.panel(margin + side * len(tasks), min(high, theme.PAGE_HEIGHT))
        bar: dict[str, Any] = {"location": "bottom", "shrink": 0.8, "aspect": 25}
        bar = bar if canvas.narrow else {"aspect": 15, "shrink": min(1.0, 2.0 / high)}
        bar |= {"label": "accuracy of the readout", "pad": 0.02}
        look: dict[str, Any] = {"cmap": COLOURS, "vmin": 0, "vmax": 1, "cbar_kws": bar, "rasterized": True}
        seaborn.heatmap(values, ax=axes, xticklabels=False, yticklabels=False, **look)
        axes.set_facecolor("0.93")
        axes.vlines(np.arange(len(tasks) + 1) * len(tests), 0, len(upwards), "white", linewidth=5 * side)
        axes.hlines(np.arange(len(schemes) + 1) * len(fits), 0, values.shape[1], "white", linewidth=5 * side)
        for x, task in enumerate(tasks):
            trained = means.loc[means["row"] == task, "train_max"].max()
            if not pd.isna(trained):
                end = x * len(tests) + np.searchsorted(tests, trained, side="right")
                axes.axvline(end, color="white", linewidth=2.5 * side)
        slanted: dict[str, Any] = {"rotation": 40, "ha": "left", "rotation_mode": "anchor"}
        axes.set_xticks((np.arange(len(tasks)) + 0.5) * len(tests), list(map(theme.literal, tasks)), **slanted)
        letters, room = 16 if canvas.narrow else 22, max(1, int(side / LINE))
        lines = [wrap(theme.shown(scheme), letters) for scheme in schemes]
        cut = ["\n".join(each[:room]) + (" …" if len(each) > room else "") for each in lines]
        axes.set_yticks((np.arange(len(schemes)) + 0.5) * len(fits), cut)
        axes.tick_params(length=0, top=True, labeltop=True, labelbottom=False, labelleft=False, labelright=True)
        ends = f"tested at n = {tests[0]} … {tests[-1]}, grey: no accurate run"
        axes.set(xlabel=ends, ylabel=f"fitted at n = {fits[0]} … {fits[-1]}, upwards")
        canvas.data |= {"": means.rename(columns={"row": "task", "label": "scheme"})}

    def tables(self, study: Study) -> dict[str, Table]:
        caption = (
            "Accuracy of readouts (sequential, one layer before the last) at the scale they were fitted at, at others "
            "in range, and beyond it; runs accurate in range."
        )
        rows = summary(study.once(accuracies)).rename(columns={"row": "task", "label": "scheme"})
        return {"transfer": Table(caption, **of_frame(rows), title="Accuracy of readouts", folded=True)}


def accuracies(study: Study) -> pd.DataFrame:
    """Mean accuracy over seeds of readouts fitted at one n and tested at another; runs that are accurate in range.

    Of the sequential readout one layer before the last. Columns: row, label, fit_scale, scale, accuracy, control,
    runs, train_max; the control is the same fit to shuffled labels.
    """
    rows = chosen_readout(measured(study.rows, "transfer"))
    grouped = rows[rows["accurate"].fillna(True)].groupby(["row", "label", "fit_scale", "scale"])
    columns = {"accuracy": ("value", "mean"), "control": ("control", "mean"), "runs": ("run", "nunique")}
    return grouped.agg(**columns, train_max=("train_max", "max")).reset_index()


def summary(means: pd.DataFrame) -> pd.DataFrame:
    """For each cell: how well readouts of another n in range decode, and those in range decode beyond it."""
    beyond = (means["scale"] > means["train_max"]).fillna(False)
    other = means["fit_scale"] != means["scale"]
    parts = {"own scale": ~other, "another scale in range": other & ~beyond, "beyond the range": beyond}
    keys = ["row", "label"]
    columns = {name: means[mask].groupby(keys)["accuracy"].mean() for name, mask in parts.items()}
    columns["shuffled labels"] = means.groupby(keys)["control"].mean()
    return pd.DataFrame({**columns, "runs": means.groupby(keys)["runs"].max()}).reset_index()
