"""`kvoffload verify-layout`: proves what is right, finds what is wrong, and says what it does not know."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from kvoffload.cli import layout_trial
from kvoffload.cli.main import app
from kvoffload.layout import mapping as mapping_module

GQA = ("--kv-heads", "2", "--head-size", "8", "--layers", "3", "--block-size", "4")
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}


def run(*options: str):
    return CliRunner().invoke(app, ["verify-layout", *options])


def entries(*options: str) -> tuple[int, list[dict]]:
    result = run(*options, "--json")
    return result.exit_code, [json.loads(line) for line in result.output.splitlines()]


def test_all_pairs_of_parallel_layouts_and_orders_are_byte_equal() -> None:
    code, found = entries(*GQA, "--tp", "1,2,4", "--pp", "1,2", "--dcp", "1,2")
    answers = [entry for entry in found if "byte_equal" in entry]
    refused = {entry["variant"]: entry["reason"] for entry in found if "reason" in entry}
    assert code == 0
    assert all(entry["byte_equal"] and entry["compared_bytes"] for entry in answers)
    names = {entry["stored_under"] for entry in answers}
    assert {"TP1 HND", "TP4 PP2 NHD", "TP4 DCP2 HND"} <= names
    assert len(answers) == len(names) ** 2
    assert set(refused) == {f"TP2{pp} DCP2 {order}" for pp in ("", " PP2") for order in ("HND", "NHD")}
    assert all("do not tile" in reason for reason in refused.values())


def test_the_table_names_every_layout_and_the_sum() -> None:
    result = run(*GQA, "--tp", "1,2")
    assert result.exit_code == 0
    assert "16 of 16 pairs are byte-equal" in result.output
    assert "TP2 NHD" in result.output


def test_a_wrong_mapping_is_found_and_is_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes themselves are compared: not only the proof stands between a fault and the user."""
    right = mapping_module.map_page

    def wrong(page, sizes, rank):
        found = right(page, sizes, rank)
        if sizes.tp != 2 or rank != 1:
            return found
        (run, *others) = found.runs
        return replace(found, runs=(replace(run, canonical_offset=0), *others))

    monkeypatch.setattr("kvoffload.layout.canonical.map_page", wrong)
    result = run(*GQA, "--tp", "1,2")
    assert result.exit_code == 1
    assert "stored under TP1 HND, read under TP2 HND: rank 1, layer 0, block 0, byte 0" in result.output


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (QWEN3_NEXT, {"recurrent state", "attention, 2 KV heads of 128+128 bytes"}),
        (
            {"num_hidden_layers": 2, "num_attention_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 8},
            {"latent of 80 bytes"},
        ),
        (
            {
                "model_type": "wrapper",
                "text_config": {
                    "model_type": "lfm2",
                    "num_hidden_layers": 2,
                    "layer_types": ["conv", "full_attention"],
                    "hidden_size": 64,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                },
            },
            {"recurrent state", "attention, 2 KV heads of 32+32 bytes"},
        ),
    ],
)
def test_a_models_own_configuration_says_what_its_layers_are(config: dict, kinds: set[str], tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    code, found = entries("--config", str(path), "--tp", "1,2", "--pp", "1,2", "--block-size", "4")
    assert code == 0
    assert {entry["kind"] for entry in found} == kinds
    assert all(entry["byte_equal"] for entry in found)


@pytest.mark.parametrize("field", ["mamba_d_state", "hybrid_override_pattern"])
def test_layers_of_an_unknown_family_are_not_certified_and_are_exit_code_one(field: str, tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, field: 3})
    )
    result = run("--config", str(path), "--tp", "1,2")
    assert result.exit_code == 1
    assert "not known" in result.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--tp", "1,x"), "--tp takes whole numbers"),
        (("--pp", "0"), "--pp takes whole numbers"),
        (("--tp", "1", "--dcp", "2"), "no parallel layout"),
        (("--config", "/nowhere/config.json"), "is not a model's config.json"),
    ],
)
def test_what_cannot_be_tried_is_one_line(options: tuple[str, ...], why: str) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert why in result.output + result.stderr


def test_a_configuration_without_its_numbers_is_one_line(tmp_path) -> None:
    path = tmp_path / "config.json"
    for text in ("{}", "[]", "no json", '{"num_hidden_layers": 2, "layer_types": ["full_attention"]}'):
        path.write_text(text)
        result = run("--config", str(path))
        assert result.exit_code == 2, text
        assert "is not a model's config.json" in result.output + result.stderr


def test_many_layers_of_one_kind_are_tried_by_some_of_them() -> None:
    layouts = [
        layout_trial._layout(page, 8, engine, 1)
        for engine in layout_trial.variants((2,), (4,), (1,))
        for page in [layout_trial.AttentionPage(2, (8, 8), 4)]
    ]
    assert all(len(layout.of_rank(rank)) == 2 for layout in layouts for rank in range(8))
