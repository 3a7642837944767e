"""Each request is accounted once: adopted, missed with a reason, withdrawn or rejected (count/5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.messages import Request, RequestError, SamplingParams, Started
from engine.worker import Worker
from tests.engine.rig import Client, Rig
from tests.engine.test_worker import WAIT, Inbox, ask, request

REASONS = ("cold", "no_full_block", "below_granule", "sharing_off")


def missed(rig: Rig) -> dict[str, int]:
    counts = {reason: rig.scheduler.counts[f"missed_{reason}_total"] for reason in REASONS}
    return {reason: count for reason, count in counts.items() if count}


def said_reason(client: Client) -> Any:
    (started,) = (event for event in client.events if isinstance(event, Started))
    assert started.trace is not None
    return started.trace["missed"]


def traced(rig: Rig, prompt: list[int], salt: str = "") -> Any:
    """The reason that a request's trace gives."""
    client = Client(Request(f"t{len(prompt)}{salt}", tuple(prompt), SamplingParams(max_tokens=1), salt, True))
    rig.scheduler.add(client.request, client.events.append)
    rig.drain()
    return said_reason(client)


@pytest.mark.parametrize("storage", ["paged", "dense"])
def test_the_trace_says_why_nothing_was_adopted(storage: str) -> None:
    rig = Rig(storage=storage)
    assert traced(rig, rig.prompt(12)) == "cold"
    assert traced(rig, rig.prompt(4)) == "no_full_block"
    assert traced(rig, rig.prompt(12)) is None
    assert missed(rig) == {"cold": 1, "no_full_block": 1}
    assert (rig.scheduler.counts["hits"], rig.scheduler.counts["lookups"]) == (1, 3)


@pytest.mark.parametrize("storage", ["paged", "dense"])
def test_without_sharing_the_reason_is_that(storage: str) -> None:
    rig = Rig(storage=storage, share=False)
    assert [traced(rig, rig.prompt(length)) for length in (4, 12)] == ["sharing_off"] * 2


def test_another_salt_is_as_cold_as_nothing_stored() -> None:
    """Else a tenant could ask what another has sent (key/5)."""
    rig = Rig()
    assert [traced(rig, rig.prompt(12), salt) for salt in ("x", "y")] == ["cold", "cold"]


def test_blocks_below_a_granule_are_told_apart_from_nothing() -> None:
    rig = Rig(grid=8)
    rig.run(rig.prompt(5))
    assert traced(rig, rig.prompt(12)) == "below_granule"


def test_a_request_that_leaves_the_queue_was_withdrawn() -> None:
    rig = Rig(max_batch=1)
    first, second = rig.add(rig.prompt(9, seed=1)), rig.add(rig.prompt(9, seed=2))
    rig.steps(1)
    for client in (first, second):
        rig.scheduler.cancel(client.request.id)
    counts = rig.scheduler.counts
    assert (counts["requests_total"], counts["cancelled_total"], counts["withdrawn_total"]) == (2, 2, 1)
    assert missed(rig) == {"cold": 1}
    assert rig.scheduler.problems() == []


@pytest.mark.parametrize("name", ["hits", "missed_cold_total", "withdrawn_total", "requests_total"])
def test_an_account_that_does_not_add_up_is_a_problem(name: str) -> None:
    rig = Rig()
    rig.run(rig.prompt(9))
    rig.scheduler.counts[name] += 1
    assert rig.scheduler.problems() == ["a request was accounted for not at all or twice"]


# ---- rejections


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(EngineConfig(model="digest", block_size=4, grid=4, chunk=8, blocks=64, max_queue=2))
    worker.start()
    yield worker
    worker.stop()


def test_refusals_are_counted_and_are_no_requests(worker: Worker) -> None:
    with pytest.raises(RequestError):
        worker.submit(Request("r", (), SamplingParams()), Inbox())
    ask(worker, request(worker))
    assert worker.call("integrity").result(WAIT)["ok"]
    stats = worker.stats()
    assert (stats["rejected_total"], stats["requests_total"], stats["missed_cold_total"]) == (1, 1, 1)
