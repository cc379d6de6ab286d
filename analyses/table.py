"""The table of a study: how it is read, written and joined, and one row for each run.

One row is one measurement. What belongs to a cell rather than to a run (the verdict before training, the declared SRC)
has no `run` and no `seed`; position-only linear attention (POLA) has a `target` in place of a task.
"""

import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lengthlens.errors import UserError
from lengthlens.files import make_directory, printable, read_whole, sha256, write_whole
from lengthlens.probes.probe import PROBES, Probe
from lengthlens.probes.probe import records as records  # part of what findings use
from lengthlens.probes.schema import STUDY_COLUMNS, at_defaults
from lengthlens.runs.evaluation import ACCURATE, EXTRAPOLATES
from lengthlens.values import anything, list_of, map_of, parse_json, parse_parquet, parsed, record, shown, text

SCHEMA = 3  # version of `STUDY_COLUMNS`
CELL = ["task", "scheme", "recipe", "train_max"]  # runs that share these differ by their seed alone
REQUIRED = ("task", "scheme", "measure", "value")  # without these a row says nothing
METADATA, VERSION = b"lengthlens", b"lengthlens.schema"  # keys of the parquet file: provenance, and schema version

CHECKSUM, BLANK = b"lengthlens.sha256", b"0" * 64  # its key in the metadata, and what stands there while it is made
SIGNATURE = re.compile(rb"lengthlens\.sha256.{1,4}?([0-9a-f]{64})", re.DOTALL)
PROVENANCE_RULE = record(
    "provenance",
    {},
    {
        **dict.fromkeys(("title", "made", "command", "machine"), text(1 << 20)),
        "versions": map_of(text()),
        "held_out": list_of(text()),
        "configs": map_of(map_of(anything())),
    },
    loose=True,
)

FACTORS = (2, 10)  # times the training range; the first decides whether a run extrapolates
ONCE = ("in_range_exact_match", "train_loss", "margin", "steps", "seconds")  # a run has these without a scale
OF_CELLS = ("verdict", "declared_src")  # measures that belong to a cell

Frame = pd.DataFrame


class MissingError(UserError):
    """The table lacks what a figure or finding is made of; the message says what, and how to get it."""


def indices(frame: Frame | None = None) -> list[Probe]:
    """The probes that give an index, complexities that tasks declare first; those alone that a study has, if given.

    The study is its table, or one row for each run as `per_run` has it.
    """
    there = None if frame is None else set(frame["measure"].unique() if "measure" in frame else frame)
    having = [probe for probe in PROBES.values() if probe.index and (there is None or probe.index in there)]
    return sorted(having, key=lambda probe: declared(probe) not in OF_CELLS)


def declared(probe: Probe) -> str:
    """The measure by which a task's own circuit says what the probe's growth curve would be; not all tasks have it."""
    return f"declared_{probe.curve}"


def write_study(table: Frame, provenance: Mapping[str, Any], path: str | Path) -> None:
    """Write a study as parquet, whole or not at all. The same table and provenance are the same bytes."""
    arrow = pa.Table.from_pandas(as_study(table), preserve_index=False)
    about = json.dumps(provenance, sort_keys=True, ensure_ascii=False).encode()
    ours = {METADATA: about, VERSION: str(SCHEMA).encode(), CHECKSUM: BLANK}
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), **ours})
    data = io.BytesIO()
    pq.write_table(arrow, data)
    make_directory(Path(path).parent)
    write_whole(Path(path), signed(data.getvalue()))


def signed(data: bytes) -> bytes:
    """A parquet file with its own checksum in its metadata: that of the same bytes with zeros in its place.

    It stands in the file as it is, so that a damaged file is noticed before a parser looks at it.
    """
    place = SIGNATURE.search(data)
    assert place is not None
    return data[: place.start(1)] + sha256(data).encode() + data[place.end(1) :]


