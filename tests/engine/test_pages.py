"""The engine's tensors as byte pages: the right bytes of the right block, or a refusal. Needs torch, no engine."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from kvoffload.connectors.vllm.pages import group_pages  # noqa: E402
from kvoffload.errors import UnsupportedModelError  # noqa: E402

BLOCKS, HEADS, TOKENS, CONTENT = 6, 2, 4, 8
SHAPE = (BLOCKS, HEADS, TOKENS, CONTENT)
PAGE_BYTES = HEADS * TOKENS * CONTENT * 4


def _numbered(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def _bytes_of(tensor: torch.Tensor, block: int, parts: int = 1) -> np.ndarray:
    """The bytes of one block in the order in which they lie in memory, taken element by element from the tensor."""
    rows = tensor[block * parts : (block + 1) * parts]
    order = sorted(range(rows.dim()), key=rows.stride, reverse=True)
    return rows.permute(order).contiguous().view(torch.uint8).numpy().reshape(-1)


def _assert_pages(pages, tensors, parts: int = 1) -> None:
    assert len(pages) == len(tensors)
    for page, tensor in zip(pages, tensors, strict=True):
        assert page.dtype == np.uint8
        assert page.shape[0] == BLOCKS
        assert page.strides[1] == 1
        for block in range(BLOCKS):
            np.testing.assert_array_equal(page[block], _bytes_of(tensor, block, parts))


def _assert_shared(page: np.ndarray, tensor: torch.Tensor) -> None:
    before = tensor[2].clone()
    page[2] = 0
    assert (tensor[2] == 0).all(), "the page is a copy"
    tensor[2] = before


def test_layer_outermost_tensors_become_one_page_array_a_layer() -> None:
    # [L, B, H, N, C]: all layers are views of one storage, as the CPU engine registers them.
    storage = _numbered(3 * BLOCKS * HEADS * TOKENS * CONTENT).view(3, *SHAPE)
    caches = {f"layer.{index}": storage[index] for index in range(3)}
    pages = group_pages(caches, tuple(caches), BLOCKS, 3 * PAGE_BYTES)
    _assert_pages(pages, list(caches.values()))
    _assert_shared(pages[1], caches["layer.1"])


def test_separate_tensors_become_one_page_array_a_layer() -> None:
    caches = {"a": _numbered(384).view(SHAPE), "b": _numbered(384).neg().view(SHAPE)}
    _assert_pages(group_pages(caches, ("a", "b"), BLOCKS, 2 * PAGE_BYTES), list(caches.values()))


def test_the_order_of_the_layers_is_the_groups_order() -> None:
    caches = {
        "a": _numbered(384).view(SHAPE),
        "b": _numbered(384).neg().view(SHAPE),
        "of another group": None,
    }
    pages = group_pages(caches, ("b", "a"), BLOCKS, 2 * PAGE_BYTES)
    _assert_pages(pages, [caches["b"], caches["a"]])


def test_heads_outside_or_inside_of_tokens_make_the_same_pages_dense() -> None:
    # [B, N, H, C] in memory, seen as [B, H, N, C].
    inner = _numbered(384).view(BLOCKS, TOKENS, HEADS, CONTENT)
    _assert_pages(group_pages({"a": inner.permute(0, 2, 1, 3)}, ("a",), BLOCKS, PAGE_BYTES), [inner])


def test_block_outermost_layers_become_one_slab() -> None:
    # [B, L, H, N, C]: a block of all layers lies together.
    storage = _numbered(BLOCKS * 3 * HEADS * TOKENS * CONTENT).view(BLOCKS, 3, HEADS, TOKENS, CONTENT)
    caches = {f"layer.{index}": storage[:, index] for index in range(3)}
    (slab,) = group_pages(caches, tuple(caches), BLOCKS, 3 * PAGE_BYTES)
    assert slab.shape == (BLOCKS, 3 * PAGE_BYTES)
    for block in range(BLOCKS):
        np.testing.assert_array_equal(
            slab[block], storage[block].contiguous().view(torch.uint8).numpy().reshape(-1)
        )


def test_a_slab_whose_layers_are_in_another_order_is_taken_layer_by_layer() -> None:
    storage = _numbered(BLOCKS * 3 * HEADS * TOKENS * CONTENT).view(BLOCKS, 3, HEADS, TOKENS, CONTENT)
    caches = {f"layer.{index}": storage[:, index] for index in range(3)}
    names = ("layer.2", "layer.0", "layer.1")
    pages = group_pages(caches, names, BLOCKS, 3 * PAGE_BYTES)
    _assert_pages(pages, [caches[name] for name in names])


def test_a_slab_with_padding_behind_each_block_is_not_read_beyond_its_layers() -> None:
    padded = _numbered(BLOCKS * 100).view(BLOCKS, 100)
    caches = {
        "a": padded[:, :32].view(BLOCKS, 1, 4, 8),
        "b": padded[:, 32:64].view(BLOCKS, 1, 4, 8),
    }
    (slab,) = group_pages(caches, ("a", "b"), BLOCKS, 256)
    for block in range(BLOCKS):
        np.testing.assert_array_equal(slab[block], padded[block, :64].contiguous().view(torch.uint8).numpy())


def test_blocks_that_are_padded_in_one_layer_are_dense_pages_at_a_larger_stride() -> None:
    padded = _numbered(BLOCKS * 100).view(BLOCKS, 100)
    tensor = padded[:, :64].view(BLOCKS, 2, 4, 8)
    _assert_pages(group_pages({"a": tensor}, ("a",), BLOCKS, 256), [tensor])


def test_a_block_split_into_kernel_blocks_is_one_page() -> None:
    # The kernel works on parts of 2 tokens; the block table counts blocks of 4 parts.
    tensor = _numbered(BLOCKS * 4 * HEADS * 2 * CONTENT).view(BLOCKS * 4, HEADS, 2, CONTENT)
    pages = group_pages({"a": tensor}, ("a",), BLOCKS, 4 * HEADS * 2 * CONTENT * 4)
    _assert_pages(pages, [tensor], parts=4)


def test_kernel_blocks_that_do_not_lie_together_are_refused() -> None:
    wide = _numbered(BLOCKS * 4 * 100).view(BLOCKS * 4, 100)
    tensor = wide[:, : HEADS * 2 * CONTENT].view(BLOCKS * 4, HEADS, 2, CONTENT)
    with pytest.raises(UnsupportedModelError, match="do not lie together"):
        group_pages({"a": tensor}, ("a",), BLOCKS, 4 * HEADS * 2 * CONTENT * 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.float32])
def test_items_of_any_size_are_bytes(dtype: torch.dtype) -> None:
    tensor = torch.arange(384).remainder(100).to(dtype).view(SHAPE)
    _assert_pages(group_pages({"a": tensor}, ("a",), BLOCKS, tensor[0].nbytes), [tensor])


def test_a_storage_offset_is_counted_in_bytes() -> None:
    storage = _numbered(16 + 384).to(torch.bfloat16)
    tensor = storage[16:].view(SHAPE)
    assert tensor.storage_offset() == 16
    _assert_pages(group_pages({"a": tensor}, ("a",), BLOCKS, PAGE_BYTES // 2), [tensor])


def test_latent_pages_with_a_single_head_are_dense() -> None:
    tensor = _numbered(BLOCKS * 16 * 9).view(BLOCKS, 1, 16, 9)
    _assert_pages(group_pages({"a": tensor}, ("a",), BLOCKS, 16 * 9 * 4), [tensor])
    # A dimension of one may have any stride.
    odd = tensor.as_strided(tensor.shape, (144, 7, 9, 1))
    _assert_pages(group_pages({"a": odd}, ("a",), BLOCKS, 16 * 9 * 4), [tensor])


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        pytest.param(
            _numbered(768).view(BLOCKS, HEADS, TOKENS, 16)[..., :8], "not dense", id="half of every token"
        ),
        pytest.param(
            _numbered(768).view(BLOCKS, HEADS, 8, CONTENT)[:, :, ::2], "not dense", id="every other token"
        ),
        pytest.param(
            _numbered(64).view(1, HEADS, TOKENS, CONTENT).expand(SHAPE), "overlap", id="all blocks are one"
        ),
        pytest.param(
            _numbered(8).expand(BLOCKS, HEADS, TOKENS, CONTENT), "not dense", id="all tokens are one"
        ),
        pytest.param(_numbered(448).view(7, HEADS, TOKENS, CONTENT), "not dense", id="blocks do not divide"),
        pytest.param(
            # [H, B, N, C]: head-outermost, a block's heads lie apart.
            _numbered(384).view(HEADS, BLOCKS, TOKENS, CONTENT).permute(1, 0, 2, 3),
            "not dense",
            id="heads outside of blocks",
        ),
        pytest.param(
            # (2, blocks, …): keys and values in separate halves.
            _numbered(768).view(2, BLOCKS, HEADS, TOKENS, CONTENT),
            "dense|add up|not",
            id="keys and values apart",
        ),
        pytest.param(torch.empty(SHAPE, device="meta"), "device", id="not in ordinary memory"),
    ],
)
def test_what_is_not_recognised_is_refused(tensor: torch.Tensor, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        group_pages({"a": tensor}, ("a",), BLOCKS, PAGE_BYTES)


def test_pages_that_do_not_add_up_to_the_allocation_are_refused() -> None:
    # Something of a block's state is somewhere else: it would be lost.
    caches = {"a": _numbered(384).view(SHAPE)}
    with pytest.raises(UnsupportedModelError, match=f"add up to {PAGE_BYTES} .* allocated {PAGE_BYTES + 64}"):
        group_pages(caches, ("a",), BLOCKS, PAGE_BYTES + 64)


def test_a_layer_without_a_cache_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="missing.layer"):
        group_pages({"a": _numbered(384).view(SHAPE)}, ("a", "missing.layer"), BLOCKS, PAGE_BYTES)
