"""vLLM's cache tensors as plain byte pages. Everything that is not recognised is refused: fail closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kvoffload.errors import UnsupportedModelError
from kvoffload.worker.pages import ByteArray


def group_pages(
    kv_caches: Mapping[str, Any], layer_names: Sequence[str], num_blocks: int, bytes_per_block: int
) -> tuple[ByteArray, ...]:
    """The device pages of one group.

    Args:
        kv_caches: vLLM's tensors by layer name; the first dimension counts blocks (or equal parts of blocks).
        layer_names: The layers of the group, in the group's order.
        num_blocks: Blocks that the engine's block table knows.
        bytes_per_block: Bytes of one block, all layers together.

    Returns:
        Arrays of shape (num_blocks, page_bytes), dtype uint8, that share the tensors' memory: one per layer, or a
        single one if each block is one contiguous slab of all layers.

    Raises:
        UnsupportedModelError: a layer is missing, is not on the CPU, or is not laid out in dense pages.
    """
    missing = [name for name in layer_names if name not in kv_caches]
    if missing:
        raise UnsupportedModelError(f"kvoffload: the engine registered no KV cache for {', '.join(missing)}")
    pages = tuple(_layer_pages(name, kv_caches[name], num_blocks) for name in layer_names)
    total = sum(page.shape[1] for page in pages)
    if total != bytes_per_block:
        raise UnsupportedModelError(
            f"kvoffload: the layers' pages add up to {total} bytes a block, but the engine allocated {bytes_per_block}; "
            "this KV cache layout is not supported"
        )
    slab = _as_slab(pages)
    return pages if slab is None else (slab,)


def _layer_pages(name: str, tensor: Any, num_blocks: int) -> ByteArray:
    if tensor.device.type != "cpu":
        raise UnsupportedModelError(
            f"kvoffload: layer {name} is on device {tensor.device}; this version copies from CPU engines only"
        )
    item_bytes = tensor.element_size()
    parts, rest = divmod(tensor.shape[0], num_blocks)
    inner = [
        (stride, size) for stride, size in zip(tensor.stride()[1:], tensor.shape[1:], strict=True) if size > 1
    ]
    if rest or not _is_dense(inner):
        raise UnsupportedModelError(
            f"kvoffload: layer {name} has shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())} for "
            f"{num_blocks} blocks: its pages are not dense"
        )
    part_bytes = item_bytes * int(np.prod(tensor.shape[1:], dtype=np.int64))
    if tensor.shape[0] > 1 and tensor.stride(0) * item_bytes < part_bytes:
        raise UnsupportedModelError(f"kvoffload: layer {name}: its blocks overlap")
    if parts > 1 and tensor.stride(0) * item_bytes != part_bytes:
        raise UnsupportedModelError(
            f"kvoffload: layer {name}: the {parts} parts of a block do not lie together"
        )
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    first = tensor.storage_offset() * item_bytes
    pages: ByteArray = np.lib.stride_tricks.as_strided(
        storage[first:], (num_blocks, parts * part_bytes), (tensor.stride(0) * item_bytes * parts, 1)
    )
    last = first + (num_blocks - 1) * pages.strides[0] + pages.shape[1]
    assert last <= storage.size, (name, last, storage.size)
    return pages


def _is_dense(dimensions: list[tuple[int, int]]) -> bool:
    """Whether (stride, size) pairs in any order fill one range of memory without holes and overlaps."""
    expected = 1
    for stride, size in sorted(dimensions):
        if stride != expected:
            return False
        expected *= size
    return True


def _as_slab(pages: Sequence[ByteArray]) -> ByteArray | None:
    """One array over all layers if each block is one slab with the layers in their order, else None."""
    total = sum(page.shape[1] for page in pages)
    if len(pages) < 2 or any(page.strides[0] < total for page in pages):
        return None
    address = pages[0].__array_interface__["data"][0]
    for page in pages:
        if page.__array_interface__["data"][0] != address or page.strides != pages[0].strides:
            return None
        address += page.shape[1]
    slab: ByteArray = np.lib.stride_tricks.as_strided(pages[0], (pages[0].shape[0], total), pages[0].strides)
    return slab