def read_study(path: str | Path) -> tuple[Frame, dict[str, Any]]:
    """A study and its provenance, from parquet or csv. A table made by hand may lack columns that are not `REQUIRED`.

    The provenance of a file that carries none is empty.
    """
    data, what = read_whole(Path(path)), f"'{printable(path)}'"
    metadata: Mapping[bytes, bytes] = {}
    if str(path).endswith(".csv"):
        table = parsed(lambda: pd.read_csv(io.BytesIO(data), low_memory=False), what, "a table in csv")
    else:
        place = SIGNATURE.search(data)
        damaged = UserError(f"{what} is damaged: its checksum differs; make it again with `lengthlens reproduce`")
        if place and sha256(data[: place.start(1)] + BLANK + data[place.end(1) :]).encode() != place[1]:
            raise damaged
        arrow = parse_parquet(data, what)
        metadata = arrow.schema.metadata or {}
        if place is None and CHECKSUM in metadata:  # it says that it has one, and has not
            raise damaged
        table = parsed(arrow.to_pandas, what, "a table")
    about: dict[str, Any] = parse_json(metadata.get(METADATA, b"{}"), f"the provenance of {what}", PROVENANCE_RULE)
    version = metadata.get(VERSION, str(SCHEMA).encode()).decode(errors="replace")
    if version != str(SCHEMA):
        raise UserError(
            f"'{path}' is a study of schema version {version}, and this is a lengthlens for version {SCHEMA}: make it "
            "again from its runs with `lengthlens reproduce`"
        )
    missing = [column for column in REQUIRED if column not in table]
    if missing and "exact_match" in table and "length" in table:
        raise UserError(
            f"'{path}' is a table of runs and lengths, as `lengthlens runs table` writes it: make a study of the same "
            "runs with `lengthlens study --store RUNS --out study.parquet`"
        )
    if missing:
        raise UserError(
            f"'{path}' is no study: it has no column {', '.join(missing)}; a study has at least {', '.join(REQUIRED)}"
        )
    return as_study(table, str(path)), about


def as_study(table: Frame, name: str = "the table") -> Frame:
    """The table with all columns of a study, in order and of their types; what is not there is missing.

    >>> list(as_study(pd.DataFrame({"task": ["copy"], "value": [1]})).dtypes.astype(str)[["seed", "value"]])
    ['Int64', 'float64']
    """
    table = table.reset_index(drop=True)
    missing = pd.Series([None] * len(table), dtype=object)
    typed = {each: _typed(table.get(each, missing), each, kind, name) for each, kind in STUDY_COLUMNS.items()}
    return pd.DataFrame(typed)


def _typed(values: "pd.Series[Any]", column: str, kind: str, name: str) -> "pd.Series[Any]":
    if kind == "str":
        if str(values.dtype) == "str":  # texts already
            return values.fillna("")
        return values.astype(object).where(values.notna(), "").map(str).astype("str")  # none at all has the type, too
    try:
        numbers: pd.Series[Any] = (
            values.astype("boolean") if kind == "boolean" else pd.to_numeric(values).astype(kind)  # type: ignore[call-overload]
        )
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        wrong = next((value for value in values if not _is_number(value)), values.iloc[0])
        raise UserError(f"column '{column}' of {name} has the value {shown(wrong)}, which is not {kind}") from None
    return numbers


def _is_number(value: Any) -> bool:
    try:
        return value is None or math.isnan(float(value)) or float(value) == int(value)
    except (TypeError, ValueError, OverflowError):
        return False


Read = tuple[Frame, Mapping[str, Any]]  # a table and its provenance


def joined(studies: Mapping[str, Read]) -> tuple[Frame, dict[str, Any]]:
    """All rows of the studies, by name, what they share once, and their provenance together.

    A run may be in several of them if they say the same of it. A task is held out if every study that has it holds it
    out.
    """
    for one, other in combinations(studies, 2):
        _agree(one, studies[one][0], other, studies[other][0])
    table = pd.concat([table for table, _ in studies.values()], ignore_index=True)
    table = table.drop_duplicates(ignore_index=True) if len(studies) > 1 else table
    return table, together(list(studies.values()))


def together(studies: list[Read]) -> dict[str, Any]:
    """The provenance of several studies as one; what they do not share is listed, with "; " between."""
    abouts = [about for _, about in studies]
    if len(abouts) == 1:
        return dict(abouts[0])
    libraries = dict.fromkeys(library for about in abouts for library in about.get("versions", {}))
    versions = {name: _listed(about.get("versions", {}).get(name) for about in abouts) for name in libraries}
    texts = {name: _listed(about.get(name) for about in abouts) for name in ("title", "made", "command", "machine")}
    named = dict.fromkeys(task for about in abouts for task in about.get("held_out", []))
    used = {task for table, about in studies for task in set(table["task"]) - set(about.get("held_out", []))}
    held_out = [task for task in named if task not in used]  # those on which no study chose anything
    configs = {run: config for about in abouts for run, config in about.get("configs", {}).items()}
    given = {name: words for name, words in texts.items() if words}
    return {**given, "versions": versions, "held_out": held_out, "configs": configs}


def _listed(values: Iterable[Any]) -> str:
    return "; ".join(dict.fromkeys(str(value) for value in values if value))


def _agree(name: str, table: Frame, other_name: str, other: Frame) -> None:
    """Refuse two studies that say different things of one run, or that judge one cell differently."""
    said = [each.loc[each["measure"] == "verdict", [*CELL, "verdict"]] for each in (table, other)]
    for cell in said[0].merge(said[1], on=CELL).query("verdict_x != verdict_y").itertuples():
        raise UserError(
            f"{cell.task} under {cell.scheme} is {cell.verdict_x} in '{name}' and {cell.verdict_y} in '{other_name}': "
            "make both with the same version"
        )
    for run in sorted(set(table["run"]) & set(other["run"]) - {""}):
        parts = [each[each["run"] == run].drop_duplicates() for each in (table, other)]
        both = pd.concat(parts).drop_duplicates()
        if any(len(both) != len(part) for part in parts):
            raise UserError(
                f"run '{run}' is in '{name}' and in '{other_name}', with different measurements: give the study "
                "that counts"
            )


