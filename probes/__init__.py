"""A task, a scheme or a trained run in, numbers out."""

from lengthlens.probes.verdict import Verdict, verdict, verdict_grid

__all__ = ["Verdict", "verdict", "verdict_grid"]
