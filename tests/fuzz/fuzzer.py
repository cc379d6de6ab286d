"""Damaged files, odd arguments, bad bundles and plug-ins that misbehave: each ends in a result or in one sentence.

``python tests/fuzz/fuzzer.py --seed 0 --out FILE.json`` (`make fuzz`). Every case runs in a child process in a
sandbox (sandbox.py), 100 files, 20 argument lists, 20 bundles or one plug-in in each. What counts as a failure: an
exception that is no `UserError`, more CPU time or memory than the limit, a crash, a change to a checksummed file that
is believed, a file written elsewhere, a character that controls the terminal, JSON that is none, and a plug-in that
misbehaves and is not told. A case follows from its number and the seed, so that it can be run again.
"""

import argparse
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # no Hub: nobody listens there

import bundles  # noqa: E402
import corpus  # noqa: E402
import mutations  # noqa: E402
import sandbox  # noqa: E402
import words  # noqa: E402
from click.testing import CliRunner  # noqa: E402

import lengthlens  # noqa: E402
import plugins  # noqa: E402
from lengthlens import files, parallel  # noqa: E402
from lengthlens.analyses.table import BLANK, SIGNATURE, read_study, signed  # noqa: E402
from lengthlens.cli import main as lengthlens_command  # noqa: E402
from lengthlens.errors import CONTROL, UserError  # noqa: E402
from lengthlens.models import saved  # noqa: E402
from lengthlens.models.config import ModelConfig  # noqa: E402
from lengthlens.models.foreign import hooked_fields, read_checkpoint, token_ids  # noqa: E402
from lengthlens.models.transformer import HookedModel, with_weights  # noqa: E402
from lengthlens.probes.table import stored  # noqa: E402
from lengthlens.runs.run import CONFIG, LOG, MANIFEST, MODEL, Run  # noqa: E402
from lengthlens.runs.store import RunStore, repair  # noqa: E402
from lengthlens.runs.sweep import read_grid  # noqa: E402
from lengthlens.runs.training import decode_checkpoint  # noqa: E402
from lengthlens.studies.presets import preset_of  # noqa: E402
from lengthlens.studies.reproduce import is_shown  # noqa: E402
from lengthlens.studies.sharing import LISTING, fetch, read_certificate  # noqa: E402
from lengthlens.tasks import TASKS  # noqa: E402
from lengthlens.values import parse_json, parsed  # noqa: E402

CPU_SECONDS = 20.0  # of one case; the slowest takes about one
WALL_SECONDS = 300.0  # for a case that waits for something that never comes
BATCH = {"files": 100, "arguments": 20, "bundles": 20, "plugins": 1}  # cases of one process
BLIND = "not tried: the sandbox may not read the libraries"
SPECIAL = ("directory", "fifo", "link", "device", "huge", "missing")


Found = dict[str, Any]


class HangError(BaseException):
    """A case has used up its CPU time."""


# -- files -------------------------------------------------------------------------------------------------------


