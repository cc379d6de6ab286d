"""Whether tasks, schemes, probes and figures that users bring keep to what is expected of them, by trying."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from lengthlens.analyses.canvas import Canvas
from lengthlens.analyses.findings import FINDINGS
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import MissingError, as_study
from lengthlens.errors import UserError
from lengthlens.models.by_hand import copy_by_hand
from lengthlens.models.schemes.contract import check_scheme
from lengthlens.models.schemes.spec import SCHEMES
from lengthlens.plugins.registry import load_plugin, registries
from lengthlens.probes.probe import PROBES
from lengthlens.probes.table import probe_model
from lengthlens.tasks import TASKS
from lengthlens.tasks.contract import Breach, breaches, called, check_task, demand


class Checked(NamedTuple):
    """One task, scheme, probe or figure, and what it does not keep to: nothing, if it is sound."""

    kind: str
    name: str
    breaches: tuple[Breach, ...]

    @property
    def sound(self) -> bool:
        return not self.breaches

    def __str__(self) -> str:
        lines = [f"{self.kind} '{self.name}': {'sound' if self.sound else ''}".rstrip()]
        return "\n".join([*lines, *(f"  {breach}" for breach in self.breaches)])


def check(plugin: str) -> list[Checked]:
    """Check everything that a plug-in registers, or one task, scheme, probe or figure by name.

    Arguments:
        plugin: a file, a module, or a name that is registered.

    Result: for each what it does not keep to, a sentence each that names the method and shows the smallest example. A
    task: circuit against `answer`, `scale_of` against `sample`, `parse` against `render`; a scheme: its relation
    against what it does to pairs of positions; shapes, types, gradients, mixed scales and devices. Before an outside
    class is trained with, this is done once by itself.

    Errors: UserError if there is no such plug-in, or it registers nothing.

    >>> print(check("copy")[0])
    task 'copy': sound
    """
    entries = [(registry, plugin) for registry in registries().values() if plugin in registry]
    if not entries:
        place = load_plugin(plugin)
        entries = [
            (r, name) for r in registries().values() for name, origin in r.outside().items() if origin.plugin == place
        ]
    if not entries:
        raise UserError(f"plug-in '{plugin}' registers nothing: put @lengthlens.register above its classes")
    return [Checked(registry.kind, name, tuple(LOOKS[registry.kind](name))) for registry, name in entries]


def check_probe(name: str) -> None:
    """Its rows have the measures that it says, with values, on a network whose weights are written down."""
    probe = PROBES[name]
    for field in ("name", "words"):
        demand(isinstance(getattr(probe, field, None), str), field, "it must be a text")
    known = {*probe.curves, *probe.curves.values(), *([probe.index] if probe.index else [])}
    lacking = sorted(known - set(probe.measures))
    demand(not lacking, "measures", f"it lacks {', '.join(lacking)}, which curves and index name")
    where = "on a copier whose weights are written down, trained up to n = 4,"
    table = called("rows", probe_model, copy_by_hand("lbpe"), train_max=4, measures=[name], where=where)
    other = sorted(set(table["measure"]) - set(probe.measures) - {"exact_match"})
    demand(not other, "rows", f"{where} it gives {', '.join(other)}, which measures does not name")


def check_finding(name: str) -> None:
    """It draws a figure, or says what is missing, on a study of two runs."""
    finding = FINDINGS[name]
    for field in ("name", "title", "shows"):
        demand(isinstance(getattr(finding, field, None), str), field, "it must be a text")
    rows = {"run": ["a", "b"], "task": "copy", "scheme": ["rope", "ideal"], "measure": "steps", "value": [40, 16]}
    study = Study(as_study(pd.DataFrame(rows)))
    called("draw", drawn, finding, study, where="on a study of two runs")


def drawn(finding: Any, study: Study) -> None:
    with suppress(MissingError):
        finding.draw(study, Canvas())


LOOKS: dict[str, Callable[[str], list[Breach]]] = {
    TASKS.kind: lambda name: check_task(TASKS[name]),
    SCHEMES.kind: check_scheme,
    PROBES.kind: lambda name: breaches(partial(check_probe, name)),
    FINDINGS.kind: lambda name: breaches(partial(check_finding, name)),
}
