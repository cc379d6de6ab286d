"""The page: one self-contained file that shows the results of a study, and lets one look at every cell of it.

It fetches nothing and runs no other script. Every name from the data is escaped, and the same table gives the
same bytes. Each finding has a section with its figure and its tables; the page names none of them.
"""

import base64
import hashlib
import html
import io
import itertools
import json
import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.findings import findings
from lengthlens.analyses.learned import learned_equations
from lengthlens.analyses.outcome import outcome
from lengthlens.analyses.prediction import Prediction
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import FACTORS, ONCE, MissingError, declared, records
from lengthlens.analyses.tables import Table, several
from lengthlens.probes.probe import Probe

RUNS, IN_RANGE, BEYOND = "runs", "accurate in range", "of these extrapolate to 2×"
LEVELS = (0.1, 0.5, 0.9, 0.995)  # of exact match, between the colours of the matrix
PIXELS = 120  # of the page for an inch of paper, so that the small letters of a paper can be read
WIDE = 5.0  # inches from which a figure is too wide for a phone, and scrolls there in a box
SVG = {"svg.fonttype": "path", "svg.hashsalt": "lengthlens"}  # letters as shapes, since a phone has other fonts

Cell = dict[str, Any]
Point = list[Any]
CELL = ("row", "label")  # columns of a study that name a cell
DIFFERS = {  # "possible" promises no more than that positions do not stand in the way
    "does not extrapolate": "Possible, but did not extrapolate",
    "not accurate in range": "Possible, but not learned in range",
}


def part(*names: str) -> str:
    """Files of this directory, one after the other."""
    here = files("lengthlens.analyses.page")
    return "".join(here.joinpath(name).read_text(encoding="utf-8") for name in names)


TERMS: dict[str, str] = tomllib.loads(part("glossary.toml"))  # by term, what it means
OCCURS = re.compile(
    "|".join(rf"(?<![\w:-]){re.escape(term)}(?![\w=-])" for term in sorted(TERMS, key=len, reverse=True))
)


def page(study: Study) -> str:
    """The whole page of a study; what the study has computed and drawn already is taken from it."""
    cells, about, grown = all_cells(study), study.about, [each for each in study.indices if each.growth]
    sections = [section(finding, study) for finding in findings(study).values()]
    of_script = {
        "cells": cells,
        "multiples": FACTORS,
        "indices": [{"name": each.index, "label": each.short} for each in study.indices],
        "growth": [{"curve": each.curve, "index": each.index, "title": each.growth} for each in grown],
    }
    return rendered(
        "page.html", ["page.css"], ["common.js", "page.js"], title=study.title, data=of_script,
        made=about.get("made", "unknown date"), lead=lead(cells), **headline(study), facts=facts(cells),
        sections=sections, terms={term: coded(escape(words)) for term, words in TERMS.items()},
        matrix=matrix(cells), multiples=FACTORS, failures=failures_table(cells), runs=runs_table(cells, study.indices),
        **provenance(about),
    )  # fmt: skip


