"""A run, a study or a certificate as one directory that can be handed on, and read back elsewhere.

The directory holds safetensors, JSON and parquet, a README.md that says what it is, and lengthlens.json with the
checksum of every file. The model of a run stands in it as `lengthlens.load` reads it. Logs stay behind: they name
machines. Reading executes nothing, and takes in nothing that is not what was written.
"""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import pandas as pd

from lengthlens.analyses.table import read_study, write_study
from lengthlens.analyses.tables import Table
from lengthlens.errors import UserError, one_line, unknown
from lengthlens.files import make_directory, plain_name, read_whole, sha256, write_whole
from lengthlens.models.saved import CONFIG, WEIGHTS, download, is_local, render, upload
from lengthlens.plugins.registry import NAME
from lengthlens.probes.certify import Certificate
from lengthlens.probes.table import FILE as PROBES
from lengthlens.probes.table import stored
from lengthlens.runs.config import RunConfig
from lengthlens.runs.importing import SOURCE
from lengthlens.runs.run import EVALUATION, METRICS, MODEL, OF_STEP, STATUS, VERSIONS, Run, best_rows, step_file
from lengthlens.runs.store import RunStore
from lengthlens.values import Rule, list_of, map_of, one_of, optional, parse_json, real, record, text, truth, whole
from lengthlens.values import read_whole_number as whole_number

FORMAT, VERSION = "lengthlens export", 1
LISTING, CARD, STUDY, CERTIFICATE = "lengthlens.json", "README.md", "study.parquet", "certificate.json"
OF_RUN = (CONFIG, STATUS, EVALUATION, METRICS, VERSIONS, PROBES, SOURCE)  # what of a run is handed on beside its model
PREFIX = "run."  # before the names of a run's files, whose config.json is another than the model's
Kind = Literal["run", "study", "certificate"]
NAME_RULE = Rule(
    "a name of letters, digits, '-', '_' and '.'",
    lambda value: isinstance(value, str) and len(value) < 200 and bool(NAME.fullmatch(value)),
)  # of a run, or of a study, which becomes a file
LISTING_RULE = record(
    "export",
    {"format": one_of(FORMAT), "version": whole(1), "kind": one_of("run", "study", "certificate"), "name": NAME_RULE}
    | {"files": map_of(text())},
)
CERTIFICATE_RULE = record(
    "certificate",
    {"length": whole(), "kind": one_of("proven", "tested", "none"), "limit": truth(), "reason": text()}
    | {"worst": map_of(real()), "leak": map_of(list_of(list_of(real()))), "weakest_step": text()},
    {"assumes": text(), "unproven": text(), "settled": optional(whole()), "error_bound": optional(real())}
    | {"tried": map_of(whole()), "failed": map_of(whole()), "run": text()},
)


class Export(NamedTuple):
    """What is handed on: its kind, its name, its files, and its card."""

    kind: Kind
    name: str
    files: dict[str, bytes]
    card: str


class Fetched(NamedTuple):
    """What was read back. A study has a table and its provenance; a certificate comes with its run."""

    kind: Kind
    name: str
    run: Run | None = None
    table: pd.DataFrame | None = None
    provenance: Mapping[str, Any] = {}
    certificate: Certificate | None = None
    known: bool = False  # whether the store had the run already


def export(
    what: Run | str | Path,
    folder: str | Path,
    *,
    certificate: Certificate | None = None,
    hub: str | None = None,
    private: bool = False,
    token: str | None = None,
) -> Path:
    """Write a run, a study or a certificate into one directory, and upload it to the Hugging Face Hub if asked to.

    Arguments:
        what: a run, or the file of a study (parquet or csv).
        folder: the directory; it must not exist, or be empty.
        certificate: what `certify` said about the run, to go with it.
        hub: a repository ``owner/name``: of models for a run or a certificate, of datasets for a study.
        private: whether a new repository is private.
        token: of the Hub; the one that is logged in if None.

    Result: the directory. `fetch` reads it back, from there or from the Hub.

    Errors: UserError for a run without a model, a file that is no study, a directory that holds something.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     run = RunStore(f"{folder}/runs").find("copy/lbpe")
    ...     sorted(path.name for path in export(run, f"{folder}/to-share").iterdir())[:4]
    ['README.md', 'config.json', 'lengthlens.json', 'model.safetensors']
    """
    made = of_run(what, certificate) if isinstance(what, Run) else of_study(Path(what))
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"'{target}' is there already: an export needs a directory of its own")
    make_directory(target)
    for name, data in {**made.files, CARD: made.card.encode()}.items():
        write_whole(target / name, data)
    sums = {name: sha256(data) for name, data in made.files.items()}
    listing = {"format": FORMAT, "version": VERSION, "kind": made.kind, "name": made.name, "files": sums}
    write_whole(target / LISTING, json.dumps(listing, indent=1).encode())
    if hub is not None:
        upload(target, hub, private, token, "dataset" if made.kind == "study" else "model")
    return target


