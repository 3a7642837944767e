"""The engine thread: events in order, refusals at the door, commands between steps, a clean end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from engine.config import EngineConfig
from engine.messages import Done, Event, Failed, Request, RequestError, SamplingParams, Started, Token
from engine.worker import Worker

WAIT = 60


class Inbox:
    """Collects one request's events until its last."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.last = threading.Event()
        self.first_token = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Token):
            self.first_token.set()
        if isinstance(event, Done | Failed):
            self.last.set()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(EngineConfig(model="digest", block_size=4, grid=4, chunk=8, blocks=64, max_queue=2))
    worker.start()
    yield worker
    worker.stop()


def request(worker: Worker, length: int = 9, **params: object) -> Request:
    prompt = tuple(worker.tokenizer.plain_ids()[:length])
    sampling = SamplingParams(**{"max_tokens": 3, "ignore_eos": True, **params})  # type: ignore[arg-type]
    return Request(f"r{id(params)}", prompt, sampling, trace=True)


def ask(worker: Worker, asked: Request) -> list[Event]:
    inbox = Inbox()
    worker.submit(asked, inbox)
    assert inbox.last.wait(WAIT)
    return inbox.events


def test_events_come_in_order(worker: Worker) -> None:
    events = ask(worker, request(worker))
    assert [type(e).__name__ for e in events] == ["Started", *["Token"] * 3, "Finished", "Done"]
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.prompt_tokens, done.cached_tokens, done.completion_tokens) == (9, 0, 3)


def test_a_repeat_is_reported_with_the_blocks_it_adopted(worker: Worker) -> None:
    ask(worker, request(worker))
    started = ask(worker, request(worker))[0]
    assert isinstance(started, Started)
    assert started.cached_tokens == 8
    assert started.trace is not None
    assert started.trace["adopted_blocks"] == [0, 1]


def test_statistics_are_one_snapshot_with_a_number(worker: Worker) -> None:
    before = worker.stats()
    ask(worker, request(worker))
    assert worker.call("integrity").result(WAIT) == {"ok": True, "problems": []}
    after = worker.stats()
    assert after["sequence"] > before["sequence"]
    assert after["paged_blocks_live"] == after["paged_blocks_cached"] == 2
    assert after["paged_blocks_live"] + after["paged_blocks_free"] == after["paged_block_budget"]
    assert after["paged_bytes_in_use"] == 2 * after["paged_block_bytes"]


@pytest.mark.parametrize(
    ("prompt", "params", "field", "words"),
    [
        ((), {}, "prompt", "empty"),
        ((10**6,), {}, "prompt", "token id 1000000 is not in"),
        ((-1,), {}, "prompt", "token id -1 is not in"),
        ((1,) * 300, {}, "prompt", "never fit the pool of 64 blocks"),
        ((1,), {"n": 9}, "n", "at most 8 run at once"),
        ((1,), {"max_tokens": 10**7}, "max_tokens", "positions"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(
    worker: Worker, prompt: tuple[int, ...], params: dict[str, int], field: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as refusal:
        worker.submit(Request("r", prompt, SamplingParams(**params)), Inbox())  # type: ignore[arg-type]
    assert refusal.value.param == field
    assert worker.stats()["requests_total"] == 0


def test_a_cancelled_request_hears_nothing_more(worker: Worker) -> None:
    long = request(worker, max_tokens=200)
    inbox = Inbox()
    worker.submit(long, inbox)
    assert inbox.first_token.wait(WAIT)
    worker.cancel(long.id)
    worker.call("integrity").result(WAIT)
    heard = len(inbox.events)
    ask(worker, request(worker))
    assert len(inbox.events) == heard
    assert worker.stats()["cancelled_total"] == 1


def test_a_full_queue_answers_503(worker: Worker) -> None:
    gate = threading.Event()
    worker._post(lambda: _hold(gate))
    inboxes = [Inbox() for _ in range(3)]
    for number, inbox in enumerate(inboxes):
        worker.submit(Request(f"q{number}", (1, 2), SamplingParams(max_tokens=1)), inbox)
    gate.set()
    assert all(inbox.last.wait(WAIT) for inbox in inboxes)
    last = inboxes[2].events[-1]
    assert isinstance(last, Failed)
    assert last.status == 503


def _hold(gate: threading.Event) -> None:
    gate.wait(WAIT)


def test_the_peak_starts_again_at_a_mark(worker: Worker) -> None:
    ask(worker, request(worker))
    assert worker.stats()["paged_blocks_peak_live"] == 3
    worker.call("mark").result(WAIT)
    assert worker.stats()["paged_blocks_peak_live"] == 2


def test_reset_empties_the_store(worker: Worker) -> None:
    ask(worker, request(worker))
    assert worker.call("reset").result(WAIT)["freed_entries"] == 2
    assert ask(worker, request(worker))[0].cached_tokens == 0  # type: ignore[union-attr]


def test_overwriting_a_block_changes_what_its_borrower_says(worker: Worker) -> None:
    asked = request(worker, logprobs=0)
    ask(worker, asked)
    before = [e for e in ask(worker, asked) if isinstance(e, Token)]
    worker.call("overwrite", block=0).result(WAIT)
    after = [e for e in ask(worker, asked) if isinstance(e, Token)]
    assert [(e.id, e.logprob) for e in before] != [(e.id, e.logprob) for e in after]


def test_overwriting_a_block_that_is_not_live_is_refused(worker: Worker) -> None:
    with pytest.raises(RequestError, match="block 60 is not live"):
        worker.call("overwrite", block=60).result(WAIT)


def test_stopping_fails_what_is_in_flight() -> None:
    worker = Worker(EngineConfig(model="digest", blocks=1024))
    worker.start()
    inbox = Inbox()
    worker.submit(request(worker, max_tokens=4000), inbox)
    assert inbox.first_token.wait(WAIT)
    worker.stop(WAIT)
    assert not worker.alive
    last = inbox.events[-1]
    assert isinstance(last, Failed)
    assert (last.status, last.message) == (503, "the server is shutting down")


def test_a_model_that_cannot_be_loaded_is_reported_by_start() -> None:
    worker = Worker(EngineConfig(model="/nowhere/at/all"))
    with pytest.raises(ValueError, match="/nowhere/at/all"):
        worker.start()
    assert not worker.alive


def test_unseeded_sampling_differs_between_requests(worker: Worker) -> None:
    replies = {
        tuple(
            e.id for e in ask(worker, request(worker, temperature=5.0, max_tokens=8)) if isinstance(e, Token)
        )
        for _ in range(4)
    }
    assert len(replies) > 1
