"""Errors in anything done for a request: its end with 500, nobody else's, and nothing stays (life/6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from engine.config import EngineConfig
from engine.messages import Done, Event, Failed, Request, RequestError, SamplingParams, Started, WorkerLike
from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence
from engine.worker import Worker
from tests.engine.fakes import Client as HttpClient
from tests.engine.fakes import error_of, serving
from tests.engine.rig import Client, Rig, expected
from tests.engine.test_worker import WAIT, Inbox, ask, request


def raises(*_: Any) -> Any:
    raise RuntimeError("it broke")


def spoil(target: object, name: str, request_id: str, after: int = 0) -> None:
    """Let a method raise whenever it is called, `after` times in vain, for a sequence of this request."""
    method, calls = getattr(target, name), iter(range(after))

    def call(*args: Any) -> Any:
        named = any(isinstance(a, Sequence) and a.request.id == request_id for a in args)
        if named and next(calls, None) is None:
            raise RuntimeError("it broke")
        return method(*args)

    setattr(target, name, call)


def spoil_text(rig: Rig, request_id: str) -> None:
    """Let the request's tokens have no text."""
    for output in rig.scheduler.live[request_id].outputs:
        output._codec = cast(Any, type("Broken", (), {"decode": raises}))


SPOILS: dict[str, Callable[[Rig, str], None]] = {
    "lookup": lambda rig, name: spoil(rig.paged, "blocked_by", name),
    "admission": lambda rig, name: spoil(rig.paged, "admit", name),
    "adoption": lambda rig, name: spoil(rig.scheduler, "_account", name),
    "room for the prompt": lambda rig, name: spoil(rig.paged, "extend", name),
    "room for a token": lambda rig, name: spoil(rig.paged, "extend", name, after=3),
    "publish in prefill": lambda rig, name: spoil(rig.paged, "publish", name),
    "publish in decode": lambda rig, name: spoil(rig.paged, "publish", name, after=3),
    "fork": lambda rig, name: spoil(rig.paged, "fork", name),
    "fork of the last": lambda rig, name: spoil(rig.paged, "fork", name, after=1),
    "first sample": lambda rig, name: spoil(rig.scheduler.sampler, "sample", name),
    "last sample of a choice": lambda rig, name: spoil(rig.scheduler.sampler, "sample", name, after=7),
    "text": spoil_text,
}


@pytest.mark.parametrize("spoiled", SPOILS)
def test_an_error_fails_its_request_alone_and_leaves_nothing(spoiled: str) -> None:
    """A neighbour runs in the same batches, and adopts what the failed one had published before."""
    rig = Rig(max_batch=8)
    prompt, other = rig.prompt(18, seed=1), rig.prompt(7, seed=2)
    victim = rig.add(prompt, n=3)
    SPOILS[spoiled](rig, victim.request.id)
    neighbour = rig.add(other, max_tokens=12)
    rig.drain()
    assert victim.failed == Failed(500, "the engine failed: it broke")
    assert victim.events[-1] == victim.failed
    assert neighbour.ids() == expected(other, 12)
    assert (rig.paged.pool.referenced, rig.paged.promised, rig.scheduler.live) == (0, 0, {})
    assert rig.run(prompt)[0].ids() == expected(prompt, 4)


def test_without_a_spoiled_part_the_same_request_succeeds() -> None:
    rig = Rig(max_batch=8)
    victim = rig.run(rig.prompt(18, seed=1), n=3)[0]
    assert victim.done
    assert [victim.ids(choice) for choice in range(3)] == [expected(rig.prompt(18, seed=1), 4)] * 3


@pytest.mark.parametrize("part", ["blocked_by", "admit"])
def test_who_fails_before_admission_was_withdrawn(part: str) -> None:
    rig = Rig()
    victim = rig.add(rig.prompt(9))
    spoil(rig.paged, part, victim.request.id)
    rig.drain()
    counts = rig.scheduler.counts
    assert (counts["failed_total"], counts["withdrawn_total"], counts["lookups"]) == (1, 1, 0)


def test_who_cannot_be_prepared_is_not_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    with monkeypatch.context() as patch:
        patch.setattr(rig.paged, "prepare", raises)
        with pytest.raises(RuntimeError, match="it broke"):
            rig.add(rig.prompt(9))
    assert (rig.scheduler.busy, rig.scheduler.live, rig.scheduler.problems()) == (False, {}, [])


def test_a_second_request_of_the_same_id_is_refused() -> None:
    rig = Rig()
    client = rig.add(rig.prompt(9))
    other = Client(Request(client.request.id, client.request.prompt, SamplingParams()))
    with pytest.raises(RequestError, match="has this id"):
        rig.scheduler.add(other.request, other.events.append)
    rig.drain()
    assert (client.ids(), other.events) == (expected(rig.prompt(9), 4), [])
    rig.scheduler.add(other.request, other.events.append)
    rig.drain()
    assert other.done


