"""Healing runs: what is damaged is set aside, what follows from sound parts is made again, and the rest is said.

Nothing is deleted: damaged files go into the folder ``damaged`` of their run. What follows from what:

====================  =============================================================================================
manifest              from the checksums in the log's last line about the end of training, file by file
config                from the config of another run in the store, if that gives exactly this run's name
status, scores        from the model: its score at each scale in range, and what the log says of the end
probes                from the model, by whoever can make them (`makers`)
model                 from training alone; with it goes all that was measured on it
metrics, versions     from nothing else: they are lost
====================  =============================================================================================
"""

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lengthlens import files
from lengthlens.errors import UserError
from lengthlens.models.schemes import scheme_names
from lengthlens.runs.config import RunConfig
from lengthlens.runs.evaluation import in_range_rows
from lengthlens.runs.run import (
    CHECKPOINT,
    CONFIG,
    EVALUATION,
    LOG,
    MANIFEST,
    METRICS,
    MODEL,
    SCORES_RULE,
    STATUS,
    STATUS_RULE,
    UNLISTED,
    VERSIONS,
    Run,
    Status,
    rewritten,
)
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import FINISH, judged
from lengthlens.values import parse_json

Makers = Mapping[str, Callable[[Run], object]]
KEPT = (CONFIG, CHECKPOINT, VERSIONS)  # what does not follow from the model
UNSURE = "has no checksum any more"


@dataclass(frozen=True)
class Repair:
    """One damaged file: what is wrong with it and what is done. Not `healed` if something is lost or left to do."""

    run: str
    file: str
    wrong: str
    remedy: str
    healed: bool = True


@dataclass(frozen=True)
class Remedy:
    """A repair, and how it is done."""

    file: str
    wrong: str
    remedy: str
    action: Callable[[], object]
    healed: bool = True
    unlocked: bool = False  # done after all others, when the lock is given back: it takes the lock itself


def repair(
    run: Run, store: RunStore | None = None, *, dry_run: bool = False, makers: Makers | None = None
) -> list[Repair]:
    """Heal a run as far as can be; a `Repair` for each file that was not as it should be, none for a sound run.

    Arguments:
        run: the run.
        store: whose other runs may tell the config of this one; the one that the run is in, if None.
        dry_run: only say what would be done.
        makers: by file name, what makes a file again from a sound model.

    Errors: UserError if another process works on the run, or if it was made by a newer version; it is left alone then.
    """
    place = store or RunStore(run.path.parent)
    run.has(CONFIG)  # refuses a run that is a link
    if not run.problems():
        return []
    if dry_run:
        return [Repair(run.id, s.file, s.wrong, s.remedy, s.healed) for s in planned(run, place, makers or {})]
    done, later = [], list[Remedy]()
    with run.locked():
        for step in planned(run, place, makers or {}):
            if step.unlocked:
                run.set_aside(step.file)
                later.append(step)
            else:
                done.append(taken(run, step))
    vars(run).pop("config", None)  # as it was read before
    return done + [taken(run, step) for step in later]


def taken(run: Run, step: Remedy) -> Repair:
    """What a step came to, now that it was tried."""
    try:
        step.action()
    except UserError as error:
        return Repair(run.id, step.file, step.wrong, f"could not be done: {error}", False)
    return Repair(run.id, step.file, step.wrong, step.remedy, step.healed)


