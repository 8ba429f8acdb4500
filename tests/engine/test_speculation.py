"""Speculative decoding: KV of a rejected token never gets into a cache, neither the target's nor a draft model's."""

from __future__ import annotations

import numpy as np
import pytest
from expect import SAME_MATHS, assert_equal_outputs
from kinds import on
from shelf import FsSubject
from stored_files import payload_of
from tiny_models import prompts_of

# Every known token may begin a draft of "drafts", and next to all of those are wrong.
PROMPTS = prompts_of(seed=14, number=3, tokens=500)
HEADS, TOKENS, CONTENT = 4, 128, 128
LAYERS = {"drafts": 4, "draft-model": 8}
"""Those of the draft model lie in the same chunks."""


def _stored(subject: FsSubject) -> dict[str, np.ndarray]:
    """All stored keys and values by file name: (layers, heads, tokens, content)."""
    shape = (LAYERS[subject.kind], HEADS, TOKENS, CONTENT)
    return {path.name: payload_of(path).view(np.float32).reshape(shape) for path in subject.chunk_files()}


@pytest.mark.parametrize(
    ("subject", "answer", "chunks"),
    [
        # 500 + 300 - 1 tokens have KV.
        ("drafts", 300, 6),
        # The last token fills a block, but it was only sampled: its place may hold what a rejected draft left there.
        ("drafts", 268, 5),
        ("draft-model", 268, 5),
    ],
    indirect=["subject"],
)
def test_what_was_stored_while_drafts_were_rejected_is_what_a_prefill_of_the_same_tokens_stores(
    subject: FsSubject, answer: int, chunks: int
) -> None:
    cold = subject.cold(PROMPTS, max_tokens=answer)
    with subject.counting() as counted:
        answers = subject.engine.generate(PROMPTS, max_tokens=answer)
    drafted = counted["vllm:spec_decode_num_draft_tokens"]
    assert drafted > 100
    assert counted["vllm:spec_decode_num_accepted_tokens"] < drafted - 50, "hardly a draft was rejected"
    assert_equal_outputs(answers, cold, SAME_MATHS)
    decoded = _stored(subject)
    assert len(decoded) == chunks * len(PROMPTS)

    # It is found, and the next turn goes on from it.
    subject.evict_device()
    turns = [[*prompt, *output.tokens, 11, 12, 13] for prompt, output in zip(PROMPTS, answers, strict=True)]
    with subject.counting() as counted:
        found = subject.engine.generate(turns)
    assert [output.cached_tokens for output in found] == [chunks * TOKENS] * len(PROMPTS)
    assert counted["kvoffload_loaded_chunks"] == chunks * len(PROMPTS)
    assert_equal_outputs(found, subject.cold(turns), SAME_MATHS)

    # The same tokens once more, as a prompt: nothing is drafted before the chunks are full.
    subject.clear()
    assert not subject.chunk_files()
    subject.engine.generate(turns, max_tokens=1)
    prefilled = _stored(subject)
    assert decoded.keys() <= prefilled.keys()
    gaps = [np.abs(decoded[name] - prefilled[name]).max(axis=(1, 3)) for name in decoded]
    # Any other token would show: its values are far from those beside it, in every layer.
    steps = [np.abs(np.diff(values, axis=2)).max(axis=(1, 3)) for values in prefilled.values()]
    assert max(gap.max() for gap in gaps) < SAME_MATHS
    assert min(step.min() for step in steps) > 100 * SAME_MATHS


@on("draft-model")
def test_a_draft_model_drafts_as_well_behind_a_loaded_prefix_as_behind_a_computed_one(
    subject: FsSubject,
) -> None:
    shares = []
    for _ in range(2):
        with subject.counting() as counted:
            subject.engine.generate(PROMPTS, max_tokens=100)
        drafted, accepted = (counted[f"vllm:spec_decode_num_{name}_tokens"] for name in ("draft", "accepted"))
        shares.append(accepted / drafted)
        subject.evict_device()
    assert counted["kvoffload_loaded_chunks"] > 0
    assert shares[0] > 0.2
    assert shares[1] == pytest.approx(shares[0], abs=0.05)
