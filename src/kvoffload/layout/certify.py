"""Whether we vouch for a layer's layout: one predicate, asked twice.

Statically, from the configuration: may this namespace be parallel-agnostic? And at registration, with the tensor that the
engine really made: does it look so? Whatever is not certified is kept opaque: whole, at a place of its rank, not portable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from kvoffload.config.pages import Arrangement, AttentionPage, HeadOrder, LatentPage, LayerPage, OpaquePage
from kvoffload.layout.geometry import ParallelSizes, as_attention, places, unit_share
from kvoffload.layout.mapping import map_page
from kvoffload.layout.verify import derived_page_fault


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A registered cache tensor as its engine describes it.

    `axes` names the dimensions: B blocks (or kernel blocks), H heads, N tokens, C content of one token and head, P the
    parts (K, V) in planes of their own, Y all bytes of a page, X a dimension of one. Every tensor has B first.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In items."""
    item_bytes: int
    axes: str


@dataclass(frozen=True, slots=True)
class Certified:
    """We vouch for it."""

    page: LayerPage
    """With the order that was seen, if a tensor was shown."""


@dataclass(frozen=True, slots=True)
class Uncertified:
    """We do not."""

    reason: str
    """One readable line."""


def certify(
    page: LayerPage | None, sizes: ParallelSizes, seen: SeenTensor | None = None, rank: int = 0
) -> Certified | Uncertified:
    """Whether a layer has a proven canonical place.

    Args:
        page: What the connector takes the layer for; None if it does not know its kind.
        sizes: The parallel layout.
        seen: The tensor of this layer on this rank, once it is registered.
        rank: Which rank saw it.

    Returns:
        Certified only if the description holds together, all ranks' mappings are proved, and the tensor, if given, has
        exactly the described sizes and strides. The order of heads and tokens is taken from the tensor.
    """
    if page is None:
        return Uncertified("the kind of this layer is not known")
    if isinstance(page, OpaquePage):
        return Uncertified("the layer is opaque")
    fault = derived_page_fault(page, sizes)
    if fault:
        return Uncertified(fault)
    if seen is None:
        return Certified(page)
    reasons = []
    for candidate in _as_it_may_lie(page):
        reason = _tensor_fault(candidate, sizes, seen, rank)
        fault = reason or derived_page_fault(candidate, sizes, places(sizes)[rank].stage)
        if fault is None:
            return Certified(candidate)
        reasons.append(fault)
    return Uncertified(reasons[0])


def kept_as(verdict: Certified | Uncertified, page_bytes: int) -> LayerPage:
    """The page to lay out: as certified, or else opaque with the bytes that the engine allocated on one rank."""
    return verdict.page if isinstance(verdict, Certified) else OpaquePage(page_bytes)


def _as_it_may_lie(page: LayerPage) -> tuple[LayerPage, ...]:
    """The order first that is described; both orders of heads and tokens mean the same canonical bytes."""
    if not isinstance(page, AttentionPage):
        return (page,)
    other = HeadOrder.NHD if page.order is HeadOrder.HND else HeadOrder.HND
    return (page, replace(page, order=other))


def _tensor_fault(page: LayerPage, sizes: ParallelSizes, seen: SeenTensor, rank: int) -> str | None:
    if not seen.axes.startswith("B") or not len(seen.axes) == len(seen.shape) == len(seen.strides):
        return f"a tensor of shape {seen.shape} with axes {seen.axes!r}"
    if len(set(seen.axes.replace("X", ""))) != len(seen.axes.replace("X", "")):
        return f"axes {seen.axes!r} name a dimension twice"
    match page:
        case AttentionPage() | LatentPage():
            expected = _attention_axes(as_attention(page), sizes, rank)
            parts = page.block_tokens // (page.kernel_tokens or page.block_tokens)
        case _:
            expected = {"Y": (map_page(page, sizes, rank).page_bytes, 1)}
            parts = 1
    if isinstance(expected, str):
        return expected
    return _axes_fault(expected, seen) or _block_fault(page, sizes, (seen, rank), parts)


