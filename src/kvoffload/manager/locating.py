"""Where the chunks that a request may load are: in the host, on their way there, or in a tier below. Mutates nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.lane import TierLane
from kvoffload.manager.load_plan import chunk_range
from kvoffload.manager.prefix import GroupChunks, Span, usable_boundary
from kvoffload.manager.request import GroupGeometry
from kvoffload.types import LookupResult

Verdict = LookupResult | TierLane | frozenset[str]
"""HIT or HIT_PENDING in the host, the tier that has it, the names of those that do not know yet, or MISS."""


@dataclass(frozen=True, slots=True)
class Want:
    """What a request may load in one group, in the order of the prompt."""

    group: int
    keys: Sequence[OffloadKey]
    """One group of full attention: behind the host's hits. Else: from the chunk on in which the device's tokens end."""
    geometry: GroupGeometry
    row_bytes: int
    protected: Collection[OffloadKey] = ()
    """All keys of the request (not given: `keys`): its head must not be evicted to bring its end."""
    head: Sequence[OffloadKey] = ()
    """What the host has of it already and the load will need, too."""


@dataclass(slots=True)
class Located:
    """Where the keys of one `Want` are."""

    run: list[tuple[OffloadKey, TierLane]] = field(default_factory=list)
    """Those that a load needs and a tier has."""
    coming: list[OffloadKey] = field(default_factory=list)
    """Those that somebody else is bringing to the host."""
    unsure: set[str] = field(default_factory=set)
    """Tiers that do not know yet."""
    tokens: int = 0
    """What the engine would have to compute without them."""


def locate(
    wants: Sequence[Want], hosts: Sequence[HostTier], lanes: Sequence[TierLane], span: Span | None
) -> list[Located]:
    """Where the chunks of each want are that a load would need; a load as long as all groups can serve.

    Args:
        wants: One for each group.
        hosts: The host tier of each group.
        lanes: The tiers below, the fastest first.
        span: What the load may be. None: a single group of full attention, whose want begins where the load does.
    """
    if span is None:
        (want,) = wants
        return [_locate_run(want, hosts[want.group], lanes)]
    verdicts = [_verdicts(want, hosts[want.group], lanes) for want in wants]
    groups = [
        GroupChunks(want.geometry, [verdict is not LookupResult.MISS for verdict in found])
        for want, found in zip(wants, verdicts, strict=True)
    ]
    tokens = range(span.computed_tokens, usable_boundary(groups, span))
    return [_needed(want, found, tokens) for want, found in zip(wants, verdicts, strict=True)]


def _needed(want: Want, verdicts: Sequence[Verdict], tokens: range) -> Located:
    located = Located(tokens=len(tokens))
    if not tokens:
        return located
    first = tokens.start // want.geometry.tokens_per_chunk
    for chunk in chunk_range(want.geometry, tokens):
        key, verdict = want.keys[chunk - first], verdicts[chunk - first]
        if isinstance(verdict, TierLane):
            located.run.append((key, verdict))
        elif isinstance(verdict, frozenset):
            located.unsure |= verdict
        elif verdict is LookupResult.HIT_PENDING:
            located.coming.append(key)
    return located


def _verdicts(want: Want, host: HostTier, lanes: Sequence[TierLane]) -> list[Verdict]:
    if not want.keys:
        return []
    answers = [(lane, lane.lookup(want.keys)) for lane in lanes]
    return [
        state if state is not LookupResult.MISS else _below(answers, index)
        for index, state in enumerate(host.lookup_all(want.keys))
    ]


def _below(answers: Sequence[tuple[TierLane, Sequence[LookupResult]]], index: int) -> Verdict:
    for lane, said in answers:
        if said[index] is LookupResult.HIT:
            return lane
    doubtful = frozenset(lane.name for lane, said in answers if said[index] is LookupResult.RETRY)
    return doubtful or LookupResult.MISS


def _locate_run(want: Want, host: HostTier, lanes: Sequence[TierLane]) -> Located:
    """The leading keys that are somewhere: a prefix must be contiguous."""
    per_chunk = want.geometry.tokens_per_chunk
    if len(lanes) == 1 and host.has_none_of(want.keys):
        found = _run_of(want.keys, lanes[0], lanes[0].lookup(want.keys))
    else:
        found = Located()
        for key, verdict in zip(want.keys, _verdicts(want, host, lanes), strict=True):
            if verdict is LookupResult.MISS:
                break
            if isinstance(verdict, TierLane):
                found.run.append((key, verdict))
            elif isinstance(verdict, frozenset):
                found.unsure |= verdict
            elif verdict is LookupResult.HIT_PENDING:
                found.coming.append(key)
    found.tokens = len(found.run) * per_chunk
    return found


def _run_of(keys: Sequence[OffloadKey], lane: TierLane, said: list[LookupResult]) -> Located:
    """The usual case, without a loop: one tier, and nothing of it in the host."""
    miss, unsure = LookupResult.MISS, LookupResult.RETRY
    end = said.index(miss) if miss in said else len(said)
    if unsure in said[:end]:
        return Located(unsure={lane.name})
    return Located(run=[(key, lane) for key in keys[:end]])