def measured(table: Frame, measure: str, command: str = "probe") -> Frame:
    """The rows of a measure with a value; a sentence if there are none."""
    rows = table[(table["measure"] == measure) & table["value"].notna()]
    if rows.empty:
        raise MissingError(f"no run in the table has '{measure}': it comes from `lengthlens {command}`")
    return rows


def of_runs(table: Frame) -> Frame:
    """The rows that belong to runs. In a table by hand a run without a name is its cell and seed."""
    rows = table[~table["measure"].isin(OF_CELLS) & (table["target"] == "")]
    bare = rows["run"] == ""
    if not bare.any():
        return rows
    parts = [rows[name].astype("string").fillna("") for name in (*CELL, "seed")]
    names = pd.Series(["_".join(row) for row in zip(*parts)], index=rows.index, dtype="str")
    return rows.assign(run=rows["run"].where(~bare, names))


def exact_at(table: Frame, factor: int) -> "pd.Series[float]":
    """Exact match of each run at `factor` times its training range, by run; missing where it was not evaluated.

    A length that the scheme cannot process counts as 0: nothing is matched there.
    """
    rows = table[(table["measure"] == "exact_match") & (table["scale"] == factor * table["train_max"]).fillna(False)]
    value = rows["value"].mask(rows["value"].isna() & (rows["reason"] != ""), 0.0)
    return value.groupby(rows["run"]).mean()


def default_index(table: Frame, probe: Probe) -> "pd.Series[float]":
    """ι of each run at the thresholds that the probe counts at if nothing else is asked for."""
    rows = chosen_readout(table[table["measure"] == probe.index])
    return at_defaults(rows, probe.defaults).groupby("run")["value"].first()


def chosen_readout(rows: Frame) -> Frame:
    """Of rows by layer and readout those of the sequential readout, one layer before the last; others as they are.

    After the last layer the unembedding decodes every step alike, whatever came before.
    """
    if rows.empty or rows["layer"].isna().all():
        return rows
    if (rows["readout"] == "sequential").any():
        rows = rows[rows["readout"] == "sequential"]
    deepest = rows.groupby("run")["layer"].transform("max")
    return rows[rows["layer"] == (deepest - 1).clip(lower=0)]


def per_run(table: Frame) -> Frame:
    """One row for each run: who it is, whether it is accurate in range, its indices, and what happened beyond.

    Columns: run, `CELL`, seed, row and label if the table has them, accurate, status, `ONCE`, those of `indices` that
    the table has, verdict, reason, and for each factor exact_2, extrapolates_2, … (missing where that length was not
    evaluated).
    """
    rows = of_runs(table)
    names = ["run", *CELL, "seed", *(name for name in ("row", "label") if name in rows)]
    runs = rows[names].drop_duplicates("run").sort_values([*CELL, "seed", "run"])
    if runs.empty:
        raise MissingError("there is no run in the table: it takes `lengthlens train` or `lengthlens sweep`")
    columns: dict[str, Any] = {"accurate": accurate(rows)}
    columns |= {name: rows[rows["measure"] == name].groupby("run")["value"].first() for name in ONCE}
    columns["status"] = rows[rows["measure"] == "converged"].groupby("run")["status"].first()
    columns |= {each.index: default_index(rows, each) for each in indices(rows)}
    for factor in FACTORS:
        columns[f"exact_{factor}"] = exact = exact_at(rows, factor)
        columns[f"extrapolates_{factor}"] = (exact >= EXTRAPOLATES).where(exact.notna()).astype("boolean")
    result = runs.join(pd.DataFrame(columns), on="run").reset_index(drop=True)
    verdicts = table.loc[table["measure"] == "verdict", [*CELL, "verdict", "reason"]].drop_duplicates(CELL)
    result = result.merge(verdicts, on=CELL, how="left")
    result["accurate"] = result["accurate"].astype("boolean").fillna(False).astype(bool)
    return result.fillna({"verdict": "", "reason": "", "status": ""})


def accurate(rows: Frame) -> "pd.Series[bool]":
    """Whether each run is accurate in range: as flagged, else from its exact match at the scales of training."""
    flagged = rows[rows["accurate"].notna()].groupby("run")["accurate"].all()
    in_range = rows[(rows["measure"] == "exact_match") & (rows["scale"] <= rows["train_max"]).fillna(False)]
    computed = in_range.groupby("run")["value"].min() >= ACCURATE
    return flagged.astype(bool).combine_first(computed)
