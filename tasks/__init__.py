"""What is to be computed: tasks on which length generalization is studied, and their sequential complexity."""

from lengthlens.errors import Registry
from lengthlens.tasks.arithmetic import Addition, AdditionMsb, Multiplication, MultiplicationByDigit
from lengthlens.tasks.circuit import Circuit, Operator, Step
from lengthlens.tasks.complexity import search_src, src_curve, src_declared, src_searched
from lengthlens.tasks.copying import Copy, Duplicate, Reverse, Shift
from lengthlens.tasks.counting import ModularSum, ModularSumCoT, Parity, ParityCoT
from lengthlens.tasks.retrieval import AntiInduction, Count, Induction, Majority, Mode, Sort
from lengthlens.tasks.task import Batch, Task

TASKS: Registry[Task] = Registry(
    "task",
    {
        task.name: task
        for task in (
            Copy(),
            Reverse(),
            Shift(),
            Duplicate(),
            ParityCoT(),
            ModularSumCoT(),
            Addition(),
            MultiplicationByDigit(),
            Parity(),
            ModularSum(),
            AdditionMsb(),
            Multiplication(),
            Sort(),
            Count(),
            Majority(),
            Mode(),
            Induction(),
            AntiInduction(),
        )
    },
)

__all__ = [
    "TASKS",
    "Batch",
    "Circuit",
    "Operator",
    "Step",
    "Task",
    "search_src",
    "src_curve",
    "src_declared",
    "src_searched",
]
