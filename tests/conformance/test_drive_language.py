"""Steps in the background, replies that are waited for, and actions, driven over the fake server."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance.dialect import Dialect
from conformance.drafts import Draft
from conformance.drive import Driver
from conformance.history import Workload
from conformance.plan import PlannedStep, Unobservable
from conformance.prompts import ReplyOf
from conformance.spec import Churn, Fail, Hold, Join, Leave, Overwrite, Reached, Reload, Reset, When
from conformance.target import Target
from tests.conformance.fakeserver import Behaviour, FakeServer, fake_server, planned
from tests.conformance.targets import (
    FAKE,
    LONG,
    burst,
    dialect,
    driven,
    fake_target,
    options,
    plan,
    recording,
    send,
)

ROUTES = frozenset({"/hold", "/fail", "/overwrite", "/adapter", "/abort"})
HOOKS: dict[str, Any] = {
    "reload": {"route": "/adapter", "send": {"name": "{adapter}", "seed": "{number}"}},
    "abort": {"route": "/abort", "send": {"id": "{id}"}},
    "test": {
        "hold": {
            "route": "/hold",
            "send": {"phase": "{phase}", "after": "{after}"},
            "words": {"prefilling": "prefill", "off": None},
        },
        "fail": {"route": "/fail", "send": {"forward": "{forward}", "after": "{after}"}},
        "overwrite": {"route": "/overwrite", "send": {"block": "{block}"}},
        "block": "blocks[0]",
    },
}


def hooked(**changes: Any) -> Dialect:
    """A dialect that has every action."""
    return dialect(**(HOOKS | changes))


def start(name: str = "long", count: int = 1, **more: Any) -> PlannedStep:
    requests = tuple(planned(name, [*LONG, i], i, **more) for i in range(count))
    return PlannedStep("start", name, requests, together=count > 1)


def join(name: str = "long") -> PlannedStep:
    return PlannedStep("join", "join[0]", says=Join(join=name))


def when(phase: Any, name: str = "long", **more: Any) -> PlannedStep:
    where = Reached(request=name, phase=phase, **more)
    return PlannedStep("when", "when[0]", says=When(when=where))


def reached(seen: Workload) -> Any:
    span = seen.span("when[0]")
    assert span is not None
    return span.detail["reached"]


def test_a_started_step_ends_where_it_is_joined(tmp_path: Path) -> None:
    with fake_target(Behaviour(token_delay=0.02)) as (target, _):
        seen = driven(tmp_path, target, start(max_tokens=20), send("short"), join(), send("last"))
    long, span = seen.of("long")[0], seen.span("long")
    assert span is not None
    assert long.sent < seen.of("short")[0].sent < long.ended <= span.end <= seen.of("last")[0].sent
    assert (span.kind, span.detail["requests"]) == ("start", 1)


def test_a_step_that_is_never_joined_is_joined_at_the_end(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        seen = driven(tmp_path, target, start(count=3))
    assert [o.ok for o in seen.of("long")] == [True] * 3


def test_started_requests_may_follow_each_other(tmp_path: Path) -> None:
    step = PlannedStep("start", "row", tuple(planned("row", [*LONG, i], i) for i in range(2)))
    with fake_target() as (target, _):
        first, second = driven(tmp_path, target, step).of("row")
    assert first.ended <= second.sent


def test_a_started_step_is_joined_after_trouble_too(tmp_path: Path) -> None:
    behaviour = Behaviour(token_delay=0.02)
    late = PlannedStep("send", "late", (planned("late", [1]),), {0: Draft(((ReplyOf("long[0]"),),))})
    with fake_target(behaviour) as (target, _):
        seen = driven(tmp_path, target, start(max_tokens=10), late)
    assert seen.trouble == "late: late needs the reply of long[0], which has not ended"
    assert seen.of("long")[0].ok


def test_a_request_that_needs_a_failed_reply_ends_the_workload(tmp_path: Path) -> None:
    behaviour = Behaviour(hits=lambda body: body["prompt"] == [5, 5])
    late = PlannedStep("send", "late", (planned("late", [1]),), {0: Draft(((ReplyOf("bad"),),))})
    with fake_target(behaviour) as (target, _):
        behaviour.fault = "status"
        seen = driven(tmp_path, target, send("bad", [5, 5]), late, send("never"))
    assert seen.trouble == "late: late needs the reply of bad, which failed: status 500: out of order"
    assert seen.of("never") == []


@pytest.mark.parametrize(("gauges", "there"), [({"waiting": 2}, True), ({"waiting": 1}, False)])
def test_queued_is_what_the_gauge_says(tmp_path: Path, gauges: dict[str, int], there: bool) -> None:
    with fake_target(Behaviour(first_delay=0.3, gauges=gauges)) as (target, _):
        assert reached(driven(tmp_path, target, start(count=2), when("queued"))) is there


def test_prefilling_is_a_share_of_the_measured_time(tmp_path: Path) -> None:
    with fake_target(Behaviour(first_delay=0.2)) as (target, _):
        seen = driven(tmp_path, target, send(), start(), when("prefilling", fraction=0.3), join())
    ttft = (seen.of("seed")[0].first or 0) - seen.of("seed")[0].sent
    [long], span = seen.of("long"), seen.span("when[0]")
    assert span is not None
    assert reached(seen)
    assert long.sent + 0.3 * ttft <= span.end < (long.first or 0)


def test_a_request_that_decodes_does_not_prefill_any_more(tmp_path: Path) -> None:
    with fake_target(Behaviour(token_delay=0.05)) as (target, _):
        seen = driven(tmp_path, target, start(max_tokens=8), when("prefilling", fraction=0.99), join())
    assert not reached(seen)


def test_a_wait_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.background._LONGEST", 0.1)
    hold = threading.Event()
    behaviour = Behaviour(hits=lambda body: True)
    with fake_target(behaviour) as (target, _), recording(tmp_path) as recorder:
        behaviour.hold = hold
        threading.Timer(0.4, hold.set).start()
        Driver(target, recorder).run(plan(start(), when("decoding"), join()))
        assert not reached(recorder.workload)


def test_an_interrupt_leaves_no_reading_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(timeout: float) -> bool:
        raise KeyboardInterrupt

    with fake_target(Behaviour(token_delay=0.02)) as (target, _), recording(tmp_path) as recorder:
        monkeypatch.setattr(target, "idle", interrupt)
        steps = start(max_tokens=5), PlannedStep("wait", "wait[1]", wait="idle")
        with pytest.raises(KeyboardInterrupt):
            Driver(target, recorder).run(plan(*steps))
        assert [thread.name for thread in threading.enumerate() if "_loop" in thread.name] == []
        assert recorder.workload.samples


def numbers(server: FakeServer) -> list[int]:
    return [body["seed"] for route, body in server.state.actions if route == "/adapter"]


def test_each_run_gives_an_endpoint_weights_of_its_own() -> None:
    with fake_server(Behaviour(actions=ROUTES)) as server:
        for _ in range(2):
            how = options(how="endpoint", allow=frozenset({"reset"}))
            target = Target(server.url, how, dialect=hooked())
            target.reload("a")
            target.reload("a")
            target.close()
        first, second, third, fourth = numbers(server)
    assert (second, fourth) == (first + 1, third + 1)
    assert not {first, second} & {third, fourth}


def test_a_server_of_the_run_has_the_same_weights_in_every_run() -> None:
    with fake_target(Behaviour(actions=ROUTES), hooked()) as (target, server):
        target.reload("a")
    assert numbers(server) == [1]


def test_actions_say_what_the_case_says_in_the_servers_words(tmp_path: Path) -> None:
    steps = (
        PlannedStep("hold", "hold[0]", says=Hold(hold="prefilling", after=3)),
        PlannedStep("fail", "broken", says=Fail(fail="broken", forward="decode", after=2)),
        PlannedStep("reload", "fresh", says=Reload(reload="fresh", adapter="a")),
        PlannedStep("reload", "again", says=Reload(reload="again", adapter="a")),
    )
    with fake_target(Behaviour(actions=ROUTES), hooked()) as (target, server):
        server.state.actions.clear()
        seen = driven(tmp_path, target, *steps)
    assert server.state.actions == [
        ("/hold", {"phase": "prefill", "after": 3}),
        ("/fail", {"forward": "decode", "after": 2}),
        ("/adapter", {"name": "a", "seed": 1}),
        ("/adapter", {"name": "a", "seed": 2}),
        ("/hold", {"phase": None, "after": 0}),
    ]
    assert [s.detail["done"] for s in seen.spans if s.kind in ("hold", "fail", "reload")] == [True] * 4


def test_what_the_server_refuses_is_written_down(tmp_path: Path) -> None:
    step = PlannedStep("fail", "broken", says=Fail(fail="broken", forward="decode"))
    with fake_target(Behaviour(), hooked()) as (target, _):
        span = driven(tmp_path, target, step).span("broken")
    assert span is not None
    assert (span.detail["done"], span.detail["status"]) == (False, 404)


def test_a_hold_that_is_refused_makes_the_case_unobservable(tmp_path: Path) -> None:
    step = PlannedStep("hold", "hold[0]", says=Hold(hold="prefilling"))
    with fake_target(Behaviour(), hooked()) as (target, _), recording(tmp_path) as recorder:
        driver = Driver(target, recorder)
        with pytest.raises(Unobservable, match="the target does not hold requests"):
            driver.run(plan(step))


def test_a_block_is_that_of_a_trace(tmp_path: Path) -> None:
    step = PlannedStep("overwrite", "spoilt", says=Overwrite(overwrite="spoilt", block_of="seed"))
    with fake_target(Behaviour(actions=ROUTES), hooked()) as (target, _):
        seen = driven(tmp_path, target, send(), step)
    assert seen.trouble == "spoilt: no request of 'seed' adopted a block that could be overwritten"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([{"cleared": False}], False),
        ([{"cleared": False}, {"cleared": True}], False),
        ([{"cleared": True}], True),
    ],
)
def test_a_named_reset_is_asked_for_once(tmp_path: Path, answers: list[Any], told: bool) -> None:
    behaviour = Behaviour()
    step = PlannedStep("reset", "emptied", says=Reset(reset="emptied"))
    with fake_target(behaviour, None) as (target, server), recording(tmp_path) as recorder:
        behaviour.reset_answers, server.state.resets = answers, 0
        driver = Driver(target, recorder)
        driver._step(step)
        span = recorder.workload.span("emptied")
    assert span is not None
    assert (span.detail["done"], span.detail["status"], server.state.resets) == (told, 200, 1)


def test_a_client_aborts_by_the_name_that_the_server_gave(tmp_path: Path) -> None:
    leave = Leave(how="abort", phase="decoding", tokens=2).model_dump()
    ask = {**FAKE["ask"], "id": "request_id"}
    with fake_target(Behaviour(actions=ROUTES, token_delay=0.02), hooked(ask=ask)) as (target, server):
        seen = driven(tmp_path, target, send(max_tokens=6, leave=leave))
        own = [body["request_id"] for body in server.state.seen if body["max_tokens"] == 6]
    assert [data for path, data in server.state.actions if path == "/abort"] == [{"id": own[0]}]
    assert seen.of("seed")[0].left == "decoding"


def test_without_a_gauge_a_queued_client_leaves_at_once(tmp_path: Path) -> None:
    leave = Leave(phase="queued").model_dump()
    with fake_target(Behaviour(first_delay=0.1), dialect(stats=[])) as (target, _):
        [gone] = driven(tmp_path, target, send(leave=leave)).outcomes
    assert gone.left == "prefilling"


def test_a_queued_client_leaves_when_the_gauge_rises(tmp_path: Path) -> None:
    leave, behaviour = Leave(phase="queued").model_dump(), Behaviour(first_delay=0.3)
    with fake_target(behaviour) as (target, _), recording(tmp_path) as recorder:
        driver = Driver(target, recorder)
        timer = threading.Timer(0.1, lambda: behaviour.gauges.update(waiting=1))
        timer.start()
        driver._step(send(leave=leave))
        assert [o.left for o in recorder.workload.outcomes] == ["queued"]


def churn(count: int = 6, **says: Any) -> PlannedStep:
    requests = tuple(planned("noise", [i, *LONG], i) for i in range(count))
    return PlannedStep("churn", "noise", requests, says=Churn(churn="noise", **says))


def test_a_churn_ends_with_so_many_evictions(tmp_path: Path) -> None:
    stats = [{"get": "/stats", "values": {"evictions": "sequence"}}]
    with fake_target(Behaviour(), dialect(stats=stats)) as (target, _):
        seen = driven(tmp_path, target, churn(evictions=3))
    span = seen.span("noise")
    assert span is not None
    assert (len(seen.of("noise")), span.detail["evictions"], span.detail["tokens"]) == (3, 3, 123)


def test_evictions_that_are_not_counted_cannot_be_waited_for(tmp_path: Path) -> None:
    with fake_target() as (target, _), pytest.raises(Unobservable, match="does not count evictions"):
        driven(tmp_path, target, churn(evictions=3))


def test_a_churn_of_tokens_needs_no_gauge(tmp_path: Path) -> None:
    with fake_target() as (target, _):
        span = driven(tmp_path, target, churn(2, tokens=50)).span("noise")
    assert span is not None
    assert "evictions" not in span.detail


def test_a_burst_may_be_staggered(tmp_path: Path) -> None:
    four = burst()
    step = PlannedStep("burst", "four", four.requests, together=True, stagger=0.05)
    with fake_target() as (target, _):
        seen = driven(tmp_path, target, step)
    span = seen.span("four")
    assert span is not None
    assert all(o.sent >= span.start + 0.05 * o.index for o in seen.of("four"))
    assert seen.of("four")[3].sent - span.start >= 0.15


@pytest.mark.parametrize(
    ("known", "facts"),
    [
        (hooked(), {"has_test": True, "has_abort": True, "can_reload": True}),
        (dialect(), {"has_test": False, "has_abort": False, "can_reload": False}),
    ],
)
def test_what_can_be_done_to_a_target_is_a_fact(known: Dialect, facts: Mapping[str, bool]) -> None:
    with fake_target(Behaviour(actions=ROUTES), known) as (target, _):
        assert {name: getattr(target.facts, name) for name in facts} == facts


def test_an_endpoint_is_not_held_unless_it_may_be_reset() -> None:
    with fake_target(Behaviour(actions=ROUTES), hooked(), how="endpoint") as (target, server):
        assert not target.facts.has_test
        assert not target.facts.can_reload
        assert server.state.actions == []


def test_adapters_are_those_that_the_server_lists() -> None:
    ask = {**FAKE["ask"], "adapters": {"a": "{model}-a", "b": "{model}-b"}}
    pages: dict[str, Any] = {"/v1/models": {"data": [{"id": "fake-model"}, {"id": "fake-model-b"}]}}
    with fake_target(Behaviour(pages=pages), dialect(ask=ask)) as (target, _):
        assert target.facts.adapters == ["b"]
        assert (
            target.rendering.body(planned("x", [1]).model_copy(update={"adapter": "b"}))["model"]
            == "fake-model-b"
        )


def test_a_chat_is_asked_for_on_its_own_route() -> None:
    said = [{"role": "user", "content": "hello"}]
    request = planned("x", [1]).model_copy(update={"messages": said, "prompt_ids": None})
    with fake_target() as (target, _):
        call = target.render(request)
        body = target.rendering.body(request)
    assert call.path == "/v1/chat/completions"
    assert (body["messages"], body["logprobs"], body["top_logprobs"]) == (said, True, 2)
    assert "prompt" not in body
