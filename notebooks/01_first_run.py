"""
1. A first run
==============

A small Transformer learns to copy strings of up to 4 digits. Does it copy longer ones? This notebook trains it,
scores it and looks at its answers.
"""

# %%
# A task
# ------
# A task makes instances of any size. The size is called the *scale* n; for ``copy`` it is the number of digits.
# ``^`` begins an instance, ``=`` ends its prompt, ``$`` ends its answer.
import torch

import lengthlens as ll

# sphinx_gallery_thumbnail_path = "figures/study/extrapolation.png"

task = ll.TASKS["copy"]
batch = task.sample(5, batch=3, generator=torch.Generator().manual_seed(0))
for row in batch.tokens:
    print(task.render(row))

# %%
# Every token of an answer is written by a *step*: an operator that reads some earlier tokens. Copying takes one
# operator, which reads the token n places back. At the last step that is ``=``, for which it writes ``$``.
for step in task.circuit(3):
    print(step)

# %%
# A run
# -----
# A run is a task, a position embedding (here called a *scheme*), a recipe and a seed. ``lbpe`` learns by itself
# which positions belong together.
scheme = "lbpe/forms=nine/other=each"  # from nine forms it takes fewer steps than from all, which is the default
config = ll.RunConfig(task="copy", scheme=scheme, train_max=4, steps=250, d_model=32, n_heads=2, check_every=50)
trained = ll.train(config)
print(trained.status)

# %%
# Beyond the training range
# -------------------------
# *Exact match* is the share of instances whose whole answer is right. Training saw n up to 4.
scores = ll.exact_match(trained.model, task, [2, 4, 8, 16], samples=100)
for score in scores:
    print(f"n = {score.length:2d}: {score.exact_match:.2f} [{score.exact_match_low:.2f}, {score.exact_match_high:.2f}]")

# %%
# One answer, token by token:
print(trained.model.predict("^ 3 1 4 1 5 9 2 6 ="))

# %%
# A trained model of the package
# ------------------------------
# It was trained longer, on n up to 10. The next notebook asks why others fail where it does not.
model = ll.load("copy/lbpe")
print(model)
print([score.exact_match for score in ll.exact_match(model, task, [10, 20, 100], samples=50)])
