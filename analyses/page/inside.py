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
from lengthlens.inside.look import Inspection, SequenceView
from lengthlens.inside.subject import label

COLUMNS = {
    "head": "head",
    "attends_to": "attends to",
    "kind": "positional or symbolic",
    "position_share": "position share",
}
NUMBERED = {"entropy": "entropy at n = ", "first_key": "first key at n = ", "without": "exact match without it at n = "}
HEADS_CAPTION = (
    "A relation in words is what has most of a head's weight at the answer's queries. Positional heads attend to the "
    "same positions when the contents of keys are permuted, symbolic ones follow the contents. The position share is "
    "that of the variance of scores over keys. Without a head: its output replaced by its mean at the "
    "same position."
)
PHONE = 3.3  # inches: a column of a paper is as wide as a phone
LEADING = 12  # heads named at the top of the page


def inside_page(seen: Inspection, name: str, title: str, about: Mapping[str, str] | None = None) -> str:
    """The whole page. `name` says what was looked at, `about` where it comes from.

    >>> from lengthlens.inside.look import inspect
    >>> from lengthlens.probes.controls import copy_by_hand
    >>> text = inside_page(inspect(copy_by_hand(), scales=[2, 4], text="^ 7 3 ="), "a copier", "What one head does")
    >>> "attends to i−j = n" in text, "http://" in text.replace("http://www.w3.org", "")
    (True, False)
    """
    return rendered(
        "inside.html", ["page.css", "inside.css"], ["common.js", "inside.js"], title=title, name=name,
        data=of_script(seen.sequence, _start_head(seen)), lines=leading_lines(seen), facts=facts(seen),
        heads=heads_table(seen), sections=sections(seen), provenance=list((about or {}).items()),
    )  # fmt: skip


def leading_lines(seen: Inspection) -> list[str]:
    """What each head does in words; of many heads, those that a relation explains best."""
    ranked = sorted(seen.relations, key=lambda each: -max(each.weights.values()))[:LEADING]
    chosen = [each for each in seen.relations if each in ranked]
    left = len(seen.relations) - len(chosen)
    return [f"{each}." for each in chosen] + ([f"{left} more heads: see the table."] if left else [])


def facts(seen: Inspection) -> list[tuple[str, str]]:
    """Exact match at each scale, where there is a task."""
    if not len(seen.ablation):
        return [("heads", str(len(seen.relations)))]
    whole = seen.ablation.drop_duplicates("scale")
    return [(f"exact match at n = {int(n)}", f"{value:.2f}") for n, value in zip(whole["scale"], whole["whole"])]


def heads_table(seen: Inspection) -> Table:
    """A row for each head."""
    rows = seen.summary()
    columns = {key: COLUMNS[key] for key in ("head", "attends_to", "kind")}
    for key in rows[0]:
        stem, _, scale = key.rpartition("_")
        if stem in NUMBERED:
            columns[key] = NUMBERED[stem] + scale
    columns["position_share"] = COLUMNS["position_share"]
    return Table(HEADS_CAPTION, rows, columns)


def sections(seen: Inspection) -> list[dict[str, Any]]:
    """Figures with their tables folded below them."""
    drawn: list[tuple[str, str, str, Callable[..., Figure], Any, str]] = [
        ("patterns", "Mean patterns", "Mean over instances at the answer's queries; darker is more weight.",
         figures.plot_patterns, seen.glances, ""),
        ("roles", "Attention by role", "Weight on the keys that the circuit reads, by slot, and on all others; shaded: "
         "trained on.", figures.plot_roles, seen.roles, "Attention by role"),
        ("measures", "Against length", "Entropy, weight on the first key, and the share of the variance of scores that "
         "positions explain; shaded: trained on.", figures.plot_measures, seen.measures, "Every measure of every head"),
        ("plane", "Positional against symbolic", "What a head's pattern does when the contents of keys are permuted: "
         "marks at the training length (hollow where the head hardly attends to these keys), lines to the longest.",
         figures.plot_plane, seen.plane, "Positional and symbolic"),
        ("training", "Positional against symbolic over training", "Marks at the end of training; lines lead back to "
         "the first checkpoint that was kept.", figures.plot_plane, seen.training, "The same at each checkpoint"),
        ("scores", "What scores are made of", "Shares of the variance of scores over keys; they add up to 1.",
         figures.plot_scores, seen.scores, "Parts of scores"),
        ("residual", "What the residual stream says", "Above: mean, position, content (the token there) and remainder. "
         "Below: how the position part compares with that at the training length.",
         figures.plot_residual, seen.residual, "Parts of the residual stream"),
    ]  # fmt: skip
    return [_section(*each, seen.train_max) for each in drawn if len(each[4])]


def _section(
    name: str, title: str, shows: str, plot: Callable[..., Figure], data: Any, heading: str, train_max: int
) -> dict[str, Any]:
    """A figure, for a wide window and for a phone, and the table it was drawn from."""
    table = Table(shows, title=heading, folded=True, **of_frame(data)).html(f"table-{name}") if heading else ""
    pictures = picture(plot(data, train_max), narrow=plot(data, train_max, width=PHONE))
    return {
        "name": name,
        "title": title,
        "shows": shows,
        "caption": shows,
        "missing": "",
        "tables": [table],
        **pictures,
    }


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


def _start_head(seen: Inspection) -> int:
    """The head that is shown first: that with the clearest relation."""
    return max(range(len(seen.relations)), key=lambda k: max(seen.relations[k].weights.values()))