def is_export(folder: Path) -> bool:
    return (folder / LISTING).exists()


def fetch(source: str | Path, store: RunStore | None = None, *, into: str | Path | None = None) -> Fetched:
    """Read back what `export` wrote: from a local directory, or from a repository ``owner/name`` on the Hub.

    Arguments:
        source: the directory or repository.
        store: where a run is to be kept; without one, a run is refused.
        into: the file into which a study is written; it is only read if None.

    Result: what was fetched: the run in the store, the study as a table, the certificate beside its run. A run that
    the store has already is given back, unless it is another under the same name, which is refused.

    Errors: UserError, in one sentence, for anything that is not what was written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     shared = export(RunStore(f"{folder}/runs").find("copy/lbpe"), f"{folder}/to-share")
    ...     fetch(shared, RunStore(f"{folder}/theirs")).run.id
    'copy_lbpe_s0_85f68898'
    """
    folder = Path(source) if is_local(source) else Path(download(str(source), None))
    if not is_export(folder):
        raise UserError(f"'{source}' is nothing that `lengthlens export` wrote: it holds no {LISTING}")
    listing = parse_json(read_whole(folder / LISTING), f"'{folder / LISTING}'", LISTING_RULE)
    if listing["version"] > VERSION:
        newer = f"version {listing['version']}, and this version of lengthlens reads {VERSION}"
        raise UserError(f"'{source}' was made by a newer version of lengthlens: it has {newer}")
    data = {name: _listed(folder, name, listed) for name, listed in listing["files"].items()}
    kind, name = cast(Kind, listing["kind"]), listing["name"]
    if kind == "study":
        if STUDY not in data:
            raise UserError(f"'{folder}' is no study: it lists no {STUDY}")
        table, about = read_study(folder / STUDY)
        if into is not None:
            make_directory(Path(into).parent)
            write_whole(Path(into), data[STUDY])
        return Fetched("study", name, table=table, provenance=about)
    if store is None:
        raise UserError(f"'{source}' holds a {kind}: name a store for its run")
    run, known = _take_run(name, data, store, str(source))
    certificate = read_certificate(data[CERTIFICATE], f"'{source}'") if CERTIFICATE in data else None
    return Fetched(kind, name, run, certificate=certificate, known=known)


def _listed(folder: Path, name: str, listed: str) -> bytes:
    """A file of an export, if it is what was written."""
    data = read_whole(folder / plain_name(name))
    if sha256(data) != listed:
        raise UserError(f"'{folder / name}' is not what was exported: its checksum differs")
    return data


# -- runs and certificates -----------------------------------------------------------------------------------------


def of_run(run: Run, certificate: Certificate | None = None) -> Export:
    status = run.status()
    if not status.has_model:
        raise UserError(f"run '{run.id}' has no model to hand on: it is {status.status}")
    weights = run.read(MODEL)
    names = [*OF_RUN, *map(step_file, run.checkpoints)]
    files = {f"{PREFIX}{name}": run.read(name) for name in names if run.has(name)}
    files |= {WEIGHTS: weights, CONFIG: render(run.model().config, weights).encode()}
    if certificate is None:
        return Export("run", run.id, files, run_card(run))
    files[CERTIFICATE] = json.dumps({"run": run.id, **certificate.to_dict()}, indent=1).encode()
    return Export("certificate", run.id, files, run_card(run, certificate))


def read_certificate(data: bytes, what: str) -> Certificate:
    """A certificate from the JSON that `lengthlens certify --json` prints."""
    values = parse_json(data, what, CERTIFICATE_RULE)
    for key in ("worst", "leak", "tried", "failed"):
        by_length = values.get(key, {}).items()
        values[key] = {whole_number(n, f"a length under {key} of {what}"): value for n, value in by_length}
    return Certificate(**{name: value for name, value in values.items() if name != "run"})


def _take_run(name: str, data: Mapping[str, bytes], store: RunStore, source: str) -> tuple[Run, bool]:
    """The run in the store, written there once it has proven sound in a place of its own; whether it was there."""
    files = {file.removeprefix(PREFIX): content for file, content in data.items() if file.startswith(PREFIX)}
    for needed in (PREFIX + CONFIG, PREFIX + STATUS, WEIGHTS):
        if needed not in data:
            raise UserError(f"'{source}' is no run: it lists no {needed}")
    for file in files:
        if file not in OF_RUN and not OF_STEP.fullmatch(file):
            raise unknown("file of a run", file, OF_RUN)
    config = RunConfig.from_json(files[CONFIG].decode("utf-8", "replace"))
    if config.id != plain_name(name):
        raise UserError(f"'{source}' is said to be run '{name}', and its config is that of run '{config.id}'")
    run = store.run(config)
    if run.status().finished:
        if run.read(MODEL) != data[WEIGHTS]:
            raise UserError(f"the store has another run '{run.id}', with other weights: use another store")
        return run, True
    whole_run = {MODEL: data[WEIGHTS], **files}
    if CERTIFICATE in data:
        whole_run[CERTIFICATE] = data[CERTIFICATE]
    whole_run[STATUS] = whole_run.pop(STATUS)  # last: once it says that the run is finished, all else is there
    with tempfile.TemporaryDirectory() as place:
        trial = _write_run(Run(Path(place) / config.id), whole_run)
        trial.verified()
        trial.model()
        stored(trial)
    return _write_run(store.create(config), whole_run), False


