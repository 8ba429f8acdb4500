"""An out-of-tree offloading spec that makes faults on purpose, found by the engine through `spec_module_path`.

What goes wrong is in a file that the test rewrites while the engine runs, and every job is written to a journal: so
one engine serves many tests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvoffload.messages import CopyJob, JobOutcome
from kvoffload.spec.cpu import CPUOffloadingSpec
from kvoffload.types import Direction, JobId
from kvoffload.worker.copier import Copier
from kvoffload.worker.pages import ByteArray, GroupPages
from kvoffload.worker.worker import OffloadWorker

HOLD_LIMIT_S = 60.0
DAMAGE_BYTES = 1024


@dataclass(frozen=True)
class Fault:
    """What happens to the jobs of one direction."""

    fail: str = "none"
    """Which chunks of a job fail: none, all, first, middle, last."""
    raises: bool = False
    """The copier breaks its contract and raises."""
    damage: bool = False
    """Loaded bytes are shifted in their page: valid numbers, wrong places."""
    delay_s: float = 0.0
    hold: bool = False
    """The job waits, before it copies anything, until this is false again."""
    unfenced: bool = False
    """Stores are not finished before their blocks are given away: what fences prevent."""
    ranks: tuple[int, ...] | None = None
    """Whom it concerns; None: everybody."""


@dataclass(frozen=True)
class FaultOptions:
    """The spec's own options (`spec_options`)."""

    control_path: str
    journal_path: str


class FaultySpec(CPUOffloadingSpec):
    """The host tier with a copier that misbehaves when told to."""

    options_type = FaultOptions

    def make_worker(self, device_pages: Sequence[Sequence[ByteArray]]) -> OffloadWorker:
        """See OffloadingSpec."""
        worker = super().make_worker(device_pages)
        flush = worker.flush

        def flush_unless_told(job_ids: Collection[JobId]) -> None:
            if not read_faults(Path(self._fault_options.control_path)).get("store", Fault()).unfenced:
                flush(job_ids)

        worker.flush = flush_unless_told  # type: ignore[method-assign]
        return worker

    def make_copier(self, groups: Sequence[GroupPages]) -> Copier:
        """See CPUOffloadingSpec."""
        rank = self.config.parallel.rank
        return FaultyCopier(super().make_copier(groups), groups, rank, self._fault_options)

    @property
    def _fault_options(self) -> FaultOptions:
        options = self.config.spec_options
        assert isinstance(options, FaultOptions), options
        return options


class FaultyCopier(Copier):
    """Wraps another copier."""

    def __init__(self, inner: Copier, groups: Sequence[GroupPages], rank: int, options: FaultOptions) -> None:
        self._inner = inner
        self._groups = groups
        self._rank = rank
        self._options = options

    def copy(self, job: CopyJob) -> JobOutcome:
        """See Copier."""
        self._write_journal("begin", job, frozenset())
        fault = self._fault(job.direction)
        if fault.delay_s:
            time.sleep(fault.delay_s)
        end = time.monotonic() + HOLD_LIMIT_S
        while fault.hold and time.monotonic() < end:
            time.sleep(0.005)
            fault = self._fault(job.direction)
        if fault.raises:
            raise RuntimeError("a fault on purpose")
        outcome = self._inner.copy(job)
        if fault.damage:
            self._damage(job)
        failed = outcome.failed | _chosen(job, fault.fail)
        self._write_journal("end", job, failed)
        return JobOutcome(outcome.workers, failed, outcome.copied_bytes, outcome.busy_s)

    def _damage(self, job: CopyJob) -> None:
        for part in job.parts:
            for pages in self._groups[part.group].device:
                for block in part.block_ids.tolist():
                    pages[block] = np.roll(pages[block], DAMAGE_BYTES)

    def _fault(self, direction: Direction) -> Fault:
        fault = read_faults(Path(self._options.control_path)).get(direction.value, Fault())
        return fault if fault.ranks is None or self._rank in fault.ranks else Fault()

    def _write_journal(self, event: str, job: CopyJob, failed: frozenset[tuple[int, int]]) -> None:
        entry = {
            "event": event,
            "rank": self._rank,
            "job": job.job_id,
            "request": job.req_id,
            "direction": job.direction.value,
            "blocks": [block for part in job.parts for block in part.block_ids.tolist()],
            "slots": sorted({slot for part in job.parts for slot in part.slots.tolist()}),
            "failed": sorted(failed),
        }
        # One write to a file in append mode: lines of two workers do not mix.
        with Path(self._options.journal_path).open("a") as journal:
            journal.write(json.dumps(entry) + "\n")


def _chosen(job: CopyJob, which: str) -> frozenset[tuple[int, int]]:
    chunks = [(part.group, slot) for part in job.parts for slot in dict.fromkeys(part.slots.tolist())]
    picked = {
        "none": [],
        "all": chunks,
        "first": chunks[:1],
        "middle": chunks[len(chunks) // 2 : len(chunks) // 2 + 1],
        "last": chunks[-1:],
    }[which]
    return frozenset(picked)


def read_faults(path: Path) -> dict[str, Fault]:
    """The faults that hold now, by direction."""
    if not path.exists():
        return {}
    raw: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return {
        name: Fault(**{**values, "ranks": None if values["ranks"] is None else tuple(values["ranks"])})
        for name, values in raw.items()
    }


def write_faults(path: Path, faults: dict[str, Fault]) -> None:
    """Replace the faults, at once and whole."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({name: asdict(fault) for name, fault in faults.items()}))
    os.replace(new, path)
