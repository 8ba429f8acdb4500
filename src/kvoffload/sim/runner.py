"""One simulated life after the other: random actions by seed, deaths in between, and an end at which all must drain."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kvoffload.sim import checks
from kvoffload.sim.below import open_media
from kvoffload.sim.copies import FaultyCopier, StepWorker
from kvoffload.sim.disk_faults import ProcessDiedError
from kvoffload.sim.engine_model import EngineModel
from kvoffload.sim.event_log import EventLog
from kvoffload.sim.memory import Memory
from kvoffload.sim.patterns import document
from kvoffload.sim.requests import StepOptions, Wishes
from kvoffload.sim.setups import Setup
from kvoffload.sim.world import World

DRAIN_STEPS = 400
_STUCK_STEPS = 50
"""Of them, how many a tier that got stuck stays so: requests must end without it."""
_SMALL_STEPS_FACTOR = 3
"""It takes so many times as long where the engine takes small steps."""
_MAX_REQUESTS = 8
_DEEP_CHECK_EVERY = 16


@dataclass(frozen=True)
class Result:
    """What one run has shown."""

    seed: int
    digest: str
    events: int
    virtual_s: float
    seen: Counter[str]
    """What happened, and how often."""


class Simulation:
    """A run.

    Args:
        setup: Geometry and options.
        seed: Decides everything.
        show: Is given every line of the event log.
    """

    def __init__(self, setup: Setup, seed: int, show: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.setup = setup
        self.rng = random.Random(seed)
        # With windows and states: also all chunks but the first ones, so that a shorter load is still possible.
        self._fail_masks = (0, 0, 0, 0, 0, -64, -8, 6) if setup.is_sparse else (0, 0, 0, 0, 0, 0, 1, 6)
        self.world = World(setup)
        self.world.log = EventLog(self.world.clock, show)
        self.media = open_media(self.world, self.rng, [rows.shape[1] for rows in Memory(setup).rows])
        self._start()

    def run(self, actions: int) -> Result:
        """So many actions, then the end. Raises AssertionError, or whatever the code under test raises."""
        for number in range(actions):
            try:
                self._act()
                self.check()
                if number % _DEEP_CHECK_EVERY == 0:
                    self._check_deeply()
            except ProcessDiedError:
                self.world.note("died within a call")
                self._restart()
        self._drain()
        checks.note_life(self.model)
        for medium in self.media:
            medium.note_counters()
        world = self.world
        world.log.add(f"end: {sorted(world.seen.items())}")
        return Result(self.seed, world.log.digest, world.log.count, world.clock.now_s(), world.seen)

    def check(self) -> None:
        """Raise AssertionError if anything is wrong."""
        self.model.check()
        checks.note_breakers(self.model)
        for medium in self.media:
            medium.check()

    def _check_deeply(self) -> None:
        checks.check_counters(self.model)
        for medium in self.media:
            medium.check_deeply()

    # -- lives ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        memory = Memory(self.setup)
        self.workers = [StepWorker(FaultyCopier(memory.bind(rank))) for rank in range(self.setup.world_size)]
        tiers = [medium.open(f"tier{number}") for number, medium in enumerate(self.media)]
        self.model = EngineModel(self.world, memory, self.workers, tiers)
        self.world.log.add(f"engine {self.world.lives} starts, weights {self.world.weights}")

    def _restart(self) -> None:
        """The engine is gone with everything in its memory; the media stay, in whatever state."""
        loses_power = self.rng.random() < 0.4
        self.world.note("restart")
        self.world.note("power failure", loses_power)
        self.world.log.add(f"engine {self.world.lives} dies{', and so does the machine' * loses_power}")
        checks.note_life(self.model)
        for medium in self.media:
            medium.is_stuck = False
            medium.die(loses_power=loses_power)
        self.world.clock.advance(self.rng.choice((0.5, 5.0, 60.0, 7200.0)))
        self._start()

    def _drain(self) -> None:
        """Let everything end: no new requests, nothing fails any more. Fails if it does not end."""
        self.world.log.add("drain")
        for medium in self.media:
            medium.calm()
        stuck_steps = _STUCK_STEPS * (1 if self.setup.step_tokens is None else _SMALL_STEPS_FACTOR)
        for step in range(DRAIN_STEPS):
            for worker in self.workers:
                worker.flush_times_out = False
                while worker.run(0):
                    pass
            for medium in self.media:
                medium.is_stuck = medium.is_stuck and step < stuck_steps
                for _ in range(8):
                    medium.work()
            self.world.clock.advance(0.5)
            self._step(StepOptions(16))
            self.check()
            assert not self.model.requests or step < stuck_steps, f"HANG: {self.model.requests}"
            if self.model.is_idle() and not any(medium.is_stuck for medium in self.media):
                break
        else:
            raise AssertionError(f"HANG: {checks.in_flight(self.model)} jobs after {DRAIN_STEPS} steps")
        self.model.check_drained()
        for medium in self.media:
            medium.check_left()

    # -- actions -------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        rng = self.rng
        # Always a little: no two events have the same time, as it is with a real clock.
        self.world.clock.advance(rng.choice((0.001, 0.05, 0.4)))
        dice = rng.random()
        if dice < 0.20:
            self._add()
        elif dice < 0.55:
            self._step(
                StepOptions(
                    rng.choice((1, 3, 8, 24)),
                    accept=rng.choice((1, 99, 99, 99)),
                    vanish=rng.random() < 0.04,
                    scratch=rng.random() < 0.1,
                )
            )
        elif dice < 0.90:
            self._copy()
            self._work()
        else:
            self._trouble(rng.random())

    def _copy(self) -> None:
        rng = self.rng
        worker = rng.choice(self.workers)
        worker.flush_times_out = rng.random() < 0.05
        for _ in range(rng.choice((1, 1, 2, 4))):
            worker.run(rng.randrange(8), fail_mask=rng.choice(self._fail_masks))

    def _work(self) -> None:
        for medium in self.media:
            if medium.is_stuck and self.rng.random() < 0.12:
                medium.is_stuck = False
                self.world.log.add("a tier goes on")
            for _ in range(self.rng.choice((0, 4, 10))):
                medium.work()

    def _trouble(self, dice: float) -> None:
        if dice < 0.35:
            self._abort()
        elif dice < 0.5:
            self._preempt()
        elif dice < 0.55:
            self._reset()
        elif dice < 0.65:
            self.world.clock.advance(self.rng.choice((0.1, 3.0, 6.0, 61.0)))
        elif self.media:
            self._trouble_below()

    def _abort(self) -> None:
        if self.model.requests:
            request = self.rng.choice(list(self.model.requests.values()))
            self.world.log.add(f"abort {request.req_id}")
            self.model.abort(request)

    def _preempt(self) -> None:
        if self.model.running:
            request = self.rng.choice(self.model.running)
            self.world.log.add(f"preempt {request.req_id}")
            self.model.preempt(request)

    def _trouble_below(self) -> None:
        rng = self.rng
        one = rng.choice(self.media)
        dice = rng.random()
        if dice < 0.4:
            for _ in range(rng.choice((1, 1, 6))):
                one.damage()
        elif dice < 0.65:
            one.is_stuck = True
            self.world.note("stuck")
            self.world.log.add("a tier is stuck")
        elif dice < 0.85:
            self._restart()
        else:
            one.die_soon()

    def _reset(self) -> None:
        new_weights = self.rng.random() < 0.5
        is_empty = self.model.reset(new_weights=new_weights)
        self.world.note("incomplete reset", not is_empty)
        self.world.log.add(f"reset, {'new' if new_weights else 'same'} weights, empty: {is_empty}")

    def _step(self, options: StepOptions) -> None:
        finished = self.world.seen["finished"]
        self.model.step(options)
        model = self.model
        self.world.log.add(
            f"step {options.budget}: {len(model.running)} run, {len(model.waiting)} wait, "
            f"{self.world.seen['finished'] - finished} finished, {checks.in_flight(model)} in flight, "
            f"{sum(tier.ready_count for tier in model.tiers)} ready"
        )

    def _add(self) -> None:
        rng, setup = self.rng, self.setup
        if len(self.model.requests) >= _MAX_REQUESTS:
            return
        answer = document(9, rng.randint(1, 6))
        prompt = document(
            rng.randrange(4), rng.randint(setup.shortest_prompt, setup.max_tokens - len(answer))
        )
        limit = rng.choice((None, None, None, None, 0, setup.chunk_tokens))
        wishes = Wishes(
            max_load_tokens=limit if rng.random() < 0.5 else None,
            max_offload_tokens=limit if rng.random() < 0.5 else None,
            skip_load=rng.random() < 0.05,
        )
        request = self.model.add(prompt, answer, wishes)
        self.world.log.add(f"{request.req_id} arrives: {len(prompt)} + {len(answer)} tokens")
