"""What a colleague might hand on: exported runs, certificates and studies whose names, links, fields and texts are bad.

Checksums are made to fit, so that only the content can be refused.
"""

import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutations import VALUES

NAMES = ["../victim", "/tmp/x", "", ".", "..", ".bashrc", "-rf", "a\nb", "a/b", "\x1b[2J", "x" * 300, "é", "victim"]
NAMES += ["a\\b", "study.parquet", "~", "CON", "a\0b", "a b", "\u202efdp"]
TEXTS = ["\x1b[2J\x1b[31mfine", "a\nrun_x  converged", "\x9b31m", "a\rb", "\x07", "\u2028", "\u202e"]
TEXTS += ["\x1b]0;title\x07", "x\t" * 9]
OF_RUN = ["run.evaluation.json", "run.status.json", "run.config.json", "run.versions.json", "certificate.json"]


def damage(folder: Path, chance: random.Random) -> str:
    """Change one to three things of a bundle, and list it as if it had been written so."""
    done = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        kind = chance.choice((name, file_name, link, field, field, text, text, listing))
        # What an earlier change has broken cannot be changed again.
        with suppress(TypeError, LookupError, ValueError, AttributeError, OSError):
            done.append(f"{kind.__name__}: {kind(folder, chance)}")
    relist(folder)
    return "; ".join(done)


def listed(folder: Path) -> Any:
    return json.loads((folder / "lengthlens.json").read_bytes())


def write(path: Path, value: Any) -> None:
    path.write_bytes(json.dumps(value).encode("utf-8", "surrogatepass"))


def relist(folder: Path) -> None:
    """Checksums that fit."""
    about = listed(folder)
    if isinstance(about, dict) and isinstance(about.get("files"), dict):
        for each in about["files"]:
            if isinstance(each, str) and "\0" not in each and len(each) < 200 and (folder / each).is_file():
                about["files"][each] = sha256((folder / each).read_bytes()).hexdigest()
        write(folder / "lengthlens.json", about)


def name(folder: Path, chance: random.Random) -> str:
    about = listed(folder)
    about["name"] = chance.choice(NAMES)
    write(folder / "lengthlens.json", about)
    return repr(about["name"])


def file_name(folder: Path, chance: random.Random) -> str:
    """A file under another name, in the list at least."""
    about = listed(folder)
    old, new = chance.choice(sorted(about["files"])), chance.choice(["", "run."]) + chance.choice(NAMES)
    about["files"][new] = about["files"].pop(old) if chance.random() < 0.5 else about["files"][old]
    write(folder / "lengthlens.json", about)
    return f"{old} as {new!r}"


def link(folder: Path, chance: random.Random) -> str:
    """A link, or something else, in the place of a file."""
    path = chance.choice(sorted(each for each in folder.iterdir() if each.name != "lengthlens.json"))
    target = chance.choice(["../victim.parquet", "/dev/zero", "/etc/passwd", "nowhere", "."])
    path.unlink()
    path.symlink_to(target)
    return f"{path.name} to {target}"


def in_json(folder: Path, chance: random.Random, edit: Callable[[Any], Any]) -> str:
    """Edit one of the JSON files of a run, or the list of a study."""
    path = folder / chance.choice([each for each in OF_RUN if (folder / each).is_file()] or ["lengthlens.json"])
    try:
        write(path, edit(json.loads(path.read_bytes())))
    except ValueError:
        return "nothing"
    return path.name


def places(value: Any) -> list[tuple[Any, Any]]:
    """Everything in a value that can be replaced: what it is in, and its key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [found for key in keys for found in places(value[key])]


def field(folder: Path, chance: random.Random) -> str:
    """A field that is missing, or has a value that makes no sense."""

    def edit(value: Any) -> Any:
        if found := places(value):
            inside, key = chance.choice(found)
            if chance.random() < 0.6:
                del inside[key]
            else:
                inside[key] = chance.choice(VALUES)
        return value

    return in_json(folder, chance, edit)


def text(folder: Path, chance: random.Random) -> str:
    """Control characters in a text, or as a name."""

    def edit(value: Any) -> Any:
        found = [each for each in places(value) if isinstance(each[0][each[1]], str | None)]
        if found:
            inside, key = chance.choice(found)
            inside[key] = chance.choice(TEXTS)
        if isinstance(value, dict) and chance.random() < 0.4:
            value[chance.choice(TEXTS)] = chance.choice(TEXTS)
        return value

    return in_json(folder, chance, edit)


def listing(folder: Path, chance: random.Random) -> str:
    """Another value in the list itself."""
    about = listed(folder)
    inside, key = chance.choice(places(about) or [(about, None)])
    if key is not None:
        inside[key] = chance.choice(VALUES)
    write(folder / "lengthlens.json", about)
    return f"{key!r}"
