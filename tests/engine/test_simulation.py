"""Seeded interleavings on the engine as it runs with `--model digest`: real slabs, views and sampler.

`test_schedules.py` plays many more over pure-Python stand-ins; these show that the arrays keep the same
promises. The model's rows are digests of the tokens that wrote them, so any wrong reuse changes output. After
every step the pool, the index and the tables must agree; in the end every reply that was not cancelled equals
the oracle's and nothing is held.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from engine.build import Parts
from engine.faults import FAULTS
from tests.engine.rig import Client, Rig, expected

SCHEDULES = 40


@cache
def oracle(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    return expected(list(prompt), max_tokens)


class Schedule:
    """One seeded run over a small pool, with few distinct prompts so that they meet."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.random = random.Random(seed)
        self.rig = Rig(parts, blocks=12, max_batch=3, reserve=self.random.choice(["full", "prompt"]))
        self.clients: list[Client] = []
        self.cancelled: set[str] = set()
        self.log: list[str] = []

    def play(self, length: int = 40) -> None:
        for _ in range(length):
            act = self.random.choice(["arrive", "arrive", "step", "step", "step", "cancel", "reset"])
            self.log.append(act)
            getattr(self, act)()
        self.rig.drain()

    def arrive(self) -> None:
        trunk = self.rig.prompt(self.random.choice([4, 9, 16]), seed=self.random.randrange(2))
        prompt = trunk + self.rig.prompt(self.random.randrange(1, 6), seed=self.random.randrange(3))
        self.clients.append(self.rig.add(prompt, max_tokens=self.random.choice([1, 5])))

    def step(self) -> None:
        self.rig.steps(1)

    def cancel(self) -> None:
        if self.clients:
            request = self.random.choice(self.clients).request
            if request.id in self.rig.scheduler.live:
                self.cancelled.add(request.id)
            self.rig.scheduler.cancel(request.id)

    def reset(self) -> None:
        if self.random.random() < 0.3:
            self.rig.paged.reset()

    def check(self) -> None:
        for client in self.clients:
            request = client.request
            if request.id not in self.cancelled:
                assert client.ids() == oracle(request.prompt, request.params.max_tokens)
        assert self.rig.paged.pool.referenced == 0
        assert self.rig.paged.promised == 0
        assert len(self.rig.paged.index) == self.rig.paged.pool.cached


@pytest.mark.parametrize("part", range(2))
def test_any_interleaving_gives_each_reply_its_own_output(part: int) -> None:
    for seed in range(part * SCHEDULES // 2, (part + 1) * SCHEDULES // 2):
        schedule = Schedule(seed)
        try:
            schedule.play()
            schedule.check()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {' '.join(schedule.log)}") from error


def test_the_simulation_notices_a_leak() -> None:
    with pytest.raises(AssertionError):
        _play_all(FAULTS["leak_ref_on_abort"].parts)


def _play_all(parts: Parts) -> None:
    for seed in range(SCHEDULES):
        schedule = Schedule(seed, parts)
        schedule.play()
        schedule.check()
