"""A study made up, not measured: six tasks, ten schemes, three seeds, without any training.

It looks as a real one does, so that analyses, figures and the page can be tried in a second. Its verdicts are those
that `lengthlens verdict` gives; which runs extrapolate follows from them, but for a few cells that are made to disagree
(`SURPRISES`), and complexity follows from what the run does, with noise.

>>> table = synthetic_study(tasks=["copy"], schemes=["ideal", "rope"], seeds=1)
>>> sorted(set(table["run"]))
['', 'copy_ideal_s0', 'copy_rope_s0']
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lengthlens.analyses.findings import findings
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import as_study
from lengthlens.analyses.tables import Table
from lengthlens.models.schemes import SchemeSpec
from lengthlens.probes.probe import invariance_index
from lengthlens.probes.schema import BAR, FIDELITY, INFLUENCE, TOLERANCE
from lengthlens.runs.evaluation import wilson
from lengthlens.studies.build import POLA_TARGETS, declared_rows, pola_rows
from lengthlens.tasks import TASKS
from lengthlens.theory.verdict import Case, RefusedError

SYNTHETIC_TASKS = ("copy", "reverse", "parity-cot", "addition", "duplicate", "parity")
HINTED = ("hinted:relative/max_distance=3", "hinted:relative/max_distance=12")
SYNTHETIC_SCHEMES = ("ideal", "lbpe", *HINTED, "relative", "alibi", "t5", "rope", "learned", "none")
BEYOND = (2, 5, 10)  # times the training range
SAMPLES = 1000

# (task, scheme): how many of the seeds do the opposite of what the verdict says.
SURPRISES = {
    ("duplicate", "lbpe"): 1,
    ("addition", "lbpe"): 2,
    ("parity-cot", "ideal"): 1,
    ("copy", "hinted:relative/max_distance=12"): 1,
    ("duplicate", "relative"): 2,
}
INACCURATE = {("copy", "none"), ("reverse", "none"), ("addition", "alibi"), ("duplicate", "t5")}
FORMS_OF = {"copy": ("i−j−n", 0), "reverse": ("i+j−2n", 1), "parity-cot": ("i−j−n", 0), "addition": ("i−j−2n", 1)}

# The thresholds of the probes, the default in the middle.
SRC_AT = [{"influence": at, "fidelity": FIDELITY.default} for at in INFLUENCE.tried]
LRC_AT = [{"tolerance": at} for at in TOLERANCE.tried]

Row = dict[str, Any]


def synthetic_study(
    tasks: Sequence[str] = SYNTHETIC_TASKS,
    schemes: Sequence[str] = SYNTHETIC_SCHEMES,
    seeds: int = 3,
    train_max: int = 10,
    seed: int = 0,
    pola_targets: Sequence[str] = POLA_TARGETS[:2],
) -> pd.DataFrame:
    """A table with the columns of a study; `seed` is of the noise."""
    noise = np.random.default_rng(seed)
    rows: list[Row] = []
    for task in tasks:
        case = Case(TASKS[task], train_max, 4 * train_max)
        for scheme in schemes:
            verdict, reasons = judged(case, scheme)
            for k in range(seeds):
                rows += one_run(task, scheme, k, train_max, verdict, noise)
            about = {"run": "", "task": task, "scheme": scheme, "train_max": train_max}
            declared = declared_rows(TASKS[task], train_max, 4 * train_max)
            cell = {"measure": "verdict", "scale": 4 * train_max, "verdict": verdict, "reason": reasons}
            rows += [{**row, **about} for row in [cell, *declared]]
    for target in pola_targets:
        rows += pola_rows(target)
    return as_study(pd.DataFrame(rows))


def synthetic_provenance(table: pd.DataFrame) -> dict[str, Any]:
    """What a real study would say of where it comes from."""
    runs = [name for name in table["run"].unique() if name]
    return {
        "made": "2030-01-31",
        "command": "made up for tests",
        "machine": "2 CPU cores, no GPU",
        "versions": {"python": "3.11.0", "lengthlens": "0.0.0"},
        "configs": {name: {"task": name.partition("_")[0], "steps": 4000} for name in runs},
    }


def judged(case: Case, scheme: str) -> tuple[str, str]:
    spec = SchemeSpec.parse(scheme)
    try:
        found = case.verdict(spec.name, spec.options, helps=False)
    except RefusedError as refusal:
        return "refused", str(refusal)
    return found.verdict, "; ".join(found.reasons)


def one_run(task: str, scheme: str, seed: int, train_max: int, verdict: str, noise: np.random.Generator) -> list[Row]:
    surprising = seed < SURPRISES.get((task, scheme), 0)
    accurate = (task, scheme) not in INACCURATE and not (verdict == "task-limited" and scheme == "none")
    goes_on = ((verdict == "possible") != surprising) and accurate
    run = f"{task}_{scheme.replace(':', '-').replace('/', '-')}_s{seed}"
    about = {"run": run, "task": task, "scheme": scheme, "seed": seed, "train_max": train_max, "accurate": accurate}
    # Growth depends on the relation, and a run that settles on a flat relation by luck is flat: mostly what decides.
    slope = abs(noise.normal(0, 0.02)) if goes_on else noise.uniform(0.6, 1.8)
    if surprising and goes_on:
        slope = noise.uniform(0, 0.7)
    rows = [
        *trained(accurate, noise),
        *scored(train_max, accurate, goes_on, noise),
        *(probed(train_max, slope, noise) if accurate else []),
        *(learned(task, noise) if scheme == "lbpe" else []),
        *(pruned(scheme, train_max, goes_on) if accurate else []),
        *(operated(scheme, train_max, goes_on) if accurate else []),
    ]
    return [{**row, **about} for row in rows]


def trained(accurate: bool, noise: np.random.Generator) -> list[Row]:
    exact = 1 - abs(noise.normal(0, 0.002)) if accurate else noise.uniform(0.2, 0.85)
    values = {
        "in_range_exact_match": exact,
        "train_loss": noise.uniform(0.5, 0.6) + (0 if accurate else 0.6),
        "margin": noise.normal(4, 0.6) if accurate else noise.normal(-0.5, 0.4),
        "steps": 4000 if not accurate else float(noise.integers(8, 40) * 100),
        "seconds": noise.uniform(40, 130),
    }
    rows: list[Row] = [{"measure": name, "value": value} for name, value in values.items()]
    status = "converged" if accurate and exact >= 0.99 else "not-converged"
    return [*rows, {"measure": "converged", "value": float(status == "converged"), "status": status}]


def scored(train_max: int, accurate: bool, goes_on: bool, noise: np.random.Generator) -> list[Row]:
    rows: list[Row] = []
    rate = 0.0 if noise.random() < 0.7 else noise.uniform(0.001, 0.01)  # how fast a good run decays, if it does
    for n in (*range(1, train_max + 1), *(factor * train_max for factor in BEYOND)):
        if n <= train_max:
            share = 1.0 if accurate else max(0.0, 1 - noise.uniform(0.05, 0.12) * n)
        elif goes_on:
            share = float(np.exp(-rate * (n - train_max)))
        else:
            share = float(np.exp(-noise.uniform(0.3, 0.9) * (n - train_max)))
        right = int(noise.binomial(SAMPLES, share))
        low, high = wilson(right, SAMPLES)
        score = {"value": right / SAMPLES, "low": low, "high": high, "scale": n, "samples": SAMPLES}
        rows += [{"measure": measure, **score} for measure in ("exact_match", "exact_match_no_end")]
    return rows


def probed(train_max: int, slope: float, noise: np.random.Generator) -> list[Row]:
    """Curves of complexity c·n^slope, and their indices at three thresholds."""
    scales = range(1, train_max + 1)
    rows: list[Row] = [{"measure": "probe_exact_match", "scale": n, "value": 1.0} for n in scales]
    for measure, first, thresholds, loose in (("src", 2.0, SRC_AT, 0.05), ("lrc", 12.0, LRC_AT, 0.25)):
        own = max(0.0, slope + noise.normal(0, loose))
        curve = {n: float(round(first * n**own)) for n in scales}
        rows += [{"measure": measure, "scale": n, "value": v, **thresholds[1]} for n, v in curve.items()]
        for k, at in enumerate(thresholds):
            shifted = {n: max(1.0, value - k + 1) for n, value in curve.items()}
            rows.append(index(measure, train_max, shifted, **at))
        if measure == "lrc":
            for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
                about = {"layer": layer, "head": head}
                of_head = {"measure": "lrc", **thresholds[1], **about}
                rows += [{"scale": n, "value": v // 4, **of_head} for n, v in curve.items()]
                rows += [{"measure": "r2", "scale": n, "value": noise.uniform(0.7, 1), **about} for n in scales]
    for layer in (0, 1):
        for readout in ("linear", "sequential"):
            rows += transferred(train_max, layer, readout, slope, noise)
    return rows


def transferred(train_max: int, layer: int, readout: str, slope: float, noise: np.random.Generator) -> list[Row]:
    about = {"layer": layer, "readout": readout}
    rows: list[Row] = []
    for fit in range(1, train_max + 1):
        for scale in (*range(1, train_max + 1), 2 * train_max):
            decoded = np.exp(-slope * abs(np.log(scale / fit))) + noise.normal(0, 0.02)
            row = {"measure": "transfer", "fit_scale": fit, "scale": scale, "control": 0.2, **about}
            rows.append({**row, "value": float(np.clip(decoded, 0, 1))})
    own = max(0.0, slope * (0.5 if layer else 1) + noise.normal(0, 0.2))
    curve = {n: float(round(2 * n**own)) for n in range(1, train_max + 1)}
    rows += [{"measure": "cover", "scale": n, "value": v, "bar": BAR.default, **about} for n, v in curve.items()]
    for bar, factor in zip(BAR.tried, (0.7, 1.0, 1.4)):
        scaled = {n: max(1.0, round(v * factor)) for n, v in curve.items()}
        rows.append(index("cover", train_max, scaled, bar=bar, **about))
    return rows


def index(of: str, train_max: int, curve: dict[int, float], **about: Any) -> Row:
    return {"measure": f"iota_{of}", "scale": train_max, "value": invariance_index(curve), **about}


def pruned(scheme: str, train_max: int, goes_on: bool) -> list[Row]:
    """A copy that is flat and goes on wherever there is a Scale Hint, and one that grows and fails under `relative`."""
    if not scheme.startswith(("hinted:", "relative")):
        return [{"measure": "pruned", "reason": "nothing to prune"}]
    flat = scheme.startswith("hinted:")
    about = {**SRC_AT[1], "relation": "what stands out in i−j−n: 0"}
    curve = {n: 2.0 if flat else 2.0 * n for n in range(1, train_max + 1)}
    rows: list[Row] = [{"measure": "pruned", "scale": train_max, "value": invariance_index(curve), **about}]
    rows += [{"measure": "pruned_src", "scale": n, "value": value, **about} for n, value in curve.items()]
    right = float(flat or goes_on)
    rows += [{"measure": "pruned_exact_match", "scale": k * train_max, "value": right, **about} for k in (2, 10)]
    return rows


def operated(scheme: str, train_max: int, goes_on: bool) -> list[Row]:
    """Under surgery: a run with a Scale Hint is repaired by the ideal relation, and any other is harmed in range."""
    hinted = float(scheme.startswith("hinted:"))
    right = {"own": float(goes_on), "ideal": hinted, "ideal, others as one": hinted, "displaced": 0.0, "none": 0.0}
    rows: list[Row] = [
        {"relation": name, "scale": k * train_max, "value": value} for name, value in right.items() for k in (2, 4)
    ]
    rows.append({"relation": "borrowed in range", "scale": train_max, "value": hinted})
    return [{"measure": "surgery_exact_match", **row} for row in rows]


def learned(task: str, noise: np.random.Generator) -> list[Row]:
    form, value = FORMS_OF.get(task, ("i−j−n", 0))
    about = {"measure": "relation", "layer": 0, "form": form, "form_value": value}
    return [{**about, "head": head, "value": float(noise.normal(5.5, 0.3))} for head in (1, 3)]


def all_tables(study: Study) -> dict[str, Table]:
    """The tables of all findings, by name."""
    return {name: table for finding in findings(study).values() for name, table in study.tables(finding).items()}
