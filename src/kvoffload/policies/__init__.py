"""Eviction and admission policies. A policy orders keys and owns nothing else."""
