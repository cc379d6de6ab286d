"""The verdict before any training: can this position embedding make this task generalize to longer inputs?

The paper conjectures that length generalization is possible exactly when the Sequential Representation Complexity
(SRC) of the task does not grow with the input size n, and calls a position embedding's part in it the sharing of
learned computation among position pairs. What follows are this project's operational definitions, decided exhaustively
up to the largest n; nothing is measured here.

A task declares a circuit: at size n, the answer token after query i is written by a *step*, an operator applied to the
tokens at its sources, one for each *slot* of the operator. A position embedding has a *relation* φ(i, j; n): it gives
each pair of positions a code, and pairs with the same code are treated alike. The *signature* of a step is its operator
and the codes of its sources.

- Declared SRC is the number of operators used up to n; SRC under φ the number of signatures.
- *isolated*: at every step each source is the only key with its code.
- *stable*: a code that marks a source at one step does not, at any other step of the same operator, mark a key that
  fills other slots, or none. (A key may fill several slots; then it must fill the same ones wherever its code occurs.)
- *covered*: every signature up to `test_max` already occurs up to `train_max`.

The verdict is

- ``possible`` if the three properties hold; or if every slot is served by one code of one part of the scheme, helped
  by content (`theory/content.py`), and the parts that must be ignored for that follow a formula, so that none of their
  values is left untrained. In both cases what a step reads must tell its operator, training must show enough sizes, and
  keys at codes that training never met must not outweigh the sources. Also if some right program of the task is made of
  slots that the scheme has at hand (`theory/programs.py`, `theory/at_hand.py`), perhaps up to some n only.
- ``open`` if it depends on training: on whether tables are ignored whose entries for long inputs were never trained
  together with that code; on vectors becoming alike because positions were drawn at random; on what is counted, where
  content decides that; on whether two layers together read what one cannot; or on which of two programs is learned.
- ``task-limited`` if declared SRC grows from `train_max` to `test_max`, or the task declares that no program is known,
  and a search within its bounds finds none. Of a task that declares nothing this is ``open``: the bounds may be narrow.
- ``impossible`` under this scheme otherwise, with a counterexample: a step beyond the training range needs a code that
  marks other keys within it, or never occurs there; or the slot of a program that the scheme does not tell.

Impossible and task-limited say what was looked for and not found: circuits that treat pairs with one code alike, and
programs within the bounds of the search. A network that computes in another way would refute them. And possible means
that nothing was found to prevent it, not that training achieves it. Inside the training range nothing is judged.

A relation that is itself learned (`lbpe` before training) is judged by the best choice within its family: possible if
for each slot of each operator some one of its forms makes the source isolated, stable and covered, or if several of
its forms together single it out (`theory/properties.py`).

>>> print(verdict("parity-cot", "relative", 10, 40).stable.counterexample)
distance 2 is read at n=2 (position 1 from query 3) and must be ignored at n=1 (position 0 from query 2)
>>> verdict("parity-cot", "hinted:relative", 10, 40, {"max_distance": 3}).verdict
'possible'
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch

from lengthlens.errors import UserError
from lengthlens.models.schemes import SCHEMES, PositionScheme, Relation, SchemeSpec, scheme_names
from lengthlens.models.schemes.spec import named, scheme_for
from lengthlens.notebook import card
from lengthlens.parallel import in_parallel
from lengthlens.tasks import TASKS, Task
from lengthlens.tasks.complexity import src_curve
from lengthlens.tasks.program import Place
from lengthlens.tasks.task import circuit_of
from lengthlens.theory.at_hand import AtHand, few_sizes, reading
from lengthlens.theory.content import SlotSteps, alike_slots, labels, read_in_two_layers, serving_code, where_needed
from lengthlens.theory.learnable import Choice, Family
from lengthlens.theory.programs import Judged, Programs
from lengthlens.theory.properties import Counterexample, Findings, counts, examine, source_codes
from lengthlens.theory.steps import Circuits, Steps, circuits_of, up_to

if TYPE_CHECKING:
    import pandas as pd

Answer: TypeAlias = Literal["possible", "impossible", "task-limited", "open", "refused"]
Scheme: TypeAlias = str | PositionScheme | type[PositionScheme]
Made = TypeVar("Made")
CLIPS = ("max_distance", "window")  # options beyond which a scheme treats all pairs alike
CLIP_TRIALS = (4, 3, 2, 1, 8)
TRIAL_MAX = 64  # what would help is tried up to this n, or twice the training range
PROPERTIES = ("isolated", "stable", "covered")
BETTER = ("possible", "open", "impossible", "task-limited", "refused")
LEAST_SIZES = 3  # that a relation which is learned has to be shown (copying under lbpe: 2 were too few)
N_INSTANCES = 64  # of each size, on which operators are told apart
HELPS = {
    "option": "with {option} {value} instead of {instead_of} it becomes possible",
    "scale hint": "with Scale Hint ('{scheme}'){clip} it becomes possible",
    "scheme": "with {remedy} ('{scheme}') it becomes possible",
    "chain of thought": "as a chain of thought (task '{task}') it becomes possible with the ideal relation",
    "nothing": "nothing that was tried makes it possible",
    "write down": "no position embedding helps: the intermediate results have to be written down",
    "measure": "whether content finds them is for a trained model to show: measure SRC on a run",
}


@dataclass(frozen=True)
class Property:
    """Whether isolated, stable or covered holds, and if not, why not: in words, and as positions to check."""

    holds: bool
    counterexample: str | None = None
    witness: Counterexample | None = None


@dataclass(frozen=True)
class Help:
    """Something that would make a task possible, or that nothing does; ``str`` says it in a sentence.

    >>> print(Help("option", scheme="relative", option="max_distance", value=3, instead_of=128))
    with max_distance 3 instead of 128 it becomes possible
    """

    kind: Literal["option", "scale hint", "scheme", "chain of thought", "nothing", "write down", "measure"]
    scheme: str | None = None  # under which it becomes possible
    option: str | None = None  # with this option …
    value: int | None = None  # … at this value …
    instead_of: Any = None  # … rather than at that one
    task: str | None = None  # as this task
    remedy: str | None = None  # the scheme in words
    tried_to: int | None = None  # the largest n of the trial, where that is not `test_max`

    def __str__(self) -> str:
        tried = "" if self.tried_to is None else f" (tried up to n={self.tried_to})"
        clip = "" if self.option is None else f" and {self.option} {self.value}"
        return HELPS[self.kind].format(**vars(self), clip=clip) + tried


@dataclass(frozen=True)
class Verdict:
    """What can be said of a task and a scheme before training. `src_…` are None where there are no codes to count."""

    task: str
    scheme: str
    scheme_options: Mapping[str, Any]
    train_max: int
    test_max: int
    verdict: Answer
    reasons: tuple[str, ...]
    helps: tuple[Help, ...]
    src_declared_train: int | None
    src_declared_test: int | None
    src_train: int | None = None
    src_test: int | None = None
    isolated: Property | None = None
    stable: Property | None = None
    covered: Property | None = None
    up_to: int | None = None  # where less than `test_max` is possible: up to which n
    program: str | None = None  # the program that is possible, or the one that the scheme does not tell
    rival: str | None = None  # the other program, where training decides

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {**vars(self), "scheme_options": dict(self.scheme_options)}
        for name in PROPERTIES:
            each = plain[name]
            plain[name] = each and {"holds": each.holds, "counterexample": each.counterexample}
        return {**plain, "reasons": list(self.reasons), "helps": list(map(str, self.helps))}

    @property
    def failing(self) -> str:
        """The initials of the properties that do not hold: "SC" for neither stable nor covered."""
        return "".join(name[0].upper() for name in PROPERTIES if (each := getattr(self, name)) and not each.holds)

    def __repr__(self) -> str:
        return f"Verdict({str(self).splitlines()[0]})"

    def _repr_html_(self) -> str:
        facts = {name: "yes" if each.holds else "no" for name in PROPERTIES if (each := getattr(self, name))}
        title = f"{self.task} with {self.scheme}: {self.verdict}"
        asked = {"trained to": f"n = {self.train_max}", "asked up to": f"n = {self.test_max}"}
        return card(title, {**asked, **facts}, lines=[*self.reasons, *map(str, self.helps)])

    def __str__(self) -> str:
        head = f"{self.task} with {self.scheme}, trained to {self.train_max}, tested to {self.test_max}: {self.verdict}"
        head += f" up to n = {self.up_to}" if self.up_to else ""
        return "\n".join([head, *(f"  {line}" for line in (*self.reasons, *map(str, self.helps)))])


def verdict(
    task: str | Task,
    scheme: Scheme,
    train_max: int,
    test_max: int,
    scheme_options: Mapping[str, Any] | None = None,
    helps: bool = True,
) -> Verdict:
    """Whether the scheme can carry the task from n up to `train_max` to n up to `test_max`, and why not.

    Arguments:
        task, scheme: names, or a user-defined task and scheme (class or object).
        train_max, test_max: the largest n of training, and the largest n at which answers have to be right.
        scheme_options: by name, or after the name (``relative/max_distance=3``); the scheme's defaults otherwise.
        helps: whether to try what would help.

    Returns a `Verdict`: its `verdict` in one word, `reasons`, `helps`, and the three properties, each with a
    counterexample where it fails; ``str`` of it is a paragraph. Raises `UserError` for a name, an option or a range
    that does not exist, and where the scheme refuses the task.

    >>> result = verdict("copy", "relative", train_max=10, test_max=40)
    >>> result.verdict, result.failing, str(result.helps[0])
    ('impossible', 'SC', "with Scale Hint ('hinted:relative') and max_distance 4 it becomes possible")
    """
    task = TASKS[task] if isinstance(task, str) else task
    checked_range(task, train_max, test_max)
    return Case(task, train_max, test_max).verdict(scheme, scheme_options or {}, helps)


def verdict_grid(
    tasks: Sequence[str | Task] | None = None,
    schemes: Sequence[Scheme] | None = None,
    train_max: int = 10,
    test_max: int = 40,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
) -> "pd.DataFrame":
    """One row for each task and scheme, all of them by default; `progress` is told how many of how many are done.

    A scheme that refuses a task has the verdict ``refused``, and its reason. With more than one job, tasks are shared
    out among that many processes.
    """
    if jobs < 1:
        raise UserError(f"the number of jobs must be at least 1, not {jobs}")
    chosen = [TASKS[task] if isinstance(task, str) else task for task in tasks or TASKS.values()]
    names = list(schemes or scheme_names())
    for task in chosen:
        checked_range(task, train_max, test_max)
    longest_first = sorted(range(len(chosen)), key=lambda k: -chosen[k].length(test_max))
    by_name = [task.name if TASKS.get(task.name) is task else task for task in chosen]  # a plug-in's by name
    work = partial(grid_rows, schemes=names, train_max=train_max, test_max=test_max)
    rows: dict[int, list[dict[str, Any]]] = {}
    for k, of_task in in_parallel(work, {k: by_name[k] for k in longest_first}, workers=jobs, fork=True):
        rows[k] = of_task
        if progress:
            progress(len(rows) * len(names), len(chosen) * len(names))
    import pandas as pd  # by now the work is done, elsewhere if there are several jobs

    return pd.DataFrame([row for k in range(len(chosen)) for row in rows[k]])


def grid_rows(task: str | Task, schemes: Sequence[Scheme], train_max: int, test_max: int) -> list[dict[str, Any]]:
    """The verdicts on one task as rows of plain values."""
    case, rows = Case(TASKS[task] if isinstance(task, str) else task, train_max, test_max, with_examples=False), []
    for scheme in schemes:
        try:
            result = case.verdict(scheme, {})
        except RefusedError as refusal:
            result = case.result(scheme, {}, "refused", [str(refusal)])
        properties = {name: getattr(result, name) for name in PROPERTIES}
        numbers = ("src_declared_train", "src_declared_test", "src_train", "src_test", "train_max", "test_max")
        row = {
            "task": result.task,
            "task_family": case.task.family,
            "scheme": result.scheme,
            "verdict": result.verdict,
            **{name: each and each.holds for name, each in properties.items()},
            "failing": result.failing,
            "up_to": result.up_to,
            "program": result.program,
            "other_option": any(help.kind == "option" for help in result.helps),
            **{name: getattr(result, name) for name in numbers},
            "reasons": "; ".join(result.reasons),
            "helps": "; ".join(map(str, result.helps)),
        }
        rows.append(row)
    return rows


def checked_range(task: Task, train_max: int, test_max: int) -> None:
    if test_max < train_max:
        raise UserError(f"test_max {test_max} is below train_max {train_max}: it must be at least as large")
    task.checked_scale(train_max)
    task.checked_scale(test_max)


class RefusedError(UserError):
    """The scheme cannot be built for the task."""


class Case:
    """One task and range of n, for any number of schemes: what does not depend on the scheme is computed once."""

    def __init__(self, task: Task, train_max: int, test_max: int, with_examples: bool = True) -> None:
        self.with_examples = with_examples  # whether to look for an instance on which the best slot at hand fails
        self.task, self.train_max, self.test_max = task, train_max, test_max
        self.trial_max = min(test_max, max(TRIAL_MAX, 2 * train_max))
        self.program: Circuits | None = None
        self._made: dict[Hashable, Any] = {}
        self.declared: tuple[int | None, int | None] = None, None
        if task.family != "content-addressed":
            self.program = circuits_of(task, train_max, test_max)
            self.declared = self.program.declared_train, self.program.declared_test
        elif task.programs:
            curve = src_curve(task, min(test_max, max(train_max, TRIAL_MAX)))
            self.declared = curve[train_max - task.min_scale], curve[-1]

    def once(self, *key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once for each key."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def verdict(self, scheme: Scheme, options: Mapping[str, Any], helps: bool = True) -> Verdict:
        if isinstance(scheme, str):
            scheme, options = named(scheme, options)
        built, refusal = self.built(scheme, options)
        if built is None and not (self.program and self.program.grows):
            raise RefusedError(refusal)
        if self.test_max == self.train_max:
            reason = f"nothing is asked beyond n={self.train_max}; whether training learns it, a run shows"
            return self.result(scheme, options, "possible", [reason])
        if built is not None and not built.has_codes and not (self.program and self.program.grows):
            return self.result(scheme, options, "open", [f"it depends on {built.hinges_on}"], Help("measure"))
        results = []
        if self.program is not None and not self.program.grows:
            assert built is not None
            results.append(self.by_codes(scheme, options, built, helps))
        if (
            built is not None
            and (not results or results[0].verdict != "possible")
            and (self.task.programs != () or self.program is None)
        ):
            judged = self.programs.judged(self.at_hand(built))
            if self.program is None or judged.up_to or judged.open:
                results.append(self.by_program(scheme, options, built, judged))
        if not results:
            assert self.program is not None
            return self._task_limited(self.program, scheme, options)
        return min(results, key=lambda each: BETTER.index(each.verdict))

    def by_codes(self, scheme: Scheme, options: Mapping[str, Any], built: PositionScheme, helps: bool) -> Verdict:
        """By the circuit that the task declares, and the codes of its sources."""
        findings, choices = self.findings(built, self.test_max)
        properties = {}
        for name in PROPERTIES:
            example = getattr(findings, name)
            words = None if example is None else sentence(name, example, self.task)
            properties[name] = Property(example is None, words, example)
        reasons = [f"not {name}: {each.counterexample}" for name, each in properties.items() if not each.holds]
        answer: Answer = "possible"
        if findings.possible:
            number = "one combination of codes serves"
            if findings.src_test != 1:
                number = f"{findings.src_test} combinations of codes serve"
            reasons = [f"{number} every step up to n={self.test_max}, and all of it occurs up to n={self.train_max}"]
        else:
            answer, why = self.beyond_codes(built)
            reasons = [*why, *reasons]
        if answer == "possible":
            answer, why = self.doubts(built)
            reasons = [*why, *reasons]
        served = [choice for choice in choices if choice.findings.possible]
        reasons += [f"slot {each.slot} of operator '{each.operator}' can be read by {each.name}" for each in served]
        helping = self._what_helps(scheme, options) if helps and answer != "possible" else []
        src = {"src_train": findings.src_train, "src_test": findings.src_test}
        return self.result(scheme, options, answer, reasons, *helping, **src, **properties)

    def by_program(self, scheme: Scheme, options: Mapping[str, Any], built: PositionScheme, judged: Judged) -> Verdict:
        """By the best program of the task that is made of what the scheme tells."""
        text, rival = (each and str(each).replace("\n", "; ") for each in (judged.program, judged.rival))
        answer: Answer = "impossible"
        up_to, asked = None, f"tried on instances up to n={self.programs.largest}"
        if judged.rival is not None:
            answer, reasons = "open", [f"{judged.reason} between '{text}' and '{rival}'"]
        elif judged.open:
            answer, reasons = "open", [f"'{text}': {judged.reason}; training decides"]
        elif judged.up_to > self.train_max:
            answer, reasons = "possible", [f"the scheme tells every slot of '{text}', {asked}"]
            if judged.up_to < self.test_max:
                up_to = int(judged.up_to)
                reasons.append(f"beyond n={up_to}, {judged.reason}")
        elif text is None:  # of a task of which nothing is declared, the bounds may just be too narrow
            answer = "open" if self.program is None and self.task.programs is None else "task-limited"
            reasons = [f"{judged.reason}, {asked}"]
        else:
            needed = f"no program was found of what the scheme tells: in '{text}', {judged.reason}"
            reasons = [needed, self.programs.failure(self.at_hand(built)) if self.with_examples else ""]
        more = {"up_to": up_to, "program": text, "rival": rival}
        return self.result(scheme, options, answer, filter(None, reasons), **more)

    @cached_property
    def programs(self) -> Programs:
        return Programs(self.task, self.train_max, self.test_max)

    def at_hand(self, built: PositionScheme) -> AtHand:
        """What the scheme tells on this task."""
        served = partial(self.tells_place, built)
        return self.once("at hand", built, make=lambda: AtHand(built, self.task, self.train_max, self.test_max, served))

    def tells_place(self, built: PositionScheme, place: Place) -> bool:
        """Whether the steps that read a place counted from k or n are served by codes."""
        if not self.task.one_number or self.task.next_sets:
            return False
        steps = reading(self.task, place, few_sizes(self.task, self.train_max, self.trial_max))
        if not len(steps):
            return False
        if built.candidates():
            return Family(built, [steps], self.train_max).possible
        return any(examine(part.relation(), [steps], self.train_max).possible for part in built.parts)

    def doubts(self, built: PositionScheme) -> tuple[Answer, list[str]]:
        """What can come between a scheme and a task whose sources it finds, and why."""
        sizes = self.train_max - self.task.min_scale + 1
        if sizes < (LEAST_SIZES if built.candidates() else LEAST_SIZES - 1):
            return "impossible", [f"training shows {sizes} sizes only, too few to tell one relation from another"]
        if built.beyond != "bounded" and self.new_codes(built):
            answer: Answer = "impossible" if built.beyond == "unbounded" else "open"
            return answer, ["keys at codes that training never met may outweigh the sources"]
        return self.operator_told

    def new_codes(self, built: PositionScheme) -> bool:
        """Whether queries at the largest n see keys at codes that do not occur in training."""

        def codes(n: int) -> set[tuple[int, ...]]:
            length = self.task.longest(n)
            every = built.relation().table(range(length), range(length), n)
            return set(map(tuple, every[np.tril_indices(length)].tolist()))

        largest = min(self.test_max, self.trial_max)
        return not codes(largest) <= set().union(*map(codes, range(self.task.min_scale, self.train_max + 1)))

    @cached_property
    def operator_told(self) -> tuple[Answer, list[str]]:
        """Whether what a step reads tells its operator, too."""
        if not self.task.one_number or len(self.steps_up_to(self.test_max)) == 1:
            return "possible", []
        told = {look: tells_operator(self.task, min(self.trial_max, 2 * self.train_max), look) for look in (0, 1)}
        if told[0]:
            return "possible", []
        reason = "what a step reads does not tell which operator it needs"
        if told[1]:
            return "open", [f"{reason}; training decides between the tokens one place before, which do, and counting"]
        return "impossible", [reason]

    def result(
        self,
        scheme: Scheme,
        options: Mapping[str, Any],
        answer: Answer,
        reasons: Iterable[str],
        *helps: Help,
        **more: Any,
    ) -> Verdict:
        name = scheme if isinstance(scheme, str) else scheme.name
        head = self.task.name, name, dict(options), self.train_max, self.test_max, answer
        return Verdict(*head, tuple(reasons), helps, *self.declared, **more)

    def _task_limited(self, program: Circuits, scheme: Scheme, options: Mapping[str, Any]) -> Verdict:
        built, _ = self.built(scheme, options)
        few, many, last = *self.declared, program.counted_to
        further = "" if last == self.test_max else f", counted no further than n={last}"
        reason = (
            f"the task needs {few} operators up to n={self.train_max} and {many} up to n={last}{further}: "
            "those in between are never trained, whatever the position embedding"
        )
        src = {}
        if built is not None:
            codes = source_codes(built.relation(), program.operators)
            number = counts([each.signature for each in codes], program.operators, self.train_max)
            src = dict(zip(("src_train", "src_test"), number))
        return self.result(scheme, options, "task-limited", [reason], self._other_task, **src)

    @cached_property
    def _other_task(self) -> Help:
        """Whether the same task as a chain of thought is possible."""
        other = f"{self.task.name}-cot"
        possible = other in TASKS and Case(TASKS[other], self.train_max, self.trial_max).tried("ideal", {})
        return Help("chain of thought", "ideal", task=other) if possible else Help("write down")

    # -- codes alone -----------------------------------------------------------------------------------------------

    def built(self, scheme: Scheme, options: Mapping[str, Any]) -> tuple[PositionScheme | None, str]:
        """The scheme for this task; or None, and why it refuses."""
        return self.once("built", scheme, repr(options), make=lambda: scheme_for(self.task, scheme, options))

    def findings(self, scheme: PositionScheme, largest: int) -> tuple[Findings, list[Choice]]:
        """What the definitions say of a scheme, up to some n, and the forms chosen if it is still to be learned."""
        family = self.family(scheme, largest)
        if family is not None:
            return self.once("findings", scheme, largest, make=family.findings)
        relation = self.once("relation", scheme, make=scheme.relation)
        return self.examined(relation, largest).worded(relation), []

    def family(self, scheme: PositionScheme, largest: int) -> Family | None:
        """What it may learn; None if its relation is fixed."""
        about = scheme, self.steps_up_to(largest), self.train_max
        return self.once("family", scheme, largest, make=lambda: Family(*about) if scheme.candidates() else None)

    def examined(self, relation: Relation, largest: int) -> Findings:
        """What the definitions say of a relation, up to some n, once for all relations with the same codes."""
        about = relation, self.steps_up_to(largest), self.train_max
        return self.once("examined", same_as(relation), largest, make=lambda: examine(*about))

    def steps_up_to(self, largest: int) -> list[Steps]:
        """All steps up to some n, by operator; the same objects each time, for they remember what they compute."""
        assert self.program is not None
        every = self.program.operators
        return self.once("steps", largest, make=lambda: [up_to(steps, largest) for steps in every])

    # -- with the help of content, or of training ------------------------------------------------------------------

    def beyond_codes(self, scheme: PositionScheme) -> tuple[Answer, list[str]]:
        """What can be said where the three properties do not hold, and why."""
        if scheme.hinges_on is not None:
            return "open", [f"it depends on {scheme.hinges_on}"]
        parts = scheme.parts
        serving = self.served([part.relation() for part in parts])
        if serving is not None:
            ignored = [part for k, part in enumerate(parts) if any(number != k for number, _ in serving.values())]
            codes = [f"{slot} is found by {words}, helped by content" for slot, (_, words) in serving.items()]
            if all(part.by_formula for part in ignored):
                return "possible", codes
            tables = " and ".join(part.relation_in_words for part in ignored)
            return "open", [
                f"it depends on whether training leaves {tables} without effect where it is not needed",
                *codes,
            ]
        shared = scheme.shared_relation()
        if shared is not None and (
            all(self.examined(shared, largest).possible for largest in self.trials)
            or self.served([shared, *(part.relation() for part in parts)])
        ):
            return "open", [f"it depends on whether training treats pairs with one {shared.words} alike"]
        if scheme.uses_scale and scheme.beyond == "bounded" and not scheme.candidates() and self.in_two_layers(scheme):
            return "open", [
                "training decides: two layers together can read every source, and codes of short inputs, too"
            ]
        return "impossible", []

    def in_two_layers(self, scheme: PositionScheme) -> bool:
        """Whether two layers together find every source, at the sizes of training and some beyond."""
        sizes = few_sizes(self.task, self.train_max, self.trial_max)
        relations = [part.relation() for part in scheme.parts]
        every = (steps[np.isin(steps.scale, sizes)] for steps in self.steps_up_to(self.trial_max))
        slots = (steps.only(slot) for steps in every for slot in range(steps.arity))
        about = self.task, self.train_max
        return self.task.one_number and all(read_in_two_layers(relations, each, *about) for each in slots)

    def served(self, relations: Sequence[Relation]) -> dict[str, tuple[int, str]] | None:
        """For each slot of each operator the first relation of which one code serves it, and that code in words.

        None if no relation serves some slot. Judged up to `trial_max`.
        """
        serving: dict[str, tuple[int, str]] = {}
        for name, steps in self.slots.items():
            for number, relation in enumerate(relations):
                code = self.once("serving", name, same_as(relation), make=partial(serving_code, relation, steps))
                if code is not None:
                    words = f"{relation.words}, {relation.describe(code)}" if code else "being the query"
                    serving[name] = number, words
                    break
            else:
                return None
        return serving

    @cached_property
    def slots(self) -> dict[str, SlotSteps]:
        """The slots of each operator by name, exchangeable ones together: their steps up to `trial_max`."""
        trained = range(self.task.min_scale, self.train_max + 1)
        operators = {name: each for n in trained for name, each in self.task.circuit(n).functions.items()}
        by_name = {}
        for steps in self.steps_up_to(self.trial_max):
            operator = operators[steps.operator]
            for slots in alike_slots(operator, self.task.symbols):
                name = f"slot {' and '.join(map(str, steps.only(*slots).slot_names))} of '{steps.operator}'"
                counting = partial(where_needed, slots=slots, operator=operator, task=self.task)
                by_name[name] = SlotSteps(steps, self.task, self.train_max, counting)
        return by_name

    # -- what would help, by trying --------------------------------------------------------------------------------

    @property
    def trials(self) -> list[int]:
        """Up to which n a relation is tried: most fail just beyond the training range, and are tried no further."""
        return sorted({min(self.trial_max, self.train_max + 2), self.trial_max})

    def tried(self, name: str, options: Mapping[str, Any]) -> bool:
        """Whether a scheme turns out possible, up to `trial_max`."""
        return self.once("tried", name, repr(options), make=lambda: self._is_possible(name, options))

    def _is_possible(self, name: str, options: Mapping[str, Any]) -> bool:
        with suppress(UserError):  # of options that the scheme refuses
            if options and SchemeSpec.of(name, options) == SchemeSpec.of(name):
                return self.tried(name, {})
            built, _ = self.built(name, options)
            if built is None:
                return False
            family = self.family(built, self.trial_max)
            if family is not None:
                return family.possible  # which looks no further than at the first slot that is not served
            return all(self.findings(built, largest)[0].possible for largest in self.trials)
        return False

    def _what_helps(self, scheme: Scheme, options: Mapping[str, Any]) -> list[Help]:
        helps: list[Help] = []
        if isinstance(scheme, str):
            now, hinted = SchemeSpec.of(scheme, options).options, f"hinted:{scheme}"
            helps = [Help("option", scheme, clip, k, now[clip]) for clip, k in self._clips(scheme, options)]
            if hinted in scheme_names() and self.tried(hinted, options):
                helps.append(Help("scale hint", hinted))
            elif hinted in scheme_names():
                helps += [Help("scale hint", hinted, *clip) for clip in self._clips(hinted, options)]
        for name, other in reversed(list(SCHEMES.items())):
            if other.remedy is not None and name != scheme and self.tried(name, {}):
                helps.append(Help("scheme", name, remedy=other.remedy))
        tried_to = self.trial_max if self.trial_max < self.test_max else None
        return [replace(each, tried_to=tried_to) for each in helps or [Help("nothing")]]

    def _clips(self, name: str, options: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
        """Each option that clips, with the first value of `CLIP_TRIALS` that makes the scheme possible, if one does."""
        usual = SchemeSpec.of(name).options
        for clip in (clip for clip in CLIPS if clip in usual):
            helping = (value for value in CLIP_TRIALS if self.tried(name, {**options, clip: value}))
            yield from ((clip, value) for value in islice(helping, 1))


def tells_operator(task: Task, largest: int, look: int) -> bool:
    """Whether the next token is a function of what steps read, on instances of sizes up to `largest`.

    What a step reads: the query's token and its place after a mark, and the tokens and places of its sources. `look`
    adds so many tokens before each of them.
    """
    written: dict[Hashable, str] = {}
    for n in range(task.min_scale, largest + 1):
        words = [task.words(row) for row in task.sample(n, N_INSTANCES, torch.Generator().manual_seed(n)).tokens]
        known = labels(task, n).tolist()
        for step in circuit_of(task, n):
            places = [step.query, *step.sources]
            around = [place - back for place in places for back in range(look + 1) if place >= back]
            for row in words:
                seen = tuple(row[place] for place in around), tuple(known[place] for place in places)
                if written.setdefault(seen, row[step.query + 1]) != row[step.query + 1]:
                    return False
    return True


def same_as(relation: Relation) -> Hashable:
    """Equal for relations that promise the same codes, and so have the same properties."""
    return object() if relation.kind is None else relation.kind


def sentence(name: str, example: Counterexample, task: Task) -> str:
    """A counterexample to a property in words."""
    size = task.scale_in_words
    words = [
        text if len(code) == 1 or str(code) in text else f"{text} (code {code})"
        for code, text in zip(example.codes, example.words)
    ]
    place = [f"n={size(mark.scale)} (position {mark.key} from query {mark.query})" for mark in example.marks]
    slot = [f"slot {' and '.join(map(str, mark.slots))}" for mark in example.marks]
    if name == "covered":
        at = f"at n={size(example.marks[0].scale)}" if example.marks else "beyond the training range"
        if not example.fresh:
            return f"the codes of '{example.operator}' first appear together {at}: {'; '.join(words)}"
        fresh = example.fresh[0]
        return f"{words[fresh]} first appears {at} ({slot[fresh]} of '{example.operator}')"
    one, other = example.marks
    if name == "isolated":
        return (
            f"{words[0]} is at n={size(one.scale)}, query {one.query}, the code of position {one.key} "
            f"({slot[0]} of '{example.operator}') and also of position {other.key} "
            f"({slot[1] if other.slots else 'not to be read'})"
        )
    if not other.slots:
        return f"{words[0]} is read at {place[0]} and must be ignored at {place[1]}"
    return f"{words[0]} is {slot[0]} of '{example.operator}' at {place[0]} and {slot[1]} at {place[1]}"
