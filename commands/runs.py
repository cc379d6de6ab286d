"""The commands that make runs, evaluate them, look after them, take them in from others and hand them on."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands import options, terminal
from lengthlens.commands.options import Whole, as_json, config_options, given_fields, own_store, plot_file, store_option
from lengthlens.commands.terminal import print_json, print_table, progress, stoppable
from lengthlens.errors import UserError
from lengthlens.values import anything, map_of

if TYPE_CHECKING:
    from lengthlens.runs.run import Run
    from lengthlens.runs.store import RunStore
    from lengthlens.runs.sweep import Grid, RunOutcome

LENGTHS = "Sizes n to evaluate at, such as 10,20,50,1000{}.  [default: 1, 2, 5 and 10 times train_max]"
lengths_option = click.option("--lengths", callback=options.numbers, help=LENGTHS.format(""))
scales_option = click.option(
    "--lengths",
    callback=options.scales,
    help=LENGTHS.format(", or tuples such as 3:5 and 20x200 (twenty fields of 200 symbols) where the task has fields"),
)


@click.command("train")
@click.option("--task", required=True, help="What is to be computed; see `lengthlens tasks`.")
@click.option("--scheme", required=True, help="The position embedding; see `lengthlens schemes`.")
@options.scheme_option
@click.option("--seed", type=Whole(0, 2**63 - 1), help="Of initial weights and data.")
@config_options
@store_option
@click.option(
    "--keep",
    callback=options.numbers,
    help="Keep the weights after these steps, such as 0,100,200, for `inspect --step`; also of a finished run.",
)
@click.option("--wandb", is_flag=True, help="Send metrics to Weights & Biases too.")
@click.option("--tensorboard", is_flag=True, help="Write metrics for TensorBoard too, into STORE/tensorboard.")
@click.option("--quiet", is_flag=True, help="No progress.")
@as_json
def train_command(
    scheme_options: dict[str, str], store: "RunStore", keep: list[int] | None, wandb: bool, tensorboard: bool,
    quiet: bool, as_json: bool, **fields: Any,
) -> None:  # fmt: skip
    """Train a run, or continue it where it was interrupted. The same config is the same run."""
    from lengthlens.runs.config import RunConfig
    from lengthlens.runs.training import tensorboard_report, train, wandb_report

    given = given_fields(**fields)
    stated = map_of(anything())(given.get("scheme_options", {}), "scheme_options")
    config = RunConfig.from_dict({**given, "scheme_options": {**stated, **given_fields(scheme_options)}})
    before = store.run(config).status().finished
    with stoppable(f"run '{config.id}'"):
        reports = [wandb_report(config)] if wandb else []
        if tensorboard:
            reports.append(tensorboard_report(store.path / "tensorboard" / config.id))
        with terminal.training_progress(quiet) as report:
            trained = train(config, store, reports=[report, *reports], keep=keep or ())
    if as_json:
        print_json(trained.summary())
        return
    again = "; it was there already, and nothing was trained" if before else ""
    click.echo(f"{config.id}: {trained.status.status} after {trained.status.steps} steps{again}")
    if trained.status.in_range_exact_match is not None:
        click.echo(in_range_words(config.train_max, trained.status.in_range_exact_match, trained.run))
    if trained.status.reason:
        click.echo(f"reason: {trained.status.reason}")
    if trained.run is not None and trained.run.checkpoints:
        click.echo(f"checkpoints kept: steps {', '.join(map(str, trained.run.checkpoints))}")


def in_range_words(train_max: int, mean: float, run: "Run | None") -> str:
    """Exact match over the training range: its mean, and where it is least."""
    rows = [row for row in run.evaluation() if row["length"] <= train_max] if run else []
    least = min(
        (row for row in rows if row.get("exact_match") is not None), key=lambda row: row["exact_match"], default=None
    )
    where = f"; least {least['exact_match']:.4f}, at n = {least['length']}" if least else ""
    return f"exact match, mean over n up to {train_max}: {mean:.4f}{where}"


@click.command()
@click.argument("run")
@scales_option
@click.option("--samples", type=Whole(1), default=1000, show_default=True, help="Instances of each length.")
@click.option("--seed", type=Whole(), default=0, show_default=True, help="Of the instances.")
@click.option(
    "--memory",
    default="1GiB",
    show_default=True,
    callback=options.reading(options.read_bytes),
    help="The most that a block of instances may take.",
)
@options.device_option
@click.option("--again", is_flag=True, help="Compute lengths anew that were evaluated before.")
@store_option
@plot_file
@as_json
def evaluate(
    run: str, lengths: list[int | tuple[int, ...]] | None, store: "RunStore", plot: Path | None, as_json: bool,
    **how: Any,
) -> None:  # fmt: skip
    """Exact match of RUN (a name, or how it begins) at any length, from one parallel pass, with 95 % intervals."""
    from lengthlens.runs import evaluation

    trained = store.find(run)
    wanted = lengths or evaluation.summary_lengths(trained.config.train_max)
    how |= {"device": how["device"] or "auto", "unkept": terminal.say_unkept}
    with progress("evaluating") as report:
        rows = evaluation.evaluate(trained, wanted, report=report, **how)
    print_json(rows) if as_json else print_table([score_cells(row) for row in rows])
    if plot:
        from lengthlens.analyses.curves import plot_exact_match

        terminal.save_figure(plot_exact_match(rows, trained.config.train_max, trained.id), plot)


def score_cells(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an evaluation as it is printed."""
    from lengthlens.tasks.scale import tuple_in_words

    n = tuple_in_words(row["shape"]) if row.get("shape") else row["length"]
    if row.get("reason"):
        return {"n": n, "exact match": row["reason"], "95 % interval": "", "without end": "", "tokens": ""}
    return {
        "n": n,
        "exact match": f"{row['exact_match']:.4f}",
        "95 % interval": f"{row['exact_match_low']:.4f} to {row['exact_match_high']:.4f}",
        "without end": f"{row['exact_match_no_end']:.4f}",
        "tokens": f"{row['token_accuracy']:.4f}",
    }


