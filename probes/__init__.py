"""A task, a scheme or a trained run in, numbers out."""

from typing import TYPE_CHECKING

from lengthlens.lazy import lazily
from lengthlens.probes.verdict import Verdict, verdict
from lengthlens.probes.verdict_grid import verdict_grid

if TYPE_CHECKING:
    from lengthlens.probes.certify import Certificate, certify_model, certify_run
    from lengthlens.probes.invariance import index_table, invariance_index
    from lengthlens.probes.linear import measured_lrc
    from lengthlens.probes.pruning import prune
    from lengthlens.probes.readouts import BatchedLogistic, BatchedRidge
    from lengthlens.probes.sequential import measured_src
    from lengthlens.probes.table import probe_model, probe_run
    from lengthlens.probes.transfer import readout_transfer

# What looks into networks imports TransformerLens, which takes seconds; the verdict does without.
__getattr__ = lazily(
    "lengthlens.probes",
    {
        "BatchedLogistic": "readouts",
        "BatchedRidge": "readouts",
        "Certificate": "certify",
        "certify_model": "certify",
        "certify_run": "certify",
        "index_table": "invariance",
        "invariance_index": "invariance",
        "measured_lrc": "linear",
        "measured_src": "sequential",
        "probe_model": "table",
        "probe_run": "table",
        "prune": "pruning",
        "readout_transfer": "transfer",
    },
)

__all__ = [
    "BatchedLogistic",
    "BatchedRidge",
    "Certificate",
    "Verdict",
    "certify_model",
    "certify_run",
    "index_table",
    "invariance_index",
    "measured_lrc",
    "measured_src",
    "probe_model",
    "probe_run",
    "prune",
    "readout_transfer",
    "verdict",
    "verdict_grid",
]
