"""A study of surgery: which runs of a store does the ideal relation heal, and why not the others?"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from lengthlens.analyses.canvas import save
from lengthlens.analyses.inside import healing_tables, plot_healing
from lengthlens.errors import UserError
from lengthlens.files import make_directory, printable, read_whole, write_whole
from lengthlens.probes.stretch import stretched_match
from lengthlens.probes.surgery import N_INSTANCES, healing
from lengthlens.runs.evaluation import is_accurate
from lengthlens.runs.run import Run
from lengthlens.runs.store import RunStore
from lengthlens.studies.drawing import TABLES, write_tables
from lengthlens.values import parsed

TABLE = "surgery.csv"
COLUMNS = ["run", "task", "scheme", "seed", "surgery", "scale", "exact_match", "cause", "reason"]
SCALES = (20, 40)  # twice and four times the training range of the studies


def healing_study(
    store: RunStore,
    out: str | Path,
    scales: Sequence[int] = SCALES,
    *,
    rows: int = N_INSTANCES,
    report: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Every run of a store that is accurate in range, under each kind of surgery (`lengthlens.probes.surgery`).

    The table is kept in `out`/surgery.csv, run by run: what is there is not computed again. It has a row for each run,
    surgery and scale, with the run's task, scheme (with its options) and seed, the exact match, and the cause of its
    failure by stretching (`ll.stretched_match`). A run whose scheme or task has no ideal relation has one row with the
    `reason`.

        table = healing_study(ll.RunStore("out/runs"), "figures/surgery")
    """
    path, tell = Path(out) / TABLE, report or (lambda text: None)
    make_directory(path.parent)
    table = read_healing(path) if path.exists() else pd.DataFrame({"run": pd.Series(dtype=str)})
    ready = [run for run in store.runs() if run.status().finished and is_accurate(run.config, run.evaluation())]
    if not ready and table.empty:
        raise UserError(f"no run in '{store.path}' is trained and accurate in range: there is none to operate on")
    missing = sorted((run for run in ready if run.id not in set(table["run"])), key=_beyond)  # those that fail first
    for place, run in enumerate(missing):
        tell(f"{run.id} ({place + 1} of {len(missing)})")
        table = pd.concat([table, _of_run(run, scales, rows)], ignore_index=True)
        table = table.astype({"seed": "Int64", "scale": "Int64"})  # a run without an ideal relation has no scale
        ordered = table.sort_values(["task", "scheme", "seed", "run"], kind="stable").reset_index(drop=True)
        write_whole(path, ordered.to_csv(index=False, lineterminator="\n").encode())
    return read_healing(path) if path.exists() else table


def read_healing(path: str | Path) -> pd.DataFrame:
    """The table of a study, from its file."""
    data, missing = io.BytesIO(read_whole(Path(path))), {"exact_match": [""], "scale": [""]}

    def parse() -> pd.DataFrame:
        table = pd.read_csv(data, keep_default_na=False, na_values=missing)
        table = table[COLUMNS].astype({"seed": "Int64", "scale": "Int64", "exact_match": float})
        if not table["exact_match"].dropna().between(0, 1).all():
            raise ValueError("exact match is a share, from 0 to 1")
        return table

    return parsed(parse, f"'{printable(path)}'", "a table of surgery")


def draw_healing(table: pd.DataFrame, out: str | Path, width: float | None = None) -> list[str]:
    """The figure of a study as pdf and png and its tables, in Markdown, LaTeX and csv; the files that were written."""
    files = [Path(out) / f"healing.{kind}" for kind in ("pdf", "png")]
    for path in files:
        save(plot_healing(table, width=width), path)
    files += write_tables(healing_tables(table), Path(out) / TABLES)
    return [str(path) for path in files]


def _beyond(run: Run) -> float:
    """Exact match beyond the training range, on average over what is known."""
    scores = [row.get("exact_match") for row in run.evaluation() if row["length"] > run.config.train_max]
    known = [score for score in scores if score is not None]
    return float(sum(known) / max(1, len(known)))


def _of_run(run: Run, scales: Sequence[int], rows: int) -> pd.DataFrame:
    """The rows of one run."""
    config, model = run.config, run.model("cpu").eval()
    about = {"run": run.id, "task": config.task, "scheme": config.model.spec.label, "seed": config.seed}
    try:
        found = healing(model, scales=scales, train_max=config.train_max, rows=rows)
        cause = stretched_match(model, train_max=config.train_max, scales=scales).cause
    except UserError as error:
        blank = {"surgery": "", "scale": None, "exact_match": float("nan"), "cause": ""}
        return pd.DataFrame([{**about, **blank, "reason": str(error)}])
    rows_of_run = [{**about, **row, "cause": cause or "", "reason": ""} for row in found.to_dict("records")]
    return pd.DataFrame(rows_of_run)
