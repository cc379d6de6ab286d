"""
5. Look inside
==============

Which head of a network carries the digit that is copied, how does it find it, and is it really its position codes?
The model comes with the package; it copies 100 digits, ten times as many as it was trained on.
"""

# %%
# What do the heads attend to?
# ----------------------------
import matplotlib.pyplot as plt

import lengthlens as ll

model = ll.load("copy/lbpe")
for relation in ll.relations(model, scales=[5, 20]):
    print(relation)

# %%
# One attention pattern
# ---------------------
# Hook names and shapes are those of TransformerLens.
text = "^ 7 3 5 1 8 = 7 3 5 1 8 $"
logits, cache = model.run_with_cache(text)
figure, axes = plt.subplots(1, model.cfg.n_layers * model.cfg.n_heads, figsize=(11, 2), layout="constrained")
for k, panel in enumerate(axes):
    layer, head = divmod(k, model.cfg.n_heads)
    panel.imshow(cache["pattern", layer][0, head].detach(), cmap="Blues", vmin=0, vmax=1)
    panel.set_title(f"L{layer}H{head}")
    panel.set_xticks(range(len(text.split())), text.split(), fontsize=5)
    panel.set_yticks([])
plt.show()

# %%
# Which head carries the digit?
# -----------------------------
# Two inputs that differ in one digit: a head's output on one, put in its place on the other. An effect of 1 is the
# whole way to the other answer.
patched = ll.patch_by_role(model, scale=5, components=["head"], pairs=8)
print(patched.sort_values("effect", ascending=False).head(4).round(2))

# %%
# Is it the position code?
# ------------------------
# *Surgery*: told that n is 2, it writes what stands 2 back.
print("as it is:         ", model.predict("^ 7 3 5 1 8 ="))
with ll.surgery(model, scale=2):
    token = model("^ 7 3 5 1 8 =").argmax(-1)[0, -1]
print("told that n is 2: ", model.task.vocab[int(token)], "…")

# %%
# What is left without it?
# ------------------------
# Exact match when no head may see the key at i−j = n.
print(ll.ablate(model, scales=[5, 10], relations=["i-j-n"], rows=32))

# %%
# ``lengthlens inspect copy/lbpe`` shows all of this on one page, with a sequence to click through.
