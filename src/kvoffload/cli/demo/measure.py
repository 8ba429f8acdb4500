"""The experiment: every prompt cold, again from the device cache, and again after the others have evicted it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvoffload.cli.demo.client import Client, Reply
from kvoffload.cli.demo.progress import Progress
from kvoffload.cli.demo.prompts import Prompt
from kvoffload.cli.demo.sources import TokenSources, read_sources, sources_of_request

MAX_ANSWER_TOKENS = 24
_COUNTERS_LATE_S = 3.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    reply: Reply
    sources: TokenSources

    @property
    def is_consistent(self) -> bool:
        """Whether the engine's counters and its account of the request agree."""
        cached = self.sources.device + self.sources.kvoffload
        return self.sources.total == self.reply.prompt_tokens and cached == self.reply.cached_tokens


@dataclass(frozen=True, slots=True)
class Measurement:
    """One prompt, three times."""

    title: str
    cold: Sample
    device: Sample
    """Again at once: what the engine's own device cache gives."""
    warm: Sample
    """In the second round, evicted in between."""

    @property
    def share(self) -> float:
        """Part of the prompt, 0 to 1, that kvoffload brought back in the second round."""
        return self.warm.sources.kvoffload / self.warm.reply.prompt_tokens

    @property
    def warm_to_cold(self) -> float:
        """Ratio of the times to the first token."""
        return self.warm.reply.ttft_s / self.cold.reply.ttft_s

    @property
    def warm_to_device(self) -> float:
        """Ratio of the times to the first token."""
        return self.warm.reply.ttft_s / self.device.reply.ttft_s

    @property
    def answers_equal(self) -> bool:
        """Whether all three answers are the same, word for word."""
        return self.cold.reply.text == self.device.reply.text == self.warm.reply.text

    @property
    def is_consistent(self) -> bool:
        """Whether the figures of all three requests agree with each other."""
        return self.cold.is_consistent and self.device.is_consistent and self.warm.is_consistent


class Experiment:
    """Sends the prompts and measures.

    Args:
        client: Of the engine.
        model: Name under which the engine serves it.
        explain_failure: Called when a request failed; raises if the engine died, because then its log knows why.
    """

    def __init__(self, client: Client, model: str, explain_failure: Callable[[], None]) -> None:
        self._client = client
        self._model = model
        self._explain_failure = explain_failure

    def run(self, prompts: Sequence[Prompt], warm_up: Prompt, progress: Progress) -> list[Measurement]:
        """Both rounds, one request at a time."""
        first: list[tuple[Sample, Sample]] = []
        with progress.stage("Round 1: every prompt cold, and at once again", 1 + 2 * len(prompts)) as step:
            # The first pass through an engine pays for things that have nothing to do with the prompt.
            step("warm-up, not measured")
            self.send(warm_up)
            for prompt in prompts:
                step(f"{prompt.title}, cold")
                cold = self.send(prompt)
                step(f"{prompt.title}, device cache")
                device = self.send(prompt)
                progress.say(_line(prompt, cold, "cold") + f", again at once {device.reply.ttft_s:.2f} s")
                first.append((cold, device))
        second: list[Sample] = []
        with progress.stage("Round 2: every prompt again, evicted in between", len(prompts)) as step:
            for prompt in prompts:
                step(prompt.title)
                second.append(self.send(prompt))
                progress.say(_line(prompt, second[-1], "warm"))
        return [
            Measurement(prompt.title, cold, device, warm)
            for prompt, (cold, device), warm in zip(prompts, first, second, strict=True)
        ]

    def send(self, prompt: Prompt) -> Sample:
        """One request and what it added to the engine's counters."""
        try:
            before = self._read_sources()
            reply = self._client.chat(self._model, prompt.messages, MAX_ANSWER_TOKENS)
            added = sources_of_request(
                self._read_sources, before, reply.prompt_tokens, _patience(_COUNTERS_LATE_S)
            )
        except Exception:
            self._explain_failure()
            raise
        return Sample(reply, added)

    def _read_sources(self) -> TokenSources:
        return read_sources(self._client.metrics_text())


def _patience(limit_s: float) -> Callable[[], bool]:
    deadline = time.monotonic() + limit_s

    def wait() -> bool:
        time.sleep(0.05)
        return time.monotonic() < deadline

    return wait


def _line(prompt: Prompt, sample: Sample, how: str) -> str:
    source = f", {sample.sources.kvoffload:,} from kvoffload" if sample.sources.kvoffload else ""
    return f"  {prompt.title}: {sample.reply.prompt_tokens:,} tokens{source}; first token {how} {sample.reply.ttft_s:.2f} s"
