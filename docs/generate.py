"""Pages of the site that follow from the code and the committed tables: made at every build, so never out of date.

    python docs/generate.py [FOLDER]     writes them, with their pictures, to docs/generated

A scheme without a formula and a source (docs/schemes.toml), a column, a measure or a hook without words (below) is an
error, so that what is added to the package is added here, too.
"""

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import lengthlens as ll
from lengthlens.analyses import theme
from lengthlens.analyses.findings import findings
from lengthlens.analyses.page import TERMS
from lengthlens.analyses.study import Study
from lengthlens.analyses.table import read_study
from lengthlens.models.schemes.spec import WRAPPERS, SchemeSpec, scheme_rows
from lengthlens.probes.probe import PROBES
from lengthlens.probes.schema import COLUMNS
from lengthlens.runs.run import best_rows
from lengthlens.runs.store import shipped
from lengthlens.studies.presets import PRESETS
from lengthlens.tasks import Task
from lengthlens.tasks.complexity import task_rows

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
GLOSSARY = HERE / "glossary.md"
FAMILIES = {
    "position-addressed": "Positions alone determine where a step reads. One operator suffices at every n.",
    "growing": "The number of operators grows with n: by the paper's conjecture no position embedding can help.",
    "content-addressed": "The tokens of the instance determine where a step reads.",
}
PLACES = {
    "embed": "the residual stream", "embed_qk": "what queries and keys are made from", "rotate": "queries and keys (rotation)",
    "score": "attention scores", "factor": "the attention pattern, after the softmax",
    "read": "the layer's input (which it reads)",
}  # fmt: skip
MEASURE_WORDS = {
    "exact_match": "share of instances whose whole answer, end token included, is right",
    "exact_match_no_end": "the same without the end token",
    "token_accuracy": "share of right answer tokens",
    "in_range_exact_match": "mean exact match over the n of training",
    "train_loss": "loss at the end of training",
    "margin": "least lead of the right token in the training range, in logits",
    "steps": "training steps", "seconds": "seconds of training", "converged": "1 if training converged",
    "verdict": "the verdict on the cell (column `verdict`)", "declared_src": "operators in the task's circuits up to n",
    "probe_exact_match": "exact match on the instances that the probes saw",
    "pola_predicted_error": "position-only linear attention: error that the closed form predicts",
    "pola_trained_error": "error after gradient descent", "pola_target_energy": "error of predicting zero",
    "pola_lrc": "LRC of the target", "pola_lrc_under": "LRC of the target under the scheme",
}  # fmt: skip
HOOK_WORDS = {
    "hook_embed": "token embeddings", "hook_pos_embed": "what the scheme adds to the residual stream",
    "hook_resid_pre": "the residual stream before the block", "hook_resid_mid": "between attention and MLP",
    "hook_resid_post": "after the block", "hook_scale": "divisor of a norm", "hook_normalized": "after a norm",
    "hook_q": "queries", "hook_k": "keys", "hook_v": "values", "hook_rot_q": "queries after rotation",
    "hook_rot_k": "keys after rotation", "hook_qk_embed": "what the scheme adds to the input of queries and keys",
    "hook_pos_score": "what the scheme adds to the scores",
    "hook_gate": "what the scheme makes of each position of the layer's input: gates, angles or directions",
    "hook_attn_scores": "scores before the softmax", "hook_pattern": "attention weights",
    "hook_z": "weighted values of each head", "hook_result": "output of each head; needs `set_use_attn_result(True)`",
    "hook_attn_out": "output of attention", "hook_mlp_out": "output of the MLP", "hook_pre": "MLP before its nonlinearity",
    "hook_post": "MLP after it", "hook_in": "what is unembedded", "hook_out": "logits",
    "hook_attn_in": "input of each head; needs `set_use_attn_in(True)`",
    "hook_mlp_in": "input of the MLP; needs `set_use_hook_mlp_in(True)`",
    **{f"hook_{x}_input": f"input of {w} of each head; needs `set_use_split_qkv_input(True)`"
       for x, w in (("q", "queries"), ("k", "keys"), ("v", "values"))},
}  # fmt: skip
SWITCHES = ("set_use_attn_result", "set_use_split_qkv_input", "set_use_hook_mlp_in", "set_use_attn_in")
API = {  # by the room of their home
    "tasks": "Tasks", "models": "Networks and schemes", "plugins": "Your own", "runs": "Runs", "theory": "Before training",
    "probes": "Probes", "inside": "Looking inside", "analyses": "Figures", "studies": "Studies",
}  # fmt: skip
BEHIND = {  # classes that one derives from or is given, and that are no names of `lengthlens` itself
    "lengthlens.tasks.task": ("Task", "Batch"),
    "lengthlens.tasks.circuit": ("Circuit", "Operator", "Step"),
    "lengthlens.models.schemes.scheme": ("PositionScheme", "Positions", "Sizes"),
    "lengthlens.models.schemes.spec": ("SchemeSpec",),
    "lengthlens.models.schemes.relation": ("Relation",),
    "lengthlens.theory.verdict": ("Verdict",),
    "lengthlens.runs.run": ("Run", "Status"),
    "lengthlens.runs.evaluation": ("Score",),
    "lengthlens.probes.probe": ("Probe",),
    "lengthlens.probes.certify": ("Certificate",),
    "lengthlens.analyses.study": ("Study", "Finding"),
    "lengthlens.errors": ("UserError",),
}


