"""What another client of an endpoint did is no fail of it, and no pass either; a server of ours has none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conformance.history import Sample
from conformance.verdict import Status, Verdict
from tests.conformance.builders import facts, judge, sample
from tests.conformance.builders import workload as made
from tests.conformance.test_judges_life import some

REST = {"referenced": 0.0, "running": 0.0, "waiting": 0.0}


def leaked(
    started: Sequence[float], how: str = "endpoint", between: Sequence[Sample] = (), sent: int = 2
) -> Verdict:
    """Blocks stay referenced; the server counts this many requests started, first and last."""
    first, last = ({"adopted_requests": count / 2, "missed_requests": count / 2} for count in started)
    seen = made(
        sample(1, "before", **REST, **first),
        *some("ends", sent, 2),
        *between,
        sample(9, "after", **(REST | {"referenced": 7.0}), **last),
        facts=facts(how=how, settle=1.0),
    )
    return judge("released", seen, before="before", after="after", ended="ends", by="length")


def test_more_requests_than_this_run_sent_make_a_fail_inconclusive() -> None:
    verdict = leaked((10, 15))
    assert verdict.status is Status.INCONCLUSIVE
    assert "5 requests were started, 3 more than this run sent" in verdict.reason
    assert "referenced was 0" in verdict.notes[-1]


def test_as_many_as_this_run_sent_are_no_excuse() -> None:
    assert leaked((10, 12)).status is Status.FAIL


def test_a_server_that_was_started_here_has_no_other_clients() -> None:
    assert leaked((10, 15), how="engine").status is Status.FAIL


@pytest.mark.parametrize(("at", "status"), [(6.0, Status.INCONCLUSIVE), (3.5, Status.FAIL)])
def test_a_gauge_that_rises_by_itself_is_somebody_else(at: float, status: Status) -> None:
    """All of this run ended at 3; a gauge may lag by the settle time of 1 s."""
    calm, busy = sample(at - 0.4, "", running=0.0, waiting=0.0), sample(at, "", running=1.0, waiting=0.0)
    assert leaked((10, 12), between=(calm, busy)).status is status


def test_a_gauge_that_only_falls_is_the_end_of_ours() -> None:
    busy, calm = sample(5.0, "", running=1.0, waiting=0.0), sample(6.0, "", running=0.0, waiting=0.0)
    assert leaked((10, 12), between=(busy, calm)).status is Status.FAIL


def test_a_guard_that_somebody_else_kept_from_being_met_is_inconclusive_too() -> None:
    quiet = made(
        sample(1, "before", **REST, adopted_requests=0.0, missed_requests=0.0),
        *some("ends", 2, 2),
        sample(9, "after", **REST, adopted_requests=0.0, missed_requests=3.0),
        facts=facts(how="endpoint"),
    )
    verdict = judge("released", quiet, before="before", after="after", ended="ends", by="error")
    assert verdict.status is Status.INCONCLUSIVE


def test_what_the_replies_show_is_held_against_the_server_whoever_else_is_served() -> None:
    (lies,) = some("ends", 1, 2, cached=999)
    seen = made(
        sample(1, "before", **REST, adopted_requests=0.0, missed_requests=0.0),
        lies,
        sample(9, "after", **REST, adopted_requests=0.0, missed_requests=9.0),
        facts=facts(how="endpoint"),
    )
    assert judge("counted", seen, of="ends").status is Status.FAIL
