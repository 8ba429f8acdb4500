"""The engine model under Hypothesis: the same life as in test_engine_seeds.py, but a failure is shrunk to few actions."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from random_runs import SETUPS, drain, make_model

from kvoffload.manager.wishes import Priority, Stay
from kvoffload.sim.patterns import document
from kvoffload.sim.requests import StepOptions, Wishes

small = st.integers(min_value=0, max_value=7)
rarely = st.integers(min_value=0, max_value=9).map(lambda number: number == 9)


class EngineMachine(RuleBasedStateMachine):
    """Its rules are what the outside and the workers may do at any time."""

    setup_name: str

    @initialize()
    def start(self) -> None:
        self.model, self.workers = make_model(SETUPS[self.setup_name])

    @rule(
        prompts=st.lists(st.tuples(st.integers(0, 3), st.integers(4, 20)), min_size=1, max_size=3),
        answer=st.integers(1, 4),
        limit=st.sampled_from([None, None, None, 4]),
        skip_load=rarely,
        stay=st.builds(
            Stay,
            st.sampled_from(Priority),
            keep_s=st.sampled_from([None, 1.0, 30.0]),
            ttl_s=st.sampled_from([None, None, 1.0, 30.0]),
        ),
    )
    def add(
        self, prompts: list[tuple[int, int]], answer: int, limit: int | None, skip_load: bool, stay: Stay
    ) -> None:
        for kind, length in prompts:
            if len(self.model.requests) < 7:
                self.model.add(
                    document(kind, length),
                    document(9, answer),
                    Wishes(max_offload_tokens=limit, skip_load=skip_load, stay=stay),
                )

    @rule(
        budget=st.sampled_from([1, 3, 8, 24]), accept=st.sampled_from([99, 1]), vanish=rarely, scratch=rarely
    )
    def step(self, budget: int, accept: int, vanish: bool, scratch: bool) -> None:
        self.model.step(StepOptions(budget, accept, vanish, scratch))

    @rule(budget=st.sampled_from([8, 24]), count=st.integers(2, 8), copies=st.integers(0, 2))
    def go_on(self, budget: int, count: int, copies: int) -> None:
        for _ in range(count):
            self.model.step(StepOptions(budget))
            self.model.check()
            for worker in self.workers:
                for _ in range(copies):
                    worker.run(0)

    @rule(worker=small, job=small, fail_mask=st.sampled_from([0, 0, 1, 2]))
    def copy(self, worker: int, job: int, fail_mask: int) -> None:
        self.workers[worker % len(self.workers)].run(job, fail_mask)

    @rule(fail_mask=st.sampled_from([0, 0, 0, 1]))
    def copy_all(self, fail_mask: int) -> None:
        for worker in self.workers:
            while worker.run(0, fail_mask):
                pass

    @precondition(lambda self: self.model.requests)
    @rule(which=small)
    def abort(self, which: int) -> None:
        requests = list(self.model.requests.values())
        self.model.abort(requests[which % len(requests)])

    @precondition(lambda self: self.model.running)
    @rule(which=small)
    def preempt(self, which: int) -> None:
        self.model.preempt(self.model.running[which % len(self.model.running)])

    @rule(kind=st.integers(0, 11), worker=small)
    def trouble(self, kind: int, worker: int) -> None:
        if kind == 9:
            self.model.reset(new_weights=False)
        elif kind == 10:
            self.model.reset(new_weights=True)
        elif kind == 11:
            one = self.workers[worker % len(self.workers)]
            one.flush_times_out = not one.flush_times_out
        elif kind > 6:
            self.model.clock.advance(61.0)
        elif kind > 4:
            self.model.clock.advance(6.0)

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            drain(self.model, self.workers)


@pytest.mark.parametrize(
    "name",
    [
        "one block a chunk",
        "two workers",
        "two groups",
        "two odd groups",
        "asynchronous",
        "second touch",
        "windows of two sizes",
        "wide states in small steps",
        "windows and states, asynchronous",
    ],
)
def test_no_sequence_of_events_shows_wrong_kv_hangs_or_leaks(name: str) -> None:
    machine = type("Machine", (EngineMachine,), {"setup_name": name})
    machine.TestCase.settings = settings(
        max_examples=30,
        stateful_step_count=50,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    machine.TestCase("runTest").runTest()
