"""The experiment: what is sent in which order, and what its counters are taken for."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvoffload.cli.demo.client import ApiError, Reply
from kvoffload.cli.demo.measure import Experiment
from kvoffload.cli.demo.progress import Progress
from kvoffload.cli.demo.prompts import Prompt

PROMPTS = [Prompt(name, ({"role": "user", "content": name},), 2000) for name in "ab"]
WARM_UP = Prompt("w", ({"role": "user", "content": "w"},), 100)


class FakeClient:
    """An engine whose device holds one prompt and whose host memory holds all."""

    def __init__(self):
        self.sent = []
        self.counters = {"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 0}
        self.known = set()

    def metrics_text(self):
        return "".join(
            f'vllm:prompt_tokens_by_source_total{{source="{source}"}} {value}\n'
            for source, value in self.counters.items()
        )

    def chat(self, model, messages, max_tokens):
        name = messages[0]["content"]
        last = self.sent[-1] if self.sent else None
        source = (
            "local_cache_hit"
            if name == last
            else "external_kv_transfer"
            if name in self.known
            else "local_compute"
        )
        cached = 0 if source == "local_compute" else 1920
        self.counters[source] += cached or 2000
        self.counters["local_compute"] += 80 if cached else 0
        self.sent.append(name)
        self.known.add(name)
        return Reply(f"answer to {name}", 1.0, 2.0, 2000, 24, cached)


def experiment(client, explain_failure=lambda: None):
    return Experiment(client, "m", explain_failure, Progress(Console(file=io.StringIO())))


def test_every_prompt_is_sent_in_pairs_and_the_others_in_between():
    client = FakeClient()
    experiment(client).run(PROMPTS, WARM_UP, 3)
    assert "".join(client.sent) == "w" + "aabb" * 3


def test_tokens_go_to_the_request_that_caused_them():
    results = experiment(FakeClient()).run(PROMPTS, WARM_UP, 3)
    for result in results:
        assert (result.cold.sources.computed, result.cold.sources.kvoffload) == (2000, 0)
        assert [one.sources.kvoffload for one in result.warm] == [1920, 1920]
        assert [one.sources.device for one in result.device] == [1920, 1920, 1920]
        assert all(one.is_consistent for one in result.samples)


def test_a_failed_request_is_explained_by_the_engines_death_if_it_died():
    class Dead(FakeClient):
        def chat(self, model, messages, max_tokens):
            raise ApiError("no answer")

    def explain():
        raise RuntimeError("the engine died")

    with pytest.raises(RuntimeError, match="the engine died"):
        experiment(Dead(), explain).send(WARM_UP)
    with pytest.raises(ApiError, match="no answer"):
        experiment(Dead()).send(WARM_UP)
