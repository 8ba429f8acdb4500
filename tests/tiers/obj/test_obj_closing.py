"""A tier that is closed in the middle of something leaves no thread behind that waits for ever."""

from __future__ import annotations

import threading

from obj_support import QUICK, drive, make_namespace, open_tier

from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.obj.client import ObjectClient, open_client
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.pool import DaemonPool
from kvoffload.tiers.obj.tier import ObjTier

PATIENCE_S = 20.0
URL = "memory://closing"


class HangingClient(ObjectClient):
    """A real store whose journal is not read before it is released."""

    def __init__(self, inner: ObjectClient) -> None:
        super().__init__(inner._store)
        self.reached, self.released = threading.Event(), threading.Event()

    def get_whole(self, name: str) -> memoryview:
        if "/journal/" in name:
            self.reached.set()
            assert self.released.wait(PATIENCE_S)
        return super().get_whole(name)


def test_a_tier_that_is_closed_while_it_reads_the_journal_ends_all_of_its_threads() -> None:
    writer = open_tier(URL)
    driver = drive(writer)
    # More than are read at once, so that some are begun only after the end.
    for key in make_keys(30):
        driver.store([key])
    writer.shutdown()
    config = ObjTierConfig(url=URL, name="closed", **QUICK, shutdown_timeout_s=0.1)
    client = HangingClient(open_client(config))
    tier = ObjTier(config, make_namespace(), (4096, 12288), client=client)
    assert client.reached.wait(PATIENCE_S)
    own = [thread for thread in threading.enumerate() if "closed" in thread.name]
    tier.shutdown()
    client.released.set()
    for thread in own:
        thread.join(PATIENCE_S)
    assert [thread.name for thread in own if thread.is_alive()] == []
    assert tier.stats().counters["requests_get"] < 30, "the rest of the journal was read after the end"


def test_a_pool_that_was_stopped_takes_nothing_and_ends_what_it_took() -> None:
    pool = DaemonPool(2, "stopped")
    gate = threading.Event()
    taken = [pool.start(lambda: gate.wait(PATIENCE_S)) for _ in range(2)]
    pool.stop()
    pool.stop()
    assert pool.start(lambda: True) is None
    gate.set()
    assert [future is not None and future.result(PATIENCE_S) for future in taken] == [True, True]
