"""One run on disk: files that are whole and listed with their checksums, written by one process at a time."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from lengthlens import files
from lengthlens.errors import UserError
from lengthlens.runs.config import RunConfig

if TYPE_CHECKING:
    from lengthlens.models.transformer import HookedModel

FORMAT = 1  # of a run directory; raised when an older version of this code could misread it
CONFIG, STATUS, MANIFEST, LOG, LOCK = "config.json", "status.json", "manifest.json", "log.jsonl", ".lock"
MODEL, CHECKPOINT = "model.safetensors", "checkpoint.safetensors"
METRICS, EVALUATION, VERSIONS = "metrics.jsonl", "evaluation.json", "versions.json"
UNLISTED = (MANIFEST, LOG, LOCK)  # a manifest cannot list itself; a log that grows is not worth a checksum a line
LOCK_SECONDS = 0.2  # more than the moment for which someone who asks whether a run is busy holds its lock
NOT_LISTED = "is not listed in the manifest"
DIFFERS = "is not what was written (its checksum differs)"

State = Literal["new", "running", "interrupted", "converged", "not-converged", "diverged", "failed"]
FINISHED: tuple[State, ...] = ("converged", "not-converged", "diverged")


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

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """Be the only one who writes; if someone else is, wait or refuse."""
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

    def busy(self) -> bool:
        """Whether a process holds the lock at this moment."""
        return files.is_locked(self.path / LOCK)

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole, and list it.

        The manifest says first what is coming, so that at whatever moment the power goes, each file is as listed:
        as it was ("before") or as it should be ("sha256").
        """
        manifest, entry = self.manifest(), {"sha256": files.sha256(data)}
        self._list({**manifest, name: {**entry, "before": self._before(name, manifest)}})
        files.write_whole(self.path / name, data)
        self._list({**manifest, name: entry})

    def remove(self, name: str) -> None:
        """Remove a file and its entry in the manifest."""
        manifest = self.manifest()
        if name in manifest:
            self._list({**manifest, name: {"sha256": None, "before": self._before(name, manifest)}})
            with files.attempt("remove", self.path / name):
                (self.path / name).unlink(missing_ok=True)
            self._list({key: entry for key, entry in manifest.items() if key != name})

    def _before(self, name: str, manifest: dict[str, Any]) -> str | None:
        """The checksum of what is about to be replaced, None for no file.

        After a write that was cut off only the disk knows which of the listed contents is there. A content that is
        not listed is damage, and stays so until it is replaced.
        """
        listed, found = acceptable(manifest.get(name)), self._checksum(name)
        return found if found in listed else listed[0]

    def _checksum(self, name: str) -> str | None:
        return files.sha256(files.read_whole(self.path / name)) if self.has(name) else None

    def _list(self, entries: dict[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, "files": entries}, indent=1, sort_keys=True)
        files.write_whole(self.path / MANIFEST, text.encode())

    def manifest(self) -> dict[str, Any]:
        """The entry of each file: its checksum, and what it was before if a write was cut off."""
        if not self.has(MANIFEST):
            return {}
        listed = self._json(MANIFEST, files.read_whole(self.path / MANIFEST))
        known = listed.get("format") if isinstance(listed, dict) else None
        if not isinstance(known, int) or not isinstance(listed.get("files"), dict):
            raise self._damaged(MANIFEST, "is not a manifest")
        if known > FORMAT:
            newer = f"it has format {known}, and this version knows formats up to {FORMAT}"
            raise UserError(f"run '{self.id}' was made by a newer version of lengthlens: {newer}")
        entries: dict[str, Any] = listed["files"]
        return entries

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> bytes:
        """A file's bytes, if they are the ones that were written."""
        while True:
            entry, data = self.manifest().get(name), files.read_whole(self.path / name)
            if entry is not None and files.sha256(data) in acceptable(entry):
                return data
            if self.manifest().get(name) == entry:  # else someone wrote it meanwhile
                raise self._damaged(name, NOT_LISTED if entry is None else DIFFERS)

    def read_json(self, name: str) -> Any:
        return self._json(name, self.read(name))

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, json.dumps(value, indent=1).encode())

    def _json(self, name: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise self._damaged(name, "is not JSON") from None

    def _damaged(self, name: str, how: str) -> files.StorageError:
        return files.StorageError(f"run '{self.id}' is damaged: {name} {how}")

    def log(self, event: str, **facts: Any) -> None:
        """Note an event, with the time; the log only ever grows."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": moment, "event": event, **facts})
        with files.attempt("write", self.path / LOG), (self.path / LOG).open("ab", buffering=0) as log:
            log.write(f"{line}\n".encode())  # in a single write, so that lines of several processes never mix

    def events(self) -> list[dict[str, Any]]:
        """The log; a last line that a power cut tore is left out."""
        if not self.has(LOG):
            return []
        lines = files.read_whole(self.path / LOG).decode(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    @cached_property
    def config(self) -> RunConfig:
        return RunConfig.from_json(self.read(CONFIG).decode())

    def status(self) -> Status:
        """How far the run is; one that says "running" and is not has been interrupted."""
        if not self.has(STATUS):
            return Status()
        stored = self.read_json(STATUS)
        if stored["status"] == "running" and not self.busy():
            stored["status"] = "interrupted"
        return Status(**{field.name: stored[field.name] for field in fields(Status) if field.name in stored})

    def set_status(self, status: Status) -> None:
        self.write_json(STATUS, asdict(status))

    def metrics(self) -> list[dict[str, Any]]:
        """What was noted in training: step, loss, in_range_exact_match, …"""
        if not self.has(METRICS):
            return []
        return [json.loads(line) for line in self.read(METRICS).decode().splitlines()]

    def evaluation(self) -> list[dict[str, Any]]:
        """One row for each length evaluated so far."""
        rows: list[dict[str, Any]] = self.read_json(EVALUATION) if self.has(EVALUATION) else []
        return rows

    def add_evaluation(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows, each in place of one of the same length, samples and seed if there is one. Needs the lock."""
        merged = {(row["length"], row["samples"], row["seed"]): row for row in [*self.evaluation(), *rows]}
        self.write_json(EVALUATION, [merged[key] for key in sorted(merged)])

    def model(self, device: str = "cpu") -> "HookedModel":
        """The trained model, ready for evaluation."""
        from lengthlens.models.pretrained import with_weights

        if not self.has(MODEL):
            raise UserError(f"run '{self.id}' has no model: it is {self.status().status}")
        model: HookedModel = with_weights(self.config.model, self.read(MODEL), self.id).to(device).eval()
        return model

    def facts(self) -> dict[str, Any]:
        """Everything there is to say about the run, in plain values."""
        about: dict[str, Any] = {"run": self.id, "config": self.config.to_dict(), "status": asdict(self.status())}
        about |= {"metrics": self.metrics(), "evaluation": self.evaluation()}
        return about | {"versions": self.read_json(VERSIONS) if self.has(VERSIONS) else {}, "log": self.events()}

    def problems(self) -> list[str]:
        """Everything that is wrong with the files, a sentence each; nothing for a run that is sound."""
        try:
            manifest = self.manifest()
        except UserError as error:
            return [str(error)]
        found = []
        for name, entry in sorted(manifest.items()):
            if (checksum := self._checksum(name)) not in acceptable(entry):
                found.append(f"run '{self.id}': {name} {'is missing' if checksum is None else DIFFERS}")
        for path in sorted(self.path.rglob("*")):
            name = str(path.relative_to(self.path))
            if path.is_file() and name not in (*manifest, *UNLISTED) and not name.endswith(files.PARTIAL):
                found.append(f"run '{self.id}': {name} {NOT_LISTED}")
        if found or not self.has(CONFIG):  # without it, killed before anything was written: as good as new
            return found
        try:  # the files, each sound in itself, may contradict each other
            if self.config.id != self.id:
                found.append(f"run '{self.id}': its config belongs to run '{self.config.id}'")
            elif self.status().has_model and not self.has(MODEL):
                found.append(f"run '{self.id}': it is {self.status().status} and has no model")
        except UserError as error:
            found.append(str(error))
        return found


def acceptable(entry: Mapping[str, Any] | None) -> list[str | None]:
    """The checksums that a file may have by its entry in the manifest; None stands for no file.

    >>> acceptable({"sha256": "a"}), acceptable({"sha256": "b", "before": None}), acceptable(None)
    (['a'], ['b', None], [None])
    """
    return [None] if entry is None else [entry[key] for key in ("sha256", "before") if key in entry]
