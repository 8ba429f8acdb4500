"""The connector on an engine that it refuses: vLLM's CPU build with a latent (MLA) model.

There the kernels for a prompt's tokens cannot go on behind a cached prefix, those for a single further token can: that is
how answers are made. So a prompt of which all but the last token is loaded runs on the real engine, and nothing else of
the connector is different. Only tests may do so; they see to it that nothing else is loaded.
"""

from __future__ import annotations

from typing import Any

from kvoffload.connectors.vllm import config
from kvoffload.connectors.vllm.connector import KvoffloadConnector


def _accept(vllm_config: Any) -> None:
    assert vllm_config.model_config.use_mla


config._refuse_no_prefix = _accept


class ConnectorForDecodes(KvoffloadConnector):
    """Accepts a latent model on a CPU."""
