"""The demo itself, on a real engine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine


def test_the_demo_gets_evicted_prompts_back_and_shows_it(tmp_path):
    command = [sys.executable, "-m", "kvoffload.cli.main", "demo", "--out", str(tmp_path), "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "demo.json").read_text())
    assert figures["passed"]
    for prompt in figures["prompts"]:
        assert prompt["prompt_tokens"] >= 2000
        assert prompt["share_from_kvoffload"] >= 0.9
        assert prompt["answers_equal"]
        (warm,) = prompt["warm"]
        assert warm["device_tokens"] == 0
        assert prompt["cold"]["computed_tokens"] == prompt["prompt_tokens"]
    assert figures["after_restart"]["passed"]
    for prompt in figures["after_restart"]["prompts"]:
        assert prompt["share_from_disk"] >= 0.9
        assert prompt["answers_equal"]
        assert prompt["again"]["device_tokens"] == 0
    assert not list(tmp_path.glob("store-*")), "the store is left behind"
    assert (tmp_path / "demo.svg").read_text().rstrip().endswith("</svg>")
    assert str(tmp_path / "demo.svg") in done.stdout


def test_the_picture_is_the_same_for_the_same_figures(tmp_path):
    from kvoffload.cli.demo.client import Reply
    from kvoffload.cli.demo.picture import draw
    from kvoffload.cli.demo.results import Comeback, Measurement, Sample
    from kvoffload.cli.demo.sources import TokenSources

    sample = Sample(Reply("text", 1.0, 2.0, 2000, 24, 1920), TokenSources(80, 0, 1920))
    results = [Measurement(name, sample, (sample,), (sample, sample)) for name in ("one", "two")]
    comebacks = [Comeback(name, sample, sample) for name in ("one", "two")]
    pictures = []
    for name in ("a.svg", "b.svg"):
        draw(results, comebacks, "subtitle", tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    draw(results, comebacks, "subtitle", tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
