"""foot/2 to foot/4 on hand-made workloads."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Workload
from conformance.verdict import Status, Verdict
from tests.conformance.builders import (
    MIB,
    ask,
    burst,
    facts,
    judge,
    memory,
    reply,
    sample,
    seed,
    span,
    workload,
)


def after_burst(
    after: float, peak: float = 200, kept: dict[str, float] | None = None, before: float = 100
) -> Workload:
    """A burst that took `peak` MiB, with marks around it; the store says that it keeps `kept` MiB more."""
    told = {"bytes_in_use": 30.0} if kept is None else kept
    made = workload(
        seed(),
        *burst([192] * 2, step="two"),
        span("before", 5, 6, "mark"),
        span("two", 10, 12),
        span("after", 20, 21, "mark"),
        sample(5, "before", **dict.fromkeys(told, 10.0 * MIB)),
        sample(20, "after", **{name: (10 + value) * MIB for name, value in told.items()}),
    )
    made.memory = [memory(5, before, "before"), memory(11, peak, "two"), memory(20, after, "after")]
    return made


def returned(made: Workload, **args: Any) -> Verdict:
    return judge("footprint_returned", made, of="two", before="before", after="after", **args)


def test_what_the_store_keeps_may_stay() -> None:
    verdict = returned(after_burst(146))
    assert (verdict.status, verdict.observed) == (
        Status.PASS,
        ("before  100 MiB  peak 200 MiB  after  146 MiB", "bytes_in_use  +30 MiB"),
    )


def test_what_nobody_keeps_must_go() -> None:
    verdict = returned(after_burst(147))
    assert (verdict.status, verdict.witness) == (
        Status.FAIL,
        "every request has ended and the store says that it keeps 30 MiB more, but 17 MiB beyond that were "
        "not given back",
    )


def test_reserved_memory_is_the_store_s_as_well() -> None:
    both = {"bytes_in_use": 30.0, "bytes_reserved": 60.0}
    assert returned(after_burst(170, kept=both)).status is Status.PASS
    assert returned(after_burst(177, kept=both)).status is Status.FAIL


def test_a_store_that_shrank_excuses_nothing() -> None:
    assert returned(after_burst(116, kept={"bytes_in_use": -5.0})).status is Status.PASS
    assert returned(after_burst(117, kept={"bytes_in_use": -5.0})).status is Status.FAIL


def test_a_burst_that_took_nothing_is_vacuous() -> None:
    verdict = returned(after_burst(100, peak=132))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "'two' took 32 MiB, not more than twice the noise of 16 MiB",
    )


def test_a_store_that_tells_no_bytes_is_unobservable() -> None:
    verdict = returned(after_burst(100, kept={"live": 3.0}))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the target does not expose bytes_reserved or bytes_in_use",
    )


def test_a_mark_without_a_footprint_is_unobservable() -> None:
    made = after_burst(100)
    made.memory.pop()
    assert returned(made).status is Status.UNOBSERVABLE
    made.memory.clear()
    verdict = returned(made)
    assert verdict.status is Status.UNOBSERVABLE
    assert "--pid" in verdict.reason


def test_a_workload_that_stopped_before_a_mark_is_an_error() -> None:
    made = after_burst(100)
    made.memory.pop()
    made.trouble = "the server process ended"
    assert returned(made).status is Status.ERROR


def cleared(after: float, full: float = 200, warm: int = 192, **detail: Any) -> Verdict:
    """A cache that took `full` - 100 MiB, and a reset."""
    told = {"done": True} | detail
    made = workload(
        seed(),
        reply(ask("again", [1, 2, 3]), 8, 9, cached=warm),
        span("again", 8, 9, "send"),
        span("clear", 11, 12, "reset", **told),
        span("after", 13, 14, "mark"),
    )
    made.memory = [memory(0, 100, "base"), memory(10, full, "full"), memory(13, after, "after")]
    return judge(
        "footprint_reset", made, reset="clear", warm="again", base="base", before="full", after="after"
    )


def test_a_reset_that_gives_back_passes() -> None:
    assert cleared(116).status is Status.PASS


def test_a_reset_that_keeps_memory_fails() -> None:
    verdict = cleared(117)
    assert (verdict.status, verdict.witness) == (
        Status.FAIL,
        "of 100 MiB that the cache took, 17 MiB stayed after the reset that said done",
    )


def test_of_much_a_part_may_stay() -> None:
    assert cleared(250, full=1100).status is Status.PASS
    assert cleared(251, full=1100).status is Status.FAIL


def test_a_cache_that_took_nothing_is_vacuous() -> None:
    assert cleared(100, full=132).status is Status.VACUOUS
    assert cleared(100, full=133).status is Status.PASS


def test_a_cache_that_was_cold_is_vacuous() -> None:
    verdict = cleared(100, warm=0)
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "no request of 'again' hit: nothing was cached",
    )


@pytest.mark.parametrize(("done", "status"), [(False, Status.VACUOUS), (None, Status.UNOBSERVABLE)])
def test_a_reset_that_was_not_done_promised_nothing(done: bool | None, status: Status) -> None:
    assert cleared(200, done=done).status is status


def grown(growing: float, steady: float = 200, settled: float = 190, samples: int = 20) -> Verdict:
    """Idle at 100 MiB, a peak while the pool grew, at rest after that, and a peak in the steady pool."""
    made = workload(
        *burst([0] * 2, step="one", start=10), *burst([0] * 2, step="more", start=20), facts=facts()
    )
    made.spans += [span("one", 10, 12), span("more", 20, 22)]
    made.memory = [memory(9, 100, "wait"), memory(19, settled, "wait")]
    for start, peak, step in ((10, growing, "one"), (20, steady, "more")):
        made.memory += [memory(start + i / 20, peak - i, step) for i in range(samples)]
    return judge("grown_in_place", made, of="one", steady="more")


def test_growth_in_place_passes() -> None:
    # 100 MiB are needed: 1.15 times that and 16 MiB of noise.
    verdict = grown(231)
    assert (verdict.status, verdict.expected) == (
        Status.PASS,
        "peak of one at most 231 MiB: 115 % of the steady need",
    )


def test_a_pool_that_is_copied_fails() -> None:
    verdict = grown(300)
    assert (verdict.status, verdict.witness) == (
        Status.FAIL,
        "while the pool grew the peak was 200 MiB above idle, 2.00 times the 100 MiB that it needs once it "
        "stands still",
    )


def test_a_pool_that_did_not_grow_is_vacuous() -> None:
    assert grown(140, steady=140, settled=132).status is Status.VACUOUS


def test_a_pool_that_never_stood_still_is_inconclusive() -> None:
    verdict = grown(200, steady=300)
    assert (verdict.status, verdict.reason) == (
        Status.INCONCLUSIVE,
        "the pool went on growing in 'more', so it never was steady",
    )


def test_too_few_samples_of_growth_are_vacuous() -> None:
    assert grown(231, samples=19).status is Status.VACUOUS
