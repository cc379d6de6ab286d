"""A task, a scheme or a trained run in, numbers out."""
