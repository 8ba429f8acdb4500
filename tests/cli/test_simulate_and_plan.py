"""`kvoffload simulate` and `kvoffload plan`: what they print is what was computed, and refusals are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvoffload.cli.main import app
from kvoffload.sim.replay import summary

SAMPLE = str(Path(__file__).parent.parent / "sim" / "fixtures" / "mooncake_synthetic_160.jsonl")
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_a_policy_of_ones_own_is_taken_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from kvoffload.policies.lru import LRUPolicy\nclass Mine(LRUPolicy):\n    pass\n"
    (tmp_path / "policies_of_a_user.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ("--tiers", "host=16GiB", "--json", "--policy")
    result = run("simulate", SAMPLE, *options, "lru,policies_of_a_user:Mine")
    assert result.exit_code == 0, result.output
    lru, mine = json.loads(result.stdout)["runs"]
    assert mine.pop("policy") == "policies_of_a_user:Mine"
    assert lru.pop("policy") == "lru"
    assert mine == lru
    unknown = run("simulate", SAMPLE, *options, "best")
    assert "package.module:Class" in unknown.output


def test_a_run_for_every_policy_and_size_and_json_is_one_object() -> None:
    options = ("--tiers", "host=16GiB,fs=64GiB", "--policy", "lru,arc", "--sweep", "fs=32GiB,64GiB")
    result = run("simulate", SAMPLE, *options, "--json", "--curve")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [(entry["policy"], entry["tiers"][1]["chunks"]) for entry in found["runs"]] == [
        ("lru", 512),
        ("arc", 512),
        ("lru", 1024),
        ("arc", 1024),
    ]
    for entry in found["runs"]:
        assert abs(sum(tier["hit_ratio"] for tier in entry["tiers"]) - entry["hit_ratio"]) < 1e-12
        assert entry["block_accesses"] == 4315
    hits = found["curve"]["prefix_hit_ratio"]
    assert hits == sorted(hits)
    assert found["curve"]["capacities"][-1] >= 4004


def test_lines_and_page_show_the_same_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run("simulate", SAMPLE, "--tiers", "host=100GiB", "--html", str(page))
    assert result.exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert all(line in text for line in result.stdout.splitlines())
    assert text.count("<polyline") == 2
    assert "http" not in text
    assert "<script" not in text


def test_a_trace_without_requests_is_one_line(tmp_path: Path) -> None:
    # What an engine records before its first request.
    trace, config = tmp_path / "trace.jsonl", tmp_path / "config.json"
    trace.write_text('{"block_tokens":16}\n', encoding="utf-8")
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    for arguments in (["simulate", str(trace)], ["plan", str(config), "--trace", str(trace)]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "no requests" in result.stderr


def test_a_trace_of_lengths_cannot_be_simulated_but_planned_with(tmp_path: Path) -> None:
    trace, config = tmp_path / "azure.csv", tmp_path / "config.json"
    trace.write_text(AZURE)
    config.write_text(json.dumps(LLAMA))
    refused = run("simulate", str(trace))
    assert refused.exit_code == 2
    assert "lengths only" in refused.output
    planned = run("plan", str(tmp_path), "--trace", str(trace), "--budget", "host=1GiB")
    assert planned.exit_code == 0
    assert "8192 tokens = 21.9 prompts of 374" in planned.stdout
    assert "says nothing about hits" in planned.stdout


def test_a_plan_says_bytes_places_and_the_worth_of_more(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    result = run("plan", str(config), "--trace", SAMPLE, "--json", "--budget", "host=4GiB")
    found = json.loads(result.stdout)
    assert found["bytes_per_token"] == 131_072
    assert found["traffic"]["requests"] == 160
    (place,) = found["places"]
    assert (place["tokens"], place["name"]) == (32_768, "host")
    assert 0 <= place["hit_ratio"] < 1
    printed = run("plan", str(config), "--trace", SAMPLE, "--budget", "host=4GiB").stdout
    assert "a token, all layers:  131072 bytes" in printed
    assert "the next GiB" in printed


def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("[]")
    for arguments in (
        ("simulate", SAMPLE, "--policy", "best"),
        ("simulate", SAMPLE, "--tiers", "host"),
        ("simulate", str(config)),
        ("plan", str(config)),
        ("plan", str(tmp_path / "nothing")),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert len(result.output.strip().splitlines()) == 1, result.output


def test_the_curve_of_a_long_trace_comes_from_a_sample_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = json.loads(run("simulate", SAMPLE, "--curve", "--json").stdout)["curve"]
    monkeypatch.setattr(summary, "EXACT_ACCESSES", 1000)
    monkeypatch.setattr(summary, "_SAMPLED_BLOCKS", 1000)
    sampled = json.loads(run("simulate", SAMPLE, "--curve", "--json").stdout)["curve"]
    assert sampled["miss_ratio"] is None
    for right, ratio, error in zip(
        exact["prefix_hit_ratio"], sampled["prefix_hit_ratio"], sampled["error"], strict=True
    ):
        assert 0 < abs(ratio - right) < 1.5 * error
    assert " ± " in run("simulate", SAMPLE, "--curve").stdout


def test_admission_is_part_of_a_run() -> None:
    plain, limited = (
        json.loads(run("simulate", SAMPLE, *more, "--json").stdout)["runs"][0]
        for more in ((), ("--admission", "store_max_tokens=512"))
    )
    assert limited["tiers"][0]["not_stored_chunks"] > plain["tiers"][0]["not_stored_chunks"] == 0
    refused = run("simulate", SAMPLE, "--admission", "size=3")
    assert refused.exit_code == 2
    assert "--admission: 'size=3' is not valid" in refused.stderr


def test_what_a_recorder_says_of_its_trace_is_shown_with_the_results(tmp_path: Path) -> None:
    trace, config = tmp_path / "t.jsonl", tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    request = '{"arrival_s": 0, "input_tokens": 16, "blocks": ["a"]}'
    for note, is_shown in (("only some blocks", True), ("\x1b[2J", False), (7, False)):
        trace.write_text(json.dumps({"block_tokens": 16, "note": note}) + "\n" + request + "\n")
        for arguments in (("simulate", str(trace)), ("plan", str(config), "--trace", str(trace))):
            result = run(*arguments)
            assert result.exit_code == 0, result.output
            assert (f"this trace: {note}" in result.stdout) == is_shown
        assert json.loads(run("simulate", str(trace), "--json").stdout)
