"""The commands that make, evaluate and keep runs: train, evaluate, sweep, runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.options import (
    as_json,
    config_options,
    device_option,
    engine_options,
    given_settings,
    own_store,
    plain_value,
    plot_file,
    read_bytes,
    read_numbers,
    scheme_option,
    store_path,
)
from lengthlens.commands.progress import progress, training_progress
from lengthlens.commands.terminal import Group, counted, print_json, print_table, save_figure, stoppable

if TYPE_CHECKING:
    from lengthlens.runs.config import RunConfig
    from lengthlens.runs.sweep import Grid, RunOutcome
    from lengthlens.runs.training import Report


# -- train -------------------------------------------------------------------------------------------------------


@click.command("train")
@click.option("--task", required=True, help="What is to be computed; see `lengthlens tasks`.")
@click.option("--scheme", required=True, help="The position embedding; see `lengthlens schemes`.")
@scheme_option
@click.option("--seed", type=int, help="Of initial weights and data.")
@config_options
@store_path
@click.option("--wandb", is_flag=True, help="Send metrics to Weights & Biases too.")
@click.option("--tensorboard", is_flag=True, help="Write metrics for TensorBoard too, into STORE/tensorboard.")
@click.option("--quiet", is_flag=True, help="No progress.")
@as_json
def train_command(
    task: str,
    scheme: str,
    scheme_option: dict[str, str],
    settings: tuple[str, ...],
    store: str,
    wandb: bool,
    tensorboard: bool,
    quiet: bool,
    as_json: bool,
    **named: Any,
) -> None:
    """Train a run, or continue it where it was interrupted. The same config is the same run."""
    from lengthlens.runs.config import RunConfig
    from lengthlens.runs.store import RunStore
    from lengthlens.runs.training import train

    fields = given_settings(settings, **named)
    scheme_options = {
        **fields.pop("scheme_options", {}),
        **{name: plain_value(value) for name, value in scheme_option.items()},
    }
    config = RunConfig.from_dict({**fields, "task": task, "scheme": scheme, "scheme_options": scheme_options})
    with stoppable(f"run '{config.id}'"):
        reports = trackers(config, wandb, Path(store) / "tensorboard" if tensorboard else None)
        with training_progress(quiet) as report:
            trained = train(config, RunStore(store), reports=[report, *reports])
    if as_json:
        print_json(trained.summary())
        return
    click.echo(f"{config.id}: {trained.status.status} after {trained.status.steps} steps")
    if trained.status.in_range_exact_match is not None:
        click.echo(f"exact match up to n = {config.train_max}: {trained.status.in_range_exact_match:.4f}")
    if trained.status.reason:
        click.echo(f"reason: {trained.status.reason}")


def trackers(config: "RunConfig", wandb: bool, tensorboard: Path | None) -> "list[Report]":
    from lengthlens.runs.training import tensorboard_report, wandb_report

    found: list[Report] = [wandb_report(config)] if wandb else []
    return [*found, tensorboard_report(tensorboard / config.id)] if tensorboard else found


# -- evaluate ----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("run")
@click.option("--lengths", help="Scales n, such as 10,20,50,1000.  [default: 1, 2, 5 and 10 times train_max]")
@click.option("--samples", type=int, help="Instances of each length.  [default: 1000]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the instances.")
@click.option("--memory", default="1GiB", show_default=True, help="The most that a block of instances may take.")
@device_option
@click.option("--again", is_flag=True, help="Compute lengths again that are known already.")
@store_path
@plot_file
@as_json
def evaluate(
    run: str,
    lengths: str | None,
    samples: int | None,
    seed: int,
    memory: str,
    device: str | None,
    again: bool,
    store: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Exact match of RUN (a name, or how it begins) at any length, from one parallel pass, with 95 % intervals."""
    from lengthlens.runs.evaluation import SAMPLES, summary_lengths
    from lengthlens.runs.evaluation import evaluate as evaluate_run
    from lengthlens.runs.store import RunStore

    found = RunStore(store).find(run)
    wanted = read_numbers(lengths) if lengths else summary_lengths(found.config.train_max)
    with progress("evaluating") as report:
        rows = evaluate_run(
            found,
            wanted,
            samples=SAMPLES if samples is None else samples,
            seed=seed,
            memory=read_bytes(memory),
            device=device or "auto",
            again=again,
            report=report,
            unkept=lambda error: click.echo(f"not kept with the run: {error}", err=True),
        )
    if as_json:
        print_json(rows)
    else:
        print_table([score_cells(row) for row in rows])
    if plot:
        from lengthlens.analyses.curves import plot_exact_match

        save_figure(plot_exact_match(rows, found.config.train_max, found.id), plot)


