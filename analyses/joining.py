"""Several studies as one: of several machines, recipes or days."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd

from lengthlens.errors import UserError

CELL = ["task", "scheme", "train_max"]


class Study(NamedTuple):
    """A study with its provenance, and what to call it."""

    name: str
    table: pd.DataFrame
    about: Mapping[str, Any]


def joined(studies: Sequence[Study]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """All rows of the studies, what they share once, and their provenance together.

    A run may be in several of them if they say the same of it. A task is held out if every study that has it holds it
    out.
    """
    for one, other in combinations(studies, 2):
        _agree(one, other)
    table = pd.concat([study.table for study in studies], ignore_index=True)
    table = table.drop_duplicates(ignore_index=True) if len(studies) > 1 else table
    return table, together(studies)


def together(studies: Sequence[Study]) -> dict[str, Any]:
    """The provenance of several studies as one; what they do not share is listed, with "; " between."""
    if len(studies) == 1:
        return dict(studies[0].about)
    about: dict[str, Any] = {}
    for name in ("made", "command", "machine"):
        texts = dict.fromkeys(str(study.about[name]) for study in studies if study.about.get(name))
        about |= {name: "; ".join(texts)} if texts else {}
    versions: dict[str, dict[str, None]] = {}
    for study in studies:
        for library, version in study.about.get("versions", {}).items():
            versions.setdefault(library, {})[str(version)] = None
    about["versions"] = {library: "; ".join(found) for library, found in versions.items()}
    about["held_out"] = held_out(studies)
    about["configs"] = {run: config for s in studies for run, config in s.about.get("configs", {}).items()}
    return about


def held_out(studies: Sequence[Study]) -> list[str]:
    """The tasks on which no study chose anything."""
    named = dict.fromkeys(task for study in studies for task in study.about.get("held_out", []))
    used = {task for s in studies for task in set(s.table["task"]) - set(s.about.get("held_out", []))}
    return [task for task in named if task not in used]


def _agree(one: Study, other: Study) -> None:
    """Refuse two studies that say different things of one run, or that judge one cell differently."""
    said = [s.table.loc[s.table["measure"] == "verdict", [*CELL, "text"]] for s in (one, other)]
    both_ways = said[0].merge(said[1], on=CELL).query("text_x != text_y")
    for cell in both_ways.itertuples():
        raise UserError(
            f"{cell.task} under {cell.scheme} is {cell.text_x} in '{one.name}' and {cell.text_y} in '{other.name}': "
            "make both with the same version"
        )
    shared = set(one.table["run"]) & set(other.table["run"]) - {""}
    for run in sorted(shared):
        parts = [study.table[study.table["run"] == run] for study in (one, other)]
        both = pd.concat(parts).drop_duplicates()
        if any(len(both) != len(part.drop_duplicates()) for part in parts):
            raise UserError(
                f"run '{run}' is in '{one.name}' and in '{other.name}', with different measurements: give the study "
                "that counts"
            )
