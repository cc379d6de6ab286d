"""A task, a scheme or a trained run in, numbers out."""

from lengthlens.probes.invariance import index_table, invariance_index
from lengthlens.probes.linear import measured_lrc
from lengthlens.probes.readouts import BatchedLogistic, BatchedRidge
from lengthlens.probes.sequential import measured_src
from lengthlens.probes.table import probe_model, probe_run
from lengthlens.probes.transfer import readout_transfer
from lengthlens.probes.verdict import Verdict, verdict, verdict_grid

__all__ = [
    "BatchedLogistic",
    "BatchedRidge",
    "Verdict",
    "index_table",
    "invariance_index",
    "measured_lrc",
    "measured_src",
    "probe_model",
    "probe_run",
    "readout_transfer",
    "verdict",
    "verdict_grid",
]