def write(folder: Path, pictures: bool = True) -> None:
    """Every generated page. Without pictures it takes no time, and pages leave them out."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "schemes": schemes_page(pictures), "tasks": tasks_page(pictures), "hooks": hooks_page(), "columns": columns_page(),
        "api": api_page(), "gallery": gallery_page(), "trained": trained_page(), "tables": tables_page(),
    }  # fmt: skip
    for name, text in pages.items():
        put(folder / f"{name}.md", text.encode())
    put(GLOSSARY, terms_page().encode())
    if pictures:
        for name, draw in {**relation_pictures(), **circuit_pictures(), "map": draw_map}.items():
            target = folder / f"{name}.svg"
            if not target.exists() or target.stat().st_mtime < newest_code():
                save(draw(), target)


def put(path: Path, data: bytes) -> None:
    """Writes what has changed, so that a second build does not read it again."""
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def newest_code() -> float:
    rooms = (path for room in ("tasks", "models/schemes") for path in (ROOT / room).glob("*.py"))
    return max(path.stat().st_mtime for path in (*rooms, ROOT / "CONTRIBUTING.md", Path(__file__)))


def save(figure: Figure, path: Path) -> None:
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "lengthlens"}):
        figure.savefig(path, metadata={"Date": None})


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def heading(made: str) -> str:
    return f"<!-- made by docs/generate.py from {made} -->\n"


# -- schemes -----------------------------------------------------------------------------------------------------


def schemes_page(pictures: bool = True) -> str:
    """Every scheme: what it does, its formula, its relation, its source, its options, and what became of its runs."""
    rows = {row["name"]: row for row in scheme_rows()}
    about = tomllib.loads((HERE / "schemes.toml").read_text("utf-8"))
    outcomes = known_outcomes()
    text = heading("the registry of schemes, docs/schemes.toml and the committed studies") + SCHEMES_LEAD
    text += table(
        ("scheme", "acts on", "code of a pair (i, j) at size n"),
        ((f"[`{name}`](#{anchor(name)})", acts(rows[name]), rows[name]["relation"]) for name in ll.SCHEMES),
    )
    for name in ll.SCHEMES:
        row, said = rows[name], about[name]
        text += f"\n## `{name}`\n\n{sentence(row['summary'])} Family: {row['family']}. Acts on {acts(row)}.\n\n"
        text += f"```text\n{said['formula']}\n```\n\n"
        facts = {"relation": row["relation"], "source": linked(said["source"])}
        facts["options"] = ", ".join(f"`{key}={value}`" for key, value in row["options"].items()) or "none"
        around = [f"`{prefix}:{name}`" for prefix in WRAPPERS if f"{prefix}:{name}" in rows]
        facts["cost"] = said.get("cost", "a step takes about as long as with rope")
        facts["with a wrapper"] = ", ".join(around) or "none makes sense"
        text += table(("", ""), facts.items())
        if pictures:
            text += f"\n![The relation of {name} on copy]({picture_name(name)}.svg)\n\n*{relation_caption(name)}*\n"
        text += "\n" + outcomes.get(name, "No run of it is in the committed studies.\n")
    text += "\n## Wrappers\n\n"
    for prefix, wrapper in WRAPPERS.items():
        said, options = about[f"{prefix}:"], SchemeSpec.of(f"{prefix}:{inner_of(prefix, rows)}")
        own = set(options.options) - set(SchemeSpec.of(inner_of(prefix, rows)).options)
        text += f"### `{prefix}:NAME`\n\n{sentence(wrapper.summary)}\n\n```text\n{said['formula']}\n```\n\n"
        shown = ", ".join(f"`{key}={options.options[key]}`" for key in sorted(own)) or "none"
        facts = {"source": linked(said["source"]), "its options": shown}
        facts |= {"cost": said["cost"]} if "cost" in said else {}
        text += table(("", ""), facts.items()) + "\n"
    return text


SCHEMES_LEAD = """# Schemes

