"""Clients that leave and servers that misbehave: nothing raises, nothing hangs, all of it is written down."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from conformance.connecting import Address
from conformance.fleet import open_target
from conformance.sending import Sender, trouble
from conformance.spec import Leave
from conformance.target import TargetOptions
from tests.conformance import fakeserver
from tests.conformance.fakeserver import Behaviour, Fault, planned
from tests.conformance.targets import LONG, burst, dialect, driven, fake_target, recording, send

BROKEN: list[Fault] = ["reset", "cut", "no-done", "bad-json", "bad-shape", "error-event", "status", "no-http"]


def test_a_client_leaves_while_decoding(tmp_path: Path) -> None:
    with fake_target(Behaviour(token_delay=0.02)) as (target, _):
        leave = Leave(phase="decoding", tokens=2, how="fin", fraction=0.5).model_dump()
        seen = driven(tmp_path, target, burst(max_tokens=300, leave=leave))
    assert [o.left for o in seen.outcomes] == ["decoding"] * 4
    assert [len(o.token_ids or []) for o in seen.outcomes] == [2] * 4
    assert [o.error for o in seen.outcomes] == [None] * 4


def test_a_client_leaves_before_the_first_token_after_a_share_of_the_measured_time(tmp_path: Path) -> None:
    with fake_target(Behaviour(first_delay=1.0)) as (target, _):
        seen = driven(
            tmp_path,
            target,
            send(),
            send("gone", [9, *LONG[1:]], leave=Leave(phase="prefilling", fraction=0.1).model_dump()),
        )
    ttft = (seen.outcomes[0].first or 0) - seen.outcomes[0].sent
    left = seen.of("gone")[0]
    assert left.left == "prefilling"
    assert 0.1 * ttft <= left.ended - left.sent < ttft


def test_the_measure_is_scaled_from_the_nearest_cold_request(tmp_path: Path) -> None:
    with fake_target() as (target, _), recording(tmp_path) as recorder:
        sender = Sender(target, recorder, "main", print)
        assert sender.cold_ttft(planned("x", LONG)) == 0.3
        base = target.send(planned("a", LONG))
        for size, first, cached in ((10, 1.0, 0), (40, 8.0, 0), (20, 0.001, 16)):
            request = planned("a", LONG[:size])
            recorder.outcome(
                base.model_copy(update={"plan": request, "sent": 0.0, "first": first, "cached": cached})
            )
        assert sender.cold_ttft(planned("x", LONG[:20])) == 2.0
        assert sender.cold_ttft(planned("x", [*LONG, *LONG])) == 16.0


@pytest.mark.parametrize("fault", BROKEN)
def test_one_bad_reply_of_a_burst_is_written_down_and_the_run_goes_on(tmp_path: Path, fault: Fault) -> None:
    behaviour = Behaviour(hits=lambda body: body["prompt"][-1] == 101)
    with fake_target(behaviour) as (target, _):
        behaviour.fault = fault
        seen = driven(tmp_path, target, burst(), send("after"))
    assert [o.ok for o in seen.of("four")] == [True, False, True, True]
    assert seen.of("four")[1].error
    assert seen.of("after")[0].ok
    assert seen.trouble is None


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_refusal_keeps_its_status(tmp_path: Path, status: int) -> None:
    behaviour = Behaviour(status=status)
    with fake_target(behaviour) as (target, _):
        behaviour.fault = "status"
        seen = driven(tmp_path, target, send())
    assert (seen.outcomes[0].status, seen.outcomes[0].error) == (status, f"status {status}: out of order")


@pytest.mark.parametrize("cached", ["null", "absent"])
def test_a_count_that_is_not_reported_stays_none(tmp_path: Path, cached: Any) -> None:
    with fake_target(Behaviour(cached=cached)) as (target, _):
        assert [o.cached for o in driven(tmp_path, target, send()).outcomes] == [None]


def test_a_request_without_an_answer_times_out_and_ends_the_workload(tmp_path: Path) -> None:
    behaviour = Behaviour(hits=lambda body: len(body["prompt"]) > 30)
    with fake_target(behaviour, timeout=0.3) as (target, _):
        behaviour.fault = "hang"
        seen = driven(tmp_path, target, send(), send("never"))
    assert seen.outcomes[0].timed_out
    assert seen.trouble == "seed: seed timed out: no end of the reply within 0.3 s"
    assert [o.id for o in seen.outcomes] == ["seed"]
    assert seen.span("seed") is not None


def test_a_server_that_is_gone_ends_the_workload(tmp_path: Path) -> None:
    with fake_target() as (target, server):
        server.close()
        seen = driven(tmp_path, target, send(), send("never"))
    assert "connection refused" in (seen.outcomes[0].error or "")
    assert seen.trouble == f"seed: nothing answers at {server.url} any more: connection refused"
    assert [o.id for o in seen.outcomes] == ["seed"]


def test_a_burst_tries_one_connection_to_a_server_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def refused(address: Address, timeout: float, narrow: bool) -> Any:
        tries.append(timeout)
        raise ConnectionRefusedError

    with fake_target(Behaviour(), dialect(reset=None, mark=None, stats=[])) as (target, _):
        monkeypatch.setattr("conformance.wire.connect_again", refused)
        seen = driven(tmp_path, target, burst(count=64))
    assert len(tries) == 1
    assert {o.error for o in seen.outcomes} == {f"cannot connect to {target.url}: connection refused"}
    assert len(seen.outcomes) == 64


def test_a_series_stops_when_the_server_is_gone(tmp_path: Path) -> None:
    with fake_target() as (target, server):
        server.close()
        seen = driven(tmp_path, target, burst("row", 5, "series"))
    assert len(seen.outcomes) == 1


@pytest.mark.parametrize("fault", BROKEN)
def test_a_reply_that_broke_off_is_more_likely_a_death_than_one_that_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    graces: list[float] = []
    behaviour = Behaviour()
    with fake_target(behaviour) as (target, _):
        behaviour.fault = fault
        monkeypatch.setattr(target, "gone", graces.append)
        driven(tmp_path, target, send())
    assert set(graces) == {0.1 if fault in ("error-event", "status") else 0.5}


def test_one_reply_of_a_burst_that_broke_off_is_enough_to_wait_for(tmp_path: Path) -> None:
    graces: list[float] = []
    with fake_target() as (target, _):
        told = target.send(planned("a", LONG)).model_copy(update={"error": "no room", "told": True})
        cut = told.model_copy(update={"error": "cut", "told": False})
        target.gone = graces.append  # type: ignore[method-assign, assignment]
        for burst in ([told, told], [told, cut], [told.model_copy(update={"error": None, "told": False})]):
            trouble(target, burst)
    assert graces == [0.1, 0.5]


def test_a_server_killed_in_a_burst_leaves_a_usable_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dialect(mark=None, reset=None, stats=[])
    monkeypatch.setattr("conformance.target.dialects", lambda: (known,))
    command = f"{sys.executable} {fakeserver.__file__} --port {{port}} --slow 0.05"
    fleet = open_target(TargetOptions(how="serve", command=command, timeout=20.0))
    try:
        target = fleet.main()
        killer = threading.Timer(1.0, os.kill, (target.pid, signal.SIGKILL))
        killer.start()
        seen = driven(tmp_path, target, burst(max_tokens=200), send("never"))
        killer.join()
    finally:
        fleet.close()
    assert seen.trouble == "four: the server process ended (killed by SIGKILL)"
    assert len(seen.outcomes) == 4
    assert all(o.error for o in seen.outcomes)
    assert all(o.token_ids for o in seen.outcomes)


def test_a_long_burst_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.sending._TELL", 0.1)
    lines: list[str] = []
    with fake_target(Behaviour(token_delay=0.1)) as (target, _):
        driven(tmp_path, target, burst(), progress=lines.append)
    assert lines
    assert lines[0].startswith("four: 0 of 4 done after ")
