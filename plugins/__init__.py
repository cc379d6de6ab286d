"""What users bring: tasks, schemes, probes and figures of their own, by name, told apart by what their source says."""
