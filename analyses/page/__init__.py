"""The page: one self-contained file that shows what a study found, and lets one look at every cell of it.

It fetches nothing and runs no script but its own. Every name from the data is escaped, and the same table gives the
same bytes. Each finding has a section with its figure and its tables; the page names none of them.
"""

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import matplotlib as mpl
import pandas as pd
from jinja2 import Environment, FunctionLoader, StrictUndefined
from matplotlib.figure import Figure

from lengthlens.analyses import theme
from lengthlens.analyses.findings import findings
from lengthlens.analyses.glossary import TERMS, explained, marked
from lengthlens.analyses.page.cells import Cell, all_cells, failures_table, grown, runs_table
from lengthlens.analyses.prediction import prediction
from lengthlens.analyses.study import Finding, Study
from lengthlens.analyses.table import FACTORS, MissingError
from lengthlens.analyses.tables import several

RUNS, IN_RANGE, BEYOND = "runs", "accurate in range", "of these extrapolate to 2×"
LEVELS = (0.1, 0.5, 0.9, 0.995)  # of exact match, between the colours of the matrix
PIXELS = 120  # of the page for an inch of paper, so that the small letters of a paper can be read
WIDE = 5.0  # inches from which a figure is too wide for a phone, and scrolls there in a box of its own
SVG = {"svg.fonttype": "path", "svg.hashsalt": "lengthlens"}  # letters as shapes, since a phone has other fonts


def page(study: Study) -> str:
    """The whole page of a study; what the study has computed and drawn already is taken from it."""
    found, about = all_cells(study), study.about
    sections = [section(finding, study) for finding in findings(study).values()]
    of_script = {
        "cells": found,
        "multiples": FACTORS,
        "indices": [{"name": each.index, "label": each.short} for each in study.indices],
        "growth": [{"curve": each.curve, "index": each.index, "title": each.growth} for each in grown(study)],
    }
    return rendered(
        "page.html", ["page.css"], ["common.js", "page.js"], title=study.title, data=of_script,
        made=about.get("made", "unknown date"), lead=lead(found), **headline(study), facts=facts(found),
        sections=sections, terms={term: explained(term) for term in TERMS},
        matrix=matrix(found), multiples=FACTORS, failures=failures_table(found), runs=runs_table(found, study.indices),
        provenance=provenance_lines(about), **configs(about),
    )  # fmt: skip


