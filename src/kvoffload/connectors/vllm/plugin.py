"""Entry point of the group `vllm.general_plugins`: makes the connector known by its name. Imports the engine late."""

from __future__ import annotations

CONNECTOR_NAME = "KvoffloadConnector"
CONNECTOR_MODULE = "kvoffload.connectors.vllm.connector"


def register() -> None:
    """Register the connector with vLLM; may be called several times in one process."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: PLC0415

    if CONNECTOR_NAME not in KVConnectorFactory._registry:  # noqa: SLF001 - there is no public way to ask
        KVConnectorFactory.register_connector(CONNECTOR_NAME, CONNECTOR_MODULE, CONNECTOR_NAME)
