"""Staging: chunks go down to the tiers when they are stored, and come up when a request needs them.

Part of the manager: no I/O, no threads, time is an argument. See docs/design/002-staging.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.estimates import PrefillMeter
from kvoffload.manager.health import BreakerState
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.lane import HostChunk, LaneJob, TierLane
from kvoffload.manager.locating import Located, Want, locate
from kvoffload.manager.prefix import Span
from kvoffload.manager.promotion import Phase, Promotion, Slice
from kvoffload.manager.watch import TierWatch
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.tiers.base import Outcome, TierReport, Verb
from kvoffload.types import LookupResult, RequestId, SlotId


class LoadPolicy(Enum):
    """When chunks are promoted from a tier."""

    ALWAYS = "always"
    NEVER = "never"
    AUTO = "auto"
    """Unless recomputing would be faster."""


@dataclass(frozen=True, slots=True)
class StagingConfig:
    """Bounds of promotions."""

    load_policy: LoadPolicy = LoadPolicy.AUTO
    deadline_s: float = 10.0
    """How long a request waits for tiers, from its first question to its last chunk."""
    hold_s: float = 30.0
    """How long promoted chunks are held for a request that is not admitted."""
    slice_chunks: int = 256
    """Chunks of one request that are handed to a tier in one step."""
    slice_bytes: int = 256 * 1024**2
    """The same in bytes: far below what a tier takes at once."""
    remeasure_s: float = 60.0
    """A tier that was skipped as too slow is tried again after this time."""


class Staging:
    """Moves chunks between the host tiers and the lanes.

    Args:
        hosts: The host tier of each group.
        lanes: The tiers below, the fastest first.
        config: Bounds.
        recorder: Where it counts.
        prefill: The engine's measured prefill rate.
    """

    def __init__(
        self,
        hosts: Sequence[HostTier],
        lanes: Sequence[TierLane],
        config: StagingConfig,
        recorder: Recorder,
        prefill: PrefillMeter,
    ) -> None:
        self._hosts = tuple(hosts)
        self._lanes = tuple(lanes)
        self._config = config
        self._recorder = recorder
        self._prefill = prefill
        self._promotions: dict[RequestId, Promotion] = {}
        # Who waits for a job's end, and when a lane last loaded.
        self._waiters: dict[tuple[str, int], RequestId] = {}
        self._last_load_s: dict[str, float] = {}
        self._ticked_s = float("-inf")
        self._watch = TierWatch(lanes, recorder)

    @property
    def busy(self) -> bool:
        """Whether a tier has work to do or to report."""
        return any(lane.busy for lane in self._lanes)

    @property
    def tiers(self) -> Mapping[str, str | None]:
        """Name → medium, the fastest first."""
        return {lane.name: lane.tier.medium_name for lane in self._lanes}

    # -- requests ------------------------------------------------------------------------------------------------

    def fetch(
        self,
        req_id: RequestId,
        wants: Sequence[Want],
        now_s: float,
        span: Span | None = None,
        allowed: frozenset[str] | None = None,
    ) -> bool:
        """Bring what a request misses up from the tiers; to be called again until it says False.

        Args:
            req_id: The request.
            wants: What it may load, by group.
            now_s: The time.
            span: See `locating.locate`.
            allowed: Names of the tiers that it may load from; None: all.

        Returns:
            Whether it is worth waiting. After False the request is settled: later calls answer False at once.
        """
        # Without a tier below, what the host is just writing is waited for by the manager alone, in its own time.
        lanes = self._allowed(allowed)
        if not lanes or self._config.load_policy is LoadPolicy.NEVER:
            return False
        if not any(want.keys for want in wants):
            return False
        promotion = self._promotions.setdefault(req_id, Promotion(since_s=now_s, asked_s=now_s))
        promotion.asked_s = now_s
        if promotion.phase is Phase.SETTLED:
            return False
        if promotion.phase is Phase.ASKING:
            self._ask(promotion, locate(wants, self._hosts, lanes, span), wants, now_s)
        if promotion.phase is Phase.PROMOTING:
            promotion.awaited = {
                (group, key)
                for group, key in promotion.awaited
                if self._hosts[group].lookup(key) is LookupResult.HIT_PENDING
            }
            self._start_slices(req_id, promotion, now_s)
            if not (promotion.jobs or promotion.awaited or promotion.rest):
                promotion.phase = Phase.SETTLED
        if promotion.phase is not Phase.SETTLED and now_s - promotion.since_s >= self._config.deadline_s:
            self._settle_late(promotion, now_s)
        return promotion.phase is not Phase.SETTLED

    def forget(self, req_id: RequestId) -> None:
        """The request was admitted or is gone: what was held for it may be evicted again."""
        promotion = self._promotions.pop(req_id, None)
        if promotion is None:
            return
        self._abort_rest(promotion)
        self._release(promotion)
        for job in promotion.jobs:
            self._waiters.pop(job, None)

    # -- tiers ---------------------------------------------------------------------------------------------------

    def cascade(
        self, group: int, keys: Sequence[OffloadKey], now_s: float, allowed: frozenset[str] | None = None
    ) -> None:
        """Offer chunks that have just become ready to all tiers (`allowed`: of these names); one under pressure is left out."""
        host = self._hosts[group]
        for lane in self._allowed(allowed):
            for key, slot in zip(keys, host.hold(keys), strict=True):
                if slot is not None and not lane.enqueue(HostChunk(group, key, slot)):
                    host.release([slot])
                    self._recorder.count(m.CASCADE_DROPPED_CHUNKS, tier=lane.name)
            lane.pump(now_s)

    def tick(self, now_s: float) -> None:
        """Collect what the tiers have done, give up what is late, hand over what is queued. Once a step."""
        for lane in self._lanes:
            ended = lane.collect()
            lane.measure_loads(ended, now_s)
            for job, report in ended:
                self._apply(lane, job, report, now_s)
            for job in lane.give_up_overdue(now_s):
                self._give_up(lane, job)
            if lane.breaker.state is BreakerState.OPEN:
                self._drop_queue(lane)
            lane.pump(now_s)
        self._watch.look(now_s)
        self._go_on_unasked(now_s)
        for promotion in self._promotions.values():
            if promotion.held and now_s - promotion.since_s >= self._config.hold_s:
                self._release(promotion)

    def reset(self) -> Mapping[str, bool]:
        """Clear all tiers; returns for each whether it is empty now. Queued stores are dropped."""
        for lane in self._lanes:
            self._drop_queue(lane)
        for req_id in list(self._promotions):
            self.forget(req_id)
        return {lane.name: lane.tier.clear() for lane in self._lanes}

    def in_use(self, group: int) -> tuple[list[SlotId], list[SlotId]]:
        """(slots being written by promotions, slots held) of one group: what `check` needs."""
        writing = [c.slot for lane in self._lanes for c in lane.chunks_of(Verb.LOAD) if c.group == group]
        rests = [part for promotion in self._promotions.values() for part in promotion.rest]
        writing += [slot for part in rests if part.group == group for _, slot in part.pairs]
        held = [c.slot for lane in self._lanes for c in lane.chunks_of(Verb.STORE) if c.group == group]
        held += [slot for promotion in self._promotions.values() for g, slot in promotion.held if g == group]
        return writing, held

    def _allowed(self, names: frozenset[str] | None) -> Sequence[TierLane]:
        return self._lanes if names is None else [lane for lane in self._lanes if lane.name in names]

    # -- asking --------------------------------------------------------------------------------------------------

    def _ask(
        self, promotion: Promotion, located: Sequence[Located], wants: Sequence[Want], now_s: float
    ) -> None:
        promotion.unsure = {name for found in located for name in found.unsure}
        if promotion.unsure:
            return
        promotion.phase = Phase.PROMOTING
        worth_it = self._is_worth_it(wants, located, now_s)
        if worth_it and any(found.run for found in located):
            # What the host has already must not be evicted to bring the rest.
            for want in wants:
                self._hold(promotion, want.group, want.head)
        for want, found in zip(wants, located, strict=True):
            promotion.awaited.update((want.group, key) for key in found.coming)
            if worth_it and found.run:
                self._reserve(promotion, want, found.run)

    def _go_on_unasked(self, now_s: float) -> None:
        """An engine may not ask for a waiting request for long: its slots must not stay reserved, nor its loads wait."""
        handed_over = False
        for req_id, promotion in self._promotions.items():
            if promotion.phase is Phase.SETTLED or promotion.asked_s >= self._ticked_s:
                continue
            if now_s - promotion.since_s >= self._config.deadline_s:
                # No tier's fault, as far as anybody knows.
                promotion.unsure.clear()
                self._settle_late(promotion, now_s)
            elif promotion.rest and not handed_over:
                handed_over = True
                self._start_slices(req_id, promotion, now_s)
        self._ticked_s = now_s

    def _settle_late(self, promotion: Promotion, now_s: float) -> None:
        self._recorder.count(m.PROMOTION_TIMEOUTS)
        for lane in self._lanes:
            if lane.name in promotion.unsure:
                lane.breaker.timed_out(now_s)
        self._abort_rest(promotion)
        promotion.phase = Phase.SETTLED

    def _reserve(self, promotion: Promotion, want: Want, run: Sequence[tuple[OffloadKey, TierLane]]) -> None:
        # Room for the whole run first: half a run that evicts the other half would help nobody.
        host = self._hosts[want.group]
        reserved = host.reserve([key for key, _ in run], protected=want.protected or set(want.keys))
        self._recorder.count(m.EVICTED_CHUNKS, len(reserved.evicted))
        of_lane = {lane.name: reserved.stored for _, lane in run[:1]}
        if len(self._lanes) > 1:
            source = dict(run)
            of_lane = {
                lane.name: tuple(pair for pair in reserved.stored if source[pair[0]] is lane)
                for lane in self._lanes
            }
        size = max(1, min(self._config.slice_chunks, self._config.slice_bytes // max(1, want.row_bytes)))
        for lane in self._lanes:
            pairs = of_lane.get(lane.name, ())
            promotion.rest.extend(
                Slice(lane, want.group, pairs[first : first + size]) for first in range(0, len(pairs), size)
            )

    def _start_slices(self, req_id: RequestId, promotion: Promotion, now_s: float) -> None:
        """Hand about a slice over to each tier: a long prompt must not stop the scheduler while its jobs are made."""
        begun: Counter[str] = Counter()
        waiting, promotion.rest = promotion.rest, []
        for number, part in enumerate(waiting):
            if begun[part.lane.name] >= self._config.slice_chunks:
                promotion.rest.append(part)
                continue
            begun[part.lane.name] += len(part.pairs)
            chunks = [HostChunk(part.group, key, slot) for key, slot in part.pairs]
            job_id = part.lane.start_load(chunks, now_s)
            if job_id is None:
                promotion.rest.extend(waiting[number:])
                if not self._has_job_on(promotion, part.lane) or not part.lane.breaker.allows(now_s):
                    # What lies behind a gap cannot be used.
                    self._abort_rest(promotion)
                # Else it is full of what it has: there is room again when a job of ours has ended.
                return
            self._last_load_s[part.lane.name] = now_s
            promotion.jobs.add((part.lane.name, job_id))
            self._waiters[part.lane.name, job_id] = req_id

    @staticmethod
    def _has_job_on(promotion: Promotion, lane: TierLane) -> bool:
        return any(name == lane.name for name, _ in promotion.jobs)

    def _abort_rest(self, promotion: Promotion) -> None:
        for part in promotion.rest:
            self._hosts[part.group].abort_store(part.pairs)
        promotion.rest = []

    def _is_worth_it(self, wants: Sequence[Want], located: Sequence[Located], now_s: float) -> bool:
        """Whether loading what was located, all groups together, is faster than computing it."""
        recompute_s = self._prefill.seconds_for(max(found.tokens for found in located))
        if self._config.load_policy is LoadPolicy.ALWAYS or recompute_s is None:
            return True
        load_s = 0.0
        for lane in self._lanes:
            size = sum(
                want.row_bytes * sum(source is lane for _, source in found.run)
                for want, found in zip(wants, located, strict=True)
            )
            stale = now_s - self._last_load_s.get(lane.name, now_s) >= self._config.remeasure_s
            if size and not stale:
                load_s = max(
                    load_s, lane.load_meter.seconds_for(size, lane.in_flight_bytes(Verb.LOAD)) or 0.0
                )
        if load_s <= recompute_s:
            return True
        self._recorder.count(m.PROMOTION_SKIPPED_CHUNKS, sum(len(found.run) for found in located))
        return False

    # -- reports -------------------------------------------------------------------------------------------------

    def _apply(self, lane: TierLane, job: LaneJob, report: TierReport, now_s: float) -> None:
        if not job.lost:
            failed = any(outcome is Outcome.FAILED for outcome in report.outcomes.values())
            if failed:
                lane.breaker.failed(now_s)
            else:
                lane.breaker.succeeded()
        for outcome in Outcome:
            number = sum(found is outcome for found in report.outcomes.values())
            self._recorder.count(
                m.TIER_CHUNKS, number, tier=lane.name, verb=job.verb.value, outcome=outcome.value
            )
        self._recorder.count(m.TIER_BYTES, report.moved_bytes, tier=lane.name, verb=job.verb.value)
        if job.verb is Verb.STORE:
            for chunk in job.chunks:
                self._hosts[chunk.group].release([chunk.slot])
        else:
            self._apply_load(lane, job, report)

    def _apply_load(self, lane: TierLane, job: LaneJob, report: TierReport) -> None:
        req_id = self._waiters.pop((lane.name, job.job_id), None)
        promotion = self._promotions.get(req_id) if req_id is not None else None
        for chunk in job.chunks:
            host = self._hosts[chunk.group]
            if report.outcomes[chunk.key] is not Outcome.DONE:
                host.abort_store([(chunk.key, chunk.slot)])
            elif host.commit_store([(chunk.key, chunk.slot)]):
                if promotion is not None:
                    self._hold(promotion, chunk.group, [chunk.key])
                self._offer_upwards(lane, chunk)
        if promotion is not None:
            promotion.jobs.discard((lane.name, job.job_id))

    def _offer_upwards(self, source: TierLane, chunk: HostChunk) -> None:
        """What came from far away is worth keeping near: offered to the tiers that were asked before and lacked it."""
        for lane in self._lanes[: self._lanes.index(source)]:
            (slot,) = self._hosts[chunk.group].hold([chunk.key])
            if slot is None:
                continue
            if lane.enqueue(HostChunk(chunk.group, chunk.key, slot)):
                self._recorder.count(m.READ_THROUGH_CHUNKS, tier=lane.name)
            else:
                self._hosts[chunk.group].release([slot])

    def _give_up(self, lane: TierLane, job: LaneJob) -> None:
        self._recorder.count(m.TIER_TIMEOUTS, tier=lane.name, verb=job.verb.value)
        if job.verb is not Verb.LOAD:
            return
        for chunk in job.chunks:
            self._hosts[chunk.group].forget_write(chunk.key, chunk.slot)
        req_id = self._waiters.pop((lane.name, job.job_id), None)
        if req_id is not None and req_id in self._promotions:
            self._promotions[req_id].jobs.discard((lane.name, job.job_id))

    def _drop_queue(self, lane: TierLane) -> None:
        dropped = lane.drop_queue()
        for chunk in dropped:
            self._hosts[chunk.group].release([chunk.slot])
        self._recorder.count(m.CASCADE_DROPPED_CHUNKS, len(dropped), tier=lane.name)

    def _hold(self, promotion: Promotion, group: int, keys: Sequence[OffloadKey]) -> None:
        slots = self._hosts[group].hold(keys)
        promotion.held.extend((group, slot) for slot in slots if slot is not None)

    def _release(self, promotion: Promotion) -> None:
        for group, slot in promotion.held:
            self._hosts[group].release([slot])
        promotion.held.clear()
