"""The page of `lengthlens inspect`: one self-contained file that shows what goes on inside a network."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from lengthlens.analyses import inside as figures
from lengthlens.analyses.page import picture, rendered
from lengthlens.analyses.tables import Table, of_frame
from lengthlens.inside.heads import KINDS
from lengthlens.inside.look import Inspection, SequenceView
from lengthlens.probes.network import label

COLUMNS = {
    "head": "head", "attends_to": "attends to", "without": "without it, n = ", "kind": "kind",
    "position_share": "position share", "first_key": "first key, n = ", "entropy": "entropy, n = ",
}  # fmt: skip
HEADS_CAPTION = (
    "Attends to: the relation that has most of a head's weight at the answer's queries. Without it: exact match if "
    "the head's output is replaced by its mean at the same position. Kind: what attention does when the contents of "
    "keys in the prompt are permuted; “attends elsewhere” if hardly to these keys. Position share: the share of "
    "the variance of scores over keys that is the same in all instances. First key: the weight on it. Entropy of "
    "attention in nats."
)
SHARES_DIFFER = (
    "The bias share counts only what the scheme adds to scores. The position share of “Every head” counts all that "
    "is the same in every instance, so also what earlier layers wrote at a position, and leaves out keys whose token "
    "never varies: therefore the two differ."
)
PLANE = (
    "What a head's pattern does when the contents of keys in the prompt are permuted. Up: it stays where it was. "
    "Right: it follows the contents. Top right: attention is even, so both hold. Bottom left: the head needs a certain "
    "content at a certain position."
)
PHONE = 3.3  # inches: a column of a paper is as wide as a phone
LEADING = 12  # heads named at the top of the page, if there is no task to tell which are needed
NEEDED = 0.1  # of exact match: what a head's loss must cost, so that it is more than chance


def inside_page(seen: Inspection, name: str, title: str, about: Mapping[str, str] | None = None) -> str:
    """The whole page. `name` is that of the model, `about` says where it comes from.

    >>> from lengthlens.inside.look import inspect
    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> text = inside_page(inspect(copy_by_hand(), scales=[2, 4], text="^ 7 3 ="), "a copier", "What one head does")
    >>> "attends to i−j = n" in text, "http://" in text.replace("http://www.w3.org", "")
    (True, False)
    """
    weights = [max(each.weights.values()) for each in seen.relations]
    clearest = weights.index(max(weights))  # the head that is shown first
    return rendered(
        "inspection.html", ["page.css", "inspection.css"], ["common.js", "inspection.js"], title=title, name=name,
        data=of_script(seen.sequence, clearest), facts=facts(seen), **conclusion(seen),
        heads=heads_table(seen), sections=sections(seen), provenance=list((about or {}).items()),
    )  # fmt: skip


def conclusion(seen: Inspection) -> dict[str, Any]:
    """Which heads are needed, in a sentence, and what each does: those whose loss costs most first, the rest apart."""
    if not len(seen.ablation):
        ranked = sorted(seen.relations, key=lambda each: -max(each.weights.values()))
        summary = "What each head attends to, the clearest relations first. Without a task, needed heads are not known."
        return {"summary": summary, "lines": [f"{each}." for each in ranked[:LEADING]], "rest": ranked[LEADING:]}
    lost = seen.ablation["whole"] - seen.ablation["without"]
    costs = seen.ablation.assign(lost=lost).sort_values("lost", kind="stable").groupby(["layer", "head"]).last()
    worst: dict[Any, Any] = costs[costs["lost"] >= NEEDED].to_dict("index")
    needed = sorted((each for each in seen.relations if each[:2] in worst), key=lambda each: -worst[each[:2]]["lost"])
    rest = [each for each in seen.relations if each[:2] not in worst]
    falls = "{}. Without it, exact match falls from {whole:.2f} to {without:.2f} at n = {scale:.0f}."
    lines = [falls.format(each, **worst[each[:2]]) for each in needed]
    summary = f"{len(needed)} of {len(seen.relations)} heads are needed: without any one of them, answers get worse."
    if len(needed) == 1:
        summary = f"One head of {len(seen.relations)} is needed: without it, answers get worse."
    if not needed:
        summary = f"No head is needed: without any single one of the {len(rest)}, answers stay as good."
    heads: dict[str, list[str]] = {}  # by relation: heads that have it in common may stand in for each other
    for each in seen.relations:
        if each.explains:
            heads.setdefault(each.relation, []).append(label(each[:2]))
    alike = [f"{', '.join(names)} attend to {relation}" for relation, names in heads.items() if len(names) > 1]
    summary += f" Heads with the same relation: {'; '.join(alike)}." if alike else ""
    return {"summary": summary, "lines": lines, "rest": rest}


def facts(seen: Inspection) -> list[tuple[str, str]]:
    """Exact match at each n, where there is a task."""
    if not len(seen.ablation):
        return [("heads", str(len(seen.relations)))]
    whole = seen.ablation.drop_duplicates("scale")
    return [(f"exact match at n = {int(n)}", f"{value:.2f}") for n, value in zip(whole["scale"], whole["whole"])]


def heads_table(seen: Inspection) -> Table:
    """A row for each head."""
    rows = seen.summary()
    for row in rows:
        row |= {"attends_to": row["attends_to"].removeprefix("attends to "), "kind": KINDS[row["kind"]]}
    columns: dict[str, str] = {}
    for name, words in COLUMNS.items():
        columns |= {key: words for key in rows[0] if key == name}
        columns |= {key: words + scale for key in rows[0] if (scale := key.removeprefix(f"{name}_")).isdigit()}
    return Table(HEADS_CAPTION, rows, columns)


def sections(seen: Inspection) -> list[dict[str, Any]]:
    """Figures, for a wide window and for a phone, with the tables they were drawn from folded below them."""
    drawn: list[tuple[str, str, str, Callable[..., Figure], Any, str]] = [
        ("patterns", "Mean patterns", "Mean over instances at the answer's queries; darker is more weight.",
         figures.plot_patterns, seen.statistics, ""),
        ("roles", "Attention by role", "Weight on the keys that the circuit reads, by slot, and on all others; shaded: "
         "trained on.", figures.plot_roles, seen.roles, "Attention by role"),
        ("measures", "Against length", "Entropy, weight on the first key, and the share of the variance of scores that "
         "positions explain; shaded: trained on.", figures.plot_measures, seen.measures, "Every measure of every head"),
        ("plane", "Positional against symbolic", f"{PLANE} Marks are at the training length (hollow where the head "
         "hardly attends to these keys); lines lead to the longest.",
         figures.plot_plane, seen.plane, "Positional and symbolic"),
        ("training", "Positional against symbolic over training", f"{PLANE} Marks are at the end of training; lines "
         "lead back to the first checkpoint.", figures.plot_plane, seen.training,
         "The same at each checkpoint"),
        ("scores", "What scores are made of", "Shares of the variance of scores over keys; they add up to 1."
         + f" {SHARES_DIFFER}" * ("bias" in set(seen.scores["part"])), figures.plot_scores, seen.scores,
         "Parts of scores"),
        ("residual", "What the residual stream contains", "Above: mean, position, content (the token there) and "
         "remainder. Below: how the position part compares with that at the training length.",
         figures.plot_residual, seen.residual, "Parts of the residual stream"),
    ]  # fmt: skip
    shown = []
    for name, title, shows, plot, data, heading in drawn:
        if len(data):
            table = Table(shows, title=heading, folded=True, **of_frame(data)).html(f"table-{name}") if heading else ""
            about = {"name": name, "title": title, "shows": shows, "caption": shows, "missing": "", "tables": [table]}
            narrow = plot(data, seen.train_max, width=PHONE)
            shown.append(about | picture(plot(data, seen.train_max), narrow=narrow))
    return shown


def of_script(seen: SequenceView, head: int) -> dict[str, Any]:
    """What the page's script needs of a sequence, in plain values; patterns in 256 steps, keys up to the query only."""
    patterns = seen.patterns.abs().flatten(0, 1)
    peak = max(1.0, float(patterns.max()))
    below = torch.tril(torch.ones(patterns.shape[1:], dtype=torch.bool))
    bytes_of = [np.round(pattern[below].numpy() / peak * 255).astype(np.uint8).tobytes() for pattern in patterns]
    layers, heads = seen.patterns.shape[:2]
    steps = sorted(seen.sources)
    return {
        "words": seen.words,
        "heads": [label((layer, each)) for layer in range(layers) for each in range(heads)],
        "patterns": [base64.b64encode(each).decode() for each in bytes_of],
        "peak": peak,
        "sources": {str(query): roles for query, roles in seen.sources.items()},
        "lens": [[[[g.token, round(g.probability, 4)] for g in place] for place in layer] for layer in seen.lens],
        "wrong": [query for query in steps if seen.right(query) is False],
        "start": steps[0] if steps else len(seen.words) - 1,
        "head": head,
    }
