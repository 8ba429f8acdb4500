"""Reading the engine's metrics."""

from __future__ import annotations

from kvoffload.cli.demo.sources import TokenSources, read_sources, sources_of_request, sum_metric

METRICS = """\
# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="a \\"b\\", {c}",source="local_compute"} 2.5e+03
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 128.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 1920.0
vllm:prompt_tokens_by_source_created{engine="0",model_name="m",source="local_compute"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 99.0
python_info 1.0
"""


def test_sources_are_summed_over_engines_and_nothing_else_is_taken_for_them():
    assert read_sources(METRICS) == TokenSources(computed=2600, device=128, kvoffload=1920)


def test_a_metric_is_the_sum_of_the_series_with_the_labels_asked_for():
    assert sum_metric(METRICS, "vllm:prompt_tokens_total") == 99
    assert sum_metric(METRICS, "vllm:prompt_tokens_by_source_total", engine="1") == 100
    assert sum_metric(METRICS, "python_info") == 1


def test_metrics_that_are_not_there_are_zero():
    assert read_sources("") == TokenSources(0, 0, 0)


def test_counters_that_come_late_are_waited_for():
    before = TokenSources(10, 0, 0)
    states = iter([before, TokenSources(12, 0, 0), TokenSources(12, 0, 8)])
    added = sources_of_request(lambda: next(states), before, 10, lambda: True)
    assert added == TokenSources(2, 0, 8)


def test_counters_that_never_come_are_not_waited_for_for_ever():
    before = TokenSources(10, 0, 0)
    patience = iter([True, True, False])
    assert sources_of_request(lambda: before, before, 10, lambda: next(patience)).total == 0
