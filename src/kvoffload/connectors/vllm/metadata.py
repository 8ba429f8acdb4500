"""The core's messages in the envelopes that vLLM carries between its processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from kvoffload.messages import StepMessage, WorkerReport


@dataclass
class KvoffloadMetadata(KVConnectorMetadata):
    """Scheduler to workers, once a step."""

    message: StepMessage = field(default_factory=StepMessage)


@dataclass
class KvoffloadWorkerMetadata(KVConnectorWorkerMetadata):
    """A worker to the scheduler, once a step; vLLM merges those of all workers."""

    report: WorkerReport = field(default_factory=WorkerReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KvoffloadWorkerMetadata:
        """The report of both."""
        assert isinstance(other, KvoffloadWorkerMetadata), type(other)
        return KvoffloadWorkerMetadata(self.report.merge(other.report))
