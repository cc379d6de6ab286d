"""Position-only linear attention (POLA): the model for which length generalization can be predicted exactly.

POLA computes y_i = Σ_{j≤i} A(i,j) x_j with weights that depend on positions alone. Under a position
embedding with relation φ the weights are A(i,j) = p[φ(i,j)], and p is what gradient descent learns.

The paper says that the Linear Representation Complexity (LRC) of the target A* tells when a position
embedding can give length generalization. The definitions here are this project's operational versions:

- An instance of scale n is a sequence of n inputs. LRC(A*, N) is the number of distinct non-zero values of A*
  over j ≤ i < n at all scales n ≤ N; LRC under φ is the number of classes of φ on which A* is not zero, and
  infinite where A* is not constant on each class.
- Training from p = 0 on the squared loss over isotropic inputs has the limit p[c] = mean of A* over the pairs
  of class c that were seen, and 0 for a class never seen. The error at scale N is the sum of
  (A*(i,j) − p[φ(i,j)])² over j ≤ i < N.
- *Which pairs are seen.* As long as neither target nor relation looks at the scale, an instance of scale N0
  contains every shorter one as its beginning, and training is on scale N0 alone: each pair j ≤ i < N0 counts
  once. Where one of them does look at the scale (Scale Hint), instances of different scales are different
  things, and training is on all scales n ≤ N0: each triple (i, j, n) counts once.

Example: prefix sum under `relative`, trained at 8. Distances 8 to 15 were never seen, so they keep weight 0.

>>> lrc("prefix-sum", 8), lrc("prefix-sum", 16), lrc_under("relative", "prefix-sum", 16)
(1, 1, 16)
>>> pola_error("relative", "prefix-sum", train_max=8, scale=16)
36.0
"""

from lengthlens.theory.pola.closed_form import Limit, lrc, lrc_under, pola_error, pola_limit
from lengthlens.theory.pola.table import pola_table
from lengthlens.theory.pola.targets import TARGETS
from lengthlens.theory.pola.training import Pola, pola_train

__all__ = ["TARGETS", "Limit", "Pola", "lrc", "lrc_under", "pola_error", "pola_limit", "pola_table", "pola_train"]
