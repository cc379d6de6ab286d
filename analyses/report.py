"""The page: one self-contained file that shows what a study found, and lets one look at every cell of it.

It fetches nothing and runs no script but its own. Every name from the data is escaped by the template, and the same
table gives the same bytes.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined

from lengthlens.analyses import theme
from lengthlens.analyses.gallery import Gallery
from lengthlens.analyses.page.cells import Cell, cells
from lengthlens.analyses.page.pictures import pictures
from lengthlens.analyses.page.prediction import prediction
from lengthlens.analyses.page.pruned import pruned_table
from lengthlens.analyses.page.tables import failures_table, runs_table
from lengthlens.analyses.page.verdicts import mark_surprises, outcome_of, verdict_tables
from lengthlens.analyses.table import FACTORS

TITLE = "Does complexity that stays flat in training predict length extrapolation?"
LEVELS = (0.1, 0.5, 0.9, 0.995)  # of exact match, between the colours of the matrix
SECTIONS = (
    ("cells", "tasks × embeddings"),
    ("prediction", "predictors"),
    ("pruned", "pruned"),
    ("verdicts", "verdicts"),
    ("failures", "what did not work"),
    ("figures", "figures"),
    ("runs", "every run"),
    ("provenance", "provenance"),
)


def page(
    table: pd.DataFrame,
    provenance: Mapping[str, Any] | None = None,
    held_out: Sequence[str] = (),
    gallery: Gallery | None = None,
) -> str:
    """The whole page, from a study and its provenance; tasks `held_out` are reported on their own, too.

    A `gallery` of the same study saves what it has computed already.
    """
    gallery, about = gallery or Gallery(table, held_out), dict(provenance or {})
    found, against = cells(table), outcome_of(table)
    mark_surprises(found, against)
    said = prediction(gallery)
    style, script = part("page.css"), part("page.js")
    text: str = template().render(
        title=TITLE,
        style=style,
        style_hash=digest(style),
        script=script,
        script_hash=digest(script),
        made=about.get("made", "unknown date"),
        finding=said.finding,
        beside=said.beside,
        facts=facts(found),
        sections=SECTIONS,
        matrix=matrix(found),
        multiples=FACTORS,
        prediction=said.tables,
        pruned=pruned_table(table),
        verdicts=verdict_tables(against),
        failures=failures_table(found),
        figures=pictures(gallery),
        runs=runs_table(found),
        provenance=provenance_lines(about),
        **configs(about),
        study={"cells": found, "multiples": FACTORS},
    )
    return text


def template() -> Any:
    """The page's template, in which everything is escaped unless it says otherwise."""
    surroundings = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    surroundings.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    return surroundings.from_string(part("page.html"))


def part(name: str) -> str:
    return files("lengthlens.analyses.page").joinpath(name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """By which a browser knows the page's own style and script, and refuses any other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# -- top of the page ---------------------------------------------------------------------------------------------


def facts(found: Sequence[Cell]) -> list[tuple[str, str]]:
    """How much there is, in a few numbers."""
    runs = [run for cell in found for run in cell["runs"]]
    accurate = [run for run in runs if run["accurate"]]
    return [
        ("tasks", str(len({cell["task"] for cell in found}))),
        ("position embeddings", str(len({cell["scheme"] for cell in found}))),
        ("runs", str(len(runs))),
        ("accurate in range", f"{len(accurate)}"),
        ("of these extrapolate to 2×", str(sum(bool(run["extrapolates"]) for run in accurate))),
    ]


def matrix(found: Sequence[Cell]) -> dict[str, Any]:
    """Tasks by schemes, as the template draws it; None where the study has no such cell."""
    frame = pd.DataFrame(found, columns=["task", "scheme"])
    tasks, schemes = theme.tasks_in_order(frame["task"]), theme.in_order(frame["scheme"])
    places = {(cell["task"], cell["scheme"]): place for place, cell in enumerate(found)}
    rows = [
        {"task": task, "cells": [square(found, places.get((task, scheme))) for scheme in schemes]} for task in tasks
    ]
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
        "label": f"{cell['task']} under {cell['scheme']}: exact match {text} at {FACTORS[0]} times the training length",
    }


def level(value: float | None) -> str:
    """The class that colours a square.

    >>> level(0.0), level(0.95), level(1.0), level(None)
    ('level0', 'level3', 'level4', 'unknown')
    """
    return "unknown" if value is None else f"level{sum(value >= bound for bound in LEVELS)}"


# -- where it comes from -----------------------------------------------------------------------------------------


def provenance_lines(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Date, command, machine class and versions."""
    plain = {"made": "made on", "command": "command", "machine": "machine"}
    lines = [(label, str(about[name])) for name, label in plain.items() if about.get(name)]
    versions = about.get("versions") or {}
    return [*lines, *([("versions", ", ".join(f"{k} {v}" for k, v in sorted(versions.items())))] if versions else [])]


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
