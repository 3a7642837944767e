"""Test mode: requests stand still in a phase for sure, a forward fails when asked to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.faults import parts_for
from engine.messages import Done, Failed, Request, RequestError, SamplingParams, Started, Token
from engine.testmode import FallibleRunner, HoldingScheduler, RehearsalWorker, rehearsing, worker_for
from engine.worker import Worker
from tests.engine.rig import Client, Rig, expected
from tests.engine.test_worker import WAIT, Inbox


@pytest.fixture
def rig() -> Rig:
    return Rig(rehearsing(parts_for(None)))


def hold(rig: Rig, phase: str | None, after: int = 0) -> None:
    scheduler = rig.scheduler
    assert isinstance(scheduler, HoldingScheduler)
    scheduler.held, scheduler.after = phase, after


def fail(rig: Rig, method: str, after: int = 0) -> None:
    runner: Any = rig.engine.runner
    assert isinstance(runner, FallibleRunner)
    runner.failing, runner.fail_after = method, after


@pytest.mark.parametrize(
    ("phase", "after", "cached", "computed", "said"),
    [
        ("queued", 0, None, 0, 0),
        ("prefill", 0, 0, 0, 0),
        ("prefill", 9, 0, 16, 0),
        ("decode", 0, 0, 33, 1),
        ("decode", 2, 0, 35, 3),
    ],
)
def test_a_held_request_stands_where_it_was_told(
    rig: Rig, phase: str, after: int, cached: int | None, computed: int, said: int
) -> None:
    hold(rig, phase, after)
    client = rig.add(rig.prompt(33), max_tokens=6)
    rig.steps(12)
    (seq,) = rig.scheduler.running or rig.scheduler.waiting
    assert (client.cached, seq.computed, len(client.ids())) == (cached, computed, said)
    hold(rig, None)
    rig.drain()
    assert client.ids() == expected(rig.prompt(33), 6)


def test_other_phases_go_on_while_one_is_held(rig: Rig) -> None:
    hold(rig, "decode")
    first, second = rig.add(rig.prompt(5, seed=1)), rig.add(rig.prompt(30, seed=2))
    rig.steps(8)
    assert (len(first.ids()), len(second.ids())) == (1, 1)


def test_a_cancel_lands_while_held(rig: Rig) -> None:
    hold(rig, "prefill", 8)
    client = rig.add(rig.prompt(33))
    rig.steps(3)
    assert rig.paged.pool.referenced > 0
    rig.scheduler.cancel(client.request.id)
    assert (rig.scheduler.busy, rig.paged.pool.referenced) == (False, 0)


@pytest.mark.parametrize(
    ("method", "after", "said"), [("prefill", 0, 0), ("prefill", 3, 0), ("decode", 0, 1), ("decode", 2, 3)]
)
def test_the_forward_asked_to_fail_fails_its_request_once(
    rig: Rig, method: str, after: int, said: int
) -> None:
    fail(rig, method, after)
    client = rig.run(rig.prompt(33), max_tokens=6)[0]
    assert client.failed is not None
    assert (client.failed.status, len(client.ids())) == (500, said)
    assert "asked to fail" in client.failed.message
    assert (rig.paged.pool.referenced, rig.paged.promised) == (0, 0)
    again = rig.run(rig.prompt(33), max_tokens=6)[0]
    assert again.ids() == expected(rig.prompt(33), 6)


def test_a_failing_forward_leaves_other_requests_alone(rig: Rig) -> None:
    other = rig.add(rig.prompt(5, seed=1), max_tokens=12)
    rig.steps(2)
    fail(rig, "prefill")
    client: Client = rig.run(rig.prompt(9, seed=2))[0]
    assert client.failed is not None
    assert other.ids() == expected(rig.prompt(5, seed=1), 12)


def test_a_runner_passes_on_what_else_is_asked(rig: Rig) -> None:
    assert rig.engine.runner._seed is not None  # type: ignore[attr-defined]


def test_a_fault_stays_built_in_under_test_mode() -> None:
    parts = rehearsing(parts_for("leak_ref_on_abort"))
    rig = Rig(parts)
    client = rig.add(rig.prompt(32))
    rig.scheduler.step()
    rig.scheduler.cancel(client.request.id)
    assert rig.paged.pool.referenced == 2


def test_test_mode_chooses_the_worker() -> None:
    assert type(worker_for(EngineConfig(model="digest"))) is Worker
    assert type(worker_for(EngineConfig(model="digest", test_mode=True))) is RehearsalWorker


# ---- through the thread


@pytest.fixture
def worker() -> Iterator[Worker]:
    config = EngineConfig(model="digest", block_size=4, grid=4, chunk=8, blocks=64, test_mode=True)
    worker = worker_for(config)
    worker.start()
    yield worker
    worker.stop()


def ask(worker: Worker, name: str) -> Inbox:
    inbox = Inbox()
    worker.submit(Request(name, tuple(range(65, 74)), SamplingParams(max_tokens=3, ignore_eos=True)), inbox)
    return inbox


def test_commands_hold_and_let_go(worker: Worker) -> None:
    worker.call("hold", phase="decode", after=0).result(WAIT)
    inbox = ask(worker, "a")
    assert inbox.first_token.wait(WAIT)
    worker.call("integrity").result(WAIT)
    assert [type(event) for event in inbox.events] == [Started, Token]
    worker.call("hold", phase=None, after=0).result(WAIT)
    assert inbox.last.wait(WAIT)
    assert isinstance(inbox.events[-1], Done)


def test_a_command_makes_the_next_forward_fail(worker: Worker) -> None:
    worker.call("fail", method="decode", after_steps=0).result(WAIT)
    inbox = ask(worker, "a")
    assert inbox.last.wait(WAIT)
    last = inbox.events[-1]
    assert isinstance(last, Failed)
    assert last.message == "the engine failed: decode was asked to fail"


def test_a_failure_that_was_asked_for_is_taken_back(worker: Worker) -> None:
    worker.call("fail", method="decode", after_steps=0).result(WAIT)
    worker.call("fail", method=None, after_steps=0).result(WAIT)
    inbox = ask(worker, "a")
    assert inbox.last.wait(WAIT)
    assert isinstance(inbox.events[-1], Done)


def test_draining_lets_what_runs_end_and_refuses_what_comes(worker: Worker) -> None:
    worker.call("hold", phase="decode", after=0).result(WAIT)
    running = ask(worker, "a")
    assert running.first_token.wait(WAIT)
    worker.drain()
    late = ask(worker, "b")
    assert late.last.wait(WAIT)
    assert late.events == [Failed(503, "the server is draining")]
    assert (worker.drained, worker.stats()["rejected_total"]) == (False, 1)
    worker.call("hold", phase=None, after=0).result(WAIT)
    assert running.last.wait(WAIT)
    assert isinstance(running.events[-1], Done)
    assert worker.drained


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_only_place_is_not_held(phase: str) -> None:
    config = EngineConfig(
        model="digest", block_size=4, grid=4, chunk=8, blocks=64, max_batch=1, test_mode=True
    )
    worker = worker_for(config)
    worker.start()
    try:
        with pytest.raises(RequestError, match="a held request would keep all others out"):
            worker.call("hold", phase=phase, after=0).result(WAIT)
        worker.call("hold", phase="queued", after=0).result(WAIT)
        worker.call("hold", phase=None, after=0).result(WAIT)
    finally:
        worker.stop()
