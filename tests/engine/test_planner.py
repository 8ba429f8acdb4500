"""The planner's bytes, from a configuration alone, are those that a real engine allocates; one family of models a test."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from kinds import on
from shelf import Subject
from tiny_models import TinyModel

from kvoffload.sim.planning.model import ModelKv, kv_of_config


def _planned(model: TinyModel) -> ModelKv:
    return kv_of_config(json.loads((Path(model.path) / "config.json").read_text()))


def _assert_as_planned(plan: ModelKv, facts: dict[str, Any]) -> None:
    planned: Counter[tuple[int, int, int | None]] = Counter()
    for group in plan.groups:
        planned[group.bytes_per_token, group.bytes_per_state, group.window_tokens] += group.layers
    real: Counter[tuple[int, int, int | None]] = Counter()
    for group in facts["allocation"]["groups"]:
        per_token, rest = divmod(group["page_bytes"], group["tokens_per_block"])
        if group["kind"] == "MambaSpec":
            real[0, group["page_bytes"], None] += group["layers"]
        else:
            assert rest == 0
            real[per_token, 0, group["window_tokens"]] += group["layers"]
    assert planned == real


def _assert_allocated(facts: dict[str, Any]) -> None:
    # Groups lie over each other: a block takes what the largest one needs. Pages of states are filled up to that.
    groups = facts["allocation"]["groups"]
    widest = max(group["layers"] * group["padded_page_bytes"] for group in groups)
    assert facts["allocation"]["bytes"] == facts["num_blocks"] * widest


@on("tp1", "gemma3", "lfm2", "qwen3-next", "deepseek")
def test_bytes_of_every_kind_of_layer_are_as_planned(subject: Subject) -> None:
    facts, plan = subject.engine.facts(), _planned(subject.model)
    _assert_as_planned(plan, facts)
    _assert_allocated(facts)
    if subject.kind in ("tp1", "deepseek"):
        tokens = facts["num_blocks"] * subject.model.tokens_per_block
        assert facts["allocation"]["bytes"] == tokens * plan.bytes_per_token
