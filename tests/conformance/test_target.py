"""Targets and fleets: what is sent, what is read, which server a case gets, and complaints in words."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conformance import launch
from conformance.asking import Asker
from conformance.dialect import Dialect
from conformance.fleet import Fleet, open_target
from conformance.launch import free_port
from conformance.plan import Unobservable
from conformance.rendering import Rendering
from conformance.spec import Serve
from conformance.target import Target, TargetError, TargetOptions
from tests.conformance import fakeserver
from tests.conformance.fakeserver import CERTIFICATE, Behaviour, fake_server, planned
from tests.conformance.targets import TEXT, dialect, fake_target, options

SERVER = [sys.executable, fakeserver.__file__]
COMMAND = shlex.join([*SERVER, "--port", "{port}"])


def test_a_request_carries_what_the_dialect_names_and_no_more() -> None:
    with fake_target() as (target, _):
        body = target.rendering.body(planned("seed", [1, 2, 3], max_tokens=7))
    assert body == {
        "prompt": [1, 2, 3],
        "max_tokens": 7,
        "stream": True,
        "temperature": 0,
        "stream_options": {"include_usage": True},
        "logprobs": 2,
        "model": "fake-model",
        "cache_salt": "tenant",
    }


def test_a_plain_request_leaves_out_what_is_not_asked_for() -> None:
    with fake_target() as (target, _):
        body = target.rendering.body(planned("seed", "some text", stream=False, logprobs=False, salt=""))
    assert body["prompt"] == "some text"
    assert body["stream"] is False
    assert not {"stream_options", "logprobs", "cache_salt", "no_cache"} & set(body)


@pytest.mark.parametrize(("stream", "asked"), [(True, None), (False, 2)])
def test_what_streams_are_not_to_be_asked_for_is_taken_back(stream: bool, asked: int | None) -> None:
    known = dialect(ask={"logprobs": {"logprobs": 2}, "stream": {"logprobs": None}})
    body = Rendering(known.ask, "m").body(planned("seed", "some text", stream=stream))
    assert body["logprobs"] == asked


def test_a_plain_prompt_can_go_as_one_chat_message() -> None:
    known = dialect(ask={"form": "chat", "max_tokens": "max_completion_tokens"})
    body = Rendering(known.ask, "m").body(planned("seed", "some text", max_tokens=7))
    assert body["messages"] == [{"role": "user", "content": "some text"}]
    assert body["max_completion_tokens"] == 7
    assert not {"prompt", "max_tokens"} & set(body)


def test_a_server_behind_tls_and_headers_is_a_target() -> None:
    extra = {"X-Team": "s3cret"}
    with fake_server(tls=True) as server:
        how = options(verify=str(CERTIFICATE), extra=extra)
        target = Target(server.url, how, dialect=dialect())
        target.close()
        assert server.state.headers[0]["X-Team"] == "s3cret"
    assert target.facts.has_stats
    assert "s3cret" not in target.facts.model_dump_json()


def test_a_cold_request_says_so() -> None:
    with fake_target() as (target, _):
        assert target.rendering.body(planned("seed", [1]), cold=True)["no_cache"] is True


def test_the_whole_request_is_ready_before_it_is_sent() -> None:
    with fake_target() as (target, _):
        call = target.render(planned("seed", [1, 2]))
        assert call.path == "/v1/completions"
        assert json.loads(call.body) == target.rendering.body(planned("seed", [1, 2]))


def test_the_asked_for_model_wins() -> None:
    with fake_target(model="other") as (target, _):
        assert target.rendering.body(planned("seed", [1]))["model"] == "other"


def test_no_model_is_named_where_none_is_known() -> None:
    with fake_target(Behaviour(pages={"/v1/models": {"data": []}})) as (target, _):
        assert "model" not in target.rendering.body(planned("seed", [1]))


def test_the_key_goes_along_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFORMANCE_API_KEY", "s3cret")
    asked = TargetOptions(how="endpoint")
    assert asked.headers == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(asked)
    with fake_target(api_key="s3cret") as (target, server):
        assert server.state.headers[-1]["Authorization"] == "Bearer s3cret"
        assert "s3cret" not in target.facts.model_dump_json()
    monkeypatch.delenv("CONFORMANCE_API_KEY")
    assert TargetOptions(how="endpoint").headers == {}


def test_a_completion_becomes_an_outcome() -> None:
    with fake_target() as (target, _):
        first = target.send(planned("seed", list(range(20))))
        again = target.send(planned("seed", list(range(20))))
    assert (first.ok, first.cached, first.prompt_tokens, len(first.token_ids or [])) == (True, 0, 20, 4)
    assert (again.cached, again.token_ids) == (16, first.token_ids)


def test_gauges_are_read_in_the_harness_s_names() -> None:
    with fake_target() as (target, _):
        target.send(planned("seed", list(range(20))))
        sample = target.sample()
    assert sample["live"] == 20 // 4
    assert set(sample) == {"live", "running", "waiting", "sequence"}


def test_a_dead_server_has_no_gauges() -> None:
    with fake_target() as (target, server):
        server.close()
        assert target.sample() == {}
        assert not target.alive()


def test_a_reset_is_asked_for_until_it_is_done() -> None:
    answers = [{"cleared": True}, {"cleared": False}, {"cleared": False}, {"cleared": True}]
    with fake_target(Behaviour(reset_answers=answers)) as (target, _):
        assert target.reset() == {"done": True, "tries": 3}


def test_a_reset_that_is_never_done_says_so() -> None:
    with fake_target(Behaviour(reset_answers=[{"cleared": True}, {"cleared": False}])) as (target, _):
        done = target.reset(timeout=0.1)
    assert (done["done"], done["reason"]) == (False, "/reset: refused")


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (dialect(reset=None), "the target has no reset"),
        (dialect(reset={"route": "/nowhere"}), "/nowhere: absent"),
    ],
)
def test_a_server_without_reset_is_told_at_once(known: Dialect, reason: str) -> None:
    with fake_target(Behaviour(), known) as (target, _):
        assert target.reset()["reason"] == reason


def test_the_peak_is_marked_where_there_is_one() -> None:
    with fake_target() as (target, server):
        target.mark()
        assert server.state.marks == 1
    with fake_target(Behaviour(), dialect(mark=None)) as (target, server):
        target.mark()
        assert server.state.marks == 0


def test_idle_is_when_nothing_runs_and_readings_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges = [(1, 0, 5), (0, 1, 5), (0, 0, 5), (0, 0, 4), (0, 0, 4), (9, 9, 9)]
    readings = [{"running": r, "waiting": w, "live": n, "sequence": i} for i, (r, w, n) in enumerate(gauges)]
    with fake_target() as (target, _):
        monkeypatch.setattr(target, "sample", lambda: readings.pop(0))
        assert target.idle(timeout=10)
    assert len(readings) == 1


def test_a_server_that_never_rests_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_target() as (target, _):
        monkeypatch.setattr(target, "sample", lambda: {"running": 1.0, "waiting": 0.0})
        assert not target.idle(timeout=0.2)


def test_without_gauges_idle_is_the_settle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    with fake_target(Behaviour(), dialect(stats=[], facts={"granule": 4, "settle": 0.7})) as (target, _):
        monkeypatch.setattr("conformance.target.time.sleep", slept.append)
        assert target.idle(timeout=10)
    assert slept == [0.7]


def test_gauges_that_rest_are_poked_first() -> None:
    with fake_target(Behaviour(), dialect(poke=True)) as (target, server):
        asked = len(server.state.seen)
        assert target.idle(timeout=10)
        assert [body["max_tokens"] for body in server.state.seen[asked:]] == [1]


def test_health_is_a_finished_completion() -> None:
    broken = Behaviour()
    with fake_target(broken) as (target, _):
        assert target.alive()
        broken.fault = "status"
        assert not target.alive()


def test_a_server_that_is_gone_is_noticed() -> None:
    with fake_target() as (target, server):
        assert target.gone() is None
        server.close()
        assert target.gone() == f"nothing answers at {server.url} any more: connection refused"


def test_processes_are_those_that_were_started_here() -> None:
    with fake_target() as (target, _):
        assert target.pid is None
        assert target.meter() is None


def test_the_process_of_an_endpoint_may_be_named() -> None:
    with fake_target(pid=os.getpid()) as (target, _):
        assert target.pid == os.getpid()
        meter = target.meter()
        assert meter is not None
        reading = meter.read()
        assert reading is not None
        assert reading.bytes > 2**20


def test_an_address_that_nobody_answers_is_a_clear_error() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TargetError, match=rf"nothing answers at {url}: connection refused"):
        open_target(options(how="endpoint", url=url)).main()


def test_an_address_that_is_none_is_a_clear_error() -> None:
    with pytest.raises(TargetError, match="no address of a server"):
        open_target(options(how="endpoint", url="localhost")).main()


def test_a_server_that_is_no_llm_is_a_clear_error() -> None:
    message = "did not answer POST /v1/completions like an LLM server"
    broken = Behaviour(fault="status", status=404)
    with fake_server(broken) as server, pytest.raises(TargetError, match=message):
        open_target(options(how="endpoint", url=server.url)).main()


def test_a_target_that_nobody_gets_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dropped where it was made: a server that answers some routes well, and then is none of ours."""
    made: list[Asker] = []

    class Noted(Asker):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

        def close(self) -> None:
            made.remove(self)
            super().close()

    monkeypatch.setattr("conformance.target.Asker", Noted)
    with fake_server(Behaviour(fault="status", status=404)) as server:
        with pytest.raises(TargetError, match="like an LLM server"):
            Target(server.url, options())
        assert made == []
    with fake_target():
        assert len(made) == 1


