"""Which layout an engine's groups have: made from its configuration alone, so that all of its processes agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kvoffload.config.pages import LayerFacts
from kvoffload.config.schema import OffloadingConfig, OffloadingParallelConfig
from kvoffload.errors import UnsupportedModelError
from kvoffload.layout import canonical
from kvoffload.layout.canonical import CanonicalLayout, plan_canonical
from kvoffload.layout.direct import DirectLayout, direct_layouts
from kvoffload.layout.geometry import ParallelSizes

GroupLayout = DirectLayout | CanonicalLayout


@dataclass(frozen=True, slots=True)
class CanonicalIdentity:
    """What the canonical layout of a group means to its namespace."""

    signature: str
    portable: bool


def sizes_of(parallel: OffloadingParallelConfig) -> ParallelSizes:
    """The parallel layout as the layouts see it."""
    return ParallelSizes(parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size)


def canonical_identity(
    layers: Sequence[LayerFacts], blocks_per_chunk: int, sizes: ParallelSizes
) -> CanonicalIdentity:
    """What stands in the namespace for a group, and whether other parallel layouts can read its chunks."""
    layout, _ = plan_canonical(layers, blocks_per_chunk, sizes)
    return CanonicalIdentity(layout.signature(), layout.portable)


def layouts_of(config: OffloadingConfig) -> tuple[GroupLayout, ...]:
    """The layout of every group, in the order of `config.groups`.

    Raises:
        UnsupportedModelError: a canonical layout that cannot be proved for all ranks.
    """
    if config.layout.family != canonical.FAMILY:
        return direct_layouts(config)
    layouts = []
    for group in config.groups:
        layout, _ = plan_canonical(group.layers, config.cache.blocks_per_chunk, sizes_of(config.parallel))
        fault = layout.fault()
        if fault is not None:
            raise UnsupportedModelError(
                f"kvoffload: the canonical layout cannot be proved for this model and parallel layout ({fault}); "
                f"{way_out(config)}"
            )
        layouts.append(layout)
    return tuple(layouts)


def way_out(config: OffloadingConfig) -> str:
    """What somebody can do whose engine the canonical layout does not fit: a replicated one was not asked for."""
    return "start without the connector" if config.replicated_layout else "leave canonical_layout out"


def certification_report(config: OffloadingConfig) -> tuple[str, ...]:
    """One line for each stretch of layers with the same verdict: certified, or opaque and why."""
    lines = []
    for number, group in enumerate(config.groups):
        _, reasons = plan_canonical(group.layers, config.cache.blocks_per_chunk, sizes_of(config.parallel))
        for verdict, found in groupby(
            group.layers, key=lambda layer: _verdict(layer, reasons.get(layer.name))
        ):
            names = [layer.name for layer in found]
            span = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} layers)"
            lines.append(f"group {number}: {span}: {verdict}")
    return tuple(lines)


def _verdict(layer: LayerFacts, reason: str | None) -> str:
    if reason is not None:
        return f"opaque, not readable under another parallel layout: {reason}"
    return f"certified: {layer.page}"
