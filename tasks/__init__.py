"""What is to be computed: tasks on which length generalization is studied, and their sequential complexity.

`TASKS` maps names to tasks. A task is a `Task`: it draws instances of any size n (`sample`), gives the answer
(`answer`) and the circuit that computes it (`circuit`), and translates between tokens and text (`parse`, `render`). For
an unknown name it raises a `UserError` with the nearest name. A task of your own is one class; `lengthlens.register`
makes it, or an object of it such as `ShiftByTwo(by=2)` here, known everywhere:

>>> list(TASKS["copy"].circuit(2))[0].sources
(1,)
>>> from lengthlens.tasks.copying import Shift
>>> class ShiftByTwo(Shift):
...     name = "shift-by-two"
>>> ShiftByTwo(by=2).render(ShiftByTwo(by=2).parse("^ 7 3 5 =").tokens[0])
'^ 7 3 5 = 5 7 3 $'
"""

from lengthlens.tasks.arithmetic import (
    Addition,
    AdditionMsb,
    ModularSum,
    ModularSumCoT,
    Multiplication,
    MultiplicationByDigit,
    Parity,
    ParityCoT,
)
from lengthlens.tasks.circuit import Circuit, Operator
from lengthlens.tasks.complexity import search_src, src_curve, src_declared, src_searched
from lengthlens.tasks.copying import Copy, Duplicate, NBack, RepeatCopy, Reverse, Shift
from lengthlens.tasks.distinct import CountUp, UniqueBigramCopy, UniqueCopy, UniqueReverse
from lengthlens.tasks.fields import BinaryAddition, CopyField, RunningAddition, UnpaddedAddition, UnpaddedMultiplication
from lengthlens.tasks.formats import Tasks
from lengthlens.tasks.in_context import AffineHidden, AffineShown, MarkovChain
from lengthlens.tasks.languages import LANGUAGES
from lengthlens.tasks.recall import AssociativeRecall, FlipFlop, KeyValueRetrieval, MultiQueryRecall
from lengthlens.tasks.retrieval import (
    AntiInduction,
    Count,
    Induction,
    LeftNeighbour,
    Majority,
    Mode,
    RightNeighbour,
    Sort,
    SortPublished,
)
from lengthlens.tasks.task import Batch, Task
from lengthlens.tasks.votes import BinaryMajority, BinaryMajorityInterleave, BinaryParity, LetterMajority

_POSITION_ADDRESSED: tuple[Task, ...] = (
    *(Copy(), Reverse(), Shift(), Duplicate()),
    *(ParityCoT(), ModularSumCoT(), Addition(), MultiplicationByDigit()),
)
_GROWING: tuple[Task, ...] = (
    *(Parity(), ModularSum(), AdditionMsb(), Multiplication()),
    *(UnpaddedMultiplication(), BinaryParity()),
)
_CONTENT_ADDRESSED: tuple[Task, ...] = (
    *(Sort(), Count(), Majority(), Mode(), Induction(), AntiInduction()),
    *(UniqueCopy(), UniqueReverse(), UniqueBigramCopy(), CountUp(), SortPublished(), RightNeighbour(), LeftNeighbour()),
    *(BinaryMajority(), BinaryMajorityInterleave(), LetterMajority(), BinaryAddition()),
    *(FlipFlop(), AssociativeRecall(), MultiQueryRecall(), KeyValueRetrieval()),
    *(AffineShown(), AffineHidden(), MarkovChain(), *LANGUAGES),
)
_MORE_POSITIONS: tuple[Task, ...] = (UnpaddedAddition(), RunningAddition(), CopyField(), RepeatCopy(), NBack())
_TASKS = (*_POSITION_ADDRESSED, *_GROWING, *_CONTENT_ADDRESSED, *_MORE_POSITIONS)
TASKS = Tasks("task", {task.name: task for task in _TASKS})

__all__ = ["TASKS", "Batch", "Circuit", "Operator", "Task", "search_src", "src_curve", "src_declared", "src_searched"]
