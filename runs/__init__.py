"""From a config to a trained run on disk: training, evaluation, the store of all runs, sweeps."""