@click.command("sweep")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--tasks", callback=options.names, help="Names with commas between them.")
@click.option(
    "--schemes",
    callback=options.names,
    help="Names with commas; options after slashes: rope,hinted:relative/max_distance=3.",
)
@click.option("--seeds", callback=options.numbers, help="Numbers or ranges: 0,1,2 or 0-9.")
@lengths_option
@click.option("--samples", type=Whole(1), help="Instances of each length.")
@config_options
@store_option
@options.engine_options
@options.resources_option
@click.option(
    "--stack",
    type=Whole(1, 1024),
    default=1,
    show_default=True,
    help="Train so many runs that differ in seed only as one network: for a GPU.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan and an estimate, and do nothing.")
@options.quiet
@as_json
def sweep_command(
    file: Path | None, store: "RunStore", dry_run: bool, quiet: bool, as_json: bool, **asked: Any
) -> None:
    """Train and evaluate a grid of runs, from options or a TOML FILE, whose entries the options replace.

    Finished runs are skipped, so that after an interruption the same command goes on where it was.
    """
    from dataclasses import replace

    from lengthlens.runs.evaluation import summary_lengths
    from lengthlens.runs.sweep import Grid, read_grid, sweep

    where = {name: asked.pop(name) for name in ("engine", "workers", "address", "resources", "stack")}
    grid = read_grid(file) if file else Grid([], [])
    given = {name: asked.pop(name) for name in ("tasks", "schemes", "seeds", "lengths", "samples")}
    grid = replace(grid, **{name: value for name, value in given.items() if value})
    grid = replace(grid, settings={**grid.settings, **given_fields(**asked)})
    grid = grid if grid.lengths else replace(grid, lengths=summary_lengths(grid.configs()[0].train_max))
    if dry_run:
        show_plan(grid, store, where["workers"], as_json)
        return
    tell = None if quiet or as_json else print_outcome
    with stoppable("the sweep"):
        outcomes = sweep(grid, store, **where, report=tell)
    rows = [vars(outcome) for outcome in outcomes]
    print_json(rows) if as_json else click.echo(terminal.counted([row["status"] for row in rows]))
    if any(outcome.failed for outcome in outcomes):
        sys.exit(1)


def show_plan(grid: "Grid", store: "RunStore", workers: int | None, as_json: bool) -> None:
    from lengthlens.models.devices import gpus_for
    from lengthlens.parallel import cpu_count
    from lengthlens.runs.sweep import estimate, pending

    left = pending(grid, store)
    names = {config.id for config in left}
    rows = [{"run": c.id, "state": "to do" if c.id in names else "done"} for c in grid.configs()]
    with progress("estimating"):
        seconds = estimate(left, workers or (left and gpus_for(left[0].device)) or cpu_count())
    if as_json:
        print_json({"runs": rows, "to_do": len(left), "seconds_at_most": seconds})
        return
    print_table(rows)
    click.echo(f"{len(left)} of {len(rows)} runs to do, at most about {seconds / 60:.1f} minutes")


