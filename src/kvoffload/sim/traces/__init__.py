"""Readers of recorded traffic: one file a format, all of them streams of `TraceRequest`."""
