"""Networks with any position embedding, with HookedTransformer's hooks, shapes and weight names."""

from lengthlens.models.lightly import import_lightly

import_lightly()
