"""The driver: steps in order, and everything that happens in them written down."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.dialect import Dialect
from conformance.launch import Child
from conformance.plan import PlannedStep
from tests.conformance.fakeserver import Behaviour
from tests.conformance.targets import LONG, TEXT, burst, dialect, driven, fake_target, opened_when, send, talk


def test_steps_run_in_order_and_leave_their_spans(tmp_path: Path) -> None:
    steps = (send(), PlannedStep("wait", "wait-1", wait="idle"), PlannedStep("mark", "before"), burst())
    with fake_target() as (target, _):
        seen = driven(tmp_path, target, *steps)
    assert [span.step for span in seen.spans] == ["(start)", "seed", "wait-1", "before", "four"]
    times = [time for span in seen.spans for time in (span.start, span.end)]
    assert times == sorted(times)
    assert [o.id for o in seen.outcomes] == ["seed", "four[0]", "four[1]", "four[2]", "four[3]"]
    assert all(o.ok for o in seen.outcomes)
    assert [o.cached for o in seen.of("four")] == [40] * 4
    assert seen.trouble is None


def test_outcomes_lie_inside_their_span(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        seen = driven(tmp_path, target, burst())
    span = seen.span("four")
    assert span is not None
    for outcome in seen.outcomes:
        assert outcome.first is not None
        assert span.start <= outcome.sent <= outcome.first <= outcome.ended <= span.end


def test_a_burst_is_in_flight_all_together(tmp_path: Path) -> None:
    """Not one is answered before all have arrived, or the server would wait for ever."""
    behaviour = Behaviour()
    with fake_target(behaviour) as (target, server):
        behaviour.hold = threading.Event()
        with opened_when(lambda: server.state.running == 8, behaviour.hold):
            seen = driven(tmp_path, target, burst(count=8))
    assert len([o for o in seen.outcomes if o.ok]) == 8
    assert max(o.sent for o in seen.outcomes) < min(o.first or 0 for o in seen.outcomes)
    assert seen.spans[-1].detail["spread"] >= 0


def test_a_series_runs_one_after_another(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        seen = driven(tmp_path, target, burst("row", 3, "series"))
    ended = [o.ended for o in seen.of("row")]
    sent = [o.sent for o in seen.of("row")]
    assert all(end <= start for end, start in zip(ended, sent[1:], strict=False))
    assert [o.cached for o in seen.of("row")] == [0, 40, 40]


def test_a_turn_carries_the_reply_of_the_last_one(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        first, second = driven(tmp_path, target, talk(LONG, [7], [8, 9])).of("talk")
    assert first.plan.prompt_ids == [*LONG, 7]
    assert second.plan.prompt_ids == [*LONG, 7, *(first.token_ids or []), 8, 9]
    assert second.cached == 40


@pytest.mark.parametrize(("settle", "cached"), [(0.4, 40), (0.0, 0)])
def test_a_turn_waits_until_the_last_one_can_be_found(tmp_path: Path, settle: float, cached: int) -> None:
    known = dialect().model_copy(update={"facts": dialect().facts | {"settle": settle}})
    with fake_target(Behaviour(late=0.3), known) as (target, _):
        first, second = driven(tmp_path, target, talk(LONG, [7], [8, 9])).of("talk")
    assert second.cached == cached
    assert second.sent - first.ended >= settle


def test_turns_beside_a_started_step_wait_for_the_settle_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    started = replace(send("beside"), kind="start")
    known = dialect().model_copy(update={"facts": dialect().facts | {"settle": 0.4375}})
    with fake_target(known=known) as (target, _):
        monkeypatch.setattr("conformance.drive.time.sleep", slept.append)
        monkeypatch.setattr(target, "idle", lambda timeout: pytest.fail("it is never idle"))
        seen = driven(tmp_path, target, started, talk(LONG, [7], [8], [9]))
    assert slept.count(0.4375) == 2
    assert len(seen.of("talk")) == 3


def test_turns_in_words_carry_the_text(tmp_path: Path) -> None:
    with fake_target(Behaviour(), Dialect.model_validate(TEXT)) as (target, _):
        first, second = driven(tmp_path, target, talk("good day", "sir", "bye")).of("talk")
    assert (second.plan.prompt_text or "").startswith("good day sir" + first.text)


def test_turns_without_ids_come_back_as_trouble(tmp_path: Path) -> None:
    with fake_target(Behaviour(returns_ids=False)) as (target, _):
        seen = driven(tmp_path, target, talk(LONG, [7], [8]), send("never"))
    assert seen.trouble == "talk: talk[1]: the reply of talk[0] did not come back as ids"
    assert [o.id for o in seen.outcomes] == ["talk[0]"]


def test_a_failed_turn_ends_the_conversation(tmp_path: Path) -> None:
    behaviour = Behaviour(hits=lambda body: len(body["prompt"]) > 41)
    with fake_target(behaviour) as (target, _):
        behaviour.fault = "status"
        seen = driven(tmp_path, target, talk(LONG, [7], [8], [9]))
    assert seen.trouble == "talk: talk[1] failed: status 500: out of order"
    assert seen.span("talk") is not None


def test_waits_sleep_as_long_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    with fake_target() as (target, _):
        monkeypatch.setattr("conformance.drive.time.sleep", slept.append)
        driven(tmp_path, target, PlannedStep("wait", "wait-0", wait=1.5))
    assert 1.5 in slept


def test_whether_the_server_came_to_rest_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_target() as (target, _):
        wait = PlannedStep("wait", "wait-0", wait="idle")
        assert driven(tmp_path, target, wait).spans[-1].detail == {"idle": True}
        monkeypatch.setattr(target, "idle", lambda timeout: False)
        assert driven(tmp_path, target, wait).spans[-1].detail == {"idle": False}


def test_a_mark_takes_one_sample_and_starts_the_peak_anew(tmp_path: Path) -> None:
    with fake_target() as (target, server):
        marks = server.state.marks
        seen = driven(tmp_path, target, PlannedStep("mark", "before"))
        assert server.state.marks == marks + 1
    sample = seen.at_mark("before")
    assert sample is not None
    assert sample.values["running"] == 0
    assert len(seen.samples) == 1
    assert seen.memory == []


def test_a_mark_asks_again_when_a_reading_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[dict[str, float]] = [{}, {"live": 3.0}, {"live": 4.0}]
    with fake_target() as (target, _):
        monkeypatch.setattr(target, "sample", lambda: readings.pop(0))
        seen = driven(tmp_path, target, PlannedStep("mark", "before"))
    assert [sample.values for sample in seen.samples] == [{"live": 3.0}]


def test_samples_run_from_the_start_of_a_step_to_its_end(tmp_path: Path) -> None:
    behaviour, together = Behaviour(), []
    with fake_target(behaviour) as (target, server):
        behaviour.hold = threading.Event()

        def seen_together() -> bool:
            together.extend([server.state.readings] if server.state.running == 4 else [])
            return bool(together) and server.state.readings > together[0] + 1

        with opened_when(seen_together, behaviour.hold):
            seen = driven(tmp_path, target, burst())
    during = seen.during("four")
    assert len(during) == len(seen.samples) >= 3
    assert max(sample.values["running"] for sample in during) == 4
    assert during[-1].values["running"] == 0


def test_a_target_without_counters_is_not_asked_for_any(tmp_path: Path) -> None:
    with fake_target(Behaviour(), dialect(stats=[])) as (target, _):
        seen = driven(tmp_path, target, send(), PlannedStep("mark", "before"))
    assert seen.samples == []
    assert seen.of("seed")[0].ok


def test_memory_is_read_where_a_judge_asks_and_the_processes_are_known(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "import time; time.sleep(60)"])
    with fake_target(Behaviour(), child=child) as (target, _):
        unasked = driven(tmp_path, target, send(), PlannedStep("mark", "before"))
        (tmp_path / "h.jsonl").unlink()
        seen = driven(tmp_path, target, send(), PlannedStep("mark", "before"), memory=True)
    assert unasked.memory == []
    # Without a name: what was held before anything was asked.
    assert [memory.step for memory in seen.memory][:2] == ["", ""]
    during = [memory for memory in seen.memory if memory.step]
    assert {memory.step for memory in during} == {"seed", "before"}
    assert all(memory.bytes > 2**20 for memory in during)


def test_memory_is_read_while_things_settle(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "import time; time.sleep(60)"])
    with fake_target(Behaviour(), child=child) as (target, _):
        seen = driven(tmp_path, target, PlannedStep("wait", "wait[1]", wait=0.3), memory=True)
    span = seen.span("wait[1]")
    assert span is not None
    assert len([m for m in seen.memory if span.start <= m.at <= span.end]) >= 3


def test_a_reset_empties_and_says_so(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        seen = driven(tmp_path, target, send(), PlannedStep("reset", "reset-1"), send("again"))
    assert [o.cached for o in seen.outcomes] == [0, 0]
    span = seen.span("reset-1")
    assert span is not None
    assert span.detail == {"done": True, "tries": 1}


def test_a_workload_starts_on_an_empty_cache_where_that_may_be_asked_for(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        assert [driven(tmp_path, target, send()).outcomes[0].cached for _ in range(2)] == [0, 0]
    with fake_target(how="endpoint") as (target, _):
        assert [driven(tmp_path, target, send()).outcomes[0].cached for _ in range(2)] == [0, 36]


@pytest.mark.parametrize(("how", "told"), [("endpoint", 0.0), ("engine", 2.0)])
def test_a_mark_on_an_endpoint_waits_until_other_clients_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, told: float
) -> None:
    readings = [{"running": 2.0}, {"running": 1.0}, {"running": 0.0}]
    with fake_target() as (target, _):
        target.facts = target.facts.model_copy(update={"how": how})
        monkeypatch.setattr(target, "sample", lambda: readings.pop(0))
        seen = driven(tmp_path, target, PlannedStep("mark", "before"))
    assert [sample.values["running"] for sample in seen.samples] == [told]


def test_a_mark_takes_an_endpoint_that_never_rests_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_target() as (target, _):
        target.facts = target.facts.model_copy(update={"how": "endpoint"})
        monkeypatch.setattr("conformance.watch.EVERY", 0.0)
        monkeypatch.setattr(target, "sample", lambda: {"running": 1.0})
        seen = driven(tmp_path, target, PlannedStep("mark", "before"))
    assert [sample.values for sample in seen.samples] == [{"running": 1.0}]