def _attention_axes(page: AttentionPage, sizes: ParallelSizes, rank: int) -> dict[str, tuple[int, int]] | str:
    """By axis, its length (in bytes for C) and its stride in bytes; or why a tensor cannot show it."""
    if page.extras:
        return "extra buffers inside of a page cannot be seen in a tensor"
    heads = len(unit_share(page.kv_heads, sizes.tp, places(sizes)[rank].tp_rank))
    tokens = page.kernel_tokens or page.block_tokens
    planes: dict[str, tuple[int, int]] = {}
    content = sum(page.parts)
    if page.arrangement is Arrangement.SPLIT and len(page.parts) > 1:
        if len(set(page.parts)) > 1:
            return f"planes of unequal parts {page.parts} cannot be seen in a tensor"
        content = page.parts[0]
        planes = {"P": (len(page.parts), heads * tokens * content)}
    inside = page.order is HeadOrder.NHD
    return {
        **planes,
        "H": (heads, content if inside else tokens * content),
        "N": (tokens, heads * content if inside else content),
        "C": (content, 1),
    }


def _axes_of(seen: SeenTensor) -> dict[str, tuple[int, int | None]]:
    """By axis: length (in bytes for C and Y) and stride (None where a single place makes it meaningless)."""
    found: dict[str, tuple[int, int | None]] = {}
    for axis, size, stride in list(zip(seen.axes, seen.shape, seen.strides, strict=True))[1:]:
        if axis == "X" and size == 1:
            continue
        inner = axis in "CY"
        step = stride if inner else stride * seen.item_bytes
        found[axis] = (size * seen.item_bytes if inner else size, step if size > 1 else None)
    return found


def _axes_fault(expected: dict[str, tuple[int, int]], seen: SeenTensor) -> str | None:
    """Every dimension is expected, and every expected one is there; dimensions of one may have any stride."""
    found = _axes_of(seen)
    sizes = {axis: found.get(axis, (1, None))[0] for axis in expected}
    for axis, (length, _) in expected.items():
        if sizes[axis] != length:
            return f"axis {axis} of shape {seen.shape} has {sizes[axis]}, not {length} (C and Y in bytes)"
    for axis, (_, step) in expected.items():
        _, has_step = found.pop(axis, (1, None))
        if has_step is not None and has_step != step:
            return f"axis {axis} of shape {seen.shape} has strides of {has_step} bytes, not {step}"
    return f"axes {list(found)} of shape {seen.shape} are not known for this kind of layer" if found else None


def _block_fault(
    page: LayerPage, sizes: ParallelSizes, sight: tuple[SeenTensor, int], parts: int
) -> str | None:
    seen, rank = sight
    page_bytes = map_page(page, sizes, rank).page_bytes
    dense = prod(seen.shape[1:]) * seen.item_bytes
    stride = seen.strides[0] * seen.item_bytes
    if dense * parts != page_bytes or seen.shape[0] % parts:
        return f"{seen.shape[0]} kernel blocks of {dense} bytes do not make pages of {page_bytes} bytes"
    if seen.shape[0] > 1 and (stride < dense or (parts > 1 and stride != dense)):
        return f"blocks of {dense} bytes at strides of {stride}"
    return None


def certify_all(pages: tuple[LayerPage | None, ...], sizes: ParallelSizes) -> tuple[bool, tuple[str, ...]]:
    """The static question: may chunks of these layers be shared between parallel layouts?

    Returns:
        Whether all layers are certified, and the reasons of those that are not (each once).
    """
    verdicts = [certify(page, sizes) for page in pages]
    reasons = dict.fromkeys(verdict.reason for verdict in verdicts if isinstance(verdict, Uncertified))
    return not reasons, tuple(reasons)
