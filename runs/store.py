"""All runs in one directory: find, list, check, repair, put into one table; and `load`, the one way to a trained model.

The trained models that come with the package are runs like any other, in the folder `trained`, named by task and
scheme: ``copy/lbpe``. `load` opens them where they are; a store that is asked for one takes a copy, which can be
evaluated and probed further.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pandas.api.types import is_numeric_dtype

from lengthlens.errors import UserError, unknown
from lengthlens.files import StorageError, attempt, make_directory, printable, read_whole, set_aside, write_whole
from lengthlens.models.transformer import HookedModel
from lengthlens.notebook import card
from lengthlens.plugins.registry import PluginError
from lengthlens.runs.config import EXECUTION, RunConfig
from lengthlens.runs.evaluation import Score, in_range_rows
from lengthlens.runs.run import (
    ASIDE,
    CHECKPOINT,
    CONFIG,
    EVALUATION,
    LOG,
    MANIFEST,
    METRICS,
    MODEL,
    NOT_LISTED,
    STATUS,
    VERSIONS,
    Run,
    Status,
    best_rows,
)
from lengthlens.tasks import Task
from lengthlens.values import harmless_cell, text

COLUMNS = [
    "run",
    *(f.name for f in fields(RunConfig) if f.name not in (*EXECUTION, "plugins")),
    *("status", "trained_steps", "in_range_exact_match"),
    *(f.name for f in fields(Score) if f.name != "seed"),
    *("evaluation_seed", "reason"),
]
LeftOut = Callable[[str, str], None]  # told the name of a run, and what is wrong with it
Result = TypeVar("Result")
INTEGERS = ("length", "samples", "d_mlp")  # columns that may be empty and are whole numbers otherwise
MARKS = (MANIFEST, CONFIG, LOG)  # one of them is in every run
SHIPPED = Path(__file__).resolve().parent / "trained"


class RunStore:
    """A directory with a subdirectory for each run; any number of processes may use it at once.

    Argument: `path`, the directory, which need not exist yet. Reading a store changes nothing in it.

    Result: `runs` gives every run and `find` one of them, by name, by how its name begins or by path; `listing` has a
    row for each run, `table` one for each run and length; `check` says what is wrong with any file.

    Errors: UserError for a name that means no run or several; StorageError if a run's file is not what was written.

    >>> import tempfile
    >>> store = RunStore(tempfile.mkdtemp())
    >>> run = store.create(RunConfig(task="copy", scheme="rope"))
    >>> store.find("copy_rope").id == run.id, run.status().status, store.check()
    (True, 'new', [])
    >>> [(row["task"], row["scheme"], row["status"]) for row in store.listing()]
    [('copy', 'rope', 'new')]
    """

    def __init__(self, path: str | Path = "runs") -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        number = sum(1 for _ in self.runs())
        return f"RunStore('{self.path}', {number} run{'s' * (number != 1)})"

    def _repr_html_(self) -> str:
        shown = ("run", "status", "steps", "in_range_exact_match", "reason")
        rows = [{name: "" if row[name] is None else row[name] for name in shown} for row in self.listing()]
        return card(f"runs in {self.path}", {"runs": len(rows)}, rows)

    def run(self, config: RunConfig) -> Run:
        """The run of a config, whether it is there or not."""
        return Run(self.path / config.id)

    def create(self, config: RunConfig, wait: bool = False) -> Run:
        """The run of a config, with its config on disk."""
        run = self.run(config)
        if not self._known(run, config):
            with run.locked(wait):
                if not self._known(run, config):
                    run.write(CONFIG, config.to_json().encode())
        return run

    def _known(self, run: Run, config: RunConfig) -> bool:
        """Whether the run's config is there; another config under the same name is refused."""
        run.manifest()  # refuses a run of a newer version
        if not run.has(CONFIG):
            return False
        if run.config.identity() != config.identity():
            raise UserError(f"run '{run.id}' has another config than the one asked for: use another store")
        return True

    def runs(self) -> Iterator[Run]:
        """Every run, by name."""
        with attempt("read", self.path):
            folders = sorted(self.path.iterdir()) if self.path.is_dir() else []
        yield from (Run(each) for each in folders if any(os.path.lexists(each / mark) for mark in MARKS))

    def must_exist(self) -> "RunStore":
        """The store itself, if there is one: a slip of the hand in its name is not an empty store."""
        if not self.path.is_dir():
            raise UserError(f"there is no store at '{printable(self.path)}'")
        return self

    def find(self, name: str) -> Run:
        """The run of this name, or whose name alone begins so, or whose directory it is.

        A trained model of the package (``copy/lbpe``) is copied into the store when it is first asked for.
        """
        if not text()(name, "the name of a run"):
            raise UserError("the name of a run is empty")
        with attempt("look at", Path(name)):
            if (Path(name) / CONFIG).exists():
                return Run(Path(name).resolve())
        if is_shipped_name(name):
            source = shipped_run(name)
            run = self.run(source.config)
            if not run.status().finished:
                with run.locked(wait=True):  # the status is written last: once it says finished, all else is there
                    for each in sorted(filter(source.has, source.manifest()), key=lambda each: each == STATUS):
                        run.write(each, read_whole(source.path / each))
            return run
        names = [run.id for run in self.runs()]
        matching = [known for known in names if known.startswith(name)] if name not in names else [name]
        if len(matching) == 1:
            return Run(self.path / matching[0])
        if matching:
            raise UserError(f"'{name}' may mean any of {len(matching)} runs: {', '.join(matching[:8])}")
        if not names:
            raise UserError(f"there are no runs in '{self.path}': make one with `lengthlens train`")
        raise unknown("run", name, names[:20])

    def check(self) -> list[str]:
        """Everything that is wrong with any run, a sentence each."""
        return [problem for run in self.runs() for problem in run.problems()]

    def listing(
        self, task: str | None = None, scheme: str | None = None, status: str | None = None
    ) -> list[dict[str, Any]]:
        """One row for each run, of one task, scheme or status if given. A run that cannot be read says why."""
        wanted = {"task": task, "scheme": scheme, "status": status}
        rows = map(listed, self.runs())
        return [row for row in rows if all(value is None or row[key] == value for key, value in wanted.items())]

    def table(self, left_out: LeftOut | None = None) -> pd.DataFrame:
        """One row for each run and length: the run's choices, how it ended, and its scores.

        A run that was not evaluated has one row without a length. Nothing in it depends on when or how often the
        run was interrupted. A damaged run is told to `left_out`, with the reason; without that, it is an error.
        """
        rows = [row for _, of_run in each_sound(self.runs(), rows_of, left_out) for row in of_run]
        return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(INTEGERS, "Int64"))

    def write_table(self, path: Path, left_out: LeftOut | None = None) -> list[Path]:
        """The table as parquet and csv, beside each other under one name; the files written."""
        table, stem = self.table(left_out), path.with_suffix("") if path.suffix in (".parquet", ".csv") else path
        make_directory(stem.parent)
        parquet, csv = stem.with_name(f"{stem.name}.parquet"), stem.with_name(f"{stem.name}.csv")
        write_whole(parquet, table.to_parquet(None, index=False))
        write_whole(csv, harmless(table).to_csv(index=False).encode())
        return [parquet, csv]


