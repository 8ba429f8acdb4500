"""What the processes of one engine must agree on before they share memory. Nothing else lives here."""

from __future__ import annotations

from kvoffload.memory.region_spec import RegionSpec
from kvoffload.memory.wire import Attach, Join


def join_message(spec: RegionSpec, rank: int, remaining_s: float) -> Join:
    """What a worker says first."""
    return Join(rank, spec.world_size, spec.plan.total_bytes, spec.plan.fingerprint, remaining_s)


def attach_message(spec: RegionSpec) -> Attach:
    """What a process that is not a worker says first."""
    return Attach(spec.world_size, spec.plan.total_bytes, spec.plan.fingerprint)


def difference(spec: RegionSpec, theirs: Join | Attach) -> str | None:
    """What another process expects that rank 0 does not have, for people; None if they agree."""
    pairs = (
        ("world size", theirs.world_size, spec.world_size),
        ("bytes in total", theirs.total_bytes, spec.plan.total_bytes),
        ("rows x stride of each group", theirs.fingerprint, spec.plan.fingerprint),
    )
    parts = [f"{name}: it has {their}, rank 0 has {our}" for name, their, our in pairs if their != our]
    if not parts:
        return None
    return f"{'; '.join(parts)}; start all processes of an engine with the same configuration"
