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
its forms together single it out (`probes/balance.py`).

>>> print(verdict("parity-cot", "relative", 10, 40).stable.counterexample)
distance 2 is read at n=2 (position 1 from query 3) and must be ignored at n=1 (position 0 from query 2)
>>> verdict("parity-cot", "hinted:relative", 10, 40, {"max_distance": 3}).verdict
'possible'
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from functools import cached_property
from typing import Any, Literal, TypeAlias

from lengthlens.errors import UserError, unknown
from lengthlens.models.schemes import PositionScheme, Sizes, make_scheme, scheme_kind, scheme_names
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.tasks import TASKS, Task
from lengthlens.tasks.complexity import src_curve
from lengthlens.theory.balance import pointers_of
from lengthlens.theory.candidates import family_of, relation_of
from lengthlens.theory.ledger import Counterexample, Findings
from lengthlens.theory.program import Program, program_of, up_to
from lengthlens.theory.roles import Choice, examine, examine_family, sources_only
from lengthlens.theory.sentences import choice_in_words, sentence

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
class Verdict:
    """What can be said of a task and a scheme before training. `src_…` are None where there are no codes to count."""

    task: str
    scheme: str
    scheme_options: Mapping[str, Any]
    train_max: int
    test_max: int
    verdict: Answer
    reasons: tuple[str, ...]
    helps: tuple[str, ...]
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
        plain.update(reasons=list(self.reasons), helps=list(self.helps), scheme_options=dict(self.scheme_options))
        return plain

    @property
    def failing(self) -> str:
        """The initials of the properties that do not hold: "SC" for neither stable nor covered."""
        found = ((name, getattr(self, name)) for name in PROPERTIES)
        return "".join(name[0].upper() for name, own in found if own is not None and not own.holds)

    def __str__(self) -> str:
        head = f"{self.task} with {self.scheme}, trained to {self.train_max}, tested to {self.test_max}: {self.verdict}"
        return "\n".join([head, *(f"  {line}" for line in (*self.reasons, *self.helps))])


def verdict(
    task: str | Task,
    scheme: Scheme,
    train_max: int,
    test_max: int,
    scheme_options: Mapping[str, Any] | None = None,
    helps: bool = True,
) -> Verdict:
    """Whether the scheme can carry the task from scales up to `train_max` to scales up to `test_max`, and why not.

    `task` and `scheme` are names, or a task and a scheme (class or object) of your own. Without `helps`, nothing
    else is tried to see what would help.
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
        built, refusal = built_for(self.task, scheme, options)
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
        helps: Iterable[str],
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
        family = family_of(scheme)
        if family:
            assert isinstance(scheme, LearnedRelation)
            return examine_family(family, pointers_of(scheme), operators, self.train_max)
        return examine(relation_of(scheme, self.task, largest), operators, self.train_max), []

    def findings_of(self, name: str, options: Mapping[str, Any], largest: int) -> tuple[Findings, list[Choice]] | None:
        """The same for a scheme by name, once; None if it refuses the task or the options."""
        key = name, tuple(sorted(options.items())), largest
        if key not in self._known:
            try:
                self._known[key] = self.findings(make_scheme(name, options, self.task), largest)
            except UserError:
                self._known[key] = None
        return self._known[key]

    def _content_addressed(self, scheme: Scheme, options: Mapping[str, Any]) -> Verdict:
        reasons = [
            f"the sources of '{self.task.name}' follow from its tokens, so no relation of positions can point at them"
        ]
        helps = ["whether content finds them is for a trained model to show: measure SRC on a run"]
        return self.result(scheme, options, "content-addressed", reasons, helps)

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
            relation = relation_of(built, self.task, self.test_max)
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

    def _what_helps(self, scheme: Scheme, options: Mapping[str, Any]) -> list[str]:
        tried = f" (tried up to n={self.trial_scale})" if self.trial_scale < self.test_max else ""
        found = []
        if isinstance(scheme, str):
            found = [*self._other_options(scheme, options), *self._scale_hint(scheme, options)]
        for name, words in (("lbpe", "learning the relation"), ("ideal", "the ideal relation")):
            if name != scheme and self.tried(name, {}):
                found.append(f"with {words} ('{name}') it becomes possible")
        return [line + tried for line in found] or [f"nothing that was tried makes it possible{tried}"]

    def _other_options(self, name: str, options: Mapping[str, Any]) -> Iterator[str]:
        known = scheme_kind(name).options
        for clip in (clip for clip in CLIPS if clip in known):
            value = self._clip_that_helps(name, options, clip)
            if value is not None:
                now = options.get(clip, known[clip])
                yield f"with {clip} {value} instead of {now} it becomes possible"

    def _scale_hint(self, name: str, options: Mapping[str, Any]) -> Iterator[str]:
        hinted = f"hinted:{name}"
        if hinted not in scheme_names():
            return
        if self.tried(hinted, options):
            yield f"with Scale Hint ('{hinted}') it becomes possible"
            return
        for clip in (clip for clip in CLIPS if clip in scheme_kind(hinted).options):
            value = self._clip_that_helps(hinted, options, clip)
            if value is not None:
                yield f"with Scale Hint ('{hinted}') and {clip} {value} it becomes possible"

    def _clip_that_helps(self, name: str, options: Mapping[str, Any], clip: str) -> int | None:
        trials = (value for value in CLIP_TRIALS if self.tried(name, {**options, clip: value}))
        return next(trials, None)

    @cached_property
    def _other_task(self) -> list[str]:
        """Whether the same task as a chain of thought is possible."""
        other = f"{self.task.name}-cot"
        if other in TASKS and Case(TASKS[other], self.train_max, self.test_max).tried("ideal", {}):
            return [f"as a chain of thought (task '{other}') it becomes possible with the ideal relation"]
        return ["no position embedding helps: the intermediate results have to be written down"]


# -- schemes ----------------------------------------------------------------------------------------------------


def built_for(task: Task, scheme: Scheme, options: Mapping[str, Any]) -> tuple[PositionScheme | None, str]:
    """The scheme for a task; or None and the reason, if the request is sound and the scheme refuses this task."""
    if isinstance(scheme, PositionScheme):
        if options:
            raise UserError(f"scheme '{scheme.name}' was given as an object, which has its options already")
        return scheme, ""
    try:
        return build(scheme, options, task), ""
    except UserError as refusal:
        build(scheme, options, TASKS["copy"])  # a wrong name or option is wrong for any task
        return None, str(refusal)


def build(scheme: str | type[PositionScheme], options: Mapping[str, Any], task: Task) -> PositionScheme:
    if isinstance(scheme, str):
        return make_scheme(scheme, options, task)
    known = [field.name for field in fields_of(scheme.Options)]
    for name in options:
        if name not in known:
            raise unknown(f"option of scheme '{scheme.name}'", name, known)
    return scheme(Sizes(), scheme.Options(**options), task)


# -- words ------------------------------------------------------------------------------------------------------


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
