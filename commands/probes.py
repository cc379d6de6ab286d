"""The commands that ask trained runs: how their complexity grows in range, how far their answers are certain, what
happens inside them, and what happens when that is changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands import options, terminal
from lengthlens.commands.options import MOST_SCALE, OutFile, Whole, as_json, names, numbers, store_option
from lengthlens.commands.terminal import print_json, print_table, progress, stoppable
from lengthlens.errors import UserError
from lengthlens.files import StorageError
from lengthlens.probes.probe import OURS, PROBES
from lengthlens.probes.schema import THRESHOLDS

if TYPE_CHECKING:
    from lengthlens.probes.certify import Certificate
    from lengthlens.runs.store import RunStore

HELP = "Measure each RUN on inputs of its training range, and store the results with the run.\n\n\b\n" + "\n".join(
    f"{name}: {probe.words}" for name, probe in OURS.items()
)


@click.command(help=HELP)
@click.argument("runs", nargs=-1, metavar="RUN...")
@click.option(
    "--measure",
    "measures",
    default=lambda: ",".join(PROBES),
    show_default="all",
    callback=names,
    help="What to measure, with commas.",
)
@click.option("--layers", callback=numbers, help="Layers for lrc and transfer, such as 0,1.  [default: all]")
@click.option("--beyond", callback=numbers, help="Sizes n beyond the range for transfer.  [default: 2 times train_max]")
@click.option("--all", "every", is_flag=True, help="Every run in the store that is accurate in range.")
@click.option("--force", is_flag=True, help="Probe runs that are not accurate in range, too, and flag them.")
@click.option("--again", is_flag=True, help="Measure again what is stored with the run already.")
@options.device_option
@store_option
@as_json
def probe(
    runs: tuple[str, ...], measures: list[str], every: bool, store: "RunStore", as_json: bool, **how: Any
) -> None:
    """Parse, measure, print; `HELP` lists what can be measured."""
    from lengthlens.probes.table import plain_rows, probe_run
    from lengthlens.runs.run import Run
    from lengthlens.runs.store import each_sound

    if every == bool(runs):
        raise UserError("name the runs to probe, or say --all")
    tables = []
    with terminal.leaving_out("what was probed") as left_out:
        with stoppable("the probing"), progress("probing") as tell:
            chosen = list(map(store.find, runs))
            if every:
                states = each_sound(store.must_exist().runs(), Run.status, left_out)
                chosen = [run for run, status in states if status.has_model]
            for k, run in enumerate(chosen):
                where = f"{run.id} ({k + 1} of {len(chosen)})"
                report = lambda text, where=where: tell(f"{where}: {text}")  # noqa: E731
                try:
                    tables.append(probe_run(run, measures or None, **how, report=report, unkept=terminal.say_unkept))
                except UserError as error:
                    if not every:
                        raise
                    if isinstance(error, StorageError):
                        left_out(run.id, str(error))
                    else:  # it is not accurate in range
                        click.echo(f"left out: {error}", err=True)
        for table in tables if not as_json else ():
            show(plain_rows(table))
        if as_json:
            print_json([row for table in tables for row in plain_rows(table)])


def show(rows: list[dict[str, Any]]) -> None:
    """Growth curves of a run, a line each, with their index at the default thresholds."""
    flag = "" if rows[0]["accurate"] else "  (NOT accurate in range)"
    click.echo(click.style(f"\n{rows[0]['run']}{flag}", bold=True))
    if relations := [row["relation"] for row in rows if row["relation"] is not None]:
        click.echo(f"codes: {relations[0]}")
    if cells := curve_cells(rows):
        print_table(cells)
    for probe in PROBES.values():
        for line in probe.lines(rows):
            click.echo(line)


def curve_cells(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each growth curve: its name, its value at each n, and ι at the thresholds of the curve."""
    index_of = {curve: index for probe in PROBES.values() for curve, index in probe.curves.items()}

    def key(row: dict[str, Any], index: str) -> tuple[Any, ...]:
        return (index, *(row[column] for column in ("layer", "readout", *THRESHOLDS)))

    indices = {key(row, row["measure"]): row["value"] for row in rows if row["measure"] in index_of.values()}
    curves: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["measure"] in index_of and row["head"] is None and row["value"] is not None:
            layer = f" layer {row['layer']} {row['readout']}" if row["readout"] else ""
            name = row["measure"].replace("_", " ")
            curve = curves.setdefault(key(row, index_of[row["measure"]]), {"measure": f"{name}{layer}"})
            curve[f"n={row['scale']}"] = int(row["value"])
    return [{**curve, "ι": f"{indices[key]:.2f}"} for key, curve in curves.items()]


