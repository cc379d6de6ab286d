"""
2. Why does it fail?
====================

Three networks copy up to 10 digits. They differ in their position embedding alone. On 20 digits two of them go on, one
fails. Three ways to see why, none of which looks at a long input.
"""

# %%
# What happens
# ------------
import matplotlib.pyplot as plt

import lengthlens as ll

task = ll.TASKS["copy"]
models = {name: ll.load(f"copy/{name}") for name in ("lbpe", "hinted:relative/max_distance=12", "learned")}
figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
for (name, model), style in zip(models.items(), ("o-", "x:", "s-")):  # where two coincide, both are seen
    scores = ll.exact_match(model, task, [2, 5, 8, 10, 12, 15, 20, 30], samples=50)
    axes.plot([score.length for score in scores], [score.exact_match for score in scores], style, label=name)
axes.axvspan(0, 10, color="0.92")
axes.set(xlabel="n (training: up to 10)", ylabel="exact match")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
plt.show()

# %%
# 1. Before training: the verdict
# -------------------------------
# A scheme gives each pair of a query i and a key j a *code*, and treats pairs with one code alike. The *verdict*
# asks whether the codes can pick out what every step of the task reads, at lengths that were never trained.
for name in models:
    scheme, _, option = name.partition("/")
    options = dict([option.split("=")]) if option else {}
    found = ll.verdict("copy", scheme, train_max=10, test_max=20, scheme_options=options)
    print(f"{name}: {found.verdict}")

# %%
# *Open* means that it depends on training. The second scheme has a table for the distance i−j, whose entries
# beyond 10 were never trained, and one for i−j−n, which is all that copying needs. This network has learned to
# ignore the first; others with the same scheme have not.

# %%
# 2. After training: does complexity grow?
# ----------------------------------------
# *Measured SRC* counts the operators that explain what the network does at every step, on n up to 10. One that
# needs a new one for each length has learned a list and not a rule.
for name, model in models.items():
    print(f"{name:32s}", ll.measured_src(model, task, train_max=10).curve)

# %%
# 3. Short inputs at the positions of long ones
# ---------------------------------------------
# For *predicted exact match* (``stretch``) the network is shown short inputs with the position codes of longer ones. It
# also says what goes wrong.
for name, model in models.items():
    found = ll.stretched_match(model, train_max=10, scales=[20])
    print(f"{name:32s} predicted at n = 20: {found.at(20):.2f}   cause: {found.cause or 'none'}")
