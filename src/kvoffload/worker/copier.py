"""The contract of a copier: carries out one job, synchronously, on the thread that calls it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kvoffload.messages import CopyJob, JobOutcome


class Copier(ABC):
    """Copies the blocks of one worker between its device and the host region."""

    @abstractmethod
    def copy(self, job: CopyJob) -> JobOutcome:
        """Carry out a job and wait for it.

        Returns:
            The outcome of this one worker. A chunk that could not be copied is in `failed`; its target may then
            hold anything. Must not raise for what the world does wrong.
        """
