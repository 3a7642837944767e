"""A scripted worker, a live server around it and a client: the HTTP layer without an engine.

Knows the worker's contract and nothing of MLX. A script yields events; each request's script runs in a thread
of its own, as events come from another thread in the real engine. A `Gate` in a script waits for the test.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, cast

import requests
import uvicorn

from engine.cli import bind
from engine.config import EngineConfig
from engine.messages import (
    Adapter,
    Done,
    Event,
    Finished,
    Request,
    RequestError,
    Sink,
    Started,
    Token,
    WorkerLike,
)
from engine.server import create_app
from engine.serving import uvicorn_config

Address = tuple[str, int]

# Longest that any test waits for something that must happen, seconds.
PATIENCE = 60.0


class Gate(threading.Event):
    """A point in a script where the engine stands still until the test opens it."""


Script = Callable[[Request], Iterable[Event | Gate]]


class FakeCodec:
    """One id per Latin-1 character; a chat is its contents, each behind its role's first letter."""

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 256 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def token_text(self, id: int) -> str:
        return chr(id)

    def render_chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        if messages[0]["role"] == "tool":
            raise LookupError("a chat cannot begin with a tool")
        body = "".join(message["role"][0] + message["content"] for message in messages)
        return self.encode(body + (">" if add_generation_prompt else ""))


def letters(request: Request) -> Iterator[Event]:
    """The default script: every choice says `abc...` to its length, 3 prompt tokens were cached."""
    count = request.params.max_tokens
    yield Started(3)
    for choice in range(request.params.n):
        for step in range(count):
            id = 97 + step % 26
            yield Token(choice, id, chr(id), logprob=-0.5 - step, top=[(id, -0.5 - step), (65, -9.25)])
        yield Finished(choice, "length")
    yield Done(len(request.prompt), 3, count * request.params.n)


class FakeWorker:
    """Answers every request with the events of a script, unless it was cancelled."""

    model_name = "fake"
    max_positions = 4096
    tokenizer = FakeCodec()

    def __init__(self, script: Script = letters) -> None:
        self.script = script
        self.alive = True
        self.adapters: dict[str, Adapter] = {}
        self.drained = False
        self.submitted: list[Request] = []
        self.cancelled: list[str] = []
        self.arrived = threading.Semaphore(0)
        self.cancelling = threading.Semaphore(0)
        self.emitted = threading.Semaphore(0)
        self.answers: dict[str, Any] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.snapshot: dict[str, Any] = {"seq": 7, "hits": 2, "name": "fake", "enabled": True}

    def submit(self, request: Request, sink: Sink) -> None:
        if any(not 0 <= id < 256 for id in request.prompt):
            raise RequestError("prompt holds an id outside 0..255", "prompt")
        self.submitted.append(request)
        threading.Thread(target=self._play, args=(request, sink), daemon=True).start()
        self.arrived.release()

    def _play(self, request: Request, sink: Sink) -> None:
        for event in self.script(request):
            if isinstance(event, Gate):
                event.wait(PATIENCE)
            elif request.id not in self.cancelled:
                sink(event)
        self.emitted.release()

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.cancelling.release()

    def drain(self) -> None:
        self.drained = True

    def stop(self) -> None:
        self.alive = False

    def stats(self) -> dict[str, Any]:
        return dict(self.snapshot)

    def call(self, name: str, **kwargs: Any) -> Future[Any]:
        """A named answer; an exception is raised, None never comes."""
        self.calls.append((name, kwargs))
        future: Future[Any] = Future()
        answer = self.answers.get(name, {})
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future


class Switch:
    """Passes everything on to the worker of the test at hand, so that tests can share one server."""

    def __init__(self) -> None:
        self.worker = FakeWorker()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def stats(self) -> dict[str, Any]:
        return self.worker.stats()


def live(worker: FakeWorker | Switch, *, test_mode: bool = False) -> AbstractContextManager[Address]:
    """The application around a scripted worker."""
    return serving(cast(WorkerLike, worker), EngineConfig(test_mode=test_mode))


@contextmanager
def serving(worker: WorkerLike, config: EngineConfig) -> Iterator[Address]:
    """The application on a real socket in a thread; yields its (host, port)."""
    listener = bind(replace(config, port=0))
    listener.listen()
    server = uvicorn.Server(uvicorn_config(create_app(worker, config)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[:2]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


class Client:
    """A thin client of one live server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url = "http://{}:{}".format(*address)

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, timeout=PATIENCE)

    def post(self, path: str, body: object) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=PATIENCE)

    def complete(self, **fields: Any) -> requests.Response:
        return self.post("/v1/completions", {"prompt": "hello", "max_tokens": 3} | fields)

    def chat(self, **fields: Any) -> requests.Response:
        messages = [{"role": "user", "content": "hi"}]
        return self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 3} | fields)


def chunks(response: requests.Response) -> list[Any]:
    """The data of every event, parsed; the closing [DONE] stays as text."""
    data = [line.removeprefix("data: ") for line in response.text.split("\n") if line]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def error_of(response: requests.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def open_request(address: Address, body: bytes, length: int | None = None) -> socket.socket:
    """Send a completion request over a socket of its own and leave the answer unread."""
    connection = socket.create_connection(address, timeout=PATIENCE)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection
