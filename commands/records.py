"""The command that makes the record table: train on short inputs, be exact on inputs a hundred times as long."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.runs import given_settings, settings_option, stoppable, store_path
from lengthlens.commands.terminal import as_json, finite, print_json, print_table, progress, save_figure
from lengthlens.errors import UserError

if TYPE_CHECKING:
    from lengthlens.runs.record_grid import RecordGrid
    from lengthlens.runs.store import RunStore
    from lengthlens.runs.sweep import Outcome, Planned

EVERY = "all"  # as a scheme: whatever the store has


@click.command()
@click.option("--tasks", help="Names with commas.  [default: those of the record]")
@click.option(
    "--schemes",
    help="Names with commas, options behind slashes; `all` adds every other scheme that the store has runs of.  "
    "[default: those of the record]",
)
@click.option("--seeds", help="Numbers or ranges.  [default: 0-2]")
@click.option(
    "--score-scaling", type=click.Choice(["log", "none"]), help="Only with it, or only without.  [default: both]"
)
@click.option("--lengths", help="Scales to evaluate at.  [default: 10 to 1000, and 10,000 for some tasks]")
@click.option(
    "--samples",
    metavar="N|LENGTH=N,…",
    help="At most N instances of any length, or N of one length: 100,10000=50.  [default: 1000 to 20]",
)
@settings_option
@store_path
@click.option(
    "--beside",
    multiple=True,
    metavar="DIR",
    help="Show as well the runs of this store, or the records that were written there before; only read.",
)
@click.option("--out", default="out/records", show_default=True, type=click.Path(path_type=Path))
@click.option("--engine", default="local", show_default=True, help="local or dask.")
@click.option("--workers", type=int, help="Local processes.  [default: one for each core]")
@click.option("--address", help="Of the Dask scheduler: tcp://…")
@click.option("--as-is", is_flag=True, help="Train and evaluate nothing: the table of what there is.")
@click.option("--dry-run", is_flag=True, help="Show what is left to do, and do nothing.")
@as_json
def records(
    tasks: str | None,
    schemes: str | None,
    seeds: str | None,
    score_scaling: str | None,
    lengths: str | None,
    samples: str | None,
    settings: tuple[str, ...],
    store: str,
    beside: tuple[str, ...],
    out: Path,
    engine: str,
    workers: int | None,
    address: str | None,
    as_is: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train on lengths up to 10, evaluate up to 10,000, and make the record table and figure.

    Finished runs are skipped, so that after an interruption the same command goes on where it was. The table is
    written as csv (every run and length), Markdown, LaTeX, JSON (with every config) and as a figure.
    """
    from lengthlens.runs.store import RunStore

    grid, runs = make_grid(tasks, schemes, seeds, score_scaling, lengths, samples, settings), RunStore(store)
    others = grid.others(runs) if EVERY in (schemes or "").split(",") else []
    plans = [*grid.planned(), *grid.planned(others)]
    if dry_run:
        show_plan(plans, runs, workers, as_json)
        return
    outcomes = [] if as_is else swept(plans, runs, engine=engine, workers=workers, address=address)
    earlier = [Path(name) for name in beside if (Path(name) / "records.csv").exists()]
    stores = [named_store(name) for name in beside if Path(name) not in earlier]
    page = Page(grid, plans, runs, stores, earlier)
    page.write(out)
    print_json(page.facts) if as_json else page.show()
    if any(outcome.failed for outcome in outcomes):
        sys.exit(1)


# -- what is asked for -------------------------------------------------------------------------------------------