def score_cells(row: dict[str, Any]) -> dict[str, Any]:
    """The cells of a row for people."""
    if row.get("reason"):
        return {"n": row["length"], "exact match": row["reason"], "95 % interval": "", "without end": "", "tokens": ""}
    return {
        "n": row["length"],
        "exact match": f"{row['exact_match']:.4f}",
        "95 % interval": f"{row['exact_match_low']:.4f} to {row['exact_match_high']:.4f}",
        "without end": f"{row['exact_match_no_end']:.4f}",
        "tokens": f"{row['token_accuracy']:.4f}",
    }


# -- sweep -------------------------------------------------------------------------------------------------------


@click.command("sweep")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--tasks", help="Names with commas between them.")
@click.option("--schemes", help="Names with commas; options behind slashes: rope,hinted:relative/max_distance=3.")
@click.option("--seeds", help="Numbers or ranges: 0,1,2 or 0-9.")
@click.option("--lengths", help="Scales to evaluate at.  [default: 1, 2, 5 and 10 times train_max]")
@click.option("--samples", type=int, help="Instances of each length.")
@config_options
@store_path
@engine_options
@click.option("--resources", multiple=True, metavar="NAME=AMOUNT", help="What a run takes of a worker: GPU=1.")
@click.option("--dry-run", is_flag=True, help="Show the plan and an estimate, and do nothing.")
@click.option("--quiet", is_flag=True, help="Only the summary.")
@as_json
def sweep_command(
    store: str,
    engine: str,
    workers: int | None,
    address: str | None,
    resources: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **grid_options: Any,
) -> None:
    """Train and evaluate a grid of runs, from options or a TOML FILE.

    Finished runs are skipped, so that after an interruption the same command goes on where it was.
    """
    from lengthlens.runs.store import RunStore
    from lengthlens.runs.sweep import sweep

    grid, runs = make_grid(**grid_options), RunStore(store)
    if dry_run:
        show_plan(grid, runs, workers, as_json)
        return
    with stoppable("the sweep"):
        outcomes = sweep(
            grid,
            runs,
            engine=engine,
            workers=workers,
            address=address,
            resources={name: float(value) for name, value in given_settings(resources).items()} or None,
            report=None if quiet or as_json else print_outcome,
        )
    rows = [vars(outcome) for outcome in outcomes]
    print_json(rows) if as_json else click.echo(counted([row["status"] for row in rows]))
    if any(outcome.failed for outcome in outcomes):
        sys.exit(1)


def make_grid(
    file: Path | None,
    tasks: str | None,
    schemes: str | None,
    seeds: str | None,
    lengths: str | None,
    samples: int | None,
    settings: tuple[str, ...],
    **named: Any,
) -> "Grid":
    """The grid of a file, with what was given as options in place of what the file says."""
    from dataclasses import replace

    from lengthlens.runs.evaluation import summary_lengths
    from lengthlens.runs.sweep import Grid, read_grid

    grid = read_grid(file) if file else Grid([], [])
    given: dict[str, Any] = {
        "tasks": tasks and tasks.split(","),
        "schemes": schemes and schemes.split(","),
        "seeds": seeds and read_numbers(seeds),
        "lengths": lengths and read_numbers(lengths),
        "samples": samples,
    }
    grid = replace(grid, **{name: value for name, value in given.items() if value})
    grid = replace(grid, settings={**grid.settings, **given_settings(settings, **named)})
    return grid if grid.lengths else replace(grid, lengths=summary_lengths(grid.configs()[0].train_max))


