"""One engine step, in the words of no engine: what the connector tells the manager. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.types import BlockId, RequestId


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request that runs in this step."""

    req_id: RequestId
    new_block_ids: tuple[Sequence[BlockId], ...] | None
    """Per offloaded group: its blocks that are new since the last step, or all of them if `replaces`."""
    replaces: bool
    """The list above is the whole block table (first step, or resumed after a preemption)."""
    num_computed_tokens: int
    """Before this step."""
    num_scheduled_tokens: int


@dataclass(frozen=True, slots=True)
class StepInput:
    """What the engine has decided for its next forward pass."""

    scheduled: Sequence[ScheduledRequest] = ()
    preempted: Sequence[RequestId] = ()
    """Lost their blocks."""
    finished: Sequence[RequestId] = ()
    """Finished since the last step; `finish_request` was called for those that were known."""
    overwritten_block_ids: Sequence[BlockId] = ()
    """Further blocks that this step overwrites (copies on write)."""
