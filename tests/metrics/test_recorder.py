"""Counters only rise, and what exporters take adds up to what was counted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.metrics import catalog as m
from kvoffload.metrics.catalog import CATALOG, Metric, MetricKind
from kvoffload.metrics.recorder import Recorder, parse_series, series_name

COUNTERS = [metric for metric in CATALOG if metric.kind is MetricKind.COUNTER and not metric.labels]
GAUGES = [metric for metric in CATALOG if metric.kind is MetricKind.GAUGE and not metric.labels]
LABELLED = [metric for metric in CATALOG if metric.labels]


def labels_of(metric: Metric, value: str = "x") -> dict[str, str]:
    return dict.fromkeys(metric.labels, value)


def test_names_are_unique_and_say_whose_they_are() -> None:
    names = [metric.name for metric in CATALOG]
    assert len(set(names)) == len(names)
    assert all(name.startswith("kvoffload_") and name == name.lower() for name in names)
    # An exporter adds "_total" to a counter by itself.
    assert not [name for name in names if name.endswith("_total")]
    assert all(metric.help for metric in CATALOG)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(COUNTERS), st.integers(0, 10)),
            st.tuples(st.sampled_from(GAUGES), st.integers(-5, 5)),
            st.just("take"),
        ),
        max_size=40,
    )
)
def test_changes_are_never_negative_and_sum_to_the_totals(history: list) -> None:
    recorder, taken = Recorder(), Counter[str]()

    def take() -> None:
        for series, change in recorder.take_changes().items():
            if parse_series(series)[0].kind is MetricKind.COUNTER:
                assert change > 0, (series, change)
                taken[series] += change
            else:
                taken[series] = change

    for event in history:
        if event == "take":
            take()
        elif event[0].kind is MetricKind.COUNTER:
            recorder.count(*event)
        else:
            recorder.set(*event)
    take()
    assert recorder.take_changes() == {}
    assert {name: taken[name] for name in recorder.values()} == recorder.values()


def test_a_negative_amount_never_reaches_a_counter() -> None:
    recorder = Recorder()
    with pytest.raises(AssertionError):
        recorder.count(m.STORED_CHUNKS, -1)
    assert recorder.value(m.STORED_CHUNKS) == 0


def test_counters_are_not_set_and_gauges_are_not_counted() -> None:
    with pytest.raises(AssertionError):
        Recorder().set(m.STORED_CHUNKS, 1)
    with pytest.raises(AssertionError):
        Recorder().count(m.RESIDENT_CHUNKS, 1)


def test_every_counter_without_labels_is_there_from_the_start() -> None:
    values = Recorder().values()
    assert {metric.name: 0 for metric in CATALOG if not metric.labels} == values


def test_values_are_a_copy() -> None:
    recorder = Recorder()
    recorder.values()["kvoffload_stored_chunks"] = 99
    assert recorder.value(m.STORED_CHUNKS) == 0


def test_series_of_one_metric_are_counted_apart_and_their_names_can_be_read_back() -> None:
    recorder = Recorder()
    for metric in LABELLED:
        for value in ("fs", "obj"):
            labels = labels_of(metric, value)
            assert parse_series(series_name(metric, labels)) == (metric, labels)
            if metric.kind is MetricKind.COUNTER:
                recorder.count(metric, 2 if value == "fs" else 3, **labels)
                recorder.count(metric, 1, **labels)
    counters = [metric for metric in LABELLED if metric.kind is MetricKind.COUNTER]
    assert counters
    for metric in counters:
        assert recorder.value(metric, **labels_of(metric, "fs")) == 3
        assert recorder.value(metric, **labels_of(metric, "obj")) == 4
        assert recorder.value(metric, **labels_of(metric, "peer")) == 0


def test_a_metric_has_exactly_the_labels_of_the_catalogue() -> None:
    with pytest.raises(AssertionError):
        Recorder().count(m.STORED_CHUNKS, 1, tier="fs")
    with pytest.raises(AssertionError):
        Recorder().count(LABELLED[0], 1)
