"""Options that no thread could wait for, or no machine could run, are refused with a line that says what is valid."""

from __future__ import annotations

import pytest

from kvoffload.errors import ConfigError
from kvoffload.tiers.obj.options import ObjTierConfig


@pytest.mark.parametrize(
    "name",
    ["poll_interval_s", "request_timeout_s", "shutdown_timeout_s", "hedge_after_s", "reconcile_interval_s"],
)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e12])
def test_a_time_has_an_end(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}="):
        ObjTierConfig(url="memory://bounds", **{name: value})


@pytest.mark.parametrize("threads", [-1, 1, 257, 10**9])
def test_threads_are_few(threads: int) -> None:
    with pytest.raises(ConfigError, match=f"threads={threads} must be from 2 to 256"):
        ObjTierConfig(url="memory://bounds", threads=threads)
