"""Trained models that come with the package, so that everything can be tried without training one.

Each is a run like any other, in the folder `trained`, named by its task and its scheme: ``copy/lbpe``. It is opened
where it is by `lengthlens.load`; a store that is asked for it takes a copy, which can be evaluated and probed further.
"""

from functools import cache
from pathlib import Path

from lengthlens.errors import UserError, unknown
from lengthlens.files import read_whole
from lengthlens.runs.run import STATUS, Run

HOME = Path(__file__).resolve().parent / "trained"


@cache
def shipped() -> dict[str, Run]:
    """Every trained model of the package, by name.

    >>> shipped()["copy/rope"].config.train_max
    10
    """
    runs = [Run(path) for path in sorted(HOME.iterdir()) if path.is_dir()] if HOME.is_dir() else []
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


def copied(source: Run, target: Run) -> Run:
    """The run at `target`, made there with everything that `source` holds if it is not there yet."""
    if target.status().finished:
        return target
    with target.locked(wait=True):
        names = [name for name in source.manifest() if source.has(name)]
        for name in sorted(names, key=lambda each: each == STATUS):  # last: once it says finished, all else is there
            target.write(name, read_whole(source.path / name))
    return target
