"""The production manager with every policy, under seeded faults: no policy makes it lose a byte, a slot or a request."""

from __future__ import annotations

import pytest

from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.sim import assembly
from kvoffload.sim.report import simulate


@pytest.mark.parametrize("name", EVICTION_POLICIES.names())
def test_any_policy_does_under_faults_what_the_default_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "LRUPolicy", EVICTION_POLICIES.resolve(name))
    summary = simulate(["chunk files", "second touch"], range(3), 60)
    assert summary.failures == []
