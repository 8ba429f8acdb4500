"""For all tests: how long an example takes says something about the machine, and nothing about the code."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("kvoffload", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvoffload")
