"""Calibration: each measure against a server that has it and one that has not, and what contradicts."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.calibrate import Calibration, _extended, calibrate
from conformance.dialect import Dialect
from conformance.probe import trial
from tests.conformance.fakeback import outcome
from tests.conformance.fakeserver import Behaviour
from tests.conformance.targets import TEXT, dialect, fake_target


def calibrated(behaviour: Behaviour, known: Dialect | None = None, **how: Any) -> Calibration:
    """Checks on the way that no more was sent than is said and allowed."""
    with fake_target(behaviour, known, **how) as (target, server):
        before = len(server.state.seen)
        found = calibrate(target)
        sent = len(server.state.seen) - before
    assert found.requests in (sent, 0)
    assert sent <= 40
    return found


def declaring(**facts: Any) -> Dialect:
    return dialect(facts={"block": 4, "granule": 4, "grade": "bits"} | facts)


def test_a_server_that_is_as_declared() -> None:
    found = calibrated(Behaviour())
    assert (found.granule, found.min_prefix, found.generated_reusable) == (4, 0, False)
    assert (found.salt_isolates, found.reset_empties) == (True, True)
    assert (found.contradictions, found.notes) == ([], [])


@pytest.mark.parametrize("granule", [1, 16, 48, 256, 512, 2048])
def test_the_granule(granule: int) -> None:
    found = calibrated(Behaviour(granule=granule), declaring(granule=granule))
    assert found.granule == granule
    assert found.contradictions == []


def test_a_granule_that_is_not_as_declared_contradicts() -> None:
    found = calibrated(Behaviour(granule=16))
    assert found.contradictions[0].startswith("granule 4 declared, but cached counts are multiples of 16")


@pytest.mark.parametrize(("least", "measured"), [(0, 0), (24, 24), (200, 212)])
def test_the_shortest_prefix(least: int, measured: int) -> None:
    found = calibrated(Behaviour(min_prefix=least), declaring(min_prefix=least))
    assert found.min_prefix == measured
    assert found.contradictions == []


@pytest.mark.parametrize(
    ("least", "declared", "said"),
    [
        (32, 0, "shortest prefix of 0 tokens declared, 32 measured"),
        (0, 64, "shortest prefix of 64 tokens declared, 4 measured"),
    ],
)
def test_a_shortest_prefix_that_is_not_as_declared_contradicts(least: int, declared: int, said: str) -> None:
    found = calibrated(Behaviour(min_prefix=least), declaring(min_prefix=declared))
    assert found.contradictions == [said]


@pytest.mark.parametrize("keeps", [True, False])
def test_whether_generated_tokens_are_found(keeps: bool) -> None:
    known = declaring(generated_reusable=keeps)
    found = calibrated(Behaviour(keeps_replies=keeps), known)
    assert found.generated_reusable is keeps
    assert found.contradictions == []


def test_generated_tokens_that_are_not_as_declared_contradict() -> None:
    found = calibrated(Behaviour(), declaring(generated_reusable=True))
    assert found.contradictions == ["generated tokens reusable: declared yes, measured no"]


def test_a_salt_that_does_not_isolate_contradicts() -> None:
    found = calibrated(Behaviour(isolates=False))
    assert found.salt_isolates is False
    assert found.contradictions == ["the salt isolates: declared yes, measured no"]


def test_a_reset_that_empties_nothing_contradicts(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_target() as (target, _):
        monkeypatch.setattr(target, "reset", lambda: {"done": True})
        found = calibrate(target)
    assert found.contradictions == ["a reset empties the cache: declared yes, measured no"]


def test_an_endpoint_that_must_not_be_reset_is_not() -> None:
    assert calibrated(Behaviour(), how="endpoint").reset_empties is None


def test_without_reported_counts_the_reason_is_all_there_is() -> None:
    found = calibrated(Behaviour(cached="absent"), dialect(needs={"reports_cached": "--report"}))
    assert found == Calibration(notes=["no cached tokens are reported; it takes --report"])


def test_a_server_that_keeps_nothing_may_have_its_cache_off() -> None:
    found = calibrated(Behaviour(keeps=False))
    assert (found.granule, found.min_prefix, found.salt_isolates) == (None, None, None)
    assert found.notes == ["nothing that was stored was ever found: is caching switched off?"]


def test_several_caches_are_told() -> None:
    found = calibrated(Behaviour(replicas=3))
    assert found.min_prefix is None
    assert "several caches?" in found.notes[0]


def test_a_coarse_granule_leaves_replies_open() -> None:
    found = calibrated(Behaviour(granule=256), declaring(granule=256))
    assert found.generated_reusable is None
    assert "too long a reply" in found.notes[0]


def test_text_alone_is_enough() -> None:
    """A word of the fake server's is a token, and its reply is one word."""
    found = calibrated(Behaviour(returns_ids=False), Dialect.model_validate(TEXT | {"facts": {}}))
    assert found.granule == 4
    assert found.salt_isolates is None


def test_a_chat_reply_cannot_go_back_whole() -> None:
    with fake_target(Behaviour(), Dialect.model_validate(TEXT)) as (target, _):
        target.dialect = target.dialect.model_copy(
            update={"ask": target.dialect.ask.model_copy(update={"form": "chat"})}
        )
        assert _extended(target, outcome(trial(target, 10, seed=1), "main", text="abc")) is None
