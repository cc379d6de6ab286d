"""The verdict before any training: can this position embedding make this task generalize to longer inputs?

The paper conjectures that length generalization is possible exactly when the Sequential Representation Complexity
(SRC) of the task does not grow with the scale, and calls a position embedding's part in it the sharing of learned
computation among position pairs. What follows are this project's operational definitions, decided exhaustively up to
the largest scale; nothing is measured here.

A task declares a circuit: at scale n, the answer token behind query i is written by a step, an operator applied to the
tokens at its sources, one for each slot. A position embedding has a relation φ(i, j; n), and pairs with the same
code are treated alike. The signature of a step is its operator and the codes of its sources.

- Declared SRC is the number of operators used up to a scale; SRC under φ the number of signatures.
- *isolated*: at every step each source is the only key with its code.
- *stable*: a code that marks a source at one step does not, at any other step of the same operator, mark a key that
  fills other slots, or none. (A key may fill several slots; then it must fill the same ones wherever its code occurs.)
- *covered*: every signature up to `test_max` already occurs up to `train_max`.

The verdict is ``task-limited`` if declared SRC grows from `train_max` to `test_max`, so that no position embedding can
help; ``content-addressed`` if the sources follow from the tokens rather than from positions, which is beyond these
definitions; ``pe-limited`` if some property fails; else ``possible``.

Three things to bear in mind. The definitions do not look at tokens: an instability counts even where the key marked
wrongly happens to hold a token that makes no difference (``duplicate`` read from the first copy of its string). They
judge the circuit that is declared; another circuit for the same task may suit a position embedding better. And
possible means that positions do not stand in the way, not that training will get there.

A relation that is itself learned (`lbpe` before training) is judged by the best choice within its family: possible if
for each slot of each operator some one of its forms makes the source isolated, stable and covered, or if several of
its forms together single it out (`theory/properties.py`).

>>> print(verdict("parity-cot", "relative", 10, 40).stable.counterexample)
distance 2 is read at n=2 (position 1 from query 3) and must be ignored at n=1 (position 0 from query 2)
>>> verdict("parity-cot", "hinted:relative", 10, 40, {"max_distance": 3}).verdict
'possible'
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from lengthlens.errors import UserError
from lengthlens.models.schemes import SCHEMES, PositionScheme, Relation, SchemeSpec, scheme_names
from lengthlens.models.schemes.spec import scheme_for
from lengthlens.tasks import TASKS, Task
from lengthlens.tasks.complexity import src_curve
from lengthlens.theory.properties import Choice, Findings, examine, examine_family, sources_only
from lengthlens.theory.steps import Counterexample, Mark, Program, program_of, up_to

Answer: TypeAlias = Literal["possible", "pe-limited", "task-limited", "content-addressed", "refused"]
Scheme: TypeAlias = str | PositionScheme | type[PositionScheme]
CLIPS = ("max_distance", "window")  # options beyond which a scheme treats all pairs alike
CLIP_TRIALS = (4, 3, 2, 1, 8)
TRIAL_SCALE = 64  # what would help is tried up to here, or twice the training range
PROPERTIES = ("isolated", "stable", "covered")


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
    tried_to: int | None = None  # the largest scale of the trial, where that is not the one asked for

    def __str__(self) -> str:
        tried = "" if self.tried_to is None else f" (tried up to n={self.tried_to})"
        return self._sentence() + tried

    def _sentence(self) -> str:
        match self.kind:
            case "option":
                return f"with {self.option} {self.value} instead of {self.instead_of} it becomes possible"
            case "scale hint":
                clip = "" if self.option is None else f" and {self.option} {self.value}"
                return f"with Scale Hint ('{self.scheme}'){clip} it becomes possible"
            case "scheme":
                return f"with {self.remedy} ('{self.scheme}') it becomes possible"
            case "chain of thought":
                return f"as a chain of thought (task '{self.task}') it becomes possible with the ideal relation"
            case "nothing":
                return "nothing that was tried makes it possible"
            case "write down":
                return "no position embedding helps: the intermediate results have to be written down"
            case "measure":
                return "whether content finds them is for a trained model to show: measure SRC on a run"


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
    src_declared_train: int
    src_declared_test: int
    src_train: int | None
    src_test: int | None
    isolated: Property | None = None
    stable: Property | None = None
    covered: Property | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = asdict(self)
        for name in PROPERTIES:
            found = getattr(self, name)
            plain[name] = None if found is None else {"holds": found.holds, "counterexample": found.counterexample}
        plain.update(
            reasons=list(self.reasons), helps=list(map(str, self.helps)), scheme_options=dict(self.scheme_options)
        )
        return plain

    @property
    def failing(self) -> str:
        """The initials of the properties that do not hold: "SC" for neither stable nor covered."""
        found = ((name, getattr(self, name)) for name in PROPERTIES)
        return "".join(name[0].upper() for name, own in found if own is not None and not own.holds)

    def __str__(self) -> str:
        head = f"{self.task} with {self.scheme}, trained to {self.train_max}, tested to {self.test_max}: {self.verdict}"
        return "\n".join([head, *(f"  {line}" for line in (*self.reasons, *map(str, self.helps)))])


def verdict(
    task: str | Task,
    scheme: Scheme,
    train_max: int,
    test_max: int,
    scheme_options: Mapping[str, Any] | None = None,
    helps: bool = True,
) -> Verdict:
    """Whether the scheme can carry the task from scales up to `train_max` to scales up to `test_max`, and why not.

    Arguments:
        task, scheme: names, or a task and a scheme (class or object) of your own.
        train_max, test_max: the largest scale of training, and the largest that is to be right.
        scheme_options: by name; the scheme's own defaults otherwise.
        helps: without it, nothing else is tried to see what would help.

    Returns a `Verdict`: its `verdict` in one word, `reasons`, `helps`, and the three properties, each with a
    counterexample where it fails; ``str`` of it is a paragraph. Raises `UserError` for a name, an option or a range
    that does not exist, and where the scheme refuses the task.

    >>> found = verdict("copy", "relative", train_max=10, test_max=40)
    >>> found.verdict, found.failing, str(found.helps[0])
    ('pe-limited', 'SC', "with Scale Hint ('hinted:relative') and max_distance 4 it becomes possible")
    """
    task = TASKS[task] if isinstance(task, str) else task
    checked_range(task, train_max, test_max)
    return Case(task, train_max, test_max).verdict(scheme, scheme_options or {}, helps)


def checked_range(task: Task, train_max: int, test_max: int) -> None:
    if test_max < train_max:
        raise UserError(f"test_max {test_max} is below train_max {train_max}: it must be at least as large")
    task.checked_scale(train_max)
    task.checked_scale(test_max)


class RefusedError(UserError):
    """The scheme cannot be built for the task."""


class Case:
    """One task and range of scales, for any number of schemes: what does not depend on the scheme is done once."""

    def __init__(self, task: Task, train_max: int, test_max: int) -> None:
        self.task, self.train_max, self.test_max = task, train_max, test_max
        self.program: Program | None = None
        self._known: dict[Hashable, tuple[Findings, list[Choice]] | None] = {}
        if task.family == "content-addressed":
            curve = src_curve(task, min(test_max, max(train_max, TRIAL_SCALE)))
            self.declared = curve[train_max - task.min_scale], curve[-1]
        else:
            self.program = program_of(task, train_max, test_max)
            self.declared = self.program.declared_train, self.program.declared_test

    def verdict(self, scheme: Scheme, options: Mapping[str, Any], helps: bool = True) -> Verdict:
        built, refusal = scheme_for(self.task, scheme, options)
        if self.program is None:
            return self._content_addressed(scheme, options)
        if self.program.grows:
            return self._task_limited(scheme, options, built)
        if built is None:
            raise RefusedError(refusal)
        known = self.findings_of(scheme, options, self.test_max) if isinstance(scheme, str) else None
        found, choices = known or self.findings(built, self.test_max)
        answer: Answer = "possible" if found.possible else "pe-limited"
        reasons = [*reasons_for(found, self.train_max, self.test_max), *map(choice_in_words, served(choices))]
        found_to_help = self._what_helps(scheme, options) if helps and not found.possible else []
        properties = [property_of(name, getattr(found, name)) for name in PROPERTIES]
        src = found.src_train, found.src_test
        return self.result(scheme, options, answer, reasons, found_to_help, src, *properties)

    def result(
        self,
        scheme: Scheme,
        options: Mapping[str, Any],
        answer: Answer,
        reasons: Iterable[str],
        helps: Iterable[Help],
        src: tuple[int | None, int | None] = (None, None),
        *properties: Property,
    ) -> Verdict:
        name = scheme if isinstance(scheme, str) else scheme.name
        head = self.task.name, name, dict(options), self.train_max, self.test_max, answer
        return Verdict(*head, tuple(reasons), tuple(helps), *self.declared, *src, *properties)

    def findings(self, scheme: PositionScheme, largest: int) -> tuple[Findings, list[Choice]]:
        """What the definitions say of a scheme, up to a scale, and the forms chosen if it is still to be learned."""
        assert self.program is not None
        operators = tuple(up_to(steps, largest) for steps in self.program.operators)
        candidates = scheme.candidates()
        if candidates:
            return examine_family(candidates, scheme.pointers(), operators, self.train_max)
        return examine(relation_for(scheme, self.task, largest), operators, self.train_max), []

    def findings_of(self, name: str, options: Mapping[str, Any], largest: int) -> tuple[Findings, list[Choice]] | None:
        """The same for a scheme by name, once; None if it refuses the task or the options."""
        try:
            spec = SchemeSpec.of(name, options)
        except UserError:
            return None
        key = spec, largest
        if key not in self._known:
            try:
                self._known[key] = self.findings(spec.build(self.task), largest)
            except UserError:
                self._known[key] = None
        return self._known[key]

    def _content_addressed(self, scheme: Scheme, options: Mapping[str, Any]) -> Verdict:
        reasons = [
            f"the sources of '{self.task.name}' follow from its tokens, so no relation of positions can point at them"
        ]
        return self.result(scheme, options, "content-addressed", reasons, [Help("measure")])

    def _task_limited(self, scheme: Scheme, options: Mapping[str, Any], built: PositionScheme | None) -> Verdict:
        assert self.program is not None
        few, many, last = *self.declared, self.program.counted_to
        further = "" if last == self.test_max else f", counted no further than n={last}"
        reasons = [
            f"the task needs {few} operators up to n={self.train_max} and {many} up to n={last}{further}: "
            "those in between are never trained, whatever the position embedding"
        ]
        src: tuple[int | None, int | None] = (None, None)
        if built is not None:
            relation = relation_for(built, self.task, self.test_max)
            src = sources_only(relation, self.program.operators, self.train_max)
        return self.result(scheme, options, "task-limited", reasons, self._other_task, src)

    # -- what would help, found by trying ---------------------------------------------------------------------

    @property
    def trial_scale(self) -> int:
        return min(self.test_max, max(TRIAL_SCALE, 2 * self.train_max))

    def tried(self, name: str, options: Mapping[str, Any]) -> bool:
        """Whether a scheme turns out possible, up to the scale of trials."""
        found = self.findings_of(name, options, self.trial_scale)
        return found is not None and found[0].possible

    def _what_helps(self, scheme: Scheme, options: Mapping[str, Any]) -> list[Help]:
        found: list[Help] = []
        if isinstance(scheme, str):
            found = [*self._other_options(scheme, options), *self._scale_hint(scheme, options)]
        for name, other in reversed(list(SCHEMES.items())):
            if other.remedy is not None and name != scheme and self.tried(name, {}):
                found.append(Help("scheme", name, remedy=other.remedy))
        tried_to = self.trial_scale if self.trial_scale < self.test_max else None
        return [replace(each, tried_to=tried_to) for each in found or [Help("nothing")]]

    def _other_options(self, name: str, options: Mapping[str, Any]) -> Iterator[Help]:
        now = SchemeSpec.of(name, options).options
        for clip in (clip for clip in CLIPS if clip in now):
            value = self._clip_that_helps(name, options, clip)
            if value is not None:
                yield Help("option", name, clip, value, instead_of=now[clip])

    def _scale_hint(self, name: str, options: Mapping[str, Any]) -> Iterator[Help]:
        hinted = f"hinted:{name}"
        if hinted not in scheme_names():
            return
        if self.tried(hinted, options):
            yield Help("scale hint", hinted)
            return
        for clip in (clip for clip in CLIPS if clip in SchemeSpec.of(hinted).options):
            value = self._clip_that_helps(hinted, options, clip)
            if value is not None:
                yield Help("scale hint", hinted, clip, value)

    def _clip_that_helps(self, name: str, options: Mapping[str, Any], clip: str) -> int | None:
        trials = (value for value in CLIP_TRIALS if self.tried(name, {**options, clip: value}))
        return next(trials, None)

    @cached_property
    def _other_task(self) -> list[Help]:
        """Whether the same task as a chain of thought is possible."""
        other = f"{self.task.name}-cot"
        if other in TASKS and Case(TASKS[other], self.train_max, self.test_max).tried("ideal", {}):
            return [Help("chain of thought", "ideal", task=other)]
        return [Help("write down")]


def relation_for(scheme: PositionScheme, task: Task, largest: int) -> Relation:
    """The scheme's relation, with whether codes depend on the scale: if the scheme says so, or a few scales show it."""
    relation = scheme.relation()
    if relation.uses_scale:
        return relation
    position = np.arange(min(task.length(largest), 32))
    scales = sorted({task.min_scale, min(task.min_scale + 1, largest), (task.min_scale + largest) // 2, largest})
    found = [relation.codes(position[:, None], position, n) for n in scales]
    return replace(relation, uses_scale=any(not np.array_equal(found[0], other) for other in found[1:]))


# -- words -----------------------------------------------------------------------------------------------------------


def reasons_for(found: Findings, train_max: int, test_max: int) -> list[str]:
    if found.possible:
        many = "one signature serves" if found.src_test == 1 else f"{found.src_test} signatures serve"
        return [f"{many} every step up to n={test_max}, and all of it occurs up to n={train_max}"]
    failing = [(name, getattr(found, name)) for name in PROPERTIES]
    return [f"not {name}: {sentence(name, example)}" for name, example in failing if example is not None]


def property_of(name: str, example: Counterexample | None) -> Property:
    return Property(True) if example is None else Property(False, sentence(name, example), example)


def served(choices: Sequence[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice.findings.possible]


def sentence(name: str, example: Counterexample) -> str:
    """A counterexample in words."""
    return {"isolated": alike, "stable": unstable, "covered": uncovered}[name](example)


def code_in_words(example: Counterexample, which: int = 0) -> str:
    code, words = example.codes[which], example.words[which]
    return words if len(code) == 1 or str(code) in words else f"{words} (code {code})"


def alike(example: Counterexample) -> str:
    one, other = example.marks
    rest = f"slot {slots(other)}" if other.slots else "not to be read"
    return (
        f"{code_in_words(example)} is at n={one.scale}, query {one.query}, the code of position {one.key} "
        f"(slot {slots(one)} of '{example.operator}') and also of position {other.key} ({rest})"
    )


def unstable(example: Counterexample) -> str:
    one, other = example.marks
    if not other.slots:
        return f"{code_in_words(example)} is read at {place(one)} and must be ignored at {place(other)}"
    return (
        f"{code_in_words(example)} is slot {slots(one)} of '{example.operator}' at {place(one)} "
        f"and slot {slots(other)} at {place(other)}"
    )


def uncovered(example: Counterexample) -> str:
    at = f"at n={example.marks[0].scale}" if example.marks else "beyond the training range"
    if example.fresh:
        which = example.fresh[0]
        slot = f"slot {slots(example.marks[which])} of '{example.operator}'"
        return f"{code_in_words(example, which)} first appears {at} ({slot})"
    known = "; ".join(code_in_words(example, k) for k in range(len(example.codes)))
    return f"the codes of '{example.operator}' first appear together {at}: {known}"


def place(mark: Mark) -> str:
    return f"n={mark.scale} (position {mark.key} from query {mark.query})"


def slots(mark: Mark) -> str:
    return " and ".join(map(str, mark.slots))


def choice_in_words(choice: Choice) -> str:
    return f"slot {choice.slot} of '{choice.operator}' can be read by {choice.name}"
