"""A bug of ours costs the cache and nothing else: nobody waits for a load that will never come. No engine is started."""

from __future__ import annotations

import numpy as np
import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import RequestStatus

from kvoffload.clock import Clock
from kvoffload.config.schema import OffloadingConfig
from kvoffload.connectors.vllm.scheduler import ConnectorScheduler
from kvoffload.connectors.vllm.worker import ConnectorWorker
from kvoffload.manager.manager import OffloadManager
from kvoffload.messages import NO_SLOT, StepMessage
from kvoffload.metrics.recorder import Recorder
from kvoffload.spec.cpu import CPUOffloadingSpec
from kvoffload.testing.configs import example_config


class Request:
    """What the connector reads of a vLLM request."""

    resumable = False
    skip_reading_prefix_cache = False
    kv_transfer_params = None
    lora_request = None
    prompt_is_token_ids = None
    status = RequestStatus.WAITING

    def __init__(self, name: str, tokens: int, span: int) -> None:
        self.request_id = name
        self.num_prompt_tokens = self.num_tokens = tokens
        self.num_computed_tokens = 0
        self.block_hashes = [bytes([i + 1]) * 32 for i in range(tokens // span)]


class Blocks:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def get_block_ids(self) -> tuple[list[int], ...]:
        return (self.ids,)


class BrokenSpec(CPUOffloadingSpec):
    """Its manager raises where the test says."""

    where = ""

    def make_manager(self, recorder: Recorder, clock: Clock) -> OffloadManager:
        manager = super().make_manager(recorder, clock)

        def fail(*args: object, **kwargs: object) -> None:
            raise RuntimeError("a bug")

        setattr(manager, self.where, fail)
        return manager


def make(where: str) -> tuple[ConnectorScheduler, OffloadingConfig]:
    config = example_config()
    spec = type("Spec", (BrokenSpec,), {"where": where})(config)
    return ConnectorScheduler(spec, config), config


@pytest.mark.parametrize("where", ["allocated", "step"])
def test_a_load_that_was_promised_before_the_bug_is_reported_as_failed(where: str) -> None:
    scheduler, config = make(where)
    span = config.groups[0].tokens_per_block
    request = Request("r", 4 * span, span)
    scheduler.add_request(request)
    scheduler.match(request, span)
    scheduler._manager.match = lambda *_: 2 * span  # type: ignore[method-assign]
    if where == "step":
        scheduler._manager.allocated = lambda *_: None  # type: ignore[method-assign]
    scheduler.match(request, span)
    scheduler.allocated(request, Blocks([5, 6, 7, 8]), 2 * span)
    message = scheduler.step(SchedulerOutput.make_empty())
    assert scheduler.broken
    (job,) = message.loads
    assert job.req_id == "r"
    assert job.parts[0].block_ids.tolist() == [6, 7]
    assert set(job.parts[0].slots.tolist()) == {NO_SLOT}
    assert scheduler.step(SchedulerOutput.make_empty()).loads == ()


@pytest.mark.parametrize(
    "where", ["add_request", "match", "step", "report", "finish_request", "has_pending_work", "reset"]
)
def test_after_a_bug_the_connector_answers_as_if_there_was_no_cache(where: str) -> None:
    scheduler, config = make(where)
    span = config.groups[0].tokens_per_block
    request = Request("r", 2 * span, span)
    for _ in range(2):
        scheduler.add_request(request)
        assert scheduler.match(request, 0) == 0
        scheduler.allocated(request, Blocks([1, 2]), 0)
        message = scheduler.step(SchedulerOutput.make_empty())
        assert (message.loads, message.stores, message.flush) == ((), (), ())
        scheduler.finish_request(request)
        scheduler.has_pending_work()
        scheduler.reset()
        scheduler.report(None)  # type: ignore[arg-type]
    assert scheduler.broken
    assert scheduler.match(request, 0) == 0


def test_a_worker_with_a_bug_reports_every_load_as_failed_and_every_store_too() -> None:
    from kvoffload.messages import CopyJob, GroupCopies
    from kvoffload.types import Direction, JobId, RequestId

    worker = ConnectorWorker(
        CPUOffloadingSpec(example_config()), example_config(), num_blocks=8
    )  # never registered
    ids = np.array([1, 2])
    part = GroupCopies(0, ids, np.array([0, 1]), np.array([0, 0]))
    load = CopyJob(JobId(1), RequestId("r"), Direction.LOAD, (part,))
    store = CopyJob(JobId(2), RequestId("s"), Direction.STORE, (part,))
    worker.flush(StepMessage())
    worker.start_loads(StepMessage(loads=(load,)))
    worker.start_stores(StepMessage(stores=(store,)))
    assert worker.finished_loads() == ({"r"}, {"r"})
    assert worker.take_failed_blocks() == {1, 2}
    report = worker.take_report()
    assert report is not None
    assert {job_id: bool(outcome.failed) for job_id, outcome in report.outcomes.items()} == {1: True, 2: True}
