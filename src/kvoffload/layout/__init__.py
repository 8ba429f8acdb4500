"""How a chunk's bytes lie in a host row. The only place that reasons about parallelism."""
