"""The commands that ask trained runs: how their complexity grows in range, and how far their answers are certain."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.options import Whole, as_json, device_option, names, numbers, store_option
from lengthlens.commands.terminal import leaving_out, print_json, print_table, progress, say_unkept, stoppable
from lengthlens.errors import UserError
from lengthlens.files import StorageError
from lengthlens.probes.probe import OURS, PROBES
from lengthlens.probes.schema import THRESHOLDS

if TYPE_CHECKING:
    import pandas as pd

    from lengthlens.probes.certify import Certificate
    from lengthlens.runs.run import Run
    from lengthlens.runs.store import RunStore

HELP = (
    "Measure each RUN from inputs of its training range, and keep what is measured with the run.\n\n\b\n"
    + "\n".join(f"{name}: {probe.words}" for name, probe in OURS.items())
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
@click.option("--beyond", callback=numbers, help="Scales beyond the range for transfer.  [default: 2 times train_max]")
@click.option("--all", "every", is_flag=True, help="Every run in the store that is accurate in range.")
@click.option("--force", is_flag=True, help="Probe runs that are not accurate in range, too, and flag them.")
@click.option("--again", is_flag=True, help="Measure again what is kept with the run already.")
@device_option
@store_option
@as_json
def probe(
    runs: tuple[str, ...], measures: list[str], every: bool, store: "RunStore", as_json: bool, **how: Any
) -> None:
    """Parse, measure, print; what is measured is said in `HELP`."""
    from lengthlens.probes.table import plain_rows, probe_run
    from lengthlens.runs.run import Run
    from lengthlens.runs.store import each_sound

    if every == bool(runs):
        raise UserError("name the runs to probe, or say --all")

    def measure(run: "Run", report: Callable[[str], None]) -> "pd.DataFrame":
        return probe_run(run, measures or None, **how, report=report, unkept=say_unkept)

    with leaving_out("what was probed") as left_out:
        with stoppable("the probing"):
            if every:
                states = each_sound(store.must_exist().runs(), Run.status, left_out)
                tables = probed([run for run, status in states if status.has_model], measure, left_out)
            else:
                tables = probed(list(map(store.find, runs)), measure)
        for table in tables if not as_json else ():
            show(plain_rows(table))
        if as_json:
            print_json([row for table in tables for row in plain_rows(table)])


def probed(
    runs: "list[Run]",
    measure: "Callable[[Run, Callable[[str], None]], pd.DataFrame]",
    left_out: Callable[[str, str], None] | None = None,
) -> "list[pd.DataFrame]":
    """The table of each run. A run that is damaged is told to `left_out`, if given, and then one that is not accurate
    is named and left out, too."""
    tables = []
    with progress("probing") as report:
        for k, run in enumerate(runs):
            where = f"{run.id} ({k + 1} of {len(runs)})"
            try:
                tables.append(measure(run, lambda text, where=where: report(f"{where}: {text}")))  # type: ignore[misc]
            except UserError as error:
                if left_out is None:
                    raise
                if isinstance(error, StorageError):
                    left_out(run.id, str(error))
                else:
                    click.echo(f"left out: {error}", err=True)
    return tables


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
    """A row for each growth curve: its name, its value at each scale, and ι at the thresholds of the curve."""
    index_of = {curve: index for probe in PROBES.values() for curve, index in probe.curves.items()}

    def key(row: dict[str, Any], index: str) -> tuple[Any, ...]:
        return (index, *(row[column] for column in ("layer", "readout", *THRESHOLDS)))

    indices = {key(row, row["measure"]): row["value"] for row in rows if row["measure"] in index_of.values()}
    curves: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["measure"] in index_of and row["head"] is None:
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

    A proof follows from the weights, for one layer of attention without norm and MLP. Of all other networks instances
    are answered at lengths drawn evenly in log n: how many were wrong, and what follows, is said.
    """
    from lengthlens.probes.certify import certify

    found = store.find(run)
    with stoppable("the certificate", kept=False), progress("certifying") as report:
        certificate = certify(found, max_length, report=report)
    if as_json:
        print_json({"run": found.id, **certificate.to_dict()})
    else:
        show_certificate(found.id, certificate)


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


PROBE_COMMANDS = (probe, certify_command)