A *scheme* is a position embedding: how a network is told where its tokens stand. Its *relation* gives every pair of a
query position i and a key position j, at input size n, a *code*. Pairs with one code are treated alike, whatever is learned.

The pictures show the relation on the task copy at n = 3 and n = 5. Each square is a pair of a query (down) and a key
(across); squares of one colour, within and between the two pictures, have one code. Dots mark what the task's circuit
reads. Position alone can do the task at every n if the dots have colours that no other square of their row has, and the
same colours in both pictures.

"""


def inner_of(prefix: str, rows: dict[str, Any]) -> str:
    return next(name.partition(":")[2] for name in rows if name.startswith(f"{prefix}:"))


def anchor(name: str) -> str:
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def acts(row: dict[str, Any]) -> str:
    return ", ".join(PLACES[place] for place in row["acts"]) or "nothing"


def linked(source: str) -> str:
    """A source with its papers as links."""
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", source)


def known_outcomes() -> dict[str, str]:
    """By scheme, a table of what became of its runs in the committed studies, wrapped ones with it."""
    counts: dict[tuple[str, str, str], str] = {}
    for study, words in STUDIES.items():
        runs = Study(*read_study(ROOT / "figures" / study / "study.parquet")).runs
        for (label, task), found in runs.groupby(["label", "row"]):
            accurate = found[found["accurate"].fillna(False).astype(bool)]
            far = int(accurate["extrapolates_2"].fillna(False).astype(bool).sum())
            said = f"{far} of {len(accurate)}" if len(accurate) else "not learned"
            counts[str(label), words, str(task)] = said
    tables: dict[str, str] = {}
    for scheme in ll.SCHEMES:
        keys = [key for key in counts if theme.bare(key[0]).rpartition(":")[2] == scheme]
        if not keys:
            continue
        tasks = theme.tasks_in_order(sorted({key[2] for key in keys}))
        rows = [
            (f"`{label}`", words, *(counts.get((label, words, task), "–") for task in tasks))
            for label, words in dict.fromkeys((key[0], key[1]) for key in keys)
        ]
        note = "Of the runs that are accurate on n ≤ 10, how many have an exact match of at least 0.9 at n = 20:\n\n"
        tables[scheme] = note + table(("scheme", "study", *tasks), rows)
    return tables


STUDIES = {
    "study": "[first](../../figures/README.md#the-study)",
    "unscaled": "[replication](../../figures/README.md#the-study-again-without-length-scaled-scores)",
    "schemes": "[second](../../figures/README.md#schemes-outside-the-first-study)",
}
SHOWN = (3, 5)  # values of n in a picture of a relation


def picture_name(scheme: str) -> str:
    return f"relation-{scheme}"


def relation_caption(name: str) -> str:
    if ll.SCHEMES[name].learns_relation and name == "lbpe":
        return "One of the forms from which it learns to choose: i−j−n, small values apart, all others alike."
    return "Copy at n = 3 and n = 5; one colour is one code, dots are what the circuit reads."


def relation_pictures() -> dict[str, Callable[[], Figure]]:
    return {picture_name(name): lambda name=name: draw_relation(name) for name in ll.SCHEMES}  # type: ignore[misc]


def draw_relation(name: str) -> Figure:
    """The codes of all pairs at two n as colours, with what copy reads as dots."""
    task = ll.TASKS["copy"]
    scheme = SchemeSpec.of(name).build(task)
    relation = scheme.candidates()["i−j−n"] if name == "lbpe" else scheme.relation()
    codes = {}
    for n in SHOWN:
        size = 2 * n + 3
        found = relation.table(range(size), range(size), n)
        codes[n] = {(i, j): tuple(found[i, j].tolist()) for i in range(size) for j in range(i + 1)}
    distinct = list(dict.fromkeys(code for n in SHOWN for code in codes[n].values()))
    if relation.background is not None and relation.background in distinct:
        distinct.remove(relation.background)
    colour = {code: tint(k) for k, code in enumerate(distinct)}
    with theme.style():
        figure = Figure(figsize=(7.4, 3.5), layout="constrained")
        for axes, n in zip(figure.subplots(1, 2, width_ratios=[2 * n + 3 for n in SHOWN]), SHOWN):
            size = 2 * n + 3
            image = np.ones((size, size, 3))
            for (i, j), code in codes[n].items():
                image[i, j] = colour.get(code, (0.88, 0.88, 0.88))
            axes.imshow(image, interpolation="nearest")
            read = [(step.query, source) for step in task.circuit(n) for source in step.sources]
            axes.plot([j for _, j in read], [i for i, _ in read], "o", color="black", markersize=3.6)
            tokens = task.render(task.parse("^ " + " ".join("73518"[:n]) + " =").tokens[0]).split()
            axes.set_xticks(range(size), tokens)
            axes.set_yticks(range(size), tokens)
            axes.tick_params(length=0)
            axes.set_title(f"n = {n}")
            for spine in axes.spines.values():
                spine.set_visible(False)
    return figure


def tint(k: int) -> tuple[float, float, float]:
    """The k-th of colours that differ as much as can be from those before: steps of the golden section round the hues."""
    red, green, blue = hsv_to_rgb(
        ((0.11 + k * 0.61803) % 1, 0.35 + 0.3 * ((k * 0.37) % 1), 0.97 - 0.25 * ((k * 0.73) % 1))
    )
    return float(red), float(green), float(blue)


# -- tasks -------------------------------------------------------------------------------------------------------


def tasks_page(pictures: bool = True) -> str:
    """Every task with an example, its operators and its circuit."""
    text = heading("the registry of tasks") + TASKS_LEAD
    rows = {row["name"]: row for row in task_rows(ll.TASKS.values())}
    for family, words in FAMILIES.items():
        text += f"\n## {sentence(family)[:-1]}\n\n{words}\n"
        for name, task in ll.TASKS.items():
            if task.family != family:
                continue
            row = rows[name]
            facts = {
                "example at n = 4": f"`{row['example']}`",
                "vocabulary": f"{row['vocabulary']} tokens",
                "length in tokens": row["length"],
            }
            if task.declares_circuit:
                circuit = circuit_of(task)[1]
                used = [f"`{op.name}` ({counted(op.slots)})" for op in circuit.operators if op.name in circuit.used]
                facts |= {
                    "operators at n = 4, and what they read": ", ".join(used[:6]) + (", …" if len(used) > 6 else ""),
                    "declared SRC at n = 4, 8, 16": ", ".join(map(str, row["src"].values())),
                }
            text += f"\n### `{name}`\n\n{sentence(task.summary)}\n\n" + table(("", ""), facts.items())
            if pictures and task.declares_circuit:
                text += f"\n![The circuit of {name}](circuit-{name}.svg)\n"
    return text


def counted(slots: Sequence[str]) -> str:
    """The slots of an operator, those of one name as a number of them."""
    numbers = Counter(slots)
    return ", ".join(slot if number == 1 else f"{number} times {slot}" for slot, number in numbers.items())


TASKS_LEAD = """# Tasks