def test_all_fail_together_and_each_is_told() -> None:
    rig = Rig(max_batch=2)
    clients = [rig.add(rig.prompt(9, seed=seed)) for seed in range(3)]
    rig.steps(2)
    rig.scheduler.fail_all("enough")
    assert [client.events[-1] for client in clients] == [Failed(500, "enough")] * 3
    assert (rig.scheduler.busy, rig.paged.pool.referenced, rig.scheduler.problems()) == (False, 0, [])
    assert rig.scheduler.fail(clients[0].request.id, "again") is False


def test_all_are_told_though_one_cannot_be_released() -> None:
    rig = Rig()
    clients = [rig.add(rig.prompt(9, seed=seed)) for seed in range(3)]
    rig.steps(2)
    spoil(rig.paged, "release", clients[1].request.id)
    with pytest.raises(RuntimeError, match="it broke"):
        rig.scheduler.fail_all("enough")
    assert [client.events[-1] for client in clients] == [Failed(500, "enough")] * 3
    assert rig.scheduler.problems() == ["a request has no sequence, or a sequence no request"]


# ---- through the thread


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(EngineConfig(model="digest", block_size=4, grid=4, chunk=8, blocks=64))
    worker.start()
    yield worker
    worker.stop()


def named(worker: Worker, name: str, length: int, max_tokens: int = 3) -> Request:
    return replace(request(worker, length, max_tokens=max_tokens), id=name)


@contextmanager
def at_once(worker: Worker) -> Iterator[None]:
    """The engine takes in what is sent meanwhile between two steps."""
    gate = threading.Event()
    worker._post(lambda: cast(None, gate.wait(WAIT)))
    yield
    gate.set()


def sound(worker: Worker) -> bool:
    return worker.alive and worker.call("integrity").result(WAIT)["ok"]


class Refusing(Inbox):
    """A sink that raises at its event number `at`, or at every one from there on."""

    def __init__(self, at: int, ever: bool = False) -> None:
        super().__init__()
        self.at, self.ever, self.calls = at, ever, 0

    def __call__(self, event: Event) -> None:
        self.calls += 1
        if self.calls - 1 == self.at or (self.ever and self.calls > self.at):
            raise RuntimeError("nobody listens")
        super().__call__(event)


@pytest.mark.parametrize("at", range(4))
def test_a_sink_that_raises_ends_its_request_alone(worker: Worker, at: int) -> None:
    gone = Refusing(at)
    worker.submit(named(worker, "gone", 9, 40), gone)
    assert isinstance(ask(worker, request(worker, 7))[-1], Done)
    assert gone.last.wait(WAIT)
    assert gone.events[-1] == Failed(500, "an event could not be delivered: nobody listens")
    assert len(gone.events) == at + 1
    assert sound(worker)
    stats = worker.stats()
    assert (stats["failed_total"], stats["paged_blocks_referenced"]) == (1, 0)


def test_a_sink_that_never_listens_is_called_twice(worker: Worker) -> None:
    gone = Refusing(0, ever=True)
    worker.submit(named(worker, "gone", 9, 40), gone)
    assert isinstance(ask(worker, request(worker, 7))[-1], Done)
    assert sound(worker)
    assert gone.calls == 2
    assert worker.stats()["running"] == 0


def test_a_reply_with_a_gap_does_not_end_as_done(worker: Worker) -> None:
    """All its events leave in one delivery: the request itself has ended before one is refused."""
    gone = Refusing(1)
    worker.submit(request(worker, 3, max_tokens=1), gone)
    assert gone.last.wait(WAIT)
    assert [type(event) for event in gone.events] == [Started, Failed]
    assert sound(worker)


