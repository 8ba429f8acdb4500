"""`kvoffload sim`: the same seed is the same run in any process, and a failure says how it is replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from kvoffload.cli.main import app
from kvoffload.manager.staging import Staging
from kvoffload.sim.report import Failure, parse_seeds, simulate


def run_sim(*arguments: str, hash_seed: str = "0") -> str:
    process = subprocess.run(
        [sys.executable, "-m", "kvoffload.cli.main", "sim", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return process.stdout


def test_two_fresh_processes_make_the_same_run_of_a_seed() -> None:
    # Sets and dictionaries of texts are ordered differently in the two.
    runs = [run_sim("--seed", "3", "--steps", "50", hash_seed=hash_seed) for hash_seed in ("1", "2")]
    assert runs[0] == runs[1]
    assert runs[0].splitlines()[-1].startswith("digest ")


def test_other_seeds_are_other_runs() -> None:
    digests = {simulate(["directory"], [seed], 30).digest for seed in range(5)}
    assert len(digests) == 5


def test_the_log_shows_every_event_and_json_prints_one_object() -> None:
    logged = CliRunner().invoke(app, ["sim", "--seed", "1", "--setup", "chunk files", "--log"])
    assert logged.exit_code == 0
    assert "engine 1 starts" in logged.stdout
    assert "arrives" in logged.stdout
    found = json.loads(CliRunner().invoke(app, ["sim", "--setup", "chunk files", "--json"]).stdout)
    assert found["failures"] == []
    assert [run["setup"] for run in found["runs"]] == ["chunk files"]


def test_a_failure_ends_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Staging, "tick", broken)
    result = CliRunner().invoke(app, ["sim", "--seed", "5", "--setup", "one slot"])
    assert result.exit_code == 1
    assert "kvoffload sim --seed 5 --setup 'one slot'" in result.stdout
    assert "RuntimeError: a bug" in result.stdout


def test_a_replay_names_the_steps_if_they_are_not_the_usual_ones() -> None:
    assert Failure("one slot", 5, 7, "x", "").replay == "kvoffload sim --seed 5 --setup 'one slot' --steps 7"


@pytest.mark.parametrize(
    "arguments", [["--seeds", "5"], ["--seeds", "9..3"], ["--seeds", "a..b"], ["--setup", "nonsense"]]
)
def test_wrong_use_is_one_line(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["sim", *arguments])
    assert result.exit_code == 2
    assert "kvoffload: error: sim: " in result.stderr.replace("\n", " ")


def test_seeds_name_both_ends() -> None:
    assert list(parse_seeds("3..5")) == [3, 4, 5]