def print_outcome(outcome: "RunOutcome") -> None:
    note = "" if outcome.trained else " (finished before)"
    reason = f": {outcome.reason}" if outcome.reason else ""
    click.echo(f"{outcome.run}  {outcome.status}{note}{reason}")
    if outcome.alone:
        click.echo(f"its stack was trained one by one, since stacking failed: {outcome.alone}", err=True)


@click.group(cls=terminal.Group, invoke_without_command=True)
@click.option("--task", help="Only runs of this task.")
@click.option("--scheme", help="Only runs of this scheme.")
@click.option("--status", help="Only runs in this state: converged, not-converged, diverged, failed, …")
@click.option("--store", default="runs", show_default=True, help="The directory of all runs.", metavar="DIR")
@as_json
@click.pass_context
def runs(context: click.Context, /, store: str, as_json: bool, **only: str | None) -> None:
    """List the runs; or show one, check all checksums, repair what is damaged, or make one table of all."""
    context.obj = options.open_store(context, None, store)
    if context.invoked_subcommand is None:
        rows = context.obj.listing(**only)
        if as_json:
            print_json(rows)
        elif rows:
            print_table([{k: v for k, v in row.items() if k not in ("task", "scheme", "seed")} for row in rows])
        else:
            click.echo(f"no such runs in '{store}'")


@runs.command()
@click.argument("run")
@own_store
@as_json
def show(run: str, store: "RunStore", as_json: bool) -> None:
    """Everything about RUN: config, status, scores, versions."""
    facts = store.find(run).facts()
    if as_json:
        print_json(facts)
        return
    status = {"trained_steps" if name == "steps" else name: value for name, value in facts["status"].items()}
    for name, value in {**status, **facts["config"], **facts["versions"]}.items():
        click.echo(f"{name:<22} {value}")
    if facts["evaluation"]:
        click.echo()
        print_table([score_cells(row) for row in facts["evaluation"]])


@runs.command("check")
@own_store
@as_json
def check_runs(store: "RunStore", as_json: bool) -> None:
    """Verify every checksum of every run."""
    problems, count = store.must_exist().check(), len(list(store.runs()))
    if as_json:
        print_json({"runs": count, "problems": problems})
    else:
        click.echo("\n".join(problems) or f"{count} runs, all as they were written")
    if problems:
        sys.exit(1)


@runs.command()
@click.argument("file", default="runs.parquet", type=options.OutFile())
@own_store
def table(file: Path, store: "RunStore") -> None:
    """One row for each run and length, into FILE as parquet and, beside it, as csv."""
    with terminal.leaving_out("the table") as left_out:
        for path in store.must_exist().write_table(file, left_out):
            click.echo(path)


@runs.command()
@click.argument("names", nargs=-1, metavar="[RUN...]")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@own_store
@as_json
def repair(names: tuple[str, ...], dry_run: bool, store: "RunStore", as_json: bool) -> None:
    """Set aside what is damaged in each RUN, or in all: single files, or runs that cannot be trusted any more.

    Nothing is deleted: files go into the folder "damaged" of their run, and runs into that of the store. Exit code 1
    says that something is lost or left to do.
    """
    from dataclasses import asdict

    from lengthlens.runs.store import repair

    chosen = [store.find(name) for name in names] if names else list(store.must_exist().runs())
    done = []
    with stoppable("the repair"), terminal.leaving_out("the repair") as left_out, progress("repairing") as report:
        for run in chosen:
            report(run.id)
            try:
                done += repair(run, dry_run=dry_run)
            except UserError as error:
                left_out(run.id, str(error))
        rows = [asdict(each) for each in done]
        if as_json:
            print_json({"runs": len(chosen), "repairs": rows})
        elif rows:
            print_table(rows)
            open_ends = sum(not each.healed for each in done)
            verb = "would be" if dry_run else "were"
            click.echo(f"{len(rows) - open_ends} files {verb} healed, {open_ends} not")
        else:
            click.echo(f"{len(chosen)} runs, nothing to repair")
    if any(not each.healed for each in done) or (dry_run and done):
        sys.exit(1)


# -- what others made, and what others get ------------------------------------------------------------------------


