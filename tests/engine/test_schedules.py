"""Ten thousand seeded schedules of all that can happen to a request, and five hundred that Hypothesis seeks.

After every step pool, index, tables and accounts agree; in the end every reply equals the oracle's and
nothing is held. What fails is printed as the least schedule that still fails. Broken parts are caught.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.index import Entry
from engine.pool import BlockPool
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage
from tests.engine.standin import (
    FAILS,
    Act,
    Arrive,
    Cancel,
    Fail,
    Reset,
    Setup,
    Simulation,
    Step,
    drawn,
    replay,
    report,
    shrunk,
    solo,
    wrong,
)

SCHEDULES = 10_000
PARTS = 20

# ---- the proof


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_goes_wrong(part: int) -> None:
    size = SCHEDULES // PARTS
    seen: Counter[str] = Counter()
    for seed in range(part * size, (part + 1) * size):
        seen.update(_played(seed))
    rare = {name: seen[name] for name in _HAPPENS if seen[name] < size // 10}
    assert not rare, f"these hardly happened, so the schedules prove little about them: {rare}"


_HAPPENS = (
    "hits",
    "preemptions_total",
    "evictions_lru",
    "copies",
    "cancelled_total",
    "failed_total",
    "resets",
)


def _played(seed: int) -> dict[str, int]:
    setup, acts = drawn(seed)
    simulation = Simulation(setup)
    try:
        simulation.play(acts)
    except Exception as error:
        pytest.fail(f"schedule {seed}: {report(setup, acts) or error}")
    resets = sum(isinstance(act, Reset) for act in acts)
    return {**simulation.scheduler.counts, **simulation.storage.counts, "resets": resets}


def test_a_schedule_has_forty_acts() -> None:
    assert all(len(drawn(seed)[1]) == 40 for seed in range(20))


SETUPS = st.builds(
    lambda block, wide, chunk, **rest: Setup(block, grid=block * wide, chunk=block * wide * chunk, **rest),
    block=st.integers(2, 4), wide=st.integers(1, 2), chunk=st.integers(1, 2), blocks=st.integers(7, 16),
    batch=st.integers(2, 4), reserve=st.sampled_from(["prompt", "full"]), generated=st.booleans(),
)  # fmt: skip
ARRIVALS = st.builds(
    Arrive,
    trunk=st.integers(0, 2), shared=st.integers(1, 12), tail=st.integers(0, 11),
    max_tokens=st.integers(1, 12), n=st.integers(1, 2), salt=st.sampled_from(["", "x"]),
)  # fmt: skip
ACTS: st.SearchStrategy[Act] = st.one_of(
    ARRIVALS,
    st.builds(Step, st.integers(1, 4)),
    st.builds(Cancel, st.integers(0, 20)),
    st.builds(Reset),
    st.builds(Fail, st.sampled_from(FAILS)),
)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(setup=SETUPS, acts=st.lists(ACTS, min_size=1, max_size=60))
def test_hypothesis_finds_no_schedule_that_goes_wrong(setup: Setup, acts: list[Act]) -> None:
    replay(setup, acts)


# ---- the oracle and the shrinker


def test_the_oracle_tells_choices_and_prompts_apart() -> None:
    said = {tuple(solo(prompt, 12, choice)) for prompt in ((1, 2), (2, 1), (1, 2, 3)) for choice in (0, 1)}
    assert len(said) == 6


def test_a_failure_is_printed_as_the_least_schedule_and_replays() -> None:
    setup, acts = _caught(NoCopyOnWrite)
    said = report(setup, acts, paged=NoCopyOnWrite)
    names: dict[str, Any] = {"Setup": Setup, "Arrive": Arrive, "Step": Step, "Cancel": Cancel, "Reset": Reset}
    names |= {"Fail": Fail, "replay": lambda *given: replay(*given, paged=NoCopyOnWrite)}
    with pytest.raises(AssertionError):
        eval(said[said.index("replay(") :], names)


# ---- controls: storages that are broken


class FreeForAll(BlockPool):
    """A release frees the block whoever else holds it."""

    def release(self, table: Any) -> None:
        table = [block for block in table if self.refs(block)]
        for block in table:
            self._refs[block] = 1
        super().release(table)


class FreeIgnoresReferences(PagedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pool = FreeForAll(self.pool.budget)


class PublishAtAllocation(PagedStorage):
    """Blocks are named as soon as they are taken, before anything is in them (evict/8)."""

    def extend(self, seq: Sequence, length: int) -> bool:
        if not super().extend(seq, length):
            return False
        written, seq.computed = seq.computed, min(length, len(seq.tokens))
        self.publish(seq)
        seq.computed = written
        return True


class KeepHashOnRecycle(PagedStorage):
    """An evicted block's name stays in the index (evict/4)."""

    def _evict_one(self) -> None:
        block = self.pool.oldest()
        if block is not None:
            self.pool.forget(block)


