"""
6. A study
==========

Many runs as one table, from which figures, tables and a page are drawn. The runs here are the trained models that
come with the package, so nothing is trained.
"""

# %%
# A store with runs
# -----------------
# A store is a directory. Asked for a model of the package, it takes a copy, which can be evaluated and probed
# further.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import lengthlens as ll
from lengthlens.probes.table import probe_run

place = Path(tempfile.mkdtemp())
store = ll.RunStore(place / "runs")
for name in (
    "copy/lbpe",
    "copy/hinted:relative/max_distance=3",
    "copy/hinted:relative/max_distance=12",
    "copy/learned",
):
    run = store.find(name)
    print(run.id, run.status().status)

# %%
# Measure
# -------
# A probe sees inputs of the training range alone. ``src`` counts the operators that explain what a network does.
for run in store.runs():
    found = probe_run(run, ["src"])
    index = found[(found["measure"] == "iota_src")]["value"].median()
    print(f"{run.config.spec.label:32s} growth of measured SRC: {index:.2f}")

# %%
# One table
# ---------
# A row for each measurement: what, where, how much, with which interval.
table = ll.study(store, pola_targets=[])
beyond = table[(table["measure"] == "exact_match") & (table["scale"] == 20)]
print(beyond[["scheme", "scale", "value", "low", "high"]].to_string(index=False))

# %%
# Figures
# -------
# On axes of your own, or, without any, as a figure of any width: ``ll.plot("extrapolation", table, width=3.3)``.
figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
ll.plot("extrapolation", table, {"copy": axes})
plt.show()

# %%
# A page
# ------
# ``ll.draw`` writes figures and tables of everything that the study has something for, and says what is missing;
# ``lengthlens report`` makes the page. With four runs there is no AUC: that needs ten.
drawn = ll.draw(table, ["extrapolation"], out=place / "figures", formats=["png"])
print([path.name for path in drawn.files], drawn.missing)
