"""Tiers around a tier: each adds one cross-cutting concern and keeps the contract.

Deadlines and the circuit breaker are not among them: the manager's staging has those, for it knows who waits and which
slot is at risk.
"""