def rendered(page: str, styles: Sequence[str], scripts: Sequence[str], **values: Any) -> str:
    """A page from its template, in which everything is escaped unless it says otherwise, with styles and scripts."""
    surroundings = Environment(
        loader=FunctionLoader(part), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    surroundings.filters["terms"] = marked
    surroundings.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    parts = {"style": part(*styles), "script": part(*scripts)}
    for name, text in list(parts.items()):  # by its digest, a browser knows this page's style and script from any other
        parts[f"{name}_hash"] = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return surroundings.get_template(page).render(**parts, **values)


def lead(cells: Sequence[Cell]) -> str:
    """What was done and what is asked, for a reader who knows nothing of it; nothing where there is no run."""
    counted = {words: int(number) for words, number in facts(cells)}
    runs, accurate, far = (counted[words] for words in (RUNS, IN_RANGE, BEYOND))
    if not runs:
        return ""
    return (
        f"{runs} small Transformers were trained on short inputs of {several(counted['tasks'], 'task')}, with "
        f"{several(counted['position embeddings'], 'position embedding')}, and then given longer ones. {accurate} of "
        "them are accurate in range: they answer at least nine in ten of the short inputs without a mistake, at every "
        f"length. {far} of these do so at twice the length, too. What tells them apart before any long input is seen?"
    )


def marked(text: str) -> Markup:
    """A text as HTML in which the first occurrence of each term is a button that opens what it means, and what stands
    in backticks is code.

    >>> print(marked("AUC < 1 by `probe`"))
    <button type="button" class="term" aria-expanded="false" data-term="AUC">AUC</button> &lt; 1 by <code>probe</code>
    """
    seen, parts, end = set(), [], 0
    for match in OCCURS.finditer(text):
        if match[0] not in seen:
            seen.add(match[0])
            button = '<button type="button" class="term" aria-expanded="false" data-term="{0}">{0}</button>'
            parts += [escape(text[end : match.start()]), Markup(button).format(match[0])]
            end = match.end()
    return coded(Markup("").join([*parts, escape(text[end:])]))


def coded(text: Markup) -> Markup:
    """HTML in which what stands in backticks is code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(text)))


def headline(study: Study) -> dict[str, Any]:
    """The finding in a sentence, and what goes with it; where nothing can be said, why."""
    try:
        prediction = study.once(Prediction)
    except MissingError as missing:
        return {"finding": f"Nothing can be said yet: {missing}.", "beside": []}
    return {"finding": prediction.headline, "beside": prediction.notes}


def section(finding: Finding, study: Study) -> dict[str, Any]:
    """A finding as the page shows it: a picture inside the file itself, or why there is none, and tables as HTML."""
    figure = study.drawing(finding).figure
    missing = study.missing.get(finding.name, "")
    about = {"name": finding.name, "title": finding.title, "shows": finding.shows, "missing": missing}
    about |= {"caption": marked(finding.shows)}
    caption = re.compile(r"(?<=<small>)([^<]*)(?=</small>)")  # of a table, escaped
    tables = [
        caption.sub(lambda match: str(marked(html.unescape(match[1]))), table.html(f"table-{name}"), count=1)
        for name, table in study.tables(finding).items()
    ]
    return {**about, **picture(figure, not missing), "tables": tables}


def picture(figure: Figure, shown: bool = True, narrow: Figure | None = None) -> dict[str, Any]:
    """A figure as the template shows it; on a phone, the narrow one if there is one."""
    pixels = [tuple(round(inches * PIXELS) for inches in each.get_size_inches()) for each in (figure, narrow or figure)]
    return {
        "image": embedded(figure) if shown else "",
        "size": pixels[0],
        "wide": narrow is None and figure.get_figwidth() > WIDE,
        "narrow": "" if narrow is None else embedded(narrow),
        "narrow_size": pixels[1],
    }


def embedded(figure: Figure) -> str:
    """A figure as an address that holds it all. The same figure gives the same text: no dates, no random names."""
    drawn = io.BytesIO()
    with mpl.rc_context(SVG):  # type: ignore[arg-type]
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode()


def facts(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """How much there is, in a few numbers."""
    runs = [run for cell in cells for run in cell["runs"]]
    accurate = [run for run in runs if run["accurate"]]
    tasks, schemes = ({cell[name] for cell in cells} for name in ("task", "scheme"))
    far = [run for run in accurate if run["extrapolates"]]
    counted = {"tasks": tasks, "position embeddings": schemes, RUNS: runs, IN_RANGE: accurate, BEYOND: far}
    return [(words, str(len(those))) for words, those in counted.items()]


def matrix(cells: Sequence[Cell]) -> dict[str, Any]:
    """Tasks by schemes, as the template draws it; None where the study has no such cell."""
    frame = pd.DataFrame(cells, columns=["task", "scheme"])
    tasks, schemes = theme.tasks_in_order(frame["task"]), theme.schemes_in_order(frame["scheme"])
    squares = {(cell["task"], cell["scheme"]): square(cell, place) for place, cell in enumerate(cells)}
    rows = [{"task": task, "cells": [squares.get((task, scheme)) for scheme in schemes]} for task in tasks]
    return {"tasks": tasks, "schemes": schemes, "rows": rows}


def square(cell: Cell, place: int) -> dict[str, Any]:
    """One square of the matrix, at the first of the lengths that it can be looked at."""
    value = cell["at"][str(FACTORS[0])]
    text = "–" if value is None else f"{value:.2f}"
    return {
        "place": place,
        "level": "unknown" if value is None else f"level{sum(value >= bound for bound in LEVELS)}",
        "text": text,
        "sign": theme.VERDICTS.get(cell["verdict"], ("", ""))[1],
        "surprise": bool(cell["surprise"]),
        "doubtful": any(run["accurate"] is False for run in cell["runs"]),
        "label": f"{cell['task']} under {cell['scheme']}: exact match {text} at {FACTORS[0]} times the training range",
    }


def provenance(about: Mapping[str, Any]) -> dict[str, Any]:
    """Date, command, machine class and versions; of the configs of all runs what they share, once, and the rest."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted((about.get("versions") or {}).items()))
    lines = {"made on": about.get("made"), "command": about.get("command"), "machine": about.get("machine")}
    known = [(label, str(value)) for label, value in {**lines, "versions": versions}.items() if value]
    texts: dict[str, dict[str, str]] = {
        name: {key: json.dumps(value) for key, value in config.items()}
        for name, config in sorted((about.get("configs") or {}).items())
    }
    shared = dict(set.intersection(*(set(text.items()) for text in texts.values()))) if texts else {}
    rest = [
        (name, ", ".join(f"{key} = {value}" for key, value in text.items() if key not in shared))
        for name, text in texts.items()
    ]
    shared_config = "\n".join(f"{key} = {value}" for key, value in sorted(shared.items()))
    return {"provenance": known, "configs": rest, "shared_config": shared_config}


# -- cells and runs, in plain values that the script can read ----------------------------------------------------


def all_cells(study: Study) -> list[Cell]:
    """Every cell of a study, tasks and schemes in the order of all figures; POLA has no cells.

    >>> from lengthlens.analyses.table import as_study
    >>> row = {"task": "copy", "scheme": "rope", "run": "r", "seed": 1, "train_max": 10}
    >>> row |= {"measure": "exact_match", "scale": 20, "value": 0.5}
    >>> all_cells(Study(as_study(pd.DataFrame([row]))))[0]["runs"][0]["at"]
    {'2': 0.5, '10': None}
    """
    trained = study.table[study.table["target"] == ""]
    verdicts = trained[trained["measure"] == "verdict"].drop_duplicates(["row", "label"])
    before = {(row["row"], row["label"]): row for row in records(verdicts)}
    runs, against = runs_of_cells(study), contradictions(study)
    circuits = {each.curve: points(trained[trained["measure"] == declared(each)], CELL) for each in study.indices}
    cells = []
    labels = theme.schemes_in_order(sorted(trained["label"].unique()))
    for key in itertools.product(theme.tasks_in_order(trained["row"].unique()), labels):
        if key in before or key in runs:
            of_cell, verdict = runs.get(key, []), before.get(key, {})
            cells.append(
                {
                    "task": key[0],
                    "scheme": key[1],
                    "verdict": verdict.get("verdict", ""),
                    "reasons": verdict.get("reason", ""),
                    "verdict_up_to": whole(verdict.get("scale")),
                    "declared": {curve: circuit.get(key, []) for curve, circuit in circuits.items()},
                    "at": {str(k): mean([run["at"][str(k)] for run in of_cell]) for k in FACTORS},
                    "train_max": next((run["train_max"] for run in of_cell), None),
                    "surprise": " ".join(against.get(key, [])),
                    "runs": of_cell,
                }
            )
    return cells


def runs_of_cells(study: Study) -> dict[tuple[str, str], list[Cell]]:
    """The runs of each cell by seed: how each ended, its scores and curves, what it learned, and what went wrong."""
    try:
        runs = records(study.runs)
    except MissingError:
        return {}
    rows = study.rows
    exact, of_network = rows[rows["measure"] == "exact_match"], rows[rows["head"].isna()]
    failed = rows[rows["measure"] == "converged"].groupby("run")["reason"].first()
    refused = exact[exact["value"].isna() & (exact["reason"] != "")].groupby("run")["reason"].first()
    shown = [each.curve for each in study.indices if each.growth]
    growth = {curve: points(of_network[of_network["measure"] == curve], ["run"]) for curve in shown}
    learned = defaultdict[str, list[str]](list)  # by run, what its heads learned to attend to, a sentence each
    for row in records(learned_equations(rows)):
        verb = "attends to" if row["value"] > 0 else "avoids"
        learned[row["run"]].append(f"layer {row['layer']} head {row['head']} {verb} {row['equation']}")
    scores, cells = points(exact, ["run"]), defaultdict[Any, list[Cell]](list)
    for row in runs:
        name = row["run"]
        cells[row["row"], row["label"]].append(
            {
                **{column: row[column] for column in ("run", "status", "accurate")},
                **{column: whole(row[column]) for column in ("seed", "train_max")},
                **{column: number(row[column]) for column in ONCE},
                "at": {str(k): number(row[f"exact_{k}"]) for k in FACTORS},
                "extrapolates": None if pd.isna(row["extrapolates_2"]) else bool(row["extrapolates_2"]),
                "iota": {each.index: number(row[each.index]) for each in study.indices},
                "exact": scores.get((name,), []),
                "growth": {curve: of_run.get((name,), []) for curve, of_run in growth.items()},
                "learned": learned.get(name, []),
                "reason": failed.get(name, ""),
                "refused": refused.get(name, ""),
            }
        )
    return cells


def contradictions(study: Study) -> dict[tuple[str, str], list[str]]:
    """How cells differ from their verdict, a sentence for each outcome."""
    try:
        rows = records(study.once(outcome).disagreements)
    except MissingError:
        return {}
    sentences = defaultdict[tuple[str, str], list[str]](list)
    for row in rows:
        seeds = f"seed{'s' * (',' in row['seeds'])} {row['seeds']} of {row['of']}"
        differs = DIFFERS.get(row["outcome"], f"Against it: {row['outcome']}")
        sentences[row["task"], row["scheme"]].append(f"{differs} ({seeds}).")
    return sentences


def points(rows: pd.DataFrame, by: Sequence[str]) -> dict[tuple[str, ...], list[Point]]:
    """The curve of each run, or of what else these columns name: n, value, and the ends of its interval.

    In the order of n; what is missing is left out.
    """
    known = rows[rows["scale"].notna() & np.isfinite(rows["value"])].sort_values("scale", kind="stable")
    curves = defaultdict[tuple[str, ...], list[Point]](list)
    columns = (known[name].tolist() for name in ("scale", "value", "low", "high"))
    for key, n, *ends in zip(zip(*(known[name].tolist() for name in by)), *columns):
        curves[key].append([int(n), *map(number, ends)])
    return curves


def number(value: Any) -> float | None:
    """A number that JSON can hold, to six digits; else nothing."""
    return None if pd.isna(value) or not math.isfinite(value) else float(f"{value:.6g}")


def whole(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else int(value)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known.

    >>> mean([1.0, None, 0.5]), mean([None])
    (0.75, None)
    """
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known)) if known else None


def runs_table(cells: Sequence[Cell], indices: Sequence[Probe]) -> Table:
    """Every run of the study, as it ended and as it was measured."""
    rows = [
        {"task": cell["task"], "scheme": cell["scheme"], **run, "inaccurate": not run["accurate"]}
        | {f"at_{k}": run["at"][str(k)] for k in FACTORS}
        | {"steps": whole(run["steps"]), "seconds": whole(run["seconds"]), **run["iota"]}
        for cell in cells
        for run in cell["runs"]
    ]
    columns = {"task": "task", "scheme": "scheme", "seed": "seed", "status": "ended"}
    columns |= {"in_range_exact_match": "in range", **{f"at_{k}": f"at {k}×" for k in FACTORS}}
    columns |= {**{each.index: each.short for each in indices}, "steps": "steps", "seconds": "seconds"}
    note = "Runs with a mark at their left are not accurate in range: exact match below 0.9 at some n."
    return Table(note, rows, columns, f"{len(rows)} runs", empty="The table has no run.", bad="inaccurate")


def failures_table(cells: Sequence[Cell]) -> Table:
    """Runs that failed, diverged, did not converge or are not accurate, and lengths that no scheme could process."""
    runs = [(cell, run, troubles(run)) for cell in cells for run in cell["runs"]]
    rows = [
        {"task": cell["task"], "scheme": cell["scheme"], "seed": run["seed"], "bad": True}
        | {"what": "; ".join(sentences for _, sentences in wrong)}
        for cell, run, wrong in runs
        if wrong
    ]
    kinds = Counter(kind for _, _, wrong in runs for kind, _ in wrong)
    counted = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    columns = {"task": "task", "scheme": "scheme", "seed": "seed", "what": "what happened"}
    note = "Runs that are not accurate in range are left out of the predictions of extrapolation. They are listed here."
    empty = "Every run converged, is accurate in range and could be evaluated at every length."
    return Table(note, rows, columns, f"{len(rows)} of {len(runs)} runs: {counted}", empty=empty, bad="bad")


def troubles(run: Cell) -> list[tuple[str, str]]:
    """What went wrong with a run: in a word or two, and in a sentence."""
    wrong, status, value = [], run["status"], run["in_range_exact_match"]
    if status == "not-converged" and value is not None:  # to four digits: 0.9896 is below 0.99
        wrong.append(("did not converge", f"did not converge: mean exact match in range {value:.4f}"))
    elif status not in ("", "converged"):
        wrong.append((status, f"{status}: {run['reason']}" if run["reason"] else status))
    if run["accurate"] is False:
        wrong.append(("not accurate in range", "not accurate in range: exact match below 0.9 at some n"))
    if run["accurate"] and status and not any(run["growth"].values()):
        wrong.append(("not probed", "accurate, and not probed: it has no measured complexity"))
    if run["refused"]:
        wrong.append(("not evaluated at every length", f"cannot be evaluated: {run['refused']}"))
    return wrong
