"""The experiment: every prompt cold, then several times after the others have evicted it; each time again at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kvoffload.cli.demo.client import Client
from kvoffload.cli.demo.progress import Progress, Step
from kvoffload.cli.demo.prompts import Prompt
from kvoffload.cli.demo.results import Comeback, Measurement, Sample
from kvoffload.cli.demo.sources import TokenSources, read_sources, sources_of_request

_MAX_ANSWER_TOKENS = 24
_COUNTERS_LATE_S = 3.0
_LOOK_AGAIN_S = 0.05


class Experiment:
    """Sends the prompts, one request at a time, and measures.

    Args:
        client: Of the engine.
        model: Name under which the engine serves it.
        explain_failure: Called when a request failed; raises if the engine died, because then its log knows why.
        progress: Told what happens.
    """

    def __init__(
        self, client: Client, model: str, explain_failure: Callable[[], None], progress: Progress
    ) -> None:
        self._client = client
        self._model = model
        self._explain_failure = explain_failure
        self._progress = progress

    def run(self, prompts: Sequence[Prompt], warm_up: Prompt, rounds: int) -> list[Measurement]:
        """All rounds; the first is the cold one.

        The times are short and the machine has other things to do: so warm and device-cache requests alternate, and
        there are several of each.
        """
        assert rounds >= 2, rounds
        with self._progress.stage("Warm-up, not measured"):
            # The first pass through an engine pays for things that have nothing to do with the prompt.
            self.send(warm_up)
        passes = [self._round(number, prompts) for number in range(1, rounds + 1)]
        return [
            Measurement(
                title=prompt.title,
                cold=passes[0][index][0],
                warm=tuple(one[index][0] for one in passes[1:]),
                device=tuple(one[index][1] for one in passes),
            )
            for index, prompt in enumerate(prompts)
        ]

    def run_again(
        self, prompts: Sequence[Prompt], warm_up: Prompt, results: Sequence[Measurement]
    ) -> list[Comeback]:
        """To a fresh engine: every prompt once, beside what the first engine measured."""
        with self._progress.stage("Warm-up, not measured"):
            self.send(warm_up)
        comebacks = []
        with self._progress.stage("The same prompts to the fresh engine", len(prompts)) as step:
            for prompt, result in zip(prompts, results, strict=True):
                step(prompt.title)
                again = self.send(prompt)
                comebacks.append(Comeback(prompt.title, result.cold, again))
                self._progress.say(
                    f"  {prompt.title}: {again.sources.computed:,} tokens computed, {again.sources.kvoffload:,} from disk, "
                    f"first token after {again.reply.ttft_s:.2f} s"
                )
        return comebacks

    def send(self, prompt: Prompt) -> Sample:
        """One request and what it added to the engine's counters."""
        try:
            before = self._read_sources()
            reply = self._client.chat(self._model, prompt.messages, _MAX_ANSWER_TOKENS)
            added = sources_of_request(
                self._read_sources, before, reply.prompt_tokens, _patience(_COUNTERS_LATE_S)
            )
        except Exception:
            self._explain_failure()
            raise
        return Sample(reply, added)

    def _round(self, number: int, prompts: Sequence[Prompt]) -> list[tuple[Sample, Sample]]:
        what = "every prompt is new" if number == 1 else "every prompt has been evicted from the device"
        with self._progress.stage(f"Round {number}, {what}", 2 * len(prompts)) as step:
            return [self._pair(prompt, step) for prompt in prompts]

    def _pair(self, prompt: Prompt, step: Step) -> tuple[Sample, Sample]:
        step(prompt.title)
        first = self.send(prompt)
        step(f"{prompt.title}, again at once")
        again = self.send(prompt)
        self._progress.say(
            f"  {prompt.title}: {first.sources.computed:,} tokens computed, {first.sources.kvoffload:,} from kvoffload, "
            f"first token after {first.reply.ttft_s:.2f} s; again at once {again.reply.ttft_s:.2f} s"
        )
        return first, again

    def _read_sources(self) -> TokenSources:
        return read_sources(self._client.metrics_text())


def _patience(limit_s: float) -> Callable[[], bool]:
    deadline = time.monotonic() + limit_s

    def wait() -> bool:
        time.sleep(_LOOK_AGAIN_S)
        return time.monotonic() < deadline

    return wait
