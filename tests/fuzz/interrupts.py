"""Ctrl-C at random moments: each command ends within two seconds, in one sentence, leaves nobody and a sound store.

``python tests/fuzz/interrupts.py --number 120 --seed 0 [--out FILE.json]``. Every command runs in a session of its own,
as nobody's child but ours. A moment is drawn between the time at which a command answers signals, some hundredths of a
second after it was started, and some seconds later; what was done by then counts as done.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from lengthlens.runs.config import RunConfig
from lengthlens.runs.store import RunStore
from lengthlens.runs.training import train

LONGEST = 5.0  # seconds until a command is interrupted
LIMIT = 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # until it has ended, where it has a core
TINY = "batch=2 d_model=16 n_heads=2 check_every=2".split()
SETTINGS = " ".join(f"--set {pair}" for pair in TINY)
COMMANDS = f"""
train --task copy --scheme rope --store runs {SETTINGS}
sweep --tasks copy,parity-cot --schemes rope,lbpe --seeds 0-3 --lengths 20 --workers 2 --store runs {SETTINGS}
sweep --tasks copy --schemes rope,relative --lengths 20 --workers 1 --store runs {SETTINGS}
evaluate RUN --lengths 100-400 --store runs
verdict --all --jobs 2 --test-max 41
verdict --all --jobs 1 --test-max 41
verdict --task addition --scheme relative --test-max 400
src addition --max-scale 400
src parity --max-scale 8 --search --arity 3
pola --target prefix-sum --scheme relative --train --test-max 400
probe RUN --again --force --store runs
probe --all --store runs
inspect RUN --length 40 --lengths 2,40 --store runs --out page.html
surgery RUN --lengths 100,200 --store runs
patch RUN --length 60 --store runs
attribute RUN --store runs
certify RUN --store runs
check lbpe
tasks
sample addition --scale 2000 --batch 3000
runs check --store runs
runs table all.parquet --store runs
runs repair --store runs
study --store runs --out study.parquet
export RUN shared --store runs
reproduce --preset smoke --out out
""".strip().splitlines()


def children(session: int) -> list[str]:
    """Every process that is left of a session, by its command line; those that have ended and wait for us apart."""
    left = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, of = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                left.append((place / "cmdline").read_text().replace("\0", " ")[:200])
        except OSError:
            continue
    return left


def answers(pid: int) -> bool:
    """Whether a process has a handler for the terminate signal, as commands have from their beginning on."""
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def interrupted(folder: Path, command: str, run: str, chance: random.Random) -> dict[str, object]:
    """What became of one command, and what was wrong with that."""
    words = [run if word == "RUN" else word for word in command.split()]
    shutil.rmtree(folder / "shared", ignore_errors=True)
    how = chance.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM))
    to_all, moment = chance.random() < 0.4, chance.uniform(0, LONGEST)
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    start = [str(Path(sys.executable).with_name("lengthlens")), *words]
    shutil.rmtree(folder / "cache", ignore_errors=True)
    with (folder / "err").open("w") as err:
        process = subprocess.Popen(
            start,
            cwd=folder,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=err,
            preexec_fn=partial(
                signal.signal, signal.SIGINT, signal.SIG_DFL
            ),  # a shell's background jobs do not hear it
        )
        while process.poll() is None and not answers(process.pid):
            time.sleep(0.002)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            (os.killpg if to_all else os.kill)(process.pid, how)
        sent, wrong = time.monotonic(), list[str]()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - sent
    while children(process.pid) and time.monotonic() - sent < LIMIT:
        time.sleep(0.02)
    if left := children(process.pid):
        wrong.append(f"left: {left}")
        os.killpg(process.pid, signal.SIGKILL)
    said = (folder / "err").read_text()
    if seconds > LIMIT:
        wrong.append(f"took {seconds:.1f} s")
    if "Traceback" in said or (process.returncode == 130 and said.count("interrupted: ") != 1):
        wrong.append(f"said {said[-1500:]!r}")
    if process.returncode not in (0, 1, 2, 130, -how):  # the signal itself ends what has said all and is going
        wrong.append(f"ended with {process.returncode}")
    if problems := RunStore(folder / "runs").check():
        wrong.append(f"store: {problems}")
    facts = {"command": command, "signal": how.name, "to_all": to_all, "moment": round(moment, 2)}
    return {**facts, "ended": process.returncode, "seconds": round(seconds, 2), "wrong": wrong}


def interrupts(number: int, seed: int = 0) -> list[dict[str, object]]:
    """So many commands, in turn, each interrupted once."""
    chance, done = random.Random(seed), list[dict[str, object]]()
    with tempfile.TemporaryDirectory() as place:
        config = RunConfig("copy", "relative", train_max=4, steps=20, d_model=16, n_heads=2, check_every=10)
        trained = train(config, Path(place) / "runs").run
        assert trained is not None
        order = [COMMANDS[k % len(COMMANDS)] for k in range(number)]
        for command in chance.sample(order, number):
            done.append(interrupted(Path(place), command, trained.id, chance))
            if done[-1]["wrong"]:
                print(done[-1], file=sys.stderr, flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    done = interrupts(asked.number, asked.seed)
    hit, failures = [each for each in done if each["ended"] == 130], [each for each in done if each["wrong"]]
    slowest = max((float(str(each["seconds"])) for each in hit), default=0.0)
    facts = {"commands": len(done), "interrupted": len(hit), "slowest": slowest, "failures": failures}
    print(text := json.dumps(facts, indent=1))
    if asked.out:
        asked.out.write_text(text + "\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