def _write_run(run: Run, files: Mapping[str, bytes]) -> Run:
    with run.locked():
        for name, data in files.items():
            run.write(name, data)
    return run


# -- studies ---------------------------------------------------------------------------------------------------------


def of_study(path: Path) -> Export:
    """A study as it is on disk, byte for byte; one in csv as parquet."""
    table, about = read_study(path)
    data = read_whole(path)
    if path.suffix == ".csv":
        with tempfile.TemporaryDirectory() as place:
            write_study(table, about, Path(place) / STUDY)
            data = (Path(place) / STUDY).read_bytes()
    name = re.sub("^[^A-Za-z0-9]+", "", re.sub("[^A-Za-z0-9_.-]", "-", path.stem)) or "study"
    return Export("study", name, {STUDY: data}, study_card(name, table, about))


# -- cards -----------------------------------------------------------------------------------------------------------


def card(title: str, tags: Sequence[str], *parts: str) -> str:
    """A README.md with the lines above it that the Hub reads."""
    above = ["---", "library_name: lengthlens", "tags:", "- lengthlens", *(f"- {tag}" for tag in tags), "---", ""]
    return "\n".join([*above, "\n\n".join([f"# {title}", *parts])]) + "\n"


def run_card(run: Run, certificate: Certificate | None = None) -> str:
    config, status = run.config, run.status()
    scores = [row for row in best_rows(run.evaluation()) if row.get("exact_match") is not None]
    about = [f"A small Transformer for the task `{config.task}` with the position embedding `{config.spec.label}`,"]
    about += [f"trained on input sizes n ≤ {config.train_max}, as a run of lengthlens: {status.status}."]
    if config.imported:
        source = f"the {config.imported.get('kind')} model `{config.imported.get('name')}`"
        about += [f"It was imported from {source}, which was trained elsewhere."]
    if config.plugins:
        names = ", ".join(f"`{origin['name']}`" for origin in config.plugins.values())
        about += [f"{names} is defined outside of lengthlens: to read the run back, load the plug-in that has it."]
    parts = [" ".join(about)]
    if certificate is not None:
        parts.append(f"**Certificate**: {certificate_words(certificate)}")
    if scores:
        columns = {"length": "n", "samples": "instances", "exact_match": "exact match"}
        columns |= {"token_accuracy": "token accuracy"}
        caption = "Exact match is the share of instances whose whole answer is right."
        parts.append(Table(caption, scores, columns).markdown())
    recipe = [
        {"field": f"`{name}`", "value": f"`{json.dumps(value)}`"}
        for name, value in config.to_dict().items()
        if name != "imported"
    ]
    parts += ["## Read it back", f"```bash\nlengthlens import DIR --store runs\nlengthlens runs show {run.id}\n```"]
    parts += ['```python\nimport lengthlens as ll\n\nmodel = ll.load("DIR")  # hooks and names of TransformerLens\n```']
    parts += [Table("## Configuration", recipe, {"field": "field", "value": "value"}).markdown()]
    return card(run.id, ["length-generalization", "position-embedding"], *parts)


def certificate_words(certificate: Certificate) -> str:
    if not certificate.length:
        return one_line(f"none. {certificate.reason}.")
    rests = f" {certificate.assumes}." if certificate.assumes else ""
    end = "no longer length was asked about" if certificate.limit else certificate.reason
    return one_line(f"{certificate.kind}, up to n = {certificate.length} ({end}).{rests}")


def study_card(name: str, table: pd.DataFrame, about: Mapping[str, Any]) -> str:
    facts: dict[str, object] = {"runs": table.loc[table["run"] != "", "run"].nunique(), "rows": len(table)}
    for plural, column in (("tasks", "task"), ("schemes", "scheme"), ("measures", "measure")):
        facts[plural] = ", ".join(f"`{each}`" for each in sorted(set(table[column]) - {""}))
    facts |= {key: about[key] for key in ("made", "command", "machine") if about.get(key)}
    facts |= {f"version of {library}": version for library, version in about.get("versions", {}).items()}
    words = "One tidy table of lengthlens, a row for each measurement on a run, with the configuration of every run."
    rows = [{"what": what, "value": value} for what, value in facts.items()]
    back = "```bash\nlengthlens import DIR --out study.parquet\nlengthlens figures --table study.parquet\n```"
    shown = Table(words, rows, {"what": "what", "value": "value"}).markdown()
    return card(name, ["length-generalization"], shown, "## Read it back", back)
