"""The engine's interface is checked at the start: one clear line instead of wrong KV. Needs vLLM installed, no engine."""

from __future__ import annotations

import dataclasses

import pytest

vllm = pytest.importorskip("vllm")
from kvoffload.connectors.vllm import contract, plugin  # noqa: E402
from kvoffload.errors import EngineContractError  # noqa: E402


def test_the_installed_engine_fits() -> None:
    contract.check_contract()


def test_a_missing_method_is_named_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(contract.KVConnectorBase_V1, "handle_preemptions")
    with pytest.raises(EngineContractError) as error:
        contract.check_contract()
    text = str(error.value)
    assert "handle_preemptions() is missing" in text
    assert vllm.__version__ in text
    assert "0.32" in text
    assert "\n" not in text


def test_a_changed_signature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self, request, tokens_on_device):
        """The same name, other parameters."""

    monkeypatch.setattr(contract.KVConnectorBase_V1, "get_num_new_matched_tokens", other)
    with pytest.raises(
        EngineContractError, match="get_num_new_matched_tokens.*should be.*num_computed_tokens"
    ):
        contract.check_contract()


def test_a_further_parameter_at_the_end_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(self, request, block_ids, more=None):
        """Newer versions may add something."""

    monkeypatch.setattr(contract.KVConnectorBase_V1, "request_finished", longer)
    contract.check_contract()


def test_a_missing_field_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class SchedulerOutput:
        scheduled_new_reqs: list

    fields = tuple(
        (SchedulerOutput if kind is contract.SchedulerOutput else kind, names)
        for kind, names in contract._FIELDS
    )
    monkeypatch.setattr(contract, "_FIELDS", fields)
    with pytest.raises(EngineContractError, match="SchedulerOutput.preempted_req_ids is missing"):
        contract.check_contract()


def test_what_says_whether_ranks_hold_the_same_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class MLAAttentionSpec:
        block_size: int

    fields = tuple(
        (MLAAttentionSpec if kind is contract.MLAAttentionSpec else kind, names)
        for kind, names in contract._FIELDS
    )
    monkeypatch.setattr(contract, "_FIELDS", fields)
    with pytest.raises(EngineContractError, match="MLAAttentionSpec.max_tp_shards is missing"):
        contract.check_contract()


def test_a_missing_request_attribute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_REQUEST_ATTRIBUTES", (*contract._REQUEST_ATTRIBUTES, "kv_wishes"))
    with pytest.raises(EngineContractError, match="Request.kv_wishes is missing"):
        contract.check_contract()


def test_all_problems_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("reset_cache", "wait_for_save"):
        monkeypatch.delattr(contract.KVConnectorBase_V1, name)
    with pytest.raises(EngineContractError, match=r"(?=.*reset_cache)(?=.*wait_for_save)"):
        contract.check_contract()


@pytest.mark.parametrize(
    ("version", "warned"), [("0.32.0", False), ("0.32.7+cpu", False), ("0.33.0", True), ("0.320.0", True)]
)
def test_an_untested_version_that_fits_is_accepted_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, version: str, warned: bool
) -> None:
    warnings = []
    monkeypatch.setattr(contract.vllm, "__version__", version)
    monkeypatch.setattr(contract.logger, "warning", lambda text, *values: warnings.append(text % values))
    contract.check_contract()
    assert len(warnings) == warned
    assert all(version in text for text in warnings)


def test_the_connector_overrides_nothing_that_the_engine_does_not_have() -> None:
    from kvoffload.connectors.vllm.connector import KvoffloadConnector

    base = {name for kind in KvoffloadConnector.__mro__[1:] for name in vars(kind)}
    ours = {name for name in vars(KvoffloadConnector) if not name.startswith("_")}
    # Asked by older versions, see its docstring.
    assert ours - base <= {"prefer_cross_layer_blocks"}


def test_the_plug_in_makes_the_connector_known_by_name_and_may_be_called_again() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kvoffload.connectors.vllm.connector import KvoffloadConnector

    plugin.register()
    plugin.register()
    assert KVConnectorFactory._registry["KvoffloadConnector"]() is KvoffloadConnector


def test_the_entry_point_is_installed() -> None:
    from importlib.metadata import entry_points

    (found,) = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "kvoffload"]
    assert found.load() is plugin.register