class Attack:
    """One damaged file: what was changed, and everything that reads it."""

    def __init__(self, folder: Path, number: int, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(f"{seed} file {number}")
        names = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock" and p.suffix != ".pyc")
        self.path = names[number % len(names)]
        self.before = self.path.read_bytes()
        self.others = [p.read_bytes() for p in self.chance.sample(names, 2)]
        self.resigned = self.chance.random() < 0.45
        self.what = str(self.path.relative_to(folder))

    def run(self) -> str:
        """How it ended: "refused", or "read" for a change that need not be noticed."""
        if self.chance.random() < 0.08:
            return self.special(self.chance.choice(SPECIAL))
        data = mutations.mutate(self.before, self.chance, self.others)
        if data == self.before:
            return "unchanged"
        self.path.write_bytes(data)
        if self.resigned:
            self.sign()
        refusals = list(self.readings())
        if not self.resigned and self.believed(refusals):
            raise AssertionError(f"a change of {self.what} was believed")
        return "refused" if refusals else "read"

    def special(self, kind: str) -> str:
        """Something else than a regular file has the name."""
        self.path.unlink()
        elsewhere = self.folder / "elsewhere"
        elsewhere.write_bytes(b"mine\n")
        if kind == "directory":
            self.path.mkdir()
        elif kind == "fifo":
            os.mkfifo(self.path)
        elif kind == "link":
            self.path.symlink_to(elsewhere)
        elif kind == "device":
            self.path.symlink_to("/dev/zero")
        elif kind == "huge":
            with self.path.open("wb") as file:
                file.truncate(1 << 40 if resource.getrlimit(resource.RLIMIT_FSIZE)[0] > 1 << 40 else 1 << 26)
        refusals = list(self.readings())
        assert elsewhere.read_bytes() == b"mine\n", "a link was followed and its target written"
        return "refused" if refusals else "read"

    def sign(self) -> None:
        """Make every checksum fit again, as far as that can be done."""
        if self.path.parent.parent.name == "runs" and self.path.name not in (MANIFEST, LOG):
            manifest = self.path.parent / MANIFEST
            listed = json.loads(manifest.read_bytes())
            listed["files"][self.path.name] = {"sha256": files.sha256(self.path.read_bytes())}
            manifest.write_text(json.dumps(listed))
        elif self.path.suffix == ".parquet" and (place := SIGNATURE.search(data := self.path.read_bytes())):
            self.path.write_bytes(signed(data[: place.start(1)] + BLANK + data[place.end(1) :]))
        elif self.path.parent.name == "exported" and self.path.name != LISTING:
            listing = self.path.parent / LISTING
            listed = json.loads(listing.read_bytes())
            listed["files"][self.path.name] = files.sha256(self.path.read_bytes())
            listing.write_text(json.dumps(listed))
        elif self.path.name == "model.safetensors" and self.path.parent.name == "model":
            self.sign_model()

    def sign_model(self) -> None:
        config = self.path.parent / "config.json"
        header = json.loads(config.read_bytes())
        weights = self.path.read_bytes()
        values = saved.ModelConfig.from_dict(header["config"])
        config.write_text(saved.render(values, weights))

    def readings(self) -> Iterator[str]:
        """All that reads the file; the sentence of each refusal."""
        for look in self.readers():
            try:
                look()
            except UserError as error:
                said = str(error)
                assert said and "\n" not in said and len(said) < 3000, f"no sentence: {said[:200]!r}"
                said.encode()  # can be printed
                yield said

    def readers(self) -> list[Callable[[], object]]:
        name, path = self.path.name, self.path
        if path.parent.parent.name == "runs":
            return self.run_readers(Run(path.parent))
        if path.parent.name == "model":
            return [lambda: HookedModel.from_pretrained(path.parent)]
        if path.parent.name == "imported":
            checkpoint = lambda: read_checkpoint(path.parent)  # noqa: E731
            model = lambda found: with_weights(ModelConfig(**found.fields), found.weights, "it")  # noqa: E731
            return [lambda: token_ids(found := checkpoint(), TASKS["copy"]) and model(found)]
        if path.parent.name == "exported":
            certificate = lambda: read_certificate(files.read_whole(path), "it")  # noqa: E731
            own = [certificate] if name == "certificate.json" else []
            return [lambda: fetch(path.parent, RunStore(self.folder / "fetched")), *own]
        if name == "study.toml":
            return [lambda: preset_of(path)]
        if name == "grid.toml":
            return [lambda: read_grid(path).configs()]
        if name == "hooked.json":
            return [lambda: ModelConfig(**hooked_fields(parse_json(files.read_whole(path), "the config")))]
        if name == ".shown":
            return [lambda: is_shown(self.folder, "made of this")]
        return [lambda: read_study(path)]

    def run_readers(self, run: Run) -> list[Callable[[], object]]:
        store, left = RunStore(run.path.parent), list[str]()

        def check() -> None:
            if problems := run.problems():
                raise UserError(problems[0])

        def mend() -> None:
            done = repair(run)
            assert not run.problems(), f"after {done} still {run.problems()}"

        def checkpoint() -> None:
            data = run.read("checkpoint.safetensors")
            parsed(lambda: decode_checkpoint(data), "it", "a checkpoint")

        looks: list[Callable[[], object]] = [
            check, run.facts, run.verified, store.listing, store.table, checkpoint, lambda: stored(run),
            lambda: store.table(lambda name, why: left.append(name)), lambda: repair(run, dry_run=True),
        ]  # fmt: skip
        looks = [check, *self.chance.sample(looks[1:], 5)]
        if self.path.name in (MODEL, CONFIG) or self.chance.random() < 0.1:
            looks.append(run.model)
        return [*looks, mend] if self.chance.random() < 0.07 and not self.resigned else looks

    def believed(self, refusals: list[str]) -> bool:
        """Whether a change of a file with a checksum went unnoticed."""
        if refusals:
            return False
        if self.path.parent.parent.name == "runs":
            if self.path.name == LOG:  # the loss of its last lines is not promised to be noticed
                return not self.before.startswith(self.path.read_bytes())
            return self.path.name != MANIFEST
        if self.path.name == "study.parquet":
            return True
        unlisted = ("README.md", "lengthlens.json")  # words, and the list itself
        return self.path.parent.name in ("model", "exported") and self.path.name not in unlisted


def attack_files(folder: Path, fresh: Path, numbers: range, seed: int, tell: Callable[..., None]) -> None:
    """File cases in this process, each on a copy of the corpus as it was made."""
    case = folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(fresh, case)
    for number in numbers:
        tell("begin", number)
        attack = Attack(case, number, seed)
        tell("end", number, *judged(attack.run, attack.what))
        place = attack.path.parent if attack.path.parent != case else attack.path  # a run, a model, or a file
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink(missing_ok=True)
        source = fresh / place.relative_to(case)
        shutil.copytree(source, place) if source.is_dir() else shutil.copy(source, place)
        (case / "elsewhere").unlink(missing_ok=True)
        for made in ("fetched", "runs/damaged"):  # by readers, and by a repair
            shutil.rmtree(case / made, ignore_errors=True)


def judged(case: Callable[[], str], what: str) -> tuple[str, str]:
    """How a case ended, and, if it failed, where."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        return case(), what
    except HangError:
        return "FAILED hang", what
    except BaseException as error:
        if is_blind(error):
            return BLIND, f"{what}: {error}"
        trace = "".join(traceback.format_exception(error)[-3:])
        return f"FAILED {type(error).__name__}", f"{what}: {trace[-900:]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def is_blind(error: BaseException) -> bool:
    """Whether a case ended because the user that the sandbox became may not read what is installed here."""
    if os.access(sys.prefix, os.R_OK | os.X_OK) and os.access(sys.base_prefix, os.R_OK | os.X_OK):
        return False
    return isinstance(error, ImportError) or "Failed to find font" in str(error)


def attack_command(folder: Path, fresh: Path, numbers: range, seed: int, tell: Callable[..., None]) -> None:
    """Argument lists, each as a command in this process, with the corpus as the working directory."""
    for number in numbers:
        tell("begin", number)
        shutil.rmtree(folder / "case", ignore_errors=True)
        shutil.copytree(fresh, folder / "case")
        os.chdir(folder / "case")
        asked = words.command_line(random.Random(f"{seed} words {number}"))
        tell("end", number, *judged(lambda asked=asked: invoke(asked), repr(asked)[:600]))  # type: ignore[misc]
        os.chdir(folder)


def invoke(asked: list[str]) -> str:
    result = CliRunner().invoke(lengthlens_command, asked)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2), f"exit code {result.exit_code}"
    assert "Traceback" not in result.stderr
    if result.exit_code == 2:
        assert "Error" in result.stderr or "Usage" in result.stderr, result.stderr
    return f"exit {result.exit_code}"


# -- bundles and plug-ins -----------------------------------------------------------------------------------------


def attack_bundles(folder: Path, fresh: Path, numbers: range, seed: int, tell: Callable[..., None]) -> None:
    """Bundles, each imported in a directory whose other files must stay as they are, and looked at afterwards."""
    for number in numbers:
        tell("begin", number)
        case, chance = folder / "case", random.Random(f"{seed} bundle {number}")
        shutil.rmtree(case, ignore_errors=True)
        (case / "here").mkdir(parents=True)
        shutil.copytree(fresh / "bundles" / chance.choice(("run", "certificate", "study")), case / "here" / "given")
        for victim in (case / "victim.parquet", case / "here" / "victim.parquet", case / "here" / ".bashrc"):
            victim.write_text("mine")
        os.chdir(case / "here")
        tell("end", number, *judged(partial(attack_bundle, case, chance), str(number)))
        os.chdir(folder)


def attack_bundle(case: Path, chance: random.Random) -> str:
    what = bundles.damage(Path("given"), chance)
    code, *_ = invoked(["import", "given", "--store", "runs", *chance.choice(([], ["--json"]))])
    made = {str(path.relative_to(case)) for path in case.rglob("*") if path.is_file()}
    known = {"victim.parquet", "here/victim.parquet", "here/.bashrc"}
    new = [name for name in made - known if not name.startswith(("here/given/", "here/runs/"))]
    assert len(new) <= (code == 0), what
    assert all(re.fullmatch(r"here/[A-Za-z0-9][\w.-]*\.parquet", each) for each in new), what
    assert all((case / name).read_text() == "mine" for name in known), f"a file elsewhere was replaced: {what}"
    looks = [["runs"], ["runs", "check"]]
    if code == 0 and (runs := [path.name for path in Path("runs").glob("*") if path.is_dir()]):
        looks += [["runs", "show", runs[0]], ["evaluate", runs[0], "--lengths", "2", "--samples", "5"]]
        looks += [["export", runs[0], "again"], ["runs", "table", "all"], ["runs", "repair"]]
    for look in looks if Path("runs").exists() else ():
        invoked([*look[: 1 + (look[0] == "runs" and len(look) > 1)], "--store", "runs", *look[1:][look[0] == "runs" :]])
    return f"exit {code}"


def invoked(asked: list[str]) -> tuple[int, str, str]:
    """Exit code and both outputs of a command that ended as it should."""
    result = CliRunner().invoke(lengthlens_command, asked)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2) and "Traceback" not in result.stderr, f"{asked}: {result.stderr[-300:]}"
    for text in (result.stdout, result.stderr):
        assert not CONTROL.search(text), f"{asked} prints {text!r}"[:600]
    if "--json" in asked and result.exit_code != 2:
        parsed(lambda: json.loads(result.stdout), f"{asked} with {result.exit_code}, {result.stderr[-300:]}", "JSON")
    return result.exit_code, result.stdout, result.stderr


def attack_plugins(folder: Path, fresh: Path, numbers: range, seed: int, tell: Callable[..., None]) -> None:
    """Plug-ins, each under every command that uses one. Workers are forked, since the sandbox may hide Python."""
    processes = parallel._processes
    parallel._processes = lambda workers, fork, places: processes(workers, True, places)
    every = plugins.every()
    for number in numbers:
        tell("begin", number)
        plugin = every[number % len(every)]
        shutil.rmtree(folder / "case", ignore_errors=True)
        (folder / "case").mkdir()
        os.chdir(folder / "case")
        tell("end", number, *judged(partial(plugins.attack, plugin, apart), plugin.name))
        os.chdir(folder)


def apart(asked: list[str]) -> tuple[int, str, str]:
    """The same, in a process of its own, with files for its outputs: workers write there, too."""
    child = os.fork()
    if child == 0:
        try:
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
            lengthlens_command(asked)
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, Path("out").read_text(), Path("err").read_text()


# -- processes ---------------------------------------------------------------------------------------------------


def in_child(
    body: Callable[..., None], folder: Path, fresh: Path, numbers: range, seed: int
) -> Iterator[dict[str, Any]]:
    """Run cases in a sandboxed child; their outcomes. A child that dies or stands still takes one case with it."""
    while numbers:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            status = 1
            try:
                with os.fdopen(write, "w", buffering=1) as pipe:
                    sandbox.enter(folder, semaphores=body is attack_plugins)
                    signal.signal(signal.SIGPROF, hang)
                    body(folder, fresh, numbers, seed, lambda *facts: pipe.write(json.dumps(facts) + "\n"))
                    pipe.write(json.dumps(["memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]) + "\n")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        at, standing = numbers.start, False
        with os.fdopen(read) as pipe:
            while True:
                if not select.select([pipe], [], [], WALL_SECONDS)[0]:
                    standing = True
                    os.kill(child, signal.SIGKILL)
                line = pipe.readline()
                if not line:
                    break
                kind, *facts = json.loads(line)
                if kind == "begin":
                    at = facts[0]
                elif kind == "end":
                    yield {"case": facts[0], "outcome": facts[1], "what": facts[2]}
                    at = facts[0] + 1
                else:
                    yield {"memory": facts[0]}
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        how = "FAILED hang" if standing else f"FAILED crash ({code})"
        yield {"case": at, "outcome": how, "what": "the process died"}
        numbers = range(at + 1, numbers.stop)


def hang(*_: object) -> None:
    raise HangError


def import_everything() -> None:
    """All code at once: the sandbox may not be able to read it later."""
    for module in pkgutil.walk_packages(lengthlens.__path__, "lengthlens."):
        if module.name.split(".")[1] not in ("tests", "benchmarks", "figures", "docs", "build"):
            importlib.import_module(module.name)
    import pandas.core

    for module in pkgutil.walk_packages(pandas.core.__path__, "pandas.core."):
        if "numba" not in module.name:  # which is not needed
            importlib.import_module(module.name)
    for name in ("utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be", "idna", "unicode_escape"):
        importlib.import_module(f"encodings.{name}")
    for name in ("dask", "distributed", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"):
        importlib.import_module(name)
    asked = "tasks", "schemes", "src copy --max-scale 2", "verdict --task copy --scheme rope", "src --no-such"
    for each in (*asked, "train --help"):
        CliRunner().invoke(lengthlens_command, each.split())


def fuzz(cases: dict[str, range], seed: int = 0, report: Callable[[str], None] | None = None) -> Found:
    """Run these cases of each kind; counts of outcomes, and each failure with what it takes to see it again."""
    import_everything()
    place, start = sandbox.make_directory(), time.monotonic()
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in cases}
    failures, not_tried, memory, told = [], list[str](), 0, 0
    try:
        corpus.make(place / "made")
        corpus.make_bundles(place / "made", place / "bundles")
        for here in (["export", "copy_relative", str(place / "shared"), "--hub", "me/x"], ["patch", "copy_relative"]):
            # what they import late is read before the sandbox is entered
            CliRunner().invoke(lengthlens_command, [*here, "--store", str(place / "made/runs")])
        words.DRAWING = len(cases.get("arguments", ())) > 200
        if words.DRAWING:  # fonts, too, are read before the sandbox is entered
            for name in ("report", "figures"):
                asked = [name, "--table", str(place / "made" / "study.parquet"), "--out", str(place / f"{name}.html")]
                CliRunner().invoke(lengthlens_command, asked)
        sandbox.give(place)
        for kind, wanted in cases.items():
            for first in range(wanted.start, wanted.stop, BATCH[kind]):
                numbers = range(first, min(wanted.stop, first + BATCH[kind]))
                source = place if kind == "bundles" else place / "made"
                for found in in_child(BODIES[kind], place, source, numbers, seed):
                    memory = max(memory, found.get("memory", 0))
                    if "outcome" in found:
                        counts[kind][found["outcome"]] += 1
                        failures += [{"kind": kind, **found}] if found["outcome"].startswith("FAILED") else []
                        not_tried += [found["what"]] if found["outcome"] == BLIND else []
                if report and failures[told:]:
                    report(f"{failures[told:]}")
                    told = len(failures)
                if report:
                    report(f"{kind} {numbers.stop} of {wanted.stop}, {len(failures)} failures")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {
        "seed": seed,
        **{kind: {"cases": len(cases[kind]), **counts[kind]} for kind in cases},
        "failures": failures,
        "not_tried": not_tried,
        "largest_resident_MiB": memory // 1024,
        "limit_MiB": sandbox.MEMORY >> 20,
        "seconds": round(time.monotonic() - start),
    }


def shared_out(cases: dict[str, int], seed: int, jobs: int) -> Found:
    """The same cases by several processes, each with a part of them; what they found together."""
    parts = []
    for k in range(jobs):
        bounds = [f"{kind}={total * k // jobs}-{total * (k + 1) // jobs}" for kind, total in cases.items()]
        own = [sys.executable, __file__, "--part", *bounds, "--seed", str(seed)]
        parts.append(subprocess.Popen(own, stdout=subprocess.PIPE))
    found = [json.loads(part.communicate()[0]) for part in parts]
    merged: Found = {"seed": seed}
    for kind in cases:
        merged[kind] = dict(sum((Counter(each[kind]) for each in found), Counter()))
    for name in ("failures", "not_tried"):
        merged[name] = [one for each in found for one in each[name]]
    for name in ("largest_resident_MiB", "limit_MiB", "seconds"):
        merged[name] = max(each[name] for each in found)
    return merged


BODIES = {"files": attack_files, "arguments": attack_command, "bundles": attack_bundles, "plugins": attack_plugins}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for kind, number in zip(BODIES, (20_000, 2_000, 2_000, len(plugins.every()))):
        parser.add_argument(f"--{kind}", type=int, default=number)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cases")
    parser.add_argument("--part", nargs="+", help="only these cases: kind=from-to")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    cases = {kind: getattr(asked, kind) for kind in BODIES}
    if asked.part or asked.jobs == 1:
        bounds = [part.replace("=", "-").split("-") for part in asked.part or ()]
        chosen = {kind: range(int(first), int(last)) for kind, first, last in bounds}
        say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
        found = fuzz(chosen or {kind: range(number) for kind, number in cases.items()}, asked.seed, say)
    else:
        found = shared_out(cases, asked.seed, asked.jobs)
    text = json.dumps({**found, "failures": found["failures"][:50]}, indent=1, ensure_ascii=False)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")
    sys.exit(bool(found["failures"]))


if __name__ == "__main__":
    main()
