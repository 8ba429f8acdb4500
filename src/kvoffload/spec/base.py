"""An offloading spec: what a manager and a worker are made of. Chosen by name, made from one configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from kvoffload.clock import Clock
from kvoffload.config.schema import OffloadingConfig
from kvoffload.manager.manager import OffloadManager
from kvoffload.metrics.recorder import Recorder
from kvoffload.worker.pages import ByteArray
from kvoffload.worker.worker import OffloadWorker


class OffloadingSpec(ABC):
    """A strategy. The scheduler's process asks for the manager, every worker's process for its worker.

    Args:
        config: The only thing a spec is made from. `config.spec_options` is an instance of `options_type`.

    Raises:
        ConfigError: the configuration asks for something that this spec does not have.
    """

    options_type: ClassVar[type | None] = None
    """The dataclass of the spec's own options (`spec_options`), None if it has none."""

    def __init__(self, config: OffloadingConfig) -> None:
        self.config = config

    @abstractmethod
    def make_manager(self, recorder: Recorder, clock: Clock) -> OffloadManager:
        """The scheduler's side."""

    @abstractmethod
    def make_worker(self, device_pages: Sequence[Sequence[ByteArray]]) -> OffloadWorker:
        """One worker's side; blocks until all workers of the engine have come this far, or raises RegionError.

        Args:
            device_pages: Per offloaded group, per layer, the pages of this worker: (num_blocks, page_bytes), uint8.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line for the log: what is on and how big."""

    @abstractmethod
    def close(self) -> None:
        """Release what the spec holds (memory, sockets, threads). Idempotent."""