def planned(run: Run, store: RunStore, makers: Makers) -> Iterator[Remedy]:
    """What is to be done, in order; each step sees what those before it left, if they were taken."""
    try:
        damage, entries = run.damage(), run.manifest()
        wrong = "" if run.has(MANIFEST) else "is missing"
    except files.StorageError as error:
        wrong = str(error)
    if wrong:
        entries = surely(run)
        yield Remedy(MANIFEST, wrong, f"made again for {len(entries)} files", partial(relist, run, entries))
        names = sorted(path.name for path in run.path.iterdir() if path.name not in UNLISTED and not path.is_dir())
        damage = {name: UNSURE for name in names if name not in entries}
    config, how = known_config(run, store, damage)
    if CONFIG in damage or not run.has(CONFIG) or how:
        yield config_step(run, damage.pop(CONFIG, "belongs to another run"), config, how)
    for name in (LOG, CHECKPOINT, VERSIONS, METRICS):
        if name in damage:
            yield Remedy(name, damage.pop(name), *REMEDIES[name](run))
    follow = [name for name in entries if name not in (*KEPT, *UNLISTED)]
    if MODEL in damage or (MODEL not in follow and says_model(run, damage)):
        yield from lost_model(run, damage, [*follow, *damage], config)
        return
    sound = MODEL in follow and config is not None
    if STATUS in damage or (STATUS not in follow and MODEL in follow):
        model = entries[MODEL].get("sha256") if sound else None
        yield status_step(run, damage.pop(STATUS, "is missing"), model)
    for name, wrong in damage.items():
        if name == EVALUATION and config is not None and sound:
            yield Remedy(name, wrong, scores_remedy(run, config), partial(score_again, run))
        elif name in makers and sound:
            yield Remedy(name, wrong, "measured again", partial(makers[name], run), unlocked=True)
        else:
            stray = name not in follow
            yield Remedy(name, wrong, "set aside", partial(run.set_aside, name), healed=stray and wrong != UNSURE)


def says_model(run: Run, damage: Mapping[str, str]) -> bool:
    """Whether the run's status, which is sound, says that there is a model."""
    return STATUS not in damage and run.has(STATUS) and run.status().has_model


# -- manifest, config, log ---------------------------------------------------------------------------------------


def finished(run: Run) -> dict[str, Any]:
    """What the log says of the end of training; nothing if it does not."""
    try:
        ends = [event for event in run.events() if event["event"] == FINISH]
    except files.StorageError:
        return {}
    return ends[-1] if ends and isinstance(ends[-1].get("files"), dict) else {}


def surely(run: Run) -> dict[str, dict[str, str]]:
    """Entries of a new manifest: the files that are, by the log, as they were at the end of training."""
    sums, found = finished(run).get("files", {}), dict[str, dict[str, str]]()
    for name in (CONFIG, METRICS, MODEL, VERSIONS):
        try:
            data = files.read_whole(run.path / name, follow=False)
            if files.sha256(data) == sums.get(name) or (name == CONFIG and RunConfig.from_json(data).id == run.id):
                found[name] = {"sha256": files.sha256(data)}
        except UserError:
            continue
    return found


def relist(run: Run, entries: Mapping[str, Any]) -> None:
    run.set_aside(MANIFEST)
    run.write_manifest(entries)


def known_config(run: Run, store: RunStore, damage: Mapping[str, str]) -> tuple[RunConfig | None, str]:
    """The config of a run, and where it was found if not in its own file.

    One that is sound and cannot be understood (its scheme is not of this project, say) is an error, and left alone.
    """
    if CONFIG not in damage and run.has(CONFIG):
        own = RunConfig.from_json(files.read_whole(run.path / CONFIG, follow=False))
        if own.id == run.id:
            return own, ""
    for other in store.runs():
        try:
            for config in relatives(run.id, other.config):
                if config.id == run.id:
                    return config, f"made again as that of run '{other.id}' with its own task, scheme and seed"
        except UserError:
            continue
    return None, "set aside"


def relatives(name: str, config: RunConfig) -> Iterator[RunConfig]:
    """The config for the task, scheme and seed that a run's name says; options of a scheme as there, or the default."""
    task, _, rest = name.partition("_")
    scheme, _, rest = rest.rpartition("_s")
    seed = rest.partition("_")[0]
    for known in scheme_names():
        if known.replace(":", "-") == scheme and seed.isascii() and seed.isdigit() and len(seed) < 20:
            for options in ([config.scheme_options] if config.scheme == known else []) + [{}]:
                values = {**config.to_dict(), "task": task, "scheme": known, "scheme_options": options}
                yield RunConfig.from_dict({**values, "seed": int(seed)})