@click.command("certify")
@click.argument("run", metavar="RUN")
@click.option(
    "--max-length",
    type=Whole(1, 10**9),
    help="The longest n to ask about.  [default: 1000000 for a proof, 1000 for a test]",
)
@store_option
@as_json
def certify_command(run: str, max_length: int | None, store: "RunStore", as_json: bool) -> None:
    """Give the largest n up to which RUN's answers are proven to be right, or up to which a test found none wrong.

    A proof follows from the weights, for one layer of attention without norm and MLP. All other networks
    answer instances at lengths drawn evenly in log n; the result is how many were wrong, and what follows from that.
    """
    from lengthlens.probes.certify import certify

    trained = store.find(run)
    with stoppable("the certificate", kept=False), progress("certifying") as report:
        certificate = certify(trained, max_length, report=report)
    if as_json:
        print_json({"run": trained.id, **certificate.to_dict()})
    else:
        show_certificate(trained.id, certificate)


def show_certificate(run: str, certificate: "Certificate") -> None:
    """The certificate in words, and a table of what can leak: a row for each head, a column for each length."""
    click.echo(click.style(f"{run}: {certificate.headline}", bold=True))
    settled = certificate.settled
    facts = {
        "why not longer": "" if certificate.limit or certificate.kind == "none" else certificate.reason,
        "rests on": certificate.assumes,
        "wrong": ", ".join(f"{wrong} of {certificate.tried[n]} at n = {n}" for n, wrong in certificate.failed.items()),
        "why not proven": certificate.unproven,
        "least lead": ", ".join(f"{worst:.2f} at n = {n}" for n, worst in certificate.worst.items()),
        "weakest step": certificate.weakest_step,
        "kinds of steps": "" if settled is None else f"none is new from n = {settled} on",
    }
    for name, text in facts.items():
        if text:
            click.echo(f"{name}: {text}")
    leaks: dict[str, dict[str, Any]] = {}
    for n, bounds in certificate.leak.items():
        for layer, heads in enumerate(bounds):
            for head, bound in enumerate(heads):
                name = f"layer {layer} head {head}"
                leaks.setdefault(name, {"head": name})[f"n={n}"] = bound
    if leaks:
        click.echo("\nattention that can leak to keys without a name at an answer token, at most (proven):")
        print_table(list(leaks.values()))


# -- what happens inside ------------------------------------------------------------------------------------------


@click.command("inspect")
@click.argument("run", metavar="RUN")
@click.option("--input", "text", help='The sequence to show, such as "^ 1 0 1 1 =".  [default: a random one]')
@click.option(
    "--length", type=Whole(0, MOST_SCALE), help="The size n of a random sequence to show.  [default: train_max]"
)
@click.option(
    "--lengths",
    "scales",
    callback=numbers,
    help="Sizes n at which heads are measured, such as 10,20.  [default: 1/2, 1, 2 and 5 times train_max]",
)
@click.option("--out", type=OutFile(), help="The page to write.  [default: inspect-RUN.html]")
@click.option("--step", type=Whole(0), help="Look at the checkpoint of this training step (`train --keep`).")
@store_option
@as_json
def inspect_command(
    run: str, out: Path | None, step: int | None, store: "RunStore", as_json: bool, **shown: Any
) -> None:
    """Look inside RUN: what each head attends to and by what, at several lengths; a page and a summary."""
    from lengthlens.analyses.page.inspection import inside_page
    from lengthlens.files import make_directory, write_whole
    from lengthlens.inside.look import inspect

    trained = store.find(run)
    config, over_training = trained.config, trained if trained.checkpoints and step is None else None
    with stoppable("the inspection", kept=False), progress("looking inside") as report:
        model = trained.model(step=step)
        seen = inspect(model, train_max=config.train_max, checkpoints=over_training, report=report, **shown)
        report("drawing")
        title = f"Inside {config.task} under {config.scheme}"
        about = {"run": trained.id, "task": config.task, "scheme": config.scheme}
        about |= {"trained on": f"n ≤ {config.train_max}"}
        about |= {} if step is None else {"checkpoint": f"training step {step}"}
        page = inside_page(seen, trained.id, title, about)
    path = Path(f"inspect-{trained.id}.html") if out is None else out
    make_directory(path.parent)
    write_whole(path, page.encode())
    rows = seen.summary()
    if as_json:
        print_json({"run": trained.id, "page": str(path), "heads": rows})
    else:
        click.echo(click.style(trained.id, bold=True))
        if len(seen.ablation):
            whole = seen.ablation.drop_duplicates("scale")
            scores = ", ".join(f"{value:.2f} at n = {n}" for n, value in zip(whole["scale"], whole["whole"]))
            click.echo(f"exact match: {scores}")
        for row in rows:
            click.echo(f"{row['head']} {row['attends_to']}")
        click.echo("")
        print_table([{key.replace("_", " "): row[key] for key in row if key != "attends_to"} for row in rows])
    click.echo(f"page: {path}", err=True)


