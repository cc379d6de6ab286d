"""Networks with any position embedding, with HookedTransformer's hooks, shapes and weight names."""