def once(method: Callable[..., Any], when: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
    """The same, raising at its first call for which `when` holds."""
    left = [True]

    def call(*args: Any) -> Any:
        if left and when():
            left.clear()
            raise RuntimeError("it broke")
        return method(*args)

    return call


@pytest.mark.parametrize("part", ["_publish", "step"])
def test_an_error_of_nobodys_fails_all_and_the_engine_goes_on(worker: Worker, part: str) -> None:
    scheduler = worker._engine.scheduler
    target: Any = worker if part == "_publish" else scheduler
    inboxes = [Inbox(), Inbox()]
    setattr(target, part, once(getattr(target, part), lambda: len(scheduler.running) == 2))
    with at_once(worker):
        for name, inbox in zip("ab", inboxes, strict=True):
            worker.submit(named(worker, name, 9, 100), inbox)
    assert all(inbox.last.wait(WAIT) for inbox in inboxes)
    assert [inbox.events[-1] for inbox in inboxes] == [Failed(500, "the engine failed: it broke")] * 2
    assert sound(worker)
    assert isinstance(ask(worker, request(worker, 9))[-1], Done)


def test_a_quiet_moment_that_fails_does_not_end_the_engine(worker: Worker) -> None:
    storage, trimmed = worker._engine.storage, threading.Event()
    failing = once(storage.trim)

    def trim() -> None:
        failing()
        trimmed.set()

    storage.trim = trim  # type: ignore[method-assign]
    assert isinstance(ask(worker, request(worker))[-1], Done)
    assert trimmed.wait(WAIT)
    assert sound(worker)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_cannot_give_back_is_dead_and_says_so(worker: Worker) -> None:
    worker._engine.storage.release = raises  # type: ignore[assignment,method-assign]
    inbox = Inbox()
    with at_once(worker):
        worker.submit(named(worker, "a", 9), Inbox())
        worker.submit(named(worker, "b", 9), inbox)
        worker.cancel("a")
    assert inbox.last.wait(WAIT)
    assert inbox.events[-1] == Failed(500, "the engine failed: it broke")
    worker._thread.join(WAIT)
    assert not worker.alive
    with serving(cast(WorkerLike, worker), worker.config) as address:
        health, reply = HttpClient(address).get("/health"), HttpClient(address).complete()
    assert (health.status_code, reply.status_code) == (503, 503)
    assert error_of(health)["message"] == "the engine has stopped"


def test_a_call_that_nobody_waits_for_any_more_harms_nobody(worker: Worker) -> None:
    inbox = Inbox()
    with at_once(worker):
        asked = worker.call("integrity")
        worker.submit(request(worker), inbox)
        assert asked.cancel()
    assert inbox.last.wait(WAIT)
    assert isinstance(inbox.events[-1], Done)


def test_the_id_of_a_request_that_runs_is_refused_and_the_first_goes_on(worker: Worker) -> None:
    first, second = Inbox(), Inbox()
    with at_once(worker):
        for inbox in (first, second):
            worker.submit(named(worker, "a", 9), inbox)
    assert second.last.wait(WAIT)
    taken = Failed(409, "another request that runs has this id", "invalid_request_error", "request_id")
    assert second.events == [taken]
    assert first.last.wait(WAIT)
    assert isinstance(first.events[-1], Done)
    assert sound(worker)
    assert worker.stats()["rejected_total"] == 1


def test_a_request_that_cannot_be_queued_fails(worker: Worker) -> None:
    worker._engine.storage.prepare = once(worker._engine.storage.prepare)  # type: ignore[method-assign]
    assert ask(worker, request(worker)) == [Failed(500, "the engine failed: it broke")]
    assert isinstance(ask(worker, request(worker))[-1], Done)
    assert sound(worker)


def test_who_comes_behind_the_shutdown_is_told() -> None:
    worker = Worker(EngineConfig(model="digest", blocks=64))
    worker.start()
    running, late = Inbox(), Inbox()
    with at_once(worker):
        worker.submit(named(worker, "a", 9), running)
        worker._post(worker._shut_down)
        worker.submit(named(worker, "b", 9), late)
    worker._thread.join(WAIT)
    over = Failed(503, "the server is shutting down")
    assert (running.events[-1], late.events) == (over, [over])
    stats = worker.stats()
    assert (stats["cancelled_total"], stats["failed_total"], stats["rejected_total"]) == (0, 1, 1)


def test_the_single_exit_is_the_only_caller_of_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finish, cancel, failure and preemption: what was released had been dropped."""
    dropped: list[Sequence] = []
    drop = Scheduler._drop

    def noting(scheduler: Scheduler, seq: Sequence) -> None:
        dropped.append(seq)
        drop(scheduler, seq)
        assert seq.phase is Phase.DONE

    monkeypatch.setattr(Scheduler, "_drop", noting)
    rig = Rig(blocks=8, reserve="prompt")
    released: list[Sequence] = []
    release = rig.paged.release

    def releasing(seq: Sequence) -> None:
        released.append(seq)
        release(seq)

    monkeypatch.setattr(rig.paged, "release", releasing)
    clients = [rig.add(rig.prompt(9, seed=seed), max_tokens=12) for seed in range(3)]
    rig.steps(3)
    rig.scheduler.cancel(clients[0].request.id)
    spoil(rig.scheduler.sampler, "sample", clients[1].request.id)
    rig.drain()
    counts = rig.scheduler.counts
    assert (counts["cancelled_total"], counts["failed_total"], counts["finished_total"]) == (1, 1, 1)
    assert released == dropped != []
