"""The look before a run: one cache or several, and whether it is as declared."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Facts
from conformance.preflight import checked, is_about_reuse
from tests.conformance.fakeserver import Behaviour
from tests.conformance.targets import dialect, fake_target


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.preflight._PATIENCE", 0.3)


def facts_after(behaviour: Behaviour, **facts: Any) -> tuple[Facts, int]:
    """The checked facts, and how many requests that took."""
    known = dialect(facts={"block": 4, "granule": 4, "grade": "bits"} | facts)
    with fake_target(behaviour, known) as (target, server):
        before = len(server.state.seen)
        return checked(target), len(server.state.seen) - before


def test_one_cache_that_is_as_declared_leaves_the_facts_alone() -> None:
    facts, requests = facts_after(Behaviour())
    assert (facts.several_caches, facts.contradictions, facts.settle) == ("", [], 0.0)
    assert requests == 9


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_several_caches_behind_one_address_are_seen(replicas: int) -> None:
    facts, requests = facts_after(Behaviour(replicas=replicas))
    assert "a router or several replicas seem to answer behind one address" in facts.several_caches
    assert "of 8 heads of one stored prompt" in facts.several_caches
    assert requests <= 20


def test_a_store_that_takes_its_time_is_waited_for_and_told() -> None:
    facts, _ = facts_after(Behaviour(late=0.1))
    assert facts.several_caches == ""
    assert facts.contradictions == ["settle 0 s declared, but a stored prompt is found only some time later"]
    assert facts.settle == 0.3


def test_a_granule_that_is_not_as_declared_is_told() -> None:
    facts, _ = facts_after(Behaviour(granule=16))
    assert [said.partition(" (")[0] for said in facts.contradictions] == [
        "granule 4 declared, but cached counts are multiples of 16"
    ]
    assert facts.several_caches == ""


@pytest.mark.parametrize(
    "behaviour", [Behaviour(keeps=False), Behaviour(min_prefix=200), Behaviour(granule=256)]
)
def test_what_is_never_found_is_not_several_caches(behaviour: Behaviour) -> None:
    facts, requests = facts_after(behaviour, granule=behaviour.granule)
    assert (facts.several_caches, facts.contradictions) == ("", [])
    assert requests in (9, 11)


def test_requests_that_fail_say_nothing() -> None:
    with fake_target() as (target, server):
        server.state.behaviour.fault = "status"
        facts = checked(target)
    assert (facts.several_caches, facts.contradictions) == ("", [])


def test_a_server_that_reports_nothing_is_not_asked() -> None:
    assert facts_after(Behaviour(cached="absent", replicas=2))[1] == 0


@pytest.mark.parametrize(
    ("proves", "about"), [(["out/1"], False), (["life/1", "tmpl/1"], False), (["out/1", "adopt/1"], True)]
)
def test_which_cases_need_one_cache(proves: list[str], about: bool) -> None:
    assert is_about_reuse(proves) == about
