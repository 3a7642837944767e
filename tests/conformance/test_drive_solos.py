"""Solo runs: each request once more, alone and cold, once a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.dialect import Dialect
from conformance.drive import Driver, Solos
from conformance.history import Workload
from conformance.plan import PlannedStep
from conformance.target import Target, TargetError
from tests.conformance.fakeserver import Behaviour, fake_server, planned
from tests.conformance.targets import (
    LONG,
    TEXT,
    burst,
    dialect,
    fake_target,
    options,
    plan,
    recording,
    send,
    talk,
)


def solos(target: Target, tmp_path: Path, cache: Solos, *steps: PlannedStep, solo: str = "four") -> Workload:
    with recording(tmp_path) as recorder:
        driver = Driver(target, recorder)
        whole = plan(*steps, solo=solo)
        driver.run(whole)
        driver.run_solos(whole.solos, cache)
        return recorder.workload


def test_each_request_runs_once_more_alone_and_cold(tmp_path: Path) -> None:
    with fake_target() as (target, server):
        asked = len(server.state.seen)
        seen = solos(target, tmp_path, {}, send(), burst())
        bodies = server.state.seen[asked + 5 :]
    assert [len(runs) for runs in seen.solos.values()] == [2, 1, 1, 1]
    for outcome in seen.of("four"):
        for alone in seen.solos[outcome.plan.key]:
            assert (alone.arm, alone.cached, alone.token_ids) == ("solo", 0, outcome.token_ids)
    assert len({body["cache_salt"] for body in bodies}) == len(bodies) == 5
    assert all(body["no_cache"] for body in bodies)


def test_a_solo_run_serves_every_later_workload(tmp_path: Path) -> None:
    cache: Solos = {}
    with fake_target() as (target, server):
        solos(target, tmp_path, cache, burst())
        asked = len(server.state.seen)
        seen = solos(target, tmp_path, cache, burst())
        assert len(server.state.seen) == asked + 4
    assert [len(runs) for runs in seen.solos.values()] == [2, 1, 1, 1]


def test_a_solo_run_is_no_reference_for_a_server_with_other_facts(tmp_path: Path) -> None:
    cache: Solos = {}
    with fake_target() as (target, server):
        solos(target, tmp_path, cache, send("four"))
        target.facts = target.facts.model_copy(update={"granule": 128})
        asked = len(server.state.seen)
        solos(target, tmp_path, cache, send("four"))
        assert len(server.state.seen) == asked + 3


def test_turns_get_their_solo_runs_too(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        seen = solos(target, tmp_path, {}, talk(LONG, [7], [8]), solo="talk")
    for outcome in seen.of("talk"):
        assert [run.token_ids for run in seen.solos[outcome.plan.key]][:1] == [outcome.token_ids]


def test_solo_runs_need_no_run_before_them(tmp_path: Path) -> None:
    with fake_target() as (target, _), recording(tmp_path) as recorder:
        Driver(target, recorder).run_solos([planned("x", LONG)], {})
        assert [len(runs) for runs in recorder.workload.solos.values()] == [2]


def test_without_judges_that_ask_there_are_no_solo_runs(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        seen = solos(target, tmp_path, {}, burst(), solo="")
    assert seen.solos == {}
    assert seen.span("(solos)") is None


def test_without_a_way_to_compute_cold_there_are_no_solo_runs(tmp_path: Path) -> None:
    with fake_target(Behaviour(), Dialect.model_validate(TEXT)) as (target, _):
        seen = solos(target, tmp_path, {}, send("four", "some words"))
    assert seen.solos == {}
    assert seen.spans[-1].detail == {"reason": "no way to compute cold"}


def test_a_cold_server_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise TargetError("no memory")

    with fake_target() as (target, _):
        monkeypatch.setattr(target, "cold", broken)
        seen = solos(target, tmp_path, {}, burst())
    assert seen.spans[-1].detail == {"reason": "no memory"}


def test_a_server_that_dies_meanwhile_ends_the_solo_runs(tmp_path: Path) -> None:
    cache: Solos = {}
    with fake_target() as (target, server), fake_server() as other, recording(tmp_path) as recorder:
        whole = plan(burst(), solo="four")
        driver = Driver(target, recorder)
        driver.run(whole)
        cold = Target(other.url, options(), dialect=dialect())
        other.close()
        target.cold = lambda: _lent(cold)
        driver.run_solos(whole.solos, cache)
        seen = recorder.workload
        cold.close()
    assert "nothing answers at" in (seen.trouble or "")
    assert not any(cache.values())
    assert seen.solos == {}
    assert server.state.ended > 0


@contextmanager
def _lent(target: Target) -> Iterator[Target | None]:
    yield target


def test_after_trouble_there_are_no_solo_runs(tmp_path: Path) -> None:
    with fake_target() as (target, server):
        server.close()
        seen = solos(target, tmp_path, {}, burst())
    assert seen.solos == {}
    assert seen.trouble is not None
