"""One run on disk: files that are whole and listed with their checksums, written by one process at a time."""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from lengthlens import files
from lengthlens.errors import UserError
from lengthlens.models.saved import refuse_not_finite
from lengthlens.models.transformer import HookedModel, with_weights
from lengthlens.notebook import Share, card
from lengthlens.plugins.registry import PluginError
from lengthlens.runs.config import RunConfig
from lengthlens.values import Rule, list_of, map_of, one_of, optional, parse_json, real, record, shown, text, whole

FORMAT = 1  # of a run directory; raised when an older version of this code could misread it
CONFIG, STATUS, MANIFEST, LOG, LOCK = "config.json", "status.json", "manifest.json", "log.jsonl", ".lock"
MODEL, CHECKPOINT = "model.safetensors", "checkpoint.safetensors"
METRICS, EVALUATION, VERSIONS = "metrics.jsonl", "evaluation.json", "versions.json"
OF_STEP = re.compile(r"step-(0|[1-9]\d*)\.safetensors")  # weights after a training step, where they were kept
UNLISTED = (MANIFEST, LOG, LOCK)  # a manifest cannot list itself; each line of a log has a checksum
ASIDE = "damaged"  # the folder of a run into which what is damaged is moved; nothing reads it again
LOCK_SECONDS = 0.2  # more than the moment for which someone who asks whether a run is busy holds its lock
MOST_SHOWN = 12  # lengths in a notebook, the longest ones
NOT_LISTED = "is not listed in the manifest"
DIFFERS = "is not what was written (its checksum differs)"

State = Literal["new", "running", "interrupted", "converged", "not-converged", "diverged", "failed"]
FINISHED: tuple[State, ...] = ("converged", "not-converged", "diverged")

