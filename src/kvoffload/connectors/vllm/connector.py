"""`KvoffloadConnector`: the class that vLLM loads. It only passes calls on, to the side that its process has."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvoffload.connectors.vllm.config import build_offloading_config
from kvoffload.connectors.vllm.contract import check_contract
from kvoffload.connectors.vllm.logs import adopt_engine_logging
from kvoffload.connectors.vllm.metadata import KvoffloadMetadata, KvoffloadWorkerMetadata
from kvoffload.connectors.vllm.scheduler import ConnectorScheduler
from kvoffload.connectors.vllm.stats import KvoffloadPromMetrics, KvoffloadStats
from kvoffload.connectors.vllm.worker import ConnectorWorker
from kvoffload.spec.factory import OffloadingSpecFactory

logger = logging.getLogger(__name__)


class KvoffloadConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps evicted KV in host memory and loads it back when its prefix returns.

    Options: `kv_connector_extra_config`, see `kvoffload.config.options.OffloadingOptions`.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        adopt_engine_logging()
        check_contract()
        config = build_offloading_config(vllm_config, kv_cache_config)
        self._single_group = len(kv_cache_config.kv_cache_groups) == 1
        self._spec = OffloadingSpecFactory.create(config)
        self._scheduler: ConnectorScheduler | None = None
        self._worker: ConnectorWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = ConnectorScheduler(self._spec, config)
            logger.info("kvoffload: %s", self._spec.describe())
            for line in self._spec.report():
                logger.info("kvoffload: %s", line)
            if vllm_config.kv_transfer_config.kv_load_failure_policy != "recompute":
                logger.warning(
                    "kvoffload: kv_load_failure_policy is 'fail': if KV cannot be loaded, vLLM FAILS the request instead "
                    'of recomputing it; set "kv_load_failure_policy": "recompute" in --kv-transfer-config'
                )
        else:
            self._worker = ConnectorWorker(self._spec, config, kv_cache_config.num_blocks)

    # -- what the engine asks about us ---------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """A lost store is a later miss, nothing more."""
        return False

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """Asked by older versions: one slab per block, unless layers must be certified one by one."""
        return not self._spec.config.canonical_layout

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """The layout we like best: one slab per block copies fastest. Engines that do not have it ignore it.

        Not on a CPU engine: its MLA kernels say that any layout will do, and die of one that interleaves the layers.
        """
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        layer_outermost = extra.get("canonical_layout") or vllm_config.device_config.device_type == "cpu"
        return "LBHNC" if layer_outermost else "BLHNC"

    # -- worker side ---------------------------------------------------------------------------------------------

    @property
    def _worker_side(self) -> ConnectorWorker:
        assert self._worker is not None, "a method of the worker was called in the scheduler's process"
        return self._worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """See the base class."""
        self._worker_side.register(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """See the base class."""
        assert isinstance(kv_connector_metadata, KvoffloadMetadata), type(kv_connector_metadata)
        self._worker_side.flush(kv_connector_metadata.message)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """See the base class."""
        self._worker_side.start_loads(self._metadata.message)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request does not run before its whole load has ended."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to do: whole blocks are stored after the pass."""

    def wait_for_save(self) -> None:
        """See the base class."""
        self._worker_side.start_stores(self._metadata.message)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:  # noqa: ARG002
        """See the base class."""
        ended, failed = self._worker_side.finished_loads()
        return KVConnectorTransferResults(
            finished_recving=set(ended),
            # With several groups a block id alone does not say whose it is: whole requests are reported then.
            failed_recving=set() if self._single_group else set(failed),
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """See the base class."""
        blocks = self._worker_side.take_failed_blocks()
        return blocks if self._single_group else set()

    def build_connector_worker_meta(self) -> KvoffloadWorkerMetadata | None:
        """See the base class."""
        report = self._worker_side.take_report()
        return None if report is None else KvoffloadWorkerMetadata(report)

    @property
    def _metadata(self) -> KvoffloadMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, KvoffloadMetadata), type(metadata)
        return metadata

    # -- scheduler side ------------------------------------------------------------------------------------------

    @property
    def _scheduler_side(self) -> ConnectorScheduler:
        assert self._scheduler is not None, "a method of the scheduler was called in a worker's process"
        return self._scheduler

    def on_new_request(self, request: Any) -> None:
        """See the base class."""
        self._scheduler_side.add_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """See the base class."""
        tokens = self._scheduler_side.match(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See the base class."""
        self._scheduler_side.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KvoffloadMetadata:
        """See the base class."""
        return KvoffloadMetadata(self._scheduler_side.step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """See the base class."""
        metadata = connector_output.kv_connector_worker_meta
        if isinstance(metadata, KvoffloadWorkerMetadata):
            self._scheduler_side.report(metadata.report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        """See the base class. The blocks may be freed at once: stores that read them are fenced."""
        return False, self._scheduler_side.finish_request(request)

    def request_finished_all_groups(
        self,
        request: Any,
        block_ids: tuple[list[int], ...],  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`, for engines with several groups."""
        return False, self._scheduler_side.finish_request(request)

    def has_pending_push_work(self) -> bool:
        """See the base class."""
        return self._scheduler_side.has_pending_work()

    def take_events(self) -> Iterable[Any]:
        """No events yet."""
        return ()

    def reset_cache(self) -> bool | None:
        """See the base class."""
        return self._scheduler_side.reset()

    # -- both sides ----------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KvoffloadStats | None:
        """What changed in the counters since the last call (scheduler side only)."""
        if self._scheduler is None:
            return None
        changes = self._scheduler.recorder.take_changes()
        return KvoffloadStats(data=dict(changes)) if changes else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvoffloadStats:
        """See the base class."""
        return KvoffloadStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KvoffloadPromMetrics:
        """See the base class."""
        return KvoffloadPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """See the base class."""
        if self._worker is not None:
            self._worker.shutdown()
        if self._scheduler is not None:
            self._scheduler.shutdown(self._spec.config.options.drain_timeout_s)
        self._spec.close()