def each_sound(
    runs: Iterable[Run], look: Callable[[Run], Result], left_out: LeftOut | None
) -> Iterator[tuple[Run, Result]]:
    """Each run with what is seen in it; one that is damaged is told to `left_out`, or is an error without it."""
    for run in runs:
        try:
            seen = look(run)
        except UserError as error:
            if left_out is None:
                raise
            left_out(run.id, str(error))
            continue
        yield run, seen


def harmless(table: pd.DataFrame) -> pd.DataFrame:
    """The table with no text that a spreadsheet would take for a formula: those get an apostrophe in front.

    >>> harmless(pd.DataFrame({"reason": ["=1+1", "fine"], "value": [-1.0, 2.0]})).values.tolist()
    [["'=1+1", -1.0], ['fine', 2.0]]
    """
    texts = [name for name in table.columns if not is_numeric_dtype(table[name])]
    return table.assign(**{name: table[name].map(harmless_cell) for name in texts})


def listed(run: Run) -> dict[str, Any]:
    """The row of a run in a listing."""
    try:
        choices, lacking = stored_choices(run)
        about, status = {name: choices[name] for name in ("task", "scheme", "seed")}, asdict(run.status())
        status["reason"] = lacking or status["reason"]
    except UserError as error:
        about, status = dict.fromkeys(("task", "scheme", "seed")), dict.fromkeys(f.name for f in fields(Status))
        status |= {"status": "unreadable", "reason": str(error)}
    return {"run": run.id, **about, **status}


