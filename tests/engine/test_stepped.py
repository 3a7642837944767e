"""An engine that is turned by hand: nothing happens in between."""

from __future__ import annotations

import threading

from engine.config import EngineConfig
from engine.messages import Done, Event, Request, SamplingParams
from engine.stepped import SteppedWorker

PROMPT = tuple(range(65, 105))


def test_nothing_happens_until_it_is_turned_and_then_all_in_this_thread() -> None:
    worker = SteppedWorker(EngineConfig(model="digest"))
    events: list[Event] = []
    threads: set[int] = set()

    def sink(event: Event) -> None:
        events.append(event)
        threads.add(threading.get_ident())

    worker.submit(Request("a", PROMPT, SamplingParams(max_tokens=3, ignore_eos=True)), sink)
    assert worker.busy
    assert events == []
    turns = 0
    while worker.busy and turns < 100:
        worker.turn()
        turns += 1
    assert turns == 3
    assert events[-1] == Done(40, 0, 3)
    assert threads == {threading.get_ident()}


def test_a_command_is_done_with_the_next_turn() -> None:
    worker = SteppedWorker(EngineConfig(model="digest"))
    done = worker.call("reset")
    assert not done.done()
    worker.turn()
    assert done.result(timeout=0)["cleared"] is True
    assert not worker.busy
