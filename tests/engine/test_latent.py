"""A latent (MLA) model: every tensor-parallel rank holds the same bytes, so one copy is kept, for any tensor-parallel size.

What vLLM's CPU kernels for it can go on from is said in `connector_for_decodes.py`: all but the last token is loaded, and
the answer is compared with that of an engine which has just computed those tokens by itself.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from engine_process import Output
from expect import DAMAGED, SAME_MATHS, distance
from kinds import on
from shelf import FsSubject
from stored_files import payload_of, turn_signs
from tiny_models import prompts_of

PROMPTS = prompts_of(seed=6, number=3, tokens=1024)
CHUNKS = 1024 // 16
ITEMS_PER_TOKEN = 512 + 64
"""Latent and rotary part of one layer."""
ANSWER = 6


def _behind_its_first_token(output: Output) -> Output:
    assert output.logprobs is not None
    return dataclasses.replace(output, tokens=output.tokens[1:], logprobs=output.logprobs[1:])


@on("deepseek")
def test_one_copy_is_stored_under_any_tensor_parallel_size_and_loaded_under_any_other(
    subject: FsSubject,
) -> None:
    one_copy = CHUNKS * subject.model.layers * 16 * ITEMS_PER_TOKEN * 4
    stored: dict[int, dict[str, bytes]] = {}
    # There and back, so that the engine ends as the kind that it is.
    for stores, loads in ((1, 2), (2, 1)):
        assert subject.tp == stores
        damaged: set[Path] = set()
        for prompt in PROMPTS:
            damaged = set(subject.chunk_files())
            with subject.counting() as counted:
                subject.engine.generate([prompt], max_tokens=1)
            assert counted["kvoffload_stored_chunks"] == CHUNKS
            assert counted["kvoffload_stored_bytes"] == one_copy, "with two ranks as with one"
        stored[stores] = {path.name: payload_of(path).tobytes() for path in subject.chunk_files()}
        # The last prompt is the negative control.
        for path in set(subject.chunk_files()) - damaged:
            turn_signs(path)
        subject.restart(tp=loads)
        cold = subject.cold(PROMPTS, max_tokens=ANSWER + 1)
        longer = [[*prompt, output.tokens[0]] for prompt, output in zip(PROMPTS, cold, strict=True)]
        with subject.counting() as counted:
            found = subject.engine.generate(longer, max_tokens=ANSWER)
        assert [output.cached_tokens for output in found] == [1024] * len(PROMPTS)
        assert counted["kvoffload_loaded_chunks"] == CHUNKS * len(PROMPTS)
        assert counted["kvoffload_stored_chunks"] == 0
        gaps = [
            distance(ours, _behind_its_first_token(theirs)) for ours, theirs in zip(found, cold, strict=True)
        ]
        assert max(gaps[:-1]) <= SAME_MATHS, gaps
        assert gaps[-1] > DAMAGED, gaps
        subject.clear()
    first_layer = 16 * ITEMS_PER_TOKEN * 4
    assert stored[1].keys() == stored[2].keys()
    for name, content in stored[1].items():
        assert content[:first_layer] == stored[2][name][:first_layer]