def stored_choices(run: Run) -> tuple[dict[str, Any], str | None]:
    """A run's config as plain values; where its plug-in is not loaded as they were stored, and what to load."""
    try:
        return run.config.to_dict(), None
    except PluginError as error:
        return run.read_json(CONFIG), str(error)


def rows_of(run: Run) -> list[dict[str, Any]]:
    """The rows of one run in the table."""
    choices, status = stored_choices(run)[0], asdict(run.status())
    options = json.dumps(choices["scheme_options"], sort_keys=True)
    source = str(choices.get("imported", {}).get("name", ""))
    about = {"run": run.id, **choices, "scheme_options": options, "imported": source}
    outcome = {**status, "trained_steps": status["steps"]}
    scores = [{**row, "evaluation_seed": row["seed"]} for row in best_rows(run.evaluation())] or [{}]
    return [{**outcome, **row, **about} for row in scores]


# -- trained models ----------------------------------------------------------------------------------------------------


def load(
    source: str | Path | Run,
    task: Task | None = None,
    *,
    store: RunStore | str | Path = "runs",
    device: str = "cpu",
    step: int | None = None,
) -> HookedModel:
    """A trained or imported model, ready for evaluation.

    Arguments:
        source: a trained model of the package (``"copy/lbpe"``), a run, the directory of a run, the name of a run in
            `store` (or how it begins), or a directory that `HookedModel.save_pretrained` wrote.
        task: the task itself, where it is not registered; for saved models.
        store: where a name is looked up.
        device: where the model is to be.
        step: of a run that kept checkpoints, the training step after which the model is wanted; the end if None.

    Errors: UserError where there is nothing of that kind, where a file is damaged, and where a plug-in is not loaded
    (the sentence says which). Nothing is unpickled, and no code that came with the model is run.

    >>> load("copy/lbpe").predict("^ 7 3 5 =")
    '7 3 5 $'
    >>> import tempfile
    >>> from lengthlens.runs.training import train
    >>> store = RunStore(tempfile.mkdtemp())
    >>> run = train(RunConfig(task="copy", scheme="rope", steps=2, batch=2, train_max=2), store).run
    >>> load("copy_rope", store=store).config == load(run.path).config == load(run).config
    True
    """
    if isinstance(source, Run):
        return source.model(device, step)
    if not isinstance(source, str | Path):
        raise UserError(
            f"ll.load takes a run, a path or a name, not {type(source).__name__}; what ll.train gives has a .model"
        )
    folder = Path(source)
    if (folder / MANIFEST).exists():
        return Run(folder.resolve()).model(device, step)
    if folder.is_dir():
        if step is not None:
            raise UserError(f"'{source}' is a saved model, which has no checkpoints of its training: leave step out")
        model: HookedModel = HookedModel.from_pretrained(folder, task).to(device).eval()
        return model
    if is_shipped_name(source):
        return shipped_run(str(source)).model(device, step)
    place = store if isinstance(store, RunStore) else RunStore(store)
    if isinstance(source, Path) or len(folder.parts) > 1 or not any(place.runs()):
        raise UserError(f"'{source}' is no directory of a run or a saved model, and no run in '{place.path}' either")
    return place.find(str(source)).model(device, step)


@cache
def shipped() -> dict[str, Run]:
    """Every trained model of the package, by name.

    >>> shipped()["copy/rope"].config.train_max
    10
    """
    runs = [Run(path) for path in sorted(SHIPPED.iterdir()) if path.is_dir()] if SHIPPED.is_dir() else []
    return {f"{run.config.task}/{run.config.spec.label}": run for run in runs}


def is_shipped_name(name: object) -> bool:
    """Whether it is written as the name of such a model, a task and a scheme, and is no path that exists."""
    if not isinstance(name, str) or not 1 < len(name) < 200 or "/" not in name[1:-1] or name.startswith("."):
        return False
    return name.partition("/")[0] in {known.partition("/")[0] for known in shipped()} and not Path(name).exists()


