"""Bounds of waiting: how long a request is told "ask again", and what is done if the engine takes no offer."""

from __future__ import annotations

from collections.abc import Mapping

from kvoffload.manager.request import RequestState
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.types import RequestId

_REFUSED_OFFERS = 3


class Waiting:
    """Nothing waits without a bound.

    Args:
        requests: The manager's requests.
        recorder: Where it counts.
        pending_timeout_s: How long a request may be told to ask again.
    """

    def __init__(
        self, requests: Mapping[RequestId, RequestState], recorder: Recorder, pending_timeout_s: float
    ) -> None:
        self._requests = requests
        self._recorder = recorder
        self._pending_timeout_s = pending_timeout_s
        # Since the last step.
        self._offered: set[RequestId] = set()

    def may_go_on(self, state: RequestState, now_s: float) -> bool:
        """Whether the request may be told once more to ask again."""
        if state.waiting_since_s is None:
            state.waiting_since_s = now_s
        if now_s - state.waiting_since_s < self._pending_timeout_s:
            return True
        self._recorder.count(m.PENDING_TIMEOUTS)
        return False

    def offered(self, req_id: RequestId) -> None:
        """The engine was offered a load for the request."""
        self._offered.add(req_id)

    def admitted(self, req_id: RequestId) -> None:
        """The request has got its blocks."""
        self._offered.discard(req_id)

    def end_step(self, *, is_idle: bool, is_loading: bool) -> None:
        """An idle engine that takes no offer will not take it later: it shall compute instead of waiting for ever.

        Args:
            is_idle: Nothing was scheduled in this step.
            is_loading: Loads are under way: that is why an offer may have to wait.
        """
        offered, self._offered = self._offered, set()
        if is_loading:
            return
        for req_id in offered & self._requests.keys():
            state = self._requests[req_id]
            state.refused_offers = state.refused_offers + 1 if is_idle else 0
            state.computes_all = state.refused_offers >= _REFUSED_OFFERS
