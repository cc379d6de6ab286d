"""Lengths up to which a run cannot go wrong."""
