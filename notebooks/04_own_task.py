"""
4. A task of your own
=====================

One class makes a task: how an answer follows from its input, and which tokens each answer token is made from.
"""

# %%
# The class
# ---------
# Each digit of the answer is the sum of two neighbours, modulo 10. Positions count from ``^``, which is 0: the
# digits are at 1 … n, ``=`` is at n + 1, and the step at query i writes token i + 1.
import numpy as np
import torch

import lengthlens as ll
from lengthlens.tasks import Circuit, Operator, Task

# sphinx_gallery_thumbnail_path = "docs/images/circuit-parity-cot.svg"


@ll.register
class Neighbours(Task):
    """The sum of each digit and the one after it, modulo 10; the last digit as it is. ``^ 4 9 3 = 3 2 3 $``."""

    name, family, summary = "neighbours", "position-addressed", "each digit plus the next, modulo 10"
    symbols = tuple("0123456789")

    def answer(self, inputs, scale):  # ids of the digits [row, n] in, ids of the answer [row, n] out
        after = torch.cat([inputs[:, 1:], torch.zeros_like(inputs[:, :1])], dim=1)
        return (inputs + after) % 10

    def circuit(self, scale, tokens=None):
        def add(digit, following):  # its arguments name its slots
            if digit == "=":
                return "$"
            return str((int(digit) + (0 if following in "=^" else int(following))) % 10)

        k = np.arange(1, scale + 2)
        return Circuit.of(Operator("add", 2, add), scale + k, k, np.minimum(k + 1, scale + 1))


print(ll.check("neighbours")[0])

# %%
# How hard is it?
# ---------------
# One operator does at every n, so the task itself stands in no way. Which schemes can do it?
for scheme in ("lbpe", "ideal", "rope", "learned"):
    print(f"{scheme:8s}", ll.verdict("neighbours", scheme, train_max=5, test_max=20).verdict)

# %%
# Train it
# --------
config = ll.RunConfig(task="neighbours", scheme="ideal", train_max=3, steps=250, d_model=32, n_heads=2, check_every=50)
trained = ll.train(config)
print(trained.status)
print(trained.model.predict("^ 4 9 3 ="), "should be 3 2 3 $")

# %%
# Which operator writes what
# --------------------------
from lengthlens.tasks.task import step_rows

for row in step_rows(ll.TASKS["neighbours"], "^ 4 9 3 ="):
    print(row)
