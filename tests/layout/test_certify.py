"""Only what is described, proved and seen is certified; everything else is opaque, with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvoffload.config.pages import (
    Arrangement,
    AttentionPage,
    HeadOrder,
    LatentPage,
    LayerPage,
    OpaquePage,
    Segment,
    StatePage,
    StateTensor,
)
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.certify import Certified, SeenTensor, Uncertified, certify, certify_all, kept_as
from kvoffload.layout.geometry import ParallelSizes

LLAMA = AttentionPage(4, (256, 256), 128)
"""4 KV heads of 64 float32, blocks of 128 tokens."""
HND = SeenTensor((20, 2, 128, 128), (2 * 128 * 128, 128 * 128, 128, 1), 4, "BHNC")
TP2 = ParallelSizes(tp=2)
STATE = StatePage((StateTensor((2, 256), 2, 1, (Segment(256),)),))


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def reason_of(page: LayerPage | None, sizes: ParallelSizes, seen: SeenTensor | None = None) -> str:
    verdict = certify(page, sizes, seen)
    assert isinstance(verdict, Uncertified), verdict
    return verdict.reason


def test_what_the_engine_registers_is_certified() -> None:
    assert certify(LLAMA, TP2) == Certified(LLAMA)
    assert certify(LLAMA, TP2, HND, 1) == Certified(LLAMA)
    latent = LatentPage((1152,), 16)
    seen = SeenTensor((160, 1, 16, 576), dense((160, 1, 16, 576)), 2, "BHNC")
    assert certify(latent, TP2, seen, 1) == Certified(latent)
    padded = SeenTensor((20, 1, 1, 512), (4096, 512, 512, 1), 1, "BXXY")
    assert certify(STATE, TP2, padded, 0) == Certified(STATE)


def test_the_order_of_heads_and_tokens_is_taken_from_the_tensor() -> None:
    seen = SeenTensor((20, 2, 128, 128), (2 * 128 * 128, 128, 2 * 128, 1), 4, "BHNC")
    assert certify(LLAMA, TP2, seen) == Certified(replace(LLAMA, order=HeadOrder.NHD))
    named_otherwise = SeenTensor((20, 128, 2, 128), dense((20, 128, 2, 128)), 4, "BNHC")
    assert certify(LLAMA, TP2, named_otherwise) == Certified(replace(LLAMA, order=HeadOrder.NHD))


def test_keys_and_values_in_planes_of_a_block_are_certified() -> None:
    page = replace(LLAMA, arrangement=Arrangement.SPLIT)
    seen = SeenTensor((20, 2, 128, 2, 64), dense((20, 2, 128, 2, 64)), 4, "BPNHC")
    assert certify(page, TP2, seen) == Certified(replace(page, order=HeadOrder.NHD))
    assert "axis" in reason_of(page, TP2, HND)
    assert "axes ['P']" in reason_of(LLAMA, TP2, seen) or "axis" in reason_of(LLAMA, TP2, seen)


def test_kernel_blocks_must_lie_together() -> None:
    page = replace(LLAMA, kernel_tokens=32)
    shape = (80, 2, 32, 128)
    assert certify(page, TP2, SeenTensor(shape, dense(shape), 4, "BHNC")) == Certified(page)
    apart = SeenTensor(shape, (2 * 32 * 128 + 8, *dense(shape)[1:]), 4, "BHNC")
    assert "strides" in reason_of(page, TP2, apart)
    odd = SeenTensor((79, *shape[1:]), dense(shape), 4, "BHNC")
    assert "79 kernel blocks" in reason_of(page, TP2, odd)


def test_a_dimension_of_one_may_have_any_stride() -> None:
    seen = SeenTensor((20, 1, 128, 128), (128 * 128, 7, 128, 1), 4, "BHNC")
    assert isinstance(certify(LLAMA, ParallelSizes(tp=4), seen), Certified)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (replace(HND, shape=(20, 4, 128, 128)), "axis H"),
        (replace(HND, shape=(20, 2, 64, 128)), "axis N"),
        (replace(HND, item_bytes=2), "axis C"),
        (replace(HND, strides=(2 * 128 * 128, 128 * 128, 256, 1)), "axis N"),
        (replace(HND, strides=(2 * 128 * 128, 128 * 128, 128, 2)), "axis C"),
        (replace(HND, strides=(128 * 128, 128 * 128, 128, 1)), "strides"),
        (replace(HND, axes="HBNC"), "axes"),
        (replace(HND, axes="BHN"), "axes"),
        (replace(HND, axes="BHHC"), "twice"),
        (replace(HND, axes="BHXC"), "axis N"),
        (replace(HND, axes="BHNY"), "axis C"),
        (SeenTensor((20, 2, 128, 128, 1), (*HND.strides, 1), 4, "BHNCP"), "not known"),
    ],
)
def test_a_tensor_that_looks_otherwise_is_not_certified(seen: SeenTensor, why: str) -> None:
    assert why in reason_of(LLAMA, TP2, seen)


def test_what_a_tensor_cannot_show_is_not_certified() -> None:
    assert "extra buffers" in reason_of(replace(LLAMA, extras=(4,)), TP2, HND)
    uneven = replace(LLAMA, parts=(256, 128), arrangement=Arrangement.SPLIT)
    assert "unequal" in reason_of(uneven, TP2, HND)


def test_a_state_of_another_length_is_not_certified() -> None:
    seen = SeenTensor((20, 1, 1, 1024), (4096, 1024, 1024, 1), 1, "BXXY")
    assert "axis Y" in reason_of(STATE, TP2, seen)
    assert certify(STATE, ParallelSizes(), seen) == Certified(STATE)


def test_what_is_not_recognised_is_opaque_and_not_portable() -> None:
    for page in (None, OpaquePage(64), AttentionPage(6, (8, 8), 4)):
        verdict = certify(page, ParallelSizes(tp=4))
        assert isinstance(verdict, Uncertified)
        kept = kept_as(verdict, 64)
        assert kept == OpaquePage(64)
        layout = CanonicalLayout((CanonicalLayer("a", kept),), 2, ParallelSizes(tp=4))
        assert (layout.fault(), layout.portable) == (None, False)
    assert kept_as(certify(LLAMA, TP2, HND), 64) == LLAMA


def test_a_namespace_is_agnostic_only_if_every_layer_is_certified() -> None:
    assert certify_all((LLAMA, STATE), TP2) == (True, ())
    agnostic, reasons = certify_all((LLAMA, None, None), TP2)
    assert (agnostic, reasons) == (False, ("the kind of this layer is not known",))
    agnostic, reasons = certify_all((LLAMA,), ParallelSizes(tp=4, dcp=2))
    assert not agnostic
    assert "do not tile" in reasons[0]
