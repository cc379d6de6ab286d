"""
3. A position embedding of your own
===================================

One class makes a scheme. Here is one that tells a query the distance to a key as a fraction of n: half way back,
all the way back. Can copying be learned with it?
"""

# %%
# The class
# ---------
# A scheme acts somewhere in the network, here on the attention scores, and says its relation ``phi``: the code of
# each pair of positions. Pairs with one code must be treated alike.
import torch
from torch import nn

import lengthlens as ll
from lengthlens.models.schemes.scheme import PositionScheme

# sphinx_gallery_thumbnail_path = "docs/images/relation-rope.svg"

BINS = 5


@ll.register
class Fraction(PositionScheme):
    """One learned bias for each quarter of n that a key is back, and one for all beyond."""

    name, family = "fraction", "relative"
    summary, relation_in_words = "one learned bias for each quarter of n that a key is back", "⌊4 (i−j) / n⌋, at most 4"
    uses_scale = True

    def __init__(self, sizes, options, task):
        super().__init__(sizes, options, task)
        self.bias = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, BINS))

    def phi(self, query_pos, key_pos, scale):
        return ((4 * (query_pos - key_pos)) // scale.clamp(min=1)).clamp(0, BINS - 1)[..., None]

    def score(self, layer, positions, queries, q, k):
        code = (4 * positions.distance(queries) // positions.scale[:, None, None].clamp(min=1)).clamp(0, BINS - 1)
        return self.bias[layer][:, code].transpose(0, 1)


# %%
# Does it keep to the contract?
# -----------------------------
print(ll.check("fraction")[0])

# %%
# What can it do?
# ---------------
# The verdict needs no training. It gives a counterexample and tries what would help.
print(ll.verdict("copy", "fraction", train_max=5, test_max=20))

# %%
# What does training give?
# ------------------------
config = ll.RunConfig(task="copy", scheme="fraction", train_max=4, steps=150, d_model=32, n_heads=2, check_every=50)
trained = ll.train(config)
scores = ll.exact_match(trained.model, ll.TASKS["copy"], [2, 4, 8], samples=50)
print({score.length: score.exact_match for score in scores})

# %%
# As the verdict says: keys of one code cannot be told apart by position, so that even short strings are copied only
# in part. From the shell, ``lengthlens train --plugin my_scheme.py --scheme fraction …`` does the same.
