"""Routes over real sockets, with a scripted worker: errors, text and ids, facts, the cache."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import requests

from engine import server, serving
from engine.config import EngineConfig
from engine.messages import Adapter, Failed, RequestError, Started, Token
from tests.engine.fakes import (
    PATIENCE,
    Client,
    FakeWorker,
    Gate,
    chunks,
    error_of,
    open_request,
)

# ---- errors


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_unknown_model_is_a_404(client: Client, path: str) -> None:
    body = {"model": "other", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    response = client.post(path, body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'fake'" in error["message"]


def test_the_served_model_may_be_named(client: Client) -> None:
    assert client.complete(model="fake").status_code == 200


def test_a_wrong_field_is_a_400_that_names_it(client: Client) -> None:
    response = client.complete(temperature=-1)
    assert (response.status_code, error_of(response)["param"]) == (400, "temperature")
    assert error_of(response)["type"] == "invalid_request_error"


def test_a_broken_body_is_a_400(client: Client) -> None:
    response = requests.post(client.url + "/v1/completions", data=b"{oops", timeout=PATIENCE)
    assert response.status_code == 400
    assert "not JSON" in error_of(response)["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_worker_refuses_is_a_400(client: Client, stream: bool) -> None:
    response = client.complete(prompt=[1, 999], stream=stream)
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")
    assert "outside 0..255" in error_of(response)["message"]


def test_when_one_prompt_is_refused_the_others_are_cancelled(client: Client, worker: FakeWorker) -> None:
    worker.script = lambda request: [Gate()]
    assert client.complete(prompt=[[1], [999]]).status_code == 400
    assert worker.cancelled == [worker.submitted[0].id]


def test_a_bias_outside_the_vocabulary_is_named(client: Client) -> None:
    response = client.complete(logit_bias={"256": 1})
    assert (response.status_code, error_of(response)["param"]) == (400, "logit_bias")
    assert client.complete(logit_bias={"255": 1}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_503_with_retry_after(client: Client, worker: FakeWorker, stream: bool) -> None:
    worker.script = lambda request: [Failed(503, "the queue is full")]
    response = client.complete(stream=stream)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert error_of(response)["message"] == "the queue is full"


def test_a_failure_before_the_first_event_has_its_own_status(client: Client, worker: FakeWorker) -> None:
    worker.script = lambda request: [Failed(400, "no", "invalid_request_error", "stop")]
    response = client.complete(stream=True)
    assert (response.status_code, error_of(response)["param"]) == (400, "stop")
    assert "Retry-After" not in response.headers


def test_a_failure_within_a_stream_ends_it_without_done(client: Client, worker: FakeWorker) -> None:
    worker.script = lambda request: [Started(0), Token(0, 97, "a"), Failed(500, "broke")]
    response = client.complete(stream=True)
    first, last = chunks(response)
    assert (response.status_code, first["choices"][0]["text"]) == (200, "a")
    assert last["error"]["message"] == "broke"


def test_a_failure_after_tokens_is_an_error_when_not_streamed(client: Client, worker: FakeWorker) -> None:
    worker.script = lambda request: [Started(0), Token(0, 97, "a"), Failed(500, "broke")]
    response = client.complete()
    assert (response.status_code, error_of(response)["type"]) == (500, "server_error")


def test_a_failed_prompt_cancels_its_siblings(client: Client, worker: FakeWorker) -> None:
    worker.script = lambda request: [Failed(500, "broke") if request.prompt == (1,) else Gate()]
    assert client.complete(prompt=[[1], [2]]).status_code == 500
    assert worker.cancelled == [next(r.id for r in worker.submitted if r.prompt == (2,))]


def test_a_crash_is_a_500_without_a_traceback(client: Client, worker: FakeWorker) -> None:
    worker.answers["reset"] = ZeroDivisionError("secret detail")
    response = client.post("/v1/cache/reset", {})
    assert (response.status_code, error_of(response)["type"]) == (500, "server_error")
    assert "secret detail" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nope", 404), ("GET", "/v1/completions", 405)]
)
def test_unknown_routes_and_methods_have_error_bodies(
    client: Client, method: str, path: str, status: int
) -> None:
    response = requests.request(method, client.url + path, timeout=PATIENCE)
    assert response.status_code == status
    assert path in error_of(response)["message"]


def test_a_body_over_the_limit_is_a_413(client: Client, worker: FakeWorker) -> None:
    response = client.complete(prompt="x" * (33 * 2**20))
    assert (response.status_code, worker.submitted) == (413, [])
    assert "33554432" in error_of(response)["message"]


def test_a_body_that_never_arrives_is_a_408(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.05)
    with closing(open_request(client.address, b"{", length=2)) as connection:
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


def test_a_body_cut_short_reaches_nobody(
    client: Client, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    for leave in (socket.SHUT_WR, socket.SHUT_RDWR):
        with closing(open_request(client.address, b'{"prompt":', length=500)) as connection:
            connection.shutdown(leave)
            assert connection.recv(4096) == b""
    assert client.complete().status_code == 200
    assert (len(worker.submitted), caplog.records) == (1, [])


@pytest.mark.parametrize("filler", ["x" * 70_000, ["x"] * 30_000])
def test_a_large_body_is_read_as_a_small_one(client: Client, worker: FakeWorker, filler: object) -> None:
    assert client.complete(made_up=filler).status_code == 200
    response = client.complete(temperature=filler)
    assert (response.status_code, error_of(response)["param"]) == (400, "temperature")
    assert len(response.text) < 400


@pytest.mark.parametrize("over", [0, 1])
def test_a_text_that_no_tokens_could_hold_is_not_encoded(client: Client, over: int) -> None:
    text = "x" * (4096 * 128 + over)
    statuses = [
        client.complete(prompt=text).status_code,
        client.post("/tokenize", {"prompt": text}).status_code,
        client.post("/tokenize", {"messages": [{"role": "user", "content": text}]}).status_code,
    ]
    assert statuses == [400 if over else 200] * 3


# ---- text and ids


def test_tokenize_text(client: Client) -> None:
    body = client.post("/tokenize", {"prompt": "AB"}).json()
    assert body == {"tokens": [65, 66], "count": 2, "max_model_len": 4096}


def test_tokenize_nothing(client: Client) -> None:
    assert client.post("/tokenize", {"prompt": ""}).json()["tokens"] == []


@pytest.mark.parametrize(("flag", "ids"), [({}, b"uhi>"), ({"add_generation_prompt": False}, b"uhi")])
def test_tokenize_messages(client: Client, flag: dict[str, bool], ids: bytes) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert client.post("/tokenize", {"messages": messages} | flag).json()["tokens"] == list(ids)


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}])
def test_tokenize_wants_one_of_both(client: Client, body: object) -> None:
    response = client.post("/tokenize", body)
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")


def test_detokenize(client: Client) -> None:
    assert client.post("/detokenize", {"tokens": [65, 66]}).json() == {"prompt": "AB"}


def test_detokenize_outside_the_vocabulary(client: Client) -> None:
    response = client.post("/detokenize", {"tokens": [65, 256]})
    assert (response.status_code, error_of(response)["param"]) == (400, "tokens.1")


# ---- facts


def test_models(client: Client) -> None:
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == ("fake", "conformance-engine", 4096)


def test_adapters_are_models(client: Client, worker: FakeWorker) -> None:
    worker.adapters = {"a": Adapter("a"), "b": Adapter("b", 5, 2)}
    cards = client.get("/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [
        ("fake", None), ("fake:a", "fake"), ("fake:b", "fake")
    ]  # fmt: skip
    for card in cards:
        assert client.complete(model=card["id"]).json()["model"] == card["id"]
    assert [request.adapter for request in worker.submitted] == [None, *worker.adapters.values()]


@pytest.mark.parametrize("name", ["fake:c", "fake:", "a", "", "fake:a:a"])
def test_an_adapter_that_is_not_served_is_a_404(client: Client, worker: FakeWorker, name: str) -> None:
    worker.adapters = {"a": Adapter("a")}
    response = client.complete(model=name)
    assert (response.status_code, worker.submitted) == (404, [])
    assert "'fake', 'fake:a' are" in error_of(response)["message"]


def test_fingerprints_tell_settings_apart() -> None:
    settings: list[dict[str, Any]] = [{}, {"model": "digest"}, {"model_seed": 1}, {"grid": 64}, {"port": 1}]
    prints = [server.fingerprint(EngineConfig(**given)) for given in settings]
    assert (len(set(prints)), prints[0]) == (4, prints[-1])


def test_version(client: Client) -> None:
    assert client.get("/version").json() == {"name": "conformance-engine", "version": "0.1.0"}


def test_health_while_the_engine_lives(client: Client) -> None:
    response = client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_health_after_the_engine_died(client: Client, worker: FakeWorker) -> None:
    worker.alive = False
    response = client.get("/health")
    assert (response.status_code, error_of(response)["message"]) == (503, "the engine has stopped")


def test_metrics(client: Client, worker: FakeWorker) -> None:
    worker.snapshot = {"hits": 2, "failed_total": 1, "running": 3, "name": "x"}
    response = client.get("/metrics")
    lines = [line for line in response.text.splitlines() if not line.startswith("# HELP")]
    assert response.headers["content-type"].startswith("text/plain")
    assert lines == [
        "# TYPE conformance_engine_hits_total counter",
        "conformance_engine_hits_total 2.0",
        "# TYPE conformance_engine_failed_total counter",
        "conformance_engine_failed_total 1.0",
        "# TYPE conformance_engine_running gauge",
        "conformance_engine_running 3.0",
    ]


def test_metrics_follow_the_statistics(client: Client, worker: FakeWorker) -> None:
    worker.snapshot = {"hits": 1}
    before = client.get("/metrics").text
    worker.snapshot = {"hits": 5}
    assert ("hits_total 1.0" in before, "hits_total 5.0" in client.get("/metrics").text) == (True, True)


# ---- cache


def test_stats_are_flat_json(client: Client, worker: FakeWorker) -> None:
    assert client.get("/v1/cache/stats").json() == worker.snapshot


def test_reset(client: Client, worker: FakeWorker) -> None:
    worker.answers["reset"] = {"freed_bytes": 64, "freed_entries": 2}
    response = client.post("/v1/cache/reset", {})
    assert response.json() == {"cleared": True, "freed_bytes": 64, "freed_entries": 2}


def test_mark(client: Client, worker: FakeWorker) -> None:
    assert client.post("/v1/cache/mark", {}).json() == {"marked": True}
    assert worker.calls == [("mark", {})]


def test_a_call_that_never_ends_is_a_503(
    client: Client, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CALL_SECONDS", 0.05)
    worker.answers["reset"] = None
    assert client.post("/v1/cache/reset", {}).status_code == 503


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/test/overwrite"),
        ("POST", "/v1/test/adapter"),
        ("GET", "/v1/test/integrity"),
        ("POST", "/v1/test/hold"),
        ("POST", "/v1/test/fail"),
    ],
)
def test_test_routes_exist_in_test_mode_only(client: Client, method: str, path: str) -> None:
    response = requests.request(method, client.url + path, json={"block": 1}, timeout=PATIENCE)
    assert response.status_code == 404


def test_overwrite(tester: Client, worker: FakeWorker) -> None:
    assert tester.post("/v1/test/overwrite", {"block": 5}).json() == {"overwritten": 5}
    assert worker.calls == [("overwrite", {"block": 5})]


def test_overwrite_of_a_block_that_is_not_live(tester: Client, worker: FakeWorker) -> None:
    worker.answers["overwrite"] = RequestError("block 5 is not live", "block")
    response = tester.post("/v1/test/overwrite", {"block": 5})
    assert (response.status_code, error_of(response)["param"]) == (400, "block")


def test_adapter(tester: Client, worker: FakeWorker) -> None:
    worker.answers["adapter"] = {"name": "a", "seed": 7, "version": 3}
    answer = tester.post("/v1/test/adapter", {"name": "a", "seed": 7}).json()
    assert answer == {"name": "a", "seed": 7, "version": 3}
    assert worker.calls == [("adapter", {"adapter": "a", "seed": 7})]


def test_integrity(tester: Client, worker: FakeWorker) -> None:
    worker.answers["integrity"] = {"ok": False, "problems": ["free list has 3 twice"]}
    body = tester.get("/v1/test/integrity").json()
    assert body == {"ok": False, "problems": ["free list has 3 twice"]}


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ({"phase": "decode", "after": 2}, {"phase": "decode", "after": 2}),
        ({"phase": None}, {"phase": None, "after": 0}),
    ],
)
def test_hold(tester: Client, worker: FakeWorker, body: object, call: object) -> None:
    assert tester.post("/v1/test/hold", body).status_code == 200
    assert worker.calls == [("hold", call)]


def test_fail(tester: Client, worker: FakeWorker) -> None:
    assert tester.post("/v1/test/fail", {"method": "decode", "after_steps": 3}).status_code == 200
    assert worker.calls == [("fail", {"method": "decode", "after_steps": 3})]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("hold", {"phase": "sleep"}, "phase"),
        ("fail", {"method": 5}, "method"),
        ("fail", {"method": "x"}, "method"),
    ],
)
def test_a_wrong_test_command_names_the_field(tester: Client, path: str, body: object, param: str) -> None:
    response = tester.post(f"/v1/test/{path}", body)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


def test_health_while_the_server_drains(client: Client, worker: FakeWorker) -> None:
    worker.snapshot["draining"] = True
    response = client.get("/health")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert error_of(response)["message"] == "the server is draining"


# ---- the process


def test_the_server_says_where_it_listens_and_stops_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave_at_once(_: serving.EngineServer) -> None: ...

    monkeypatch.setattr(serving.EngineServer, "main_loop", leave_at_once)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    stopped: list[bool] = []
    worker = FakeWorker()
    monkeypatch.setattr(worker, "stop", lambda: stopped.append(worker.drained))
    serving.run(server.create_app(worker, EngineConfig()), listener, worker)
    assert capsys.readouterr().out == f"listening on http://127.0.0.1:{port}\n"
    assert stopped == [True]


class Crowd:
    """A worker that is empty after `looks` looks; `on_look` happens at each."""

    def __init__(self, looks: int) -> None:
        self.looks, self.seen = looks, 0
        self.on_look: Callable[[], None] = lambda: None

    def drain(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def drained(self) -> bool:
        self.seen += 1
        self.on_look()
        return self.seen > self.looks


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Callable[[Crowd, float], serving.EngineServer]:
    """A server that has got its first signal."""

    def told(crowd: Crowd, drain: float) -> serving.EngineServer:
        config = serving.uvicorn_config(server.create_app(FakeWorker(), EngineConfig()))
        engine = serving.EngineServer(config, crowd, drain)
        engine.handle_exit(signal.SIGTERM, None)
        return engine

    monkeypatch.setattr(serving, "DRAIN_CHECK_SECONDS", 0)
    return told


Leaving = Callable[[Crowd, float], serving.EngineServer]


@pytest.mark.parametrize(("drain", "seen"), [(PATIENCE, 4), (0, 0)])
def test_draining_waits_until_nobody_is_left_or_no_time(leaving: Leaving, drain: float, seen: int) -> None:
    crowd = Crowd(3)
    asyncio.run(leaving(crowd, drain)._drain())
    assert crowd.seen == seen


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_wait(leaving: Leaving, second: signal.Signals) -> None:
    crowd = Crowd(1_000_000)
    engine = leaving(crowd, PATIENCE)
    crowd.on_look = lambda: engine.handle_exit(second, None)
    asyncio.run(engine._drain())
    assert crowd.seen == 1