An instance of a task is a sequence `^ prompt = answer $`. Its size n is that of the prompt, usually the number of
symbols. An instance of a language is a word, `^ word $`. At every position its answer is the set of tokens that may come
next.

A task's *circuit* says which *operator*, a fixed finite function, writes each token of the answer, and which earlier
tokens it reads. Some tasks declare none. In the pictures an arrow leads from what is read to the token that is written;
the step in colour is one of them, the others are grey. `lengthlens steps TASK "^ … ="` prints the same for any instance.
"""


def circuit_of(task: Task) -> tuple[list[str], Any]:
    """One instance at n = 4, or the smallest n above, and its circuit."""
    import torch

    scale = max(4, task.min_scale)
    batch = task.sample(scale, 1, torch.Generator().manual_seed(0))
    tokens = task.render(batch.tokens[0]).split()
    return tokens, task.circuit(scale, tokens)


def circuit_pictures() -> dict[str, Callable[[], Figure]]:
    declared = {name: task for name, task in ll.TASKS.items() if task.declares_circuit}
    return {f"circuit-{name}": lambda task=task: draw_circuit(task) for name, task in declared.items()}  # type: ignore[misc]


def draw_circuit(task: Task) -> Figure:
    """The tokens in a row, and for every step an arrow from each token that it reads to the one that it writes."""
    tokens, circuit = circuit_of(task)
    steps = list(circuit)
    chosen = max(steps[:2], key=lambda step: len(step.sources) + 0.5 * (step is not steps[0]))
    reach = max(step.query + 1 - min(step.sources) for step in steps)
    bend = min(0.5, 9 / reach)
    with theme.style():
        figure = Figure(figsize=(0.42 * len(tokens) + 0.4, 0.75 + 0.21 * reach * bend), layout="constrained")
        axes = figure.subplots()
        start = steps[0].query
        for k, token in enumerate(tokens):
            axes.text(k, 0, token, ha="center", va="center", fontsize=13, color="black" if k <= start else theme.BLUE)
        for step in sorted(steps, key=lambda each: each is chosen):
            for source in step.sources:
                own = step is chosen
                axes.add_patch(
                    FancyArrowPatch(
                        (source, 0.45), (step.query + 1, 0.45), connectionstyle=f"arc3,rad={-bend}", arrowstyle="-|>",
                        mutation_scale=9, linewidth=1.8 if own else 0.8, color=theme.VERMILION if own else "#b5b5b5",
                        zorder=3 if own else 2,
                    )
                )  # fmt: skip
        axes.set_xlim(-0.6, len(tokens) - 0.4)
        axes.set_ylim(-0.6, 0.7 + 0.5 * reach * bend)
        axes.axis("off")
        axes.set_aspect("auto")
    return figure


# -- hooks, columns, terms ---------------------------------------------------------------------------------------


def hooks_page() -> str:
    """Every hook of a network: those that any scheme has, and those of some alone."""
    shapes: dict[str, str] = {}
    of: dict[str, list[str]] = {}
    schemes = ("lbpe", "learned", "shortformer", "rope", "urpe", "fox")
    for scheme in schemes:
        for name, shape in hook_shapes(scheme).items():
            shapes[name] = shape
            of.setdefault(name, []).append(scheme)
    if wrong := {name.rpartition(".")[2] for name in shapes} ^ HOOK_WORDS.keys():
        raise SystemExit(f"docs/generate.py: HOOK_WORDS and the hooks of networks differ in {', '.join(sorted(wrong))}")
    rows = []
    for name, shape in shapes.items():
        kind = name.rpartition(".")[2]
        only = (
            ""
            if len(of[name]) == len(schemes)
            else f"; not under every scheme (here {', '.join(f'`{each}`' for each in of[name])})"
        )
        rows.append((f"`{name}`", shape, HOOK_WORDS[kind] + only))
    return heading("networks that were built and run") + HOOKS_LEAD + table(("hook", "shape", "what"), rows)


HOOKS_LEAD = """# Hooks