def rendered(page: str, styles: Sequence[str], scripts: Sequence[str], **values: Any) -> str:
    """A page from its template, in which everything is escaped unless it says otherwise, with styles and scripts."""
    surroundings = Environment(
        loader=FunctionLoader(part), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    surroundings.filters["terms"] = marked
    surroundings.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    style, script = part(*styles), part(*scripts)
    known = {"style": style, "style_hash": digest(style), "script": script, "script_hash": digest(script)}
    return surroundings.get_template(page).render(**known, **values)


def lead(found: Sequence[Cell]) -> str:
    """What was done and what is asked, for a reader who knows nothing of it; nothing where there is no run."""
    counted = {words: int(number) for words, number in facts(found)}
    runs, accurate, far = (counted[words] for words in (RUNS, IN_RANGE, BEYOND))
    if not runs:
        return ""
    return (
        f"{runs} small Transformers were trained on short inputs of {several(counted['tasks'], 'task')}, with "
        f"{several(counted['position embeddings'], 'position embedding')}, and then given longer ones. {accurate} of "
        "them are accurate in range: they answer at least nine in ten of the short inputs without a mistake, at every "
        f"length. {far} of these do so at twice the length, too. What tells them apart before any long input is seen?"
    )


def with_terms(table: str) -> str:
    """A table in whose caption terms open onto what they mean; escaped as it was."""
    caption = re.compile(r"(?<=<small>)([^<]*)(?=</small>)")
    return caption.sub(lambda found: str(marked(html.unescape(found[1]))), table, count=1)


def headline(study: Study) -> dict[str, Any]:
    """The finding in a sentence, and what goes with it; where nothing can be said, why."""
    try:
        found = study.once(prediction)
    except MissingError as missing:
        return {"finding": f"Nothing can be said yet: {missing}.", "beside": []}
    return {"finding": found.headline, "beside": found.notes}


def section(finding: Finding, study: Study) -> dict[str, Any]:
    """A finding as the page shows it: a picture inside the file itself, or why there is none, and tables as HTML."""
    figure = study.figure(finding)
    missing = study.missing.get(finding.name, "")
    about = {"name": finding.name, "title": finding.title, "shows": finding.shows, "missing": missing}
    about |= {"caption": marked(finding.shows)}
    tables = [with_terms(table.html(f"table-{name}")) for name, table in study.tables(finding).items()]
    return {**about, **picture(figure, not missing), "tables": tables}


def picture(figure: Figure, shown: bool = True, narrow: Figure | None = None) -> dict[str, Any]:
    """A figure as the template shows it; on a phone, the narrow one if there is one."""
    found = {"image": embedded(figure) if shown else "", "size": in_pixels(figure), "narrow": ""}
    if narrow is None:
        return {**found, "wide": figure.get_figwidth() > WIDE}
    return {**found, "wide": False, "narrow": embedded(narrow), "narrow_size": in_pixels(narrow)}


def in_pixels(figure: Figure) -> tuple[int, int]:
    """Width and height on the page."""
    width, height = figure.get_size_inches()
    return round(width * PIXELS), round(height * PIXELS)


def embedded(figure: Figure) -> str:
    """A figure as an address that holds it all. The same figure gives the same text: no dates, no random names."""
    drawn = io.BytesIO()
    with mpl.rc_context(SVG):  # type: ignore[arg-type]
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode()


def part(*names: str) -> str:
    """Files of this directory, one behind the other."""
    here = files("lengthlens.analyses.page")
    return "".join(here.joinpath(name).read_text(encoding="utf-8") for name in names)


def digest(text: str) -> str:
    """By which a browser knows the page's own style and script, and refuses any other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def facts(found: Sequence[Cell]) -> list[tuple[str, str]]:
    """How much there is, in a few numbers."""
    runs = [run for cell in found for run in cell["runs"]]
    accurate = [run for run in runs if run["accurate"]]
    tasks, schemes = ({cell[name] for cell in found} for name in ("task", "scheme"))
    far = [run for run in accurate if run["extrapolates"]]
    counted = {"tasks": tasks, "position embeddings": schemes, RUNS: runs, IN_RANGE: accurate, BEYOND: far}
    return [(words, str(len(those))) for words, those in counted.items()]


def matrix(found: Sequence[Cell]) -> dict[str, Any]:
    """Tasks by schemes, as the template draws it; None where the study has no such cell."""
    frame = pd.DataFrame(found, columns=["task", "scheme"])
    tasks, schemes = theme.tasks_in_order(frame["task"]), theme.schemes_in_order(frame["scheme"])
    places = {(cell["task"], cell["scheme"]): place for place, cell in enumerate(found)}
    squares = {task: [square(found, places.get((task, scheme))) for scheme in schemes] for task in tasks}
    rows = [{"task": task, "cells": cells} for task, cells in squares.items()]
    return {"tasks": tasks, "schemes": schemes, "rows": rows}


def square(found: Sequence[Cell], place: int | None) -> dict[str, Any] | None:
    """One square of the matrix, at the first of the lengths that it can be looked at."""
    if place is None:
        return None
    cell, value = found[place], found[place]["at"][str(FACTORS[0])]
    text = "–" if value is None else f"{value:.2f}"
    return {
        "place": place,
        "level": level(value),
        "text": text,
        "sign": theme.VERDICTS.get(cell["verdict"], ("", "", ""))[2],
        "surprise": bool(cell["surprise"]),
        "doubtful": any(run["accurate"] is False for run in cell["runs"]),
        "label": f"{cell['task']} under {cell['scheme']}: exact match {text} at {FACTORS[0]} times the training range",
    }


def level(value: float | None) -> str:
    """The class that colours a square.

    >>> level(0.0), level(0.95), level(1.0), level(None)
    ('level0', 'level3', 'level4', 'unknown')
    """
    return "unknown" if value is None else f"level{sum(value >= bound for bound in LEVELS)}"


def provenance_lines(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Date, command, machine class and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted((about.get("versions") or {}).items()))
    found = {"made on": about.get("made"), "command": about.get("command"), "machine": about.get("machine")}
    return [(label, str(value)) for label, value in {**found, "versions": versions}.items() if value]


def configs(about: Mapping[str, Any]) -> dict[str, Any]:
    """The configs of all runs: what they share said once, and what is left for each."""
    given: Mapping[str, Mapping[str, Any]] = about.get("configs") or {}
    texts = [{key: json.dumps(value) for key, value in config.items()} for config in given.values()]
    shared = dict(set.intersection(*(set(text.items()) for text in texts))) if texts else {}
    own = [
        (name, ", ".join(f"{key} = {json.dumps(value)}" for key, value in config.items() if key not in shared))
        for name, config in sorted(given.items())
    ]
    return {"configs": own, "shared_config": "\n".join(f"{key} = {value}" for key, value in sorted(shared.items()))}
