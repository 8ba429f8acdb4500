"""What was measured, and what follows from it by arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvoffload.cli.demo.client import Reply
from kvoffload.cli.demo.sources import TokenSources


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    reply: Reply
    sources: TokenSources

    @property
    def share(self) -> float:
        """Part of the prompt, 0 to 1, that kvoffload brought back."""
        return self.sources.kvoffload / self.reply.prompt_tokens

    @property
    def is_consistent(self) -> bool:
        """Whether the engine's counters and its account of the request agree."""
        cached = self.sources.device + self.sources.kvoffload
        return self.sources.total == self.reply.prompt_tokens and cached == self.reply.cached_tokens


@dataclass(frozen=True, slots=True)
class Measurement:
    """One prompt in all rounds."""

    title: str
    cold: Sample
    """Round 1: nothing is known of the prompt."""
    warm: tuple[Sample, ...]
    """From round 2 on: evicted in between, so that kvoffload has to bring it back."""
    device: tuple[Sample, ...]
    """Sent again at once, in every round from the first: what the engine's own device cache gives."""

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All requests of this prompt."""
        return (self.cold, *self.warm, *self.device)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.cold.reply.prompt_tokens

    @property
    def worst_warm(self) -> Sample:
        """The request that got least from kvoffload."""
        return min(self.warm, key=lambda sample: sample.sources.kvoffload)

    @property
    def cold_ttft_s(self) -> float:
        """Time to first token, cold. Measured once: a prompt is cold only once."""
        return self.cold.reply.ttft_s

    @property
    def warm_ttft_s(self) -> float:
        """Time to first token with kvoffload, median over the rounds."""
        return _median_ttft(self.warm)

    @property
    def device_ttft_s(self) -> float:
        """Time to first token from the device cache, median over the rounds."""
        return _median_ttft(self.device)

    @property
    def warm_to_cold(self) -> float:
        """Ratio of the times to first token."""
        return self.warm_ttft_s / self.cold_ttft_s

    @property
    def warm_to_device(self) -> float:
        """Ratio of the times to first token: the median of the rounds' own ratios.

        The two requests of a round follow each other at once, so whatever else the machine does slows down both.
        """
        pairs = zip(self.warm, self.device[1:], strict=True)
        return median(warm.reply.ttft_s / device.reply.ttft_s for warm, device in pairs)

    @property
    def answers_equal(self) -> bool:
        """Whether all answers to this prompt are the same, word for word."""
        return len({sample.reply.text for sample in self.samples}) == 1


@dataclass(frozen=True, slots=True)
class Comeback:
    """One prompt before and after the engine was replaced by a fresh one."""

    title: str
    cold: Sample
    """In the first engine, when nothing was known of the prompt."""
    again: Sample
    """The first request to the fresh engine: its memory is empty, so what kvoffload brings comes from disk."""

    @property
    def to_cold(self) -> float:
        """Ratio of the times to first token."""
        return self.again.reply.ttft_s / self.cold.reply.ttft_s

    @property
    def answers_equal(self) -> bool:
        """Whether both answers are the same, word for word."""
        return self.again.reply.text == self.cold.reply.text


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the demo showed what it is there to show."""

    failures: tuple[str, ...]
    """What went wrong, a line each; empty if nothing did."""
    summary: str

    @property
    def passed(self) -> bool:
        """Whether nothing went wrong."""
        return not self.failures


def judge(results: Sequence[Measurement]) -> Verdict:
    """Correctness decides: equal answers, KV that really came back, figures that agree. Times are told, never judged."""
    failures: list[str] = []
    for result in results:
        if not result.answers_equal:
            failures.append(f"{result.title}: the answers differ")
        if result.worst_warm.sources.kvoffload == 0:
            failures.append(
                f"{result.title}: nothing came from kvoffload although the prompt had been evicted"
            )
        if not all(sample.is_consistent for sample in result.samples):
            failures.append(f"{result.title}: the engine's counters and its account of the request disagree")
    return Verdict(tuple(failures), _summary(results))


def _summary(results: Sequence[Measurement]) -> str:
    share = min(result.worst_warm.share for result in results)
    gains = sorted(1 / result.warm_to_cold for result in results)
    to_device = sorted(result.warm_to_device for result in results)
    return (
        f"at least {share:.1%} of every evicted prompt came from kvoffload; its first token came {gains[0]:.0f} to "
        f"{gains[-1]:.0f} times sooner than cold and took {to_device[0]:.2f} to {to_device[-1]:.2f} times as long as from "
        "the device cache"
    )


def judge_comebacks(comebacks: Sequence[Comeback]) -> Verdict:
    """As `judge`, for the second act."""
    failures: list[str] = []
    for result in comebacks:
        if not result.answers_equal:
            failures.append(f"{result.title}: the answer differs after the restart")
        if result.again.sources.kvoffload == 0:
            failures.append(f"{result.title}: nothing came from disk after the restart")
        if not result.again.is_consistent:
            failures.append(f"{result.title}: the engine's counters and its account of the request disagree")
    share = min(result.again.share for result in comebacks)
    gains = sorted(1 / result.to_cold for result in comebacks)
    summary = (
        f"after a restart at least {share:.1%} of every prompt came from disk; its first token came {gains[0]:.0f} to "
        f"{gains[-1]:.0f} times sooner than cold"
    )
    return Verdict(tuple(failures), summary)


def _median_ttft(samples: Sequence[Sample]) -> float:
    return median(sample.reply.ttft_s for sample in samples)
