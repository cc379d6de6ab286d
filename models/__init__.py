"""Everything that yields a network: position embeddings, the hooked model, position-only linear attention."""