def make_grid(
    tasks: str | None,
    schemes: str | None,
    seeds: str | None,
    score_scaling: str | None,
    lengths: str | None,
    samples: str | None,
    settings: tuple[str, ...],
) -> "RecordGrid":
    """The record grid, with what was given in place of its own."""
    from lengthlens.runs.record_grid import RecordGrid
    from lengthlens.runs.sweep import read_numbers

    most, exactly = read_samples(samples or "")
    named = [name for name in (schemes or "").split(",") if name and name != EVERY]
    given: dict[str, Any] = {
        "tasks": tasks and tasks.split(","),
        "schemes": named,
        "seeds": seeds and read_numbers(seeds),
        "scalings": score_scaling and [score_scaling],
        "lengths": lengths and read_numbers(lengths),
        "most": most,
        "exactly": exactly,
        "settings": given_settings(settings),
    }
    return RecordGrid(**{name: value for name, value in given.items() if value})


def read_samples(text: str) -> tuple[int | None, dict[int, int]]:
    """The most instances of any length, and those of single lengths.

    >>> read_samples("100"), read_samples("10000=50,200")
    ((100, {}), (200, {10000: 50}))
    """
    most, exactly = None, {}
    for part in filter(None, text.split(",")):
        first, equals, last = part.partition("=")
        if not first.isdigit() or (equals and not last.isdigit()) or 0 in (int(first), int(last or 1)):
            raise UserError(f"'{part}' in '{text}' is no number of samples: write N or LENGTH=N, both at least 1")
        if equals:
            exactly[int(first)] = int(last)
        else:
            most = int(first)
    return most, exactly


def named_store(name: str) -> "RunStore":
    from lengthlens.runs.store import RunStore

    store = RunStore(name)
    if not any(store.runs()):
        raise UserError(f"there are no runs in '{name}' to show beside the others")
    return store


# -- what is left to do ------------------------------------------------------------------------------------------


def show_plan(plans: "Sequence[Planned]", store: "RunStore", workers: int | None, as_json: bool) -> None:
    from joblib import cpu_count

    from lengthlens.runs.sweep import estimate, pending

    left = pending(plans, store)
    unfinished = [config for config in left if not store.run(config).status().finished]
    with progress("estimating"):
        seconds = estimate(unfinished, workers or cpu_count())
    instances = {plan.config.task: dict(plan.samples) for plan in plans}
    facts = {
        "runs": [config.id for config in left],
        "to_do": len(left),
        "to_train": len(unfinished),
        "training_seconds_at_most": seconds,
        "instances": instances,
    }
    if as_json:
        print_json(facts)
        return
    click.echo(f"{len(left)} of {len(plans)} runs to do, {len(unfinished)} of them to train")
    click.echo(f"training: at most about {seconds / 60:.1f} minutes; evaluation comes on top")
    for task, numbers in instances.items():
        click.echo(f"{task}: {', '.join(f'{k} of n = {n}' for n, k in numbers.items())}")


@contextmanager
def counter(names: set[str]) -> "Iterator[Callable[[Outcome], None]]":
    """One live line for the whole on a terminal; elsewhere a line for each run as it ends."""
    start, done = time.monotonic(), 0

    with progress("records") as live:

        def report(outcome: "Outcome") -> None:
            nonlocal done
            if outcome.run not in names:
                return  # was finished before
            done += 1
            minutes = (len(names) - done) * (time.monotonic() - start) / done / 60
            text = f"{done} of {len(names)} runs, about {minutes:.0f} min left; {outcome.run} {outcome.status}"
            live(text)
            if outcome.failed or not sys.stderr.isatty():
                click.echo(f"{text}{': ' + outcome.reason if outcome.reason else ''}", err=True)

        yield report


def swept(plans: "Sequence[Planned]", store: "RunStore", **engine: Any) -> "list[Outcome]":
    """Train and evaluate what is left."""
    from lengthlens.runs.sweep import pending, sweep

    left = {config.id for config in pending(plans, store)}
    with stoppable("the records"), counter(left) as report:
        return sweep(plans, store, report=report, **engine)


# -- what came out -----------------------------------------------------------------------------------------------


