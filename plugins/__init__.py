"""What users bring: user-defined tasks, schemes, probes and figures, by name, told apart by what their source says."""