@click.command("surgery")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--lengths", callback=numbers, help="Sizes n beyond training.  [default: 2 and 4 times train_max]")
@click.option("--all", "every", is_flag=True, help="Every run of the store that is accurate in range; needs --out.")
@click.option("--table", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Draw from this table.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where table and figure of --all go.")
@options.width_option
@store_option
@as_json
def surgery_command(
    run: str | None, lengths: list[int] | None, every: bool, table: Path | None, store: "RunStore", as_json: bool,
    out: Path | None, width: float | None,
) -> None:  # fmt: skip
    """Give RUN the ideal relation, and see whether that heals it on long inputs; with --all, a study of all runs."""
    from lengthlens.analyses.findings import draw
    from lengthlens.probes.surgery import SurgeryProbe, healing
    from lengthlens.studies.build import surgery_study

    if (run is not None) + every + (table is not None) != 1:
        raise UserError("name a RUN, or say --all, or --table with a table that was made before")
    if run is not None:
        trained = store.find(run)
        train_max = trained.config.train_max
        with stoppable("the surgery", kept=False), progress("operating"):
            healed = healing(trained.model(), scales=lengths or SurgeryProbe.scales(train_max), train_max=train_max)
        rows: list[dict[str, Any]] = healed.to_dict("records")  # type: ignore[assignment]
        print_json(rows) if as_json else print_table(rows)
        return
    if out is None:
        raise UserError("--all and --table need --out, the directory for table and figure")
    with stoppable("the study"), progress("operating") as report:
        study = surgery_study(store, out / "surgery.csv", lengths, report=report) if table is None else table
        drawn = draw(study, ["healing"], out, width=width)
    for sentence in drawn.missing.values():
        click.echo(sentence, err=True)
    files = [str(path) for path in drawn.files]
    print_json(files) if as_json else click.echo("\n".join(files))


@click.command("patch")
@click.argument("run", metavar="RUN")
@click.option(
    "--length", type=Whole(0, MOST_SCALE), help="The size n that activations are taken from.  [default: train_max]"
)
@click.option("--onto", type=Whole(0, MOST_SCALE), help="The size n of what is patched.  [default: the same]")
@click.option("--roles", callback=names, help="Slots of the step, with commas.  [default: all]")
@options.plot_file
@options.width_option
@store_option
@as_json
def patch_command(
    run: str, length: int | None, plot: Path | None, width: float | None, store: "RunStore", as_json: bool, **how: Any
) -> None:
    """Show which layer and head of RUN carries what each slot of a step reads, within one length or across two.

    A step is the writing of one answer token; its slots are the tokens that the task's circuit reads for it.
    """
    from lengthlens.inside.patching import patch_by_role

    trained = store.find(run)
    with stoppable("patching", kept=False), progress("patching"):
        n = trained.config.train_max if length is None else length
        table = patch_by_role(trained.model().eval(), None, n, **how)
    rows: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    print_json(rows) if as_json else print_table(rows)
    if plot is not None:
        from lengthlens.analyses.inside import plot_patching

        terminal.save_figure(plot_patching(table, width=width), plot)


@click.command("attribute")
@click.argument("run", metavar="RUN")
@click.option("--input", "text", required=True, help='The input up to the query, such as "^ 1 0 1 1 =".')
@click.option("--method", default="lrp", show_default=True, help="lrp, gradient, integrated or rollout.")
@options.plot_file
@options.width_option
@store_option
@as_json
def attribute_command(
    run: str, text: str, method: str, plot: Path | None, width: float | None, store: "RunStore", as_json: bool
) -> None:
    """Show which tokens, and which positions, determine the token that RUN predicts after an input."""
    from lengthlens.inside.attribution import relevance

    parts_of = relevance(store.find(run).model().eval(), text, method=method)
    words = text.split()
    positions = [None] * len(words) if parts_of.positions is None else parts_of.positions[0].tolist()
    parts = zip(words, parts_of.tokens[0].tolist(), positions)
    rows = [{"position": k, "token": w, "of token": t, "of position": p} for k, (w, t, p) in enumerate(parts)]
    print_json(rows) if as_json else print_table(rows)
    if plot is not None:
        from lengthlens.analyses.inside import plot_relevance

        terminal.save_figure(plot_relevance(parts_of, words, width=width), plot)


PROBE_COMMANDS = (probe, certify_command, inspect_command, surgery_command, patch_command, attribute_command)
