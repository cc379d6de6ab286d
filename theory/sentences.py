"""Counterexamples in words: "distance 5 is read at n=5 and must be ignored at n=6"."""

from lengthlens.theory.ledger import Counterexample, Mark
from lengthlens.theory.roles import Choice


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
