"""A table of numbers in, a finding and a figure out."""
