"""Scheduler side: decides what to load, store, flush and evict. No I/O, no engine, no torch."""
