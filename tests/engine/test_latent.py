"""A latent (MLA) model: every tensor-parallel rank holds the same bytes, so one copy is kept, for any tensor-parallel size."""

from __future__ import annotations

from pathlib import Path

from expect import DAMAGED, SAME_MATHS, distance
from kinds import on
from shelf import FsSubject
from stored_files import payload_of, turn_signs
from tiny_models import prompts_of

PROMPTS = prompts_of(seed=6, number=3, tokens=1050)
CHUNKS = 1050 // 16
ITEMS_PER_TOKEN = 512 + 64
"""Latent and rotary part of one layer."""


@on("deepseek")
def test_one_copy_is_stored_under_any_tensor_parallel_size_and_loaded_under_any_other(
    subject: FsSubject,
) -> None:
    one_copy = CHUNKS * subject.model.layers * 16 * ITEMS_PER_TOKEN * 4
    stored: dict[int, dict[str, bytes]] = {}
    # There and back, so that the engine ends as the kind that it is.
    for stores, loads in ((1, 2), (2, 1)):
        assert subject.tp == stores
        before_the_last: set[Path] = set()
        for prompt in PROMPTS:
            before_the_last = set(subject.chunk_files())
            with subject.counting() as counted:
                subject.engine.generate([prompt])
            assert counted["kvoffload_stored_chunks"] == CHUNKS
            assert counted["kvoffload_stored_bytes"] == one_copy, "with two ranks as with one"
        stored[stores] = {path.name: payload_of(path).tobytes() for path in subject.chunk_files()}
        # The last prompt is the negative control.
        for path in set(subject.chunk_files()) - before_the_last:
            turn_signs(path)
        subject.restart(tp=loads)
        with subject.counting() as counted:
            found = subject.engine.generate(PROMPTS)
        assert [output.cached_tokens for output in found] == [CHUNKS * 16] * len(PROMPTS)
        assert counted["kvoffload_loaded_chunks"] == CHUNKS * len(PROMPTS)
        assert counted["kvoffload_stored_chunks"] == 0
        gaps = [distance(ours, theirs) for ours, theirs in zip(found, subject.cold(PROMPTS), strict=True)]
        assert max(gaps[:-1]) <= SAME_MATHS, gaps
        assert gaps[-1] > DAMAGED, gaps
        subject.clear()
    first_layer = 16 * ITEMS_PER_TOKEN * 4
    assert stored[1].keys() == stored[2].keys()
    for name, content in stored[1].items():
        assert content[:first_layer] == stored[2][name][:first_layer]
