"""Inside a trained network: what each head attends to and by what, and what happens when that is changed."""

import lengthlens.models  # noqa: F401  (before TransformerLens, which it imports lightly)
