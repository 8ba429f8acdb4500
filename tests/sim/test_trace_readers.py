"""Trace readers: what a line says is what comes out, and a wrong line is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvoffload.errors import ConfigError
from kvoffload.sim.traces.azure import AzureTrace
from kvoffload.sim.traces.block_hashes import BlockHashTrace
from kvoffload.sim.traces.mooncake import MooncakeTrace
from kvoffload.sim.traces.opening import open_trace

SAMPLE = Path(__file__).parent / "fixtures" / "mooncake_synthetic_160.jsonl"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def mooncake(**fields: object) -> str:
    plain = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]}
    return json.dumps({**plain, **fields})


def test_a_published_trace_is_read_whole_and_again(tmp_path: Path) -> None:
    trace = open_trace(SAMPLE)
    assert isinstance(trace, MooncakeTrace)
    assert [len(list(trace)), len(list(trace))] == [160, 160]
    first = next(iter(trace))
    assert (first.arrival_s, first.input_tokens, first.output_tokens, len(first.keys)) == (0.0, 40160, 6, 79)


def test_equal_blocks_are_one_key_object_whichever_request_names_them(tmp_path: Path) -> None:
    one, two = open_trace(written(tmp_path, mooncake(), mooncake(hash_ids=[3, 5])))
    assert one.keys[0] is two.keys[0]
    assert one.keys[1] != two.keys[1]
    assert one.arrival_s == 1.5


def test_our_own_format_takes_texts_and_numbers_and_any_size_of_block(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"block_tokens": 16}',
        '{"arrival_s": 0.5, "input_tokens": 40, "output_tokens": 2, "blocks": ["9f3a", "77"]}',
        '{"arrival_s": 0.5, "input_tokens": 40, "blocks": ["9f3a", 77, -1]}',
    )
    trace = open_trace(path)
    assert isinstance(trace, BlockHashTrace)
    one, two = trace
    assert one.keys[0] == two.keys[0]
    assert len({*one.keys, *two.keys}) == 4
    assert (trace.block_tokens, two.output_tokens) == (16, 0)


@pytest.mark.parametrize(
    ("end", "requests"), [("", 2), ("\n", 2), ('{"arrival_s": 0.7, "inp', 2), ("7", None)]
)
def test_half_a_line_at_the_end_is_what_a_killed_engine_leaves(
    tmp_path: Path, end: str, requests: int | None
) -> None:
    line = '{"arrival_s": 0.5, "input_tokens": 16, "blocks": [1]}\n'
    path = tmp_path / "trace"
    path.write_text('{"block_tokens": 16}\n' + 2 * line + end)
    if requests is None:
        with pytest.raises(ConfigError, match="line 4"):
            list(open_trace(path))
    else:
        assert len(list(open_trace(path))) == requests


def test_azures_trace_has_lengths_and_says_that_it_knows_no_blocks(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    )
    trace = open_trace(path)
    assert isinstance(trace, AzureTrace)
    assert not trace.knows_blocks
    one, two = trace
    assert (one.arrival_s, one.input_tokens, one.keys) == (0.0, 374, ())
    assert (round(two.arrival_s, 4), two.output_tokens) == (4.3146, 109)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        mooncake(hash_ids=[3]).replace("600", "6000"),
        mooncake(hash_ids=[3, 3]),
        mooncake(hash_ids=[3, None]),
        mooncake(hash_ids=[3, True]),
        mooncake(hash_ids=None),
        mooncake(timestamp="soon"),
        mooncake(timestamp=100),
        mooncake(timestamp=float("nan")),
        mooncake(input_length=-1, hash_ids=[]),
        mooncake(hash_ids=[2**80, 1]),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, mooncake(), line)
    with pytest.raises(ConfigError, match="line 2"):
        list(open_trace(path))


@pytest.mark.parametrize("text", ["", "hello", "{}", '{"block_tokens": 0}', "a,b,c", "[1]"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        open_trace(written(tmp_path, text))
    with pytest.raises(ConfigError):
        open_trace(tmp_path / "nothing")
