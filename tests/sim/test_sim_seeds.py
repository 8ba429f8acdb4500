"""Fifteen hundred seeds over all setups: no wrong byte, no hang, no leak, no exception, whatever goes wrong below."""

from __future__ import annotations

import pytest

from kvoffload.sim.report import DEFAULT_STEPS, simulate
from kvoffload.sim.setups import GROUP_SETUPS, HOST_SETUPS, SETUPS, TIER_SETUPS

STEPS = DEFAULT_STEPS
HOST_NAMES = list(HOST_SETUPS)
HOST_BLOCKS = [(tuple(HOST_NAMES[first : first + 2]), 0, 25) for first in range(0, len(HOST_NAMES), 2)]
GROUP_BLOCKS = [((name,), 0, 40) for name in GROUP_SETUPS]
TIER_BLOCKS = [
    ((name,), first, 59)
    for name, setup in TIER_SETUPS.items()
    for first in ((0,) if setup.is_sparse else (0, 59))
]

ALWAYS = {
    "load",
    "load failed",
    "preempt",
    "resumed",
    "reset",
    "flush",
    "finished",
    "lost_jobs",
    "evicted_chunks",
}
"""What every block must have seen: a run that loads nothing and fails nothing proves nothing."""
GROUPS = {"given away while it runs", "device hit", "no room for a load"}
"""What only groups with windows or states see, and what is harder for them."""
BELOW = {
    "restart",
    "stuck",
    "breaker open",
    "promotion_timeouts",
    "damage: bit flip",
    "damage: vanished",
    "damage: misdirected",
    "tier_chunks{tier=tier0,verb=load,outcome=done}",
    "tier_chunks{tier=tier0,verb=store,outcome=failed}",
    "tier_chunks{tier=tier0,verb=store,outcome=rejected}",
    "tier_timeouts{tier=tier0,verb=store}",
}
CHUNKS = {
    "torn by a death",
    "tier checksum_errors",
    "tier faults_fail",
    "tier faults_flip_stored",
    "tier faults_refuse",
    "tier faults_reject",
    "tier faults_torn_store",
    "tier faults_vanish",
    "tier retried_jobs",
    "tier store_refused_jobs",
}
DIRECTORY = {
    "died within a call",
    "power failure: empty",
    "power failure: prefix",
    "power failure: zeros",
    "damage: truncated",
    "disk EIO",
    "disk EROFS",
    "disk ESTALE",
    "fs walks",
    "fs probes",
    "fs rejected_not_writable",
    "fs store_error_eio",
    "fs usage_error_eio",
}
RARE = [
    ("abort loading", "chunk files"),
    ("pending_timeouts", "one block a chunk"),
    ("vanished", "one block a chunk"),
    ("loaded from below in a later life", "chunk files"),
    ("loaded from below in a later life", "directory"),
    ("loaded from below in a later life", "directory, two groups"),
    ("tier faults_flip_loaded", "chunk files"),
    ("died while writing", "directory"),
    ("disk ENOSPC", "directory"),
    ("disk torn write", "directory, two groups"),
    ("fs corrupt", "directory"),
    ("fs corrupt", "directory, two groups"),
    ("fs evicted", "directory"),
    ("fs evicted_of_others", "directory, two groups"),
    ("fs swept_temps", "directory"),
    ("incomplete reset", "directory"),
    ("tier load_missing_chunks", "chunk files"),
    ("abort loading", "windows and states"),
    ("vanished", "states"),
    ("pending_timeouts", "windows and states, asynchronous"),
    ("loaded from below in a later life", "chunk files, windows and states"),
    ("loaded from below in a later life", "directory, windows and states"),
    ("tier_chunks{tier=tier1,verb=load,outcome=done}", "chunk files over a directory"),
]
"""What some seed of a setup must see."""
RARE_SEEDS = 118


def must_see(name: str) -> set[str]:
    below = TIER_SETUPS[name].below if name in TIER_SETUPS else ()
    wanted = ALWAYS | (BELOW if below else set())
    wanted |= GROUPS if SETUPS[name].is_sparse else set()
    wanted |= CHUNKS if {"chunks", "sealed"} & set(below) else set()
    return wanted | (DIRECTORY if "fs" in below else set())


@pytest.mark.parametrize(("names", "first", "count"), HOST_BLOCKS + GROUP_BLOCKS + TIER_BLOCKS)
def test_no_seed_shows_wrong_bytes_a_hang_a_leak_or_an_exception(
    names: tuple[str, ...], first: int, count: int
) -> None:
    summary = simulate(names, range(first, first + count), STEPS)
    assert not summary.failures, "\n".join(map(str, summary.failures))
    wanted = set.union(*map(must_see, names))
    assert {event for event in wanted if not summary.seen[event]} == set()


def test_there_are_as_many_seeds_as_the_documents_say() -> None:
    assert sum(len(names) * count for names, _, count in HOST_BLOCKS + GROUP_BLOCKS + TIER_BLOCKS) >= 1500


@pytest.mark.parametrize(("event", "name"), RARE)
def test_it_happens_in_some_run_that(event: str, name: str) -> None:
    assert any(simulate([name], [seed], STEPS).seen[event] for seed in seeds_for(event, name))


def seeds_for(event: str, name: str) -> list[int]:
    """All seeds, those first that are known to show it: that saves time as long as they do."""
    known = KNOWN.get((event, name), ())
    return [*known, *(seed for seed in range(RARE_SEEDS) if seed not in known)]


KNOWN: dict[tuple[str, str], tuple[int, ...]] = {
    ("abort loading", "chunk files"): (1, 4),
    ("pending_timeouts", "one block a chunk"): (114, 158),
    ("vanished", "one block a chunk"): (2, 8),
    ("loaded from below in a later life", "chunk files"): (2, 6),
    ("loaded from below in a later life", "directory"): (6, 11),
    ("loaded from below in a later life", "directory, two groups"): (2, 6),
    ("tier faults_flip_loaded", "chunk files"): (38, 66),
    ("died while writing", "directory"): (176, 224),
    ("disk ENOSPC", "directory"): (7, 22),
    ("disk torn write", "directory, two groups"): (11, 41),
    ("fs corrupt", "directory"): (2, 43),
    ("fs corrupt", "directory, two groups"): (11, 116),
    ("fs evicted", "directory"): (2, 3),
    ("fs evicted_of_others", "directory, two groups"): (25, 38),
    ("fs swept_temps", "directory"): (35, 110),
    ("incomplete reset", "directory"): (27, 78),
    ("tier load_missing_chunks", "chunk files"): (7, 35),
    ("abort loading", "windows and states"): (2, 18),
    ("vanished", "states"): (19, 21),
    ("pending_timeouts", "windows and states, asynchronous"): (8, 24),
    ("loaded from below in a later life", "chunk files, windows and states"): (2, 6),
    ("loaded from below in a later life", "directory, windows and states"): (48, 71),
    ("tier_chunks{tier=tier1,verb=load,outcome=done}", "chunk files over a directory"): (20, 52),
}
