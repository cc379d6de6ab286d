"""The relation that heads learned to attend by, beside the relation that the task's own circuit has."""

from collections import defaultdict
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from lengthlens.analyses import theme
from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import MissingError, records
from lengthlens.analyses.tables import Table, of_frame
from lengthlens.models.schemes.lbpe import NINE
from lengthlens.models.schemes.relation import WIDE, read_form, read_forms
from lengthlens.tasks import TASKS

SCALES = range(3, 9)  # enough for a form that is constant by chance at one scale to differ at another
WINDOW = 3  # of values of a form, as `lbpe` has it
ROOM = 1.2  # inches beside the map, for names of runs
BIAS = "bias on the score\n(attends to +, avoids −)"
MOST, MOST_NARROW = 14, 8  # equations that a page and a column have room for; the rest are counted


@dataclass(frozen=True)
class Learned:
    """The finding, cell by cell: equations of the circuit, those that heads attend to, and how many seeds found them.

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
        found = study.once(learned).equations
        order = theme.tasks_in_order(found["row"])
        circuits = {row: circuit_equations(row.partition(theme.RANGE)[0]) for row in order}
        shown, rest = _columns(found, circuits, MOST_NARROW if canvas.narrow else MOST)
        runs = found[["row", "label", "seed", "run"]].drop_duplicates("run")
        runs = runs.assign(place=runs["row"].map(order.index)).sort_values(["place", "label", "seed"])
        values = found.pivot_table(index="run", columns="equation", values="bias")
        values = values.reindex(index=runs["run"], columns=shown)
        high = (2.1 if canvas.narrow else 1.25) + 0.13 * len(runs)
        axes = canvas.panel(theme.PAGE, min(high, theme.PAGE_HEIGHT))
        # Colours are for tasks that have a relation to find; what is left elsewhere may be off the scale.
        told = [bool(circuits[row]) for row in runs["row"]]
        limit = _strongest(values[told] if any(told) else values)
        look: dict[str, Any] = {
            "cmap": "PuOr_r",
            "vmin": -limit,
            "vmax": limit,
            "edgecolors": "white",
            "linewidth": 0.4,
        }
        image = axes.pcolormesh(values.to_numpy(float), **look)
        axes.set_ylim(len(runs), 0)
        axes.spines[:].set_visible(False)
        where: dict[str, Any] = {"location": "bottom", "aspect": 25} if canvas.narrow else {"aspect": 15, "shrink": 0.8}
        extend = "both" if limit < _strongest(values) else "neither"
        canvas.figure.colorbar(image, ax=axes, label=BIAS, extend=extend, pad=0.02, **where)
        axes.set_facecolor("0.95")
        for y, row in enumerate(runs["row"]):
            for x in (shown.index(equation) for equation in circuits[row] if equation in shown):
                axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="black", linewidth=0.9))
        several = runs["label"].nunique() > 1
        names = [
            f"{theme.literal(row['row'])}{', ' + theme.shown(row['label']) if several else ''}, seed {row['seed']}"
            for row in records(runs)
        ]
        axes.set_yticks(np.arange(len(names)) + 0.5, names)
        slanted: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(np.arange(len(shown)) + 0.5, list(map(theme.literal, shown)), **slanted)
        axes.tick_params(length=0)
        more = f"; {rest} weaker equations are left out" if rest else ""
        words = f"a key j, seen from query i at scale n; framed: the circuit's own{more}"
        axes.set(ylabel="", xlabel=fill(words, int((canvas.width(theme.PAGE) - ROOM) * 16)))
        canvas.data |= {"": found.rename(columns={"row": "task", "label": "scheme"})}

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


def _columns(found: pd.DataFrame, circuits: dict[str, list[str]], most: int) -> tuple[list[str], int]:
    """The equations to show, those of the circuits first and then the strongest, and how many are left out."""
    own = list(dict.fromkeys(equation for each in circuits.values() for equation in each))
    strength = found["bias"].abs().groupby(found["equation"]).max().sort_values(ascending=False, kind="stable")
    others = [equation for equation in strength.index if equation not in own]
    room = max(0, most - len(own))
    return [*own, *others[:room]], len(others[room:])
