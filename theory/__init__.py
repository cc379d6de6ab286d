"""What can be said without training: position-only linear attention, and the verdict."""