# What must stand in the files of a run. Entries that a later version may add are let through.
NUMBER = Rule("a number", lambda value: type(value) in (int, float))  # a loss may be infinite, or no number at all
SHA256 = optional(
    Rule("a checksum", lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{64}", value)))
)
WORDS = optional(text(1 << 20))
MANIFEST_RULE = record("manifest", {"format": whole(1)}, loose=True)
ENTRY = record("manifest's entry", {"sha256": SHA256}, {"before": SHA256}, loose=True)
ENTRIES_RULE = record("manifest", {"files": map_of(ENTRY)}, loose=True)
STATUS_RULE = record(
    "status",
    {"status": one_of(*get_args(State))},
    {"steps": whole(), "in_range_exact_match": optional(real(0, 1)), "seconds": real(0), "reason": WORDS},
    loose=True,
)
SHARES = [f"{name}{end}" for name in ("exact_match", "exact_match_no_end") for end in ("", "_low", "_high")]
SCORED = {"length": whole(), "samples": whole(1), "seed": whole(0, 2**63 - 1)}
TUPLE = {"shape": list_of(whole(1))}
REFUSED_RULE = record("score", {**SCORED, "reason": text(1 << 20)}, TUPLE, loose=True)  # of a length that is too long
SCORED |= dict.fromkeys([*SHARES, "token_accuracy"], real(0, 1))
SCORE_RULE = record("score", SCORED, {"reason": WORDS, **TUPLE}, loose=True)
SCORES_RULE = list_of(
    Rule("a score", SCORE_RULE.holds, lambda row: (REFUSED_RULE if row.get("reason") else SCORE_RULE).parts(row))
)
METRICS_RULE = record(
    "line of metrics", {"step": whole()}, {"loss": NUMBER, "margin": NUMBER, "lr": NUMBER}, loose=True
)
EVENT_RULE = record("event", {"time": text(), "event": text()}, loose=True)
CHECKED = re.compile(rb'(\{.*), "check": "([0-9a-f]{16})"\}')  # how a line of the log ends


@dataclass(frozen=True)
class Status:
    """How far a run is. `seconds` is the time spent training, all sessions together."""

    status: State = "new"
    steps: int = 0
    in_range_exact_match: float | None = None
    seconds: float = 0.0
    reason: str | None = None  # why it failed, diverged or did not converge

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    @property
    def has_model(self) -> bool:
        return self.status in ("converged", "not-converged")


class Run:
    """The directory of one run.

    Reading needs nothing. Writing needs the lock, which the system gives back when its holder dies, however it dies:

    ``with run.locked(): run.write("notes.txt", b"...")``
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.path.name

    def __repr__(self) -> str:
        try:
            return f"Run('{self.path}', {self.status().status})"
        except UserError as error:
            return f"Run('{self.path}', unreadable: {error})"

    def _repr_html_(self) -> str:
        try:
            config, status, scores = self.config, self.status(), best_rows(self.evaluation())
        except UserError as error:
            return card(f"run {self.id}", {"cannot be read": error})
        facts: dict[str, Any] = {"task": config.task, "scheme": config.spec.label, "status": status.status}
        facts |= {"trained on": f"n ≤ {config.train_max}, {status.steps} steps", "reason": status.reason}
        shares = sorted((row["length"], row["exact_match"]) for row in scores if row.get("exact_match") is not None)
        table = [{"n": length, "exact match": Share(share)} for length, share in shares[-MOST_SHOWN:]]
        return card(f"run {self.id}", facts, table)

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """Be the only one who writes; if someone else is, wait or refuse."""
        self._own()
        files.make_directory(self.path)
        lock = FileLock(self.path / LOCK)
        with files.attempt("write in", self.path):
            try:
                lock.acquire(timeout=-1 if wait else LOCK_SECONDS)
            except Timeout:
                raise UserError(f"run '{self.id}' is being worked on by another process") from None
        try:
            for partial in self.path.glob(f".*{files.PARTIAL}"):  # what a killed process left half-written
                files.remove_quietly(partial)
            yield
        finally:
            lock.release()

    def _own(self, name: str = "") -> Path:
        """The path of a file of this run. Neither its name nor a link leads elsewhere."""
        if self.path.is_symlink():
            raise files.StorageError(f"run '{self.id}' is a link, and links in a store are not followed")
        return self.path / files.plain_name(name) if name else self.path

    def busy(self) -> bool:
        """Whether a process holds the lock at this moment."""
        return files.is_locked(self.path / LOCK)

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole, and list it.

        The manifest says first what is coming, so that at whatever moment the power goes, each file is as listed:
        as it was ("before") or as it should be ("sha256").
        """
        manifest, entry = self.manifest(), {"sha256": files.sha256(data)}
        self.write_manifest({**manifest, name: {**entry, "before": self._before(name, manifest)}})
        files.write_whole(self._own(name), data)
        self.write_manifest({**manifest, name: entry})

    def remove(self, name: str) -> None:
        """Remove a file and its entry in the manifest."""
        manifest = self.manifest()
        if name in manifest:
            self.write_manifest({**manifest, name: {"sha256": None, "before": self._before(name, manifest)}})
            with files.attempt("remove", self._own(name)):
                self._own(name).unlink(missing_ok=True)
            self.write_manifest({key: entry for key, entry in manifest.items() if key != name})

    def set_aside(self, name: str) -> Path:
        """Move a damaged file, and with it whatever has its name, out of the way; where to. Needs the lock."""
        listed = name != MANIFEST and name in (manifest := self.manifest())
        if listed:
            self.write_manifest({**manifest, name: {"sha256": None}})
        moved = files.set_aside(self._own(name), self.path / ASIDE) if self.has(name) else self.path / name
        if listed:
            self.write_manifest({key: entry for key, entry in manifest.items() if key != name})
        return moved

    def _before(self, name: str, manifest: dict[str, Any]) -> str | None:
        """The checksum of what is about to be replaced, None for no file.

        After a write that was cut off only the disk knows which of the listed contents is there. A content that is
        not listed is damage, and stays so until it is replaced.
        """
        listed, now = acceptable(manifest.get(name)), self._checksum(name)
        return now if now in listed else listed[0]

    def _checksum(self, name: str) -> str | None:
        return files.sha256(self._bytes(name)) if self.has(name) else None

    def _bytes(self, name: str) -> bytes:
        return files.read_whole(self._own(name), follow=False)

    def write_manifest(self, entries: Mapping[str, Any]) -> None:
        """List exactly these files. Needs the lock."""
        written = json.dumps({"format": FORMAT, "files": entries}, indent=1, sort_keys=True)
        files.write_whole(self._own(MANIFEST), written.encode())

    def manifest(self) -> dict[str, Any]:
        """The entry of each file: its checksum, and what it was before if a write was cut off."""
        if not self.has(MANIFEST):
            return {}
        data = self._bytes(MANIFEST)
        if (made := self._json(MANIFEST, data, MANIFEST_RULE)["format"]) > FORMAT:
            newer = f"it has format {made}, and this version knows formats up to {FORMAT}"
            raise UserError(f"run '{self.id}' was made by a newer version of lengthlens: {newer}")
        entries: dict[str, Any] = self._json(MANIFEST, data, ENTRIES_RULE)["files"]
        for name in entries:
            if "/" in name or name in (".", ".."):
                raise self.damaged(MANIFEST, f"names a file outside of the run: {shown(name)}")
        return entries

    def has(self, name: str) -> bool:
        with files.attempt("look at", self.path):
            return os.path.lexists(self._own(name))

    def read(self, name: str) -> bytes:
        """A file's bytes, if they are the ones that were written."""
        while True:
            entry, data = self.manifest().get(name), self._bytes(name)
            if entry is not None and files.sha256(data) in acceptable(entry):
                return data
            if self.manifest().get(name) == entry:  # else someone wrote it meanwhile
                raise self.damaged(name, NOT_LISTED if entry is None else DIFFERS)

    def read_json(self, name: str, rule: Rule | None = None) -> Any:
        """What a JSON file holds, if it is what was written and follows the rule."""
        return self._json(name, self.read(name), rule)

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, json.dumps(value, indent=1).encode())

    def _json(self, name: str, data: bytes, rule: Rule | None = None) -> Any:
        try:
            return parse_json(data, "it", rule)
        except UserError as error:
            raise self.damaged(name, f"cannot be understood: {error}") from None

    def damaged(self, name: str, how: str) -> files.StorageError:
        """The error that says so."""
        return files.StorageError(f"run '{self.id}' is damaged: {name} {how}; see `lengthlens runs repair`")

    def log(self, event: str, **facts: Any) -> None:
        """Note an event, with the time; the log only ever grows. A line has its number and a checksum."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = written_line({"time": moment, "event": event, **facts}, len(self._log_lines()))
        files.append_line(self._own(LOG), line)

    def _log_lines(self) -> list[bytes]:
        return self._bytes(LOG).splitlines() if self.has(LOG) else []

    def events(self) -> list[dict[str, Any]]:
        """The log; lines that cannot be read are left out (`problems` counts them)."""
        read = [read_line(line, k) for k, line in enumerate(self._log_lines())]
        return [event for event in read if event is not None]

    @cached_property
    def config(self) -> RunConfig:
        return RunConfig.from_json(self.read(CONFIG))

    def status(self) -> Status:
        """How far the run is; one that says "running" and is not has been interrupted."""
        if not self.has(STATUS):
            return Status()
        stored = self.read_json(STATUS, STATUS_RULE)
        if stored["status"] == "running" and not self.busy():
            stored["status"] = "interrupted"
        return Status(**{field.name: stored[field.name] for field in fields(Status) if field.name in stored})

    def set_status(self, status: Status) -> None:
        self.write_json(STATUS, asdict(status))

    def metrics(self) -> list[dict[str, Any]]:
        """What was noted in training: step, loss, in_range_exact_match, …"""
        if not self.has(METRICS):
            return []
        return [self._json(METRICS, line, METRICS_RULE) for line in self.read(METRICS).splitlines()]

    def evaluation(self) -> list[dict[str, Any]]:
        """One row for each length evaluated so far."""
        rows: list[dict[str, Any]] = self.read_json(EVALUATION, SCORES_RULE) if self.has(EVALUATION) else []
        return rows

    def add_evaluation(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows, each in place of one of the same length, samples and seed if there is one. Needs the lock."""
        names = "length", "samples", "seed"
        every = [*self.evaluation(), *rows]
        merged = {(*(row[name] for name in names), *row.get("shape", ())): row for row in every}
        self.write_json(EVALUATION, [merged[key] for key in sorted(merged)])

    @property
    def checkpoints(self) -> list[int]:
        """The training steps after which weights were kept (`train` with `keep`), in order."""
        return sorted(int(match[1]) for match in map(OF_STEP.fullmatch, self.manifest()) if match)

    def model(self, device: str = "cpu", step: int | None = None) -> HookedModel:
        """The trained model, ready for evaluation; with `step` as it was after that training step, if that was kept."""
        if step is not None and step not in self.checkpoints:
            kept = ", ".join(map(str, self.checkpoints)) or "none"
            make = f"train it with keep=[{step}] or --keep {step}, which adds it to a finished run too"
            if self.config.imported:
                make = "an imported model has none of its training"
            raise UserError(f"run '{self.id}' has no checkpoint of step {step} (kept: {kept}): {make}")
        name = MODEL if step is None else step_file(step)
        if not self.has(name):
            raise UserError(f"run '{self.id}' has no model: it is {self.status().status}")
        model: HookedModel = with_weights(self.config.model, self.read(name), f"'{self.id}'").to(device).eval()
        refuse_not_finite(model)
        return model

    def facts(self) -> dict[str, Any]:
        """Everything there is to say about the run, in plain values."""
        about: dict[str, Any] = {"run": self.id, "config": self.config.to_dict(), "status": asdict(self.status())}
        about |= {"metrics": self.metrics(), "evaluation": self.evaluation(), "checkpoints": self.checkpoints}
        versions = self.read_json(VERSIONS, map_of(text())) if self.has(VERSIONS) else {}
        return about | {"versions": versions, "log": self.events()}

    def digest(self) -> str:
        """Changes with every file but the weights; a file that is not as it was written is an error."""
        listed = {name: entry for name, entry in self.manifest().items() if not name.endswith(".safetensors")}
        self._require_sound(listed)
        return files.sha256(json.dumps({name: listed[name]["sha256"] for name in sorted(listed)}).encode())

    def verified(self) -> dict[str, Any]:
        """The `facts`, if every file is as it was written; else an error that says which is not."""
        self._require_sound(self.manifest())
        return self.facts()

    def _require_sound(self, listed: Mapping[str, Any]) -> None:
        for name, entry in listed.items():
            if wrong := self._wrong(name, entry):
                raise self.damaged(name, wrong)

    def problems(self) -> list[str]:
        """Everything that is wrong with the run, a sentence each; nothing for a run that is sound."""
        try:
            return [f"run '{self.id}': {name} {how}" for name, how in self.damage().items()]
        except UserError as error:
            return [str(error)]

    def damage(self) -> dict[str, str]:
        """What is wrong with each file that is not as it was written, or contradicts the others.

        A manifest that cannot be read is an error, and so is a config that is sound and cannot be understood here.
        """
        manifest, wrong_with = self.manifest(), dict[str, str]()
        for name, entry in sorted(manifest.items()):
            if wrong := self._wrong(name, entry):
                wrong_with[name] = wrong
        try:
            if torn := sum(read_line(line, k) is None for k, line in enumerate(self._log_lines())):
                wrong_with[LOG] = f"has {torn} line{'s' if torn > 1 else ''} that cannot be read"
        except files.StorageError as error:
            wrong_with[LOG] = f"cannot be read ({error})"
        if CONFIG not in manifest and manifest:
            wrong_with.setdefault(CONFIG, "is missing")
        with files.attempt("look at", self.path):
            paths = sorted(self.path.rglob("*"))
        for path in paths:
            name = str(path.relative_to(self.path))
            known = name in (*manifest, *UNLISTED, ASIDE) or name.startswith(f"{ASIDE}{os.sep}")
            if not known and not name.endswith(files.PARTIAL) and (path.is_symlink() or not path.is_dir()):
                wrong_with[name] = NOT_LISTED
        if not wrong_with and self.has(CONFIG):  # without it, killed before anything was written: as good as new
            status, named = self.status(), self.id
            with suppress(PluginError):  # of a plug-in that is not loaded: sound, and not to be understood here
                named = self.config.id
            if named != self.id:
                wrong_with[CONFIG] = f"belongs to run '{named}'"
            elif status.has_model and not self.has(MODEL):
                wrong_with[MODEL] = f"is missing, and the run is {status.status}"
        return wrong_with

    def _wrong(self, name: str, entry: Mapping[str, Any] | None) -> str:
        """What is wrong with a file that has this entry in the manifest; nothing, if it is as listed."""
        while True:
            try:
                checksum = self._checksum(name)
            except files.StorageError as error:
                return f"cannot be read ({error})"
            if checksum in acceptable(entry):
                return ""
            if (now := self.manifest().get(name)) == entry:  # else someone wrote it meanwhile
                return "is missing" if checksum is None else DIFFERS
            entry = now


