"""What the terms mean, a sentence or two each: the page of a study shows them where they occur, the site as a list."""

import re

from markupsafe import Markup, escape

TERMS = {
    "scale": "The size n of an instance, usually the number of its input symbols: copy at n = 3 is `^ 7 3 5 = 7 3 5 "
    "$`. The number of tokens follows from it (for copy 2n + 3).",
    "training range": "The scales that training used: n ≤ 10 unless said otherwise. All else is beyond it.",
    "exact match": "The share of instances whose whole answer, end token included, is right.",
    "accurate in range": "Said of a run whose exact match is at least 0.9 at every scale of the training range.",
    "extrapolates": "Said of a run whose exact match is at least 0.9 at twice the largest training scale.",
    "run": "One trained network: a task, a scheme, a seed and a recipe.",
    "imported model": "A model that was trained elsewhere and became a run by `lengthlens import`.",
    "cell": "All runs of one task under one scheme; they differ by their seed alone.",
    "position embedding": "How a network is told where its tokens stand, called a scheme here: rope, alibi, learned, …",
    "relation": "What a scheme makes of positions: a code φ(i, j; n) for query i and key j at scale n. Pairs with one "
    "code are treated alike, whatever is learned.",
    "operator": "A fixed finite function from a few tokens to one token. Each token of an answer is computed by a "
    "step: one operator, applied to certain earlier tokens, its sources. The query of a step is the last token so far.",
    "circuit": "The steps that compute a task: which operator writes each token of the answer, and what it reads.",
    "SRC": "Sequential representation complexity: the number of distinct operators needed for all instances up to a "
    "scale. The paper's conjecture: length generalization is possible if and only if it does not grow.",
    "measured SRC": "The same count for a trained network (`--measure src`): how many tables from a few tokens to the "
    "next one explain what it does at every step.",
    "interchange SRC": "The same count without position codes (`--measure interchange`): two steps use one operator if "
    "the network's states there can be exchanged and the answer stays right.",
    "predicted exact match": "What a network is expected to answer on longer inputs (`--measure stretch`): it is shown "
    "short inputs at the positions of long ones.",
    "LRC": "Linear representation complexity: how many codes, each with a weight, attention spends when it is "
    "described as depending on positions alone.",
    "cover number": "The least number of readouts of the network's activations that decode every step "
    "(`--measure transfer`).",
    "readout": "A fitted map from what a network holds, or from certain tokens, to the next token.",
    "POLA": "Position-only linear attention: attention whose weights depend on positions alone. What training gives "
    "has a closed form there.",
    "ι": "Invariance index (iota): the slope of the logarithm of a complexity against log n inside the training "
    "range. 0 is no growth, 1 is growth in proportion to n.",
    "AUC": "How well a number separates the runs that extrapolate from those that do not: the chance that it ranks "
    "one of the former above one of the latter. 1 is perfect, 0.5 is guessing.",
    "interval": "Square brackets hold 95 % intervals of a bootstrap that draws whole cells anew, since seeds of one "
    "cell are not independent evidence.",
    "baseline": "Something simpler that could predict as well: training loss, in-range exact match, how other runs of "
    "the same scheme did.",
    "held-out tasks": "Tasks on which nothing was chosen: neither the recipe of training nor any threshold of a probe.",
    "verdict": "A statement before training: possible, impossible (the relation does not fit the task), open (it "
    "depends on training) or task-limited (SRC grows, no scheme can help).",
    "margin": "The lead of the right token over the best wrong one, in logits.",
    "Scale Hint": "A scheme that may also use the scale, written hinted: it also has the distance counted from n, as "
    "in i−j−n.",
    "lbpe": "Learning-based position embedding: the relation itself is learned, from linear forms of i, j and n.",
    "ideal": "The position embedding that is given the circuit: it tells a query exactly what its step reads.",
    "max_distance": "The distance from which on a scheme treats all keys alike: relative/max_distance=3.",
    "pruning": "In a copy of a trained network, position biases that no in-range answer depends on are set to one "
    "common value (`--measure pruned`).",
    "certificate": "A statement about one network at lengths it was never run on: the largest n for which attention to "
    "irrelevant keys cannot change an answer.",
}

OCCURS = re.compile(
    "|".join(rf"(?<![\w:-]){re.escape(term)}(?![\w=-])" for term in sorted(TERMS, key=len, reverse=True))
)


def marked(text: str) -> Markup:
    """A text as HTML in which the first occurrence of each term is a button that opens what it means, and what stands
    in backticks is code.

    >>> print(marked("AUC < 1 by `probe`"))
    <button type="button" class="term" aria-expanded="false" data-term="AUC">AUC</button> &lt; 1 by <code>probe</code>
    """
    seen, parts, end = set(), [], 0
    for found in OCCURS.finditer(text):
        if found[0] not in seen:
            seen.add(found[0])
            button = '<button type="button" class="term" aria-expanded="false" data-term="{0}">{0}</button>'
            parts += [escape(text[end : found.start()]), Markup(button).format(found[0])]
            end = found.end()
    return coded(Markup("").join([*parts, escape(text[end:])]))


def explained(term: str) -> Markup:
    """What a term means, as HTML."""
    return coded(escape(TERMS[term]))


def coded(text: Markup) -> Markup:
    """HTML in which what stands in backticks is code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(text)))
