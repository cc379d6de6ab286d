"""The command that certifies a trained run: up to which length leaked attention cannot change its answers."""

from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.options import as_json, store_path
from lengthlens.commands.progress import progress
from lengthlens.commands.terminal import print_json, print_table, stoppable

if TYPE_CHECKING:
    from lengthlens.probes.certificate.certify import Certificate


@click.command("certify")
@click.argument("run", metavar="RUN")
@click.option("--max-length", type=int, default=1_000_000, show_default=True, help="The longest length to ask about.")
@store_path
@as_json
def certify_command(run: str, max_length: int, store: str, as_json: bool) -> None:
    """Give the largest length up to which leaked attention cannot change RUN's answers, or say why there is none.

    Read from the learned relation and the weights. A certificate is proven, or conditional on what it names.
    """
    from lengthlens.probes.certificate.certify import certify
    from lengthlens.runs.store import RunStore

    found = RunStore(store).find(run)
    with stoppable("the certificate"), progress("certifying") as report:
        certificate = certify(found, max_length, report=report)
    if as_json:
        print_json({"run": found.id, **certificate.to_dict()})
        return
    show(found.id, certificate)


def show(run: str, certificate: "Certificate") -> None:
    """The certificate in words, and a table of what can leak."""
    click.echo(click.style(f"{run}: {headline(certificate)}", bold=True))
    facts = {
        "why not longer": "" if certificate.limit else certificate.reason,
        "assumes": certificate.assumes,
        "usual margin": "" if certificate.margin is None else f"{certificate.margin:.2f}",
        "least margin": ", ".join(f"{worst:.2f} at n = {n}" for n, worst in certificate.worst.items()),
        "weakest step": certificate.weakest_step,
        "weakest head": certificate.weakest_head,
        "kinds of steps": f"none that n = {certificate.settled} and {certificate.settled + 1} do not have",
    }
    for name, text in facts.items():
        if text:
            click.echo(f"{name}: {text}")
    click.echo("\nattention that can leak to keys without a name at an answer token, at most (proven):")
    print_table(leak_rows(certificate))


def headline(certificate: "Certificate") -> str:
    if not certificate.length:
        return f"no length is certified: {certificate.reason}"
    end = ", no limit found below" if certificate.limit else ""
    return f"certified up to n = {certificate.length}{end} ({certificate.kind})"


def leak_rows(certificate: "Certificate") -> list[dict[str, Any]]:
    """A row for each head, a column for each length."""
    first = next(iter(certificate.leak.values()))
    return [
        {
            "head": f"layer {layer} head {head}",
            **{f"n={n}": bounds[layer][head] for n, bounds in certificate.leak.items()},
        }
        for layer in range(len(first))
        for head in range(len(first[layer]))
    ]


CERTIFY_COMMANDS = (certify_command,)
