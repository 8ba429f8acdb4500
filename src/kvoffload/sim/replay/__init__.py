"""Replays recorded traffic: misses of a policy, curves over capacity, and tiers with speeds under virtual time."""
