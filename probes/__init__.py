"""A trained run in, numbers out."""