Names and shapes are those of HookedTransformer, so that code written for TransformerLens runs. `{l}` is the layer.
A hook on a point that does not fire as things stand is refused rather than silently ignored.

```python
import lengthlens as ll

model = ll.load("copy/lbpe")
logits, cache = model.run_with_cache("^ 7 3 =")
print(cache["blocks.0.attn.hook_pattern"].shape)  # [row, head, query, key]
```

"""


def hook_shapes(scheme: str) -> dict[str, str]:
    """The shape of every hook of the first block and outside blocks, dimensions by name."""
    sizes = {"n_heads": 3, "d_model": 24, "d_mlp": 40}
    model = ll.build(ll.ModelConfig(task="copy", scheme=scheme, n_layers=1, **sizes)).eval()
    for switch in SWITCHES:
        getattr(model, switch)(True)
    tokens = model.to_tokens("^ 7 3 5 =")
    names = {5: "pos", 3: "head", 24: "d_model", 40: "d_mlp", 8: "d_head", len(model.task.vocab): "token"}
    found = {}
    for split in (False, True):  # with split inputs, hook_attn_in does not fire
        model.set_use_split_qkv_input(split)
        _, cache = model.run_with_cache(tokens)
        for name, value in cache.items():
            shape = ["row" if axis == 0 else names.get(size, str(size)) for axis, size in enumerate(value.shape)]
            if shape.count("pos") == 2:
                shape[-2:] = ["query", "key"]
            found[name.replace("blocks.0.", "blocks.{l}.")] = f"[{', '.join(shape)}]"
    return found


def columns_page() -> str:
    """Every column and measure of a study."""
    studies = [
        pd.read_parquet(ROOT / "figures" / name / "study.parquet", columns=["measure"])
        for name in (*STUDIES, "records")
    ]
    there = sorted({measure for frame in studies for measure in frame["measure"].unique()})
    probed = {measure: probe for probe in PROBES.values() for measure in probe.measures}
    for measure in there:
        if measure not in MEASURE_WORDS and measure not in probed:
            raise SystemExit(f"docs/generate.py: MEASURE_WORDS has no words for the measure {measure}")
    text = heading("the schema, the registry of probes and the committed studies") + COLUMNS_LEAD
    text += table(("column", "type", "what it holds"), ((f"`{name}`", *column) for name, column in COLUMNS.items()))
    text += "\n## Measures without a probe\n\n"
    text += table(("measure", "what it is"), ((f"`{name}`", words) for name, words in MEASURE_WORDS.items()))
    text += "\n## Measures of probes\n\nAn ι is an invariance index: the slope of the logarithm of a count against log n.\n\n"
    rows = [
        (f"`{probe.name}`", sentence(probe.words)[:-1], ", ".join(f"`{each}`" for each in probe.measures),
         ", ".join(f"`{each.column}` = {each.default}" for each in probe.thresholds) or "–")
        for probe in PROBES.values()
    ]  # fmt: skip
    text += table(("probe", "what it measures", "its measures", "thresholds"), rows)
    text += "\n## Presets\n\n" + table(("preset", "tasks", "schemes"), preset_rows())
    return text


COLUMNS_LEAD = """# Columns of a study

