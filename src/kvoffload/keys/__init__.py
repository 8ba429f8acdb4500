"""Names of things: the key of a chunk, the namespace fingerprint, paths. Standard library only."""
