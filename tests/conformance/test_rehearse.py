"""A rehearsal: what would be sent is counted, what could not be judged is named, and nothing happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.history import Facts, NotClaimed
from conformance.load import Loaded, load
from conformance.plan import Unobservable
from conformance.rehearse import Load
from conformance.session import Options, Session
from conformance.spec import Serve
from tests.conformance.fakeback import CASE, FACTS, Back, Target

SEEN = FACTS.model_copy(update={"reports_cached": True, "returns_ids": True, "has_logprobs": True})


def loaded(folder: Path, text: str = CASE) -> Loaded:
    (folder / "case.yaml").write_text(text)
    return load(folder / "case.yaml")


def rehearsed(
    folder: Path, facts: Facts = SEEN, text: str = CASE, back: Back | None = None, **options: Any
) -> tuple[Load, list[str]]:
    """The rehearsal of the case; checks on the way that no request was made and no file written."""
    back = back or Back()
    back.facts = facts
    session = Session(Options(history=folder / "h.jsonl", scale="ci", run_salt="r", **options), back)
    found = session.rehearse(loaded(folder, text), "")
    session.close()
    assert not [event for event in back.events if event.startswith(("run", "solos"))]
    assert not (folder / "h.jsonl").exists()
    return found


def test_requests_and_tokens_of_all_arms_are_counted(tmp_path: Path) -> None:
    """Two arms of eight requests of 4 blocks of 8 and 3 tokens; 16 generated each, the default."""
    load, lines = rehearsed(tmp_path)
    assert load == Load(requests=16, prompt=16 * 35, reply=16 * 16)
    assert lines == ["area/case: 16 requests, about 560 prompt tokens, at most 256 generated"]


def test_solo_runs_are_counted_where_they_can_be_had(tmp_path: Path) -> None:
    text = CASE.replace("counted: {of: eight}", "same_as_solo: {of: eight}").replace("[count/1]", "[out/1]")
    assert rehearsed(tmp_path, text=text)[0].requests == 24
    without = SEEN.model_copy(update={"has_salt": False})
    assert rehearsed(tmp_path, without, text)[0].requests == 16


def test_what_the_target_does_not_show_cannot_be_judged(tmp_path: Path) -> None:
    facts = SEEN.model_copy(update={"reports_cached": False})
    _, lines = rehearsed(tmp_path, facts)
    assert lines[1].startswith("    counted (count/1) unobservable: ")


def test_what_is_not_claimed_is_named(tmp_path: Path) -> None:
    claims = {"count/1": NotClaimed(reason="by design", link="https://x")}
    _, lines = rehearsed(tmp_path, SEEN.model_copy(update={"claims": claims}))
    assert lines[1].startswith("    counted (count/1) not-claimed: by design")


LEAVES = CASE.replace(
    "prompt: [system, {unique: 3}]", "prompt: [system, {unique: 3}]\n    leave: {phase: decoding}"
)


@pytest.mark.parametrize(("allow", "runs"), [((), False), (("disconnect",), True)])
def test_a_case_that_an_endpoint_must_not_bear_sends_nothing(
    tmp_path: Path, allow: tuple[str, ...], runs: bool
) -> None:
    facts = SEEN.model_copy(update={"how": "endpoint"})
    load, lines = rehearsed(tmp_path, facts, LEAVES, allow=frozenset(allow))
    assert (load.requests > 0) == runs
    assert ("cannot run: its clients walk away" in lines[0]) != runs


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        ("4C", "the length '4C' needs it"),
        ("1B-8", r"at least 1 .*case\.yaml\)"),
    ],
)
def test_a_length_that_cannot_be_is_said(tmp_path: Path, length: str, reason: str) -> None:
    _, lines = rehearsed(tmp_path, text=CASE.replace("tokens: 4B", f"tokens: {length}"))
    assert re.match(f"area/case: cannot run: .* {reason}", lines[0])


UNMEASURED = SEEN.model_copy(update={"granule": None, "block": None})


def test_a_granule_that_a_run_measures_is_no_reason_not_to_run(tmp_path: Path) -> None:
    text = CASE.replace("tokens: 4B", "tokens: 4G")
    load, lines = rehearsed(tmp_path, UNMEASURED, text)
    assert load == Load()
    assert lines == ["area/case: what it sends is known during the run, where G is measured"]


def test_a_granule_that_nobody_can_measure_is_one(tmp_path: Path) -> None:
    facts = UNMEASURED.model_copy(update={"reports_cached": False})
    _, lines = rehearsed(tmp_path, facts, CASE.replace("tokens: 4B", "tokens: 4G"))
    assert lines == ["area/case: cannot run: the target does not tell G, and the length '4G' needs it"]


def test_another_number_that_is_not_told_is_one(tmp_path: Path) -> None:
    _, lines = rehearsed(tmp_path, UNMEASURED, CASE)
    assert lines == ["area/case: cannot run: the target does not tell B, and the length '4B' needs it"]


@pytest.mark.parametrize(("counts", "blind"), [(True, False), (False, True)])
def test_judges_see_a_granule_where_a_run_measures_one(tmp_path: Path, counts: bool, blind: bool) -> None:
    facts = UNMEASURED.model_copy(update={"reports_cached": counts})
    text = CASE.replace("tokens: 4B", "tokens: 40").replace("counted:", "adopters:")
    _, lines = rehearsed(tmp_path, facts, text.replace("[count/1]", "[adopt/1]"))
    assert any("unobservable" in line for line in lines) is blind


def test_a_server_that_the_case_cannot_have_is_said(tmp_path: Path) -> None:
    class Attached(Back):
        """Has no server but the one that runs."""

        @contextmanager
        def for_serve(self, serve: Serve) -> Iterator[Target]:
            if serve.profile != "default":
                raise Unobservable("needs a server of its own")
            with super().for_serve(serve) as target:
                yield target

    text = CASE.replace("arms:\n  cold: {serve: {profile: cold}}", "serve: {profile: cold}")
    load, lines = rehearsed(tmp_path, text=text, back=Attached())
    assert (load, lines) == (Load(), ["area/case: cannot run: needs a server of its own"])


def test_gauges_and_memory_count_as_seen_where_the_target_has_them(tmp_path: Path) -> None:
    text = CASE.replace("  - mark: after", "  - mark: after\n  - mark: later").replace(
        "counted: {of: eight}", "released: {before: after, after: later}"
    )
    text = text.replace("[count/1]", "[life/1]")
    _, blind = rehearsed(tmp_path, text=text)
    _, seeing = rehearsed(tmp_path, SEEN.model_copy(update={"has_stats": True}), text)
    assert blind[1].startswith("    released (life/1) unobservable: no statistics")
    assert not [line for line in seeing if "no statistics" in line]


def test_conversations_grow_by_replies(tmp_path: Path) -> None:
    text = CASE.replace(
        """  - burst: eight
    requests: 8
    prompt: [system, {unique: 3}]""",
        """  - turns: eight
    count: 4
    opening: [system]
    each: [{unique: 3}]""",
    )
    load, _ = rehearsed(tmp_path, text=text)
    assert (load.requests, load.open) == (8, 6)
    assert "6 of them longer by replies" in str(load)