A study is one table with a row for each measurement, in parquet, with its provenance in the metadata.
`ll.study` makes it from a store, `lengthlens reproduce` from nothing.

"""


def preset_rows() -> Iterable[tuple[str, str, str]]:
    for name, preset in PRESETS.items():
        tasks = dict.fromkeys(task for part in preset.grids for task in entries(part.tasks))
        schemes = dict.fromkeys(str(each) for part in preset.grids for each in entries(part.schemes))
        yield f"`{name}`", few(tasks), few(schemes)


def entries(given: Any) -> list[str]:
    """What a grid names: everything, tasks, or schemes with their options."""
    if isinstance(given, str):
        return [given]
    return [each if isinstance(each, str) else SchemeSpec.of(each).label for each in given]


def few(names: Iterable[str], most: int = 8) -> str:
    given = [f"`{name}`" for name in names]
    return ", ".join(given[:most]) + (f" and {len(given) - most} more" if len(given) > most else "")


def terms_page() -> str:
    """The glossary, as the page of a study has it. It is committed, so that pages can point to it on GitHub, too."""
    text = heading("analyses/page/glossary.toml, which the page of a study uses, too") + "# Glossary\n\n"
    return text + "\n".join(f"## {term}\n\n{words}\n" for term, words in TERMS.items())


# -- the library, figures, models --------------------------------------------------------------------------------


def api_page() -> str:
    """Every public name by subject, and the classes that they use."""
    from lengthlens import HOMES

    text = heading("`lengthlens.__all__`") + "# The library\n\n`import lengthlens as ll` gives these names.\n"
    for room, title in API.items():
        names = [f"lengthlens.{home}.{name}" for name, home in HOMES.items() if home.partition(".")[0] == room]
        constants = [name for name in names if name.rpartition(".")[2].isupper()]
        text += f"\n## {title}\n\n"
        for name in constants:
            short = name.rpartition(".")[2]
            text += (
                f"`ll.{short}`: a mapping from names to {'tasks' if short == 'TASKS' else 'classes of schemes'}.\n\n"
            )
        text += autosummary([name for name in names if name not in constants])
    text += "\n## Behind them\n\nClasses to derive from, and classes of results.\n\n"
    return text + autosummary([f"{module}.{name}" for module, names in BEHIND.items() for name in names])


def autosummary(names: Sequence[str]) -> str:
    if not names:
        return ""
    lines = "\n   ".join(names)
    return f"```{{eval-rst}}\n.. autosummary::\n   :toctree: api\n   :nosignatures:\n\n   {lines}\n```\n"


def gallery_page() -> str:
    """Every committed figure with the line that makes it."""
    text = heading("figures/README.md and the registry of findings") + GALLERY_LEAD
    listing = (ROOT / "figures/README.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \| ([^|]*) \|$", listing, re.MULTILINE)
    shows = findings()
    for names, words, command in rows:
        for pattern in re.findall(r"`([^`]+)`", names):
            path = f"figures/{pattern.removesuffix('.*').removesuffix('.png')}.png"
            if pattern.endswith((".png", ".*")) and (ROOT / path).exists() and "/tables/" not in pattern:
                study, _, name = path.removeprefix("figures/").removesuffix(".png").rpartition("/")
                text += f"\n## {name}, {study or 'without training'}\n\n![{name}](../../{path})\n\n"
                text += f"{sentence(shows[name].shows.rstrip('.')) if name in shows else sentence(words.strip())}\n\n"
                text += "```bash\n" + made_by(command, name, study) + "\n```\n"
                if name in shows and study:
                    source = f"figures/{study}/{'surgery.csv' if study == 'surgery' else 'study.parquet'}"
                    call = f'll.plot("{name}", read_study("{source}")[0])'
                    text += f"\n```python\n{call}\n```\n"
    return text


def tables_page() -> str:
    """The committed tables, which have no titles of their own."""
    text = "# All tables\n\nEvery table of the committed studies, as `lengthlens figures tables` writes them.\n"
    for folder in sorted((ROOT / "figures").glob("*/tables")):
        lines = [
            f"{path.stem} <../../{path.relative_to(ROOT).with_suffix('')}>" for path in sorted(folder.glob("*.md"))
        ]
        listed = "\n".join(lines)
        text += f"\n## {folder.parent.name}\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    return text


GALLERY_LEAD = """# Gallery

