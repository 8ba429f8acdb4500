"""The verdict, the table and the figures, from measurements that are made up."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from kvoffload.cli.demo.client import Reply
from kvoffload.cli.demo.report import comebacks_to_json, make_comeback_table, make_table, to_json
from kvoffload.cli.demo.results import Comeback, Measurement, Sample, judge, judge_comebacks
from kvoffload.cli.demo.sources import TokenSources


def sample(ttft_s, device=0, kvoffload=0, text="the same words", tokens=2000):
    reply = Reply(text, ttft_s, ttft_s + 1.0, tokens, 24, device + kvoffload)
    return Sample(reply, TokenSources(tokens - device - kvoffload, device, kvoffload))


def measurement(**changes):
    good = Measurement(
        "Debugger",
        cold=sample(4.0),
        warm=(sample(0.25, kvoffload=1920), sample(0.9, kvoffload=1920), sample(0.2, kvoffload=1920)),
        device=tuple(sample(ttft_s, device=1920) for ttft_s in (0.2, 0.3, 0.2, 0.2)),
    )
    return dataclasses.replace(good, **changes)


def comeback(**changes):
    good = Comeback("Debugger", cold=sample(4.0), again=sample(0.5, kvoffload=1920))
    return dataclasses.replace(good, **changes)


def text_of(table, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()


def test_good_measurements_pass():
    assert judge([measurement()]).passed


def test_times_never_decide():
    slow = measurement(warm=(sample(9.0, kvoffload=1920),) * 3)
    assert judge([slow]).passed


@pytest.mark.parametrize("which", ["warm", "device"])
def test_one_answer_that_differs_fails(which):
    odd = dataclasses.replace(
        getattr(measurement(), which)[-1], reply=sample(0.2, kvoffload=1920, text="other words").reply
    )
    verdict = judge([measurement(), measurement(**{which: (*getattr(measurement(), which)[:-1], odd)})])
    assert verdict.failures == ("Debugger: the answers differ",)


def test_one_evicted_prompt_that_got_nothing_fails():
    (failure,) = judge([measurement(warm=(*measurement().warm[:2], sample(4.0)))]).failures
    assert "nothing came from kvoffload" in failure


def test_figures_that_contradict_each_other_fail():
    reply = sample(0.2, kvoffload=1920).reply
    for sources in (TokenSources(80, 0, 1919), TokenSources(80, 1, 1920)):
        (failure,) = judge([measurement(warm=(*measurement().warm[:2], Sample(reply, sources)))]).failures
        assert "disagree" in failure


def test_short_times_are_medians_and_the_share_is_the_worst():
    result = measurement(warm=(*measurement().warm[:2], sample(0.2, kvoffload=1000)))
    assert result.warm_ttft_s == 0.25
    assert result.device_ttft_s == 0.2
    assert result.warm_to_cold == 0.0625
    assert result.warm_to_device == 1.0  # of 0.25 / 0.3, 0.9 / 0.2 and 0.2 / 0.2
    assert result.worst_warm.share == 0.5


def test_the_summary_tells_the_worst_share_and_the_ranges_of_the_ratios():
    other = measurement(cold=sample(1.0), warm=(sample(0.5, kvoffload=1800),) * 3)
    assert judge([measurement(), other]).summary == (
        "at least 90.0% of every evicted prompt came from kvoffload; its first token came 2 to 16 times sooner than "
        "cold and took 1.00 to 2.50 times as long as from the device cache"
    )


def test_the_table_has_every_figure_and_fits_a_terminal():
    text = text_of(make_table([measurement()]), width=80)
    row = next(line for line in text.splitlines() if "Debugger" in line)
    assert row.split() == [
        "Debugger",
        "2,000",
        "0",
        "1,920",
        "96.0%",
        "4.00",
        "0.20",
        "0.25",
        "0.062",
        "1.00",
        "yes",
    ]
    assert "…" not in text


def test_an_answer_that_differs_stands_out_in_the_table():
    assert "NO" in text_of(make_table([measurement(cold=sample(4.0, text="other"))]), width=80)


def test_the_figures_are_complete_and_are_json():
    verdict = judge([measurement()])
    found = json.loads(json.dumps(to_json([measurement()], verdict, {"model": "m"})))
    assert found["passed"] is True
    assert found["setting"] == {"model": "m"}
    (prompt,) = found["prompts"]
    assert prompt["share_from_kvoffload"] == 0.96
    assert [one["kvoffload_tokens"] for one in prompt["warm"]] == [1920] * 3
    assert len(prompt["device"]) == 4
    assert prompt["cold"]["answer"] == "the same words"


def test_a_good_comeback_passes_whatever_its_time():
    assert judge_comebacks([comeback(), comeback(again=sample(9.0, kvoffload=1920))]).passed


def test_an_answer_that_differs_after_the_restart_fails():
    verdict = judge_comebacks([comeback(again=sample(0.5, kvoffload=1920, text="other words"))])
    assert verdict.failures == ("Debugger: the answer differs after the restart",)


def test_a_prompt_that_got_nothing_from_disk_fails():
    (failure,) = judge_comebacks([comeback(), comeback(again=sample(4.0))]).failures
    assert "nothing came from disk" in failure


def test_the_second_act_is_told_in_a_table_and_in_figures():
    comebacks = [comeback()]
    text = text_of(make_comeback_table(comebacks))
    assert all(word in text for word in ("Debugger", "1,920", "96.0%", "0.125", "yes"))
    figures = comebacks_to_json(comebacks, judge_comebacks(comebacks))
    assert json.loads(json.dumps(figures))["prompts"][0]["share_from_disk"] == 0.96