class NoCopyOnWrite(PagedStorage):
    """Choices go on writing into the block they share (store/5)."""

    def _own(self, seq: Sequence, at: int) -> None:
        pass


class HitsWithoutPins(PagedStorage):
    """What is adopted may be evicted under its reader (evict/3)."""

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        self.pool.release(blocks)


class SaltBlind(PagedStorage):
    """A match looks at tokens alone: another salt's blocks are adopted (key/1)."""

    def prepare(self, seq: Sequence) -> None:
        seq.root = self.index.root(())
        seq.keys = self.index.chain(seq.root, seq.tokens)


class MatchTooLong(PagedStorage):
    """The index is asked without a cap, so that no prompt token is left to compute."""

    def matched(self, seq: Sequence) -> list[Entry]:
        return self.index.match(seq.root, seq.keys, seq.tokens)


class ForgetsOnPreemption(Scheduler):
    """A preempted request starts anew and says its tokens twice (evict/7)."""

    def _preempt(self, request_id: str) -> None:
        super()._preempt(request_id)
        del self.waiting[0].tokens[self.waiting[0].prompt_tokens :]


class LeaksOnFailure(Scheduler):
    """A request whose forward failed keeps its blocks (life/6)."""

    def fail(self, request_id: str, message: str, status: int = 500) -> bool:
        for seq in self.running:
            if seq.request.id == request_id:
                seq.table = []
        return super().fail(request_id, message, status)


class CountsRecomputation(Scheduler):
    """What a preempted request finds of its own is reported as a hit (count/6)."""

    def _start(self, seq: Sequence) -> None:
        self.live[seq.request.id].admitted = False
        super()._start(seq)


BROKEN_STORAGES = [
    FreeIgnoresReferences, PublishAtAllocation, KeepHashOnRecycle, NoCopyOnWrite, HitsWithoutPins, SaltBlind,
    MatchTooLong,
]  # fmt: skip


def _caught(paged: type[PagedStorage], *, audit: bool = True) -> tuple[Setup, list[Act]]:
    for seed in range(300):
        setup, acts = drawn(seed)
        if wrong(setup, acts, paged=paged, audit=audit):
            return setup, acts
    pytest.fail(f"no schedule caught {paged.__name__}")


@pytest.mark.parametrize("paged", BROKEN_STORAGES)
def test_a_broken_storage_is_caught(paged: type[PagedStorage]) -> None:
    setup, acts = _caught(paged)
    assert len(shrunk(setup, acts, paged=paged)) < 15


@pytest.mark.parametrize("paged", [PublishAtAllocation, KeepHashOnRecycle, NoCopyOnWrite])
def test_wrong_reuse_is_caught_by_what_is_said_alone(paged: type[PagedStorage]) -> None:
    """No integrity check runs: the replies differ from the oracle."""
    assert any("alone" in wrong(*drawn(seed), paged=paged, audit=False) for seed in range(300))


@pytest.mark.parametrize("scheduler", [ForgetsOnPreemption, LeaksOnFailure, CountsRecomputation])
def test_a_broken_scheduler_is_caught(scheduler: type[Scheduler]) -> None:
    assert any(wrong(*drawn(seed), scheduler=scheduler) for seed in range(300))
