"""`kvoffload doctor --model`: for every layer whether its chunks can be shared, and if not, why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kvoffload.cli.doctor.check import Verdict
from kvoffload.cli.doctor.model import check_model
from kvoffload.cli.main import app

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 512,
}
HYBRID = {
    **LLAMA,
    "model_type": "lfm2",
    "layer_types": ["conv", "conv", "full_attention", "mystery"],
}


def _config(tmp_path: Path, fields: dict[str, Any]) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    return path


def test_layers_that_are_alike_share_a_line(tmp_path: Path) -> None:
    (line,) = check_model(_config(tmp_path, LLAMA), 2)
    assert (line.name, line.verdict) == ("layers 0-3", Verdict.OK)
    assert "4 heads of 128+128 bytes" in line.found


def test_a_layer_of_unknown_kind_is_named_with_the_reason(tmp_path: Path) -> None:
    found = list(check_model(_config(tmp_path, HYBRID).parent, 1))
    assert [(line.name, line.verdict) for line in found] == [
        ("layers 0-1", Verdict.OK),
        ("layer 2", Verdict.OK),
        ("layer 3", Verdict.WARN),
    ]
    assert "not known" in found[-1].found


def test_heads_that_the_ranks_cannot_share_are_not_certified(tmp_path: Path) -> None:
    (line,) = check_model(_config(tmp_path, LLAMA), 3)
    assert line.verdict is Verdict.WARN
    assert "3 tensor-parallel ranks" in line.found


def test_what_is_no_configuration_is_one_clear_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", _config(tmp_path, {"num_hidden_layers": "many"})):
        (line,) = check_model(path, 1)
        assert line.is_failed
        assert str(path) in line.found


def test_the_command_shows_the_table_and_an_engine_may_start_with_opaque_layers(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["doctor", "--model", str(_config(tmp_path, HYBRID)), "--tp", "2", "--json"]
    )
    checks = {line["check"]: line for line in json.loads(done.stdout)["checks"]}
    assert checks["layers 0-1"]["verdict"] == "ok"
    assert checks["layer 3"]["verdict"] == "warn"
