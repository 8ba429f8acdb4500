"""An offloading spec: what a manager and a worker are made of. Chosen by name, made from one configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvoffload.clock import Clock
from kvoffload.config.schema import OffloadingConfig
from kvoffload.layout.certify import SeenTensor
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

    def certify(self, seen: Sequence[Mapping[str, SeenTensor]]) -> None:  # noqa: B027 - a spec may do without
        """Compare the tensors that this worker's engine registered with the layout; called before `make_worker`.

        Args:
            seen: Per offloaded group, by layer.

        Raises:
            UnsupportedModelError: they contradict it.
        """

    @abstractmethod
    def make_worker(self, device_pages: Sequence[Sequence[ByteArray]]) -> OffloadWorker:
        """One worker's side; blocks until all workers of the engine have come this far, or raises RegionError.

        Args:
            device_pages: Per offloaded group, per layer, the pages of this worker: (num_blocks, page_bytes), uint8.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line for the log: what is on and how big."""

    def report(self) -> tuple[str, ...]:
        """Further lines for the log at the start, e.g. what is certified and what is not."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Release what the spec holds (memory, sockets, threads). Idempotent."""
