"""Offers a request's chunks to the host tiers and plans the copies of those that were taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.request import GroupState, RequestState
from kvoffload.manager.size_watch import SizeWatch
from kvoffload.manager.store_plan import plan_store, storable_chunks, storable_tokens
from kvoffload.manager.wishes import Stay
from kvoffload.messages import GroupCopies
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.policies.admission import Admission
from kvoffload.transfer.ledger import ChunkMove

logger = logging.getLogger(__name__)


class Storing:
    """Takes slots for what a request has computed.

    Args:
        tiers: The host tier of each group.
        recorder: Where it counts.
        admission: How much of a request may be stored at all.
        watch: Learns what other sizes of the tiers would give.
        on_evicted: Told which keys have made room.
        null_block_id: The engine's block that stands for "no block".
    """

    def __init__(
        self,
        tiers: Sequence[HostTier],
        recorder: Recorder,
        admission: Admission,
        watch: SizeWatch,
        on_evicted: Callable[[Sequence[OffloadKey]], None],
        *,
        null_block_id: int,
    ) -> None:
        self._tiers = tiers
        self._recorder = recorder
        self._admission = admission
        self._watch = watch
        self._null_block_id = null_block_id
        self._on_evicted = on_evicted
        self._said_refused = False

    def offer(
        self, state: RequestState, written_tokens: int, now_s: float
    ) -> tuple[list[ChunkMove], list[GroupCopies]]:
        """Offer the chunks that are complete and were not offered before.

        Args:
            state: The request; its progress is advanced.
            written_tokens: Tokens whose KV exists when the copies start.
            now_s: The time.

        Returns:
            The chunks that were taken (each must be committed or aborted once), and their copies by group.
        """
        moves: list[ChunkMove] = []
        parts: list[GroupCopies] = []
        if state.predates_reset:
            return moves, parts
        tokens = storable_tokens(state.info, written_tokens, self._admission)
        for index, group in enumerate(state.groups):
            chunks = storable_chunks(group, tokens, self._null_block_id)
            if not chunks:
                continue
            taken = self._offer_group(index, group, chunks, state.info.wishes.stay, now_s)
            if taken:
                parts.append(plan_store(index, group, taken))
                moves.extend(taken)
        return moves, parts

    def retire(self, state: RequestState) -> None:
        """The request is over, and what it has computed was offered. One that skips the cache has asked for nothing."""
        if state.info.is_skipped:
            return
        for group, tier in zip(state.groups, self._tiers, strict=True):
            # One order for the whole prompt, however it came in pieces: its end goes first.
            tier.renew(group.keys)
        if state.valid_tokens is not None and not state.predates_reset:
            self._watch.use(state, storable_tokens(state.info, state.valid_tokens, self._admission))

    def clear(self) -> None:
        """The tiers were cleared."""
        self._watch.clear()

    def _offer_group(
        self, index: int, group: GroupState, chunks: Sequence[int], stay: Stay, now_s: float
    ) -> list[ChunkMove]:
        keys = [group.keys[chunk] for chunk in chunks]
        tier = self._tiers[index]
        prepared = tier.prepare_store(keys, protected=group.own_keys)
        group.next_store_chunk = chunks[-1] + 1
        self._recorder.count(m.EVICTED_CHUNKS, len(prepared.evicted))
        self._recorder.count(m.STORE_FILTERED_CHUNKS, prepared.filtered)
        self._recorder.count(m.STORE_REJECTED_CHUNKS, prepared.rejected)
        self._on_evicted(prepared.evicted)
        place = {key: chunk for chunk, key in zip(chunks, keys, strict=True)} if prepared.slots else {}
        self._count_refused(tier.retain(keys, prepared.slots, stay, now_s))
        return [ChunkMove(index, key, slot, place[key]) for key, slot in prepared.slots.items()]

    def _count_refused(self, chunks: int) -> None:
        if not chunks:
            return
        self._recorder.count(m.PIN_REFUSED_CHUNKS, chunks)
        if not self._said_refused:
            self._said_refused = True
            logger.warning(
                "kvoffload: %d chunk(s) that a request pinned are not: pins have used up their share of the host "
                "(max_pinned_share); they are cached as usual, and from now on only counted "
                "(kvoffload_pin_refused_chunks)",
                chunks,
            )
