"""A small scripted LLM server: answers like one, and misbehaves where it is told to.

Its tokens are words for text prompts and ids for id prompts; its cache keeps every finished prompt and
adopts by longest common prefix, floored to its granule. Also runs as a program, for tests that launch one.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from conformance.history import PlannedRequest

Fault = Literal[
    "reset", "cut", "no-done", "bad-json", "bad-shape", "error-event", "hang", "status", "no-http"
]
Json = dict[str, Any]
CERTIFICATE = Path(__file__).parent / "tls" / "cert.pem"
"""Signed by itself, for 127.0.0.1; it guards nothing."""


@dataclass
class Behaviour:
    """What the server can do, and what it does wrong to requests that `hits` accepts."""

    takes_ids: bool = True
    returns_ids: bool = True
    logprobs: bool = True
    refuses_logprobs: bool = False
    granule: int = 4
    cached: Literal["lawful", "null", "absent"] = "lawful"
    keeps: bool = True
    replicas: int = 1
    """Requests go to one cache after the other."""
    late: float = 0.0
    """Seconds after which a stored prompt can be found."""
    min_prefix: int = 0
    isolates: bool = True
    """Whether a salt keeps prompts apart."""
    keeps_replies: bool = False
    fault: Fault | None = None
    instead: Callable[[BaseHTTPRequestHandler, list[Json]], None] | None = None
    """Gives the whole reply to such requests itself; is told the chunks of a lawful one."""
    status: int = 500
    after: int = 2
    """Tokens that a faulty stream gives before its fault."""
    hits: Callable[[Json], bool] = lambda body: True
    first_delay: float = 0.0
    token_delay: float = 0.0
    hold: threading.Event | None = None
    """No token before this is set."""
    reset_answers: list[Json] = field(default_factory=lambda: [{"cleared": True}])
    """In turn; the last one stays."""
    server: str = "fake"
    actions: frozenset[str] = frozenset()
    """POST routes that do nothing and say so with 200; every other one that is asked for is 404."""
    gauges: Json = field(default_factory=dict)
    """More gauges on /stats, or other values for the usual ones."""
    pages: dict[str, Json | str] = field(default_factory=dict)
    """GET route -> body, instead of the usual ones."""
    made: dict[str, Callable[[], str]] = field(default_factory=dict)
    """Route -> what makes its body each time."""
    redirects: dict[str, str] = field(default_factory=dict)
    """POST route -> where it sends its client instead."""


@dataclass(frozen=True)
class Entry:
    """A stored prompt: whose it is, where, and since when."""

    salt: str
    tokens: list[Any]
    replica: int
    since: float


@dataclass
class State:
    behaviour: Behaviour
    stored: list[Entry] = field(default_factory=list)
    seen: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    readings: int = 0
    resets: int = 0
    actions: list[tuple[str, Json]] = field(default_factory=list)
    """What other POST routes were sent."""
    marks: int = 0
    running: int = 0
    ended: int = 0
    gone: int = 0
    """Requests whose client went away."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Handler(BaseHTTPRequestHandler):
    state: State
    disable_nagle_algorithm = True

    def version_string(self) -> str:
        return self.state.behaviour.server

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.state.readings += self.path == "/stats"
        pages = {"/health": {"status": "ok"}, "/v1/models": _models(), "/stats": _stats(self.state)}
        page = {**pages, **self.state.behaviour.pages}.get(self.path)
        if self.path in self.state.behaviour.made:
            page = self.state.behaviour.made[self.path]()
        body = page if isinstance(page, str) else json.dumps(page)
        self._reply(404 if page is None else 200, body.encode())

    def do_POST(self) -> None:
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/v1/completions":
            self._complete(data)
        elif self.path in self.state.behaviour.redirects:
            self.send_response(307)
            self.send_header("Location", self.state.behaviour.redirects[self.path])
            self.end_headers()
        elif self.path in self.state.behaviour.made:
            self._reply(200, self.state.behaviour.made[self.path]().encode())
        elif self.path == "/tokenize":
            self._reply(200, json.dumps({"tokens": [ord(letter) for letter in data["prompt"]]}).encode())
        elif self.path == "/reset":
            self._reset()
        elif self.path == "/mark":
            self.state.marks += 1
            self._reply(200, b"{}")
        else:
            self.state.actions.append((self.path, data))
            self._reply(200 if self.path in self.state.behaviour.actions else 404, b"{}")

    def _reset(self) -> None:
        answers = self.state.behaviour.reset_answers
        answer = answers[min(self.state.resets, len(answers) - 1)]
        self.state.resets += 1
        if answer.get("cleared"):
            self.state.stored.clear()
        self._reply(200, json.dumps(answer).encode())

    def _reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _complete(self, data: Json) -> None:
        state = self.state
        with state.lock:
            state.seen.append(data)
            state.headers.append(dict(self.headers.items()))
            state.running += 1
        try:
            self._answer(data)
        except OSError:
            state.gone += 1
        finally:
            with state.lock:
                state.running -= 1
                state.ended += 1

    def _answer(self, data: Json) -> None:
        behaviour = self.state.behaviour
        fault = behaviour.fault if behaviour.hits(data) else None
        refused = _refusal(data, behaviour)
        if fault == "no-http":
            self.wfile.write(b"this is no HTTP\r\n\r\n")
        elif fault == "status":
            error = {"error": {"message": "out of order", "type": "server_error"}}
            self._reply(behaviour.status, json.dumps(error).encode())
        elif behaviour.instead is not None and behaviour.hits(data):
            behaviour.instead(self, list(self._chunks(data)))
        elif refused:
            self._reply(400, json.dumps({"error": {"message": refused}}).encode())
        elif data.get("stream"):
            self._stream(data, fault)
        else:
            self._whole(data, fault)

    def _whole(self, data: Json, fault: Fault | None) -> None:
        if fault == "hang":
            time.sleep(2)
        chunks = list(self._chunks(data))
        choice = {"text": "", "token_ids": [], "finish_reason": "length", "logprobs": _no_logprobs()}
        for chunk in chunks[:-1]:
            _merge(choice, chunk["choices"][0])
        body = {"choices": [choice], "usage": chunks[-1]["usage"]}
        self._reply(200, b"{oh" if fault == "bad-json" else json.dumps(body).encode())
        self._store(data)

    def _stream(self, data: Json, fault: Fault | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        self.wfile.write(b": keep-alive\n\n")
        for number, chunk in enumerate(self._chunks(data)):
            if fault is not None and number == self.state.behaviour.after and self._misbehave(fault):
                return
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if fault != "no-done":
            self.wfile.write(b"data: [DONE]\n\n")
        self._store(data)

    def _misbehave(self, fault: Fault) -> bool:
        """Whether the reply is over with it."""
        if fault == "reset":
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        events = {"bad-json": b"data: {oh\n\n", "bad-shape": b'data: {"choices": [{"text": 7}]}\n\n'}
        events["error-event"] = b'data: {"error": {"message": "lost it"}}\n\n'
        self.wfile.write(events.get(fault, b""))
        if fault == "hang":
            time.sleep(2)
        return fault in ("reset", "cut")

    def _chunks(self, data: Json) -> Iterator[Json]:
        behaviour, tokens = self.state.behaviour, _tokens(data["prompt"])
        cached = self._cached(data, tokens)
        if behaviour.hold is not None:
            behaviour.hold.wait(10)
        time.sleep(behaviour.first_delay)
        for number in range(data["max_tokens"]):
            choice = _choice(tokens, number, number == data["max_tokens"] - 1, data, behaviour)
            yield {"choices": [choice], "fingerprint": "1.2-3.4-Linux"}
            time.sleep(behaviour.token_delay)
        details = {"lawful": {"cached_tokens": cached}, "null": {"cached_tokens": None}, "absent": None}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": data["max_tokens"]}
        yield {"choices": [], "usage": {**usage, "prompt_tokens_details": details[behaviour.cached]}}

    def _cached(self, data: Json, tokens: list[Any]) -> int:
        behaviour, now = self.state.behaviour, time.monotonic()
        found = (
            _lcp(entry.tokens, tokens)
            for entry in self.state.stored
            if entry.salt == self._salt(data) and entry.replica == self._replica(data) and entry.since <= now
        )
        cached = min(max(found, default=0), len(tokens) - 1) // behaviour.granule * behaviour.granule
        return cached if cached >= behaviour.min_prefix else 0

    def _store(self, data: Json) -> None:
        behaviour, tokens = self.state.behaviour, _tokens(data["prompt"])
        if behaviour.keeps:
            reply = _reply(tokens, data["max_tokens"]) if behaviour.keeps_replies else []
            since = time.monotonic() + behaviour.late
            entry = Entry(self._salt(data), [*tokens, *reply], self._replica(data), since)
            self.state.stored.append(entry)

    def _salt(self, data: Json) -> str:
        return data.get("cache_salt", "") if self.state.behaviour.isolates else ""

    def _replica(self, data: Json) -> int:
        order = next(i for i, seen in enumerate(self.state.seen) if seen is data)
        return order % self.state.behaviour.replicas


def _models() -> Json:
    return {"data": [{"id": "fake-model", "owned_by": "nobody"}]}


def _stats(state: State) -> Json:
    blocks = sum(len(entry.tokens) for entry in state.stored) // state.behaviour.granule
    gauges = {"live": blocks, "running": state.running, "waiting": 0, "sequence": len(state.seen)}
    return gauges | state.behaviour.gauges


def _refusal(data: Json, behaviour: Behaviour) -> str:
    if isinstance(data["prompt"], list) and not behaviour.takes_ids:
        return "prompt must be a string"
    return "no logprobs here" if "logprobs" in data and behaviour.refuses_logprobs else ""


def _tokens(prompt: str | list[int]) -> list[Any]:
    return prompt.split() if isinstance(prompt, str) else prompt


def _lcp(left: list[Any], right: list[Any]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _choice(tokens: list[Any], number: int, last: bool, data: Json, behaviour: Behaviour) -> Json:
    """Token `number` of the reply: a letter that depends on the whole prompt."""
    token = _reply(tokens, number + 1)[number]
    choice: Json = {"text": chr(token), "finish_reason": "length" if last else None}
    if behaviour.returns_ids:
        choice["token_ids"] = [token]
    if behaviour.logprobs and "logprobs" in data:
        top = {chr(token): -0.25, "other": -2.25}
        choice["logprobs"] = {"tokens": [chr(token)], "token_logprobs": [-0.25], "top_logprobs": [top]}
    return choice


def _reply(tokens: list[Any], count: int) -> list[int]:
    first = sum(map(hash_of, tokens))
    return [97 + (first + number) % 26 for number in range(count)]


def hash_of(token: Any) -> int:
    """A number for a token that is the same in every process."""
    return token if isinstance(token, int) else sum(token.encode())


def _no_logprobs() -> Json:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": []}


def _merge(whole: Json, part: Json) -> None:
    whole["text"] += part["text"]
    whole["token_ids"] += part.get("token_ids", [])
    for name, values in part.get("logprobs", {}).items():
        whole["logprobs"][name] += values


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: a client that trusts no certificate breaks off."""


class FakeServer:
    """A running fake; `state` says what it has seen."""

    def __init__(self, behaviour: Behaviour, port: int = 0, tls: bool = False) -> None:
        self.state = State(behaviour)
        handler = type("Bound", (Handler,), {"state": self.state})
        self.http = QuietServer(("127.0.0.1", port), handler)
        self.http.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
            # The handshake belongs to the thread of a request: one that fails must not stop the others.
            self.http.socket = context.wrap_socket(
                self.http.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.http.server_address[1]}"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@contextmanager
def fake_server(behaviour: Behaviour | None = None, tls: bool = False, port: int = 0) -> Iterator[FakeServer]:
    server = FakeServer(behaviour or Behaviour(), port, tls)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def planned(step: str, prompt: list[int] | str, index: int | None = None, **changes: Any) -> PlannedRequest:
    """A request as a plan would hold it; `index` None for a single send."""
    text = prompt if isinstance(prompt, str) else None
    ids = None if isinstance(prompt, str) else prompt
    request = PlannedRequest(
        id=step if index is None else f"{step}[{index}]",
        step=step,
        index=index or 0,
        prompt_ids=ids,
        prompt_text=text,
        parts=[len(prompt)],
        max_tokens=4,
        salt="tenant",
        stream=True,
        logprobs=True,
        key=f"key-{prompt}",
    )
    return request.model_copy(update=changes)


def main() -> None:
    """`--announce` prints the engine's line, `--cold` keeps nothing, `--slow` takes seconds a token."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--announce", action="store_true")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0)
    options, _ = parser.parse_known_args()
    server = FakeServer(Behaviour(keeps=not options.cold, token_delay=options.slow), options.port)
    if options.announce:
        print(f"listening on {server.url}", flush=True)
    server.http.serve_forever()


if __name__ == "__main__":
    main()