def test_nothing_is_contacted_before_a_case_needs_it() -> None:
    fleet = open_target(options(how="endpoint", url="http://127.0.0.1:1"))
    fleet.close()


def test_an_endpoint_serves_every_plain_case() -> None:
    with fake_server() as server:
        fleet = open_target(options(how="endpoint", url=server.url))
        with fleet.for_serve(Serve()) as first, fleet.for_serve(Serve()) as second:
            assert first is second
        fleet.close()


@pytest.mark.parametrize("serve", [Serve(fresh=True), Serve(profile="tight")])
def test_an_endpoint_cannot_be_started_otherwise(serve: Serve) -> None:
    fleet = open_target(options(how="endpoint", url="http://127.0.0.1:1"))
    with pytest.raises(Unobservable, match=f"profile {serve.profile}"), fleet.for_serve(serve):
        raise AssertionError("never started")


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Real processes of the fake server, recognised as a family with a cold profile."""
    profiles = {"default": {"args": []}, "cold": {"args": ["--cold"]}, "odd": {"args": ["--odd"]}}
    known = Dialect.model_validate({**TEXT, "profiles": profiles, "cold_profile": "cold"})
    monkeypatch.setattr("conformance.target.dialects", lambda: (known,))
    fleet = open_target(options(command=COMMAND))
    yield fleet
    fleet.close()


def test_a_command_of_the_user_s_is_not_written_down(fleet: Fleet) -> None:
    with fleet.for_serve(Serve()) as target:
        assert "command" not in target.facts.machine


def test_progress_goes_where_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_TELL", -1.0)
    said: list[str] = []
    command = shlex.join([sys.executable, "-c", "import time; time.sleep(0.3)", "{port}"])
    with pytest.raises(TargetError, match="it printed nothing"):
        open_target(options(command=command, progress=said.append)).main()
    assert said[0].startswith("waiting for `")


def test_a_launched_server_is_shared_and_ended(fleet: Fleet) -> None:
    with fleet.for_serve(Serve()) as target:
        pid = target.pid
    with fleet.for_serve(Serve()) as again:
        assert again.pid == pid
    fleet.close()
    assert target.gone() == "the server process ended (killed by SIGTERM)"


def test_a_fresh_server_is_another_process_and_ends_with_the_case(fleet: Fleet) -> None:
    with fleet.for_serve(Serve()) as main, fleet.for_serve(Serve(fresh=True)) as own:
        assert own.pid != main.pid
    assert own.gone() is not None
    assert main.gone() is None


def test_a_profile_becomes_flags_of_the_command(fleet: Fleet) -> None:
    with fleet.for_serve(Serve(profile="odd")) as target:
        assert target.child is not None
        assert target.child.command[-1] == "--odd"


def test_a_profile_that_is_optional_is_not_missed(fleet: Fleet) -> None:
    with fleet.for_serve(Serve(profile="tight", optional=True, fresh=True)) as target:
        assert target.child is not None
        assert target.child.command[-1] not in ("--odd", "--cold")
    with fleet.for_serve(Serve(profile="odd", optional=True)) as target:
        assert target.child is not None
        assert target.child.command[-1] == "--odd"


def test_a_profile_that_the_family_lacks_is_unobservable(fleet: Fleet) -> None:
    message = "plain server has no launch profile 'tight'"
    with pytest.raises(Unobservable, match=message), fleet.for_serve(Serve(profile="tight")):
        raise AssertionError("never started")


def test_cold_runs_get_a_server_that_keeps_nothing(fleet: Fleet) -> None:
    request = planned("seed", "a b c d e f g h")
    with fleet.for_serve(Serve()) as target, target.cold() as cold:
        assert cold is not None
        assert [cold.send(request).cached for _ in range(2)] == [0, 0]
        assert [target.send(request).cached for _ in range(2)] == [0, 4]
    with target.cold() as again:
        assert again is cold


def test_a_launched_server_that_died_is_started_again(fleet: Fleet) -> None:
    first = fleet.main()
    assert first.child is not None
    first.child.close()
    with fleet.for_serve(Serve()) as second:
        assert second is not first
        assert second.alive()


def test_a_command_that_fails_is_a_clear_error() -> None:
    command = shlex.join([sys.executable, "-c", "raise SystemExit('no such model')", "{port}"])
    with pytest.raises(
        TargetError, match=r"ended before it was ready \(exit code 1\); it last said: no such model$"
    ):
        open_target(options(command=command)).main()


def test_a_launched_server_that_is_no_llm_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[launch.Child] = []
    real = launch.launch_command

    def launched(*arguments: Any) -> tuple[launch.Child, str]:
        child, url = real(*arguments)
        children.append(child)
        return child, url

    monkeypatch.setattr(launch, "launch_command", launched)
    monkeypatch.setattr("conformance.fleet._answers", lambda url: True)
    script = "import time; print('I am a teapot', flush=True); time.sleep(60)"
    command = shlex.join([sys.executable, "-c", script, "{port}"])
    with pytest.raises(
        TargetError, match=r"nothing answers at .*: connection refused; it (last said|printed nothing)"
    ):
        open_target(options(command=command)).main()
    assert children[0].exit_code() is not None


def test_a_request_can_be_cold_where_it_may_ask_for_it() -> None:
    with fake_target() as (target, _), target.cold() as cold:
        assert cold is target
    with fake_target(Behaviour(), Dialect.model_validate(TEXT)) as (target, _), target.cold() as cold:
        assert cold is None


def test_the_engine_gets_its_flags_and_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def command(arguments: Any) -> list[str]:
        asked.append(list(arguments))
        return [*SERVER, "--port", "0", "--announce"]

    monkeypatch.setattr(launch, "engine_command", command)
    fleet = open_target(options(how="engine", engine_args=("--chunk", "64"), fault="leak"))
    with fleet.for_serve(Serve(profile="unshared")) as target:
        assert target.facts.dialect == "engine"
        assert target.facts.machine["command"] == (
            "python -m engine serve --port 8000 --chunk 64 --fault leak --no-sharing"
        )
    with (
        pytest.raises(Unobservable, match="has no launch profile 'odd'"),
        fleet.for_serve(Serve(profile="odd")),
    ):
        raise AssertionError("never started")
    fleet.close()
    assert asked == [["--chunk", "64", "--fault", "leak", "--no-sharing"]]


def test_the_bundled_engine_is_what_its_dialect_says() -> None:
    """The one test here with the real engine: dialect and server must fit."""
    fleet = open_target(options(how="engine", engine_args=("--model", "digest"), timeout=60.0))
    try:
        target = fleet.main()
        facts = target.facts
        assert (facts.block, facts.granule, facts.chunk, facts.pool_blocks) == (32, 32, 256, 4096)
        assert (facts.sharing, facts.shares_in_flight, facts.model) == ("all", True, "digest")
        assert facts.takes_ids
        assert facts.returns_ids
        assert facts.reports_cached
        assert facts.has_logprobs
        assert facts.has_stats
        assert facts.has_reset
        request = planned("seed", target.vocabulary.ids(100, 1))
        cold, warm = target.send(request), target.send(request)
        assert (cold.cached, warm.cached, warm.token_ids) == (0, 96, cold.token_ids)
        assert target.idle(timeout=10)
        sample = target.sample()
        assert (sample["live"], sample["referenced"], sample["running"]) == (3, 0, 0)
    finally:
        fleet.close()


@pytest.mark.parametrize(("replicas", "several"), [(1, False), (3, True)])
def test_a_server_that_is_not_ours_is_looked_at_before_a_run(
    replicas: int, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.preflight._PATIENCE", 0.0)
    with fake_server(Behaviour(replicas=replicas)) as server:
        fleet = open_target(options(how="endpoint", url=server.url))
        facts = fleet.main().facts
        fleet.close()
    assert bool(facts.several_caches) == several


def test_a_dry_fleet_shows_the_session_s_server_in_place_of_others() -> None:
    with fake_server() as server:
        fleet = open_target(options(how="engine", dry=True))
        fleet._main = Target(server.url, options(dry=True), dialect=dialect())
        with fleet.for_serve(Serve(profile="unshared")) as target:
            assert target is fleet._main
        with (
            pytest.raises(Unobservable, match="has no launch profile 'odd'"),
            fleet.for_serve(Serve(profile="odd")),
        ):
            raise AssertionError("never shown")
        fleet.close()
        assert server.state.seen == []


def test_a_gauge_that_lags_is_waited_for_by_the_declared_settle_time() -> None:
    """A rest that is older than the request; what the request did shows half a second late."""
    sent: list[float] = []

    def page() -> str:
        late = bool(sent) and time.monotonic() - sent[0] > 0.5
        return json.dumps({"live": 10 if late else 3, "running": 0, "waiting": 0, "sequence": 1})

    known = dialect(facts={"block": 4, "granule": 4, "settle": 0.7})
    with fake_target(Behaviour(made={"/stats": page}), known) as (target, _):
        target.send(planned("seed", [1, 2, 3]))
        sent.append(time.monotonic())
        assert target.idle(timeout=10)
        assert target.sample()["live"] == 10


def test_what_runs_after_all_within_the_settle_time_is_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dialect(facts={"block": 4, "granule": 4, "settle": 0.3})
    running = iter([0, 0, 1, 1])
    with fake_target(Behaviour(), known) as (target, _):
        monkeypatch.setattr(target, "sample", lambda: {"running": next(running, 1), "waiting": 0})
        assert not target.idle(timeout=0.6)


def test_a_reset_that_leads_elsewhere_is_not_followed() -> None:
    behaviour = Behaviour()
    with fake_target(behaviour) as (target, server):
        behaviour.redirects = {"/reset": "/mark"}
        marks = server.state.marks
        assert target.reset() == {"done": False, "tries": 1, "reason": "/reset: redirected"}
        assert server.state.marks == marks


def test_ids_that_are_none_are_refused() -> None:
    behaviour = Behaviour()
    with fake_target(behaviour) as (target, _):
        behaviour.made = {"/tokenize": lambda: '{"tokens": ["a", 1]}'}
        with pytest.raises(ValueError, match="the target's /tokenize gave no ids"):
            target.encode("a")


def test_an_endpoint_that_is_back_is_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.target.dialects", lambda: (dialect(),))
    with fake_server() as server:
        fleet = open_target(options(how="endpoint", url=server.url))
        first = fleet.main()
        server.close()
        for _ in range(2):
            with pytest.raises(TargetError, match=f"nothing answers at {server.url} any more"):
                fleet.main()
    with fake_server(port=first.address.port) as again:
        second = fleet.main()
        assert second is not first
        assert fleet.main() is second
        assert again.state.seen
    fleet.close()
