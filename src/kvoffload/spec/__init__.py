"""Offloading specs: what a manager and a worker are made of, chosen by name."""