Every figure of the repository with the line that makes it, from the shell and from Python
(`from lengthlens.analyses.table import read_study`). They take any width (`--width 3.3` for a column of a paper),
some tasks and schemes (`--tasks copy`), and existing axes ([how](../reference.md#figures-as-parts-of-yours)).
"""


def made_by(command: str, name: str, study: str) -> str:
    line = re.findall(r"`([^`]+)`", command)[0]
    if line.startswith("lengthlens figures") and study:
        plugin = "".join(re.findall(r"--plugin \S+ ", line))
        return f"lengthlens figures {name} {plugin}--table figures/{study}/study.parquet --out figures/{study}"
    return line


def draw_map() -> Figure:
    """The arrows in CONTRIBUTING.md, which GitHub draws by itself: each room stands right of all that it imports."""
    arrows = re.findall(r"^  (\S+) --> (\S+)$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    depth = dict.fromkeys(dict.fromkeys(name for arrow in arrows for name in arrow), 0)
    for _ in depth:  # as often as the longest way can have rooms
        for room, imported in arrows:
            depth[room] = max(depth[room], depth[imported] + 1)
    columns = {k: [name for name in depth if depth[name] == k] for k in depth.values()}
    height = {name: i - (len(names) - 1) / 2 for names in columns.values() for i, name in enumerate(names)}
    height |= {"errors": 0.0, "notebook": 1.2, "parallel": -1.2}  # so that few arrows cross
    with theme.style():
        figure = Figure(figsize=(8.8, 1.9), layout="constrained")
        axes = figure.subplots()
        box = {"boxstyle": "round,pad=0.3", "facecolor": "#eef4fb", "edgecolor": theme.BLUE, "linewidth": 0.8}
        drawn = {
            name: axes.text(depth[name], height[name], name, ha="center", va="center", fontsize=8, bbox=box)
            for name in depth
        }
        for room, imported in arrows:
            ends = {"patchA": drawn[room].get_bbox_patch(), "patchB": drawn[imported].get_bbox_patch()}
            style = {"arrowstyle": "-|>", "color": "#888888", "shrinkA": 0, "shrinkB": 0, "linewidth": 0.8, **ends}
            start, end = ((depth[name], height[name]) for name in (room, imported))
            axes.annotate("", end, start, zorder=1, arrowprops=style)
        axes.set_xlim(-0.5, max(columns) + 0.4)
        axes.set_ylim(-1.5, 1.5)
        axes.axis("off")
    return figure


def trained_page() -> str:
    """The trained models of the package, with what their cards say."""
    text = heading("the models in runs/trained") + TRAINED_LEAD
    rows = []
    for name, run in shipped().items():
        scores = {row["length"]: row["exact_match"] for row in best_rows(run.evaluation())}
        number = sum(parameter.numel() for parameter in run.model().parameters())
        rows.append((f"`{name}`", f"{number:,}", *(f"{scores[n]:.3f}" if n in scores else "–" for n in (10, 20, 100))))
    return text + table(("name", "parameters", "exact match at n = 10", "n = 20", "n = 100"), rows)


TRAINED_LEAD = """# Trained models

They come with the package: `ll.load("copy/lbpe")` needs no training and no network. Each was trained on n ≤ 10
by `lengthlens train`, some smaller than is usual here so that the package stays small; each is the first and only run of
its configuration, so that none was chosen by its results on longer inputs. On the command line their names stand for
runs, which are copied into the store when they are first asked for: `lengthlens inspect copy/lbpe`. Exact match is of at
least 200 instances; a test measures it again.

"""

if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "generated")
