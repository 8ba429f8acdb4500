"""Where a step of the engine model ends: with recurrent states at the edge of a block, as long as a prompt is computed."""

from __future__ import annotations

from kvoffload.sim.requests import Request
from kvoffload.sim.setups import Setup


def tokens_of_step(setup: Setup, request: Request, start: int, count: int) -> int:
    """So many of `count` tokens from `start` on does a step compute.

    A state is written where a step ends, so a step ends with a block. The last step of a prompt may end anywhere; what
    follows are steps of one token. A block that is wider than the widest step is computed in pieces.
    """
    per_block = setup.state_tokens
    prefill_end = max(request.prompt, request.known - 1)
    if per_block is None or start >= prefill_end:
        return count
    end = start + count
    if end < prefill_end:
        edge = end - end % per_block
        if edge > start or setup.step_tokens is None or per_block <= setup.step_tokens:
            end = edge
    last_edge = (request.known - 1) // per_block * per_block
    next_edge = (start // per_block + 1) * per_block if start % per_block else 0
    end = min((stop for stop in (next_edge, last_edge) if start < stop < end), default=end)
    return max(end - start, 0)
