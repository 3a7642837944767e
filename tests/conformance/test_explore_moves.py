"""Each move alone: it shows what it is for on the healthy engine, and fails on one that has the fault."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import strategies as st

from conformance.explore import endings, hunt, moves, pressing
from conformance.explore.drawn import Draw
from conformance.explore.inprocess import configured
from conformance.explore.judging import Inside
from conformance.explore.script import Json, Script
from conformance.explore.strategies import Move
from conformance.history import Facts
from engine.faults import parts_for
from tests.conformance import hunting


@cache
def inside(fault: str | None = None) -> Inside:
    return Inside(configured([]), parts_for(fault))


def alone(move: Move, profile: str, facts: Facts) -> st.SearchStrategy[Json]:
    """Workloads of this move and no other."""

    @st.composite
    def made(draw: Draw) -> Json:
        script = Script(facts, profile)
        start = script.mark()
        move(draw, script)
        script.whole(start, script.mark())
        return script.data()

    strategy: st.SearchStrategy[Json] = made()
    return strategy


SHOWN: list[tuple[Move, str, str, str]] = [
    (moves.company, "default", "same_as_solo", "swap_rows_on_finish"),
    (moves.choices, "default", "choices_alone", "copy_leaves_rows_behind"),
    (moves.cold, "default", "computed_once", "no_single_flight"),
    (moves.chat, "default", "rerendered", "strip_old_messages"),
    (moves.twins, "default", "twins_once", "no_dedup_on_publish"),
    (moves.rungs, "default", "ladder", "full_hit_has_nothing_to_run"),
    (moves.timing, "default", "quiet_timing", "tell_of_other_salts"),
    (moves.one_shot, "dense", "same_as_solo", "lend_live_rows"),
    (endings.leave_queue, "default", "released", "leak_ref_when_queued"),
    (endings.retry, "default", "written_only", "publish_ahead_on_cancel"),
    (endings.reset, "default", "forgotten", "reset_keeps_index"),
    (endings.reset_decoding, "default", "reset_meant", "reset_wipes_running"),
    (endings.reset_prefilling, "default", "nothing_carried", "publish_across_reset"),
    (endings.reload, "default", "renewed", "ignore_weight_version"),
    (pressing.too_long, "tight", "refused_at_once", "admit_what_never_fits"),
    (pressing.hot, "tight", "stays", "fifo_eviction"),
    (pressing.chain, "tight", "tail_first", "evict_head_first"),
    (pressing.recycle, "tight", "recycled", "keep_hash_of_heads"),
    (pressing.outlast, "tight", "unrecycled", "free_ignores_refcount"),
    (pressing.traffic, "tight", "in_budget", "never_evict"),
    (pressing.overflow, "overcommit", "all_end", "fail_instead_of_preempt"),
    (pressing.overflow, "overcommit", "resumed", "stale_cached_count_on_resume"),
]


@pytest.fixture(autouse=True)
def no_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "_SHRINK", -1.0)


@pytest.mark.parametrize(("move", "profile", "judge", "fault"), SHOWN, ids=[row[3] for row in SHOWN])
def test_a_move_fails_with_the_fault_that_it_shows(move: Move, profile: str, judge: str, fault: str) -> None:
    made = alone(move, profile, inside().facts)
    found = hunting.hunt(made, inside(fault), 30, healthy=inside())
    assert found.failure is not None
    assert judge in {expect.judge for expect, _ in found.failure.accusers}
    assert found.alarms == []


@pytest.mark.parametrize(
    ("move", "profile", "judge", "fault"), SHOWN, ids=[f"{row[0].__name__}-{row[2]}" for row in SHOWN]
)
def test_on_the_healthy_engine_it_passes_and_shows_that(
    move: Move, profile: str, judge: str, fault: str
) -> None:
    shown: list[str] = []

    def judged(data: Json) -> hunt.Judged:
        verdicts = inside()(data)
        shown.extend(str(verdict.status) for expect, verdict in verdicts if expect.judge == judge)
        return verdicts

    found = hunting.hunt(alone(move, profile, inside().facts), judged, 4)
    assert (found.failure, found.errors) == (None, [])
    assert "pass" in shown


LEAST = Facts(dialect="generic", name="g", how="endpoint", grade="decided")


@pytest.mark.parametrize("move", dict.fromkeys(row[0] for row in SHOWN if row[1] == "default"))
def test_where_the_target_lacks_what_it_needs_something_else_is_asked(move: Move) -> None:
    seen: list[Json] = []

    def kept(data: Json) -> hunt.Judged:
        seen.append(data)
        return []

    hunting.hunt(alone(move, "default", LEAST), kept, 3)
    steps = [step for data in seen for step in data["steps"]]
    assert all(any({"prompt", "opening"} & step.keys() for step in data["steps"]) for data in seen)
    assert not any({"hold", "reset", "reload", "messages"} & step.keys() for step in steps)
