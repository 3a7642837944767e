"""What a known server is expected to do follows from its dialect alone."""

from __future__ import annotations

import pytest

from conformance.dialect import Dialect, dialects
from conformance.evidence import needs, outlook, shown
from conformance.requirements import AREAS, REQUIREMENTS, get

BARE = Dialect(dialect="bare", name="Bare", order=1)


def full(**changes: object) -> Dialect:
    told = {
        "dialect": "full",
        "name": "Full",
        "order": 1,
        "ask": {"salt": "s", "logprobs": {"logprobs": 2}},
        "stats": [{"get": "/m", "values": {"live": "a", "referenced": "b"}}],
        "reset": {"route": "/r"},
    }
    return Dialect.model_validate(told | changes)


def test_a_dialect_shows_what_it_declares() -> None:
    assert shown(BARE) == {"cached"}
    assert shown(full()) == {"cached", "salt", "logprobs", "reset", "live", "referenced"}


@pytest.mark.parametrize(
    ("id_", "said"),
    [
        ("adopt/1", "claimed"),
        ("store/1", "unobservable: no gauge live"),
        ("reset/1", "unobservable: no way to empty its cache"),
        ("key/5", "unobservable: no field that keeps caches apart"),
        ("out/7", "unobservable: no logprobs"),
    ],
)
def test_what_a_bare_server_is_expected_to_do(id_: str, said: str) -> None:
    assert outlook(get(id_), BARE) == said
    assert outlook(get(id_), full()) == "claimed"


def test_a_server_that_reports_no_cached_tokens_cannot_be_judged_on_adoption() -> None:
    silent = full(answer={"cached": []})
    assert outlook(get("adopt/1"), silent) == "unobservable: no cached tokens"


def test_a_claim_goes_before_what_could_be_seen() -> None:
    claims = {"adopt/3": {"reason": "by design", "link": "https://e.org"}, "store/1": {"reason": "copies"}}
    assert outlook(get("adopt/3"), full(claims=claims)) == "not claimed: by design (https://e.org)"
    assert outlook(get("store/1"), full(claims=claims)) == "not claimed: copies"


def test_a_claim_about_certain_facts_is_told_with_them() -> None:
    claims = {"adopt/1": {"reason": "taken", "when": {"sharing": "one_shot"}}}
    assert outlook(get("adopt/1"), full(claims=claims)) == (
        "claimed; not claimed where sharing is one_shot: taken"
    )


def test_what_must_be_switched_on_is_told_where_it_matters() -> None:
    dialect = full(needs={"reports_cached": "--cache-report", "has_stats": "--metrics"})
    assert outlook(get("adopt/1"), dialect) == "claimed; needs --cache-report"
    assert outlook(get("store/1"), dialect) == "claimed; needs --metrics"
    assert outlook(get("out/2"), dialect) == "claimed"


def test_every_requirement_has_an_outlook_on_every_known_server() -> None:
    assert {r.area for r in REQUIREMENTS.values()} == set(AREAS)
    words = {
        outlook(r, d).partition(":")[0].partition(";")[0] for r in REQUIREMENTS.values() for d in dialects()
    }
    assert words == {"claimed", "not claimed", "unobservable"}


def test_needs_name_requirements_that_exist() -> None:
    from conformance import evidence

    assert set(evidence._BY_ID) <= set(REQUIREMENTS)
    assert needs(get("store/3")) == {"cached", "referenced"}
