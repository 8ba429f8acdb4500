"""Random traffic with random faults: whatever happens in whatever order, every finished output is right.

A failure names its seed; `KVOFFLOAD_SEED=7 pytest -m engine tests/engine/test_random_traffic.py` replays it.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from engine_process import Output
from expect import SAME_MATHS, assert_equal_outputs
from faulty_spec import Fault
from kinds import on
from shelf import Subject
from tiny_models import random_tokens

SEEDS = [int(os.environ["KVOFFLOAD_SEED"])] if "KVOFFLOAD_SEED" in os.environ else [1, 2]
OPERATIONS = 150
MAX_OUTSTANDING = 6
ANSWER = 24

_A, _B, _C = random_tokens(100, 1100), random_tokens(101, 700), random_tokens(102, 400)
POOL = [_A, _A[:600], [*_A[:700], *random_tokens(103, 300)], _B, [*_B[:256], *random_tokens(104, 200)], _C]
"""Prompts that share beginnings, also in the middle of a chunk."""


class Traffic:
    """What one seed does to an engine."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self._subject = subject
        self._engine = subject.engine
        self._random = random.Random(seed)
        self.submitted: dict[str, tuple[int, int]] = {}
        self._outstanding: list[str] = []
        self.aborted: set[str] = set()
        self.outputs: list[Output] = []

    def operate(self) -> None:
        """One operation."""
        operations = {
            self._submit: 6,
            self._step: 10,
            self._abort: 2,
            self._set_faults: 2,
            self._finish_and_evict: 1,
            self._reset: 0.2,
        }
        self._random.choices(list(operations), weights=list(operations.values()))[0]()
        # Raises if an invariant of the manager is broken.
        state = self._engine.state()
        assert not state["broken"]
        self._outstanding = [request for request in self._outstanding if request in state["unfinished"]]

    def _submit(self) -> None:
        if len(self._outstanding) >= MAX_OUTSTANDING:
            return
        index, tokens = self._random.randrange(len(POOL)), self._random.choice([1, 2, ANSWER])
        (request,) = self._engine.submit([POOL[index]], max_tokens=tokens)
        self.submitted[request] = (index, tokens)
        self._outstanding.append(request)

    def _step(self) -> None:
        self._engine.step(self._random.randrange(1, 12))

    def _abort(self) -> None:
        if self._outstanding:
            request = self._random.choice(self._outstanding)
            self._engine.abort([request])
            self.aborted.add(request)

    def _set_faults(self) -> None:
        self._subject.faults(load=self._fault(), store=self._fault())

    def _fault(self) -> Fault:
        return Fault(
            fail=self._random.choice(["none", "none", "none", "all", "first", "middle", "last"]),
            raises=self._random.random() < 0.1,
            delay_s=self._random.choice([0, 0, 0.01, 0.05]),
            ranks=self._random.choice([None, (self._random.randrange(self._subject.tp),)]),
        )

    def _finish_and_evict(self) -> None:
        self.outputs += self._engine.collect(until_idle=self._random.random() < 0.5)
        self._engine.reset(connector=False)

    def _reset(self) -> None:
        self._engine.reset(connector=True)


@on("tp1", "async", "small-steps", "no-device-cache", "tp2", "gemma3-faults")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_finished_output_is_right(subject: Subject, seed: int) -> None:
    wanted = subject.cold(POOL, max_tokens=ANSWER)
    traffic = Traffic(subject, seed)
    with subject.counting() as counted:
        for _ in range(OPERATIONS):
            traffic.operate()
        subject.faults()
        outputs = [*traffic.outputs, *subject.engine.collect()]
    finished = {output.id for output in outputs}
    assert finished == traffic.submitted.keys() - traffic.aborted, f"seed {seed}"
    for output in outputs:
        index, tokens = traffic.submitted[output.id]
        reference = wanted[index]
        start = replace(
            reference, tokens=reference.tokens[:tokens], logprobs=(reference.logprobs or [])[:tokens]
        )
        assert_equal_outputs([output], [start], SAME_MATHS)
    assert counted["kvoffload_loaded_chunks"] > 0, f"seed {seed} loads nothing: it proves nothing"
    assert counted["kvoffload_stored_chunks"] > 0
