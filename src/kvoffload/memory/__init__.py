"""Host memory: the shared region, its limits, and the slots in it."""