class Page:
    """The record table in all its forms."""

    def __init__(
        self,
        grid: "RecordGrid",
        plans: "Sequence[Planned]",
        store: "RunStore",
        beside: "Sequence[RunStore]",
        earlier: Sequence[Path],
    ) -> None:
        from lengthlens.analyses.records import records as record_statistics
        from lengthlens.studies.build import machine_class
        from lengthlens.studies.record_rows import merged, read_records, record_table

        self.sources = [(store, list(plans)), *((other, beside_plans(grid, other)) for other in beside)]
        before = [read_records(folder) for folder in earlier]
        self.earlier = [checked(facts, plans[0], folder) for (_, facts), folder in zip(before, earlier)]
        tables = [record_table(own, where) for where, own in self.sources]
        self.table = merged([*tables, *(table for table, _ in before)])
        self.chosen = record_statistics(self.table)
        self.train_max = plans[0].config.train_max
        self.machine = machine_class()

    @property
    def facts(self) -> dict[str, Any]:
        """Everything, in plain values: results, and all that is needed to make them again."""
        from lengthlens.analyses.records import PUBLISHED, finding, goals
        from lengthlens.commands.probes import plain_rows
        from lengthlens.runs.record_grid import GOAL, GOAL_SCHEME
        from lengthlens.studies.record_rows import provenance

        return {
            "finding": finding(self.chosen),
            "goal": {"scheme": GOAL_SCHEME, "exact_match": GOAL},
            "goals": plain_rows(goals(self.chosen)),
            "records": plain_rows(self.chosen),
            "published": list(PUBLISHED),
            "machine": self.machine,
            **with_earlier(provenance(self.sources), self.earlier),
        }

    def write(self, out: Path) -> None:
        """All files, each whole or not at all. The same runs give the same bytes."""
        from lengthlens.analyses.records_figure import plot
        from lengthlens.analyses.records_text import latex, markdown
        from lengthlens.files import make_directory, write_whole

        make_directory(out)
        about = (self.chosen, self.train_max, self.machine)
        texts = {
            "records.csv": self.table.to_csv(index=False),
            "records.md": markdown(*about),
            "records.tex": latex(*about),
            "records.json": json.dumps(finite(self.facts), indent=1, ensure_ascii=False) + "\n",
        }
        for name, text in texts.items():
            write_whole(out / name, text.encode())
            click.echo(f"written: {out / name}", err=True)
        figure = plot(self.chosen, self.train_max)
        for suffix in ("png", "pdf"):
            save_figure(figure, out / f"records.{suffix}")

    def show(self) -> None:
        """The table on a terminal."""
        from lengthlens.analyses.records import finding
        from lengthlens.analyses.records_text import cells, goal_cells

        rows = cells(self.chosen)
        print_table([{k: v for k, v in row.items() if k != "task"} for row in rows], [r["task"] for r in rows])
        if goal := goal_cells(self.chosen):
            click.echo()
            print_table([dict(row) for row in goal])
        for sentence in finding(self.chosen):
            click.echo(sentence)


def beside_plans(grid: "RecordGrid", store: "RunStore") -> "list[Planned]":
    """Runs of another store that can be shown beside the grid's: of its tasks, seeds and recipe."""
    found = grid.others(store)
    if not found:
        click.echo(f"no run in '{store.path}' has the tasks, seeds and recipe of the records", err=True)
    return grid.planned(found)


def checked(facts: dict[str, Any], plan: "Planned", folder: Path) -> dict[str, Any]:
    """Records that were written before; refused if they are of another recipe."""
    from lengthlens.runs.record_grid import recipe_of

    if facts.get("recipe") != recipe_of(plan.config):
        raise UserError(f"the records in '{folder}' were made with another recipe, and cannot stand beside these")
    return facts


def with_earlier(facts: dict[str, Any], earlier: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The provenance with the configs of records that were written before."""
    configs = {name: config for each in earlier for name, config in each["configs"].items()}
    versions = [v for each in earlier for v in each["trained_with"] if v not in facts["trained_with"]]
    return {**facts, "trained_with": facts["trained_with"] + versions, "configs": {**configs, **facts["configs"]}}


RECORD_COMMANDS = (records,)
