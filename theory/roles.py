"""Which codes a position relation gives to the keys that a circuit reads, and whether they can be told apart.

Everything here is exhaustive and exact up to the largest scale: every step of the circuit, every key that its query
sees. What makes a scale of a thousand quick: codes are compared by a hash (a hit is confirmed on the codes
themselves), a relation that does not look at the scale is evaluated once for all scales, one that gives a single
code to all but a few listed pairs is evaluated on those, and a property that has its counterexample is not looked at
any further.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lengthlens.models.codes import Ints, numbered
from lengthlens.theory.balance import Pointer, balance
from lengthlens.theory.ledger import Counterexample, Findings, Ledger, source_codes
from lengthlens.theory.other_keys import Relation, examine_listed, examine_rows
from lengthlens.theory.program import Steps, up_to


def ledgers_of(relation: Relation, operators: Sequence[Steps]) -> list[Ledger]:
    return [Ledger(steps, codes) for steps, codes in zip(operators, source_codes(relation.phi, operators))]


def examine(relation: Relation, operators: Sequence[Steps], train_max: int) -> Findings:
    """Everything that the definitions ask about a relation, with a counterexample for what does not hold."""
    ledgers = ledgers_of(relation, operators)
    covered = first_of(ledger.uncovered(train_max) for ledger in ledgers)
    isolated = first_of(ledger.sources_alike() for ledger in ledgers)
    stable = first_of(ledger.sources_swapped() for ledger in ledgers)
    if any(ledger.steps.arity for ledger in ledgers):
        sparse = relation.listed is not None and not any(
            (ledger.codes == np.array(relation.background)).all(1).any() for ledger in ledgers
        )
        look = examine_listed if sparse else examine_rows
        isolated, stable = look(relation, ledgers, isolated, stable)
    isolated, stable, covered = (worded(example, relation) for example in (isolated, stable, covered))
    train, test = counts([ledger.signature for ledger in ledgers], operators, train_max)
    return Findings(isolated, stable, covered, train, test)


def worded(example: Counterexample | None, relation: Relation) -> Counterexample | None:
    if example is None:
        return None
    return replace(example, words=tuple(map(relation.describe, example.codes)), component=relation.component)


def counts(signatures: Sequence[Ints], operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of distinct signatures up to `train_max`, and of all."""
    train = [len(np.unique(own[steps.scale <= train_max])) for own, steps in zip(signatures, operators)]
    return sum(train), sum(len(np.unique(own)) for own in signatures)


def sources_only(relation: Relation, operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of signatures up to `train_max`, and of all, without a look at any other key."""
    return counts([ledger.signature for ledger in ledgers_of(relation, operators)], operators, train_max)


# -- a relation that is still to be learned ---------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What serves one slot of one operator best: a relation out of a family of them, or several pointers together."""

    operator: str
    slot: int
    name: str
    findings: Findings


def examine_family(
    family: Mapping[str, Relation], heads: Sequence[Sequence[Pointer]], operators: Sequence[Steps], train_max: int
) -> tuple[Findings, list[Choice]]:
    """What the best choice within a family of relations makes of a program, slot by slot.

    A slot is served if its source is isolated, stable and covered under one relation (a head can go by that relation
    alone), or if weights on the pointers of one of the `heads` single it out. Findings are those of the first slot that
    nothing serves.
    """
    choices, signatures = [], []
    for steps in operators:
        codes = [np.zeros(len(steps), dtype=np.int64)]
        for slot in range(steps.arity):
            best, signature = chosen_for(family, heads, steps.only(slot), train_max)
            choices.append(best)
            codes.append(signature)
        signatures.append(numbered(np.stack(codes, 1))[1])
    unserved = [choice.findings for choice in choices if not choice.findings.possible]
    worst = unserved[0] if unserved else Findings(None, None, None, 0, 0)
    train, test = counts(signatures, operators, train_max)
    return replace(worst, src_train=train, src_test=test), choices


def chosen_for(
    family: Mapping[str, Relation], heads: Sequence[Sequence[Pointer]], steps: Steps, train_max: int
) -> tuple[Choice, Ints]:
    """What serves the one slot of these steps, and the signature of each step under it."""
    best = best_of(family, steps, train_max)
    tried = (balance(pointers, steps, train_max) for pointers in heads)
    together = None if best.findings.possible else next((found for found in tried if found), None)
    if together is None:
        return best, ledgers_of(family[best.name], [steps])[0].signature
    train, test = counts([together.signature], [steps], train_max)
    served = Findings(None, None, None, train, test)
    return replace(best, name=str(together), findings=served), together.signature


def best_of(family: Mapping[str, Relation], steps: Steps, train_max: int) -> Choice:
    """The first relation that serves a slot, or else the one that comes nearest; small scales decide on most."""
    few = up_to(steps, 2 * train_max)
    tried = {name: examine(relation, [few], train_max) for name, relation in family.items()}
    for name, findings in tried.items():
        if findings.possible:
            full = examine(family[name], [steps], train_max)
            tried[name] = full
            if full.possible:
                break
    name = min(tried, key=lambda name: tried[name].failures)
    return Choice(steps.operator, steps.slot_names[0], name, tried[name])


def first_of(found: Iterator[Counterexample | None]) -> Counterexample | None:
    return next((one for one in found if one is not None), None)
