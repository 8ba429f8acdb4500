"""What a simulation says of the code as it is now, planted bugs included."""

from __future__ import annotations

from kvoffload.sim.report import DEFAULT_STEPS
from kvoffload.sim.runner import Simulation
from kvoffload.sim.setups import SETUPS


def verdict_on(setup: str, seed: int) -> str:
    """What was wrong, "" if nothing was."""
    try:
        Simulation(SETUPS[setup], seed).run(DEFAULT_STEPS)
    except AssertionError as error:
        return str(error) or "an assertion of the code itself"
    return ""
