"""Targets over the fake server, for tests of the harness's back half."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.dialect import Dialect
from conformance.drafts import Draft, completed
from conformance.drive import Driver
from conformance.history import PlannedRequest, Workload
from conformance.launch import Child
from conformance.plan import Plan, PlannedStep
from conformance.prompts import Piece, ReplyOf
from conformance.record import Recorder, read
from conformance.spec import Serve
from conformance.target import Target, TargetOptions
from tests.conformance.fakeserver import Behaviour, FakeServer, fake_server, planned

FAKE: dict[str, Any] = {
    "dialect": "fake",
    "name": "fake server",
    "order": 1,
    "tokenize": {"post": "/tokenize", "field": "prompt", "ids": "tokens"},
    "ask": {
        "ids": True,
        "always": {"temperature": 0},
        "logprobs": {"logprobs": 2},
        "salt": "cache_salt",
        "cold": {"no_cache": True},
    },
    "answer": {"ids": "choices[0].token_ids"},
    "facts": {"block": 4, "granule": 4, "grade": "bits"},
    "stats": [
        {"get": "/stats", "values": {name: name for name in ("live", "running", "waiting", "sequence")}}
    ],
    "reset": {"route": "/reset", "path": "cleared", "equals": True},
    "mark": {"route": "/mark"},
}
"""A dialect that fits the fake server and has everything."""

TEXT: dict[str, Any] = {"dialect": "plain", "name": "plain server", "order": 1, "facts": {"granule": 1}}
"""Text only: no salt, no reset, no counters."""


def dialect(**changes: Any) -> Dialect:
    return Dialect.model_validate(FAKE | changes)


def options(**changes: Any) -> TargetOptions:
    defaults: dict[str, Any] = {"how": "serve", "timeout": 10.0, "api_key": None}
    return TargetOptions(**(defaults | changes))


@contextmanager
def fake_target(
    behaviour: Behaviour | None = None,
    known: Dialect | None = None,
    child: Child | None = None,
    **changes: Any,
) -> Iterator[tuple[Target, FakeServer]]:
    """A probed target and the fake server behind it."""
    with fake_server(behaviour) as server:
        target = Target(server.url, options(**changes), child, known or dialect())
        try:
            yield target, server
        finally:
            target.close()


LONG = list(range(40))
"""A prompt of ten of the fake server's granules."""


def plan(*steps: PlannedStep, solo: str = "", memory: bool = False) -> Plan:
    return Plan("adopt/x", "", "digest", Serve(), {}, steps, frozenset(solo.split()), memory)


def send(name: str = "seed", prompt: list[int] | str | None = None, **more: Any) -> PlannedStep:
    return PlannedStep("send", name, (planned(name, prompt or LONG, **more),))


def burst(name: str = "four", count: int = 4, kind: Any = "burst", **more: Any) -> PlannedStep:
    requests = tuple(planned(name, [*LONG, 100 + i], i, **more) for i in range(count))
    return PlannedStep(kind, name, requests, together=kind == "burst")


def talk(opening: list[int] | str, *each: list[int] | str, name: str = "talk") -> PlannedStep:
    """A conversation: each turn is the last one, its reply, and what the turn adds."""
    requests: list[PlannedRequest] = []
    drafts: dict[int, Draft] = {}
    said: tuple[Piece, ...] = (opening,)
    for turn, adds in enumerate(each):
        draft = Draft((said, (adds,)), is_ids=not isinstance(opening, str))
        request = planned(name, opening, turn, max_tokens=3)
        requests.append(request if draft.waits else completed(request, draft, lambda id: None))
        drafts |= {turn: draft} if draft.waits else {}
        said = (*said, adds, ReplyOf(request.id))
    return PlannedStep("turns", name, tuple(requests), drafts)


@contextmanager
def recording(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder with a workload open."""
    recorder = Recorder(tmp_path / "h.jsonl")
    recorder.header()
    recorder.begin("adopt/x", "", "digest")
    try:
        yield recorder
    finally:
        recorder.close()


def driven(
    tmp_path: Path,
    target: Target,
    *steps: PlannedStep,
    progress: Callable[[str], None] = print,
    memory: bool = False,
) -> Workload:
    """Steps run on a target; checks on the way that the file says what the live view says."""
    with recording(tmp_path) as recorder:
        Driver(target, recorder, progress).run(plan(*steps, memory=memory))
        live = recorder.workload
        recorder.end()
    assert read(tmp_path / "h.jsonl").workloads["adopt/x", ""] == live
    return live


@contextmanager
def opened_when(holds: Callable[[], bool], gate: threading.Event) -> Iterator[None]:
    """Opens the gate once `holds`, or after 10 s for a test that then fails rather than hangs."""
    thread = threading.Thread(target=_open, args=(holds, gate), daemon=True)
    thread.start()
    yield
    thread.join()


def _open(holds: Callable[[], bool], gate: threading.Event) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if holds():
            break
        pause.wait(0.01)
    gate.set()