def show_plan(grid: "Grid", store: Any, workers: int | None, as_json: bool) -> None:
    from joblib import cpu_count

    from lengthlens.runs.sweep import estimate, pending

    left = pending(grid, store)
    names = {config.id for config in left}
    rows = [{"run": c.id, "state": "to do" if c.id in names else "done"} for c in grid.configs()]
    with progress("estimating"):
        seconds = estimate(left, workers or cpu_count())
    if as_json:
        print_json({"runs": rows, "to_do": len(left), "seconds_at_most": seconds})
        return
    print_table(rows)
    click.echo(f"{len(left)} of {len(rows)} runs to do, at most about {seconds / 60:.1f} minutes")


def print_outcome(outcome: "RunOutcome") -> None:
    note = "" if outcome.trained else " (finished before)"
    reason = f": {outcome.reason}" if outcome.reason else ""
    click.echo(f"{outcome.run}  {outcome.status}{note}{reason}")


# -- runs --------------------------------------------------------------------------------------------------------


@click.group(cls=Group, invoke_without_command=True)
@click.option("--task", help="Only runs of this task.")
@click.option("--scheme", help="Only runs of this scheme.")
@click.option("--status", help="Only runs in this state: converged, not-converged, diverged, failed, …")
@store_path
@as_json
@click.pass_context
def runs(
    context: click.Context, task: str | None, scheme: str | None, status: str | None, store: str, as_json: bool
) -> None:
    """List the runs, or: show one, check all checksums, make one table of all."""
    from lengthlens.runs.store import RunStore

    context.obj = RunStore(store)
    if context.invoked_subcommand is not None:
        return
    rows = context.obj.listing(task, scheme, status)
    if as_json:
        print_json(rows)
    elif rows:
        print_table([{k: v for k, v in row.items() if k not in ("task", "scheme", "seed")} for row in rows])
    else:
        click.echo(f"no such runs in '{store}'")


def chosen_store(context: click.Context, store: str | None) -> Any:
    """The store named behind the subcommand, or before it."""
    from lengthlens.runs.store import RunStore

    return context.obj if store is None else RunStore(store)


@runs.command()
@click.argument("run")
@own_store
@as_json
@click.pass_context
def show(context: click.Context, run: str, store: str | None, as_json: bool) -> None:
    """Everything about RUN: config, status, scores, versions."""
    facts = chosen_store(context, store).find(run).facts()
    if as_json:
        print_json(facts)
        return
    for name, value in {**facts["status"], **facts["config"], **facts["versions"]}.items():
        click.echo(f"{name:<22} {value}")
    if facts["evaluation"]:
        click.echo()
        print_table([score_cells(row) for row in facts["evaluation"]])


@runs.command()
@own_store
@as_json
@click.pass_context
def check(context: click.Context, store: str | None, as_json: bool) -> None:
    """Verify every checksum of every run."""
    where = chosen_store(context, store)
    problems, count = where.check(), sum(1 for _ in where.runs())
    if as_json:
        print_json({"runs": count, "problems": problems})
    else:
        click.echo("\n".join(problems) or f"{count} runs, all as they were written")
    if problems:
        sys.exit(1)


@runs.command()
@click.argument("file", default="runs.parquet", type=click.Path(path_type=Path))
@own_store
@click.pass_context
def table(context: click.Context, file: Path, store: str | None) -> None:
    """One row for each run and length, into FILE as parquet and, beside it, as csv."""
    for path in chosen_store(context, store).write_table(file):
        click.echo(path)


RUN_COMMANDS = (train_command, evaluate, sweep_command, runs)