def best_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each n the row with the most samples, of the lowest seed; none for tuples that were asked for.

    >>> rows = [{"length": 5, "samples": s, "seed": 0} for s in (10, 1000, 200)]
    >>> best_rows(rows)
    [{'length': 5, 'samples': 1000, 'seed': 0}]
    """
    ranked = sorted(
        (row for row in rows if not row.get("shape")), key=lambda row: (row["length"], row["samples"], -row["seed"])
    )
    return list({row["length"]: row for row in ranked}.values())


def step_file(step: int) -> str:
    """The file with the weights after a training step.

    >>> step_file(400)
    'step-400.safetensors'
    """
    return f"step-{step}.safetensors"


def written_line(event: Mapping[str, Any], number: int) -> bytes:
    """An event as a line of the log: its number at the front and a checksum at the end, so that no loss takes both."""
    body = json.dumps({"line": number, **event})[:-1].encode()
    return body + f', "check": "{files.sha256(body)[:16]}"}}'.encode()


def read_line(line: bytes, number: int) -> dict[str, Any] | None:
    """An event from its line in the log, if it is as it was written, and where it was written.

    >>> line = written_line({"time": "2030-01-31T00:00:00Z", "event": "start"}, 0)
    >>> read_line(line, 0), read_line(line, 1), read_line(line[:-1], 0)
    ({'time': '2030-01-31T00:00:00Z', 'event': 'start'}, None, None)
    """
    checked = CHECKED.fullmatch(line)
    if checked is None or files.sha256(checked[1])[:16].encode() != checked[2]:
        return None
    try:
        event: dict[str, Any] = parse_json(line, "the line", EVENT_RULE)
    except UserError:
        return None
    del event["check"]
    return event if event.pop("line", None) == number else None


def acceptable(entry: Mapping[str, Any] | None) -> list[str | None]:
    """The checksums that a file may have by its entry in the manifest; None stands for no file.

    >>> acceptable({"sha256": "a"}), acceptable({"sha256": "b", "before": None}), acceptable(None)
    (['a'], ['b', None], [None])
    """
    return [None] if entry is None else [entry[key] for key in ("sha256", "before") if key in entry]