def config_step(run: Run, wrong: str, config: RunConfig | None, how: str) -> Remedy:
    def act() -> None:
        run.set_aside(CONFIG)
        if config is not None:
            run.write(CONFIG, config.to_json().encode())

    left = "set aside: give the command again that trained the run, and nothing sound is trained again"
    return Remedy(CONFIG, wrong, how if config else left, act, healed=config is not None)


def mend_log(run: Run) -> None:
    events = run.events() if files.kind_of(run.path / LOG) is None else []
    run.set_aside(LOG)
    files.write_whole(run.path / LOG, rewritten(events))


def simply(words: str, healed: bool) -> Callable[[str], Callable[[Run], tuple[str, Callable[[], object], bool]]]:
    return lambda name: lambda run: (words, partial(run.set_aside, name), healed)


REMEDIES: dict[str, Callable[[Run], tuple[str, Callable[[], object], bool]]] = {
    LOG: lambda run: ("what can be read is kept, the rest set aside", partial(mend_log, run), True),
    CHECKPOINT: simply("set aside: training starts again from its beginning", False)(CHECKPOINT),
    VERSIONS: simply("set aside: which versions it was made with is lost", False)(VERSIONS),
    METRICS: simply("set aside: how its loss fell is lost", False)(METRICS),
}


# -- the model, and what follows from it -------------------------------------------------------------------------


def lost_model(
    run: Run, damage: Mapping[str, str], follow: Iterable[str], config: RunConfig | None
) -> Iterator[Remedy]:
    again = f"train it again: {command_of(config)}" if config else "train it again"
    wrong = damage.get(MODEL, "is missing")
    yield Remedy(MODEL, wrong, f"set aside; {again}", partial(run.set_aside, MODEL), healed=False)
    for name in dict.fromkeys(follow):
        if name != MODEL:
            wrong = damage.get(name, "was made with the model that is lost")
            yield Remedy(name, wrong, "set aside", partial(run.set_aside, name), healed=name in damage)


def status_step(run: Run, wrong: str, model: str | None) -> Remedy:
    """`model` is the checksum of a model that is sound."""
    if model is None:
        remedy = "set aside: training goes on at its last checkpoint, or begins"
        return Remedy(STATUS, wrong, remedy, partial(run.set_aside, STATUS), healed=run.has(CHECKPOINT))
    noted = finished(run)
    if noted.get("files", {}).get(MODEL) == model:
        return Remedy(STATUS, wrong, "made again as the log says", partial(set_status, run, noted.get("status")))
    return Remedy(STATUS, wrong, "judged again by the model; the seconds it took are lost", partial(judge_again, run))


def set_status(run: Run, noted: Any) -> None:
    run.set_aside(STATUS)
    known = {field.name for field in dataclasses.fields(Status)}
    run.set_status(Status(**{k: v for k, v in STATUS_RULE(noted, "the log").items() if k in known}))


def judge_again(run: Run) -> None:
    run.set_aside(STATUS)
    looks = run.metrics()
    run.set_status(judged(in_range_rows(run.model(), run.config), looks[-1]["step"] if looks else 0))


def score_again(run: Run) -> None:
    run.set_aside(EVALUATION)
    run.add_evaluation(in_range_rows(run.model(), run.config))


def scores_remedy(run: Run, config: RunConfig) -> str:
    """What is done about scores: those in range are computed again; which others there were, if that can be read."""
    try:
        data = files.read_whole(run.path / EVALUATION, follow=False)
        rows = parse_json(data, EVALUATION, SCORES_RULE)
    except UserError:
        rows = []
    lengths = sorted({row["length"] for row in rows if row["length"] > config.train_max})
    also = f"; then: lengthlens evaluate {run.id} --lengths {','.join(map(str, lengths))}" if lengths else ""
    return f"computed again in range{also}"


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
