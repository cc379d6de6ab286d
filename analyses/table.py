"""The table of a study: its columns and their types, and how it is read and written."""

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lengthlens.errors import UserError
from lengthlens.files import make_directory, read_whole, write_whole

COLUMNS = {
    "run": "str",
    "task": "str",
    "scheme": "str",
    "seed": "Int64",
    "train_max": "Int64",
    "measure": "str",
    "layer": "Int64",
    "head": "Int64",
    "readout": "str",
    "fit_scale": "Int64",
    "scale": "Int64",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "samples": "Int64",
    "control": "float64",
    "threshold": "str",
    "accurate": "boolean",
    "relation": "str",
    "text": "str",
}
REQUIRED = ("task", "scheme", "measure", "value")  # without these a row says nothing
METADATA = b"lengthlens"  # the key of the provenance in the parquet file


def write_study(table: pd.DataFrame, provenance: Mapping[str, Any], path: str | Path) -> None:
    """Write a study as parquet, whole or not at all. The same table and provenance are the same bytes."""
    arrow = pa.Table.from_pandas(as_study(table), preserve_index=False)
    about = json.dumps(provenance, sort_keys=True, ensure_ascii=False).encode()
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), METADATA: about})
    data = io.BytesIO()
    pq.write_table(arrow, data)
    make_directory(Path(path).parent)
    write_whole(Path(path), data.getvalue())


def read_study(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A study and its provenance, from parquet or csv. A table made by hand may lack columns that are not `REQUIRED`.

    The provenance of a file that carries none is empty.
    """
    data, name = io.BytesIO(read_whole(Path(path))), Path(path).name
    try:
        if name.endswith(".csv"):
            table, about = pd.read_csv(data, low_memory=False), {}
        else:
            arrow = pq.read_table(data)
            table, about = arrow.to_pandas(), json.loads((arrow.schema.metadata or {}).get(METADATA, b"{}"))
    except (ValueError, pa.ArrowException) as error:
        raise UserError(f"'{path}' is no table in parquet or csv: {str(error).splitlines()[0]}") from None
    missing = [column for column in REQUIRED if column not in table]
    if missing:
        raise UserError(
            f"'{path}' is no study: it has no column {', '.join(missing)}; a study has at least {', '.join(REQUIRED)}"
        )
    return as_study(table, str(path)), about


def as_study(table: pd.DataFrame, name: str = "the table") -> pd.DataFrame:
    """The table with all columns of a study, in order and of their types; what is not there is missing.

    >>> list(as_study(pd.DataFrame({"task": ["copy"], "value": [1]})).dtypes.astype(str)[["seed", "value"]])
    ['Int64', 'float64']
    """
    table = table.reset_index(drop=True)
    columns = {}
    for column, kind in COLUMNS.items():
        found = table[column] if column in table else pd.Series([None] * len(table), dtype=object)
        columns[column] = _typed(found, column, kind, name)
    return pd.DataFrame(columns)


def _typed(found: "pd.Series[Any]", column: str, kind: str, name: str) -> "pd.Series[Any]":
    if kind == "str":
        texts = found.astype(object).where(found.notna(), "")
        return texts.map(str)
    try:
        numbers: pd.Series[Any] = (
            found.astype("boolean") if kind == "boolean" else pd.to_numeric(found).astype(kind)  # type: ignore[call-overload]
        )
    except (TypeError, ValueError):
        wrong = next((value for value in found if not _is_number(value)), found.iloc[0])
        raise UserError(f"column '{column}' of {name} has the value {wrong!r}, which is not {kind}") from None
    return numbers


def _is_number(value: Any) -> bool:
    try:
        return value is None or math.isnan(float(value)) or float(value) == int(value)
    except (TypeError, ValueError, OverflowError):
        return False
