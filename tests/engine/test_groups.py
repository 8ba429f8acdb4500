"""Models with several KV cache groups (windows, recurrent states): what comes back, and that nobody can tell."""

from __future__ import annotations

from expect import distance
from kinds import on
from shelf import FsSubject
from tiny_models import prompts_of

PROMPTS = prompts_of(seed=5, number=5, tokens=1100)
ALL = ("gemma3",)


@on(*ALL)
def test_evicted_prompts_of_all_groups_come_back_and_so_they_do_after_a_restart(subject: FsSubject) -> None:
    cold = subject.cold(PROMPTS)
    with subject.counting() as first:
        found = subject.engine.generate(PROMPTS)
    print(
        "FIRST",
        {k: v for k, v in first.items() if v},
        [output.cached_tokens for output in found],
        [distance(a, b) for a, b in zip(found, cold)],
    )
    with subject.counting() as second:
        found = subject.engine.generate(PROMPTS)
    print(
        "SECOND",
        {k: v for k, v in second.items() if v},
        [output.cached_tokens for output in found],
        [distance(a, b) for a, b in zip(found, cold)],
    )
    warm = subject.warm(PROMPTS)
    print(
        "WARM",
        [output.cached_tokens for output in warm],
        [distance(a, b) for a, b in zip(found, warm)],
        [distance(a, b) for a, b in zip(cold, warm)],
    )
    subject.restart()
    with subject.counting() as second:
        found = subject.engine.generate(PROMPTS)
    print(
        "THIRD",
        {k: v for k, v in second.items() if v},
        [output.cached_tokens for output in found],
        [distance(a, b) for a, b in zip(found, warm)],
    )
    print(subject.engine.log_tail())