def shipped_run(name: str) -> Run:
    """The model of this name, or whose name alone begins so.

    >>> shipped_run("addition/lbpe").config.spec.label
    'lbpe/forms=nine/other=one'
    """
    known = shipped()
    if name in known:
        return known[name]
    begins = [each for each in known if each.startswith(name)]
    if len(begins) > 1:
        raise UserError(f"'{name}' may mean any of {len(begins)} trained models: {', '.join(begins)}")
    if not begins:
        raise unknown("trained model", name, [*known, *("/".join(each.split("/")[:2]) for each in known)])
    return known[begins[0]]


# -- repair ------------------------------------------------------------------------------------------------------------

TRUSTED = (MANIFEST, CONFIG, STATUS, MODEL)  # a run in which one of these is damaged cannot be trusted at all
LOST = {
    CHECKPOINT: "training starts again from its beginning",
    METRICS: "how its loss fell is lost",
    VERSIONS: "which versions it was made with is lost",
    LOG: "when and where it was trained is lost",
}  # with a file that does not follow from the model


@dataclass(frozen=True)
class Repair:
    """A damaged file, what is wrong with it, and what is done. Not `healed` if something is lost or left to do."""

    run: str
    file: str
    wrong: str
    remedy: str
    healed: bool = False


def repair(run: Run, *, dry_run: bool = False) -> list[Repair]:
    """Set aside what is damaged in a run; a `Repair` for each damaged file, none for a sound run.

    Without a sound manifest, config, status and model a run cannot be trusted: it is moved whole into the folder
    ``damaged`` of its store, and the remedy names the command that makes it again. Of other files each is moved alone,
    into the folder ``damaged`` of the run, and exact match in range is evaluated again. Nothing is deleted. With
    `dry_run` nothing is done: the result says what would be.

    Errors: UserError if another process works on the run, if it was made by a newer version, or if its config is sound
    and cannot be understood here (a plug-in is not loaded, say); it is left alone then.
    """
    run.has(CONFIG)  # refuses a run that is a link
    if not run.problems():
        return []
    with nullcontext() if dry_run else run.locked():
        try:
            damage = run.damage()
        except StorageError as error:
            damage = {MANIFEST: str(error)}
        if broken := next((name for name in TRUSTED if name in damage), None):
            remedy = f"the whole run is set aside: {how_to_make(run)}"
            if not dry_run:
                set_aside(run.path, run.path.parent / ASIDE)
            return [Repair(run.id, broken, damage[broken], remedy)]
        return [mended(run, name, wrong, dry_run) for name, wrong in damage.items()]


def mended(run: Run, name: str, wrong: str, dry_run: bool) -> Repair:
    """Set one file of a run aside, whose model can be trusted."""
    try:
        if not dry_run:
            run.set_aside(name)
        if name == EVALUATION and run.has(MODEL):
            if not dry_run:
                run.add_evaluation(in_range_rows(run.model(), run.config))
            return Repair(run.id, name, wrong, "set aside, and evaluated again in range", healed=True)
    except UserError as error:
        return Repair(run.id, name, wrong, f"could not be done: {error}")
    if wrong == NOT_LISTED:
        return Repair(run.id, name, wrong, "set aside", healed=True)
    return Repair(run.id, name, wrong, f"set aside: {LOST.get(name, 'the command that made it makes it again')}")


def how_to_make(run: Run) -> str:
    """What makes a run again, if its config is sound: the name of a run follows from it."""
    with suppress(UserError):
        config = RunConfig.from_json(read_whole(run.path / CONFIG, follow=False))
        if config.id == run.id:
            return "import it again" if config.imported else f"train it again: {command_of(config)}"
    return "its config is lost"


def command_of(config: RunConfig) -> str:
    """The command that trains a run.

    >>> command_of(RunConfig("copy", "relative", {"max_distance": 3}, steps=10, seed=1))
    'lengthlens train --task copy --scheme relative --scheme-option max_distance=3 --set steps=10 --set seed=1'
    """
    usual = RunConfig(config.task, config.scheme)
    words = ["lengthlens", "train", "--task", config.task, "--scheme", config.scheme]
    for name, value in config.scheme_options.items():
        if usual.scheme_options[name] != value:
            words += ["--scheme-option", f"{name}={value}"]
    for name, value in config.to_dict().items():
        if name != "scheme_options" and value != getattr(usual, name):
            words += ["--set", f"{name}={value}"]
    return shlex.join(words)