@click.command("import")
@click.argument("source", metavar="SOURCE")
@click.option("--task", help="The task of an external model; see `lengthlens tasks`.")
@click.option(
    "--vocab",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON: the model's id or token for each token of the task.  [default: looked up in the model's tokenizer]",
)
@click.option("--train-max", type=Whole(1), default=10, show_default=True, help="The largest n it was trained on.")
@click.option("--start", type=Whole(0), default=0, help="Learned positions: that of the first token.  [default: 0]")
@click.option(
    "--spread", type=Whole(0), default=0, help="Learned positions: average over random starts, up to so much further."
)
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Tells apart models of one training recipe.")
@click.option("--name", help="Its name in studies.  [default: the name of the directory]")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where a study is written.  [default: its name, as parquet]",
)
@store_option
@as_json
def import_command(
    source: str, task: str | None, store: "RunStore", out: Path | None, as_json: bool, **how: Any
) -> None:
    """Take in an external trained model as a run, or what `lengthlens export` wrote.

    SOURCE is a directory, or a repository owner/name on the Hugging Face Hub. It holds config.json and safetensors:
    GPT-2, Llama, Mistral, Qwen2, GPT-NeoX or BLOOM as save_pretrained writes them, or a HookedTransformer or
    TransformerBridge of TransformerLens. What has no equivalent is refused by name.
    """
    from dataclasses import asdict

    from lengthlens.models.saved import download, is_local
    from lengthlens.runs.importing import import_checkpoint, source_of
    from lengthlens.studies.sharing import certificate_words, fetch, is_export

    folder = Path(source) if is_local(source) else Path(download(source, None))
    if is_export(folder):  # a run goes into the store, a study into a file
        fetched = fetch(folder, store)
        if fetched.kind == "study":
            out = out or Path(f"{fetched.name}.parquet")
            fetch(folder, into=out)
        path = str(fetched.run.path if fetched.run else out)
        if as_json:
            print_json({"kind": fetched.kind, "name": fetched.name, "path": path})
            return
        click.echo(f"{fetched.kind} {fetched.name}: {path}")
        if fetched.certificate:
            click.echo(f"certificate: {certificate_words(fetched.certificate)}")
        return
    if task is None:
        raise UserError(f"'{source}' is an external model: choose its task with --task")
    how["name"] = how["name"] or Path(source).resolve().name
    with stoppable("the import", kept=False), progress("importing") as report:
        run = import_checkpoint(folder, task, store, report=report, **how)
    facts = {"run": run.id, **asdict(run.status()), "source": source_of(run), "path": str(run.path)}
    if as_json:
        print_json(facts)
        return
    model, config = facts["source"], run.config
    tokens = "  ".join(f"{token} {number}" for token, number in model["tokens"].items())
    click.echo(f"{run.id}: {model['kind']} model '{model['name']}' with scheme {config.spec.label}")
    click.echo(f"ids of the task's tokens: {tokens}")
    click.echo(in_range_words(config.train_max, facts["in_range_exact_match"], run))
    if model["outside"]:
        share = f"{model['outside']:.1%} of the answer tokens at n = {config.train_max}"
        click.echo(f"answers are the likeliest of the task's tokens; the source prefers another token at {share}")


@click.command("export")
@click.argument("what", metavar="RUN|STUDY")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What `lengthlens certify RUN --json` printed, to go with the run.",
)
@click.option("--hub", metavar="OWNER/NAME", help="Upload it to this repository of the Hugging Face Hub, too.")
@click.option("--private", is_flag=True, help="A repository that is made for it is private.")
@store_option
@as_json
def export_command(
    what: str, directory: Path, certificate: Path | None, store: "RunStore", as_json: bool, **where: Any
) -> None:
    """Write a RUN (a name, or how it begins) or a STUDY (a file) into one directory DIR that can be handed on.

    It holds safetensors, JSON and parquet, with a card that says what it is; `lengthlens import` reads it back.
    """
    from lengthlens.files import read_whole
    from lengthlens.studies.sharing import export, read_certificate

    is_study = Path(what).suffix in (".parquet", ".csv")
    if is_study and certificate:
        raise UserError(f"a certificate is about a run, and '{what}' is a study")
    given = read_certificate(read_whole(certificate), f"'{certificate}'") if certificate else None
    folder = export(what if is_study else store.find(what), directory, certificate=given, **where)
    names = sorted(path.name for path in folder.iterdir())
    print_json({"path": str(folder), "files": names}) if as_json else click.echo(f"{folder}: {', '.join(names)}")


RUN_COMMANDS = (train_command, evaluate, sweep_command, runs)
SHARING_COMMANDS = (import_command, export_command)
